"""Refusals before the first token, where rule, convention, tokens and state of a call contradict
each other.
"""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import numpy as np
import pytest

from atlas_ref import forms
from atlas_ref.conventions import Convention
from atlas_ref.layers import projection
from atlas_ref.parts.feature_maps import Linear
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import delta, hebbian, omega, sequence, titans_lmm
from atlas_ref.types import Pulse

T = 3


def call(
    rule: Any = omega,
    convention: Any = "atlas-paper",
    state: Any = None,
    config: Any = None,
    **changes: Any,
) -> Any:
    """A valid call of three tokens, but for the changes."""
    sizes = {"d_in": 4, "d_out": 2} | ({"window": 3} if rule is omega else {})
    stated = {"preset": convention, "gate": "retain"} if isinstance(convention, str) else convention
    config = config or rule.Config(**sizes, convention=stated)
    names = {"retain": 0.9, "step_size": 0.1} if rule is not hebbian else {"retain": 0.9}
    inputs: dict[str, Any] = {name: np.full(T, value) for name, value in names.items()}
    inputs |= {"k": np.ones((T, 4)), "v": np.ones((T, 2)), "q": np.ones((T, 4))} | changes
    tokens = sequence.Tokens(**{name: value for name, value in inputs.items() if value is not None})
    return sequence.run(rule.RULE, config, tokens, rule.start(config) if state is None else state)


def ones(*shape: int) -> Any:
    return np.ones(shape)


def memory(**axes: Any) -> omega.Config:
    """A configuration of the sizes that `call` has."""
    return omega.Config(d_in=4, d_out=2, window=3, convention={"preset": "atlas-paper", **axes})


CARRY, FIRST = (
    memory(reference="call_start", window_at_boundary="carry"),
    memory(order="momentum_then_window"),
)
PLAIN = omega.start(memory())  # stores pairs alone


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"convention": {"gate": "none"}},
        "retain: the rule omega under gate none, rate both has none",
    ),
    ({"retain": None}, "retain: missing, the rule omega under gate retain, rate memory needs it"),
    ({"step_size": None}, "step_size: missing"),
    (
        {"convention": {"rate": "none"}},
        "step_size: the rule omega under gate retain, rate none has none",
    ),
    ({"convention": {"rate": "split"}}, "step_size_memory: missing"),
    (
        {"step_size_memory": ones(T)},
        "step_size_memory: the rule omega under gate retain, rate memory has none",
    ),
    ({"rule": delta, "momentum": ones(T)}, "momentum: the rule delta"),
    ({"rule": hebbian, "step_size": ones(T)}, "step_size: the rule hebbian"),
    (
        {"rule": titans_lmm, "window_weights": ones(T, 1)},
        "window_weights: the rule titans_lmm looks at one token",
    ),
    (
        {"window_weights": ones(T, 1)},
        "window_weights: shape (3, 1), expected one weight for each of 3 lags",
    ),
    ({"v": ones(T, 3)}, "v: shape (3, 3), expected d_out = 2"),
    ({"k": ones(T, 5), "q": ones(T, 5)}, "k: shape (3, 5), expected d_in = 4"),
    (
        {"state": titans_lmm.start(titans_lmm.Config(d_in=4, d_out=2))},
        "state: the State of atlas_ref.rules.omega is needed",
    ),
    (
        {"state": omega.start(omega.Config(d_in=4, d_out=2, window=3), (2,))},
        "state.M: shape (2, 2, 4), expected (2, 4)",
    ),
    (
        {"state": omega.start(omega.Config(d_in=4, d_out=2, window=2))},
        "state.keys: shape (2, 4), expected one row for each of 3 window tokens",
    ),
    (
        {"state": omega.start(FIRST)},
        "state.momenta: stored, but order window_then_momentum has none",
    ),
    (
        {"config": FIRST, "state": PLAIN},
        "state.momenta: missing, but order momentum_then_window needs them",
    ),
    (
        {"state": omega.start(CARRY)},
        "state.residuals: stored, but window_at_boundary recompute, reference running has none",
    ),
    (
        {"config": CARRY, "state": PLAIN},
        "state.residuals: missing, but window_at_boundary carry, reference call_start needs them",
    ),
    ({"step_size": np.ones(T, np.float32)}, "step_size: float32, but k is float64"),
    (
        {"state": omega.start(omega.Config(d_in=4, d_out=2, window=3), dtype=np.float32)},
        "state.M: float32, but k is float64",
    ),
    (
        {
            "k": ones(0, 4),
            "v": ones(0, 2),
            "q": ones(0, 4),
            "retain": ones(0),
            "step_size": ones(0),
        },
        "has no token",
    ),
]


