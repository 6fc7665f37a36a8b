"""Memories of an MLP that learn at test time, against PyTorch on the same inputs.

The memory is that of titans-pytorch: two matrices with residual and norm, momentum, decay, and a
weight for each token. Both sides get keys, values, queries and gates; a backward has the gradient by
each of these and by the first weights, through every write. Token by token, titans-pytorch writes
with torch.func, and so does the loop here; another one has its gradients written out. Each side is
on one thread and timed by its CPU time, in turn; PyTorch in a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import tape
from atlas_ref.backend import threads
from atlas_ref.layers import neural_memory
from atlas_ref.rules import deep_memory, sequence
from benchmarks.measure import Row, Spread, Target, alternated, peak_memory, relative_error, timer
from benchmarks.process import Process
from benchmarks.public import Missing

HEADS, D, DEPTH, TOKENS, FEW = 8, 64, 2, 1024, 256
KINDS = ("forward", "both")
Arrays = dict[str, Any]


class Peer(NamedTuple):
    """A memory in PyTorch, and ours beside it.

    Attributes:
        label: as the table shows it.
        name, options: as `benchmarks.public` knows it.
        chunk, refresh: of the memory, tokens of a write and between those where gradients are taken.
        tokens: of the sequence.
        bounds: on our time over theirs, forward and with backward; None where nothing is asked.
        memory: bound on our memory over theirs, with backward.
        samples: of each time.
    """

    label: str
    name: str
    options: dict[str, Any]
    chunk: int
    refresh: int | None
    tokens: int
    bounds: tuple[float | None, float | None]
    memory: float | None = None
    samples: int = 5

    @property
    def config(self) -> deep_memory.Config:
        """The settings of the memory."""
        return neural_memory.configured(
            HEADS * D, heads=HEADS, d_head=D, chunk=self.chunk, refresh=self.refresh, depth=DEPTH
        ).rule

    @property
    def title(self) -> str:
        """What is measured, with its sizes."""
        renewed = "" if self.chunk == 1 else f", renewed {self.refresh or 'never'}"
        return (
            f"MLP memory of depth {DEPTH}, chunk {self.chunk}{renewed}, {HEADS} heads of {D}, "
            f"T = {self.tokens}, float32"
        )


PEERS = (
    Peer("titans-pytorch", "titans-pytorch MLP", {}, 64, None, TOKENS, (0.7, 0.9), 0.5),
    Peer("titans-pytorch", "titans-pytorch MLP", {}, 64, 64, TOKENS, (0.7, 0.9), 0.5),
    Peer(
        "PyTorch loop by torch.func", "token loop", {"by_hand": False}, 1, 1, FEW, (0.2, None),
        samples=3,
    ),
    Peer(
        "PyTorch loop, written out", "token loop", {"by_hand": True}, 1, 1, FEW, (None, None),
        samples=3,
    ),
)  # fmt: skip


def rows() -> list[Row]:
    """Times of every memory beside PyTorch's, and memory where it has a bound."""
    with threads.alone(), Process() as process:
        return [row for peer in PEERS for row in _rows(peer, process)]


def inputs(config: deep_memory.Config, tokens: int, dtype: Any = np.float32) -> Arrays:
    """Keys of length 1, values, queries, gates and first weights of every head, drawn in float32."""
    draw = np.random.default_rng(0)
    k, v, q = draw.standard_normal((3, HEADS, tokens, D), np.float32)
    k, q = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (k, q))
    arrays = {"k": k, "v": v, "q": q}
    bounds = {"window_gate": (0.01, 0.1), "retain": (0.0, 0.05), "momentum": (0.5, 0.9)}
    arrays |= {name: draw.uniform(*each, (HEADS, tokens)) for name, each in bounds.items()}
    first = deep_memory.RULE.draw(config, 0)
    arrays |= {f"memory/{name}": each for name, each in first.items()}
    arrays = {name: each.astype(np.float32).astype(dtype) for name, each in arrays.items()}
    for each in arrays.values():
        each.flags.writeable = False
    return arrays


def cotangent(tokens: int, dtype: Any = np.float32) -> Any:
    """The cotangent of the reads that gradients start from."""
    return np.random.default_rng(1).standard_normal((HEADS, tokens, D), np.float32).astype(dtype)


