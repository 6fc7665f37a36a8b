"""Attention by compiled tiles against the plain twin, with all gradients, and what it hands back to
NumPy.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.backend import compiled
from atlas_ref.engine.attention import block as engine
from atlas_ref.engine.attention import tiles
from atlas_ref.layers import attention, norm, rotary
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered

pytestmark = pytest.mark.host("compiled code of the host")

#: Window, tokens, persistent rows, entries of a head: windows within a tile, of whole tiles and
#: beside them, more than one tile of persistent rows, heads that fill no tile.
SIZES = [
    (1, 20, 0, 4),
    (2, 33, 0, 4),
    (5, 30, 2, 4),
    (9, 40, 5, 18),
    (12, 50, 20, 6),
    (17, 70, 4, 32),
    (30, 90, 1, 8),
    (64, 150, 4, 32),
    (40, 1, 3, 20),
    (64, 30, 0, 4),
]


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compiled code for calls of any size; whether each call took it, forward and backward."""
    monkeypatch.setattr(tiles, "WORK", 0)
    taken: list[bool] = []

    def seen(plain: Any, *arguments: Any) -> bool:
        taken.append(plain(*arguments))
        return taken[-1]

    for name in ("attend", "attend_backward"):
        monkeypatch.setattr(tiles, name, partial(seen, getattr(tiles, name)))
    return taken


def config_of(window: int, persistent: int, d: int, pairs: Any = "interleaved") -> Any:
    turning = None if pairs is None else rotary.Config(d=d, pairs=pairs)
    return attention.Config(
        d_model=5,
        heads=2,
        d_head=d,
        window=window,
        persistent=persistent,
        norm=norm.Config(kind="rms", d=5, eps=1e-6),
        rotary=turning,
    )


def results(config: Any, params: Any, x: Any, cut: int, reset: Any = None) -> list[Any]:
    """Results of two calls, the last state, and the gradients of a linear function of all."""
    kind = x.dtype

    def run(at: Any) -> Any:
        state, reads = attention.start(config, 2, dtype=kind), []
        for part in (slice(0, cut), slice(cut, None)):
            documents = None if reset is None else reset[part]
            state, y = attention.apply(
                config, at["params"], state, at["x"][:, part], reset=documents
            )
            reads.append(y)
        return ops.concatenate(reads, axis=1), state.keys, state.values

    def loss(at: Any) -> Any:
        draw, total = np.random.default_rng(3), 0.0
        for each in run(at):
            total = total + ops.sum(each * draw.standard_normal(each.shape).astype(kind))
        return total

    at = {"params": params, "x": x}
    return [*run(at), *tape.nested.flatten(tape.grad(loss)(at), "gradient")[0]]


def drawn(config: Any, tokens: int, kind: Any, scale: float = 1.0) -> tuple[Any, Any]:
    x = np.random.default_rng(1).standard_normal((2, tokens, 5)).astype(kind)
    params = attention.init(config, 2, dtype=kind)
    return params.replaced(W_qkv=params.W_qkv * kind(scale)), x


@pytest.mark.clause("ATTENTION-11", "ATTENTION-12")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_tiles_are_the_plain_twin_with_all_gradients(
    sizes: Any, kind: Any, packed: bool, used: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    window, tokens, persistent, d = sizes
    config = config_of(window, persistent, d, "halves" if packed else "interleaved")
    params, x = drawn(config, tokens + 5, kind)
    reset = np.isin(np.arange(tokens + 5), [2, 8, 40, 64, 65]) if packed else None
    got = results(config, params, x, 5, reset)
    assert used == [True] * len(used)
    assert len(used) == 6
    monkeypatch.setattr(engine, "block", lambda plain, *_: plain)
    want = results(config, params, x, 5, reset)
    tolerance = ANALYTIC if kind is np.float64 else reordered(64, dtype=np.float32)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == kind
        assert_close(str(i), a, b, tolerance)


@pytest.mark.clause("ATTENTION-2", "ATTENTION-11")
@pytest.mark.parametrize("scale", [30.0, 1e4])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_scores_far_apart_are_those_of_numpy(
    kind: Any, scale: float, used: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exponentials near the smallest number, and of those that are 0."""
    config = config_of(20, 2, 8, None)
    params, x = drawn(config, 60, kind, scale)
    got = results(config, params, x, 20)
    assert all(used)
    monkeypatch.setenv("ATLAS_REF_COMPILED", "0")
    want = results(config, params, x, 20)
    assert len(used) == 6
    amplification = scale * scale
    tolerance = reordered(8, dtype=kind, amplification=min(amplification, 1e3))
    for i, (a, b) in enumerate(zip(got[:3], want[:3], strict=True)):
        assert_close(str(i), a, b, tolerance)


@pytest.mark.clause("ATTENTION-10")
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_no_token_changes_a_bit_of_what_comes_before_it(kind: Any, used: list[bool]) -> None:
    config = config_of(20, 2, 8)
    params, x = drawn(config, 70, kind)
    state = attention.start(config, 2, dtype=kind)
    _, y = attention.apply(config, params, state, x)
    for t in (0, 15, 16, 33, 69):
        other = np.array(x)
        other[:, t] += 1.0
        _, changed = attention.apply(config, params, state, other)
        assert_close(str(t), changed[:, :t], y[:, :t], EXACT)
        assert not np.array_equal(changed[:, t], y[:, t])
    assert all(used)


@pytest.mark.clause("ATTENTION-11")
def test_threads_do_not_change_a_bit(used: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(20, 2, 8)
    params, x = drawn(config, 50, np.float32)
    several = {}
    for count in (1, 3):
        monkeypatch.setattr(tiles, "processors", lambda count=count: count)
        several[count] = results(config, params, x, 7)
    for i, (a, b) in enumerate(zip(several[1], several[3], strict=True)):
        assert_close(str(i), a, b, EXACT)
    assert all(used)


@pytest.mark.clause("ATTENTION-11")
def test_a_result_that_is_not_finite_is_recomputed_in_numpy_which_warns(used: list[bool]) -> None:
    config = config_of(20, 0, 8)
    params, x = drawn(config, 40, np.float32, 1e25)
    state = attention.start(config, 2, dtype=np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attention.apply(config, params, state, x)
    assert used == [False]
    assert {each.category for each in caught} == {RuntimeWarning}


@pytest.mark.clause("ATTENTION-11")
def test_complex_numbers_small_calls_and_a_switch_stay_with_numpy(
    used: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(4, 0, 4)
    params, x = drawn(config, 9, np.float64)
    state = attention.start(config, 2)
    attention.apply(config, params, state, x + 0j)
    monkeypatch.setattr(tiles, "WORK", 2**22)
    attention.apply(config, params, state, x)
    monkeypatch.setattr(tiles, "WORK", 0)
    monkeypatch.setattr(compiled, "wanted", lambda: False)
    attention.apply(config, params, state, x)
    assert used == []


@pytest.mark.clause("ATTENTION-12")
@pytest.mark.parametrize("window", [5, 20, 33])
def test_a_cotangent_of_another_precision_goes_back_in_numpy(
    window: int, used: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(window, 2, 8)
    params, x = drawn(config, 50, np.float32)
    state = attention.start(config, 2, dtype=np.float32)
    bar = np.random.default_rng(4).standard_normal(x.shape)

    def pulled() -> Any:
        call = attention.apply
        return tape.vjp(lambda x: call(config, params, state, x)[1], x)[1](bar)[0]

    got = pulled()
    assert used == [True, False]
    monkeypatch.setattr(engine, "block", lambda plain, *_: plain)
    assert_close("x", got, pulled(), reordered(16, dtype=np.float32))
