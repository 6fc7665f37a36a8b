"""Replay of modules: every recorded value computed again from what was recorded before it.

An error upstream does not blame what is downstream. Specified in specs/modules.md (MODULES-5).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from atlas_ref.backend.threads import one_for_products
from atlas_ref.oracle.modules.backward_judge import judge_backward
from atlas_ref.oracle.modules.graph import Module, ancestry
from atlas_ref.oracle.modules.inside import inside_of
from atlas_ref.oracle.modules.nearest import nearest_of
from atlas_ref.oracle.modules.readings import Readings
from atlas_ref.oracle.modules.recording import Recording, tensor_name
from atlas_ref.oracle.modules.tolerance import Graphs
from atlas_ref.oracle.modules.verdict import Verdict, refusal, undecidable, verdict_on
from atlas_ref.storage import faults

#: Verdicts in the order of reporting.
RANK = {"WRONG": 0, "MARGINAL": 1, "UNDECIDABLE": 2, "PASS": 3}


def judge(recording: Recording, *, nearest: bool = True) -> list[Verdict]:
    """Judge what was recorded, in the order of the model (MODULES-5, MODULES-6).

    Gradients follow, from the last to the first (MODULES-20). A module of parts that is right on its own inputs needs no look inside.

    Args:
        nearest: also search for the readings that explain what is wrong.
    """
    walk = _Walk(recording)
    with one_for_products():
        walk.within(walk.wide.root)
        backward = judge_backward(recording, nearest=nearest)
        if not nearest:
            return [*walk.verdicts, *backward]
        readings = Readings(recording)
        return [*(_explain(walk, each, readings) for each in walk.verdicts), *backward]


def first_wrong(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The first value that is not PASS, a wrong one before a marginal one (MODULES-10)."""
    found = [each for each in verdicts if each.verdict != "PASS"]
    return min(found, key=lambda each: RANK[each.verdict], default=None)


class _Walk:
    """A walk over the modules of a recording, outer ones before their parts."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.graphs = Graphs(recording.graph)
        self.wide = self.graphs.wide
        self.verdicts: list[Verdict] = []

    def within(self, module: Module) -> None:
        """Values of all parts of a module."""
        for part in module.parts:
            self._judge_part(part)

    def _judge_part(self, part: Module) -> None:
        ends = [each for each in part.keys if "/out/" in each]
        for key in part.keys:
            if key not in ends:
                self._add(key, self._known_keys())
        if not part.parts:
            for key in ends:
                self._add(key, self._known_keys())
            return
        hidden = frozenset(part.within())
        if ends and ends[0] in self.recording.values:
            whole = self._verdict(ends[0], self._known_keys() - hidden)
            if whole is not None and whole.verdict == "PASS":
                self.verdicts.append(whole._replace(fault=part.name, together=()))
                return
            if whole is not None and not hidden & set(self.recording.values):
                self.verdicts.append(whole._replace(fault=part.name, together=()))
                return
        self.within(part)
        for key in ends:
            self._add(key, self._known_keys())

    def _known_keys(self) -> frozenset[str]:
        return frozenset(self.recording.values)

    def _add(self, key: str, known: frozenset[str]) -> None:
        verdict = self._verdict(key, known)
        if verdict is not None:
            self.verdicts.append(verdict)

    def _verdict(self, key: str, known: frozenset[str]) -> Verdict | None:
        """The verdict on a value from known ones; None where it cannot be judged (MODULES-5)."""
        values = self.recording.values
        if key not in values or self.wide.values[key].kind == "free":
            return None
        before = ancestry(self.wide, key, known)
        if before.lacking or not before.known:
            if self.wide.values[key].kind == "wire":
                return None
            lacks = ", ".join(map(tensor_name, before.lacking))
            return undecidable(self.wide, key, f"nothing before it was recorded: {lacks}")
        inputs = {each: values[each] for each in before.known}
        endless = [each for each, value in inputs.items() if not np.isfinite(value).all()]
        if endless:
            why = f"what it is computed from is not finite: modules/{endless[0]}"
            return undecidable(self.wide, key, why)
        try:
            own = self.graphs.truth(key, inputs, values[key].dtype.name)
        except ValueError as error:  # the rule refuses what it received
            why = f"the rule refuses what it received: {refusal(error)}"
            return undecidable(self.wide, key, why)
        return verdict_on(self.wide, key, values[key], own, before)


def _explain(walk: _Walk, verdict: Verdict, readings: Readings) -> Verdict:
    """A wrong verdict with its nearest reading, and the first wrong step of a rule (CASE-38)."""
    if verdict.verdict != "WRONG":
        return verdict
    recording = walk.recording
    known = frozenset(recording.values)
    if verdict.module == verdict.fault:
        module = _module(walk.wide.root, verdict.module)
        known -= frozenset(module.within()) if module is not None else frozenset()
    return verdict._replace(
        nearest=faults.told(
            "the search", lambda: nearest_of(recording, walk.graphs, verdict, known, readings), str
        ),
        inside=faults.told("the replay", lambda: inside_of(recording, walk.wide, verdict.key), str),
    )


def _module(root: Module, name: str) -> Module | None:
    """The module of that name."""
    for part in root.parts:
        found = part if part.name == name else _module(part, name)
        if found is not None:
            return found
    return None
