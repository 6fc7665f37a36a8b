"""Where a program that takes decays apart overflows: exponentials of cumulated logs (DPLRCASE-25)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr.program import program_and_parameters
from atlas_ref.oracle.dplr.readings.calls import SIZES, sequences
from atlas_ref.oracle.program.derive.readings import context_of_case
from atlas_ref.types import Array

#: Log of the largest number of the arithmetic, by the format of results.
LARGEST = {"float64": 709.78, "float32": 88.72, "bfloat16": 88.72, "float16": 88.72}

#: Relative error of a token that is finite, up to which it is right.
RIGHT = 0.05

#: What is taken of a chunk's cumulated logs.
POWERS = {
    "e^(G_i - G_last)": lambda G: G - G[..., -1:, :],
    "e^(-G_i)": lambda G: -G,
}

#: Chunks that are not finite beside the one that overflows, in values and in gradients.
LATER, EARLIER = "later", "earlier"


def words(case: Case, results: Mapping[str, Any], ours: Mapping[str, Any], dtype: str) -> str:
    """What overflows just where results are not finite; "" where nothing explains that.

    Args:
        results: under test, some of which are not finite.
        ours: the same results.
    """
    context = context_of_case(program_and_parameters, case)
    name = _not_finite(results)
    if not name or not context.gate or np.asarray(results[name]).ndim < 2:
        return ""
    bad = _bad(np.asarray(results[name], np.float64), len(context.inputs["in/v"].shape))
    logs = np.asarray(context.inputs[context.gate], np.float64)
    with np.errstate(divide="ignore"):
        logs = logs if context.gate == "in/log_retain" else np.log(logs)
    logs = logs if context.by_channel else logs[..., None]
    if bad.shape != logs.shape[:-1] or not _right(name, results, ours, bad):
        return ""
    of = EARLIER if name.startswith("grad/") else LATER
    for size in SIZES:
        for power, value in POWERS.items():
            found = _predict(logs, value, size, LARGEST[dtype], of, sequences(case.inputs))
            if found.any() and np.array_equal(found, _by_chunk(bad, size, case.inputs)):
                where = "gradients are" if name.startswith("grad/") else "results are"
                return (
                    f"{power} overflows in chunks of {size}, with G the logs of gates summed from "
                    f"the start of a chunk: {where} not finite just where it does"
                )
    return ""


def _not_finite(results: Mapping[str, Any]) -> str:
    """The result by which is told where: out/y, else a gradient of tokens."""
    order = ("out/y", "grad/q", "grad/k", "grad/v")
    return next(
        (n for n in order if n in results and not np.isfinite(np.asarray(results[n], float)).all()),
        "",
    )


def _bad(x: Array, rank: int) -> Array:
    """Tokens that are not finite, of every head."""
    return ~np.isfinite(x).all(axis=-1) if x.ndim == rank else ~np.isfinite(x)


def _right(name: str, results: Mapping[str, Any], ours: Mapping[str, Any], bad: Array) -> bool:
    """Whether tokens that are finite are right."""
    want, got = np.asarray(ours[name], np.float64), np.asarray(results[name], np.float64)
    size = float(np.sqrt(np.mean(want**2)))
    gap = np.abs(np.where(bad[..., None], 0.0, got - want))
    return bool(np.max(gap, initial=0.0) <= RIGHT * size)


def _chunks(inputs: Any, size: int) -> Iterator[tuple[int, int, int]]:
    """First and last tokens of chunks, and the number of their sequence."""
    for number, (begin, end) in enumerate(sequences(inputs)):
        for first in range(begin, end, size):
            yield first, min(first + size, end), number


def _by_chunk(bad: Array, size: int, inputs: Any) -> Array:
    """Chunks of every head in which a token is not finite."""
    return np.stack([bad[..., a:b].any(axis=-1) for a, b, _ in _chunks(inputs, size)], axis=-1)


def _predict(
    logs: Array, power: Any, size: int, largest: float, of: str, spans: list[tuple[int, int]]
) -> Array:
    """Chunks of every head that are not finite: those that overflow, and what they lead to."""
    parts: list[Array] = []
    for begin, end in spans:
        over = []
        for first in range(begin, end, size):
            G = np.cumsum(logs[..., first : min(first + size, end), :], axis=-2)
            over.append(power(G).max(axis=(-1, -2)) > largest)
        some = np.stack(over, axis=-1)
        order = slice(None, None, 1 if of == LATER else -1)
        parts.append(np.logical_or.accumulate(some[..., order], axis=-1)[..., order])
    return np.concatenate(parts, axis=-1)
