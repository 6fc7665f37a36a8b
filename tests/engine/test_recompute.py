"""A block that is recomputed in the backward pass.

It is alike for every partition of memories, and for derivatives of derivatives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.backend.threads import processors, slices
from atlas_ref.engine.recompute import recomputed
from tape import ops
from tests.support.close import ANALYTIC, assert_close


@pytest.mark.clause("CHUNK-15")
def test_an_array_that_belongs_to_all_parts_gets_the_sum_of_their_cotangents() -> None:
    def plain(x: Any, shared: Any, absent: Any) -> tuple[Any, ...]:
        assert absent is None
        return (x * shared, ops.sum(x, axis=1, keepdims=True) + shared[:, :1])

    random = np.random.default_rng(6)
    x, shared = random.standard_normal((5, 3)), random.standard_normal((1, 3))
    bars = (random.standard_normal((5, 3)), random.standard_normal((5, 1)))
    want, pullback = tape.vjp(lambda x, shared: plain(x, shared, None), x, shared)
    value, pulled = tape.vjp(
        lambda x, shared: recomputed(plain, slices(5, 3))(x, shared, None), x, shared
    )
    for got, true in zip((*value, *pulled(bars)), (*want, *pullback(bars)), strict=True):
        assert_close("of all parts", got, true, ANALYTIC)


@pytest.mark.host("threads share memories out on the host alone")
def test_one_part_leaves_all_threads_to_newton_schulz() -> None:
    """One part alone.

    A part of several would count as a thread among others, and Newton-Schulz inside it would use no
    more.
    """
    seen: list[int] = []
    recomputed(lambda x: (seen.append(processors()) or x,))(np.zeros((2, 1)))
    assert seen == [processors()]


def test_an_error_of_one_part_is_raised_as_it_is() -> None:
    def plain(x: Any) -> tuple[Any, ...]:
        if float(x[0, 0]) == 2.0:
            raise ValueError("the third memory")
        return (x * 1.0,)

    block, x = recomputed(plain, slices(4, 4)), np.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="the third memory"):
        block(x)
    with pytest.raises(ValueError, match="the third memory"):
        tape.vjp(lambda x: block(x)[0], x)


def test_second_derivatives_go_through_parts() -> None:
    random = np.random.default_rng(7)
    x, v = random.standard_normal((4, 3)), random.standard_normal((4, 3))

    def plain(x: Any) -> tuple[Any, ...]:
        return (ops.tanh(x) * x, ops.sum(x * x, axis=1, keepdims=True))

    def number(block: Any) -> Any:
        return lambda x: ops.sum(block(x)[0] * ops.tanh(block(x)[1]))

    got, want = (
        tape.hvp(number(block))(x, v) for block in (recomputed(plain, slices(4, 2)), plain)
    )
    assert_close("second derivative", got, want, ANALYTIC)
