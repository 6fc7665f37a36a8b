"""Sequences for compiled forms, and the package's results for them; nothing here is a truth."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref import forms as run
from atlas_ref.rules import sequence
from atlas_ref.rules.sequence import Tokens
from tests.support.close import assert_close
from tests.support.sequences import MODULES, Arrays
from tests.support.sequences import drawn as drawn_once


def drawn(rule: str, **sizes: Any) -> Arrays:
    """Tensors of three memories; some gates are exactly 0 and 1."""
    tensors = drawn_once(rule, lead=(3,), **sizes)
    for name in ("retain", "momentum", "step_size"):
        if name in tensors:
            tensors[name][:, 1::7], tensors[name][:, 3::5] = (
                0.0,
                1.0 if name != "step_size" else 0.5,
            )
    return tensors


def results(
    rule: str,
    tensors: Arrays,
    form: str = "exact",
    chunk: int | None = None,
    *,
    calls: int = 1,
    **convention: Any,
) -> tuple[Any, ...]:
    """y, M and, with momentum, S after calls on the same tokens from a state that is not zero."""
    module = MODULES[rule]
    sizes = {"d_in": tensors["k"].shape[-1], "d_out": tensors["v"].shape[-1]} | (
        {"window": tensors.get("window_weights", np.ones(1)).shape[-1]} if rule == "omega" else {}
    )
    span = {"span": 4} if "chunk_start" in convention.values() else {}
    if convention.get("newton_schulz") is None and rule == "omega":
        convention["newton_schulz"] = "none"
    convention = {
        name: value
        for name, value in ({"gate": "retain", "reference": "running"} | convention).items()
        if value is not None
    }
    config = module.Config(**sizes, **span, convention=convention)
    initial = {name[0]: tensors[name] for name in ("M0", "S0") if name in tensors}
    state = module.start(config, tensors["k"].shape[:-2], **initial)
    tokens = Tokens(**{name: value for name, value in tensors.items() if not name.endswith("0")})
    for _ in range(calls):
        if form == "sequential":  # the rule itself, no compiled loop of it
            state, y = sequence.run(module.RULE, config, tokens, state)
        else:
            state, y = run.run(module.RULE, config, tokens, state, form=form, chunk=chunk)
    return (y, state.M, state.S) if hasattr(state, "S") else (y, state.M)


def agree(got: tuple[Any, ...], want: tuple[Any, ...], tolerance: Any) -> None:
    assert len(got) == len(want)
    for name, value, true in zip(("y", "M", "S"), got, want, strict=False):
        assert_close(name, value, true, tolerance)
