"""The text of a run: what is learnt from, what is held out, and a fingerprint of both.

Specified in specs/train.md (TRAIN-1 to TRAIN-6).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from atlas_ref.messages import no_such
from atlas_ref.storage import files
from atlas_ref.train import sampler, text
from atlas_ref.train.sampler import Corpus, Mixture, Sampler, Source, Streams
from atlas_ref.train.settings import Settings, Text
from atlas_ref.train.shards import Shards, shards_of
from atlas_ref.train.vocabulary import Bytes, Vocabulary, vocabulary


class Subset(NamedTuple):
    """A part of a mixture: its folder of shards below the path, and its weight."""

    path: str
    weight: float


#: Mixtures by name, over local files (TRAIN-5).
MIXTURES: dict[str, dict[str, Subset]] = {
    "smollm-corpus": {
        "cosmopedia-v2": Subset("cosmopedia-v2", 0.4),
        "fineweb-edu-dedup": Subset("fineweb-edu-dedup", 0.5),
        "python-edu-cleaned": Subset("python-edu-cleaned", 0.1),
    }
}

#: Bytes of a source of shards in which bytes of a token are counted.
SAMPLE = 2**16

#: Characters of the shortest text that a mixture takes, as its public loader has it.
SHORTEST = 51


class Data(NamedTuple):
    """The text of a run.

    Attributes:
        sampler: of the rows that are learnt from.
        held: what is held out; None for nothing.
        vocabulary: of both.
        bytes_per_token: of the text that is learnt from, or of a part of it.
        fingerprint: SHA-256 of the vocabulary with names and texts, or with sizes of row groups.
        about: what was read, in words.
    """

    sampler: Sampler
    held: Corpus | None
    vocabulary: Vocabulary
    bytes_per_token: float
    fingerprint: str
    about: str


def load(settings: Settings) -> Data:
    """Read the text of a run (TRAIN-1 to TRAIN-6).

    Raises:
        ValueError: names the file or the setting that is wrong, in one line.
    """
    own, seen = settings.text, hashlib.sha256()
    words = vocabulary(own.tokenizer)
    seen.update(f"{words.size}\n".encode())
    seen.update(b"" if own.tokenizer is None else files.read_bytes(own.tokenizer))
    paths = _paths(own)
    shards = [shards_of(path, only=own.only, skip=own.skip) for path in paths]
    if any(shards) or own.mixture is not None:
        _refuse_text(own, paths, shards)
        return _of_shards(settings, paths, shards, words, seen)
    for path in own.held_out:
        if shard := next(iter(shards_of(path, only=own.only, skip=own.skip)), None):
            raise ValueError(f"{shard}: Parquet shards beside text; give one kind of files")
    held, parts = _texts(own, paths)
    for each in (*held, *(one for part in parts for one in part)):
        seen.update(f"{each.name}\n{len(each.text)}\n".encode())
        seen.update(each.text)
    names = _names(paths) if own.weights else ["data"]
    corpora = [sampler.corpus(name, part, words) for name, part in zip(names, parts, strict=True)]
    for source in corpora:
        sampler.require_long(source, settings.tokens + 1)
    kept = sampler.corpus("held out", held, words) if held else None
    if kept is not None:
        sampler.require_long(kept, settings.tokens + 1)
    total = sum(each.size for each in corpora)
    return Data(
        _sampler(settings, corpora, own.weights or (1.0,)),
        kept,
        words,
        total / sum(len(each.ids) for each in corpora),
        seen.hexdigest(),
        f"{sum(map(len, parts))} documents of {total} bytes, {len(held)} of "
        f"{0 if kept is None else kept.size} bytes held out",
    )


def _paths(own: Text) -> list[str]:
    """The paths of a run, those of a mixture by its subsets."""
    if own.mixture is None:
        return list(own.paths)
    if own.mixture not in MIXTURES:
        raise ValueError(no_such("mixture", own.mixture, MIXTURES))
    known = MIXTURES[own.mixture]
    if len(own.paths) > 1:
        raise ValueError(f"mixture: one folder is needed, found {len(own.paths)} paths")
    for name in own.subsets:
        if name not in known:
            raise ValueError(no_such("subset", name, known))
    return [str(Path(own.paths[0], known[name].path)) for name in own.subsets or known]


def _names(paths: Sequence[str]) -> list[str]:
    """Names of sources, which differ, and stay where the folder around them is moved."""
    names = [os.path.basename(os.path.realpath(path)) for path in paths]
    return names if len(set(names)) == len(names) else [f"{i} {n}" for i, n in enumerate(names)]


def _refuse_text(own: Text, paths: Sequence[str], shards: Sequence[Sequence[str]]) -> None:
    """Refuse text where shards are read, and settings of text (TRAIN-5)."""
    for path, found in zip(paths, shards, strict=True):
        if found:
            continue
        if own.mixture is None:
            raise ValueError(f"{path}: text beside Parquet shards; give one kind of files")
        word = "no Parquet shard is here" if os.path.exists(path) else "no such file or folder"
        raise ValueError(f"{path}: {word}; mixture {own.mixture} has them below {own.paths[0]}")
    if own.held_out:
        raise ValueError("held_out: of Parquet shards row groups are drawn, by the share")
    if own.limit is not None:
        raise ValueError("limit: Parquet shards are read a row group at a time, without an end")


def _weights(own: Text, count: int) -> tuple[float, ...]:
    if own.mixture is None or own.weights:
        if own.weights and len(own.weights) != count:
            raise ValueError(f"weights: {len(own.weights)}, expected {count}")
        return own.weights or (1.0,) * count
    known = MIXTURES[own.mixture]
    return tuple(known[name].weight for name in own.subsets or known)


def _texts(
    own: Text, paths: Sequence[str]
) -> tuple[tuple[text.Document, ...], list[tuple[text.Document, ...]]]:
    """What is held out, and the documents of each source: of each path, or of all paths."""
    apart = [[path] for path in paths] if own.weights else [list(paths)]
    kept = text.files_of(own.held_out, only=own.only, skip=own.skip) if own.held_out else ()
    held = list(text.documents(kept)) if kept else []
    if kept and not held:
        raise ValueError("held_out: every file is empty")
    parts, left = [], own.limit
    for some in apart:
        found = text.without(text.files_of(some, only=own.only, skip=own.skip), kept)
        texts = text.documents(found, limit=left)
        left = None if left is None else left - sum(len(each.text) for each in texts)
        if not texts:
            raise ValueError(f"{', '.join(some)}: no text: every file is empty or held out")
        share = 0.0 if kept else own.share
        parted = text.divided(texts, share=share, seed=own.split_seed)
        parts.append(parted.train)
        held += parted.held
    return tuple(held), parts


def _of_shards(
    settings: Settings,
    paths: Sequence[str],
    shards: Sequence[Sequence[str]],
    words: Vocabulary,
    seen: Any,
) -> Data:
    own = settings.text
    names = list(own.subsets or MIXTURES[own.mixture]) if own.mixture else _names(paths)
    shortest = SHORTEST if own.mixture else 1
    sources = [
        Shards(name, some, words, share=own.share, seed=own.split_seed, shortest=shortest)
        for name, some in zip(names, shards, strict=True)
    ]
    for each in sources:
        seen.update(f"{each.name}\n{each.sizes}\n".encode())
    wanted = settings.rows * settings.evaluate_batches * settings.tokens + 1
    held = [each for source in sources for each in source.held(wanted)]
    kept = sampler.corpus("held out", held, words) if held else None
    if kept is not None:
        sampler.require_long(kept, settings.tokens + 1)
    weights = _weights(own, len(sources))
    ratios = [_bytes_per_token(each, words) for each in sources]
    ratio = sum(w * each for w, each in zip(weights, ratios, strict=True)) / sum(weights)
    about = ", ".join(f"{each.name} ({each.about})" for each in sources)
    made = _sampler(settings, sources, weights)
    return Data(made, kept, words, ratio, seen.hexdigest(), about)


def _bytes_per_token(source: Shards, words: Vocabulary) -> float:
    """Bytes of a token at the start of a source, which stands for all of it."""
    if isinstance(words, Bytes):
        return 1.0
    some = sampler.corpus(source.name, source.learnt(SAMPLE), words)
    return some.size / len(some.ids) if len(some.ids) else 1.0


def _sampler(settings: Settings, sources: Iterable[Source], weights: tuple[float, ...]) -> Sampler:
    found, length = tuple(sources), settings.tokens + 1
    if not settings.carried:
        return Mixture(found, weights, settings.rows, length, settings.seed)
    only = found[0]
    if len(found) > 1 or not isinstance(only, Corpus):
        raise ValueError(
            "state: carried goes on in one text, without weights and without shards; --state fresh "
            "takes them"
        )
    return Streams(only, settings.rows, length)
