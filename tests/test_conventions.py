"""Conventions as data: axes, defaults, resolving, presets and messages; CONV-1, CONV-2 and
CONV-26.
"""

import numpy as np
import pytest

import atlas_ref
from atlas_ref.conventions import AXES, PRESETS, resolve
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.sequences import case, drawn, results, without

RULES = ("omega", "titans_lmm", "delta", "hebbian")

# every axis of CONV-4 to CONV-25: its default and its other words
VALUES = {
    "gate": ("retain", "forget", "none"),
    "decay": ("after_error", "before_error"),
    "gradient_scale": (1.0, 2.5, "2/d_out"),
    "rate": ("momentum", "memory", "both", "split", "none"),
    "momentum_sign": ("plus", "minus"),
    "momentum_kind": ("sum", "average", "delta_momentum"),
    "retain_bounds": ("none", (0.2, 0.8)),
    "step_bounds": ("none", (0.0, 2.0)),
    "memory_ceiling": ("none", 0.5),
    "direction": ("descent", "ascent"),
    "value_sign": ("minus", "plus"),
    "read": ("after", "before", "chunk_start", "call_end"),
    "reference": ("running", "chunk_start", "call_start", "zero"),
    "span_origin": ("first", "multiple"),
    "window_at_boundary": ("recompute", "carry", "cut"),
    "window_edge": ("truncate", "renormalise"),
    "order": ("window_then_momentum", "momentum_then_window"),
    "newton_schulz": ("none",),
    "query_scale": (1.0, "1/sqrt(d_in)"),
    "q_norm": ("none", "l2", "rms"),
    "k_norm": ("none", "l2", "rms"),
    "norm_place": ("before_phi", "after_phi"),
    "norm_eps": (1e-6, 1e-8, 1.0),
    "norm_guard": ("root", "add", "clamp"),
    "layout": ("plain", "transposed"),
}
NEWTON_SCHULZ = {
    "coefficients": ("muon", "cubic", "polar_express"),
    "steps": (5, 1, 9),
    "eps": (1e-7, 0.0, 0.5),
    "norm_factor": (1.0, 0.5),
    "guard": ("add", "clamp", "return"),
    "transpose": ("tall", "never"),
    "scale": ("1", "sqrt", "norm"),
    "argument": ("S", "nesterov", "written_back", "accumulated"),
    "lower_bound": (1e-3, 0.2),
}
DEFAULTS = {key: values[0] for key, values in NEWTON_SCHULZ.items()}

TTL = {"rate": "memory", "gradient_scale": 2.0, "reference": "call_start", "read": "call_end"}
FLA = {
    "gate": "retain",
    "newton_schulz": "none",
    "layout": "transposed",
    "query_scale": "1/sqrt(d_in)",
}
STATED = {
    "spec": {},
    "atlas-paper": {"rate": "memory"},
    "atlas-table1": {"rate": "memory", "direction": "ascent"},
    "atlas-eq40": {
        "rate": "momentum",
        "momentum_sign": "minus",
        "gate": "none",
        "reference": "chunk_start",
    },
    "atlas-eq57": {"rate": "none", "momentum_sign": "minus"},
    "titans-paper": {"gate": "forget", "momentum_sign": "minus", "gradient_scale": 2.0},
    "ttl": TTL,
    "atlas-mag": {**TTL, "newton_schulz": {"guard": "return", "transpose": "never"}},
    "atlas-rnn": {
        "gate": "retain",
        "rate": "memory",
        "read": "before",
        "reference": "call_start",
        "window_at_boundary": "carry",
        "newton_schulz": "none",
    },
    "fla-delta": FLA,
    "fla-gated-delta": {**FLA, "decay": "before_error"},
    "fla-momentum-delta": {**FLA, "rate": "split"},
    "nl-hecate": {
        "gate": "forget",
        "momentum_sign": "minus",
        "q_norm": "l2",
        "k_norm": "l2",
        "norm_place": "before_phi",
    },
    "nl-hecate-clamp": {
        "gate": "forget",
        "momentum_sign": "minus",
        "q_norm": "l2",
        "k_norm": "l2",
        "norm_place": "before_phi",
        "norm_eps": 1e-8,
        "norm_guard": "clamp",
    },
}


