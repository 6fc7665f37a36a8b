"""The helper of the adapters: (B, T, H, D), packed sequences and grouped heads, to a case and
back.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from tests.support.casefiles import some
from tests.support.close import EXACT, assert_close, reordered

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"
sys.path.insert(0, str(ADAPTERS))
import layouts  # noqa: E402


@pytest.mark.parametrize("axes", [(), (3,), (2, 3), (2, 1, 3), (0,)])
def test_leading_axes_fold_and_unfold(axes):
    draw = np.random.default_rng(0)
    view = layouts.Leading.of({"k": np.zeros((*axes, 5, 4))})
    assert view.axes == axes
    for name, shape in (("k", (5, 4)), ("retain", (5,)), ("step_size", (5, 2)), ("M0", (2, 4))):
        x = draw.standard_normal((*axes, *shape))
        there = view.to_kernel(name, x)
        heads = axes[-1] if axes else 1
        assert there.shape[(1 if name == "M0" else 2)] == heads
        assert there.shape[(slice(2, None) if name == "M0" else slice(1, 2))] == (
            shape if name == "M0" else (5,)
        )
        assert_close(name, view.to_case(name, there), x, EXACT)
        assert_close(name, view.to_case(f"grad/{name}", there), x, EXACT)


def test_a_kernels_layout_has_time_before_heads():
    x = np.arange(24.0).reshape(2, 3, 4)  # heads, tokens, width
    there = layouts.Leading((2,)).to_kernel("k", x)
    assert there.shape == (1, 3, 2, 4)
    assert_close("token 1 of head 0", there[0, 1, 0], x[0, 1], EXACT)


@pytest.mark.parametrize("starts", [[0, 7], [0, 3, 7], [0, 1, 2, 7]])
def test_resets_and_cumulated_lengths_say_the_same(starts):
    reset = layouts.resets(np.array(starts))
    assert reset.dtype == np.uint8
    assert layouts.cu_seqlens(reset, 7).tolist() == starts
    assert layouts.cu_seqlens(None, 7).tolist() == [0, 7]
    assert layouts.cu_seqlens(np.array([1, 0, 0, 1, 0, 0, 0]), 7).tolist() == [0, 3, 7]


def drawn(kv_heads=4, heads=4, batch=1, tokens=7):
    draw = np.random.default_rng(1)
    gate = (batch, tokens, kv_heads)
    return {
        "q": draw.standard_normal((batch, tokens, heads, 3)),
        "k": draw.standard_normal((batch, tokens, kv_heads, 3)) / 2,
        "v": draw.standard_normal((batch, tokens, kv_heads, 2)),
        "retain": draw.uniform(0.8, 1, gate),
        "step_size": draw.uniform(0, 0.5, gate),
        "M0": draw.standard_normal((batch, kv_heads, 2, 3)),
        "y_bar": draw.standard_normal((batch, tokens, heads, 2)),
    }


def loop(arrays, starts):
    """The Delta rule for each head by itself, a head of k and v for several of q."""
    heads, shared = arrays["q"].shape[2], arrays["k"].shape[2]
    y = np.zeros((*arrays["q"].shape[:3], arrays["v"].shape[-1]))
    for b in range(y.shape[0]):
        for head in range(heads):
            g = head // (heads // shared)
            for first, last in itertools.pairwise(starts):
                M = arrays["M0"][b, g]
                for t in range(first, last):
                    k, v = arrays["k"][b, t, g], arrays["v"][b, t, g]
                    M = arrays["retain"][b, t, g] * M - arrays["step_size"][b, t, g] * np.outer(
                        M @ k - v, k
                    )
                    y[b, t, head] = M @ arrays["q"][b, t, head]
    return y


@pytest.mark.parametrize("starts", [[0, 7], [0, 3, 7]])
@pytest.mark.parametrize("shared", [4, 2, 1])
def test_a_kernels_arrays_become_a_case_with_the_same_results(shared, starts):
    arrays = drawn(shared)
    header, tensors, packed = layouts.to_case("delta", arrays, starts=np.array(starts), note="mine")
    case = atlas_ref.make(header, tensors)
    assert case.header.note == "mine"
    results = packed.back(atlas_ref.evaluate(case, grad=True).tensors)
    assert_close("y", results["out/y"], loop(arrays, starts), reordered(7 * 6))
    for name in ("q", "k", "v", "retain", "step_size"):
        assert results[f"grad/{name}"].shape == arrays[name].shape
    assert results["grad/M0"].shape == arrays["M0"].shape
    # the gradient by a head that several share, by a central difference
    for name in (
        "k",
        "retain",
        "M0",
    ):
        way = np.random.default_rng(2).standard_normal(arrays[name].shape)
        step = 1e-6
        sides = [
            (
                loop(arrays | {name: arrays[name] + sign * step * way}, starts) * arrays["y_bar"]
            ).sum()
            for sign in (1, -1)
        ]
        assert np.vdot(results[f"grad/{name}"], way) == pytest.approx(
            (sides[0] - sides[1]) / (2 * step), rel=1e-6
        )


def test_sequences_with_a_state_each_become_a_case_each():
    arrays, starts = drawn(), np.array([0, 3, 7])
    arrays["M0"] = np.random.default_rng(3).standard_normal((2, 4, 2, 3))
    each = layouts.sequences(arrays, starts)
    assert [x["q"].shape[1] for x in each] == [3, 4]
    for n, one in enumerate(each):
        header, tensors, packed = layouts.to_case("delta", one)
        results = packed.back(atlas_ref.evaluate(atlas_ref.make(header, tensors)).tensors)
        assert_close("y", results["out/y"], loop(one, [0, one["q"].shape[1]]), reordered(30))
        assert_close("M0", one["M0"], arrays["M0"][n : n + 1], EXACT)


def test_what_cannot_be_a_case_is_refused():
    with pytest.raises(ValueError, match=r"^k has 3 heads, which does not divide the 4 of q$"):
        layouts.to_case("delta", drawn() | {"k": np.zeros((1, 7, 3, 3))})
    with pytest.raises(ValueError, match=r"^packed sequences have batch 1, found 2$"):
        layouts.to_case("delta", drawn(batch=2), starts=np.array([0, 3, 7]))


def test_a_batch_without_packing_is_a_case_with_two_leading_axes():
    header, tensors, packed = layouts.to_case("delta", drawn(batch=2))
    assert tensors["in/k"].shape == (2, 4, 7, 3)
    assert "in/reset" not in tensors
    assert packed.back({"out/y": np.zeros((2, 4, 7, 2))})["out/y"].shape == (2, 7, 4, 2)
    assert atlas_ref.make(header, tensors).supported
    assert some("delta")[0]["rule"] == "delta"
