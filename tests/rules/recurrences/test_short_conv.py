"""The short convolution: other hands, the complex step, cuts, windows, masks, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

import tape
from atlas_ref.layers import convolution
from atlas_ref.rules.recurrences import short_conv
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.truth import recurrence_loops

B, T, D = 2, 9, 3
MASKS = {
    "active": np.array([1, 0, 1, 1, 0, 1, 1, 1, 1], bool),
    "reset": np.array([0, 0, 0, 1, 0, 0, 0, 1, 0], bool),
}
SETTINGS = [
    {},
    {"activation": "silu"},
    {"columns": "W", "activation": "silu"},
    {"reset_to": "first"},
    {"reset_to": "first", "columns": "W"},
]


def drawn(W: int = 4, *, seed: int = 0, columns: str = "W-1", **changes: Any) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    shapes = {
        "x": (B, T, D),
        "w": (B, D, W),
        "bias": (B, D),
        "window": (B, D, W if columns == "W" else W - 1),
    }
    return {name: draw.standard_normal(shape) for name, shape in shapes.items()} | changes


def computed(x: dict[str, Any], **settings: Any) -> dict[str, Any]:
    config = short_conv.Config(**settings)
    tokens = short_conv.Tokens(**{name: z for name, z in x.items() if name != "window"})
    first = short_conv.start(config, tokens, window=x.get("window"))
    state, y = short_conv.run(config, tokens, first)
    return {"y": y, "window": state.window}


@pytest.mark.clause("SHORT-1", "SHORT-2", "SHORT-3")
@pytest.mark.parametrize("masks", [{}, MASKS], ids=["all", "masks"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("W", [2, 3, 5, 12])
def test_it_is_its_literal_loop(W, settings, masks):
    x = drawn(W, columns=settings.get("columns", "W-1"), **masks)
    got = computed(x, **settings)
    for name, value in recurrence_loops.run("short_conv", x, **settings).items():
        assert_close(name, got[name], value, ANALYTIC)


@pytest.mark.clause("SHORT-1")
@pytest.mark.parametrize("W", [2, 4, 12])
def test_it_is_numpy_and_scipy_under_reversed_taps(W):
    """numpy's convolve of window and inputs, and a filter of scipy, whose taps are those of a
    convolution.
    """
    x = drawn(W)
    y = computed(x)["y"]
    for b in range(B):
        for c in range(D):
            row, taps = x["x"][b, :, c], x["w"][b, c, ::-1]
            whole = np.concatenate([x["window"][b, c], row])
            want = np.convolve(whole, taps, mode="valid") + x["bias"][b, c]
            assert_close("convolve", y[b, :, c], want, ANALYTIC)
            filtered = lfilter(taps, [1.0], whole)[W - 1 :] + x["bias"][b, c]
            assert_close("lfilter", y[b, :, c], filtered, ANALYTIC)
    wrong = computed(x | {"w": x["w"][..., ::-1]})["y"]
    assert_differs("y", wrong, y, 1e-3)


@pytest.mark.clause("SHORT-1", "CONVOLUTION-1")
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_convolution_of_layers_in_values_and_window(activation, bias):
    x = drawn(4)
    x = {name: z[0] if name in ("w", "bias") else z for name, z in x.items()}
    x = x if bias else {name: z for name, z in x.items() if name != "bias"}
    config = convolution.Config(d_model=D, kernel=4, activation=activation, bias=bias)
    params = convolution.Params(weight=x["w"], bias=x.get("bias"))
    tail = convolution.State(tail=x["window"].swapaxes(-1, -2).copy())
    state, y = convolution.apply(config, params, tail, x["x"])
    got = computed(x, activation=activation)
    assert_close("y", got["y"], y, ANALYTIC)
    assert_close("window", got["window"], state.tail.swapaxes(-1, -2), EXACT)


@pytest.mark.clause("SHORT-4")
@pytest.mark.parametrize("masks", [{}, MASKS], ids=["all", "masks"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_are_those_of_the_literal_loop_by_complex_step(settings, masks):
    """Along a direction of each input, of reads and of the last window together, each alone too."""
    x, draw = drawn(4, seed=3, columns=settings.get("columns", "W-1")), np.random.default_rng(4)
    bars = {name: draw.standard_normal(z.shape) for name, z in computed(x, **settings).items()}
    for weighed in (("y",), ("window",), ("y", "window")):

        def loss(results, weighed=weighed):
            return sum(ops.sum(bars[name] * results[name]) for name in weighed)

        own = tape.grad(lambda inputs, loss=loss: loss(computed({**inputs, **masks}, **settings)))(
            x
        )
        for name, value in x.items():
            along = draw.standard_normal(value.shape)
            moved = {**x, name: value + 1e-30j * along, **masks}
            found = loss(recurrence_loops.run("short_conv", moved, **settings))
            assert_close(name, np.sum(own[name] * along), np.imag(found) / 1e-30, ANALYTIC)


@pytest.mark.clause("SHORT-4")
def test_a_reset_lets_no_gradient_through():
    x = drawn(4, reset=np.arange(T) == 5)
    inputs = {name: z for name, z in x.items() if name != "reset"}

    def late(z):
        found = computed({**z, "reset": x["reset"]})
        return ops.sum(found["y"][:, 5:]) + ops.sum(found["window"])

    own = tape.grad(late)(inputs)
    assert not own["x"][:, :5].any()
    assert not own["window"].any()
    assert own["x"][:, 5:].all()


@pytest.mark.clause("SHORT-2")
@pytest.mark.parametrize("columns", ["W-1", "W"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_calls_of_any_size_give_the_bits_of_one(size, columns):
    """Also those that are shorter than the window, and with silent tokens."""
    x = drawn(5, columns=columns, active=MASKS["active"])
    whole, window, reads = computed(x, columns=columns), x["window"], []
    for t in range(0, T, size):
        own = x | {"x": x["x"][:, t : t + size], "active": x["active"][t : t + size]}
        found = computed(own | {"window": window}, columns=columns)
        window = found["window"]
        reads.append(found["y"])
    assert np.array_equal(np.concatenate(reads, axis=1), whole["y"])
    assert np.array_equal(window, whole["window"])


@pytest.mark.clause("SHORT-2")
def test_a_short_call_keeps_the_newest_of_the_old_inputs():
    x = drawn(5, x=drawn()["x"][:, :1])
    want = np.concatenate([x["window"][..., 1:], x["x"].swapaxes(-1, -2)], axis=-1)
    assert np.array_equal(computed(x)["window"], want)
    wide = x | {"window": np.concatenate([np.full((B, D, 1), 7.0), x["window"]], axis=-1)}
    got = computed(wide, columns="W")
    assert np.array_equal(got["y"], computed(x)["y"])  # the oldest of W columns is not read
    assert np.array_equal(got["window"][..., 1:], computed(x)["window"])


@pytest.mark.clause("SHORT-3")
def test_a_silent_token_is_not_there_and_a_reset_starts_from_zero():
    x = drawn(4)
    active, reset = MASKS["active"], MASKS["reset"]
    got = computed(x | {"active": active})
    without = computed(x | {"x": x["x"][:, active]})
    assert np.array_equal(got["y"][:, active], without["y"])
    assert np.array_equal(got["window"], without["window"])
    assert not got["y"][:, ~active].any()
    packed, zero = computed(x | {"reset": reset}), np.zeros_like(x["window"])
    for first, last, window in ((0, 3, x["window"]), (3, 7, zero), (7, 9, zero)):
        own = computed(x | {"x": x["x"][:, first:last], "window": window})
        assert np.array_equal(packed["y"][:, first:last], own["y"])
    assert np.array_equal(packed["window"], own["window"])
    again = computed(x | {"x": x["x"][:, 7:]})
    assert np.array_equal(computed(x | {"reset": reset}, reset_to="first")["y"][:, 7:], again["y"])


@pytest.mark.clause("SHORT-1")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"w": np.ones((2, 3, 1))}, "w: 1 tap, of which no window is left; 2 are needed"),
        ({"w": np.ones((2, 4, 4))}, r"w: shape \(2, 4, 4\), expected \(2, 3, 4\)"),
        ({"bias": np.ones(3)}, r"bias: shape \(3,\), expected \(2, 3\)"),
        ({"x": np.full((2, 9, 3), np.nan)}, "x: every entry must be finite"),
        ({"w": np.ones((2, 3, 4), np.float32)}, "w: float32, but x is float64"),
        ({"window": np.ones((2, 3, 4))}, r"window: shape \(2, 3, 4\), expected \(2, 3, 3\)"),
        ({"active": np.ones(9)}, r"active: float64, expected bool \(T,\)"),
    ],
)
def test_what_contradicts_is_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        computed(drawn() | changes)