def test_the_call_that_the_others_change_is_valid() -> None:
    for rule in (omega, titans_lmm, delta, hebbian):
        assert call(rule, "spec" if rule is hebbian else "atlas-paper")[1].shape == (T, 2)


@pytest.mark.clause("GATES-2", "CONV-4", "CONV-7", "CONV-27")
@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_contradiction_is_refused_in_words(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(**changes)
    assert message in str(caught.value)


NO_RULE: list[tuple[Any, Any, str]] = [
    (
        omega,
        None,
        "rule: a Rule such as omega.RULE is needed, found atlas_ref.rules.omega; pass omega.RULE",
    ),
    ("omega", None, "rule: a Rule such as omega.RULE is needed, found str"),
    (None, None, "rule: a Rule such as omega.RULE is needed, found NoneType"),
    (omega.Config, None, "rule: a Rule such as omega.RULE is needed, found Config"),
    (
        omega.RULE,
        delta.Config(d_in=4, d_out=2),
        "config: the Config of atlas_ref.rules.omega is needed, found atlas_ref.rules.delta.Config",
    ),
    (
        omega.RULE,
        {"d_in": 4},
        "config: the Config of atlas_ref.rules.omega is needed, found builtins.dict",
    ),
]


@pytest.mark.parametrize(
    ("rule", "config", "message"), NO_RULE, ids=[message[-30:] for _, _, message in NO_RULE]
)
@pytest.mark.parametrize("form", [None, "sequential", "chunkwise", "exact"])
def test_what_is_no_rule_and_the_configuration_of_another_are_refused(
    rule: Any, config: Any, message: str, form: str | None
) -> None:
    config = memory() if config is None else config
    tokens = sequence.Tokens(
        k=ones(T, 4), v=ones(T, 2), q=ones(T, 4), retain=ones(T), step_size=ones(T)
    )
    drive = sequence.run if form is None else functools.partial(forms.run, form=form)
    with pytest.raises(ValueError) as caught:
        drive(rule, config, tokens, PLAIN)
    assert str(caught.value) == message


@pytest.mark.clause("CHUNK-1")
@pytest.mark.parametrize("form", ["sequential", "chunkwise", "atlas_parallel", "kernel"])
@pytest.mark.parametrize(
    ("config", "of"),
    [(CARRY, memory(reference="call_start")), (memory(reference="call_start"), CARRY)],
)
def test_no_form_goes_on_from_a_window_that_stores_something_else(
    form: str, config: Any, of: Any
) -> None:
    """A window of another convention, which a form would compute in place of its own."""
    tokens = sequence.Tokens(
        k=ones(T, 4), v=ones(T, 2), q=ones(T, 4), retain=ones(T), step_size=ones(T)
    )
    with pytest.raises(ValueError, match=r"^state.residuals: (missing|stored), but "):
        forms.run(omega.RULE, config, tokens, omega.start(of), form=form)


@pytest.mark.clause("CONV-28")
@pytest.mark.parametrize(
    ("config", "x", "message"),
    [
        ({"heads": 3}, (1, T, 5), "params: heads is 2, but 3 in the configuration"),
        ({"d_out": 4}, (1, T, 5), "params: d_out is 2, but 4"),
        ({}, (T, 5), "x: shape (3, 5), expected (batch, tokens, 5)"),
        ({}, (1, T, 6), "x: shape (1, 3, 6)"),
        (
            {"convention": {"rate": "split"}},
            (1, T, 5),
            "rate split has no second rate at level token",
        ),
    ],
)
def test_parameters_that_contradict_the_configuration_are_refused(
    config: Any, x: Any, message: str
) -> None:
    sizes = {"d_in": 4, "d_out": 2, "d_model": 5, "heads": 2, "window": 3}
    params = projection.init(omega.Config(**sizes), seed=0)
    wrong = omega.Config(**(sizes | config))
    with pytest.raises(ValueError) as caught:
        projection.run_tokens(omega.RULE, wrong, params, np.ones(x), omega.start(wrong, (1, 2)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: delta.Config(
                d_in=2, d_out=2, convention=Convention(newton_schulz=NewtonSchulz())
            ),
            "newton_schulz is not part of delta",
        ),
        (
            lambda: delta.Config(d_in=2, d_out=2, convention=3),
            "a preset's name, a mapping of axes or a Convention is needed, found 3",
        ),
        (
            lambda: omega.start(omega.Config(d_in=4, d_out=2), (7,), M=ones(2, 4)),
            "M: shape (2, 4), expected (7, 2, 4)",
        ),
        (
            lambda: omega.start(omega.Config(d_in=4, d_out=2), M=ones(2, 4), S=ones(3, 2, 4)),
            "S: shape (3, 2, 4), expected (2, 4)",
        ),
    ],
)
def test_a_start_that_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "rule", [omega, titans_lmm, delta, hebbian], ids=lambda rule: rule.__name__.rpartition(".")[2]
)
def test_a_start_of_zeros_has_a_floating_dtype_and_cannot_be_changed(rule: Any) -> None:
    config = rule.Config(d_in=4, d_out=2)
    for kind in (int, bool, object, "U3"):
        with pytest.raises(
            ValueError,
            match=f"dtype: a floating or complex dtype is needed, found {np.dtype(kind)}",
        ):
            rule.start(config, (2,), dtype=kind)
    state = rule.start(config, (2,), dtype=np.float32)
    held = [getattr(state, name) for name in ("M", "S") if hasattr(state, name)]
    assert all(x.dtype == np.float32 and not x.any() and not x.flags.writeable for x in held)


