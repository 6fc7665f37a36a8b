"""The gated feed-forward against plain loops and recorded results of public code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.layers import feed_forward, norm
from tape import ops
from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.layers import files, recorded
from tests.truth import layer_loops

RECORDED = files("feed_forward")
#: Names of public code -> ours.
NAMES = {"1.weight": "W_in", "1.bias": "b_in", "3.weight": "W_out", "3.bias": "b_out"}


@pytest.mark.clause("FEED-1", "FEED-2", "FEED-6")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_feed_forwards_of_public_code_with_their_gradients(name: str) -> None:
    assert len(RECORDED) == 2
    file = recorded(name)
    D, mult = file.settings["dim"], file.settings["mult"]
    of_norm = norm.Config(d=D, **norm.PRESETS["atlas-rnn"])
    config = feed_forward.Config(
        d_model=D,
        d_inner=feed_forward.inner(D, mult),
        norm=of_norm,
        **feed_forward.PRESETS["atlas-rnn"],
    )
    theirs = file.named("in/param/")

    def run(at: Any) -> Any:
        params = feed_forward.Params(
            norm=norm.Params(weight=at["0.weight"]),
            **{ours: at[name] for name, ours in NAMES.items()},
        )
        return feed_forward.apply(config, params, feed_forward.State(), at["x"])[1]

    at = theirs | {"x": file.tensors["in/x"]}
    assert_close("y", run(at), file.tensors["out/y"], ANALYTIC)
    gradient = tape.grad(lambda at: ops.sum(run(at) * file.tensors["in/y_bar"]))(at)
    for key, want in (file.named("grad/param/") | {"x": file.tensors["grad/x"]}).items():
        assert_close(key, gradient[key], want, ANALYTIC)


@pytest.mark.clause("FEED-1", "FEED-2", "FEED-6")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", files("swiglu"))
def test_recorded_feed_forwards_whose_first_half_gates(name: str) -> None:
    file = recorded(name)
    D, n = file.settings["dim"], file.settings["hidden_dim"]
    assert feed_forward.inner(D, 2) == n
    config = feed_forward.Config(
        d_model=D,
        d_inner=n,
        norm=norm.Config(kind="none", d=D),
        **feed_forward.PRESETS["atlas-mag"],
    )

    def run(at: Any) -> Any:
        fused = file.settings["fused"]
        W_in = at["w12.weight"] if fused else ops.concatenate([at["w1.weight"], at["w2.weight"]])
        params = feed_forward.Params(norm=norm.Params(), W_in=W_in, W_out=at["w3.weight"])
        return feed_forward.apply(config, params, feed_forward.State(), at["x"])[1]

    at = file.named("in/param/") | {"x": file.tensors["in/x"]}
    assert_close("y", run(at), file.tensors["out/y"], ANALYTIC)
    gradient = tape.grad(lambda at: ops.sum(run(at) * file.tensors["in/y_bar"]))(at)
    for key, want in (file.named("grad/param/") | {"x": file.tensors["grad/x"]}).items():
        assert_close(key, gradient[key], want, ANALYTIC)


@pytest.mark.clause("FEED-1", "FEED-2", "FEED-3")
@pytest.mark.parametrize("gate_half", ["second", "first"])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_feed_forward_is_its_definition_in_loops(gate_half: Any, activation: Any) -> None:
    config = feed_forward.Config(
        d_model=5,
        d_inner=4,
        norm=norm.Config(kind="rms", d=5, eps=1e-3),
        gate_half=gate_half,
        activation=activation,
    )
    params = feed_forward.init(config, 1)
    draw = np.random.default_rng(1)
    params = params.replaced(norm=norm.Params(weight=draw.standard_normal(5)))
    x = draw.standard_normal((2, 3, 5))
    _, y = feed_forward.apply(config, params, feed_forward.start(config, 2), x)
    flat = {n: a for n, a in params.__dict__.items() if n != "norm"} | {
        "weight": params.norm.weight
    }
    assert_close("y", y, layer_loops.feed_forward(x, flat, gate_half, activation, 1e-3), ANALYTIC)
    other = config.replaced(gate_half="first" if gate_half == "second" else "second")
    _, changed = feed_forward.apply(other, params, feed_forward.State(), x)
    assert_differs("the other half", changed, y, 1e-2)
    rows = np.roll(np.arange(8), 4)  # exchanging the halves of W_in is the other axis
    swapped = params.replaced(W_in=params.W_in[rows], b_in=params.b_in[rows])
    assert_close(
        "exchanged", feed_forward.apply(other, swapped, feed_forward.State(), x)[1], y, ANALYTIC
    )


@pytest.mark.clause("FEED-2")
def test_the_inner_length_of_public_code() -> None:
    assert [feed_forward.inner(*each) for each in ((256, 4), (12, 1), (12, 4), (7, 4))] == [
        682,
        8,
        32,
        18,
    ]


@pytest.mark.clause("FEED-5")
@pytest.mark.host("a distribution")
def test_weights_and_biases_start_within_their_bounds() -> None:
    config = feed_forward.Config(
        d_model=64, d_inner=100, norm=norm.Config(kind="rms", d=64, eps=1e-6)
    )
    params = feed_forward.init(config, 2)
    for name, columns in (("W_in", 64), ("b_in", 64), ("W_out", 100), ("b_out", 100)):
        top = np.max(np.abs(getattr(params, name))) * np.sqrt(columns)
        assert 0.9 < top <= 1.0, name
        assert np.std(getattr(params, name)) * np.sqrt(3 * columns) == pytest.approx(1.0, abs=0.2)
    assert feed_forward.init(config, 2) == params
    assert feed_forward.init(config, 3) != params


@pytest.mark.clause("FEED-1", "NORM-2")
def test_parameters_and_settings_that_contradict_each_other_are_refused() -> None:
    rms = norm.Config(kind="rms", d=5, eps=1e-6)
    for of_norm in (rms.replaced(d=4), rms.replaced(heads=2)):
        with pytest.raises(ValidationError, match="expected a norm of tokens, d 5"):
            feed_forward.Config(d_model=5, d_inner=4, norm=of_norm)
    config = feed_forward.Config(d_model=5, d_inner=4, norm=rms)
    params, x = feed_forward.init(config), np.ones((1, 2, 5))
    for changed, says in (
        ({"b_in": None}, "params.b_in: missing, but bias True needs it"),
        ({"W_in": np.ones((6, 5))}, r"params.W_in: shape \(6, 5\), expected \(8, 5\): 2 d_inner"),
        ({"norm": norm.Params()}, "params.norm.weight: missing"),
    ):
        with pytest.raises(ValueError, match=says):
            feed_forward.apply(config, params.replaced(**changed), feed_forward.State(), x)
    bare = config.replaced(bias=False)
    with pytest.raises(ValueError, match=r"params.b_in: present, but bias False has none"):
        feed_forward.apply(bare, params, feed_forward.State(), x)
