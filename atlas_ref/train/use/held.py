"""The text that a model is evaluated on: files that are named, or what its run held out.

Specified in specs/evaluate.md (EVAL-1).
"""

from __future__ import annotations

from collections.abc import Sequence

from atlas_ref.train import data, sampler, text
from atlas_ref.train.sampler import Corpus
from atlas_ref.train.shards import shards_of
from atlas_ref.train.trained import Trained
from atlas_ref.train.vocabulary import NAME

#: How each message begins about a run that gives no text.
NEEDED = "--data: files or folders of text are needed"


def corpus(
    own: Trained,
    paths: Sequence[str] = (),
    *,
    only: Sequence[str] = ("*",),
    skip: Sequence[str] = (),
    limit: int | None = None,
) -> Corpus:
    """The text of files and folders, or without one what the model's run held out (EVAL-1).

    Args:
        paths, only, skip, limit: of `text.files_of` and `text.documents`.

    Raises:
        ValueError: names the file that is wrong; no text, and a run that held none out or whose
            text has changed.
    """
    if not paths:
        return _held_out(own)
    for path in paths:
        if shard := next(iter(shards_of(path, only=only, skip=skip)), None):
            raise ValueError(f"{shard}: of Parquet shards a run's held-out text is read alone")
    documents = text.documents(text.files_of(paths, only=only, skip=skip), limit=limit)
    if not documents:
        raise ValueError(f"{', '.join(paths)}: no text: every file is empty")
    return sampler.corpus(", ".join(paths), documents, own.vocabulary)


def _held_out(own: Trained) -> Corpus:
    """What the run held out, by its settings and the vocabulary that lies beside the model."""
    settings, beside = own.settings, own.path.parent / NAME
    if settings is None:
        raise ValueError(f"{NEEDED}, the model is of no run here")
    if settings.text.tokenizer is not None and beside.exists():
        settings = settings.replaced(text=settings.text.replaced(tokenizer=str(beside)))
    try:
        found = data.load(settings)
    except ValueError as error:
        raise ValueError(f"{NEEDED}, the run's own cannot be read: {error}") from None
    if own.text not in (None, found.fingerprint):
        raise ValueError(
            f"{NEEDED}, the run's own has changed, so that what it held out is not known"
        )
    if found.held is None:
        raise ValueError(f"{NEEDED}, the run held none out")
    return found.held
