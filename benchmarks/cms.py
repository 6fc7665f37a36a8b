"""Frequency levels: the cost of four against one, and the constant memory of a stream.

The work of writing is counted, and timed inside the writes of the rule token by token; what all
levels do at every token, projecting and reading, is in the time of the whole call, which is
compiled where a user's would be.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from atlas_ref import rules
from atlas_ref.levels import block as cms
from atlas_ref.levels.level import Level
from atlas_ref.levels.presets import all_delta, fast_titans_slow_omega
from atlas_ref.levels.pulse import PERIODS, Conductor
from atlas_ref.rules import titans_lmm
from benchmarks.measure import Row, Spread, Target, alternated, bracketed, peak_memory

HEADS, D, D_MODEL, TOKENS, PIECE = 8, 64, 128, 4096, 256
SIZES = f"{HEADS} heads, d = {D}, T = {TOKENS}, float32"
AT_MOST = Target("at most", 1.3)
COMPILED = "ATLAS_REF_COMPILED"


class Call(NamedTuple):
    """A block with everything that a call of it takes."""

    config: cms.Config
    params: cms.Params
    x: Any
    context: cms.Context

    def run(self) -> Any:
        return cms.run(self.config, self.params, self.x, self.context)


def rows() -> list[Row]:
    """Levels that write on average; writes counted and timed, and whole calls; memory of a
    stream.
    """
    four = call(_titans(PERIODS))
    one = call(_titans((1,)))
    mixed = call(fast_titans_slow_omega(d_model=D_MODEL, d_in=D, d_out=D, heads=HEADS))
    delta, one_delta = (
        call(all_delta(d_model=D_MODEL, d_in=D, d_out=D, heads=HEADS, periods=each))
        for each in (PERIODS, (1,))
    )
    with threadpool_limits(1):  # threads that wait in a loop would spend CPU time too
        return [
            _average(),
            _counted("four Titans levels", four, one),
            _timed("four Titans levels", four, one, AT_MOST),
            _timed("four Delta levels", delta, one_delta, AT_MOST),
            _timed("fast Titans, slow Omega (c = 8, Newton-Schulz)", mixed, one, None),
            _whole("four Titans levels", four, one),
            _stream(four),
        ]


def _titans(periods: tuple[int, ...]) -> cms.Config:
    rule = titans_lmm.Config(d_model=D_MODEL, d_in=D, d_out=D, heads=HEADS)
    return cms.Config(levels=tuple(Level(config=rule, period=period) for period in periods))


def call(config: cms.Config, tokens: int = TOKENS) -> Call:
    """A call of one batch with tokens of length about one."""
    x = np.random.default_rng(0).standard_normal((1, tokens, D_MODEL)).astype(
        np.float32
    ) / np.float32(np.sqrt(D_MODEL))
    return Call(
        config, cms.init(config, 0, dtype=np.float32), x, cms.start(config, dtype=np.float32)
    )


class Writes:
    """Number of writes, and the CPU time that they took."""

    count = 0
    seconds = 0.0


@contextlib.contextmanager
def writes() -> Iterator[Writes]:
    """Count and time every write of every rule; token by token, since compiled code calls none."""
    total, known = Writes(), dict(rules.RULES)
    compiled = os.environ.get(COMPILED)
    os.environ[COMPILED] = "0"

    def watched(write: Any) -> Any:
        def timed(*args: Any) -> Any:
            start = time.process_time()
            state = write(*args)
            total.seconds += time.process_time() - start
            total.count += 1
            return state

        return timed

    try:
        for name, rule in known.items():
            rules.RULES.loaded[name] = rule._replace(write=watched(rule.write))
        yield total
    finally:
        rules.RULES.loaded.update(known)
        os.environ.pop(COMPILED)
        if compiled is not None:
            os.environ[COMPILED] = compiled


def _written(block: Call) -> Writes:
    with writes() as total:
        block.run()
    return total


def _average() -> Row:
    active = Conductor().schedule(TOKENS)
    measured = float(active.sum(1).mean())
    return Row(
        (
            f"levels that write at a token on average, periods {', '.join(map(str, PERIODS))}, T "
            f"= {TOKENS}"
        ),
        "levels",
        Spread.one(measured),
        "sum of 1 / period",
        Spread.one(Conductor().average_active),
        Spread.one(measured / Conductor().average_active),
        note=f"counted: {active.sum()} of {active.size}",
    )


def _counted(name: str, four: Call, one: Call) -> Row:
    ours, theirs = _written(four).count, _written(one).count
    note = "counted where writes are computed"
    return Row(
        f"writes of {name}, {SIZES}",
        "writes",
        Spread.one(ours),
        "one level",
        Spread.one(theirs),
        Spread.one(ours / theirs),
        AT_MOST,
        note=note,
    )


def _timed(name: str, four: Call, one: Call, target: Target | None) -> Row:
    samples = 5 if target is not None else 3
    timing = alternated(
        lambda: _written(four).seconds, lambda: _written(one).seconds, samples=samples
    )
    return Row(
        f"time in the writes of {name}, {SIZES}",
        "ms",
        Spread.of(timing.ours, 1e3),
        "one Titans level" if "Omega" in name else "one level",
        Spread.of(timing.theirs, 1e3),
        Spread.of(timing.ratio),
        target,
        note=f"CPU time, one thread; {_written(four).count} writes",
    )


def _whole(name: str, four: Call, one: Call) -> Row:
    timing = bracketed(four.run, one.run, samples=3)
    return Row(
        f"whole call of {name}, {SIZES}",
        "ms",
        Spread.of(timing.ours, 1e3),
        "one level",
        Spread.of(timing.theirs, 1e3),
        Spread.of(timing.ratio),
        note="CPU time, one thread; four times the projections and reads",
    )


def _stream(block: Call) -> Row:
    """Peak memory of a stream in pieces, which are made as they come."""

    def streamed(tokens: int) -> None:
        draw, context = np.random.default_rng(1), block.context
        for _ in range(tokens // PIECE):
            piece = draw.standard_normal((1, PIECE, D_MODEL), np.float32)
            context, _ = cms.run(block.config, block.params, piece, context)

    short, long = (peak_memory(partial(streamed, tokens)) for tokens in (TOKENS // 8, TOKENS))
    return Row(
        (
            f"peak memory of a stream of {TOKENS} tokens in pieces of {PIECE}, four Titans "
            f"levels, {HEADS} heads, d = {D}, float32"
        ),
        "MB",
        Spread.one(long),
        f"of {TOKENS // 8} tokens",
        Spread.one(short),
        Spread.one(long / short),
        Target("at most", 1.05),
        note="tracemalloc",
    )
