"""TNT with one local memory, against two ordinary runs of its rule, and what the paper compares.

A TNT is the sum of an ordinary run with long spans and one with short spans and resets (TNT-14),
with queries moved onto keys; the reference is these two runs, their reads added, queries as they
are. Both sides get the same tokens, gates and first memories, and a backward has the gradient by
each of these. The paper compares TNT of local chunks of 64 with Titans of chunks of 8, on a TPU,
by the hours to a loss: here are seconds of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tape
from atlas_ref import forms
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt.config import with_axes
from atlas_ref.rules import sequence
from benchmarks import memories
from benchmarks.measure import (
    Row,
    Spread,
    Target,
    Timing,
    alternated,
    peak_memory,
    relative_error,
    timer,
)
from benchmarks.memories import HEADS, D

#: Tokens, span of the global memory and shard of the local one; spans of the local one.
TOKENS, SPAN, SHARD, SPANS = 16_384, 2048, 2048, (64, 8)
#: Tokens of the errors, of the loop token by token, and of the growth with T.
FEW, SIZES = 2048, (4096, 8192, 16_384)
SAMPLES = 5
MEMORY = memories.TITANS
Arrays = dict[str, Any]


def rows() -> list[Row]:
    """Times and memory beside two ordinary runs, growth with T, and the paper's comparison."""
    found = []
    for span in SPANS:
        off = errors(span)
        found += [_times(span, kind, off) for kind in ("forward", "both")]
        found.append(_memory(span))
    found.append(_growth())
    found += [_beside_titans(span) for span in SPANS]
    found.append(_beside_the_loop())
    return found


def inputs(tokens: int, dtype: Any = np.float32) -> Arrays:
    """Tokens of Titans with gates, and where both memories start."""
    first = np.random.default_rng(2).standard_normal((2, HEADS, D, D), np.float32) / D
    arrays: Arrays = memories.sequence(MEMORY, tokens, dtype)
    arrays |= {"global": first[0].astype(dtype), "local": first[1].astype(dtype)}
    for each in arrays.values():
        each.flags.writeable = False
    return arrays


def config(span: int) -> tnt.Config:
    """The TNT: one global memory and one local one."""
    return tnt.preset("paper", MEMORY.config, span=SPAN, spans=[span], shards=[SHARD])


def forward(span: int, arrays: Arrays) -> Any:
    """The reads of a TNT, by a user's call with its checks."""
    settings, tokens = config(span), _tokens(arrays)
    params = tnt.Params(memories=(tnt.Initial(M=arrays["global"]), tnt.Initial(M=arrays["local"])))
    start = tnt.start(settings, params, (HEADS,), dtype=arrays["k"].dtype)
    return tnt.run(settings, params, tokens, start)[1]


def _of_tnt(settings: tnt.Config, arrays: Arrays) -> Any:
    first = (tnt.Initial(M=arrays["global"]), tnt.Initial(M=arrays["local"]))
    params = tnt.Params(memories=first)
    start = tnt.start(settings, params, (HEADS,), dtype=arrays["k"].dtype)
    return tnt.run(settings, params, _tokens(arrays), start)[1]


def ordinary(span: int, arrays: Arrays) -> Any:
    """The reads of two ordinary runs of the rule, added (TNT-14)."""
    return _alone(span, arrays) + _restarted(span, arrays)


def _alone(span: int, arrays: Arrays) -> Any:
    """The reads of the run with long spans, whatever that of the local one."""
    settings = with_axes(MEMORY.config, SPAN, {"reference": "chunk_start", "read": "chunk_start"})
    return _run(settings, _tokens(arrays), arrays["global"])


def _restarted(span: int, arrays: Arrays) -> Any:
    """The reads of the run with short spans and resets."""
    reset = np.arange(arrays["k"].shape[-2]) % SHARD == 0
    return _run(_of_local(span), _tokens(arrays).replaced(reset=reset), arrays["local"])


def titans(span: int, arrays: Arrays, form: str = "chunkwise") -> Any:
    """The reads of Titans alone in chunks."""
    return _run(_of_local(span), _tokens(arrays), arrays["global"], form)


def _of_local(span: int) -> Any:
    return with_axes(MEMORY.config, span, {"reference": "chunk_start", "read": "after"})


def _run(settings: Any, tokens: sequence.Tokens, M: Any, form: str = "chunkwise") -> Any:
    start = MEMORY.rule.start(settings, (HEADS,), M=M)
    return forms.run(MEMORY.rule.RULE, settings, tokens, start, form=form)[1]


def _tokens(arrays: Arrays) -> sequence.Tokens:
    return sequence.Tokens(**{name: arrays[name] for name in ("k", "v", "q", *MEMORY.gates)})


def both(run: Callable[[Arrays], Any], arrays: Arrays, bar: Any) -> tuple[Any, Arrays]:
    """The reads, and the gradient of their product with `bar` by every input."""
    y, pullback = tape.vjp(run, arrays)
    (gradient,) = pullback(bar)
    return y, gradient


