"""Cases of rule dplr: recordings of public code, a literal loop, verdicts, refusals."""

import json

import jsonschema
import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import make, save
from atlas_ref.oracle.cases.features import features
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.deep import functions
from atlas_ref.oracle.dplr import members
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.schema.schema import case_schema
from atlas_ref.oracle.subjects.subject import Rounding
from tests.support import plain_loops
from tests.support.close import ANALYTIC, Tolerance, assert_close, assert_differs
from tests.support.linear_family import RECORDED

FILES = sorted(RECORDED.glob("*.safetensors"))
NAMES = (None, *members.MEMBERS)
ROUNDED = Tolerance("ROUNDED", 1e-13)


def drawn(member=None, **fields):
    parameters = fields.pop("parameters", {})
    chosen = parameters if member is None else {"member": member, **parameters}
    sizes = {"tokens": 5, "cotangent": True, "seed": 3}
    return new(Request(rule="dplr", draw=1, parameters=chosen, **sizes | fields))


def changed(case, drop=(), parameters=None, **tensors):
    """The case with other tensors, or other parameters."""
    header = case.header.plain()
    header["parameters"] = header.get("parameters", {}) if parameters is None else parameters
    kept = {name: value for name, value in case.inputs.items() if name not in drop}
    return make(header, kept | {f"in/{name}": value for name, value in tensors.items()})


def checked(case, results):
    """The verdict of each result that is handed over."""
    both = make(case.header.plain(), {**case.inputs, **results})
    return {each.tensor: each.verdict for each in atlas_ref.check(both)}


@pytest.mark.clause("DPLRCASE-1", "DPLRCASE-3", "DPLRCASE-8")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_outputs_states_and_gradients_of_every_recording_are_those_of_its_member(file):
    case = atlas_ref.load(file)
    verdicts = atlas_ref.check(case)
    assert {each.tensor for each in verdicts} == set(case.recorded)
    for each in verdicts:
        assert (each.verdict, each.tolerance) == ("PASS", 1e-12), each
    assert any(name.startswith("grad/") for name in case.recorded)


@pytest.mark.clause("DPLRCASE-8")
def test_a_recording_of_every_member_is_read_and_of_another_refused(tmp_path):
    assert {atlas_ref.load(file).header.parameters["member"] for file in FILES} == set(
        members.MEMBERS
    )
    header = {"schema": 1, "rule": "family", "parameters": {"member": "path_attn"}}
    save(tmp_path / "path.safetensors", header, {"in/k": np.ones((2, 3))})
    with pytest.raises(atlas_ref.CaseError, match=r"'path_attn' is no member of rule dplr or rec"):
        atlas_ref.load(tmp_path / "path.safetensors")