@pytest.mark.parametrize(
    "rule", [omega, titans_lmm, delta, hebbian], ids=lambda rule: rule.__name__.rpartition(".")[2]
)
def test_float32_parameters_tokens_and_state_stay_float32(rule: Any) -> None:
    config = rule.Config(d_in=4, d_out=2, d_model=5, heads=2)
    params = projection.init(config, seed=0, dtype=np.float32)
    x = np.ones((1, T, 5), np.float32)
    state, y = projection.run_tokens(
        rule.RULE, config, params, x, rule.start(config, (1, 2), dtype=np.float32)
    )
    assert {
        str(value.dtype) for value in state.__dict__.values() if isinstance(value, np.ndarray)
    } == {"float32"}
    assert y.dtype == np.float32


@pytest.mark.parametrize(
    "rule", [omega, titans_lmm, delta, hebbian], ids=lambda rule: rule.__name__.rpartition(".")[2]
)
def test_a_state_can_be_copied_and_pickled_and_not_written_to(rule: Any) -> None:
    config = rule.Config(d_in=4, d_out=2, d_model=5)
    state, _ = projection.step(
        config, projection.init(config, 0), rule.start(config, (1, 1)), np.ones((1, 5)), Pulse()
    )
    assert pickle.loads(pickle.dumps(state)) == state
    assert copy.deepcopy(state) == state
    with pytest.raises(ValueError, match="read-only"):
        state.M[...] = 0.0


def test_the_feature_map_is_not_drawn_from_the_stream_of_the_projections() -> None:
    params = projection.init(
        omega.Config(d_in=3, d_out=2, d_model=3, feature_map=Linear(), features=3), seed=0
    )
    assert not np.isclose(params.phi["W"], params.W_K[0]).any()


