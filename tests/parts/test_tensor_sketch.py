"""Hashes, kernels in the mean and initial tensors of TensorSketch (PHI-18, PHI-19)."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import numpy as np
import pytest

from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import tensor_sketch
from atlas_ref.parts.feature_maps.tensor_sketch import TensorSketch
from atlas_ref.train.probes import limits
from atlas_ref.train.probes.capacity import Settings
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.clause("PHI-18")
def test_a_product_of_sketches_files_each_monomial_under_the_sum_of_its_buckets() -> None:
    x = np.array([2.0, 3.0, 5.0])
    hashes, signs, m = [[0, 3, 1], [2, 2, 3], [1, 0, 3]], [[1, -1, 1], [1, 1, -1], [-1, 1, 1]], 4
    H = np.zeros((3, m, 3))
    for n, i in itertools.product(range(3), range(3)):
        H[n, hashes[n][i], i] = signs[n][i]
    want = [np.zeros(m), np.zeros(m)]
    for i, j in itertools.product(range(3), repeat=2):
        pair = signs[0][i] * signs[1][j] * x[i] * x[j]
        want[0][(hashes[0][i] + hashes[1][j]) % m] += pair
        for k in range(3):
            bucket = (hashes[0][i] + hashes[1][j] + hashes[2][k]) % m
            want[1][bucket] += pair * signs[2][k] * x[k]
    p = {"c": np.array([7.0, 1.0, 1.0, 1.0]), "H": H, "proj": np.eye(1 + 3 + 2 * m)}
    got = feature_maps.apply(TensorSketch(degree=3), p, x)
    assert_close("degree 3", got, np.concatenate([[7.0], x, *want]), EXACT)
    p = {"c": p["c"][:3], "H": H[:2], "proj": np.eye(1 + 3 + m)}
    assert_close("degree 2", feature_maps.apply(TensorSketch(), p, x), got[: 1 + 3 + m], EXACT)


@pytest.mark.clause("PHI-18")
@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_two_fourier_transforms_compute_the_convolution(m: int) -> None:
    a, b = gaussian(3, 2, m), gaussian(3, 2, m, seed=1)
    want = np.fft.irfft(np.fft.rfft(a) * np.fft.rfft(b), n=m)
    assert_close("circular", tensor_sketch.circular(a, b), want, ANALYTIC)
    if m > 1:
        linear = np.array([np.convolve(u, v)[:m] for u, v in zip(a[0], b[0], strict=True)])
        assert_differs("cut off", linear, want[0], 0.1)


@pytest.mark.clause("PHI-19")
@pytest.mark.parametrize(("degree", "m"), [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2)])
def test_the_mean_over_all_hashes_is_the_polynomial_kernel(degree: Literal[2, 3], m: int) -> None:
    x, y, c = gaussian(2), gaussian(2, seed=1), np.array([0.5, 2.0, -1.5, 0.7])[: degree + 1]
    sketches = []
    for buckets in itertools.product(range(m), repeat=2):
        for signs in itertools.product((1.0, -1.0), repeat=2):
            one = np.zeros((m, 2))
            one[buckets[0], 0], one[buckets[1], 1] = signs
            sketches.append(one)
    proj, total = np.eye(1 + 2 + (degree - 1) * m), 0.0
    chosen = list(itertools.product(sketches, repeat=degree))
    for hashes in chosen:
        p = {"c": c, "H": np.array(hashes), "proj": proj}
        left, right = (feature_maps.apply(TensorSketch(degree=degree), p, each) for each in (x, y))
        total += left @ right
    u = x @ y
    want = sum(float(c[n]) ** 2 * u**n for n in range(degree + 1))
    assert_close("mean", total / len(chosen), want, reordered(len(chosen)))


@pytest.mark.clause("PHI-19")
def test_more_buckets_bring_one_draw_nearer_to_its_mean() -> None:
    x, y = gaussian(6) / 2, gaussian(6, seed=1) / 2
    squares = {}
    for m in (8, 512):
        errors = []
        for seed in range(60):
            p = feature_maps.init(TensorSketch(), 6, seed, features=m)
            p |= {"c": np.array([0.0, 0.0, 1.0]), "proj": np.eye(1 + 6 + m)}
            left, right = (feature_maps.apply(TensorSketch(), p, each) for each in (x, y))
            errors.append(left @ right - (x @ y) ** 2)
        squares[m] = float(np.mean(np.square(errors)))
    assert squares[512] < squares[8] / 16  # the variance falls as 1 / m, a factor of 64 here


@pytest.mark.clause("PHI-18")
@pytest.mark.parametrize("degree", [2, 3])
def test_initial_tensors_are_drawn_as_stated(degree: Literal[2, 3]) -> None:
    d, m = 400, 8
    p = feature_maps.init(TensorSketch(degree=degree), d, 3, features=m)
    assert_close("c", p["c"], np.array([1.0, 1.0, 0.5, 1 / 6])[: degree + 1], EXACT)
    assert p["H"].shape == (degree, m, d)
    assert_close("one entry a column", np.abs(p["H"]).sum(axis=1), np.ones((degree, d)), EXACT)
    assert set(np.unique(p["H"])) == {-1.0, 0.0, 1.0}
    filled = np.abs(p["H"]).sum(axis=(0, 2)) / (degree * d)
    assert np.abs(filled - 1 / m).max() < 5 * math.sqrt(1 / m / (degree * d))
    assert abs(p["H"].sum()) < 5 * math.sqrt(degree * d)
    for n in range(1, degree):
        assert_differs("sketches", p["H"][n], p["H"][0], 0.1)
    rows = 1 + d + (degree - 1) * m
    assert p["proj"].shape == (rows, m)
    assert np.std(p["proj"]) == pytest.approx(1 / math.sqrt(rows), rel=0.1)


@pytest.mark.clause("PHI-19")
def test_the_rank_stays_below_the_stated_bound_and_the_probe_refuses_to_state_it() -> None:
    keys = gaussian(200, 4)
    for m in (2, 5):
        p = feature_maps.init(TensorSketch(), 4, 0, features=m)
        wide = p | {"proj": gaussian(1 + 4 + m, 30)}
        rank = np.linalg.matrix_rank(feature_maps.apply(TensorSketch(), wide, keys))
        assert 5 < rank <= 1 + 4 + m
    with pytest.raises(ValueError, match="feature_map tensor_sketch: no rank is stated"):
        limits.rank(TensorSketch(), 4)
    least = Settings(memory="least_squares", d_k=4, d_v=3, feature_map=TensorSketch())
    assert limits.moments(least, 3) is None


@pytest.mark.clause("PHI-18")
@pytest.mark.parametrize(
    ("degree", "shapes", "message"),
    [
        (2, {"c": (3,), "H": (2, 5, 4)}, "proj: missing, axes .d_sketch d_phi. are needed"),
        (
            2,
            {"c": (4,), "H": (2, 5, 4), "proj": (10, 3)},
            r"c: shape .4,. makes d_terms 4, but degree \+ 1 makes it 3",
        ),
        (
            2,
            {"c": (3,), "H": (3, 5, 4), "proj": (10, 3)},
            "H: shape .3, 5, 4. makes d_hashes 3, but degree makes it 2",
        ),
        (
            3,
            {"c": (4,), "H": (3, 5, 4), "proj": (10, 3)},
            r"proj: shape .10, 3. makes d_sketch 10, but 1 \+ d_in \+ 2 d_buckets makes it 15",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    degree: Literal[2, 3], shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    given = {name: np.ones(shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=message):
        feature_maps.apply(TensorSketch(degree=degree), given, np.ones((2, 4)))