def expected(stated, rule, level):
    """All axes of a preset, by the three steps of CONV-2."""
    axes = {axis: values[0] for axis, values in VALUES.items()}
    newton_schulz = stated.get("newton_schulz", {}) if rule == "omega" else "none"
    axes["newton_schulz"] = (
        newton_schulz if newton_schulz == "none" else {**DEFAULTS, **newton_schulz}
    )
    axes["rate"] = "both" if axes["newton_schulz"] != "none" else "momentum"
    axes["gate"] = "forget" if level == "token" and rule != "omega" else "retain"
    return axes | {axis: value for axis, value in stated.items() if axis != "newton_schulz"}


@pytest.mark.clause("CONV-1")
def test_a_convention_has_one_value_on_each_of_these_axes():
    assert set(AXES) == set(VALUES)
    assert set(resolve("spec", rule="omega").model_dump()["newton_schulz"]) == set(NEWTON_SCHULZ)


@pytest.mark.clause("CONV-1", "CONV-2", "CONV-4", "CONV-17", "CONV-26", "CONV-3")
@pytest.mark.parametrize("level", ["projected", "token"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("preset", STATED)
def test_a_preset_states_its_axes_and_the_rest_follows_from_the_rule(preset, rule, level):
    assert resolve(preset, rule=rule, level=level).model_dump() == expected(
        STATED[preset], rule, level
    )


@pytest.mark.clause("CONV-26")
def test_these_are_the_presets():
    assert set(PRESETS) == set(STATED)


@pytest.mark.clause("CONV-1")
def test_the_same_object_drives_evaluation():
    p, convention = drawn("delta"), {"gradient_scale": 2, "read": "before"}
    made = case("delta", p)
    under = atlas_ref.evaluate(made, convention=convention).tensors["out/y"]
    assert_close("y", under, results("delta", p, convention)["y"], EXACT)
    resolved = resolve(convention, rule="delta")
    assert resolve(resolved, rule="delta") is resolved


@pytest.mark.clause("CONV-2")
@pytest.mark.parametrize("preset", STATED)
def test_a_name_and_an_object_with_that_preset_are_the_same(preset):
    for rule in RULES:
        assert resolve(preset, rule=rule) == resolve({"preset": preset}, rule=rule)


@pytest.mark.clause("CONV-2")
@pytest.mark.parametrize(
    ("axis", "value"), [(axis, value) for axis, values in VALUES.items() for value in values]
)
def test_a_key_changes_its_axis_alone(axis, value):
    base = resolve({"preset": "atlas-paper", "newton_schulz": "none"}, rule="omega").model_dump()
    changed = resolve(
        {"preset": "atlas-paper", "newton_schulz": "none", axis: value}, rule="omega"
    ).model_dump()
    assert changed == base | {axis: value}


@pytest.mark.clause("CONV-2", "CONV-17")
@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in NEWTON_SCHULZ.items() for value in values]
)
def test_an_object_under_newton_schulz_takes_missing_keys_from_the_preset_then_from_the_first_values(
    key, value
):
    found = resolve(
        {"preset": "atlas-mag", "newton_schulz": {key: value}}, rule="omega"
    ).model_dump()["newton_schulz"]
    assert found == {**DEFAULTS, "guard": "return", "transpose": "never", key: value}
    found = resolve(
        {"preset": "atlas-rnn", "newton_schulz": {key: value}}, rule="omega"
    ).model_dump()["newton_schulz"]
    assert found == {**DEFAULTS, key: value}


