"""The text that a model is evaluated on: files that are named, or what its run held out.

Specified in specs/evaluate.md (EVAL-1).
"""

from __future__ import annotations

from collections.abc import Sequence

from atlas_ref.train import data, sampler, text
from atlas_ref.train.evaluation.saved import Saved, words
from atlas_ref.train.sampler import Corpus
from atlas_ref.train.shards import SUFFIX


def corpus(
    own: Saved,
    paths: Sequence[str] = (),
    *,
    only: Sequence[str] = ("*",),
    skip: Sequence[str] = (),
    limit: int | None = None,
    tokenizer: str | None = None,
) -> Corpus:
    """The text of files and folders, or without one what the model's run held out (EVAL-1).

    Args:
        paths, only, skip, limit: of `text.files_of` and `text.documents`.
        tokenizer: a `tokenizers` file; None for that of the run, else bytes.

    Raises:
        ValueError: names the file that is wrong; no text, and a run that held none out.
    """
    vocabulary = words(own, tokenizer)
    if not paths:
        return _held_out(own)
    if shard := next((each for each in paths if each.endswith(SUFFIX)), None):
        raise ValueError(f"{shard}: of Parquet shards the text that a run held out is read alone")
    documents = text.documents(text.files_of(paths, only=only, skip=skip), limit=limit)
    if not documents:
        raise ValueError(f"{', '.join(paths)}: no text: every file is empty")
    return sampler.corpus(", ".join(paths), documents, vocabulary)


def _held_out(own: Saved) -> Corpus:
    if own.settings is None:
        raise ValueError("--data: files or folders of text are needed, the model is of no run here")
    found = data.load(own.settings).held
    if found is None:
        raise ValueError("--data: files or folders of text are needed, the run held none out")
    return found
