"""Random programs of ops, sharing, indexing, blocks and inner gradients, against the complex
step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from tape import check, ops
from tests.support.close import EXACT, assert_close

N = 3
square = tape.opaque(lambda a: a * a, lambda a: (a * a, a), lambda a, g: (2.0 * a * g,))

#: Steps from two (N, N) arrays to one, bounded so that a long program stays of order one.
STEPS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: ops.tanh(a @ b),
    lambda a, b: a + b[0],
    lambda a, b: ops.sin(a) * b[:, None, 1],
    lambda a, b: ops.softmax(a + b),
    lambda a, b: ops.tanh(a - ops.transpose(b)),
    lambda a, b: a / (2.0 + b * b),
    lambda a, b: ops.slide(a, b[1]),
    lambda a, b: ops.concatenate([a[1:], b[:1]]),
    lambda a, b: ops.stack([a[2], b[0] * a[0], b[-1]]),
    lambda a, b: ops.tanh(a[[0, 0, 2]] + b[np.array([2, 1, 1])][:, [0, 1, 0]]),
    lambda a, b: ops.tril(a) + ops.triu(b, 1),
    lambda a, b: ops.solve_triangular(ops.tanh(a) + 3.0 * np.eye(N), b),
    lambda a, b: ops.tanh(ops.outer(ops.sum(a, axis=0), ops.mean(b, axis=-1))),
    lambda a, b: ops.sigmoid(a) * ops.norm(b + 2.0, axis=0),
    lambda a, b: ops.where(np.eye(N) > 0, a, b),
    lambda a, b: ops.cumsum(a, axis=0) / 3.0 - ops.flip(b, 1),
    lambda a, b: (
        ops.reshape(ops.moveaxis(ops.broadcast_to(a[0], (N, N)), 0, 1), (N, N)) * ops.cos(b)
    ),
    lambda a, b: ops.tanh(square(a) - b),
    lambda a, b: tape.checkpoint(lambda x, y: ops.tanh(x * y[0, 0]) + y)(a, b),
    lambda a, b: ops.tanh(tape.grad(lambda x: ops.sum(ops.sin(x) * x[0] * b))(a)),
    lambda a, b: tape.vjp(lambda x: ops.tanh(x @ a), b)[1](ops.cos(a))[0],
    lambda a, b: ops.tanh(tape.hvp(lambda x: ops.sum(ops.sin(x[1]) * x * x[:, [0, 0, 1]]))(a, b)),
]


def program(seed: int, length: int = 7) -> Callable[[Any], Any]:
    """A straight line of steps, each on two of all earlier arrays."""
    draw = np.random.default_rng(seed)
    plan = [
        (int(draw.integers(len(STEPS))), int(draw.integers(i + 2)), int(draw.integers(i + 2)))
        for i in range(length)
    ]

    def run(p: Any) -> Any:
        made = [p["a"], p["b"]]
        for step, i, j in plan:
            made.append(STEPS[step](made[i], made[j]))
        return ops.sum(made[-1] * made[-2]) + ops.logsumexp(made[-1][0])

    return run


@pytest.mark.clause("TAPE-2", "TAPE-7", "TAPE-14")
@pytest.mark.parametrize("seed", range(60))
def test_random_program_has_the_derivatives_of_the_complex_step(seed: int) -> None:
    draw = np.random.default_rng(1000 + seed)
    x, v = ({name: draw.standard_normal((N, N)) / 2 for name in "ab"} for _ in range(2))
    f = program(seed)
    check.check_gradient(f, x, tolerance=1e-11)
    check.check_second(f, x, v, tolerance=1e-10)
    value, pullback = tape.vjp(f, x)
    assert_close("value", value, f(x), EXACT)
    first, again = (pullback(1.0)[0] for _ in range(2))
    with tape.checking():
        checked = tape.grad(f)(x)
    for name in "ab":
        assert_close("the same pullback twice", again[name], first[name], EXACT)
        assert_close("checking mode", checked[name], first[name], EXACT)