@pytest.mark.clause("DPLRCASE-1", "DPLRCASE-2", "DPLRCASE-4")
@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize("layout", ["(d_out, d_in)", "(d_in, d_out)"])
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_a_case_without_a_member_is_the_loop_that_the_clauses_print(decay, layout, logs):
    """Two steps a token, groups of two, norms, silent tokens, a reset, a gate of 0."""
    settings = {
        "steps": 2,
        "groups": 2,
        "decay": decay,
        "query_scale": "1/sqrt(d_in)",
        "k_norm": "l2",
        "norm_eps": 0.1,
        "state_layout": layout,
    }
    case = drawn(parameters=settings, pulse=2, reset=3)
    start = np.random.default_rng(4).standard_normal((4, 3, 4))
    gates = case.inputs["in/retain"].copy()
    gates[0, 1, 2] = 0.0
    M0 = start if layout == "(d_out, d_in)" else start.swapaxes(-1, -2)
    with np.errstate(divide="ignore"):
        gate = {"log_retain": np.log(gates)} if logs else {"retain": gates}
    case = changed(case, drop=("in/retain",), M0=M0, **gate)
    x, got = case.inputs, evaluate(case).tensors
    for h in range(4):
        M = start[h]
        for t in range(5):
            M = start[h] if x["in/reset"][t] else M
            for j in (2 * t, 2 * t + 1) if x["in/active"][t] else ():
                w = np.diag(gates[h, t]) if j == 2 * t else np.eye(4)
                k = x["in/k"][h // 2, j]
                k = k / np.sqrt(k @ k + 0.1)
                a, b = x["in/erase_read"][h, j], x["in/erase_write"][h, j]
                erased = M @ w @ np.outer(a, b) if decay == "before_error" else M @ np.outer(a, b)
                M = M @ w - erased + np.outer(x["in/v"][h, j], k)
            assert_close("y", got["out/y"][h, t], M @ x["in/q"][h // 2, t] / 2.0, ANALYTIC)
        last = got["out/M"][h]
        assert_close("M", last if layout == "(d_out, d_in)" else last.T, M, ANALYTIC)


@pytest.mark.clause("DPLRCASE-3", "DPLRCASE-6", "DPLR-8", "DPLR-19", "DPLR-20", "DPLR-21")
@pytest.mark.parametrize("member", NAMES)
def test_the_plain_loop_is_the_rule_in_values_and_tolerances_are_measured(member):
    plain_loops.assert_plain_loop(drawn(member), MEMBERS, ROUNDED)


@pytest.mark.clause("DPLRCASE-5", "DPLRCASE-7")
@pytest.mark.parametrize("member", NAMES)
def test_a_float32_kernel_passes_and_one_with_another_decay_does_not(member):
    case = drawn(member)
    ours = evaluate(case, grad=True, dtype="float32").tensors
    assert set(checked(case, ours).values()) == {"PASS"}
    wrong = dict(ours, **{"out/y": ours["out/y"] * 1.01})
    verdicts = checked(case, wrong)
    assert verdicts["out/y"] == "WRONG"
    assert {each for name, each in verdicts.items() if name != "out/y"} == {"PASS"}


@pytest.mark.clause("DPLRCASE-4", "DPLRCASE-5")
def test_gradients_are_their_differences_in_the_direction_of_every_input():
    case = drawn("kda", parameters={"groups": 2, "state_layout": "(d_in, d_out)"})
    logs = np.log(case.inputs["in/retain"])
    bar = np.random.default_rng(1).standard_normal((4, 4, 3))
    case = changed(case, drop=("in/retain",), log_retain=logs, M_bar=bar, M0=0.5 * bar)
    own = evaluate(case, grad=True).tensors

    def loss(name, x):
        got = evaluate(changed(case, **{name: x})).tensors
        return np.sum(got["out/y"] * case.inputs["in/y_bar"]) + np.sum(got["out/M"] * bar)

    for name in ("k", "v", "q", "beta", "log_retain", "M0"):
        x = case.inputs[f"in/{name}"]
        along = np.random.default_rng(2).standard_normal(x.shape)
        if name == "log_retain":
            along = -np.abs(along) * 1e-1  # stays below 0
        h = 1e-5
        slope = (loss(name, x + h * along) - loss(name, x - h * along)) / (2 * h)
        assert abs(slope - np.sum(own[f"grad/{name}"] * along)) < 1e-7 * max(abs(slope), 1.0)


@pytest.mark.clause("DPLRCASE-5")
def test_settings_without_effect_are_void_and_features_are_named():
    plain = drawn("gla", parameters={"decay": "before_error", "norm_eps": 0.5})
    assert plain.void == {
        "parameters.decay": "nothing is erased",
        "parameters.norm_eps": "there is no norm",
    }
    assert drawn("kda", parameters={"decay": "after_error"}).void == {}
    floored = drawn("precond_gated_delta", parameters={"norm_eps": 0.5})
    assert floored.void == {"parameters.norm_eps": "the norm has the floor 1e-12 instead"}
    delta = drawn("delta", parameters={"decay": "before_error"})
    assert delta.void == {"parameters.decay": "nothing decays"}
    full = changed(drawn(pulse=2, reset=3), M0=np.ones((2, 3, 4)))
    assert set(features(full)) == {"pulse", "reset", "heads", "rectangular", "state", "gradient"}


@pytest.mark.clause("DPLRCASE-2", "DPLRCASE-4")
@pytest.mark.parametrize(
    ("member", "change", "message"),
    [
        (None, {"parameters": {"step": 2}}, "parameters.step: the rule dplr has none"),
        (None, {"parameters": {"member": "gsa"}}, "parameters.member"),
        (
            "precond_kda",
            {"beta_precond": np.full((2, 5), -0.1)},
            "in/beta_precond: entries must be",
        ),
        ("precond_kda", {"A0": np.ones((2, 3))}, r"in/A0: shape \(2, 3\), expected \(2, 4\)"),
        ("kda", {"A0": np.ones((2, 4))}, "in/A0: unknown tensor for member kda"),
        ("linear_attn_normalized", {"z0": np.ones((2, 1, 4))}, r"in/z0: shape \(2, 1, 4\), exp"),
        ("momentum_delta", {"S0": np.ones((2, 4, 3))}, r"in/S0: shape \(2, 4, 3\), expected"),
        ("momentum_delta", {"beta": np.ones((2, 5, 3))}, r"in/beta: shape \(2, 5, 3\), expected"),
        (
            "momentum_delta",
            {"log_momentum": np.ones((2, 5))},
            "in/log_momentum: entries must be at",
        ),
        (None, {"parameters": {"steps": 2}}, "in/v: 5 rows, expected whole tokens"),
        ("kda", {"parameters": {"member": "kda", "groups": 3}}, "in/v: leading axes"),
        ("kda", {"drop": ("in/beta",)}, r"in/beta: missing, axes \(\.\.\. R"),
        ("kda", {"erase_read": np.ones((2, 5, 4))}, "in/erase_read: unknown tensor for member kda"),
        ("gla", {"log_retain": np.zeros((2, 5))}, "in/log_retain: stands in place of in/retain"),
        (None, {"drop": ("in/erase_read",)}, "in/erase_read: missing, an erase has both"),
        ("gla", {"retain": np.full((2, 5), 1.5)}, "in/retain: entries must be at most 1"),
        ("gla", {"retain": np.ones((2, 5, 3))}, r"in/retain: shape \(2, 5, 3\), expected"),
        ("gla", {"v": np.ones(5)}, r"in/v: shape \(5,\), axes"),
        (None, {"bonus": np.ones(4), "parameters": {"steps": 5}, "q": np.ones((2, 1, 4))}, "bonus"),
    ],
)
def test_what_a_case_does_not_have_is_refused_in_one_line(member, change, message):
    case = drawn(member, cotangent=False)
    if change.get("parameters", {}).get("steps") == 5:
        change = {**change, "drop": ("in/retain",)}
    with pytest.raises(atlas_ref.CaseError, match=message):
        changed(case, **change)


@pytest.mark.clause("DPLRCASE-4", "DPLR-20")
def test_several_steps_of_a_token_with_preconditioned_keys_are_refused():
    case = drawn("precond_kda", cotangent=False)
    wide = {n: np.repeat(case.inputs[f"in/{n}"], 2, axis=1) for n in ("k", "v", "beta")}
    with pytest.raises(atlas_ref.CaseError, match=r"parameters.steps: 2, but A of member precond_"):
        changed(case, parameters={"member": "precond_kda", "steps": 2}, **wide)


@pytest.mark.clause("DPLRCASE-4")
@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf])
def test_a_log_above_zero_or_without_a_number_is_refused(bad):
    case = drawn("gla")
    with pytest.raises(atlas_ref.CaseError, match="in/log_retain: entries must be"):
        changed(case, drop=("in/retain",), log_retain=np.full((2, 5), bad))


@pytest.mark.clause("DPLRCASE-2")
@pytest.mark.parametrize(
    ("key", "value"), [("window", 2), ("convention", "spec"), ("level", "token")]
)
def test_keys_of_other_rules_are_refused_by_the_reader_and_the_schema(key, value):
    fields = {**drawn("kda").header.plain(), key: value}
    with pytest.raises(atlas_ref.CaseError, match=f"^case: {key}: the rule dplr has"):
        make(fields, {})
    validator = jsonschema.Draft202012Validator(case_schema())
    assert not validator.is_valid(fields)
    assert validator.is_valid(drawn("kda").header.plain())
    assert not validator.is_valid({**drawn().header.plain(), "parameters": {"steps": 0}})
    assert set(case_schema()["x-dplr"]["members"]) == {"none", *members.MEMBERS}


@pytest.mark.clause("DPLRCASE-7")
def test_a_drawn_case_depends_on_its_member():
    kda, comba = drawn("kda"), drawn("comba_decay_after_erase")
    assert json.dumps(kda.header.plain()) == json.dumps(drawn("kda").header.plain())
    assert set(comba.inputs) - set(kda.inputs) == {"in/erase_key"}
    other = changed(kda, parameters={"member": "kda", "decay": "after_error"})
    assert_differs("y", evaluate(kda).tensors["out/y"], evaluate(other).tensors["out/y"], 1e-3)


@pytest.mark.clause("DPLRCASE-13")
@pytest.mark.parametrize("form", [{"form": "scan"}, {"form": "chunk", "chunk": 2}])
@pytest.mark.parametrize("member", [name for name in NAMES if name != "momentum_delta"])
def test_another_form_computes_the_case_and_says_so(member, form, tmp_path):
    case = drawn(member)
    case = changed(case, M0=np.random.default_rng(4).standard_normal((2, 3, 4)))
    found = evaluate(case, grad=True, **form)
    want = evaluate(case, grad=True).tensors
    for name, value in want.items():
        assert_close(name, found.tensors[name], value, ANALYTIC)
    save(tmp_path / "out.safetensors", found.header, {**case.inputs, **found.tensors})
    stated = atlas_ref.load(tmp_path / "out.safetensors")
    assert {stated.header.form, stated.header.chunk} == {form["form"], form.get("chunk")}
    assert {each.verdict for each in atlas_ref.check(stated, **form)} == {"PASS"}


@pytest.mark.clause("DPLRCASE-13", "DPLR-18")
@pytest.mark.parametrize("form", ["scan", "chunk"])
def test_a_form_that_does_not_compute_a_case_is_refused_with_the_reason(form):
    case = drawn("delta")
    rates = np.random.default_rng(4).uniform(0.1, 0.9, case.inputs["in/v"].shape)
    case = changed(case, beta=rates)
    with pytest.raises(atlas_ref.CaseError, match=f"form: {form} has one erase for all rows of M"):
        evaluate(case, form=form)
    with pytest.raises(atlas_ref.CaseError, match="form: 'exact', expected one of sequential, sc"):
        evaluate(case, form="exact")


@pytest.mark.clause("DPLRCASE-13", "DPLR-21")
@pytest.mark.parametrize("form", ["scan", "chunk"])
def test_a_form_without_a_momentum_is_refused_by_the_name_of_the_member(form):
    words = f"form: {form} computes no momentum, which member momentum_delta has; use sequential"
    with pytest.raises(atlas_ref.CaseError, match=words):
        evaluate(drawn("momentum_delta"), form=form)


@pytest.mark.clause("DPLRCASE-13")
def test_a_form_of_other_rules_in_a_header_is_refused_and_theirs_in_one_of_dplr():
    for rule, form in (("dplr", "exact"), ("delta", "chunk")):
        fields = {"schema": 1, "rule": rule, "form": form}
        with pytest.raises(atlas_ref.CaseError, match=f"form: the rule {rule} has sequential, .*"):
            make(fields, {})
        assert not jsonschema.Draft202012Validator(case_schema()).is_valid(fields)


@pytest.mark.clause("DPLR-18", "DPLRCASE-3", "DPLRCASE-4")
@pytest.mark.parametrize("member", ["delta", "kda", "gated_delta_product", None])
def test_a_step_size_for_each_value_is_a_case_for_each_value(member):
    """Rows of a memory know nothing of each other, so each is a memory with one value."""
    chosen = {"steps": 2} if member == "gated_delta_product" else {}
    case = drawn(member, parameters=chosen)
    name = "in/erase_scale" if member is None else "in/beta"
    rates = np.random.default_rng(4).uniform(0.1, 0.9, case.inputs["in/v"].shape)
    whole = make(case.header.plain(), {**case.inputs, name: rates})
    found, plain = evaluate(whole, grad=True).tensors, SUBJECTS["dplr"].plain
    way = plain(whole.inputs, whole, Rounding(MEMBERS[0], functions.same, functions.same, None))
    for each, value in way.items():
        assert_close(each, value, found[each], ROUNDED)
    for o in range(rates.shape[-1]):
        cut = {"in/v": case.inputs["in/v"][..., o : o + 1], "in/y_bar": case.inputs["in/y_bar"]}
        cut["in/y_bar"] = cut["in/y_bar"][..., o : o + 1]
        of_row = {"in/beta": rates[..., o]}
        if member is None:
            erase = case.inputs["in/erase_write"] * rates[..., o : o + 1]
            of_row = {"in/erase_write": erase}
        alone = evaluate(make(case.header.plain(), {**case.inputs, **cut, **of_row}), grad=True)
        assert_close("y", found["out/y"][..., o : o + 1], alone.tensors["out/y"], ANALYTIC)
        assert_close("M", found["out/M"][..., o : o + 1, :], alone.tensors["out/M"], ANALYTIC)
        if member is not None:
            slope = found["grad/beta"][..., o]
            assert_close("beta", slope, alone.tensors["grad/beta"], ANALYTIC)


@pytest.mark.clause("DPLRCASE-7")
@pytest.mark.parametrize("what", ["resuming", "the kill matrix"])
def test_what_does_not_take_the_rule_names_the_commands_that_do(what):
    words = f"rule dplr: {what} does not take this rule; {SUBJECTS['dplr'].instead}"
    with pytest.raises(atlas_ref.CaseError, match=words):
        drawn("kda").require_one_memory(what)


@pytest.mark.clause("DPLRCASE-8", "DPLRCASE-4")
def test_words_of_recordings_are_no_names_of_a_case(tmp_path):
    case = drawn("kda")
    file = tmp_path / "case.safetensors"
    d_in, d_out = case.inputs["in/k"].shape[-1], case.inputs["in/v"].shape[-1]
    first = np.zeros((*case.inputs["in/v"].shape[:-2], d_out, d_in))
    save(file, case.header, {**case.inputs, "in/state0": first})
    with pytest.raises(atlas_ref.CaseError, match="in/state0: "):
        atlas_ref.load(file)
