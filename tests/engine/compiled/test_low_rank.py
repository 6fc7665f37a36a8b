"""The compiled loop over rows of diagonal plus low rank, its derivatives, and what it leaves to NumPy."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.backend import compiled
from atlas_ref.engine.compiled import low_rank
from atlas_ref.engine.compiled import tokens as compiled_tokens
from atlas_ref.engine.compiled.low_rank import Settings
from atlas_ref.forms.dplr import scan
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered
from tests.support.compiled import forget_what_imports_numba, in_python, watched

pytestmark = [
    pytest.mark.host("compiled forms take arrays of NumPy alone"),
    pytest.mark.clause("DPLR-17"),
]

Taken = list[bool]
NAMES = ("retain", "k", "a", "b", "v", "q", "M")
SIZES = [(1, 1, 1), (9, 4, 3), (16, 9, 20), (21, 16, 33)]
ONCE = Settings(1)
#: Reads before the row, after it, and after the last of three; erases before the decay, and after it.
SETTINGS = [Settings(0, False, 1.0), Settings(0, True, 0.3), ONCE, Settings(1, True, 0.3)]
SETTINGS += [Settings(3, False, 0.3), Settings(3, True, 1.0)]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """For each compiled sequence and backward, whether its results were used; none is too short."""
    return watched(monkeypatch, low_rank, "_run", "_backward")


def drawn(
    T: int,
    d: int,
    o: int,
    *,
    steps: int = 1,
    lead: tuple[int, ...] = (3,),
    dtype: Any = float,
    erases: bool = True,
) -> list[Any]:
    """Arrays in the order of `scan.plain`; some gates are exactly 0 and 1."""
    draw, R = np.random.default_rng(T), T * max(steps, 1)
    k, a, b = (0.4 * draw.standard_normal((*lead, R, d)) for _ in range(3))
    retain = draw.uniform(0.0, 1.0, k.shape)
    retain[..., 1::7, :], retain[..., 3::5, :] = 0.0, 1.0
    v, q = draw.standard_normal((*lead, R, o)), draw.standard_normal((*lead, T, d))
    M = draw.standard_normal((*lead, o, d))
    a, b = (x if erases else x[..., :0, :] for x in (a, b))
    return [x.astype(dtype) for x in (retain, k, a, b, v, q, M)]


def loss_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A sum of the results with weights that are drawn."""

    def loss(*arrays: Any) -> Any:
        draw = np.random.default_rng(3)
        return sum(ops.sum(x * draw.standard_normal(x.shape)) for x in function(*arrays))

    return loss


def gradients(function: Callable[..., Any], arrays: list[Any]) -> tuple[Any, ...]:
    got: tuple[Any, ...] = tape.grad(loss_of(function), argnums=tuple(range(7)))(*arrays)
    return got


