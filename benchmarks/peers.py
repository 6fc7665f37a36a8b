"""Our forms against public PyTorch implementations of the same rules, and against JAX, on the same
inputs.

fla-core's chunk references compute the exact rules, called with the chunk size that each takes
unless told otherwise; where another is faster on a CPU it has a row of its own. Its recurrent
references stand beside them, since a chunk reference can be wrong in float32 where the recurrence
is right. The cell of atlas-rnn computes the rule frozen at the start of the call. titans-pytorch
computes a relative of Titans frozen for a chunk, from tokens: its row shows what that costs, not
the same work. PyTorch runs in a process of its own, on as many threads as there are cores; the two
take turns, every sample fills some time with runs after a lead of untimed ones, unless one run is
longer than the lead, and all times are by the wall. Most rows without a bound have few samples, and
so has what takes seconds.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks import memories
from benchmarks.measure import (
    LEAD,
    SPIN,
    Report,
    Row,
    Spread,
    Target,
    alternated,
    peak_memory,
    relative_error,
    repeated,
    runs_within,
    timer,
)
from benchmarks.memories import (
    TOKENS,
    TOKENS_OF_GRADIENTS,
    Memory,
    cotangent,
    errors,
    gradient_error,
    sequence,
    title,
    work,
)
from benchmarks.process import Process
from benchmarks.public import Missing

SAMPLE = 0.05  # seconds of one sample: short work is repeated
LONG_RUN = (
    1.0  # seconds of a first run after which another one is not needed to know how long one takes
)
LONGEST = 10.0  # seconds of all samples of a peer but one, beyond which it has fewer of them
KINDS = ("forward", "both")
SHORT: Sequence[dict[str, Any]] = ({"chunk": 32},)
LONG: Sequence[dict[str, Any]] = ({"chunk": 64},)
CHUNKS: Sequence[dict[str, Any]] = tuple({"chunk": C} for C in (16, 32, 64))
DECAYED: Sequence[dict[str, Any]] = tuple({**each, "before_error": True} for each in CHUNKS)
CELL = {"window": memories.WINDOW}


class Peer(NamedTuple):
    """A public implementation and the memory of ours that it is compared with.

    Attributes:
        label: as the table shows it.
        name: as `benchmarks.public` knows it.
        memory: of ours.
        options: what to call it with; of several, the fastest counts.
        bounds: on our time over theirs, forward and with backward; None where nothing is asked.
        faster: bounds on how many times faster we are, instead.
        less: a bound on their growth of memory over ours.
        samples: of each time, at most.
        same_work: whether its reads are those of our rule; else its error is against its own
            float64.
    """

    label: str
    name: str
    memory: Memory
    options: Sequence[dict[str, Any]]
    bounds: tuple[float, float] | None = None
    faster: tuple[float, float] | None = None
    less: float | None = None
    samples: int = 7
    same_work: bool = True


RECURRENT: Sequence[dict[str, Any]] = ({"chunk": None},)

PEERS = (
    Peer(
        "atlas-rnn cell",
        "atlas-rnn",
        memories.FROZEN,
        ({**CELL, "scan_chunk_len": None},),
        faster=(150, 100),
        less=30,
        samples=2,
    ),
    Peer(
        "atlas-rnn cell, scan in chunks of 64",
        "atlas-rnn",
        memories.FROZEN,
        ({**CELL, "scan_chunk_len": 64},),
        samples=1,
    ),
    Peer("fla-core delta", "fla delta", memories.FLA_DELTA, SHORT, (0.9, 0.8)),
    Peer("fla-core gated delta", "fla gated delta", memories.FLA_GATED_DELTA, LONG, (0.6, 0.7)),
    Peer(
        "fla-core momentum delta",
        "fla momentum delta",
        memories.FLA_MOMENTUM_DELTA,
        LONG,
        (0.5, 0.7),
    ),
    Peer("JAX, jitted", "JAX", memories.FLA_DELTA, CHUNKS, (0.5, 0.5)),
    Peer("JAX, jitted", "JAX", memories.FLA_GATED_DELTA, DECAYED, (0.5, 0.5)),
    Peer("JAX, jitted", "JAX", memories.FLA_MOMENTUM_DELTA, CHUNKS, (0.5, 0.5)),
    Peer("fla-core gated delta", "fla gated delta", memories.FLA_GATED_DELTA, SHORT, samples=2),
    Peer(
        "fla-core momentum delta",
        "fla momentum delta",
        memories.FLA_MOMENTUM_DELTA,
        SHORT,
        samples=2,
    ),
    Peer("fla-core delta, recurrent", "fla delta", memories.FLA_DELTA, RECURRENT, samples=1),
    Peer(
        "fla-core gated delta, recurrent",
        "fla gated delta",
        memories.FLA_GATED_DELTA,
        RECURRENT,
        samples=1,
    ),
    Peer(
        "fla-core momentum delta, recurrent",
        "fla momentum delta",
        memories.FLA_MOMENTUM_DELTA,
        RECURRENT,
        samples=1,
    ),
    Peer(
        "titans-pytorch, linear memory",
        "titans-pytorch",
        memories.FROZEN_TITANS,
        LONG,
        samples=3,
        same_work=False,
    ),
)


class Found(NamedTuple):
    """Facts about a peer from before it is timed.

    Attributes:
        options: the fastest of those it has.
        errors: of its reads at `TOKENS`, of its gradients at `TOKENS_OF_GRADIENTS`.
        grows: megabytes, forward and with backward.
        took: seconds of those runs, which met memory for the first time.
    """

    options: dict[str, Any]
    errors: tuple[float, float]
    grows: tuple[float, float]
    took: tuple[float, float]


def report() -> Report:
    """Rows of every peer; one that is not installed says so, and how to get it."""
    rows: list[Row] = []
    with Process() as process:
        for peer in PEERS:
            try:
                facts = _found(peer, process)
            except Missing as missing:
                rows += [_absent(peer, kind, str(missing)) for kind in KINDS]
                continue
            rows += [_times(peer, kind, facts, process) for kind in KINDS]
            if peer.less is not None:
                rows += [_memory(peer, kind, facts.grows) for kind in KINDS]
    return Report(rows)


@functools.cache
def _ours(memory: Memory) -> tuple[float, float]:
    """Megabytes of our call at its peak beyond its inputs, forward and with backward."""
    arrays = sequence(memory, TOKENS)
    forward, both = (peak_memory(work(memory, kind, arrays), runs=2) for kind in KINDS)
    return forward, both


def _found(peer: Peer, process: Process) -> Found:
    """The fastest options, with the errors and the growth of memory that they have; `process` holds
    the peer after it.
    """
    large = sequence(peer.memory, TOKENS), cotangent(TOKENS)

    def seconds(options: dict[str, Any]) -> float:
        process.load(peer.name, *large, **options)
        process.seconds("both")
        return min(process.seconds("both") for _ in range(3))

    options = min(peer.options, key=seconds) if len(peer.options) > 1 else peer.options[0]
    gradients = _gradients(peer, process, options)
    true_reads, true_gradients = _truth(peer, process, options)
    process.load(peer.name, *large, **options)
    forward, both = (process.weighed(kind) for kind in KINDS)
    off = relative_error(forward.reads, true_reads), gradient_error(gradients, true_gradients)
    return Found(options, off, (forward.grows, both.grows), (forward.seconds, both.seconds))


def _gradients(peer: Peer, process: Process, options: dict[str, Any]) -> dict[str, Any]:
    few = TOKENS_OF_GRADIENTS
    process.load(peer.name, sequence(peer.memory, few), cotangent(few), **options)
    return process.gradients()


def _truth(peer: Peer, process: Process, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Reads and gradients of the sequential rule in float64, or where that is another rule, of its
    own float64.
    """
    if peer.same_work:
        return memories.truth(peer.memory)[-1], memories.true_gradient(peer.memory)
    process.load(
        peer.name, sequence(peer.memory, TOKENS), cotangent(TOKENS), **options, double=True
    )
    return process.reads(), _gradients(peer, process, options | {"double": True})