def forward(config: deep_memory.Config, arrays: Arrays) -> Any:
    """The reads, by a user's call with its checks."""
    given = {name: x for name, x in arrays.items() if not name.startswith("memory/")}
    first = {
        name.removeprefix("memory/"): x for name, x in arrays.items() if name.startswith("memory/")
    }
    start = deep_memory.start(config, (HEADS,), dtype=arrays["k"].dtype)
    return sequence.run(deep_memory.RULE, config, sequence.Tokens(**given), start, phi=first)[1]


def both(config: deep_memory.Config, arrays: Arrays, bar: Any) -> tuple[Any, Arrays]:
    """The reads, and the gradient of their product with `bar` by every input."""
    y, pullback = tape.vjp(partial(forward, config), arrays)
    (gradient,) = pullback(bar)
    return y, gradient


def work(peer: Peer, kind: str, dtype: Any = np.float32) -> Callable[[], Any]:
    """The call that is timed."""
    arrays = inputs(peer.config, peer.tokens, dtype)
    if kind == "forward":
        return partial(forward, peer.config, arrays)
    return partial(both, peer.config, arrays, cotangent(peer.tokens, dtype))


def error(kind: str, got: tuple[Any, Arrays], truth: tuple[Any, Arrays]) -> float:
    """The largest relative error of reads, and with a backward of gradients too."""
    off = relative_error(got[0], truth[0])
    if kind == "forward":
        return off
    return max(off, relative_error([got[1][n] for n in truth[1]], [*truth[1].values()]))


def _rows(peer: Peer, process: Process) -> list[Row]:
    missing, answer, grows = None, None, float("nan")
    try:
        if peer.memory is not None:
            grows = _growth(peer, process)
        _load(peer, process, peer.tokens)
        answer = process.reads(), process.gradients()
    except Missing as why:
        missing = str(why)
    mine, truth = work(peer, "both")(), work(peer, "both", np.float64)()
    errors = {
        kind: tuple(None if each is None else error(kind, each, truth) for each in (mine, answer))
        for kind in KINDS
    }
    found = [_times(peer, kind, process, errors[kind], missing) for kind in KINDS]
    return found + ([] if peer.memory is None else [_memory(peer, grows, missing)])


def _load(peer: Peer, process: Process, tokens: int) -> None:
    arrays = inputs(peer.config, tokens)
    process.load(peer.name, arrays, cotangent(tokens), config=peer.config, **peer.options)


def _growth(peer: Peer, process: Process) -> float:
    """Megabytes of theirs with a backward, after a short run has loaded what PyTorch loads once."""
    _load(peer, process, 2 * peer.chunk)
    process.cpu_seconds("both")
    _load(peer, process, peer.tokens)
    return process.weighed("both").grows


def _times(peer: Peer, kind: str, process: Process, errors: Any, missing: str | None) -> Row:
    ours, theirs, ratio = timer(work(peer, kind), time.process_time), Spread.one(), Spread.one()
    if missing is None:
        timing = alternated(ours, partial(process.cpu_seconds, kind), samples=peer.samples)
        times, theirs, ratio = timing.ours, Spread.of(timing.theirs, 1e3), Spread.of(timing.ratio)
    else:
        times = [ours() for _ in range(peer.samples)]
    bound = peer.bounds[KINDS.index(kind)]
    return Row(
        f"{peer.title}, {'forward' if kind == 'forward' else 'with backward'}",
        "ms",
        Spread.of(times, 1e3),
        peer.label + ("" if missing is None else f": {missing}"),
        theirs,
        ratio,
        None if bound is None else Target("at most", bound),
        error=errors[0],
        reference_error=errors[1],
        note="CPU time, one thread each",
        meaning="of its time",
    )


def _memory(peer: Peer, grows: float, missing: str | None) -> Row:
    run = work(peer, "both")

    def alone() -> None:
        with threads.alone():
            run()

    ours = peak_memory(alone, runs=2)
    return Row(
        f"{peer.title}, with backward, memory",
        "MB",
        Spread.one(ours),
        peer.label + ("" if missing is None else f": {missing}"),
        Spread.one(grows),
        Spread.one(ours / grows),
        None if peer.memory is None else Target("at most", peer.memory),
        note="ours: peak beyond the inputs, as NumPy allocates; theirs: peak of the process beyond "
        "what it held",
        meaning="of its memory",
    )