@pytest.mark.parametrize("lead", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("erases", [True, False], ids=["erases", "no erase"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_are_those_of_the_plain_twin_and_gradients_of_the_complex_step(
    runs: Taken,
    sizes: tuple[int, int, int],
    settings: Settings,
    erases: bool,
    lead: tuple[int, ...],
) -> None:
    arrays = drawn(*sizes, steps=settings.steps, lead=lead, erases=erases)
    run, plain = (functools.partial(each, settings) for each in (scan.sequence, scan.plain))
    for name, got, want in zip("yM", run(*arrays), plain(*arrays), strict=True):
        assert_close(name, got, want, ANALYTIC)
    draw = np.random.default_rng(5)
    for place, gradient in enumerate(gradients(run, arrays)):
        along = draw.standard_normal(gradient.shape)
        moved = [x + 1e-30j * along if place == i else x for i, x in enumerate(arrays)]
        want = np.imag(loss_of(plain)(*moved)) / 1e-30
        assert_close(NAMES[place], np.sum(gradient * along), want, ANALYTIC)
    assert runs == [True, True, True]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_values_are_those_of_a_literal_loop(runs: Taken, settings: Settings) -> None:
    """Entry by entry from DPLR-2 to DPLR-5, by code that shares nothing with loop or plain twin."""
    arrays = drawn(10, 5, 35, steps=settings.steps, lead=(2,))
    got = scan.sequence(settings, *arrays)
    for n in range(2):
        for name, value, want in zip("yM", got, literal(settings, arrays, n), strict=True):
            assert_close(name, value[n], want, ANALYTIC)
    assert runs == [True]


def literal(settings: Settings, arrays: list[Any], n: int) -> tuple[Any, Any]:
    """Reads and the last memory of memory n."""
    w, k, a, b, v, q, M = ([*x[n]] for x in arrays)
    M, reads = np.array(M), []
    for t, query in enumerate(q):
        if settings.steps == 0:
            reads.append(settings.query_scale * M @ query)
        steps = max(settings.steps, 1)
        for r in range(t * steps, (t + 1) * steps):
            after = np.empty_like(M)
            for o in range(len(M)):
                erased = w[r] * M[o] if settings.before_error else M[o]
                found = sum(x * y for x, y in zip(erased, a[r], strict=True))
                for i in range(M.shape[1]):
                    after[o, i] = M[o, i] * w[r][i] - found * b[r][i] + v[r][o] * k[r][i]
            M = after
        if settings.steps:
            reads.append(settings.query_scale * M @ query)
    return np.array(reads), M


@pytest.mark.parametrize("erases", [True, False], ids=["erases", "no erase"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_code_that_is_compiled_says_the_same_in_python(
    runs: Taken, settings: Settings, erases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = drawn(11, 5, 3, steps=settings.steps, erases=erases)
    run = functools.partial(scan.sequence, settings)
    want, of_want = run(*arrays), gradients(run, arrays)
    in_python(monkeypatch)
    for name, got, value in zip("yM", run(*arrays), want, strict=True):
        assert_close(name, got, value, ANALYTIC)
    for name, got, value in zip(NAMES, gradients(run, arrays), of_want, strict=True):
        assert_close(name, got, value, ANALYTIC)
    assert runs == [True] * 6


@pytest.mark.parametrize("of_reads", [True, False])
def test_a_result_on_which_nothing_depends_has_no_cotangent(runs: Taken, of_reads: bool) -> None:
    arrays, place = drawn(9, 4, 3), 0 if of_reads else 1

    def loss(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda q, v: ops.sum(function(ONCE, *arrays[:4], v, q, arrays[6])[place])

    got, want = (
        tape.grad(loss(each), argnums=(0, 1))(arrays[5], arrays[4])
        for each in (scan.sequence, scan.plain)
    )
    for name, value, true in zip("qv", got, want, strict=True):
        assert_close(name, value, true, ANALYTIC)
    assert runs == [True, True]


def test_second_derivatives(runs: Taken) -> None:
    arrays = drawn(6, 3, 2)

    def loss(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda w: ops.sum(function(ONCE, w, *arrays[1:])[0] ** 2)

    got, want = (tape.hvp(loss(each))(arrays[0], arrays[0]) for each in (scan.sequence, scan.plain))
    assert_close("hvp", got, want, ANALYTIC)


@pytest.mark.slow
def test_float32_is_float64_up_to_rounding(runs: Taken) -> None:
    arrays, run = drawn(64, 16, 16, dtype=np.float32), functools.partial(scan.sequence, ONCE)
    high = [x.astype(np.float64) for x in arrays]
    for name, got, want in zip("yM", run(*arrays), run(*high), strict=True):
        assert got.dtype == np.float32
        assert_close(name, got, want, reordered(64, dtype=np.float32))
    for name, got, want in zip(NAMES, gradients(run, arrays), gradients(run, high), strict=True):
        assert got.dtype == np.float32
        assert_close(name, got, want, reordered(64, dtype=np.float32))
    assert runs == [True] * 6


def test_every_number_of_threads_gives_the_same_bits(
    runs: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, run = drawn(20, 9, 40, lead=(5,)), functools.partial(scan.sequence, ONCE)
    want = (*run(*arrays), *gradients(run, arrays))
    monkeypatch.setattr(low_rank, "THREAD_WORK", 0)
    for threads in (1, 2, 3):
        monkeypatch.setattr(low_rank, "processors", lambda threads=threads: threads)
        for got, value in zip((*run(*arrays), *gradients(run, arrays)), want, strict=True):
            assert_close("result", got, value, EXACT)


def test_arguments_in_any_order_of_memory_stay_as_they_are(runs: Taken) -> None:
    arrays, run = drawn(9, 4, 3), functools.partial(scan.sequence, ONCE)
    want = (*run(*arrays), *gradients(run, arrays))
    turned = [np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0) for x in arrays]
    for got, value in zip((*run(*turned), *gradients(run, turned)), want, strict=True):
        assert_close("result", got, value, EXACT)
    for x, before in zip(turned, arrays, strict=True):
        assert_close("argument", x, before, EXACT)


# -- what is not taken -----------------------------------------------------------------------------


def test_other_numbers_and_little_work_go_to_numpy(
    runs: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan.sequence(ONCE, *drawn(9, 4, 3, dtype=complex))
    monkeypatch.setattr(compiled_tokens, "WORK", 3 * 9 * 4 * 3 + 1)
    scan.sequence(ONCE, *drawn(9, 4, 3))
    assert runs == []
    monkeypatch.setattr(compiled_tokens, "WORK", 3 * 9 * 4 * 3)
    scan.sequence(ONCE, *drawn(9, 4, 3))
    assert runs == [True]


def test_numpy_says_what_overflows(runs: Taken) -> None:
    arrays, run = drawn(9, 4, 3), functools.partial(scan.sequence, ONCE)
    arrays[4] = np.full_like(arrays[4], 1e308)
    arrays[1] = np.full_like(arrays[1], 9.0)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=r"overflow|invalid"):
        run(*arrays)
    with np.errstate(all="ignore"):
        for got, want in zip(run(*arrays), scan.plain(ONCE, *arrays), strict=True):
            assert_close("result", got, want, EXACT)
        of_plain = gradients(functools.partial(scan.plain, ONCE), arrays)
        for got, want in zip(gradients(run, arrays), of_plain, strict=True):
            assert np.array_equal(got, want, equal_nan=True)
    assert runs == [False, False, False]


def test_numpy_says_what_overflows_in_a_gradient(runs: Taken) -> None:
    arrays = drawn(9, 4, 3)

    def pulled(function: Callable[..., Any]) -> Any:
        y, pullback = tape.vjp(lambda q: function(ONCE, *arrays[:5], q, arrays[6])[0], arrays[5])
        return pullback(np.full_like(y, 1e308))[0]

    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=r"overflow|invalid"):
        pulled(scan.sequence)
    assert runs == [True, False]
    with np.errstate(all="ignore"):
        assert np.array_equal(pulled(scan.sequence), pulled(scan.plain), equal_nan=True)


def test_without_compiled_code_it_is_the_plain_twin(
    runs: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    arrays = drawn(9, 4, 3)
    for got, want in zip(scan.sequence(ONCE, *arrays), scan.plain(ONCE, *arrays), strict=True):
        assert_close("result", got, want, EXACT)
    assert runs == []


@pytest.mark.parametrize("broken", ["numba", "atlas_ref.engine.compiled.low_rank_loop"])
def test_a_numba_that_cannot_be_used_is_named(
    runs: Taken, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = drawn(9, 4, 3)
    forget_what_imports_numba(monkeypatch)
    monkeypatch.setitem(sys.modules, broken, None)
    monkeypatch.setattr(compiled, "loop", functools.cache(compiled.loop.__wrapped__))
    with pytest.warns(RuntimeWarning, match="cannot be used, so NumPy computes"):
        got = scan.sequence(ONCE, *arrays)
    for value, want in zip(got, scan.plain(ONCE, *arrays), strict=True):
        assert_close("result", value, want, EXACT)
    assert runs == [False]


def test_a_backward_for_which_numba_fails_is_that_of_numpy(
    runs: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, loop = drawn(9, 4, 3), compiled.loop
    run = functools.partial(scan.sequence, ONCE)
    want = gradients(run, arrays)
    monkeypatch.setattr(
        compiled,
        "loop",
        lambda name, *rest: None if name.endswith("backward") else loop(name, *rest),
    )
    with warnings.catch_warnings():
        for name, got, value in zip(NAMES, gradients(run, arrays), want, strict=True):
            assert_close(name, got, value, ANALYTIC)
    assert runs == [True, True, True, False]
