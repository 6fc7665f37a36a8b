"""The band of singular values that Newton-Schulz makes of a momentum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.optim import muon
from atlas_ref.optim.matrices import band, sides
from atlas_ref.parts.newton_schulz import NewtonSchulz

GAUSSIAN = np.random.default_rng(0).standard_normal((64, 48))


def of(**settings: Any) -> muon.Config:
    return muon.Config(rate=0.1, newton_schulz=NewtonSchulz(**settings))


@pytest.mark.clause("OPTIM-14")
@pytest.mark.parametrize("steps", [5, 10, 20, 50])
def test_the_quintic_never_gets_near_orthogonal_and_settles_in_a_band(steps: int) -> None:
    found = band(of(steps=steps), GAUSSIAN)
    assert found.distance > 0.1
    if steps >= 10:
        assert found.within(0.68, 1.14)
    assert not found.within(0.95, 1.05)


@pytest.mark.clause("OPTIM-14")
def test_the_cubic_gets_there_with_steps_enough() -> None:
    few, many = (band(of(coefficients="cubic", steps=steps), GAUSSIAN) for steps in (5, 30))
    assert few.distance > 0.1
    assert not few.within(0.9, 1.1)
    assert many.distance < 1e-9
    assert many.within(1 - 1e-9, 1 + 1e-9)


@pytest.mark.clause("OPTIM-12", "OPTIM-14")
def test_a_band_is_over_all_matrices_of_a_parameter() -> None:
    heads = np.stack([GAUSSIAN[:32], 1e-16 * GAUSSIAN[32:]])
    config = of(coefficients="cubic", steps=30, eps=1e-7)
    assert band(config, heads).low < 0.01  # a head whose momentum is below eps
    U = band(config.replaced(axes="rows"), heads)
    assert sides(heads.shape, "rows") == (64, 48)
    assert U.high == pytest.approx(1.0, abs=1e-9)
    with pytest.raises(ValueError, match=r"params\.momentum: shape \(64,\)"):
        band(config, GAUSSIAN[:, 0])


@pytest.mark.clause("OPTIM-14")
def test_distance_is_that_of_the_product() -> None:
    found = band(of(), GAUSSIAN)
    U = _quintic(GAUSSIAN)
    want = np.linalg.norm(U.T @ U - np.eye(48)) / np.sqrt(48)
    assert found.distance == pytest.approx(want, rel=1e-12)


def _quintic(x: Any) -> Any:
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        A = x @ x.T
        x = 3.4445 * x + (-4.7750 * A + 2.0315 * A @ A) @ x
    return x
