"""Models as they lie in files: those that a run ends with, its checkpoints, and imported ones.

Specified in specs/evaluate.md (EVAL-1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from atlas_ref.messages import first_problem
from atlas_ref.models import checkpoint as models
from atlas_ref.models import initial as memories
from atlas_ref.models import language_model
from atlas_ref.models.shapes import check_tensors
from atlas_ref.storage import files
from atlas_ref.train import checkpoint, loop, states
from atlas_ref.train.models import takes_documents
from atlas_ref.train.settings import Settings
from atlas_ref.train.vocabulary import Vocabulary, vocabulary


class Saved(NamedTuple):
    """A model of a file, and what is known of the run that it comes from.

    Attributes:
        config, params: of the model.
        initial: memories that it starts from (MODEL-16).
        settings: of the run; None for a model of another origin.
        step: of the checkpoint; None for a model file.
    """

    config: language_model.Config
    params: language_model.Params
    initial: memories.Initial
    settings: Settings | None
    step: int | None

    @property
    def documents(self) -> bool:
        """Whether memories start anew where a document starts in a row, as they were trained."""
        takes = takes_documents(self.config)
        if self.settings is None:
            return takes
        own = self.settings.documents
        return (takes and not self.settings.carried) if own is None else own


def load(path: Path) -> Saved:
    """The model of a file of MODEL-11 or of a checkpoint of TRAIN-12 (EVAL-1).

    Raises:
        ValueError: names the file, and what is wrong with it.
    """
    try:
        metadata, tensors = files.read(path, "is a folder, the file of a model is needed")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if checkpoint.KEY in metadata:
        return _of_training(path, tensors)
    own = models.read(path)
    return Saved(own.config, own.params, own.initial, _settings(path, own.source), None)


def _of_training(path: Path, tensors: Mapping[str, Any]) -> Saved:
    config, params, header = checkpoint.model(path)
    try:
        initial = _memories(config, header.get("state"), tensors)
        step = header.get("step")
        if type(step) is not int or step < 0:
            raise ValueError("step: a whole number is needed")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Saved(config, params, initial, _settings(path, header), step)


def _memories(config: Any, state: Any, tensors: Mapping[str, Any]) -> memories.Initial:
    """Memories that all rows of the run share, from the state behind its last batch (TRAIN-6)."""
    if state is None:
        return ()
    try:
        found = loop.memories(config, states.rebuilt(state, tensors))
        named = memories.tensors_of(found)
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"state: not one of this model: {error}") from None
    check_tensors(memories.needed_by(config, list(named)), named)
    return found


def _settings(path: Path, header: Mapping[str, Any]) -> Settings | None:
    """Settings of the run, where the file has some."""
    if "settings" not in header or header.get("from", "atlas-ref train") != "atlas-ref train":
        return None
    try:
        return Settings.model_validate_json(json.dumps(header["settings"]))
    except ValidationError as error:
        raise ValueError(f"{path}: settings: {first_problem(error)}") from None


def words(own: Saved, tokenizer: str | None) -> Vocabulary:
    """The vocabulary of a model: bytes, or a `tokenizers` file, by default that of its run (EVAL-1).

    Raises:
        ValueError: names the file that cannot be read, or both numbers of ids.
    """
    if tokenizer is None and own.settings is not None:
        tokenizer = own.settings.text.tokenizer
    found, size = vocabulary(tokenizer), own.config.vocabulary
    if tokenizer is None and size != found.size:
        raise ValueError(
            f"tokenizer: missing, the model has {size} ids and bytes have {found.size}"
        )
    if found.size > size:
        raise ValueError(f"tokenizer: {tokenizer} has {found.size} ids, the model has {size}")
    return found
