"""Norms against plain loops, recorded results of public code, and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.layers import norm
from tape import ops
from tests.support.close import ANALYTIC, assert_close, reordered
from tests.support.layers import files, recorded
from tests.truth import layer_loops

RECORDED = files("rms_norm") + files("multihead_rms_norm")


def of_recording(name: str) -> Any:
    """The settings that public code has under this name."""
    settings, tensors = recorded(name)
    if name.startswith("mag"):
        return norm.Config(d=settings["dim"], **norm.PRESETS["atlas-mag"]), "weight"
    if "in/param/gamma" in tensors:
        heads, _, d = tensors["in/param/gamma"].shape
        return norm.Config(d=d, heads=heads, **norm.PRESETS["atlas-rnn head"]), "gamma"
    return norm.Config(d=tensors["in/x"].shape[-1], **norm.PRESETS["atlas-rnn"]), "weight"


@pytest.mark.clause("NORM-4", "NORM-5", "NORM-7", "NORM-8")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_norms_of_public_code_with_their_gradients(name: str) -> None:
    assert len(RECORDED) == 5
    file = recorded(name)
    config, key = of_recording(name)
    weight = file.tensors[f"in/param/{key}"]

    def run(at: Any) -> Any:
        shape = at["weight"].shape
        w = ops.reshape(at["weight"], (shape[0], shape[-1])) if len(shape) == 3 else at["weight"]
        return norm.apply(config, norm.Params(weight=w), norm.State(), at["x"])[1]

    at = {"weight": weight, "x": file.tensors["in/x"]}
    assert_close("y", run(at), file.tensors["out/y"], ANALYTIC)
    gradient = tape.grad(lambda at: ops.sum(run(at) * file.tensors["in/y_bar"]))(at)
    assert_close("x", gradient["x"], file.tensors["grad/x"], ANALYTIC)
    assert_close(key, gradient["weight"], file.tensors[f"grad/param/{key}"], ANALYTIC)


@pytest.mark.clause("NORM-1", "NORM-4", "NORM-5", "NORM-7")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("guard", ["add", "clamp"])
@pytest.mark.parametrize("kind", ["rms", "layer", "l2", "none"])
def test_a_norm_is_its_definition_in_loops(kind: Any, guard: Any, weighted: bool) -> None:
    if guard == "clamp" and kind in ("layer", "none"):
        with pytest.raises(ValidationError, match="guard: clamp belongs to kind rms or l2"):
            norm.Config(kind=kind, d=5, eps=None if kind == "none" else 0.7, guard=guard)
        return
    eps = None if kind == "none" else 0.7
    config = norm.Config(kind=kind, d=5, heads=2, eps=eps, guard=guard, weighted=weighted)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((3, 2, 4, 5)) * draw.choice([0.1, 1.0], (3, 2, 4, 1))
    params = norm.init(config)
    params = params.replaced(
        **{n: draw.standard_normal((2, 5)) for n, w in params.__dict__.items() if w is not None}
    )
    _, y = norm.apply(config, params, norm.start(config), x)
    for h in range(2):
        each = [None if w is None else w[h] for w in (params.weight, params.bias)]
        want = layer_loops.norms(x[:, h], kind, eps, guard, *each)
        assert_close(f"head {h}", y[:, h], want, ANALYTIC)


@pytest.mark.clause("NORM-5")
@pytest.mark.host("the size of an epsilon")
def test_machine_eps_depends_on_the_dtype_and_a_number_does_not() -> None:
    x = np.full((1, 1, 8), 1e-3)
    config = norm.Config(d=8, kind="rms", eps="machine")
    ratios = {}
    for eps in ("machine", 1e-6):
        config = norm.Config(d=8, kind="rms", eps=eps)
        y64, y32 = (
            norm.apply(config, norm.init(config, dtype=kind), norm.State(), x.astype(kind))[1]
            for kind in (np.float64, np.float32)
        )
        ratios[eps] = float(y32[0, 0, 0]) / float(y64[0, 0, 0])
    # 1 / sqrt(1 + 1.19e-7 / 1e-6)
    assert ratios["machine"] == pytest.approx((1 + 0.11920929) ** -0.5, rel=1e-6)
    assert ratios[1e-6] == pytest.approx(1.0, rel=1e-6)


@pytest.mark.clause("NORM-4", "NORM-7")
def test_lengths_of_normed_keys() -> None:
    """A head norm makes the square of a length d, l2 makes it 1."""
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 64))
    head = norm.Config(d=64, heads=3, **norm.PRESETS["atlas-rnn head"])
    _, k = norm.apply(head, norm.init(head), norm.State(), x)
    assert_close("rms", np.sum(k * k, axis=-1), np.full((2, 3, 7), 64.0), reordered(64))
    l2 = norm.Config(d=64, heads=3, **norm.PRESETS["titans head"])
    _, u = norm.apply(l2, norm.init(l2), norm.State(), x)
    assert_close("l2", u * 8.0, k, reordered(1, amplification=1e8))


@pytest.mark.clause("NORM-6")
def test_below_the_clamp_the_divisor_is_a_constant() -> None:
    config = norm.Config(kind="rms", d=3, eps=1e-8, guard="clamp")
    x = np.array([[[0.0, 0.0, 0.0], [1e-9, -2e-9, 3e-9]]])
    bar = np.array([[[1.0, 2.0, 3.0], [1.0, 0.5, 2.0]]])
    params, state = norm.init(config), norm.State()
    gradient = tape.grad(lambda x: ops.sum(norm.apply(config, params, state, x)[1] * bar))(x)
    assert_close("gradient", gradient, bar / 1e-8, ANALYTIC)


@pytest.mark.clause("NORM-5")
@pytest.mark.host("numbers near the largest")
@pytest.mark.parametrize("kind", ["rms", "l2", "layer"])
def test_squares_that_would_overflow_do_not(kind: Any) -> None:
    x = np.array([[[3e200, -4e200, 1e200, 2e200], [3.0, -4.0, 1.0, 2.0]]])
    config = norm.Config(kind=kind, d=4, eps=1e-30)
    _, y = norm.apply(config, norm.init(config), norm.State(), x)
    assert_close(kind, y[0, 0], y[0, 1], ANALYTIC)


@pytest.mark.clause("NORM-1", "NORM-2")
def test_settings_and_parameters_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="eps: a number or machine is needed for kind rms"):
        norm.Config(kind="rms", d=3)
    with pytest.raises(ValidationError, match=r"eps: kind none has none, found 1e-06"):
        norm.Config(kind="none", d=3, eps=1e-6)
    with pytest.raises(ValidationError, match="greater than 0"):
        norm.Config(kind="rms", d=3, eps=0.0)
    rms = norm.Config(kind="rms", d=3, eps=1e-6)
    layer, x = norm.Config(kind="layer", d=3, eps=1e-5), np.ones((1, 2, 3))
    for config, params, says in (
        (rms, norm.Params(), "params.weight: missing, but kind rms, weighted True needs it"),
        (rms, norm.init(layer), "params.bias: present, but kind rms, weighted True has none"),
        (layer, norm.init(rms), "params.bias: missing"),
        (rms, norm.Params(weight=np.ones(4)), r"params.weight: shape \(4,\), expected \(3,\): d"),
    ):
        with pytest.raises(ValueError, match=says):
            norm.apply(config, params, norm.State(), x)