@pytest.mark.clause("CONV-2", "CONV-7")
def test_what_a_preset_or_key_states_wins_over_the_rule():
    assert resolve("atlas-paper", rule="omega").rate == "memory"
    assert resolve({"rate": "momentum"}, rule="omega").rate == "momentum"
    assert resolve({"preset": "titans-paper"}, rule="omega", level="token").gate == "forget"
    assert resolve({"gate": "retain"}, rule="delta", level="token").gate == "retain"
    assert resolve({"newton_schulz": "none"}, rule="omega").rate == "momentum"
    assert resolve({"preset": "atlas-rnn", "newton_schulz": {}}, rule="omega").rate == "memory"


@pytest.mark.clause("CONV-2", "CONV-17")
@pytest.mark.parametrize("rule", ["titans_lmm", "delta", "hebbian"])
def test_newton_schulz_is_none_for_other_rules_whatever_the_preset_says_and_cannot_be_asked_for(
    rule,
):
    assert resolve("atlas-mag", rule=rule).newton_schulz == "none"
    for asked in ({"newton_schulz": {}}, resolve("spec", rule="omega")):
        with pytest.raises(
            ValueError, match=f"newton_schulz is not part of {rule}; only none is possible"
        ):
            resolve(asked, rule=rule)
    bare = resolve({"newton_schulz": "none"}, rule="omega")
    assert resolve(bare, rule=rule) is bare


@pytest.mark.clause("CONV-2")
def test_an_unknown_preset_or_axis_is_reported_with_the_legal_ones():
    with pytest.raises(
        ValueError, match="preset 'atlas' does not exist; presets are " + ", ".join(STATED)
    ):
        resolve("atlas", rule="omega")
    with pytest.raises(ValueError, match=f"axis 'sign' does not exist; axes are {', '.join(AXES)}"):
        resolve({"sign": "minus"}, rule="omega")


@pytest.mark.clause("CONV-2", "CONV-4", "CONV-7", "CONV-11", "CONV-12", "CONV-13", "CONV-25")
@pytest.mark.parametrize(
    "axis",
    [
        axis
        for axis, values in VALUES.items()
        if all(isinstance(each, str) for each in values) and axis != "newton_schulz"
    ],
)
@pytest.mark.parametrize(("bad", "shown"), [("sideways", "'sideways'"), (3, "3"), (True, "true")])
def test_an_unknown_value_is_reported_with_its_axis_and_the_legal_ones(axis, bad, shown):
    with pytest.raises(ValueError, match=f"convention: {axis}: ") as caught:
        resolve({axis: bad}, rule="omega")
    text = str(caught.value)
    for value in VALUES[axis]:
        assert f"'{value}'" in text
    assert f"found {'true' if bad is True else repr(bad)}" in text


@pytest.mark.clause("CONV-6", "CONV-23", "CONV-2")
@pytest.mark.parametrize("bad", ["2/d_in", float("nan"), float("inf"), None, True, [1]])
def test_a_gradient_scale_is_a_finite_number_or_its_word(bad):
    with pytest.raises(ValueError, match="gradient_scale"):
        resolve({"gradient_scale": bad}, rule="omega")
    with pytest.raises(ValueError, match="query_scale"):
        resolve({"query_scale": bad}, rule="omega")


@pytest.mark.clause("CONV-24", "CONV-2")
@pytest.mark.parametrize("bad", ["1e-6", 0.0, -1e-6, 9e-16, float("inf"), None, True])
def test_an_eps_of_a_norm_is_a_number_that_float32_holds(bad):
    with pytest.raises(ValueError, match="norm_eps"):
        resolve({"norm_eps": bad}, rule="omega")
    with pytest.raises(ValueError, match="norm_eps must be a finite number from 1e-15, found 0"):
        resolve({"norm_eps": 0}, rule="omega")
    assert resolve({"norm_eps": 1}, rule="omega").norm_eps == 1.0


@pytest.mark.clause("CONV-6")
def test_the_message_of_a_gradient_scale_names_what_is_legal():
    with pytest.raises(
        ValueError, match="gradient_scale must be a finite number or \"2/d_out\", found '2/d_in'"
    ):
        resolve({"gradient_scale": "2/d_in"}, rule="omega")