def work(run: Callable[[Arrays], Any], kind: str, tokens: int) -> Callable[[], Any]:
    """The call that is timed: kind "forward" or "both"."""
    arrays = inputs(tokens)
    if kind == "forward":
        return partial(run, arrays)
    return partial(both, run, arrays, memories.cotangent(tokens))


def errors(span: int) -> tuple[float, float]:
    """Relative errors in float32 of reads and of gradients, both against the rule token by token."""
    bar = memories.cotangent(FEW, np.float64)
    y, gradient = both(partial(forward, span), inputs(FEW), bar.astype(np.float32))
    truth = both(partial(_by_tokens, span), inputs(FEW, np.float64), bar)
    return relative_error(y, truth[0]), memories.gradient_error(gradient, truth[1])


def _by_tokens(span: int, arrays: Arrays) -> Any:
    """The reads of a TNT whose rules run token by token."""
    made = config(span)
    settings = made.replaced(
        global_memory=made.global_memory.replaced(form="sequential"),  # type: ignore[union-attr]
        local_memories=tuple(each.replaced(form="sequential") for each in made.local_memories),
    )
    params = tnt.Params(memories=(tnt.Initial(M=arrays["global"]), tnt.Initial(M=arrays["local"])))
    start = tnt.start(settings, params, (HEADS,), dtype=arrays["k"].dtype)
    return tnt.run(settings, params, _tokens(arrays), start)[1]


# -- rows ------------------------------------------------------------------------------------------


def _title(span: int, kind: str, tokens: int = TOKENS) -> str:
    words = "forward" if kind == "forward" else "forward and backward"
    return f"TNT, local span {span}, {words}, {HEADS} heads, d = {D}, T = {tokens}"


def _timed(ours: Callable[[], Any], theirs: Callable[[], Any], samples: int = SAMPLES) -> Timing:
    ours()
    theirs()
    clock = time.perf_counter
    return alternated(timer(ours, clock), timer(theirs, clock), samples=samples)


def _times(span: int, kind: str, off: tuple[float, float]) -> Row:
    timing = _timed(
        work(partial(forward, span), kind, TOKENS), work(partial(ordinary, span), kind, TOKENS)
    )
    return Row(
        _title(span, kind),
        "ms",
        Spread.of(timing.ours, 1e3),
        "two ordinary runs of the rule",
        Spread.of(timing.theirs, 1e3),
        Spread.of(timing.ratio),
        None if kind == "forward" else Target("at most", 1.3),
        error=off[0] if kind == "forward" else max(off),
        meaning="of their time",
    )


def _memory(span: int) -> Row:
    ours, of_global, of_local = (
        peak_memory(work(partial(run, span), "both", TOKENS), runs=2)
        for run in (forward, _alone, _restarted)
    )
    theirs = of_global + of_local
    return Row(
        f"{_title(span, 'both')}, memory",
        "MB",
        Spread.one(ours),
        "two ordinary runs of the rule, the peaks of both",
        Spread.one(theirs),
        Spread.one(ours / theirs),
        Target("at most", 1.0),
        note="peak beyond the inputs, as NumPy allocates",
        meaning="of their memory",
    )


def _growth() -> Row:
    """The slope of log time against log T, each size in turn with the smallest."""
    span, smallest = SPANS[0], work(partial(forward, SPANS[0]), "both", SIZES[0])
    ratios = [1.0]
    for tokens in SIZES[1:]:
        timing = _timed(work(partial(forward, span), "both", tokens), smallest, samples=3)
        ratios.append(float(np.median(timing.ratio)))
    slope = float(np.polyfit(np.log(SIZES), np.log(ratios), 1)[0])
    return Row(
        f"TNT, local span {span}, slope of log time, T = {SIZES[0]} to {SIZES[-1]}",
        "",
        Spread.one(slope),
        f"its time at {SIZES[0]}",
        Spread.one(1.0),
        Spread.one(slope),
        Target("between", 0.9, high=1.1),
        meaning="slope",
    )


def _beside_titans(span: int) -> Row:
    """The paper's own comparison: TNT beside Titans in chunks of 8."""
    timing = _timed(
        work(partial(forward, span), "both", TOKENS), work(partial(titans, 8), "both", TOKENS), 3
    )
    faster = [1 / each for each in timing.ratio]
    return Row(
        _title(span, "both"),
        "ms",
        Spread.of(timing.ours, 1e3),
        "Titans, span 8",
        Spread.of(timing.theirs, 1e3),
        Spread.of(faster),
        meaning="times faster",
    )


def _beside_the_loop() -> Row:
    """TNT beside itself token by token."""
    span = SPANS[0]
    timing = _timed(
        work(partial(forward, span), "both", FEW), work(partial(_by_tokens, span), "both", FEW), 3
    )
    return Row(
        _title(span, "both", FEW),
        "ms",
        Spread.of(timing.ours, 1e3),
        "the rules token by token",
        Spread.of(timing.theirs, 1e3),
        Spread.of([1 / each for each in timing.ratio]),
        meaning="times faster",
    )
