"""A run that begins with the parameters of another, such as the second stage of a TNT.

Specified in specs/train.md (TRAIN-23).
"""

from __future__ import annotations

from atlas_ref.layers.projection import cast
from atlas_ref.models import checkpoint as models
from atlas_ref.optim import groups
from atlas_ref.train import trained
from atlas_ref.train.loop import KIND, Moment, Task
from atlas_ref.train.settings import Settings


def begun(own: Task, drawn: Moment) -> Moment:
    """The first moment, with the parameters that the run begins from (TRAIN-23).

    Args:
        drawn: the moment whose parameters were drawn.

    Raises:
        ValueError: nothing whole is there, or names the tensors that the model has otherwise.
    """
    path = own.settings.begins_from
    if path is None:
        return drawn
    found = trained.load(path, tokenizer=own.settings.text.tokenizer)
    tensors = models.tensors_of(found.config, found.params)
    try:
        params = models.params_from(own.config, tensors)
    except ValueError as error:
        raise ValueError(f"begins_from: {found.path}: {error}") from None
    params = cast(params, KIND)
    return drawn._replace(params=params, optimiser=groups.init(own.optimiser, params))


def settings_of(path: str) -> Settings:
    """The settings of a run, for one that begins from it (TRAIN-23).

    Raises:
        ValueError: nothing whole is there, or what no run saved.
    """
    found = trained.load(path)
    if found.settings is None:
        raise ValueError(f"{found.path}: no run saved it, so its settings are unknown")
    return found.settings