@pytest.mark.parametrize("form", ["sequential", "exact"])
def test_an_object_that_is_no_tokens_or_no_state_is_refused(form: str) -> None:
    config = delta.Config(d_in=4, d_out=2)
    tokens = sequence.Tokens(
        k=ones(T, 4), v=ones(T, 2), q=ones(T, 4), retain=ones(T), step_size=ones(T)
    )
    for wrong in (None, {}):
        with pytest.raises(ValueError, match="tokens: a Tokens is needed, found"):
            forms.run(delta.RULE, config, wrong, delta.start(config), form=form)
        with pytest.raises(ValueError, match=r"state: the State of .*delta is needed, found"):
            forms.run(delta.RULE, config, tokens, wrong, form=form)


def test_parameters_of_another_rule_are_refused_unless_only_momentum_is_missing() -> None:
    """A momentum gate may be absent (GATES-4); every other gate of a rule is needed."""
    sizes: dict[str, Any] = {"d_model": 6, "d_in": 4, "d_out": 2}
    config, x = delta.Config(**sizes), ones(1, T, 6)
    state = delta.start(config, leading=(1, 1))
    for wrong in (None, {}):
        with pytest.raises(ValueError, match=r"params: .*, expected layers\.projection\.Params"):
            projection.run_tokens(delta.RULE, config, wrong, x, state)
    params = projection.init(hebbian.Config(**sizes), seed=0)
    with pytest.raises(
        ValueError, match=r"params: gates\.step_size: missing, the rule delta needs"
    ):
        projection.run_tokens(delta.RULE, config, params, x, state)
    lmm = titans_lmm.Config(**sizes)
    params = projection.init(config, seed=0)
    projection.run_tokens(titans_lmm.RULE, lmm, params, x, titans_lmm.start(lmm, leading=(1, 1)))


WRONG_STARTS: list[tuple[Any, dict[str, Any], str]] = [
    (delta, {"config": None}, "config: the Config of .*delta is needed, found"),
    (delta, {"config": omega.Config(d_in=4, d_out=2)}, "found atlas_ref.rules.omega.Config"),
    (omega, {"config": delta.Config(d_in=4, d_out=2)}, "found atlas_ref.rules.delta.Config"),
    (titans_lmm, {"leading": 3}, "leading: 3, expected a tuple of sizes"),
    (hebbian, {"leading": (-1,)}, r"leading: \(-1,\), expected a tuple of sizes"),
    (hebbian, {"dtype": "nope"}, "dtype: a floating or complex dtype is needed, found 'nope'"),
    (omega, {"dtype": int}, "dtype: a floating or complex dtype is needed, found int64"),
]


@pytest.mark.parametrize(("rule", "change", "message"), WRONG_STARTS)
def test_a_start_says_what_it_needs(rule: Any, change: dict[str, Any], message: str) -> None:
    arguments = {"config": rule.Config(d_in=4, d_out=2), "leading": (2,)} | change
    with pytest.raises(ValueError, match=message):
        rule.start(**arguments)


@pytest.mark.parametrize("seed", ["a", 1.5, -1, None, True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    projection.init(delta.Config(d_in=4, d_out=2, d_model=6), seed=np.int64(3))
    with pytest.raises(ValueError, match=r"seed: .*, expected a whole number"):
        projection.init(delta.Config(d_in=4, d_out=2, d_model=6), seed=seed)
    with pytest.raises(ValueError, match="dtype: a floating or complex dtype"):
        projection.init(delta.Config(d_in=4, d_out=2, d_model=6), seed=0, dtype=int)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (None, "x: an array is needed, found NoneType"),
        (np.ones((1, T, 6), int), "x: a floating or complex dtype is needed"),
        (np.ones((1, T, 6), np.float32), "x: float32, but params are float64"),
        (np.full((1, T, 6), np.nan), "x: every entry must be finite"),
    ],
    ids=["none", "integers", "precision", "nan"],
)
def test_tokens_of_a_layer_are_checked_by_their_own_name(x: Any, message: str) -> None:
    config = delta.Config(d_in=4, d_out=2, d_model=6)
    params, state = projection.init(config, seed=0), delta.start(config, leading=(1, 1))
    with pytest.raises(ValueError, match=message):
        projection.run_tokens(delta.RULE, config, params, x, state)
    with pytest.raises(ValueError, match=r"rule: a Rule such as omega\.RULE is needed"):
        projection.run_tokens(delta, config, params, ones(1, T, 6), state)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_an_array_whose_products_differ_is_refused() -> None:
    row = np.ones((T, 4))
    for wrong in (np.asmatrix(row), np.ma.masked_array(row)):
        with pytest.raises(
            ValueError, match=f"k: a plain array is needed, found {type(wrong).__name__}"
        ):
            sequence.Tokens(k=wrong, v=ones(T, 2), q=ones(T, 4))


