"""Attention in a window against its useful products.

Useful are the projections, and for each query the products with the W keys and values that it sees
and with the persistent rows: as many multiply-adds in products of the same lengths, no softmax, no
norm, no rotation. A backward has twice as many. All on one thread.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

import tape
from atlas_ref.engine.attention import tiles
from atlas_ref.layers import attention, norm, rotary
from benchmarks.measure import Row, Spread, Target, bracketed, peak_memory, relative_error
from benchmarks.useful import BACKWARD
from tape import ops

BATCH, TOKENS, HEADS, D_HEAD, WINDOW, PERSISTENT = 4, 1024, 4, 32, 64, 4
D = HEADS * D_HEAD
SIZES = (
    f"batch {BATCH}, {HEADS} heads of {D_HEAD}, window {WINDOW}, {PERSISTENT} persistent rows, "
    f"T = {TOKENS}, float32"
)
CONFIG = attention.Config(
    d_model=D,
    heads=HEADS,
    d_head=D_HEAD,
    window=WINDOW,
    persistent=PERSISTENT,
    norm=norm.Config(kind="rms", d=D, eps=1e-6),
    rotary=rotary.Config(d=D_HEAD),
)


def rows() -> list[Row]:
    """The layer forward, and forward with backward."""
    with threadpool_limits(1), mock.patch.object(tiles, "processors", return_value=1):
        return [_row("forward", 15), _row("forward and backward", 9)]


def forward(at: Any) -> Any:
    """The reads of a call from an empty state."""
    state = attention.start(CONFIG, BATCH, dtype=at["x"].dtype)
    return attention.apply(CONFIG, at["params"], state, at["x"])[1]


def gradient(at: Any) -> list[Any]:
    """Gradients of a weighted sum of the reads by every parameter and by the tokens."""
    weights = at["weights"]
    of = {"params": at["params"], "x": at["x"]}
    result = tape.grad(lambda at: ops.sum(weights * forward(at)))(of)
    params = result["params"]
    return [params.norm.weight, params.W_qkv, params.W_out, params.persistent, result["x"]]


def inputs(params: Any, kind: Any = np.float32, length: int = TOKENS) -> dict[str, Any]:
    """Parameters, tokens, and weights of the reads."""
    x, weights = np.random.default_rng(0).standard_normal((2, BATCH, length, D), np.float32)
    return {"params": params, "x": x.astype(kind), "weights": weights.astype(kind)}


def useful_products() -> Any:
    """The products of a forward, in NumPy: projections, scores and reads."""
    draw = np.random.default_rng(2)

    def drawn(*shape: int) -> Any:
        return draw.standard_normal(shape).astype(np.float32)

    x, reads = drawn(BATCH * TOKENS, D), drawn(BATCH * TOKENS, D)
    W_qkv, W_out = drawn(D, 3 * D), drawn(D, D)
    blocks, columns = BATCH * HEADS * TOKENS // WINDOW, WINDOW + PERSISTENT
    q, k = drawn(blocks, WINDOW, D_HEAD), drawn(blocks, D_HEAD, columns)
    weights, v = drawn(blocks, WINDOW, columns), drawn(blocks, columns, D_HEAD)
    qkv, y = drawn(BATCH * TOKENS, 3 * D), drawn(BATCH * TOKENS, D)
    z, o = drawn(blocks, WINDOW, columns), drawn(blocks, WINDOW, D_HEAD)

    def run() -> None:
        np.matmul(x, W_qkv, out=qkv)
        np.matmul(q, k, out=z)
        np.matmul(weights, v, out=o)
        np.matmul(reads, W_out, out=y)

    return run


def _row(what: str, samples: int) -> Row:
    params = attention.init(CONFIG, 0, dtype=np.float32)
    at, exact = inputs(params), inputs(_widened(params), np.float64)
    both = what != "forward"
    work, products = (gradient if both else forward), useful_products()
    factor = 1 + BACKWARD if both else 1

    def reference() -> None:
        for _ in range(factor):
            products()

    timing = bracketed(lambda: work(at), reference, samples=samples)
    long = inputs(params, length=4 * TOKENS)
    peaks = [peak_memory(partial(work, each)) for each in (at, long)]
    return Row(
        f"attention {what}, {SIZES}",
        "ms",
        Spread.of(timing.ours, 1e3),
        "its useful products",
        Spread.of(timing.theirs, 1e3),
        Spread.of(timing.ratio),
        Target("at most", 1.3),
        relative_error(work(at), work(exact)),
        note=f"CPU time, one thread; memory grows by {peaks[0]:.0f} MB, at 4 T by {peaks[1]:.0f} MB",
    )


def _widened(params: Any) -> Any:
    leaves, _, build = tape.nested.flatten(params, "params")
    return build([leaf.astype(np.float64) for leaf in leaves])