@pytest.mark.clause("CONV-23")
@pytest.mark.parametrize("bad", [0.5, 2, "1"])
def test_a_query_scale_is_one_or_its_word(bad):
    with pytest.raises(ValueError, match='query_scale must be 1 or "1/sqrt\\(d_in\\)", found'):
        resolve({"query_scale": bad}, rule="omega")


@pytest.mark.clause("CONV-17", "CONV-18", "CONV-19", "CONV-20", "CONV-21", "CONV-22", "CONV-2")
@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("coefficients", "quintic"),
        ("coefficients", []),
        ("coefficients", [[1.0, 2.0]]),
        ("coefficients", [[1.0, 2.0, "x"]]),
        ("coefficients", [[1.0, 2.0, float("inf")]]),
        ("steps", 0),
        ("steps", 2.5),
        ("eps", -1e-9),
        ("norm_factor", 0.0),
        ("guard", "none"),
        ("transpose", "wide"),
        ("scale", 1),
        ("argument", "M"),
        ("lower_bound", 0.0),
        ("lower_bound", 1.0),
        ("order", 5),
    ],
)
def test_a_bad_key_of_newton_schulz_is_named(key, bad):
    with pytest.raises(ValueError, match=f"convention: newton_schulz.*{key}"):
        resolve({"newton_schulz": {key: bad}}, rule="omega")
    for word in ("muon", 3, ["none"]):
        with pytest.raises(ValueError, match="convention: newton_schulz"):
            resolve({"newton_schulz": word}, rule="omega")


@pytest.mark.clause("CONV-2")
@pytest.mark.parametrize(("length", "shown"), [(58, repr("x" * 58)), (59, "'" + "x" * 56 + "...")])
def test_what_was_found_is_shown_up_to_sixty_characters(length, shown):
    with pytest.raises(ValueError, match="convention: read: ") as caught:
        resolve({"read": "x" * length}, rule="omega")
    assert str(caught.value).endswith(f", found {shown}")


@pytest.mark.clause("CONV-18")
def test_a_lower_bound_is_read_by_polar_express_alone():
    p = drawn(T=3)
    for name, differs in (("muon", False), ("polar_express", True)):
        y = [
            results("omega", p, {"newton_schulz": {"coefficients": name, "lower_bound": bound}})[
                "y"
            ]
            for bound in (1e-3, 0.3)
        ]
        if differs:
            assert_differs(name, y[1], y[0], 1e-3)
        else:
            assert_close(name, y[1], y[0], EXACT)


def cubic(S):
    X = S / np.linalg.norm(S)
    for _ in range(3):
        X = 1.5 * X - 0.5 * X @ X.T @ X
    return X


CUBIC = {"coefficients": "cubic", "steps": 3, "eps": 0.0}


@pytest.mark.clause("CONV-26")
@pytest.mark.parametrize(("preset", "sign"), [("atlas-paper", -1), ("atlas-table1", 1)])
def test_atlas_has_the_rate_outside_and_its_table_the_wrong_sign(preset, sign):
    p = drawn(window=3, seed=1)
    M, S = p["M0"], p["S0"]
    for t in range(6):
        pairs = [
            (p["window_weights"][t, j], p["k"][t - j], p["v"][t - j]) for j in range(min(3, t + 1))
        ]
        S = p["momentum"][t] * S + sum(w * np.outer(M @ k - v, k) for w, k, v in pairs)
        M = p["retain"][t] * M + sign * p["step_size"][t] * cubic(S)
    assert_close(
        "M",
        results("omega", p, {"preset": preset, "newton_schulz": CUBIC}, window=3)["M"],
        M,
        ANALYTIC,
    )