@pytest.mark.clause("CONV-11", "CONV-30")
def test_a_place_beyond_its_span_is_refused() -> None:
    config = delta.Config(d_in=4, d_out=2, span=3, convention={"reference": "chunk_start"})
    tokens = sequence.Tokens(
        k=ones(T, 4), v=ones(T, 2), q=ones(T, 4), retain=ones(T), step_size=ones(T)
    )
    state = delta.start(config).replaced(position=9)
    for form in ("sequential", "chunkwise"):
        with pytest.raises(ValueError, match=r"state\.position: 9, expected below span = 3"):
            forms.run(delta.RULE, config, tokens, state, form=form)


def test_a_window_holds_no_more_tokens_than_it_has_places() -> None:
    config = omega.Config(d_in=4, d_out=2, window=3, convention={"newton_schulz": "none"})
    tokens = sequence.Tokens(
        k=ones(T, 4),
        v=ones(T, 2),
        q=ones(T, 4),
        retain=ones(T),
        momentum=ones(T),
        step_size=ones(T),
    )
    with pytest.raises(ValueError, match=r"state\.filled: 9, expected at most 3"):
        forms.run(omega.RULE, config, tokens, omega.start(config).replaced(filled=9))


@pytest.mark.parametrize("form", ["sequential", "exact"])
def test_a_tensor_that_the_feature_map_does_not_have_is_refused(form: str) -> None:
    config = delta.Config(d_in=4, d_out=2, convention={"gate": "retain"})
    tokens = sequence.Tokens(
        k=ones(T, 4), v=ones(T, 2), q=ones(T, 4), retain=ones(T), step_size=ones(T)
    )
    with pytest.raises(ValueError, match="feature map identity: W: unknown, no tensor is needed"):
        forms.run(delta.RULE, config, tokens, delta.start(config), form=form, phi={"W": ones(4, 4)})


def _square(gates: dict[str, Any], **config: Any) -> Any:
    """A call of titans_lmm with a memory of 3 by 3."""
    own = titans_lmm.Config(d_in=3, d_out=3, convention={"gate": "retain"}, **config)
    plain = {"retain": ones(T), "momentum": ones(T), "step_size": ones(T)}
    tokens = sequence.Tokens(k=ones(T, 3), v=ones(T, 3), q=ones(T, 3), **{**plain, **gates})
    return forms.run(titans_lmm.RULE, own, tokens, titans_lmm.start(own), form="sequential")


@pytest.mark.clause("GATES-15")
@pytest.mark.parametrize("gate", ["retain", "momentum", "step_size"])
def test_a_gate_of_a_square_memory_has_two_readings_until_the_configuration_states_one(
    gate: str,
) -> None:
    words = (
        rf"{gate}: shape \(3, 3\) has two readings where M is 3 by 3: one gate per output dimension, "
        "which scales rows of M, or a gate per key channel, as of KDA, GLA and the rule dplr, which scales columns "
        r"of M; Config\(per_dimension_gates=True\) states the first, and the rule titans_lmm does not "
        "have the second"
    )
    with pytest.raises(ValueError, match=words):
        _square({gate: ones(T, 3)})
    _square({gate: ones(T, 3)}, per_dimension_gates=True)
    _square({})


@pytest.mark.clause("GATES-15")
def test_tokens_name_a_gate_per_key_channel_by_its_shape() -> None:
    words = r"retain: shape \(3, 4\) is a gate per key channel, as of KDA, GLA and the rule dplr, which scales columns"
    with pytest.raises(ValueError, match=words):
        call(retain=ones(T, 4))
