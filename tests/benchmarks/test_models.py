"""Models of `benchmarks.models`: what they hold, and that a step is that of a language model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import models


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("MAG", (True, True)),
        ("LMM", (True, False)),
        ("attention alone", (False, True)),
    ],
)
def test_a_model_has_the_parts_of_its_name_and_no_token_sees_a_later_one(
    name: str, parts: tuple[bool, bool]
) -> None:
    config = models.model(name)
    block = config.blocks[0]
    assert (block.memory is not None, hasattr(block, "attention")) == parts
    assert config.causal
    assert len(config.blocks) == models.DEPTH


def test_a_step_begins_at_the_loss_of_a_guess_and_moves_every_parameter() -> None:
    loss, *gradients = models.step("MAG", tokens=12)()
    assert abs(loss - math.log(models.SYMBOLS)) < 0.1
    assert all(np.isfinite(each).all() for each in gradients)
    assert sum(bool(each.any()) for each in gradients) >= 0.9 * len(gradients)


@pytest.mark.parametrize("name", models.LEARNING)
def test_a_model_that_learns_differs_from_its_like_by_the_writes_alone(name: str) -> None:
    learns, off = models.model(name), models.model(name + models.UNWRITTEN)
    ours, theirs = (each.blocks[0].memory.level.config for each in (learns, off))
    assert (ours.writes, theirs.writes) == (True, False)
    assert ours.replaced(phase="off") == theirs
    assert learns.causal == (models.LEARNING[name] == "causal")
