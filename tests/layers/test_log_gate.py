"""Log gates of a layer against plain loops, recorded gradients of public code, and their start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref.layers import log_gate
from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.truth import gate_formula_loops

H, K = 3, 4


def drawn(lower_bound: float | None) -> tuple[log_gate.Config, log_gate.Params, Any]:
    config = log_gate.Config(heads=H, d_head=K, lower_bound=lower_bound)
    draw = np.random.default_rng(1)
    params = log_gate.Params(
        log_rate=0.5 * draw.standard_normal(H), bias=draw.standard_normal((H, K))
    )
    return config, params, 2 * draw.standard_normal((2, 5, H, K))


@pytest.mark.clause("GATES-22")
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_gates_of_a_layer_are_their_definition_head_by_head(lower_bound: float | None) -> None:
    config, params, x = drawn(lower_bound)
    _, got = log_gate.apply(config, params, log_gate.start(config, 2), x)
    settings = {} if lower_bound is None else {"lower_bound": lower_bound}
    formula = "softplus" if lower_bound is None else "bounded"
    first = np.moveaxis(x, -2, -3)  # heads before tokens, as the loop has them
    want = gate_formula_loops.run(formula, first, params.log_rate, params.bias, **settings)
    assert_close("g", got, np.moveaxis(want.real, -3, -2), ANALYTIC)


@pytest.mark.clause("GATES-22")
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_a_call_may_be_cut_anywhere(lower_bound: float | None) -> None:
    config, params, x = drawn(lower_bound)
    state, whole = log_gate.apply(config, params, log_gate.start(config, 2), x)
    for cut in range(1, 5):
        state, one = log_gate.apply(config, params, log_gate.start(config, 2), x[:, :cut])
        _, other = log_gate.apply(config, params, state, x[:, cut:])
        assert_close("g", np.concatenate([one, other], axis=1), whole, EXACT)


@pytest.mark.clause("GATES-22")
def test_rates_and_step_sizes_start_within_their_ranges() -> None:
    config = log_gate.Config(heads=50, d_head=40)
    params = log_gate.init(config)
    rates, steps = np.exp(params.log_rate), np.logaddexp(0.0, params.bias)
    assert (rates.min() >= 1.0, rates.max() <= 16.0) == (True, True)
    assert (steps.min() >= 1e-3, steps.max() <= 0.1) == (True, True)
    assert 0.008 < np.exp(np.log(steps).mean()) < 0.0125  # the geometric mean is 1e-2
    _, g = log_gate.apply(config, params, log_gate.State(), np.zeros((1, 1, 50, 40)))
    assert_close("g", g[0, 0], -rates[:, None] * steps, ANALYTIC)
    bounded = log_gate.init(config.replaced(lower_bound=-5.0))
    assert not bounded.log_rate.any()
    assert_close("bias", bounded.bias, params.bias, EXACT)


@pytest.mark.clause("GATES-22")
def test_what_does_not_fit_is_refused() -> None:
    config, params, x = drawn(None)
    with pytest.raises(ValueError, match=r"x: shape \(2, 5, 3, 3\), expected \(..., T, 3, 4\)"):
        log_gate.apply(config, params, log_gate.State(), x[..., :3])
    with pytest.raises(ValueError, match="x: "):
        log_gate.apply(config, params, log_gate.State(), x.astype(int))
    with pytest.raises(ValidationError, match="lower_bound"):
        log_gate.Config(heads=H, d_head=K, lower_bound=0.0)