def _target(peer: Peer, kind: str) -> Target | None:
    which = KINDS.index(kind)
    if peer.faster is not None:
        return Target("at least", peer.faster[which])
    return None if peer.bounds is None else Target("at most", peer.bounds[which])


def _meaning(peer: Peer) -> str:
    return "of its time" if peer.faster is None else "times faster"


def _times(peer: Peer, kind: str, facts: Found, process: Process) -> Row:
    """Our time beside theirs, taken in turn; `process` holds the peer."""
    which = KINDS.index(kind)
    error = errors(peer.memory)[which]
    run = work(peer.memory, kind, sequence(peer.memory, TOKENS))
    times = runs_within(run, SAMPLE)
    one = facts.took[which] if facts.took[which] > LONG_RUN else process.seconds(kind)
    theirs, lead = max(1, round(SAMPLE / one)), LEAD if one < LEAD else 0.0
    timed = timer(repeated(run, times), lead=LEAD)

    def ours() -> float:
        spent = timed()
        if not lead:  # theirs would begin beside threads of ours that still spin
            time.sleep(SPIN)
        return spent

    timing = alternated(
        ours,
        lambda: process.seconds(kind, theirs, lead),
        samples=max(1, min(peer.samples, int(LONGEST / one))),
    )
    ratio = [each / times for each in timing.ratio]
    note = (
        f"wall time; memory grows by {_ours(peer.memory)[which]:.0f} MB, theirs by "
        f"{facts.grows[which]:.0f} MB"
    )
    if not peer.same_work:
        note += "; another rule with projections of its own, its error is against its own float64"
    return Row(
        title(peer.memory, kind),
        "ms",
        Spread.of(timing.ours, 1e3 / times),
        _named(peer, facts.options),
        Spread.of(timing.theirs, 1e3),
        Spread.of(ratio if peer.faster is None else [1 / each for each in ratio]),
        _target(peer, kind),
        error,
        facts.errors[which],
        note,
        _meaning(peer),
    )


