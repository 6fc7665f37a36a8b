"""Training steps of language models against a plain PyTorch transformer, and what a token costs.

A step is forward, loss and backward, without an optimiser. Each side is on one thread and timed by
its CPU time, in turn; PyTorch in a process of its own. The plain transformer has no memory and no
window: RMSNorm, causal attention, the same feed-forward, embedding and head. Ours is MAG
(attention in a window beside a Titans layer, mixed by a gate), LMM (a Titans layer alone), or
MAG's blocks without memory, all under the causal convention of layers with keys of length 1.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import tape
from atlas_ref.backend import compiled, threads
from atlas_ref.blocks import lmm, mag
from atlas_ref.layers import convention, feed_forward, memory
from atlas_ref.levels import block
from atlas_ref.levels.level import Level
from atlas_ref.models import atlas_mag, language_model
from atlas_ref.rules import titans_lmm
from benchmarks.measure import (
    Row,
    Spread,
    Target,
    alternated,
    bracketed,
    peak_memory,
    relative_error,
    timer,
)
from benchmarks.process import Process
from benchmarks.public import Missing

D, DEPTH, HEADS, D_HEAD, WINDOW = 128, 4, 4, 32, 64
BATCH, TOKENS, LONG, SYMBOLS = 4, 256, 1024, 256
SIZES = f"dim {D}, depth {DEPTH}, {HEADS} heads of {D_HEAD}, window {WINDOW}, batch {BATCH}"
PLAIN = {"d": D, "heads": HEADS, "depth": DEPTH, "symbols": SYMBOLS}
#: Keys of length 1: of length sqrt(d), as causal has them, a running Titans memory of random text
#: diverges within a thousand tokens.
CONVENTION = {
    "preset": "causal",
    "mag": "gate_mix",
    "head_norm": "l2",
    "head_norm_eps": 1e-6,
    "head_norm_guard": "add",
}
SAMPLES, SAMPLES_OF_PEER = 9, 3
#: Name -> bounds on its step over the plain one: with the compiled loop, and without.
STEPS: dict[str, tuple[float | None, float | None]] = {
    "MAG": (1.45, 1.65),
    "LMM": (1.25, None),
    "attention alone": (0.95, None),
}
POSITIONS = (100, 100_000)  # of the tokens whose times are compared
#: Name of a model -> the preset of its memories, which learn at test time.
LEARNING = {"Atlas-MAG": "atlas-mag", "Atlas-MAG read causally": "causal"}
#: Behind such a name: the same model whose memories are never written.
UNWRITTEN = ", phase off"


def rows() -> list[Row]:
    """Steps against the plain transformer and atlas-rnn, memory, and a token far into a text."""
    with threads.alone(), Process() as process:
        plain = _loaded(process, "plain transformer", TOKENS, PLAIN)
        found = [_against_plain(name, process, plain) for name in STEPS]
        for name, peers in PEERS.items():
            missing = _loaded(process, name, TOKENS, PLAIN | {"window": WINDOW})
            found += [_against_peer(process, missing, peer) for peer in peers]
        found += [_memory(process), _token(), *map(_learning, LEARNING)]
    return found


def model(name: str) -> language_model.Config:
    """The settings of a model of `STEPS`, or of `LEARNING` in training."""
    written = name.removesuffix(UNWRITTEN)
    if written in LEARNING:
        settings = atlas_mag.Settings(
            vocab_size=SYMBOLS,
            dim=D,
            n_layers=DEPTH,
            n_heads=HEADS,
            attn_window_size=WINDOW,
            training=True,
        )
        off = {} if written == name else {"phase": "off"}
        return atlas_mag.model(settings, LEARNING[written], **off)
    c = convention.resolve(CONVENTION)
    rule = titans_lmm.Config(d_in=D_HEAD, d_out=D_HEAD, d_model=D, heads=HEADS)
    own = memory.configured(c, block.Config(levels=(Level(config=rule, form="exact"),)))
    inner = feed_forward.inner(D, 4)
    if name == "LMM":
        each: Any = lmm.configured(c, own, d_model=D, d_inner=inner)
    else:
        each = mag.configured(
            c,
            own if name == "MAG" else None,
            d_model=D,
            heads=HEADS,
            d_head=D_HEAD,
            window=WINDOW,
            d_inner=inner,
        )
    return language_model.configured(c, [each] * DEPTH, vocabulary=SYMBOLS)


def ids_of(tokens: int) -> Any:
    """Symbols of a batch, one more than a step reads."""
    return np.random.default_rng(0).integers(0, SYMBOLS, (BATCH, tokens + 1))


def step(name: str, tokens: int = TOKENS, kind: Any = np.float32) -> Callable[[], list[Any]]:
    """A training step, which returns the loss and the gradient of every parameter."""
    config = model(name)
    params = language_model.init(config, 0, dtype=np.float32)
    leaves, _, build = tape.nested.flatten(params, "params")
    params = build([leaf.astype(kind) for leaf in leaves])
    state, ids = language_model.start(config, BATCH, dtype=kind), ids_of(tokens)

    def loss(at: Any) -> Any:
        return language_model.loss(config, at, state, ids)[1]

    def run() -> list[Any]:
        value, gradients = tape.value_and_grad(loss)(params)
        return [value, *tape.nested.flatten(gradients, "gradients")[0]]

    return run


def _loaded(process: Process, name: str, tokens: int, options: Any) -> str | None:
    """None once a model of PyTorch has run, or why it cannot."""
    try:
        process.load(name, {"ids": ids_of(tokens)}, None, **options)
        process.cpu_seconds("both")
    except Missing as missing:
        return str(missing)
    return None


def _against_plain(name: str, process: Process, missing: str | None) -> Row:
    work, bound = step(name), STEPS[name][0 if compiled.wanted() else 1]
    work()
    ours = timer(work, time.process_time)
    if missing is not None:
        times = [ours() for _ in range(3)]
        timing = None
    else:
        timing = alternated(ours, partial(process.cpu_seconds, "both"), samples=SAMPLES)
        times = timing.ours
    return Row(
        f"{name}, training step, {SIZES}, T = {TOKENS}, float32",
        "ms",
        Spread.of(times, 1e3),
        "plain PyTorch transformer" + ("" if missing is None else f": {missing}"),
        Spread.one() if timing is None else Spread.of(timing.theirs, 1e3),
        Spread.one() if timing is None else Spread.of(timing.ratio),
        None if bound is None else Target("at most", bound),
        relative_error(work(), step(name, kind=np.float64)()),
        note=f"CPU time, one thread each; {_rates(times, timing and timing.theirs)}",
    )


def _rates(ours: Sequence[float], theirs: Sequence[float] | None) -> str:
    """Tokens a second of steps, from the medians of their times."""
    mine, others = (
        "" if each is None else f"{BATCH * TOKENS / statistics.median(each):,.0f}"
        for each in (ours, theirs)
    )
    return f"{mine} tokens a second" + (f", theirs {others}" if others else "")


class _Peer(NamedTuple):
    """A public model, beside one of ours in a training step.

    Attributes:
        ours: name of `model`.
        theirs: in words.
        bound: of our speed over theirs.
        note: what it computes otherwise.
    """

    ours: str
    theirs: str
    bound: float
    note: str


#: Loaded model -> the comparisons with it.
PEERS = {
    "atlas-rnn MAG": (
        _Peer("MAG", "MAG of atlas-rnn", 6, "theirs freezes the reference for a call"),
    ),
    "Atlas-MAG": (
        _Peer("MAG", "Atlas-MAG with its step", 1.7, "theirs has a deep memory"),
        _Peer("Atlas-MAG", "Atlas-MAG with its step", 1 / 0.7, "the same model"),
    ),
}


def _against_peer(process: Process, missing: str | None, peer: _Peer) -> Row:
    work = step(peer.ours)
    work()
    ours, ratio, theirs = timer(work, time.process_time), Spread.one(), Spread.one()
    timing = None
    if missing is None:
        timing = alternated(ours, partial(process.cpu_seconds, "both"), samples=SAMPLES_OF_PEER)
        theirs = Spread.of(timing.theirs, 1e3)
        ratio = Spread.of([1.0 / each for each in timing.ratio])
    times = [ours() for _ in range(3)] if timing is None else timing.ours
    return Row(
        f"{peer.ours}, training step, {SIZES}, T = {TOKENS}, float32",
        "ms",
        Spread.of(times, 1e3),
        peer.theirs + ("" if missing is None else f": {missing}"),
        theirs,
        ratio,
        Target("at least", peer.bound),
        note=f"CPU time, one thread each; {_rates(times, timing and timing.theirs)}; {peer.note}",
        meaning="times faster",
    )


def _memory(process: Process) -> Row:
    ours, theirs = peak_memory(_alone(step("MAG", LONG)), runs=2), float("nan")
    options = PLAIN | {"window": WINDOW}
    missing = _loaded(process, "atlas-rnn MAG", TOKENS, options)
    if missing is None:  # a short step has loaded what PyTorch loads once
        process.load("atlas-rnn MAG", {"ids": ids_of(LONG)}, None, **options)
        theirs = process.weighed("both").grows
    return Row(
        f"MAG, training step, {SIZES}, T = {LONG}, float32, memory",
        "MB",
        Spread.one(ours),
        "MAG of atlas-rnn" + ("" if missing is None else f": {missing}"),
        Spread.one(theirs),
        Spread.one(theirs / ours),
        Target("at least", 4),
        note="ours: peak beyond the inputs, as NumPy allocates; theirs: peak of the process beyond "
        "what it held",
        meaning="times less",
    )


def _alone(work: Callable[[], Any]) -> Callable[[], Any]:
    """Work on one thread, whichever thread runs it."""

    def run() -> None:
        with threads.alone():
            work()

    return run


def _token() -> Row:
    config = model("MAG")
    params = language_model.init(config, 0, dtype=np.float32)
    ids = np.random.default_rng(1).integers(0, SYMBOLS, (1, max(POSITIONS) + 1))
    state, states, first = language_model.start(config, 1, dtype=np.float32), [], 0
    for last in POSITIONS:
        while first < last:
            some = ids[:, first : min(first + 1000, last)]
            state, _ = language_model.apply(config, params, state, some)
            first += some.shape[1]
        states.append(state)

    def decode(place: int) -> None:
        for _ in range(20):
            language_model.apply(
                config, params, states[place], ids[:, POSITIONS[place] : POSITIONS[place] + 1]
            )

    timing = bracketed(partial(decode, 1), partial(decode, 0), samples=SAMPLES)
    return Row(
        f"MAG, a token at position {POSITIONS[1]:,}, {SIZES.rpartition(',')[0]}, float32",
        "ms",
        Spread.of(timing.ours, 1e3 / 20),
        f"one at position {POSITIONS[0]}",
        Spread.of(timing.theirs, 1e3 / 20),
        Spread.of(timing.ratio),
        Target("at most", 1.1),
        note="CPU time, one thread",
    )


def _learning(name: str) -> Row:
    """What learning at test time costs: a training step with its writes, over one without any."""
    timing = bracketed(step(name), step(name + UNWRITTEN), samples=SAMPLES_OF_PEER)
    return Row(
        f"{name}, training step, dim {D}, depth {DEPTH}, {HEADS} heads, batch {BATCH}, "
        f"T = {TOKENS}, float32, its memories learning",
        "ms",
        Spread.of(timing.ours, 1e3),
        "the same, never written",
        Spread.of(timing.theirs, 1e3),
        Spread.of(timing.ratio),
        note="CPU time, one thread",
    )
