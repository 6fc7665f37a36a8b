"""The forms of dplr beside gated delta, the same sizes in one process, and fla-core's references beside
them.

A sample is divided by its neighbours, gated delta's, in CPU time of one processor; both go
through the same checks. fla-core's references have a process of their own, with as many threads as there are
processors: KDA in chunks, GLA token by token, since it has no chunks of that, and in chunks GLA with
one gate for all channels (simple GLA).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tape
from atlas_ref.forms import dplr as forms
from atlas_ref.rules import dplr
from benchmarks import memories
from benchmarks.loop import KINDS, on_one_processor
from benchmarks.measure import (
    Report,
    Row,
    Spread,
    Target,
    alternated,
    relative_error,
    repeated,
    runs_within,
    timer,
)
from benchmarks.process import Process
from benchmarks.public import Missing

Arrays = dict[str, Any]
SAMPLE = 0.03  # seconds of one sample: short work is repeated
SIZES = ((8, 64, 1024), (4, 128, 1024))
GATED_DELTA = 1.3  # of its time, at most, in the form scan
SAMPLES = {"scan": 9, "chunk": 2}
#: Member, form and size of each row.
ROWS = (
    *(("KDA", "scan", sizes) for sizes in SIZES),
    ("GLA", "scan", SIZES[0]),
    ("KDA", "chunk", SIZES[0]),
)
#: Member, name of a reference, and tokens of its chunk; None for one token by token.
PEERS: tuple[tuple[str, str, int | None], ...] = (
    ("KDA", "fla kda", 64),
    ("GLA", "fla gla", None),
    ("simple GLA", "fla simple gla", 64),
)


def report() -> Report:
    """A row of each form, size and kind, and of each reference of fla-core."""
    rows = [
        _beside_gated_delta(member, form, sizes, kind)
        for member, form, sizes in ROWS
        for kind in KINDS
    ]
    with Process() as process:
        rows += [
            _beside_fla(member, name, chunk, kind, process)
            for member, name, chunk in PEERS
            for kind in KINDS
        ]
    return Report(rows)


@functools.cache
def drawn(member: str, heads: int, d: int, tokens: int, dtype: Any = np.float32) -> Arrays:
    """Tokens as gated delta's are drawn, with a gate of each key channel about sigmoid(3).

    Args:
        member: KDA; GLA, which erases nothing; simple GLA, whose gate is gated delta's.
    """
    gated = memories.sized(memories.FLA_GATED_DELTA, d)
    x = memories.sequence(gated, tokens, np.float32, heads)
    noise = np.random.default_rng(2).standard_normal(x["k"].shape, np.float32)
    step = x["step_size"][..., None]
    arrays = {"k": x["k"], "v": x["v"], "q": x["q"], "retain": 1 / (1 + np.exp(-3 - noise))}
    if member == "KDA":
        arrays |= {"v": step * x["v"], "erase_read": x["k"], "erase_write": step * x["k"]}
    if member == "simple GLA":
        arrays["retain"] = x["retain"]
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def forward(form: str, arrays: Arrays) -> tuple[Any, Any]:
    """Reads and the last memory, with all checks of a call."""
    heads, _, d = arrays["k"].shape
    config = dplr.Config(d_in=d, d_out=d, decay="before_error", query_scale="1/sqrt(d_in)")
    start = dplr.start(config, (heads,), dtype=arrays["k"].dtype)
    state, y = forms.run(form, config, dplr.Tokens(**arrays), start)
    return y, state.M


@functools.cache
def cotangent(heads: int, tokens: int, d: int, dtype: Any) -> Any:
    """The cotangent of the reads, drawn once, since gated delta's is not drawn in its time."""
    return memories.cotangent(tokens, dtype, heads=heads, d=d)


def both(form: str, arrays: Arrays) -> Arrays:
    """Gradients of every input, for a cotangent of the reads."""
    bar = cotangent(*arrays["v"].shape, arrays["k"].dtype)
    _, pullback = tape.vjp(lambda inputs: forward(form, inputs)[0], arrays)
    (gradients,) = pullback(bar)
    result: Arrays = gradients
    return result


def work(form: str, kind: str, arrays: Arrays) -> Callable[[], Any]:
    """The call that is timed."""
    return functools.partial(forward if kind == "forward" else both, form, arrays)


@functools.cache
def error(member: str, form: str, kind: str) -> float:
    """The relative error in float32 against the rule in float64 on the same numbers."""
    sizes = (8, 64, memories.TOKENS if kind == "forward" else memories.TOKENS_OF_GRADIENTS)
    low = drawn(member, *sizes)
    high = {name: array.astype(np.float64) for name, array in low.items()}
    if kind == "forward":
        return relative_error(forward(form, low), forward("sequential", high))
    got, true = both(form, low), both("sequential", high)
    return relative_error([got[name] for name in true], list(true.values()))


def _beside_gated_delta(member: str, form: str, sizes: tuple[int, int, int], kind: str) -> Row:
    heads, d, tokens = sizes
    gated = memories.sized(memories.FLA_GATED_DELTA, d)
    theirs = memories.work(gated, kind, memories.sequence(gated, tokens, np.float32, heads))
    ours = work(form, kind, drawn(member, *sizes))
    with on_one_processor():
        times = [runs_within(each, SAMPLE) for each in (ours, theirs)]
        timing = alternated(
            *(
                timer(repeated(*each), time.process_time)
                for each in zip((ours, theirs), times, strict=True)
            ),
            samples=SAMPLES[form],
        )
    return Row(
        f"{member} in the form {form}, {_words(kind)}, {heads} heads, d = {d}, T = {tokens}",
        "ms",
        Spread.of(timing.ours, 1e3 / times[0]),
        "gated delta, exact",
        Spread.of(timing.theirs, 1e3 / times[1]),
        Spread.of([each * times[1] / times[0] for each in timing.ratio]),
        Target("at most", GATED_DELTA) if form == "scan" else None,
        error(member, form, kind),
        note="CPU time, one processor",
        meaning="of its time",
    )


def _beside_fla(member: str, name: str, chunk: int | None, kind: str, process: Process) -> Row:
    sizes = SIZES[0]
    arrays, ours = drawn(member, *sizes), work("scan", kind, drawn(member, *sizes))
    times = runs_within(ours, SAMPLE)
    timed = timer(repeated(ours, times))
    heads, d, tokens = sizes
    try:
        process.load(name, arrays, memories.cotangent(tokens, heads=heads, d=d), chunk=chunk)
        process.seconds(kind)
        off = relative_error(process.reads(), forward("scan", arrays)[0].astype(np.float64))
        timing = alternated(timed, lambda: process.seconds(kind), samples=1)
        theirs = Spread.of(timing.theirs, 1e3)
        label, ratio = f"fla-core {member}", [each / times for each in timing.ratio]
    except Missing as missing:
        label, off, ratio, theirs = f"fla-core {member}: {missing}", None, [np.nan], Spread.one()
        timing = alternated(timed, lambda: np.nan, samples=3)
    return Row(
        f"{member} in the form scan, {_words(kind)}, {heads} heads, d = {d}, T = {tokens}",
        "ms",
        Spread.of(timing.ours, 1e3 / times),
        label + (f", chunk {chunk}" if chunk else ", recurrent"),
        theirs,
        Spread.of(ratio),
        None,
        error(member, "scan", kind),
        off,
        note="wall time; the error of its reads is against ours in float32",
        meaning="of its time",
    )


def _words(kind: str) -> str:
    return "forward" if kind == "forward" else "forward and backward"
