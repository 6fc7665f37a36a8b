"""One group: its inputs, its truth, every candidate's error and peak, then rounds in which each
candidate runs once.

A candidate that fails is a line with the reason. The others go on.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref import backend
from benchmarks import memories, useful
from benchmarks.gpu import peers, storage
from benchmarks.gpu.devices import Array, Device, Peak
from benchmarks.gpu.plan import FEW, KINDS, Candidate, Foreseen, Group, refusal
from benchmarks.gpu.results import Figure, Ratio
from benchmarks.gpu.speeds import Speeds
from benchmarks.measure import Spread, Work
from benchmarks.public import Call, Missing

DRAWN = (8, 8 * FEW)  # heads and tokens that are drawn on the host; larger inputs repeat them
MOST_ROUNDS, FEWEST_ROUNDS = 15, 3
#: Numbers of a truth's inputs that are held at its peak: twice as wide as ours.
TRUTH = 2 * 26


class Settings(NamedTuple):
    """Limits on the time of a run.

    Attributes:
        slot: seconds for the rounds of one kind of a group.
        longest: seconds of one run of a candidate, beyond which it is left out where that can be
            foreseen.
    """

    slot: float
    longest: float


class Side(NamedTuple):
    """A candidate that is ready to run: once(kind) runs it, results() gives reads and gradients in
    float32 or wider.
    """

    candidate: Candidate
    once: Callable[[str], Work]
    results: Callable[[str], tuple[Array, dict[str, Array] | None]]


Arrays = dict[str, Array]
Truth = tuple[Array, Arrays] | None


def inputs(group: Group, device: Device) -> tuple[Arrays, Array]:
    """Inputs and cotangent on the device, in float32."""
    heads, tokens = min(group.heads, DRAWN[0]), min(group.tokens, DRAWN[1])
    drawn = memories.sequence(group.memory, tokens, heads=heads)
    bar = np.random.default_rng(1).standard_normal(drawn["v"].shape, np.float32)

    def whole(array: Any) -> Array:
        return device.tiled(device.ours(array), (group.heads, group.tokens, *array.shape[2:]))

    return {name: whole(array) for name, array in drawn.items()}, whole(bar)


def truth(group: Group, arrays: Arrays, bar: Array, device: Device) -> Truth:
    """Reads and gradients in float64 on the device by the subject's own form; None where they would
    not fit.

    That this form is right in float64 is checked at a small size against the sequential rule on the
    host (`checks`).
    """
    if TRUTH * 4.0 * group.heads * group.tokens * group.d > 0.7 * device.free():
        return None
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    return memories.both(group.memory, wide, bar.astype(np.float64))


class Given(NamedTuple):
    """Inputs of a group in a storage format, and their truth.

    A candidate that stores in bfloat16 is not blamed for the rounding of its inputs.
    """

    arrays: Arrays
    bar: Array
    true: Truth

    @classmethod
    def of(cls, group: Group, kind: str, device: Device) -> Given:
        arrays, bar = inputs(group, device)
        if kind == "bfloat16":
            arrays, bar = (
                storage.opened(storage.stored(arrays)),
                storage.widened(storage.narrowed(bar)),
            )
        return cls(arrays, bar, truth(group, arrays, bar, device))


def error(got: tuple[Array, Arrays | None], true: tuple[Array, Arrays]) -> float:
    """The largest relative error of reads and gradients, in norms; nan counts as infinitely
    wrong.
    """
    pairs = [(got[0], true[0])]
    if got[1] is not None:
        pairs += [(got[1][name], true[1][name]) for name in true[1]]
    return max(_apart(each, exact) for each, exact in pairs)


def _apart(got: Array, exact: Array) -> float:
    gap = got.astype(np.float64) - exact
    far = float(backend.of(gap).to_host((gap * gap).sum())) ** 0.5
    size = float(backend.of(exact).to_host((exact * exact).sum())) ** 0.5
    found = far / size if size else far
    return found if np.isfinite(found) else np.inf


# -- sides -----------------------------------------------------------------------------------------


def side(candidate: Candidate, group: Group, arrays: Arrays, bar: Array, device: Device) -> Side:
    """A candidate on the group's inputs.

    Raises:
        Missing: what it needs is not there.
    """
    if not candidate.ours:
        return _reference(candidate, peers.call(candidate, group, arrays, bar, device), device)
    if candidate.graph:
        return _graph(candidate, group, arrays, bar, device)
    if candidate.storage == "bfloat16":
        return _stored(candidate, group, arrays, bar)
    return _own(candidate, group, arrays, bar)


def _reference(candidate: Candidate, made: Call, device: Device) -> Side:
    return Side(
        candidate,
        lambda kind: made.forward if kind == "forward" else made.both,
        lambda kind: peers.results(made, device),
    )


def _own(candidate: Candidate, group: Group, arrays: Arrays, bar: Array) -> Side:
    memory, form = group.memory, candidate.form

    def once(kind: str) -> Work:
        if kind == "forward":
            return lambda: memories.forward(memory, arrays, form)
        return lambda: memories.both(memory, arrays, bar, form)

    def results(kind: str) -> tuple[Array, Arrays | None]:
        return (
            (memories.forward(memory, arrays, form)[-1], None)
            if kind == "forward"
            else memories.both(memory, arrays, bar, form)
        )

    return Side(candidate, once, results)


def _stored(candidate: Candidate, group: Group, arrays: Arrays, bar: Array) -> Side:
    """A form on bfloat16 storage, with arithmetic in float32.

    Keys, values, queries and rates come in bfloat16. Reads and their gradients leave in it.
    """
    memory, form = group.memory, candidate.form
    held, held_bar = storage.stored(arrays), storage.narrowed(bar)

    def forward() -> Array:
        return storage.narrowed(memories.forward(memory, storage.opened(held), form)[-1])

    def both() -> tuple[Array, Arrays]:
        y, gradient = memories.both(memory, storage.opened(held), storage.widened(held_bar), form)
        return storage.narrowed(y), storage.stored(gradient)

    def results(kind: str) -> tuple[Array, Arrays | None]:
        if kind == "forward":
            return storage.widened(forward()), None
        y, gradient = both()
        return storage.widened(y), storage.opened(gradient)

    return Side(candidate, lambda kind: forward if kind == "forward" else both, results)


def _graph(candidate: Candidate, group: Group, arrays: Arrays, bar: Array, device: Device) -> Side:
    """A form recorded as one CUDA graph at its first use.

    It runs without the checks of arguments, which look at values.
    """
    if not device.measured:
        raise Missing("a CUDA graph needs a GPU")
    graphs = importlib.import_module("atlas_ref.engine.cuda.graphs")
    memory, form, names = group.memory, candidate.form, tuple(arrays)
    start = memories.started(memory, arrays)

    def reads(*given: Array) -> Any:
        return memories.forward(memory, dict(zip(names, given, strict=True)), form, start=start)[-1]

    def gradients(*given: Array) -> Any:
        return memories.both(
            memory, dict(zip(names, given[:-1], strict=True)), given[-1], form, start=start
        )

    @functools.cache
    def replay(kind: str) -> Work:
        given = (*arrays.values(), bar) if kind == "both" else tuple(arrays.values())
        recorded = graphs.captured(gradients if kind == "both" else reads, *given)
        return lambda: recorded(*given)

    def results(kind: str) -> tuple[Array, Arrays | None]:
        found = replay(kind)()
        return found if kind == "both" else (found, None)

    return Side(candidate, replay, results)


# -- a group ---------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """Figures and ratios of a group."""

    figures: list[Figure]
    ratios: list[Ratio]


def measured(
    group: Group, device: Device, settings: Settings, foreseen: Foreseen, speeds: Speeds
) -> Taken:
    """Figures and ratios of all candidates of a group that can run, kind by kind."""
    device.release()
    given = {
        kind: Given.of(group, kind, device)
        for kind in dict.fromkeys(each.storage for each in group.candidates)
    }
    figures: list[Figure] = []
    ratios: list[Ratio] = []
    for kind in KINDS:
        ready: dict[str, Side] = {}
        begun: dict[str, Figure] = {}
        for candidate in group.candidates:
            blank = _blank(group, candidate, kind)
            made = _prepared(
                blank, group, candidate, given[candidate.storage], device, settings, foreseen
            )
            begun[candidate.label] = made[0]
            if made[1] is not None:
                ready[candidate.label] = made[1]
            device.release()
        times = alternated(
            {label: made.once(kind) for label, made in ready.items()}, begun, device, settings
        )
        found = {
            label: _finished(figure, times.get(label), group, speeds)
            for label, figure in begun.items()
        }
        for label, side_ in ready.items():
            foreseen.note(group, side_.candidate, kind, found[label].seconds.median)
        figures += found.values()
        ratios += _ratios(found, times)
    return Taken(figures, ratios)


def _blank(group: Group, candidate: Candidate, kind: str) -> Figure:
    return Figure(
        group.subject.name,
        candidate.label,
        kind,
        group.heads,
        group.d,
        group.tokens,
        candidate.storage,
        candidate.ours,
        candidate.judged,
        candidate.form,
    )


def _prepared(
    blank: Figure,
    group: Group,
    candidate: Candidate,
    given: Given,
    device: Device,
    settings: Settings,
    foreseen: Foreseen,
) -> tuple[Figure, Side | None]:
    """The first run, the error and the peak of a candidate, or the reason to leave it out."""
    refused = refusal(candidate, group, blank.kind, device.free())
    seconds = foreseen.seconds(group, candidate, blank.kind)
    if refused is None and seconds is not None and seconds > settings.longest:
        refused = f"one run would take about {seconds:.1f} s"
    if refused is not None:
        return blank._replace(skipped=refused), None
    try:
        made = side(candidate, group, given.arrays, given.bar, device)
        once = made.once(blank.kind)
        first = device.seconds(once)
        off = None if given.true is None else error(made.results(blank.kind), given.true)
        before = _copied()
        again = device.seconds(once)
        copies = _copied() - before
        peak = _peak(candidate, once, device)
    except Missing as missing:
        return blank._replace(skipped=str(missing)), None
    except Exception as failed:  # any failure of a candidate: the others go on
        device.release()
        return blank._replace(skipped=reason(failed, device)), None
    shown = blank._replace(
        seconds=Spread.one(again), error=off, peak=peak.bytes, peak_how=peak.how, first=first
    )
    return shown._replace(copies=copies if candidate.ours else None), made


def _peak(candidate: Candidate, once: Work, device: Device) -> Peak:
    """The peak of a side; for a graph, which keeps its memory, that of the recorded form."""
    if candidate.graph:
        return Peak(float("nan"), "the graph's own")
    return device.peak(once) if candidate.ours else device.peak_of_torch(once)


def reason(failed: Exception, device: Device) -> str:
    """The reason for the failure of a candidate, in one line."""
    if device.is_out_of_memory(failed):
        return "out of memory"
    words = str(failed).strip().splitlines()
    return f"failed: {type(failed).__name__}" + (f": {words[0][:160]}" if words else "")


def _copied() -> int:
    copies = backend.current().copies
    return copies.to_device + copies.to_host


def alternated(
    works: Mapping[str, Work], begun: Mapping[str, Figure], device: Device, settings: Settings
) -> dict[str, list[float]]:
    """Seconds of every candidate, in rounds of one run each.

    A slow one sits out once it had its share of the slot.
    """
    share = settings.slot / max(1, len(works))
    allowed = {
        label: min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(share / begun[label].seconds.median)))
        for label in works
    }
    times: dict[str, list[float]] = {label: [] for label in works}
    for number in range(max(allowed.values(), default=0)):
        for label, work in works.items():
            if number < allowed[label]:
                times[label].append(device.seconds(work))
    return times


def _finished(figure: Figure, times: list[float] | None, group: Group, speeds: Speeds) -> Figure:
    """The figure with the quartiles of its times, and its share of the device's rates."""
    if times is None:
        return figure
    seconds = Spread.of(times)
    needs = useful.useful(
        group.memory,
        group.heads,
        group.tokens,
        figure.kind,
        4 if figure.storage == "float32" else 2,
    )
    return figure._replace(
        seconds=seconds,
        bandwidth=needs.bytes / seconds.median / speeds.bandwidth,
        rate=2
        * needs.multiply_adds
        / seconds.median
        / speeds.rate(figure.storage if not figure.ours else "float32"),
    )


def _ratios(found: Mapping[str, Figure], times: Mapping[str, list[float]]) -> list[Ratio]:
    """Theirs over ours, round by round as far as both went."""
    pairs = [
        (a, b)
        for a in found.values()
        for b in found.values()
        if a.ours and not b.ours and a.label in times and b.label in times
    ]
    return [
        Ratio(
            a, b, Spread.of([y / x for x, y in zip(times[a.label], times[b.label], strict=False)])
        )
        for a, b in pairs
    ]
