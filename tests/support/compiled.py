"""Sequences for compiled forms, and the package's results for them; nothing here is a truth."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atlas_ref import forms as run
from atlas_ref.backend import compiled
from atlas_ref.engine.compiled import tokens as compiled_tokens
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


def add_row_sums(array: Any, row: int, *pairs: Any) -> None:
    rows = slice(row, row + 32 // array.itemsize)
    for x, out in zip(pairs[::2], pairs[1::2], strict=True):
        out[rows] += array[rows] @ x if x.ndim == 1 else (array[rows] * x[rows]).sum(axis=-1)


#: What the loop takes of `lanes`, for rows of NumPy.
IN_NUMPY: dict[str, Callable[..., Any]] = {
    "load": lambda array, row: array[row].copy(),
    "store": lambda array, row, x: array.__setitem__(row, x),
    "zeros": lambda array: np.zeros(array.shape[-1]),
    "total": np.sum,
    "rows_at_once": lambda array: 32 // array.itemsize,
    "add_row_sums": add_row_sums,
    "add_two_row_sums": add_row_sums,
    "add_sums_and_products": add_row_sums,
}


def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code of the compiled loops over tokens as Python, with rows of NumPy for vectors."""
    from atlas_ref.engine.compiled import (
        columns,
        low_rank_loop,
        low_rank_loop_backward,
        token_loop,
        token_loop_backward,
    )

    low_rank = (low_rank_loop, low_rank_loop_backward)
    for module in (columns, token_loop, token_loop_backward, *low_rank):
        for name, value in vars(module).copy().items():
            plain = IN_NUMPY.get(name, getattr(value, "py_func", None))
            if plain is not None:
                monkeypatch.setattr(module, name, plain)
    loops = {
        "token_loop": token_loop.forward,
        "token_loop_backward": token_loop_backward.backward,
        "low_rank_loop": low_rank_loop.forward,
        "low_rank_loop_backward": low_rank_loop_backward.backward,
    }
    monkeypatch.setattr(compiled, "loop", lambda name, *rest: loops[name.rpartition(".")[2]])


def forget_what_imports_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the modules of compiled code be imported anew, until the end of the test."""
    for name in list(sys.modules):
        if name.startswith(("atlas_ref.backend.compiled.", "atlas_ref.engine.compiled.")) and (
            hasattr(sys.modules[name], "compiled_for") or name.endswith((".lanes", ".columns"))
        ):
            monkeypatch.delitem(sys.modules, name)


def watched(monkeypatch: pytest.MonkeyPatch, module: Any, *names: str) -> list[bool]:
    """For each call of these functions of compiled code, whether its results were used.

    No sequence is too short for them, and a segment has 8 rows.
    """
    taken: list[bool] = []

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            value = function(*args, **settings)
            taken.append(value is not None)
            return value

        return call

    monkeypatch.setattr(compiled_tokens, "WORK", 0)
    monkeypatch.setattr(module, "SEGMENT", 8)
    for name in names:
        monkeypatch.setattr(module, name, seen(getattr(module, name)))
    monkeypatch.delenv("ATLAS_REF_COMPILED", raising=False)
    return taken
