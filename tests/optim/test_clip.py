"""Clipping by the norm over all gradients, at any scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref.optim import clip
from tests.support.close import ANALYTIC, Elsewhere, assert_close, reordered
from tests.support.optimised import drawn


def by_hand(grads: dict[str, Any]) -> float:
    return math.sqrt(math.fsum(float(x) ** 2 for g in grads.values() for x in np.ravel(g)))


@pytest.mark.clause("OPTIM-23")
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_beyond_the_limit_all_are_scaled_alike(eps: float) -> None:
    grads, _ = drawn()
    norm = by_hand(grads)
    found, was = clip.clipped(clip.Config(limit=norm / 3, eps=eps), grads)
    assert was == pytest.approx(norm, rel=1e-14)
    for name, g in grads.items():
        assert_close(name, found[name], g * (norm / 3) / (norm + eps), ANALYTIC)
    if not eps:
        assert by_hand(found) == pytest.approx(norm / 3, rel=1e-14)


@pytest.mark.clause("OPTIM-23")
def test_eps_counts_where_the_norm_alone_is_within_the_limit() -> None:
    grads, _ = drawn()
    norm = by_hand(grads)
    found, _ = clip.clipped(clip.Config(limit=1.001 * norm, eps=norm), grads)
    for name, g in grads.items():
        assert_close(name, found[name], 1.001 / 2 * g, ANALYTIC)


@pytest.mark.clause("OPTIM-23")
@pytest.mark.host("arrays that are the same object")
def test_within_the_limit_they_are_the_same_arrays() -> None:
    grads, _ = drawn()
    found, _ = clip.clipped(clip.Config(limit=1.001 * by_hand(grads)), grads)
    assert all(found[name] is g for name, g in grads.items())


@pytest.mark.clause("OPTIM-23")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [-150, -37, -22, 0, 22, 37, 150])
def test_squares_neither_overflow_nor_vanish(exponent: int, dtype: Any) -> None:
    if dtype == np.float32 and abs(exponent) > 37:
        exponent = 37 if exponent > 0 else -37
    if dtype == np.float32 and Elsewhere.yes:
        exponent = max(exponent, -35)  # BACKEND-11: a GPU takes what is below 1e-38 for zero
    grads, _ = drawn(dtype=dtype)
    scaled = {name: g * dtype(10.0**exponent) for name, g in grads.items()}
    found, norm = clip.clipped(clip.Config(limit=1e-3), scaled)
    want = by_hand({name: g.astype(float) / 10.0**exponent for name, g in scaled.items()})
    assert_close("norm", norm / 10.0**exponent, want, reordered(40, dtype=dtype))
    assert {g.dtype for g in found.values()} == {np.dtype(dtype)}


@pytest.mark.clause("OPTIM-23")
def test_one_large_tensor_beside_a_tiny_one_and_none_at_all() -> None:
    mixed = {"a": np.array([3e200]), "b": np.array([4e200]), "c": np.array([1e-200, 0.0])}
    assert clip.norm_of(mixed) == pytest.approx(5e200, rel=1e-15)
    both = {"a": np.array([3.0], np.float32), "b": np.array([4.0])}
    assert clip.norm_of(both) == 5.0
    for nothing in ({}, {"a": np.zeros(3)}, {"a": np.zeros((0, 2))}):
        assert clip.norm_of(nothing) == 0.0


@pytest.mark.clause("OPTIM-23")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_named(bad: float) -> None:
    grads = {"a": np.ones(3), "b": np.array([[1.0, bad]])}
    with pytest.raises(ValueError, match=rf"grads\.b: every entry must be finite, found {bad}"):
        clip.clipped(clip.Config(limit=1.0), grads)


@pytest.mark.clause("OPTIM-23")
@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf])
def test_a_limit_is_above_0(limit: float) -> None:
    with pytest.raises(ValidationError, match="limit"):
        clip.Config(limit=limit)
