"""Judge recorded cotangents: each against those recorded after it, in the order of backward.

Specified in specs/modules.md (MODULES-20).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from atlas_ref.oracle.judge.tolerance import PASS
from atlas_ref.oracle.modules.backward import Pullbacks, around, readers, route
from atlas_ref.oracle.modules.graph import Graph, Module, Route
from atlas_ref.oracle.modules.habits import wires
from atlas_ref.oracle.modules.recording import MODULE, Recording, tensor_name
from atlas_ref.oracle.modules.tolerance import (
    Graphs,
    Truth,
    Way,
    in_format,
    judged_by,
    ways,
)
from atlas_ref.oracle.modules.verdict import Verdict, grad_name, refusal, undecidable, verdict_on
from atlas_ref.oracle.norms import norms
from atlas_ref.storage import faults
from atlas_ref.types import Array

#: Prefix of cotangents among the values that an ensemble moves.
BAR = "bar "


def judge_backward(recording: Recording, *, nearest: bool = True) -> list[Verdict]:
    """Judge recorded cotangents, the last module first (MODULES-20).

    A module of parts whose backward is right as a whole needs no look inside.

    Args:
        nearest: also search for what explains a wrong one.
    """
    if not recording.cotangents:
        return []
    walk = _Walk(recording, nearest)
    walk.within(walk.graph.root)
    return walk.verdicts


class _Walk:
    """A walk over the modules from the last to the first, outer ones before their parts."""

    def __init__(self, recording: Recording, nearest: bool) -> None:
        self.recording, self.nearest = recording, nearest
        self.graphs = Graphs(recording.graph)
        self.graph = self.graphs.wide
        self.ensembles: dict[tuple[str, frozenset[str]], _Ensemble] = {}
        self.verdicts: list[Verdict] = []

    def within(self, module: Module) -> None:
        """Cotangents of all parts of a module."""
        for part in reversed(module.parts):
            self._part(part)

    def _part(self, part: Module) -> None:
        ends = [each for each in part.keys if "/out/" in each]
        for key in reversed(ends):
            self._add(self._verdict(key, frozenset()))
        starts = [each for each in reversed(part.keys) if each not in ends]
        if part.parts:
            whole = [self._verdict(key, frozenset(part.within())) for key in starts]
            found = [each for each in whole if each is not None]
            if found and all(each.verdict == "PASS" for each in found):
                self.verdicts += [each._replace(fault=part.name, together=()) for each in found]
                return
            self.within(part)
        for key in starts:
            self._add(self._verdict(key, frozenset()))

    def _add(self, verdict: Verdict | None) -> None:
        if verdict is not None:
            self.verdicts.append(verdict)

    def _verdict(self, key: str, hidden: frozenset[str]) -> Verdict | None:
        """The verdict on a recorded cotangent; None where nothing after it was recorded."""
        got = self.recording.cotangents.get(key)
        if got is None or self.graph.values[key].kind == "free":
            return None
        bars = {each for each in self.recording.cotangents if each not in hidden and each != key}
        way = route(self.graph, key, bars)
        if way.lacking or not way.known:
            return None
        ensemble = self._ensemble(got.dtype.name, hidden)
        endless = ensemble.endless(way)
        if endless:
            why = f"what it is computed from is not finite: {MODULE}{endless}"
            return undecidable(self.graph, key, why, back=True)
        try:
            own = ensemble.truth(key)
        except KeyError as error:
            why = f"its backward needs {tensor_name(error.args[0])}, which was not recorded"
            return undecidable(self.graph, key, why, back=True)
        except ValueError as error:
            why = f"the rule refuses what it received: {refusal(error)}"
            return undecidable(self.graph, key, why, back=True)
        verdict = verdict_on(self.graph, key, got, own, way, back=True)
        if verdict.verdict != "WRONG" or not self.nearest or hidden:
            return verdict
        words = faults.told("the search", lambda: _nearest(ensemble, key, got, own), str)
        return verdict._replace(nearest=words)

    def _ensemble(self, dtype: str, hidden: frozenset[str]) -> _Ensemble:
        if (dtype, hidden) not in self.ensembles:
            made = _Ensemble(self.recording, hidden, self.graphs, dtype)
            self.ensembles[dtype, hidden] = made
        return self.ensembles[dtype, hidden]


class _Ensemble:
    """Pullbacks in float64 and in every way of an arithmetic, with recorded values and cotangents.

    Args:
        hidden: keys that are taken as not recorded.
    """

    def __init__(
        self, recording: Recording, hidden: frozenset[str], graphs: Graphs, dtype: str
    ) -> None:
        self.wide, self.narrow, self.dtype = graphs.wide, graphs.narrow(dtype), dtype
        self.known = {
            **{key: each for key, each in recording.values.items() if key not in hidden},
            **{BAR + k: each for k, each in recording.cotangents.items() if k not in hidden},
        }
        self.exact = _pullbacks(self.wide, Way("", in_format(self.known, "float64"), None, 1))
        self.ways = [(way, _pullbacks(self.narrow, way)) for way in ways(self.known, dtype)]

    def endless(self, way: Route) -> str:
        """The first recorded cotangent on the way that is not finite."""
        names = (each for each in way.known if not np.isfinite(self.known[BAR + each]).all())
        return next((grad_name(each) for each in names), "")

    def truth(self, key: str) -> Truth:
        """A cotangent as it should be, and its tolerance (MODULES-9)."""
        with np.errstate(all="ignore"):
            want = np.asarray(self.exact.cotangent(key), np.float64)
            members = {}
            for way, own in self.ways:
                with self.narrow.summing_in(way.parts):
                    members[way.words] = own.cotangent(key)
        return judged_by(key, want, members, self.dtype)


def _pullbacks(graph: Graph, way: Way) -> Pullbacks:
    values = {key: each for key, each in way.known.items() if not key.startswith(BAR)}
    bars = {k.removeprefix(BAR): each for k, each in way.known.items() if k.startswith(BAR)}
    return Pullbacks(graph, values, bars, way.half)


# -- what explains a wrong cotangent ---------------------------------------------------------------


def _nearest(ensemble: _Ensemble, key: str, got: Array, own: Truth) -> str:
    """What a program does that gives a wrong cotangent, in words; "" for nothing that was tried."""
    got = np.asarray(got, np.float64)
    if got.shape != own.want.shape:
        return ""
    return next(
        (
            words
            for words, other in _others(ensemble, key, own.want)
            if norms(got - other).over(own.tolerance.norms) <= PASS
        ),
        "",
    )


def _others(ensemble: _Ensemble, key: str, want: Array) -> Iterator[tuple[str, Array]]:
    """Cotangents that programs give by habit (MODULES-20)."""
    graph, exact = ensemble.wide, ensemble.exact
    yield "passes nothing back", np.zeros_like(want)
    after, _ = around(graph, key, readers(graph))
    groups = [[each] for each in after] if len(after) > 1 else []
    silent = [each for each in after if each not in exact.bars]
    for group in [*groups, *([silent] if 1 < len(silent) < len(after) else [])]:
        names = ", ".join(f"{MODULE}{grad_name(each)}" for each in group)
        yield f"passes nothing back from {names}", np.asarray(exact.cotangent(key, without=group))
    if len(graph.calls) > 1:
        bars = {BAR + each: bar for each, bar in exact.bars.items()}
        way = Way("", {**exact.values, **bars}, None, 1)
        with graph.detaching(not graph.detached):
            words = "passes nothing back" if graph.detached else "passes something back"
            yield f"{words} from a call to the one before", _pullbacks(graph, way).cotangent(key)
    for words, factor in wires.constants(graph.values[key]):
        yield f"multiplies what comes back by {words}", factor * want
