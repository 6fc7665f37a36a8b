"""The streaming interface: `init`, `start`, `step`, and the contents of a state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.layers import projection
from atlas_ref.parts import feature_maps, window
from atlas_ref.rules import delta, hebbian, omega, sequence, titans_lmm
from atlas_ref.types import Pulse
from tape import ops
from tests.support.close import EXACT, assert_close, reordered

SIZES = {"d_in": 4, "d_out": 3, "d_model": 5, "heads": 2}
B, T = 2, 9

# it would hide the bias of the gates, which scales all weights alike
CONFIGS: dict[str, tuple[Any, Any]] = {
    "omega": (omega, omega.Config(**SIZES, window=3)),
    "omega without newton_schulz": (
        omega,
        omega.Config(**SIZES, window=4, convention={"newton_schulz": "none"}),
    ),
    "omega with gates per dimension": (
        omega,
        omega.Config(**SIZES, window=2, per_dimension_gates=True),
    ),
    "omega with token gates": (
        omega,
        omega.Config(
            **SIZES, window=3, window_weights=window.Gate(), convention={"newton_schulz": "none"}
        ),
    ),
    "omega with decayed token gates": (
        omega,
        omega.Config(
            **SIZES,
            window=3,
            window_weights=window.Product(of=(window.Decay(base=0.8), window.Gate())),
            convention={"newton_schulz": "none"},
        ),
    ),
    "omega with learned lags": (
        omega,
        omega.Config(**SIZES, window=3, window_weights=window.Softmax()),
    ),
    "omega with a polynomial map": (
        omega,
        omega.Config(**SIZES, window=2, feature_map=feature_maps.Polynomial(degree=2)),
    ),
    "omega with random features": (
        omega,
        omega.Config(**SIZES, window=2, feature_map=feature_maps.RandomFourier(), features=6),
    ),
    "omega with carried residuals": (
        omega,
        omega.Config(
            **SIZES,
            window=3,
            span=2,
            convention={"reference": "chunk_start", "window_at_boundary": "carry"},
        ),
    ),
    "omega, momentum before window": (
        omega,
        omega.Config(**SIZES, window=3, convention={"order": "momentum_then_window"}),
    ),
    "omega, renormalised edge": (
        omega,
        omega.Config(**SIZES, window=4, convention={"window_edge": "renormalise"}),
    ),
    "titans_lmm": (titans_lmm, titans_lmm.Config(**SIZES)),
    "titans_lmm in spans": (
        titans_lmm,
        titans_lmm.Config(
            **SIZES,
            span=4,
            convention={
                "preset": "titans-paper",
                "reference": "chunk_start",
                "read": "chunk_start",
            },
        ),
    ),
    "delta": (delta, delta.Config(**SIZES)),
    "gated delta": (delta, delta.Config(**SIZES, convention="fla-gated-delta")),
    "hebbian": (hebbian, hebbian.Config(**SIZES)),
}
every = pytest.mark.parametrize(("rule", "config"), CONFIGS.values(), ids=CONFIGS.keys())


def tokens() -> Any:
    return np.random.default_rng(3).standard_normal((B, T, SIZES["d_model"]))


@every
@pytest.mark.clause("CONV-38", "OMEGA-2", "OMEGA-28")
def test_steps_one_by_one_equal_one_run(rule: Any, config: Any) -> None:
    params, x = projection.init(config, seed=1), tokens()
    active = np.arange(T) % 3 != 1
    whole, want = projection.run_tokens(
        rule.RULE, config, params, x, rule.start(config, (B, 2)), active=active
    )
    state, got = rule.start(config, (B, 2)), []
    for t in range(T):
        state, y = projection.step(
            config, params, state, x[:, t], Pulse(step=t, active=(bool(active[t]),))
        )
        got.append(y)
    assert_close("y", np.stack(got, axis=-2), want, reordered(T, amplification=1e5))
    assert_close("M", state.M, whole.M, reordered(T, amplification=1e5))


@every
@pytest.mark.clause("CONV-32")
def test_a_silent_step_leaves_the_memory_bit_identical(rule: Any, config: Any) -> None:
    params, x = projection.init(config, seed=1), tokens()
    state, _ = projection.run_tokens(rule.RULE, config, params, x, rule.start(config, (B, 2)))
    after, y = projection.step(config, params, state, x[:, 0], Pulse(active=(False,)))
    assert_close("M", after.M, state.M, EXACT)
    assert y.shape == (B, 2, 3)


@pytest.mark.sample(4)
@every
@pytest.mark.clause("TAPE-17", "OMEGA-27")
def test_every_parameter_has_a_gradient_equal_to_the_complex_step(rule: Any, config: Any) -> None:
    params, x = projection.init(config, seed=1), tokens()[:1, :5]

    def loss(p: Any) -> Any:
        return ops.sum(
            ops.tanh(projection.run_tokens(rule.RULE, config, p, x, rule.start(config, (1, 2)))[1])
        )

    # Newton-Schulz multiplies rounding by up to 485 per token
    tape.check.check_gradient(loss, params, tolerance=1e-9)


@every
def test_the_state_given_in_is_not_changed(rule: Any, config: Any) -> None:
    params, x = projection.init(config, seed=1), tokens()
    state = rule.start(config, (B, 2))
    state, _ = projection.step(config, params, state, x[:, 0], Pulse())
    before = {
        name: np.copy(value)
        for name, value in state.__dict__.items()
        if isinstance(value, np.ndarray)
    }
    projection.run_tokens(rule.RULE, config, params, x, state)
    for name, value in before.items():
        assert_close(name, getattr(state, name), value, EXACT)


@every
def test_the_same_seed_gives_the_same_parameters(rule: Any, config: Any) -> None:
    assert projection.init(config, seed=7) == projection.init(config, seed=7)
    assert projection.init(config, seed=7) != projection.init(config, seed=8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: omega.Config(d_in=4, d_out=3, convention={"reference": "chunk_start"}),
            "span: missing, reference chunk_start needs one",
        ),
        (lambda: omega.Config(d_in=0, d_out=3), "greater than or equal to 1"),
        (
            lambda: omega.Config(d_in=4, d_out=3, convention="nonsense"),
            "preset 'nonsense' does not exist",
        ),
        (
            lambda: delta.Config(d_in=4, d_out=3, convention={"newton_schulz": {}}),
            "newton_schulz is not part of delta",
        ),
        (lambda: titans_lmm.Config(d_in=4, d_out=3, window=2), "Extra inputs are not permitted"),
        (lambda: projection.init(omega.Config(d_in=4, d_out=3), seed=0), "d_model is needed"),
        (
            lambda: omega.Config(
                d_in=4,
                d_out=3,
                convention={
                    "order": "momentum_then_window",
                    "newton_schulz": {"argument": "written_back"},
                },
            ),
            "written_back is not defined for order momentum_then_window",
        ),
        (
            lambda: sequence.Tokens(
                k=np.ones((2, 4)), v=np.ones((2, 3)), q=np.ones((2, 4)), retain=np.full(2, 1.5)
            ),
            "retain: entries must be at most 1, found 1.5",
        ),
        (
            lambda: sequence.Tokens(k=np.ones((2, 4)), v=np.ones((3, 3)), q=np.ones((2, 4))),
            "v: shape (3, 3) makes T 3, but k makes it 2",
        ),
        (
            lambda: sequence.Tokens(
                k=np.ones((2, 4)), v=np.ones((2, 3)), q=np.ones((2, 4)), active=np.ones(2)
            ),
            "active: float64 of shape (2,), expected bool of shape (2,)",
        ),
        (
            lambda: omega.start(omega.Config(d_in=4, d_out=3), M=np.full((3, 4), np.nan)),
            "M: every entry must be finite",
        ),
        (lambda: omega.start(omega.Config(d_in=4, d_out=3), M=np.ones((4, 3))), "M: shape (4, 3)"),
        (lambda: delta.start(delta.Config(d_in=4, d_out=3), M=np.ones((4, 3))), "M: shape (4, 3)"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert message in str(caught.value)
