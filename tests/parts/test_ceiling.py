"""The shortening of a matrix to a ceiling, whose derivative is stated (CONV-67)."""

import numpy as np
import pytest

from atlas_ref.parts import ceiling
from tape import grad, hvp, ops, vjp
from tests.support.close import ANALYTIC, EXACT, assert_close

DRAWN = np.random.default_rng(2).standard_normal((3, 2, 4))


@pytest.mark.clause("CONV-67")
@pytest.mark.parametrize("size", [1e-250, 1.0, 1e250])
def test_each_matrix_is_shortened_by_its_own_norm(size):
    M = DRAWN * np.array([0.1, 1.0, 30.0]).reshape(3, 1, 1) * size
    held = ceiling.held(M, size)
    lengths = [np.sqrt(sum((x / size) ** 2 for x in each.ravel())) for each in M]
    assert lengths[0] < 1.0 < min(lengths[1:])
    assert_close("below", held[0], M[0], EXACT)
    for i in (1, 2):
        assert_close("beyond", held[i] / size, M[i] / size / lengths[i], ANALYTIC)


@pytest.mark.clause("CONV-67")
def test_a_matrix_of_zeros_stays_and_no_ceiling_is_no_op():
    zeros = np.zeros((2, 3))
    assert_close("zeros", ceiling.held(zeros, 0.5), zeros, EXACT)
    assert ceiling.held(DRAWN, "none") is DRAWN


@pytest.mark.clause("CONV-67")
def test_the_cotangent_of_a_shortened_matrix_is_that_of_the_matrix():
    bar = np.random.default_rng(3).standard_normal(DRAWN.shape)
    _, pull = vjp(lambda M: ceiling.held(M, 0.5), DRAWN)
    (back,) = pull(bar)
    assert_close("cotangent", back, bar, EXACT)


@pytest.mark.clause("CONV-67")
def test_a_complex_step_and_a_second_derivative_pass_straight_through_too():
    step = 1e-30 * np.random.default_rng(4).standard_normal(DRAWN.shape)
    held = ceiling.held(DRAWN + 1j * step, 0.5)
    assert_close("real", held.real, ceiling.held(DRAWN, 0.5), EXACT)
    assert_close("imaginary", held.imag, step, EXACT)

    def half_square(M):
        return 0.5 * ops.sum(ceiling.held(M, 0.5) ** 2)

    assert_close("gradient", grad(half_square)(DRAWN), ceiling.held(DRAWN, 0.5), ANALYTIC)
    direction = np.ones_like(DRAWN)
    assert_close("curvature", hvp(half_square)(DRAWN, direction), direction, ANALYTIC)


@pytest.mark.clause("CONV-67")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_dtype_stays(dtype):
    assert ceiling.held(DRAWN.astype(dtype), 0.5).dtype == dtype
