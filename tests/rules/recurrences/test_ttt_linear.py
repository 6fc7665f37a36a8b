"""A linear memory trained by mini-batches: its gradient, its step, and what a mini-batch is."""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.rules.recurrences import ttt_linear
from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.recurrences import computed, drawn, driven, started


@pytest.mark.clause("RECUR-11")
def test_the_gradient_is_the_derivative_of_the_loss_by_complex_step():
    draw = np.random.default_rng(1)
    z, target, gain, shift = (draw.standard_normal(4) for _ in range(4))

    def loss(z):
        centred = z - z.mean()
        hat = centred / np.sqrt((centred**2).mean() + 1e-6)
        return 0.5 * ((hat * gain + shift - target) ** 2).sum()

    got = ttt_linear.gradient(z, target, gain, shift, norm_eps=1e-6)
    want = [loss(z + 1e-30j * np.eye(4)[i]).imag / 1e-30 for i in range(4)]
    assert_close("gradient", got, np.array(want), ANALYTIC)


@pytest.mark.clause("RECUR-11")
def test_gradients_of_a_mini_batch_are_taken_at_its_first_memory():
    """A query of zeros reads the bias, which each token moves along the sum by its own step size."""
    x = drawn("ttt_linear", seed=2)
    x |= {"q": np.zeros_like(x["q"]), "shift": np.zeros_like(x["shift"])}
    u = [
        ttt_linear.gradient(
            (x["M"] @ x["k"][:, s, :, None])[..., 0] + x["bias"],
            x["v"][:, s] - x["k"][:, s],
            x["gain"],
            x["shift"],
            norm_eps=1e-6,
        )
        for s in range(2)
    ]
    bias = x["bias"] - x["step_size"][:, 1, None] * (u[0] + u[1])
    centred = bias - bias.mean(axis=-1, keepdims=True)
    hat = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    assert_close("y", computed("ttt_linear", x)["y"][:, 1], bias + hat * x["gain"], ANALYTIC)


@pytest.mark.clause("RECUR-11")
def test_another_mini_batch_another_eps_and_another_scale_are_other_results():
    x = drawn("ttt_linear", seed=3)
    own = computed("ttt_linear", x)["y"]
    assert_differs("mini_batch", computed("ttt_linear", x, mini_batch=3)["y"], own, 1e-3)
    assert_differs("norm_eps", computed("ttt_linear", x, norm_eps=0.1)["y"], own, 1e-3)
    assert_differs("query_scale", computed("ttt_linear", x, query_scale=1)["y"], own, 1e-3)
    assert_close("first", computed("ttt_linear", x, mini_batch=3)["y"][:, :2], own[:, :2], ANALYTIC)


@pytest.mark.clause("RECUR-11")
def test_a_step_of_zero_learns_nothing():
    x = drawn("ttt_linear", seed=4)
    got = computed("ttt_linear", x | {"step_size": np.zeros_like(x["step_size"])})
    for name in ("M", "bias"):
        assert_close(name, got[name], x[name], ANALYTIC)
        assert_differs(name, computed("ttt_linear", x)[name], x[name], 1e-3)


@pytest.mark.clause("RECUR-11")
def test_tokens_of_zeros_that_fill_a_short_mini_batch_move_the_bias_and_nothing_else():
    """So the last bias of code that pads is another one."""
    x = drawn("ttt_linear", seed=6)
    rows = ("k", "v", "q")
    padded = x | {name: np.concatenate([x[name], 0 * x[name][:, :1]], axis=1) for name in rows}
    padded["step_size"] = np.concatenate([x["step_size"], x["step_size"][:, -1:]], axis=1)
    got, want = computed("ttt_linear", padded), computed("ttt_linear", x)
    assert_close("y", got["y"][:, :-1], want["y"], ANALYTIC)
    assert_close("M", got["M"], want["M"], ANALYTIC)
    assert_differs("bias", got["bias"], want["bias"], 1e-2)


@pytest.mark.clause("RECUR-11")
def test_a_norm_that_heads_share_is_that_of_each():
    x = drawn("ttt_linear", seed=5)
    shared = {name: x[name][0] for name in ("gain", "shift")}
    each = {name: np.stack([value, value]) for name, value in shared.items()}
    want = computed("ttt_linear", x | each)
    for name, value in computed("ttt_linear", x | shared).items():
        assert_close(name, value, want[name], ANALYTIC)


@pytest.mark.clause("RECUR-1", "RECUR-11")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"v": np.ones((2, 5, 3))}, r"v: shape \(2, 5, 3\), expected \(2, 5, 4\)"),
        ({"gain": np.ones((2, 5))}, r"gain: shape \(2, 5\), expected \(2, 4\)"),
        ({"step_size": np.ones((2, 5, 1))}, r"step_size: shape \(2, 5, 1\), expected \(2, 5\)"),
        ({"shift": np.full(4, np.inf)}, "shift: every entry must be finite"),
        ({"bias": np.ones(4)}, r"bias: shape \(4,\), expected \(2, 4\)"),
    ],
)
def test_what_contradicts_is_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        computed("ttt_linear", drawn("ttt_linear") | changes)


@pytest.mark.clause("RECUR-1", "RECUR-11")
def test_a_state_of_more_tokens_than_a_mini_batch_is_refused():
    tokens, state = started("ttt_linear", drawn("ttt_linear"))
    after, _ = driven("ttt_linear", tokens, state, mini_batch=8)
    assert after.filled == 5
    with pytest.raises(ValueError, match=r"state\.filled: 5, expected at most mini_batch = 2"):
        driven("ttt_linear", tokens, after)
