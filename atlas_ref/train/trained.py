"""A model that was trained, with the vocabulary of its text: from a run, a checkpoint or a file.

Specified in specs/train.md (TRAIN-18).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from atlas_ref.messages import first_problem
from atlas_ref.models import checkpoint as models
from atlas_ref.models import language_model
from atlas_ref.models.initial import Initial
from atlas_ref.storage import files
from atlas_ref.train import checkpoint, loop
from atlas_ref.train.settings import Settings
from atlas_ref.train.vocabulary import NAME, Bytes, Vocabulary, vocabulary


class WrongVocabulary(ValueError):
    """A vocabulary that cannot be read, or that the model does not have."""


class Trained(NamedTuple):
    """A model, and what reads and writes its text.

    Attributes:
        path: the file that was read.
        config, params: of the model.
        vocabulary: of its text.
        initial: memories that its blocks start from, for `language_model.start`; () for none.
        state: of the model behind its last batch; None where each batch starts anew.
        step: of the run; None for a file that no run saved.
        settings: of the run; None as for `step`.
        text: fingerprint of the run's text; None as for `step`.
    """

    path: Path
    config: language_model.Config
    params: language_model.Params
    vocabulary: Vocabulary
    initial: Initial
    state: language_model.State | None
    step: int | None
    settings: Settings | None
    text: str | None = None


def load(path: str | os.PathLike[str], *, tokenizer: str | None = None) -> Trained:
    """Read a model with the vocabulary of its text (TRAIN-18).

        found = load("runs/mag")
        begun = language_model.start(found.config, 1, dtype=np.float32, initial=found.initial)
        ids = found.vocabulary.encoded(b"so much depends")[None]
        state, logits = language_model.apply(found.config, found.params, begun, ids)

    Args:
        path: the folder of a run, of which the last whole checkpoint is taken; a checkpoint
            `step-00000100.safetensors`; or a model's file, `model.safetensors` of a run or another
            one (MODEL-11).
        tokenizer: a `tokenizers` file; None for the one that lies beside the file, else the one of
            the run, else bytes.

    Returns:
        the model, float32 where a run saved it. A run that goes on meanwhile is not disturbed.

    Raises:
        WrongVocabulary: names the file of a vocabulary that is wrong.
        ValueError: names the file and what is wrong with it, in one line: a folder without a whole
            checkpoint, or a file of another kind.
    """
    last = _last(Path(path)) if os.path.isdir(path) else None
    file = Path(path) if last is None else last.path
    try:
        found = _of_path(file) if last is None else _of_run(file, last.header, last.tensors)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{file}: {error} is missing or wrong") from None
    except ValidationError as error:
        raise ValueError(f"{file}: {first_problem(error)}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return found._replace(vocabulary=_words(found, tokenizer))


def _last(folder: Path) -> checkpoint.Last:
    """The last whole checkpoint of a run's folder (TRAIN-13, TRAIN-18).

    Raises:
        ValueError: names the folder that has none, or cannot be read.
    """
    try:
        found = checkpoint.last(folder)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be read: {error.strerror or error}") from None
    if found is None:
        raise ValueError(f"{folder}: no checkpoint of a run")
    return found


def _of_path(file: Path) -> Trained:
    """The model of a checkpoint, or of a model's file."""
    metadata, tensors = files.read(file, "is a folder, a model is needed")
    if checkpoint.of_run(metadata):
        return _of_run(file, checkpoint.header_of(metadata, tensors), tensors)
    return _of_file(file, models.of_tensors(metadata, tensors))


def _of_run(file: Path, header: Any, tensors: Any) -> Trained:
    config = models.config_of(header["config"])
    held = checkpoint.state_of(header, tensors)
    return Trained(
        file,
        config,
        checkpoint.params_of(config, tensors),
        Bytes(),
        loop.memories(config, held),
        held,
        int(header["step"]),
        _settings(header["settings"]),
        header["text"],
    )


def _of_file(file: Path, own: models.Checkpoint) -> Trained:
    step, settings, text = None, None, None
    if own.source.get("from") == checkpoint.ORIGIN:
        step, settings = int(own.source["step"]), _settings(own.source["settings"])
        text = own.source.get("text")
    return Trained(file, own.config, own.params, Bytes(), own.initial, None, step, settings, text)


def _settings(value: Any) -> Settings:
    return Settings.model_validate_json(json.dumps(value))


def _words(own: Trained, tokenizer: str | None) -> Vocabulary:
    """The vocabulary that was named, that lies beside the file, or that of the run."""
    beside = own.path.parent / NAME
    trained = own.settings is not None and own.settings.text.tokenizer is not None
    if tokenizer is None and trained:
        assert own.settings is not None
        tokenizer = str(beside) if beside.exists() else own.settings.text.tokenizer
    try:
        found = vocabulary(tokenizer)
    except ValueError as error:
        raise WrongVocabulary(str(error)) from None
    if found.size != own.config.vocabulary:
        word = "bytes have" if tokenizer is None else f"{tokenizer} has"
        raise WrongVocabulary(
            f"{own.path}: a model of {own.config.vocabulary} tokens, {word} {found.size}; a file of "
            "the library tokenizers is needed that has as many"
        )
    return found