def _named(peer: Peer, options: dict[str, Any]) -> str:
    chunk = options.get("chunk")
    return peer.label + (f", chunk {chunk}" if chunk is not None else "")


def _memory(peer: Peer, kind: str, grows: tuple[float, float]) -> Row:
    """Growth of memory, theirs over ours."""
    which = KINDS.index(kind)
    ours, theirs = _ours(peer.memory)[which], grows[which]
    return Row(
        title(peer.memory, kind) + ", memory",
        "MB",
        Spread.one(ours),
        peer.label,
        Spread.one(theirs),
        Spread.one(theirs / ours),
        None if peer.less is None else Target("at least", peer.less),
        note="ours: peak beyond the inputs, as NumPy allocates; theirs: peak of the process beyond "
        "what it held",
        meaning="times less",
    )


def _absent(peer: Peer, kind: str, why: str) -> Row:
    """Our own time, and the reason for none beside it."""
    run = work(peer.memory, kind, sequence(peer.memory, TOKENS))
    times = runs_within(run, SAMPLE)
    seconds = timer(repeated(run, times))
    ours = Spread.of([seconds() for _ in range(3)], 1e3 / times)
    return Row(
        title(peer.memory, kind),
        "ms",
        ours,
        f"{peer.label}: {why}",
        Spread.one(),
        Spread.one(),
        _target(peer, kind),
        errors(peer.memory)[KINDS.index(kind)],
        note="wall time",
        meaning=_meaning(peer),
    )
