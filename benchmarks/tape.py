"""The price of one op on the tape, against HIPS autograd on the same chain.

x <- tanh(x w + b) x on 4 x 4 arrays, 100 ops and a sum: small enough that nearly all of it is
bookkeeping.
"""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy
import numpy as np

import tape
from benchmarks.measure import Row, Spread, Target, bracketed, relative_error, repeated
from tape import ops

OPS = 101


def rows() -> list[Row]:
    """Forward and backward per op, and forward on plain arrays."""
    x, w, b = np.random.default_rng(0).standard_normal((3, 4, 4))
    low = [each.astype(np.float32) for each in (x, w, b)]
    gradient, theirs = tape.grad(_chain(ops)), autograd.grad(_chain(autograd.numpy))
    truth = gradient(x, w, b)
    if relative_error(theirs(x, w, b), truth) > 1e-12:
        raise AssertionError("tape: autograd finds another gradient of the same chain")
    timing = bracketed(
        repeated(lambda: gradient(*low), 3), repeated(lambda: theirs(*low), 3), samples=101
    )
    plain = bracketed(
        repeated(lambda: _chain(ops)(*low), 9), repeated(lambda: _chain(np)(*low), 9), samples=51
    )
    per_op = 1e6 / OPS
    return [
        Row(
            "tape, forward and backward, one op on 4 x 4, float32",
            "us",
            Spread.of(timing.ours, per_op / 3),
            "HIPS autograd",
            Spread.of(timing.theirs, per_op / 3),
            Spread.of(timing.ratio),
            Target("at most", 0.45, 4.0),
            relative_error(gradient(*low), truth),
            relative_error(theirs(*low), truth),
            "CPU time, one thread",
        ),
        Row(
            "ops on plain arrays, one op on 4 x 4, float32",
            "us",
            Spread.of(plain.ours, per_op / 9),
            "NumPy",
            Spread.of(plain.theirs, per_op / 9),
            Spread.of(plain.ratio),
            None,
            relative_error(_chain(ops)(*low), _chain(ops)(x, w, b)),
            relative_error(_chain(np)(*low), _chain(np)(x, w, b)),
            "CPU time, one thread",
        ),
    ]


def _chain(library: Any) -> Any:
    def chain(x: Any, w: Any, b: Any) -> Any:
        for _ in range(OPS // 4):  # matmul, add, tanh, multiply
            x = library.tanh(x @ w + b) * x
        return library.sum(x)

    return chain
