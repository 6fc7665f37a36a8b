"""Small mistakes in five Newton-Schulz steps, recorded in bfloat16: sight of results against sight
of a replay.

A comparison of results sees a mistake only where it is larger than what bfloat16 may do to
everything before it; a replay sees each step alone. Printed by `python -m tests.oracle.planted
--subtle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.replay.replay import first_wrong, replay
from tests.oracle.planted import restatement, table
from tests.oracle.planted.cases import inputs_of, rule_of
from tests.oracle.planted.restatement import MUON, RIGHT, Plant
from tests.oracle.planted.rounding import LEGAL, PLAIN, Rounding

SEEDS = range(3)
FORMAT = "bfloat16"


def _scaled(*factors: float) -> tuple[float, float, float]:
    a, b, c = (each * factor for each, factor in zip(MUON, factors, strict=True))
    return a, b, c


def _at(step: int, row: tuple[float, float, float]) -> tuple[tuple[float, float, float], ...]:
    return tuple(row if i == step else MUON for i in range(5))


MISTAKES: dict[str, Plant] = {
    **{
        f"a {percent:+g} %": Plant(coefficients=_scaled(1 + percent / 100, 1, 1))
        for percent in (-3, -1, 1, 3)
    },
    **{
        f"b {percent:+g} %": Plant(coefficients=_scaled(1, 1 + percent / 100, 1))
        for percent in (-3, -1, 1, 3)
    },
    **{
        f"c {percent:+g} %": Plant(coefficients=_scaled(1, 1, 1 + percent / 100))
        for percent in (-3, -1, 1, 3)
    },
    **{
        f"a +3 % at step {step} alone": Plant(rows=_at(step, _scaled(1.03, 1, 1)))
        for step in range(5)
    },
    **{f"no A^2 at step {step}": Plant(rows=_at(step, _scaled(1, 1, 0))) for step in range(5)},
    "norm 2 % too large": Plant(norm_factor=1.02),
    "norm 10 % too large": Plant(norm_factor=1.1),
    "eps 1e-3": Plant(eps=1e-3),
    "cubic": Plant(coefficients=restatement.CUBIC),
}


class Seen(NamedTuple):
    """Detection of a mistake: by check on y, by check on all results, by replay."""

    by_y: bool
    by_results: bool
    by_replay: bool


def case_of(seed: int) -> Case:
    """A random case as `new` makes it, with inputs that bfloat16 holds."""
    return round_inputs(
        new(
            Request(rule="omega", draw=1, tokens=16, d_in=8, d_out=8, heads=1, window=4, seed=seed),
            name=f"seed {seed}",
        ),
        FORMAT,
    )


def seen(plant: Plant, seed: int, way: Rounding) -> Seen:
    """Verdicts of check and replay; where quantities are rounded on the way, check knows of the
    state's format.
    """
    case = case_of(seed)
    with np.errstate(all="ignore"):  # a mistake may grow beyond every format
        found = restatement.run(rule_of(case), inputs_of(case), table.STORAGE[FORMAT], plant, way)
    traced = {name: value for name, value in found.items() if name.startswith("trace/")}
    results = {name: value for name, value in found.items() if name.startswith("out/")}
    state = None if way.stored is None else FORMAT
    rows = checked(case, source=lambda _: Answer(results), dtype=FORMAT, state_dtype=state).rows
    wrong = {row.tensor for row in rows if row.verdict != "PASS"}
    return Seen(
        "out/y" in wrong,
        bool(wrong),
        first_wrong(replay(case, traced, dtype=FORMAT, nearest=False)) is not None,
    )


def lines() -> Iterator[str]:
    """The counts, for an implementation that rounds its records and for one that goes on with
    them.
    """
    for words, stored in (
        ("rounded at the end", None),
        ("rounded on the way, iterates too", table.STORAGE[FORMAT]),
    ):
        found = [
            seen(plant, seed, replace(PLAIN, stored=stored))
            for plant in MISTAKES.values()
            for seed in SEEDS
        ]
        legal = [
            seen(RIGHT, seed, replace(way, stored=stored))
            for way in (PLAIN, *LEGAL)
            for seed in SEEDS
        ]
        seen_, alarms = ([sum(each) for each in zip(*rows, strict=True)] for rows in (found, legal))
        yield (
            f"{FORMAT}, {words}: of {len(found)} small mistakes in Newton-Schulz {seen_[0]} "
            f"seen by check in y, {seen_[1]} in any result, "
            f"{seen_[2]} by replay; on {len(legal)} legal variants {alarms[1]} alarms by "
            f"check, {alarms[2]} by replay"
        )
