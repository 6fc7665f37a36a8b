"""A memory that is a function of its token and learns at test time, written once a chunk, by loops.

For the n-th write, at the last token e of chunk n, with W_ref the reference:

    loss(W) = sum_i weight[e, i] |M(k_i; W) - v_i|^2,  i = e - window + 1 .. e,
    weight[e, i] = window_decay^(e - i) window_gate_i
    S <- momentum S + a d loss / dW at W_ref,  W <- retain W - b U,  U = NS(S), S or S / |S|
    y_t = M(q_t; W)

with (a, b) = (1, step_size), (step_size, 1) or (step_size, step_size): rate memory, momentum, both.

`run(settings, tensors, k, v, q, gates)` takes settings by these names, with these defaults:

    memory           dict of the attributes of `deep_memory_functions.Function`
    chunk            1: tokens of a write
    window           None: the chunk; tokens that a loss sums over, also of earlier calls
    window_decay     1.0
    span             None: never; "call": at the start of each call; a multiple of chunk: the
                     reference becomes the memory before every span-th token's chunk. Default: chunk
    reduction        sum | mean (over the window's tokens that exist and the rows of a shared
                     memory) | features (mean over those of the value, sum over the window)
    coupling         per_sample | batch_shared: one memory for all rows
    fast             matrices | all | mlp (W_in, W_value, W_out; W_1 .. of an mlp; W) | names
    vectors          of fast tensors that are no matrix: unit (S / (|S| + 1e-8)) | raw | frozen
    rate             memory | momentum | both
    newton_schulz    0: none; steps
    coefficients     (a, b, c), or a row a step of which the last is repeated
    ns_eps, ns_guard, ns_transpose
                     1e-7; add | clamp | return; tall | never
    read             completed (the memory after the token's write, if it ends its chunk) |
                     chunk_start (before it) | call_end
    unfinished       wait: for the next call; flush: written at the call's end, where the next chunk
                     begins
    memory_reset, momentum_reset
                     sequence: at each document; batch: at each call; never. To W_0 and S_0
    phase            both | train | infer | off: when tokens are written. Where they are not, the
                     state stays but for resets
    adaptive         False; True: step_size / (1 + |g|), of all fast tensors, before the clip
    deep_momentum    None; dict of function (as memory), objective (l2 | dot | ones) and sign (plus
                     | minus): a network in the place of S, which starts from "momentum/NAME"
    clip, clip_norm  none | hard (all fast tensors, before momentum) | softclamp (each tensor)

A document's start empties the window, begins a chunk and a span, and ends a call for the tokens
before it; a call at which the memory is reset begins a document. A soft clamp of zeros is nan.

gates: retain (1), momentum (0) and step_size (1), whose value at the token of the write counts, and
window_gate (1): numbers, (T,) or (B, T). tensors: those of the memory by the names of
`deep_memory_functions`, S_0 as "momentum/NAME" (0), each of one row or (B, ...).

Float64 or complex128, never a conjugate, comparisons of real parts only, so that a complex step
passes through. Nothing here is shared with the package under test.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.truth import deep_memory_functions as functions
from tests.truth.deep_memory_driver import Driver, complete

Array = np.ndarray
Tensors = dict[str, Any]


def run(
    settings: Tensors,
    tensors: Tensors,
    k: Array,
    v: Array,
    q: Array,
    gates: Tensors,
    *,
    reset: Any = None,
    calls: Any = None,
    training: bool = True,
) -> tuple[Array, Tensors]:
    """Reads y (B, T, d_v) of all calls, and the state after the last one.

    Args:
        k, v, q: (B, T, d_k), (B, T, d_v), (B, T, d_k).
        reset: (B, T) whether a document begins at the token, or None.
        calls: lengths of calls that sum up to T, or None for one call.

    Returns:
        y, and a dict of memory/NAME, momentum/NAME and reference/NAME (B, ...) of fast tensors,
        writes (B,), waiting (B,), and keys, values, weights of the last window - 1 tokens, each a
        list over rows.
    """
    driver = driven(settings, tensors, k, v, q, gates, reset=reset, calls=calls, training=training)
    return driver.reads(), driver.state()


def driven(
    settings: Tensors,
    *arrays: Any,
    reset: Any = None,
    calls: Any = None,
    training: bool = True,
    constant: Any = None,
) -> Driver:
    """All calls of `run`, with the updates of another run where `constant` is its log."""
    driver = Driver(complete(settings), *arrays, reset, training)
    driver.constant, first, T = constant, 0, driver.k.shape[1]
    for length in [T] if calls is None else calls:
        driver.call(first, first + length)
        first += length
    if first != T:
        raise ValueError(f"calls {calls} do not sum up to {T}")
    return driver


#: Of the complex step, whose square is 0 beside any number here.
STEP = 1e-40


def outer(
    settings: Tensors,
    tensors: Tensors,
    k: Array,
    v: Array,
    q: Array,
    gates: Tensors,
    cotangents: Tensors,
    *,
    names: Any = None,
    **how: Any,
) -> Tensors:
    """Gradients of sum(y y_bar) and the like by k, v, q, every gate and every tensor.

    settings["outer_gradient"] says through what: full (everything); first_order (updates U and the
    divisor of an adaptive step are constants); straight_through (W_0 gets the gradients of all
    reads as if none had been written, of k, v and gates there are none); none (W_0 neither).

    Args:
        cotangents: "y" (B, T, d_v), and memory/NAME and momentum/NAME of the state (B, ...).
        names: the gradients that are asked for, or None for all.
        how: reset, calls and training, as in `run`.
    """
    kind = settings.get("outer_gradient", "full")
    inputs = {"k": k, "v": v, "q": q} | gates | tensors
    inputs = {name: np.asarray(a) for name, a in inputs.items() if names is None or name in names}
    if kind in ("straight_through", "none"):
        every = _straight_through(settings, tensors, k, v, q, gates, cotangents, kind, how)
        return {name: every.get(name, np.zeros(a.shape)) for name, a in inputs.items()}
    if kind not in ("full", "first_order"):
        raise ValueError(f"outer_gradient: unknown {kind!r}")
    constant, gradients = None, {}
    if kind == "first_order":
        constant = driven(settings, tensors, k, v, q, gates, **how).log
    how = how | {"constant": constant}
    for name, a in inputs.items():
        entries = [
            along(settings, tensors, k, v, q, gates, cotangents, {name: way}, **how)
            for way in np.eye(a.size).reshape(-1, *a.shape)
        ]
        gradients[name] = np.array(entries).reshape(a.shape)
    return gradients


def along(
    settings: Tensors,
    tensors: Tensors,
    k: Array,
    v: Array,
    q: Array,
    gates: Tensors,
    cotangents: Tensors,
    ways: Tensors,
    **how: Any,
) -> float:
    """The derivative along ways of some inputs, with the updates of a log where `how` has one."""
    rows = {"k": k, "v": v, "q": q}
    moved = [
        {n: np.asarray(a) + STEP * 1j * ways[n] if n in ways else a for n, a in each.items()}
        for each in (rows, gates, tensors)
    ]
    driver = driven(settings, moved[2], *moved[0].values(), moved[1], **how)
    results = driver.state() | {"y": driver.reads()}
    total = sum(np.sum(results[name] * bar) for name, bar in cotangents.items())
    return float(np.imag(total) / STEP)


def _straight_through(
    settings: Tensors,
    tensors: Tensors,
    k: Array,
    v: Array,
    q: Array,
    gates: Tensors,
    cotangents: Tensors,
    kind: str,
    how: Tensors,
) -> Tensors:
    driver = driven(settings, tensors, k, v, q, gates, **how)
    total: Tensors = {"q": np.zeros(q.shape)}
    total |= {name: np.zeros(np.shape(a)) for name, a in tensors.items()}
    each: list[Any] = []
    for (b, t), p in driver.reading.items():
        g, q_bar = functions.gradient(p, q[b, t], cotangents["y"][b, t], driver.f)
        total["q"][b, t] = q_bar
        each += [(b, name, a) for name, a in g.items()]
    of_state = {n: bar for n, bar in cotangents.items() if n.startswith("memory/")}
    for name, bar in of_state.items():
        each += [(b, name.removeprefix("memory/"), bar[b]) for b in range(len(q))]
    fast = driver.groups[0].first
    for b, name, a in each:
        if kind == "straight_through" or name not in fast:
            if np.shape(a) == total[name].shape:
                total[name] += a
            else:
                total[name][b] += a
    return total
