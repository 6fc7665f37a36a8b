"""Blocks of layers against their plain twins: values, gradients, and what goes through the twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.backend import compiled, scratch
from atlas_ref.blocks import lmm as lmm_block
from atlas_ref.blocks import mix
from atlas_ref.engine.layers import support
from atlas_ref.layers import convolution, feed_forward, norm, projection
from atlas_ref.models import language_model
from tape import ops
from tests.support.close import ANALYTIC, assert_close, reordered

pytestmark = pytest.mark.host("blocks of NumPy arrays")

FEED = feed_forward.Config(d_model=4, d_inner=3, norm=norm.Config(kind="rms", d=4, eps=1e-6))
IDS = np.array([[0, 3, 2], [4, 1, 1]])


def drawn(*shape: int, scale: float = 1.0) -> Any:
    return scale * np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape)


def with_small_row(*shape: int) -> Any:
    x = drawn(*shape)
    x[0, 1] *= 1e-12  # below the clamp
    return x


def tied(*shape: int) -> Any:
    logits = drawn(*shape)
    logits[0, 1] = 2.0  # all at the top
    logits[1, 0, 4] = 30.0  # nothing beside the target
    return logits


#: Name -> the block, its arrays, and whether compiled code takes it at 32 and at 16 columns.
BLOCKS: dict[str, tuple[Any, tuple[Any, ...], bool]] = {
    "rms": (norm._block("rms", 1e-6, "add", False), (drawn(2, 5, 32), drawn(32)), True),
    "l2": (norm._block("l2", 1e-6, "add", False), (drawn(2, 5, 16), drawn(16)), True),
    "odd": (norm._block("rms", 1e-6, "add", False), (drawn(2, 5, 7), drawn(7)), False),
    "clamp": (
        norm._block("rms", 1e-8, "clamp", False),
        (with_small_row(2, 5, 16), drawn(16)),
        True,
    ),
    "layer": (
        norm._block("layer", 1e-5, "add", False),
        (drawn(2, 5, 16), drawn(16), drawn(16)),
        False,
    ),
    "heads": (
        norm._block("rms", 1e-8, "clamp", True),
        (with_small_row(2, 5, 3, 16), drawn(3, 16)),
        True,
    ),
    "heads alike": (norm._block("l2", 1e-6, "add", True), (drawn(2, 5, 3, 16), drawn(16)), True),
    "odd heads": (norm._block("rms", 1e-8, "clamp", True), (drawn(2, 5, 3, 6), drawn(3, 6)), False),
    "linear": (projection._linear, (drawn(2, 5, 7), drawn(3, 7)), False),
    "linear with bias": (projection._linear, (drawn(2, 5, 7), drawn(3, 7), drawn(3)), False),
    "second half": (
        feed_forward._block("second", "silu"),
        (drawn(2, 5, 7), drawn(42, 7), drawn(42)),
        True,
    ),
    "first half": (feed_forward._block("first", "silu"), (drawn(2, 5, 7), drawn(64, 7)), True),
    "narrow": (
        feed_forward._block("first", "silu"),
        (drawn(2, 5, 7), drawn(8, 7), drawn(8)),
        False,
    ),
    "mix": (
        mix._gate_mix,
        (drawn(2, 5, 16), drawn(2, 5, 16), -drawn(2, 5, 16), drawn(16, 16), drawn(16)),
        True,
    ),
    "odd mix": (
        mix._gate_mix,
        (drawn(2, 5, 6), drawn(2, 5, 6), -drawn(2, 5, 6), drawn(6, 6), drawn(6)),
        False,
    ),
    "cross-entropy": (language_model._block(IDS), (drawn(2, 3, 5, scale=4.0),), False),
    "ties": (language_model._block(IDS), (tied(2, 3, 5),), False),
    "taps": (convolution._taps, (drawn(2, 3, 16), drawn(2, 9, 16), drawn(16, 4)), True),
    "few tokens": (convolution._taps, (drawn(2, 3, 16), drawn(2, 2, 16), drawn(16, 4)), True),
    "one tap": (convolution._taps, (drawn(2, 0, 16), drawn(2, 5, 16), drawn(16, 1)), True),
    "taps with bias": (
        convolution._taps,
        (drawn(2, 3, 5), drawn(2, 9, 5), drawn(5, 4), drawn(5)),
        False,
    ),
}


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compiled code for arrays of any size, and the names of what was used."""
    monkeypatch.setattr(support, "WORK", 0)
    names, loop = [], compiled.loop

    def seen(module: str, *settings: Any) -> Any:
        names.append(settings[-1])
        return loop(module, *settings)

    monkeypatch.setattr(compiled, "loop", seen)
    return names


