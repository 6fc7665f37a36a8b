"""The function opaque: a hand-written backward for the first derivative, the plain function for
every other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from tape import check, ops
from tests.support.close import ANALYTIC, EXACT, assert_close

X = np.random.default_rng(5).standard_normal((3, 3))
W = np.random.default_rng(6).standard_normal((3, 3))


def product_block(seen: list[str], factor: float = 1.0) -> Callable[..., Any]:
    """The block tanh(a b), whose backward is `factor` times the truth, so that a test recognises
    the path.
    """

    def plain(a: Any, b: Any) -> Any:
        seen.append("plain")
        return ops.tanh(a @ b)

    def forward(a: Any, b: Any) -> Any:
        seen.append("forward")
        y = np.tanh(a @ b)
        return y, (a, b, y)

    def backward(residuals: Any, g: Any) -> Any:
        seen.append("backward")
        a, b, y = residuals
        inner = factor * g * (1.0 - y * y)
        return inner @ b.T, a.T @ inner

    return tape.opaque(plain, forward, backward)


@pytest.mark.clause("TAPE-9")
def test_value_and_first_derivative_take_forward_and_backward_and_nothing_else() -> None:
    seen: list[str] = []
    block = product_block(seen)
    assert_close("plain arrays", block(X, W), np.tanh(X @ W), EXACT)
    assert seen == ["forward"]
    check.check_gradient(lambda p: ops.sum(ops.tanh(p[0] @ p[1]) * X), (X, W))
    seen.clear()
    got = tape.grad(lambda p: ops.sum(block(*p) * X))((X, W))
    assert seen == ["forward", "backward"]
    want = tape.grad(lambda p: ops.sum(ops.tanh(p[0] @ p[1]) * X))((X, W))
    for g, w in zip(got, want, strict=True):
        assert_close("gradient", g, w, ANALYTIC)


@pytest.mark.clause("TAPE-9")
def test_the_gradient_is_that_of_backward_and_not_of_plain() -> None:
    right, doubled = (
        tape.grad(lambda x, block=block: ops.sum(block(x, W)))(X)
        for block in (product_block([]), product_block([], 2.0))
    )
    assert_close("doubled", doubled, 2.0 * right, ANALYTIC)


@pytest.mark.clause("TAPE-9")
def test_a_block_is_one_entry() -> None:
    lengths: list[int] = []

    def f(x: Any) -> Any:
        y = product_block([])(x, W)
        lengths.append(len(y.tape.entries))
        return ops.sum(y)

    tape.grad(f)(X)
    assert lengths == [2]


@pytest.mark.clause("TAPE-9")
def test_a_second_derivative_takes_plain_and_is_not_cut() -> None:
    seen: list[str] = []
    block = product_block(seen, factor=7.0)
    loss = lambda p, f: ops.sum(f(*p) * f(p[1], p[0]))  # noqa: E731
    got = tape.hvp(lambda p: loss(p, block))((X, W), (W, X))
    assert set(seen) == {"plain"}
    want = tape.hvp(lambda p: loss(p, lambda a, b: ops.tanh(a @ b)))((X, W), (W, X))
    for g, w in zip(got, want, strict=True):
        assert_close("second derivative", g, w, ANALYTIC)


@pytest.mark.clause("TAPE-9")
def test_arguments_of_two_levels_take_plain() -> None:
    seen: list[str] = []
    block = product_block(seen, factor=7.0)
    got = tape.grad(lambda a: ops.sum(tape.grad(lambda b: ops.sum(block(a, b)))(W)))(X)
    want = tape.grad(lambda a: ops.sum(tape.grad(lambda b: ops.sum(ops.tanh(a @ b)))(W)))(X)
    assert set(seen) == {"plain"}
    assert_close("mixed derivative", got, want, ANALYTIC)


@pytest.mark.clause("TAPE-9")
def test_a_cotangent_that_is_a_variable_takes_plain() -> None:
    seen: list[str] = []
    _, pullback = tape.vjp(product_block(seen, factor=7.0), X, W)
    got = tape.grad(lambda g: ops.vdot(pullback(g)[0], W))(X)
    assert seen == ["forward", "plain"]
    _, want = tape.vjp(lambda a, b: ops.tanh(a @ b), X, W)
    assert_close("J v", got, tape.grad(lambda g: ops.vdot(want(g)[0], W))(X), ANALYTIC)


@pytest.mark.clause("TAPE-9")
def test_complex_arguments_pass_through() -> None:
    check.check_gradient(lambda x: ops.sum(product_block([])(x, W) * X), X)


@pytest.mark.clause("TAPE-9", "TAPE-13")
@pytest.mark.parametrize("several", [False, True])
def test_a_backward_that_writes_into_real_arrays_takes_a_complex_cotangent_of_real_values(
    several: bool,
) -> None:
    """A complex step in the code behind the block alone."""

    def forward(a: Any, s: Any) -> Any:
        return ((a * a, a + 1.0) if several else a * a), a

    def backward(a: Any, g: Any) -> Any:
        bar = np.empty_like(a)
        np.multiply(2.0 * a, g[0] if several else g, out=bar)
        return bar, None

    block = tape.opaque(lambda a, s: forward(a, s)[0], forward, backward)
    _, pullback = tape.vjp(lambda a: block(a, W)[0] if several else block(a, W), X)
    found = pullback(W + 1j * X)[0]
    assert_close("cotangent", found, 2.0 * X * (W + 1j * X), ANALYTIC)
    assert pullback(W)[0].dtype == np.float64


@pytest.mark.clause("TAPE-9")
def test_an_argument_without_a_cotangent_is_a_constant() -> None:
    scaled = tape.opaque(
        lambda a, s: a * ops.stop_gradient(s), lambda a, s: (a * s, s), lambda s, g: (g * s, None)
    )
    gradient = tape.grad(lambda p: ops.sum(scaled(*p)))((X, 3.0))
    assert_close("array", gradient[0], np.full((3, 3), 3.0), EXACT)
    assert gradient[1] == 0.0


@pytest.mark.clause("TAPE-9")
def test_the_same_block_used_in_a_chain_and_twice_on_one_variable() -> None:
    block, truth = product_block([]), lambda a, b: ops.tanh(a @ b)
    f = lambda x, b: ops.sum(b(b(x, x), W) * b(x, W))  # noqa: E731
    assert_close(
        "gradient",
        tape.grad(lambda x: f(x, block))(X),
        tape.grad(lambda x: f(x, truth))(X),
        ANALYTIC,
    )


@pytest.mark.clause("TAPE-9", "TAPE-10")
def test_a_block_inside_a_checkpoint() -> None:
    block = product_block([])
    got = tape.grad(lambda x: ops.sum(tape.checkpoint(block)(x, W)))(X)
    assert_close("gradient", got, tape.grad(lambda x: ops.sum(block(x, W)))(X), EXACT)


@pytest.mark.clause("TAPE-9")
@pytest.mark.parametrize(
    ("cotangents", "message"),
    [
        (
            lambda g: (g[:1], g),
            r"block: backward gave cotangents of shapes \[\(1, 3\), \(3, 3\)\]; give one per argument, of shapes",
        ),
        (lambda g: (g,), "give one per argument"),
        (lambda g: (g, g, g), "give one per argument"),
        (lambda g: (g.sum(), None), r"shapes \[\(\), None\]"),
    ],
)
def test_cotangents_that_do_not_fit_the_arguments_are_refused(
    cotangents: Any, message: str
) -> None:
    def block(a: Any, b: Any) -> Any:
        return a + b

    opaque = tape.opaque(block, lambda a, b: (a + b, None), lambda _, g: cotangents(g))
    with pytest.raises(tape.TapeError, match=message):
        tape.grad(lambda p: ops.sum(opaque(*p)))((X, W))


@pytest.mark.clause("TAPE-9")
def test_backward_cannot_write_into_a_cotangent_that_others_hold() -> None:
    def backward(_: Any, g: Any) -> Any:
        g *= 2.0
        return (g,)

    doubled = tape.opaque(lambda a: 2.0 * a, lambda a: (2.0 * a, None), backward)
    with pytest.raises(ValueError, match="read-only"):
        tape.vjp(lambda x: doubled(x) + x, X)[1](np.ones((3, 3)))


@pytest.mark.clause("TAPE-9")
def test_one_block_in_two_threads_keeps_its_residuals_apart() -> None:
    """Two threads that both leave `forward` before either starts its backward."""
    meet, found = threading.Barrier(2, timeout=10), {}
    square = tape.opaque(lambda a: a * a, lambda a: (a * a, a), lambda a, g: (2.0 * a * g,))

    def f(x: Any) -> Any:
        x.tape.guard = lambda name, args, value: meet.wait()  # called between the two
        return ops.sum(square(x))

    def work(scale: float) -> None:
        found[scale] = tape.grad(f)(scale * X)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (1.0, -3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for scale in (1.0, -3.0):
        assert_close("gradient", found[scale], 2.0 * scale * X, EXACT)


def held_block(held: list[Any], *, fresh: bool) -> Callable[..., Any]:
    """The block 2 a + 3 b, whose backward keeps its results so that a test can recognise copies."""

    def backward(_: Any, g: Any) -> Any:
        held[:] = [2.0 * g, 3.0 * g]
        return tuple(held)

    return tape.opaque(
        lambda a, b: 2.0 * a + 3.0 * b,
        lambda a, b: (2.0 * a + 3.0 * b, None),
        backward,
        fresh=fresh,
    )


@pytest.mark.clause("TAPE-9")
@pytest.mark.parametrize("fresh", [False, True])
def test_a_gradient_is_what_a_block_gave_where_nothing_else_holds_it_and_a_copy_elsewhere(
    fresh: bool,
) -> None:
    held: list[Any] = []
    block = held_block(held, fresh=fresh)
    found = tape.vjp(block, X, W)[1](np.ones_like(X))
    for got, given, factor in zip(found, held, (2.0, 3.0), strict=True):
        assert (got is given) == fresh
        assert_close("gradient", got, np.full_like(X, factor), EXACT)


@pytest.mark.clause("TAPE-9")
def test_no_gradient_shares_memory_with_another_or_with_what_the_caller_holds() -> None:
    """Gradients beside a fresh block in four cases of sharing.

    A leaf that is the value, two leaves of one cotangent, an argument that comes twice, a block
    behind a view.
    """
    held: list[Any] = []
    block = held_block(held, fresh=True)

    def function(p: Any) -> Any:
        passed, a, b, twice, viewed = p
        return (
            passed,
            a + b,
            block(twice, twice),
            block(ops.reshape(viewed, (9,)), W.reshape(9)),
            block(a, b),
        )

    leaves = tuple(X + n for n in range(5))
    value, pullback = tape.vjp(function, leaves)
    bars = (np.ones_like(X), np.ones_like(X), np.ones_like(X), np.ones(9), np.ones_like(X))
    (found,) = pullback(bars)
    for got, want in zip(found, (1.0, 3.0, 4.0, 5.0, 2.0), strict=True):
        assert_close("gradient", got, np.full_like(X, want), EXACT)
    everything = [*found, *leaves, *bars, *value]
    for i, got in enumerate(found):
        assert not any(
            np.may_share_memory(got, other) for j, other in enumerate(everything) if j != i
        ), i


@pytest.mark.clause("TAPE-9", "TAPE-8")
def test_a_fresh_gradient_has_the_precision_of_its_leaf_and_a_scalar_is_a_number() -> None:
    block = held_block([], fresh=True)
    wide, narrow = tape.vjp(block, X, W.astype(np.float32))[1](np.ones_like(X))
    assert (wide.dtype, narrow.dtype) == (np.float64, np.float32)
    one, other = tape.vjp(block, 1.5, np.float32(2.0))[1](1.0)
    assert (one, other) == (2.0, 3.0)
    assert not isinstance(one, np.ndarray)
    assert not isinstance(other, np.ndarray)
