"""Error buffers: the sum of the gradients of a frozen level's tokens, and when it is too large."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.levels import block as cms
from atlas_ref.levels.buffers import Buffer, BufferWarning, add, buffers, norm
from atlas_ref.levels.pulse import Conductor
from tape import TapeError, ops
from tests.support.blocks import MIXED, block, drawn
from tests.support.close import EXACT, assert_close, reordered


def gradient(draw: np.random.Generator, scale: float = 1.0) -> dict[str, Any]:
    return {"W": scale * draw.standard_normal((8, 7)), "b": scale * draw.standard_normal(8)}


@pytest.mark.clause("CMS-11")
def test_what_is_applied_is_the_sum_of_all_since_the_last_time() -> None:
    draw = np.random.default_rng(0)
    conductor = Conductor(periods=(1, 4))
    held = list(buffers(conductor))
    waiting: list[list[dict[str, Any]]] = [[], []]
    for step in range(13):
        for level in (0, 1):
            now = gradient(draw)
            waiting[level].append(now)
            held[level], applied, _ = add(held[level], now, conductor.pulse, level)
            if step % (1, 4)[level]:
                assert applied is None
                assert held[level].count == len(waiting[level])
                continue
            for name in ("W", "b"):
                want = waiting[level][0][name]
                for each in waiting[level][1:]:
                    want = want + each[name]
                assert_close(f"step {step}, level {level}, {name}", applied[name], want, EXACT)
            assert (held[level].count, held[level].total) == (0, None)
            waiting[level] = []
        conductor = conductor.tick()


@pytest.mark.clause("CMS-11", "CMS-15", "PULSE-8")
def test_gradients_of_a_block_go_through_buffers_in_phase_build_alone() -> None:
    config = block(MIXED[:2])
    params, x, context = drawn(config)

    def loss(params: cms.Params) -> Any:
        _, y = cms.run(config, params, x, context)
        return ops.sum(y * y)

    found = tape.grad(loss)(params).levels[1]
    outer = Conductor(periods=(1, 2)).advanced(1)
    (buffer,) = buffers(Conductor(periods=(2,)))
    buffer, applied, _ = add(buffer, found, outer.pulse, 1)
    assert applied is None
    buffer, applied, health = add(buffer, found, outer.advanced().pulse, 1)
    assert_close("twice the gradient", applied.W_K, 2 * found.W_K, reordered(2))
    assert health.ratio == pytest.approx(2.0)
    for phase in ("test", "stream"):
        same, nothing, _ = add(buffer, found, outer.advanced().in_phase(phase).pulse, 1)  # type: ignore[arg-type]
        assert (same, nothing) == (buffer, None)


@pytest.mark.clause("CMS-12")
@pytest.mark.parametrize("period", [8, 64, 512])
def test_independent_gradients_make_the_square_root_of_the_period(period: int) -> None:
    conductor = Conductor(periods=(period,), first_step=1)
    (buffer,), draw = buffers(conductor), np.random.default_rng(period)
    for _ in range(period):
        buffer, applied, health = add(buffer, gradient(draw), conductor.pulse, 0)
        conductor = conductor.tick()
    assert applied is not None
    assert health.ratio == pytest.approx(math.sqrt(period), rel=0.35)
    assert health.bound == 10 * math.sqrt(period)
    assert health.healthy


@pytest.mark.clause("CMS-12")
@pytest.mark.parametrize("clip", [False, True])
def test_a_sum_beyond_its_bound_warns_and_is_clipped_if_asked(clip: bool) -> None:
    conductor = Conductor(periods=(4,), first_step=1)
    (buffer,) = buffers(conductor, clip=clip)
    large, small = {"W": np.full(3, 100.0)}, {"W": np.full(3, 1.0)}
    for _ in range(3):
        buffer, _, health = add(buffer, large, conductor.pulse, 0)
        assert health.healthy
        conductor = conductor.tick()
    with pytest.warns(
        BufferWarning,
        match=r"^level 0: the sum of 4 gradients is 301 times the last, healthy is 20$",
    ):
        buffer, applied, health = add(buffer, small, conductor.pulse, 0)
    assert health.ratio == pytest.approx(301.0)
    assert not health.healthy
    assert_close("applied", applied["W"], np.full(3, 20.0 if clip else 301.0), reordered(4))
    assert buffer.count == 0


@pytest.mark.clause("CMS-12")
def test_a_gradient_of_zero_has_no_scale_to_clip_to() -> None:
    conductor = Conductor(periods=(2,), first_step=1)
    (buffer,) = buffers(conductor, clip=True)
    nothing = {"W": np.zeros(2)}
    still, _, health = add(buffer, nothing, conductor.pulse, 0)
    assert health.ratio == 1.0
    held, _, _ = add(buffer, {"W": np.ones(2)}, conductor.pulse, 0)
    with pytest.warns(BufferWarning, match="is inf times the last"):
        _, applied, health = add(held, nothing, conductor.advanced().pulse, 0)
    assert health.ratio == math.inf
    assert applied["W"].tolist() == [1.0, 1.0]
    assert still.count == 1


@pytest.mark.clause("CMS-12")
def test_norms_neither_overflow_nor_vanish() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert norm({"a": np.array([3e200]), "b": np.array([4e200])}) == pytest.approx(5e200)
        assert norm({"a": np.array([3e-200]), "b": np.array([4e-200])}) == pytest.approx(5e-200)
    assert norm({"a": np.zeros(2)}) == 0.0
    assert norm({"a": np.array([3.0 + 0.0j]), "b": np.array([4.0j])}) == pytest.approx(5.0)


@pytest.mark.clause("CMS-11")
def test_a_buffer_keeps_no_array_of_the_caller() -> None:
    conductor, mine = Conductor(periods=(2,), first_step=1), np.ones(2)
    held, _, _ = add(Buffer(period=2), {"W": mine}, conductor.pulse, 0)
    mine[:] = 5.0
    _, applied, _ = add(held, {"W": mine}, conductor.advanced().pulse, 0)
    assert applied["W"].tolist() == [6.0, 6.0]


@pytest.mark.clause("CMS-11")
def test_gradients_of_another_shape_are_refused() -> None:
    pulse = Conductor(periods=(4,), first_step=1).pulse
    held, _, _ = add(Buffer(period=4), {"W": np.ones(2)}, pulse, 0)
    with pytest.raises(TapeError, match=r"gradient\['W'\] is missing"):
        add(held, {"V": np.ones(2)}, pulse, 0)
    # the first two and the last would be stretched to one shape
    for shape in (
        (1,),
        (3, 2),
        (3,),
        (),
    ):
        with pytest.raises(
            TapeError, match=r"gradient\['W'\]: shape .*, expected \(2,\) as before$"
        ):
            add(held, {"W": np.ones(shape)}, pulse, 0)
    for wrong in ({"period": 0}, {"threshold": 0.0}, {"count": -1}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            Buffer(**{"period": 2, **wrong})  # type: ignore[arg-type]
