"""Nested levels in a case: a context begins from the memory of the next slower level.

    M_l[t] = M_u[t]    at the first token after a write of u, the next slower level of l

Written from CMS-23 and CASE-36, not from `atlas_ref.levels`. Every context is a call of its level.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Position
from atlas_ref.oracle.family import family
from atlas_ref.oracle.subjects import memory
from atlas_ref.oracle.subjects.levels.calls import (
    Call,
    Evaluate,
    in_turn,
    join,
    plain_layout,
)
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array

#: One context: (call, stops) -> results, the position after them, and the memory before each stop.
Run = Callable[[Call, Sequence[int]], tuple[dict[str, Array], Position, list[Array]]]


def check_header(header: Any) -> None:
    """Refuse periods and a schedule that nested levels cannot have (CASE-36).

    Raises:
        ValueError: names the key and what was found.
    """
    periods = header.schedule.periods
    if header.schedule.learned is not None:
        raise ValueError(
            "nested: contexts begin by periods, and schedule.learned has gates in their place"
        )
    if len(periods) < 2 or len(set(periods)) < len(periods):
        raise ValueError(
            "nested: at least two levels, each of another period, are needed, found periods "
            f"{', '.join(map(str, periods))}"
        )


def check_levels(conventions: Sequence[Any], shapes: Sequence[int]) -> None:
    """Refuse levels that cannot hand on their memory (CASE-36).

    Args:
        conventions: of each level.
        shapes: d_phi of each level; d_out is the same in all of them.

    Raises:
        ValueError: names the level and what was found.
    """
    for number, convention in enumerate(conventions):
        if convention.read == "call_end":
            raise ValueError(
                f"levels[{number}]: convention: read call_end is not possible under nested, whose "
                "contexts would cut it"
            )
    if len(set(shapes)) > 1:
        raise ValueError(
            "nested: memories of one shape are needed, found d_phi "
            f"{', '.join(map(str, shapes))} of the levels"
        )


def results(
    calls: Sequence[Call], periods: Sequence[int], writes: Array, reset: Array | None, run: Run
) -> list[tuple[dict[str, Array], Position]]:
    """Results of each level, and the position after them, from the slowest to the fastest.

    Args:
        calls: every level over all tokens.
        writes (T, k): tokens at which each level writes.
        reset (T,): tokens at which a document starts, or None.

    Source: CMS-23, CASE-36.
    """
    starts = np.zeros(len(writes), bool) if reset is None else np.asarray(reset).astype(bool)
    found: dict[int, tuple[dict[str, Array], Position]] = {}
    begins: dict[int, Array] = {}
    for number in sorted(range(len(calls)), key=lambda i: -periods[i]):
        result, position, begins = _level(calls[number], writes[:, number], starts, begins, run)
        found[number] = (result, position)
    return [found[number] for number in range(len(calls))]


def _level(
    call: Call, writes: Array, reset: Array, begins: Mapping[int, Array], run: Run
) -> tuple[dict[str, Array], Position, dict[int, Array]]:
    """A level over its contexts (CMS-23).

    Args:
        begins: token -> the memory of the slower level, with which a context begins there.

    Returns:
        results, position, and the same of the next faster level.
    """
    contexts = {0: call}
    for t, M in begins.items():
        contexts[t] = call.anew().change(M0=plain_layout(M, call.case))
    for t in np.flatnonzero(reset).tolist():
        contexts[t] = call.anew()
    handed = {t: M for t, M in begins.items() if writes[t - 1] and not reset[t]}
    reads: list[Array] = []
    result: dict[str, Array] = {}
    position: Position = None
    for first, last in itertools.pairwise([*sorted(contexts), len(writes)]):
        stops = [t for t in range(first + 1, last) if writes[t - 1]]
        result, position, memories = run(
            contexts[first].of_tokens(first, last), [t - first for t in stops]
        )
        handed |= {t: plain_layout(M, call.case) for t, M in zip(stops, memories, strict=True)}
        reads.append(result["out/y"])
    return {**result, "out/y": join(reads)}, position, handed


def by_calls(evaluate: Evaluate) -> Run:
    """Run a context as calls, one after each write that the next level begins from (CASE-13)."""
    return lambda call, stops: in_turn(evaluate, call, stops)


def plainly(rounding: Rounding) -> Run:
    """Run a context as one loop of the family, which shows its memory after each write (TOL-3)."""

    def run(call: Call, stops: Sequence[int]) -> tuple[dict[str, Array], Position, list[Array]]:
        after: dict[int, Array] = {}

        def values(op: str, t: int, x: Array) -> Array:
            if op == "M":
                after[t + 1] = x if rounding.store is None else rounding.store(x)
            return x

        hook = family.value_hook(values)
        found = memory.plain(call.inputs, call.case, rounding, hook=hook)
        memories = [plain_layout(after[stop], call.case) for stop in stops]
        return memory.name_results(call.case, found), None, memories

    return run