def results(function: Any, arrays: tuple[Any, ...]) -> list[Any]:
    """The value, and cotangents of a weighted sum of it."""
    value, pullback = tape.vjp(lambda *a: function(*a), *arrays)
    weights = np.random.default_rng(9).standard_normal(np.shape(value))
    return [value, *pullback(np.asarray(weights, value.dtype)[()])]


@pytest.mark.parametrize("by_loop", [True, False], ids=["compiled", "NumPy"])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_its_plain_twin_with_all_gradients(
    name: str, kind: Any, by_loop: bool, loops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    block, arrays, takes = BLOCKS[name]
    arrays = tuple(each.astype(kind) for each in arrays)
    if not by_loop:
        monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    got = results(block, arrays)
    assert len(loops) == (2 if takes and by_loop else 0)
    want = results(block.__wrapped__, arrays)
    tolerance = ANALYTIC if kind is np.float64 else reordered(64, dtype=np.float32)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == kind
        assert_close(f"{name} {i}", a, b, tolerance)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_cotangent_of_another_kind_gives_the_same_gradients(name: str, loops: list[str]) -> None:
    """As where a float32 layer goes into a sum in float64."""
    block, arrays, _ = BLOCKS[name]
    arrays = tuple(each.astype(np.float32) for each in arrays)
    value, pullback = tape.vjp(lambda *a: block(*a), *arrays)
    weights = np.asarray(drawn(*np.shape(value)), np.float64)[()]
    want = pullback(weights.astype(np.float32))
    for i, (a, b) in enumerate(zip(pullback(weights), want, strict=True)):
        assert_close(f"{name} {i}", a, b, reordered(64, dtype=np.float32))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_backward_is_the_complex_step_of_the_plain_twin(name: str, loops: list[str]) -> None:
    """Along one direction of every argument; complex arrays take the twin."""
    block, arrays, _ = BLOCKS[name]
    directions = [np.random.default_rng(3).standard_normal(each.shape) for each in arrays]
    if name in ("clamp", "heads"):  # whose value in a row below the clamp is not smooth beyond it
        directions[0][0, 1] = 0.0
    value, *cotangents = results(block, arrays)
    weights = np.random.default_rng(9).standard_normal(np.shape(value))
    loops.clear()
    step = 1e-30j
    moved = block(*(a + step * d for a, d in zip(arrays, directions, strict=True)))
    want = np.sum(weights * np.imag(moved)) / 1e-30
    got = sum(np.sum(c * d) for c, d in zip(cotangents, directions, strict=True))
    assert_close(name, got, want, ANALYTIC)
    assert loops == []


@pytest.mark.parametrize("name", BLOCKS)
def test_a_second_derivative_is_that_of_the_plain_twin(name: str) -> None:
    block, arrays, _ = BLOCKS[name]

    def second(function: Any) -> Any:
        def first(x: Any) -> Any:
            gradient = tape.grad(lambda y: ops.sum(ops.sin(function(y, *arrays[1:]))))(x)
            return ops.sum(gradient * gradient)

        return tape.grad(first)(arrays[0])

    assert_close(name, second(block), second(block.__wrapped__), ANALYTIC)


@pytest.mark.clause("NORM-5")
@pytest.mark.parametrize("kind", ["rms", "l2", "layer"])
def test_rows_whose_squares_overflow_take_the_plain_norm(kind: str) -> None:
    config = norm.Config(kind=kind, d=8, eps=1e-6)  # type: ignore[arg-type]
    params = norm.init(config, dtype=np.float32)
    x = drawn(1, 3, 8).astype(np.float32)
    large = x * np.float32(2.0**70)
    with np.errstate(over="ignore"):
        assert np.isinf(np.sum(large * large))
    got, want = norm.normed(config, params, large), norm.normed(config, params, x)
    assert_close(kind, got, want, reordered(64, dtype=np.float32))


@pytest.mark.parametrize("by_loop", [True, False], ids=["compiled", "NumPy"])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_gate_near_either_end_keeps_its_relative_precision(
    kind: Any, by_loop: bool, loops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shares of a and m, down to the smallest, and none beyond what exp can hold."""
    if not by_loop:
        monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    # in the precision of the longest kind of numbers, since exp(60) loses some places of float64
    z = np.array([-1000, -60, -20, -3, -0.1, 0, 0.1, 3, 20, 60, 1000, 1, 2, 4, 8, 16], kind)
    one, no = np.ones((1, 1, 16), kind), np.zeros((16, 16), kind)
    share_of_a = mix._gate_mix(one, one, 0 * one, no, z)[0, 0]
    share_of_m = mix._gate_mix(one, 0 * one, one, no, z)[0, 0]
    for share, x in ((share_of_a, z.astype(np.longdouble)), (share_of_m, -z.astype(np.longdouble))):
        want = np.exp(-np.logaddexp(0.0, -x))
        # a place of x itself is worth |x| places of exp(x)
        bound = (8 + np.abs(x)) * np.finfo(kind).eps * want + np.finfo(kind).tiny
        assert np.all(np.abs(share - want) <= bound)
    assert len(loops) == 2 * by_loop


@pytest.mark.clause("MODEL-5")
def test_the_loss_of_a_sure_prediction_keeps_its_relative_precision() -> None:
    logits = np.array([[[20.0, 0.0, 1.0], [-3.0, 18.0, 2.0]]], np.float32)
    ids = np.array([[0, 1]])
    block = language_model._block(ids)
    exact = block.__wrapped__(logits.astype(np.float64))
    assert_close("loss", block(logits), exact, reordered(8, dtype=np.float32))
    got = tape.grad(block)(logits)
    want = tape.grad(block.__wrapped__)(logits.astype(np.float64))
    assert_close(
        "at the targets",
        got[0, [0, 1], [0, 1]],
        want[0, [0, 1], [0, 1]],
        reordered(8, dtype=np.float32),
    )


def test_a_model_lets_the_allocator_keep_what_a_step_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a process; without it a step faults in all of its memory anew."""
    freed: list[int] = []
    monkeypatch.setattr(scratch, "keep_pages_of", freed.append)
    scratch.keep_freed_pages.cache_clear()
    config = language_model.Config(
        vocabulary=3,
        blocks=(lmm_block.Config(memory=None, feed_forward=FEED),),
        embed_norm=FEED.norm,
        norm=FEED.norm,
    )
    params, state = language_model.init(config), language_model.start(config)
    for _ in range(2):
        language_model.apply(config, params, state, np.array([[0, 2]]))
    assert freed == [scratch.FREED]


def test_other_kinds_of_arrays_take_the_plain_twin() -> None:
    x = drawn(3, 4)
    assert support.takes(x, x)
    assert not support.takes(x, x.astype(np.float32))
    assert not support.takes(x.astype(np.float16))
    assert not support.takes(x.astype(np.longdouble))
    assert not support.takes(x + 0j)
    assert not support.takes(x.view(np.ma.MaskedArray))