@pytest.mark.clause("CONV-26")
def test_atlas_eq40_is_frozen_and_never_decays_and_eq57_has_no_rate():
    p = without(drawn(seed=2), "retain")
    M, S, start = p["M0"], p["S0"], p["M0"]
    for t in range(6):
        start = M if t % 2 == 0 else start
        S = p["momentum"][t] * S - p["step_size"][t] * np.outer(
            start @ p["k"][t] - p["v"][t], p["k"][t]
        )
        M = M + cubic(S)
    assert_close(
        "eq40",
        results("omega", p, {"preset": "atlas-eq40", "newton_schulz": CUBIC}, span=2)["M"],
        M,
        ANALYTIC,
    )
    p = without(drawn(window=2, seed=2), "step_size")
    M, S = p["M0"], p["S0"]
    for t in range(6):
        lags = range(min(2, t + 1))
        S = p["momentum"][t] * S - sum(
            p["window_weights"][t, j] * np.outer(M @ p["k"][t - j] - p["v"][t - j], p["k"][t - j])
            for j in lags
        )
        M = p["retain"][t] * M + cubic(S)
    assert_close(
        "eq57",
        results("omega", p, {"preset": "atlas-eq57", "newton_schulz": CUBIC}, window=2)["M"],
        M,
        ANALYTIC,
    )


@pytest.mark.clause("CONV-26")
def test_ttl_freezes_the_call_and_reads_its_end():
    p = drawn(seed=3)
    M, S = p["M0"], p["S0"]
    for t in range(6):
        S = p["momentum"][t] * S + 2 * np.outer(p["M0"] @ p["k"][t] - p["v"][t], p["k"][t])
        M = p["retain"][t] * M - p["step_size"][t] * cubic(S)
    found = results("omega", p, {"preset": "ttl", "newton_schulz": CUBIC})
    assert_close("M", found["M"], M, ANALYTIC)
    assert_close("y", found["y"], p["q"] @ M.T, ANALYTIC)


@pytest.mark.clause("CONV-26")
def test_atlas_rnn_is_frozen_over_the_call_and_reads_before_it_writes():
    p = drawn(window=3, seed=4)
    M, S, y = p["M0"], p["S0"], []
    for t in range(6):
        y.append(M @ p["q"][t])
        lags = range(min(3, t + 1))
        g = sum(
            p["window_weights"][t, j]
            * np.outer(p["M0"] @ p["k"][t - j] - p["v"][t - j], p["k"][t - j])
            for j in lags
        )
        S = p["momentum"][t] * S + g
        M = p["retain"][t] * M - p["step_size"][t] * S
    assert_close("y", results("omega", p, "atlas-rnn", window=3)["y"], np.array(y), ANALYTIC)


@pytest.mark.clause("CONV-26")
@pytest.mark.parametrize("preset", ["fla-delta", "fla-gated-delta"])
def test_the_fla_delta_rules_lie_transposed_and_scale_the_query(preset):
    p = drawn("delta", seed=5)
    if preset == "fla-delta":
        p["retain"] = np.ones(6)
    h, y = p["M0"].T, []  # d_in x d_out
    for t in range(6):
        h = p["retain"][t] * h
        h = h + p["step_size"][t] * np.outer(p["k"][t], p["v"][t] - h.T @ p["k"][t])
        y.append(h.T @ p["q"][t] / 2)
    found = results("delta", p | {"M0": p["M0"].T}, preset)
    assert_close("y", found["y"], np.array(y), ANALYTIC)
    assert_close("M", found["M"], h, ANALYTIC)


@pytest.mark.clause("CONV-26", "CONV-24")
@pytest.mark.parametrize(
    ("preset", "length"),
    [
        ("nl-hecate", lambda x: np.sqrt(x @ x + 1e-6)),
        ("nl-hecate-clamp", lambda x: max(np.sqrt(x @ x), 1e-8)),
    ],
)
def test_nl_hecate_normalises_keys_and_queries(preset, length):
    p = drawn("titans_lmm", seed=6)
    p["k"][2] *= 1e-9  # shorter than the eps
    M, S, y = p["M0"], p["S0"], []
    for t in range(6):
        k, q = (x / length(x) for x in (p["k"][t], p["q"][t]))
        S = p["momentum"][t] * S - p["step_size"][t] * np.outer(M @ k - p["v"][t], k)
        M = (1 - p["retain"][t]) * M + S
        y.append(M @ q)
    assert_close("y", results("titans_lmm", p, preset)["y"], np.array(y), ANALYTIC)
