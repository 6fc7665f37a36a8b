"""Cases of rule recurrence: recordings of public code, verdicts, the plain loop, refusals."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

import atlas_ref
from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import make, save
from atlas_ref.oracle.cases.features import features
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.schema import case_schema
from atlas_ref.oracle.deep import functions
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS as WAYS
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.replay.trace import require_traced
from atlas_ref.oracle.subjects import SUBJECTS
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.sweep.draw import SWEPT
from tests.support.close import ANALYTIC, Tolerance, assert_close
from tests.support.recurrences import FILES
from tests.truth import recurrence_loops

ROUNDED = Tolerance("ROUNDED", 1e-13)
EVERY = pytest.mark.parametrize("member", MEMBERS)


def drawn(member, parameters=None, **fields):
    chosen = {"member": member, **(parameters or {})}
    sizes = {"tokens": 6, "cotangent": True, "seed": 3, "pulse": 2, "reset": 3}
    return new(Request(rule="recurrence", parameters=chosen, **sizes | fields))


def with_state(case):
    """The case with a first state and a cotangent of the last."""
    draw = np.random.default_rng(5)
    known = {name: value.shape for name, value in evaluate(case).tensors.items()}
    shapes = {
        name: known[f"out/{name}"] for name in MEMBERS[case.header.parameters["member"]].states
    }
    tensors = {f"in/{name}0": draw.standard_normal(shape) for name, shape in shapes.items()}
    tensors |= {f"in/{name}_bar": draw.standard_normal(shape) for name, shape in shapes.items()}
    return make(case.header.plain(), {**case.inputs, **tensors})


@pytest.mark.clause("RECUR-2", "RECUR-3", "RECUR-4", "RECUR-7", "RECUR-9")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_outputs_states_and_gradients_of_every_recording_are_those_of_its_member(file):
    case = atlas_ref.load(file)
    verdicts = atlas_ref.check(case)
    assert {each.tensor for each in verdicts} == set(case.recorded)
    for each in verdicts:
        assert (each.verdict, each.tolerance) == ("PASS", 1e-12), each
    states = {f"out/{name}" for name in MEMBERS[case.header.parameters["member"]].states}
    assert states < set(case.recorded)
    assert sum(name.startswith("grad/") for name in case.recorded) > 2


@pytest.mark.clause("RECUR-9")
def test_a_recording_of_every_member_is_read_and_of_another_refused(tmp_path):
    assert {atlas_ref.load(file).header.parameters["member"] for file in FILES} == set(MEMBERS)
    assert len(FILES) == 3
    for member in ("path_attn", ["gsa"], None):
        header = {"schema": 1, "rule": "family", "parameters": {"member": member}}
        save(tmp_path / "other.safetensors", header, {"in/k": np.ones((2, 3))})
        with pytest.raises(atlas_ref.CaseError, match="is no member of rule dplr or recurrence"):
            atlas_ref.load(tmp_path / "other.safetensors")


@pytest.mark.clause("RECUR-1", "RECUR-2", "RECUR-5", "RECUR-6")
@pytest.mark.parametrize("layout", ["(d_out, d_in)", "(d_in, d_out)"])
@pytest.mark.parametrize("query_scale", [1, "1/sqrt(d_in)"])
def test_a_case_of_gsa_is_the_literal_loop_under_every_setting(layout, query_scale):
    case = with_state(drawn("gsa", {"state_layout": layout, "query_scale": query_scale}))
    x = {name.removeprefix("in/"): z for name, z in case.inputs.items()}
    turn = (lambda z: z) if layout == "(d_out, d_in)" else (lambda z: z.swapaxes(-1, -2))
    x |= {"K": turn(x["K0"]), "M": turn(x["M0"])}
    own = {name: x[name] for name in ("k", "v", "q", "s", "log_retain", "K", "M")}
    own |= {name: x[name].astype(bool) for name in ("active", "reset")}
    scale = 1.0 if query_scale == 1 else x["k"].shape[-1] ** -0.5
    want, got = recurrence_loops.run("gsa", own, scale), evaluate(case).tensors
    assert_close("y", got["out/y"], want["y"], ANALYTIC)
    for name in ("K", "M"):
        assert_close(name, turn(got[f"out/{name}"]), want[name], ANALYTIC)


@pytest.mark.clause("RECUR-7")
@EVERY
def test_the_plain_loop_is_the_rule_in_values_and_tolerances_are_measured(member):
    case = with_state(drawn(member))
    ours, plain = evaluate(case, grad=True).tensors, SUBJECTS["recurrence"].plain
    for way in WAYS:
        theirs = plain(case.inputs, case, Rounding(way, functions.same, functions.same, None))
        for name, value in theirs.items():
            assert_close(f"{way.name} {name}", value, ours[name], ROUNDED)
    measured = tolerances(case, dtype="float32")
    assert set(measured) == {name for name in ours if name.startswith("out/")}
    assert all(0.0 < each.rms < 1e-5 for each in measured.values())


@pytest.mark.clause("RECUR-4", "RECUR-7")
@EVERY
def test_a_float32_kernel_passes_and_one_whose_state_is_off_is_wrong(member):
    case = with_state(drawn(member))
    narrow = {
        name: value if value.dtype.kind in "biu" else value.astype(np.float32)
        for name, value in case.inputs.items()
    }
    in_float32 = make(case.header.plain(), narrow)
    by_float32 = SUBJECTS["recurrence"].plain(
        narrow, in_float32, Rounding(WAYS[1], functions.same, functions.same, None)
    )
    both = make(case.header.plain(), {**narrow, **by_float32})
    assert {each.verdict for each in atlas_ref.check(both)} == {"PASS"}
    state = f"out/{MEMBERS[member].states[0]}"
    off = {**by_float32, state: by_float32[state] * np.float32(1.001)}
    wrong = atlas_ref.check(make(case.header.plain(), {**narrow, **off}))
    assert [each.tensor for each in wrong if each.verdict == "WRONG"] == [state]
    whole = evaluate(case, grad=True).tensors
    gate = whole["grad/log_retain"].copy()
    gate[0, 4] += 1e-3
    moved = {**whole, "grad/log_retain": gate}
    (bad,) = [
        each
        for each in atlas_ref.check(make(case.header.plain(), {**case.inputs, **moved}))
        if each.verdict != "PASS"
    ]
    assert (bad.tensor, bad.first.token) == ("grad/log_retain", 4)


@pytest.mark.clause("RECUR-6")
@EVERY
def test_other_tensors_are_refused_by_name(member):
    case, need = drawn(member), next(iter(MEMBERS[member].tensors))

    def refused(words, drop=(), **tensors):
        kept = {name: value for name, value in case.inputs.items() if name not in drop}
        with pytest.raises(atlas_ref.CaseError, match=words):
            make(case.header.plain(), kept | {f"in/{n}": z for n, z in tensors.items()})

    logs = case.inputs["in/log_retain"]
    refused("in/beta: unknown tensor for member", beta=np.ones(6))
    refused(f"{need}: missing, axes", drop=(need,))
    refused(f"{need}: shape .*axes .* above 0 are needed", **{need[3:]: np.ones(3)})
    refused(r"in/log_retain: shape .*, expected", log_retain=logs[..., :-1, :])
    refused("in/log_retain: entries must be at most 0", log_retain=logs + 1.0)
    refused("in/log_retain: entries must be finite", log_retain=logs + np.nan)
    zero = make(case.header.plain(), {**case.inputs, "in/log_retain": np.full_like(logs, -np.inf)})
    assert all(np.isfinite(value).all() for value in evaluate(zero, grad=True).tensors.values())


@pytest.mark.clause("RECUR-5")
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "parameters.member"),
        ({"member": "mamba"}, "parameters.member"),
        ({"member": "gsa", "steps": 2}, "parameters.steps: the rule recurrence has none"),
        ({"member": "hgrn", "query_scale": 1}, "query_scale: the member hgrn has none"),
        ({"member": "gsa", "state_layout": "rows"}, "parameters.state_layout"),
    ],
)
def test_a_header_of_another_setting_is_refused_by_name_and_by_the_schema(parameters, words):
    header = {"schema": 1, "rule": "recurrence", "parameters": parameters}
    with pytest.raises(atlas_ref.CaseError, match=words):
        make(header, drawn("gsa").inputs)
    valid = jsonschema.Draft202012Validator(case_schema())
    assert valid.is_valid(header) == (parameters.get("query_scale") == 1)  # which no schema says
    assert valid.is_valid({**header, "parameters": {"member": "gsa"}})
    assert not valid.is_valid({**header, "parameters": {"member": "gsa"}, "window": 2})
    assert not valid.is_valid({"schema": 1, "rule": "recurrence"})


@pytest.mark.clause("RECUR-5", "RECUR-6")
def test_the_schema_lists_tensors_and_settings_of_each_member():
    table = json.loads(json.dumps(case_schema()))["x-recurrence"]
    assert set(table) == set(MEMBERS)
    assert table["gsa"]["inputs"]["in/K0"] == {"axes": "... slots d_in", "need": "0"}
    assert table["hgrn"]["settings"] == []


@pytest.mark.clause("RECUR-7")
@EVERY
def test_features_are_those_of_the_tensors(member):
    always = {"heads", "logarithms", *({"rectangular"} if member == "gsa" else ())}
    bare = drawn(member, pulse=1, reset=0, cotangent=False)
    assert set(features(bare)) == always
    whole = with_state(drawn(member))
    assert set(features(whole)) == always | {"pulse", "reset", "state", "gradient"}


@pytest.mark.clause("RECUR-8")
@EVERY
def test_what_does_not_take_the_rule_says_so_in_one_line(member):
    case = drawn(member)
    takes = f"does not take this rule; {SUBJECTS['recurrence'].instead}"
    with pytest.raises(atlas_ref.CaseError, match=f"rule recurrence: identify {takes}"):
        identify(case, evaluate(case).tensors)
    with pytest.raises(atlas_ref.CaseError, match=f"rule recurrence: replay {takes}"):
        require_traced(case, "replay")
    with pytest.raises(atlas_ref.CaseError, match=f"rule recurrence: certify {takes}"):
        certify(case)
    assert "recurrence" not in SWEPT
    with pytest.raises(atlas_ref.CaseError, match="form: scan does not compute rule recurrence"):
        evaluate(case, form="scan")
    with pytest.raises(atlas_ref.CaseError, match="chunk: 2, but form sequential has none"):
        evaluate(case, chunk=2)


@pytest.mark.clause("RECUR-8")
@EVERY
def test_a_drawn_case_is_the_same_for_the_same_seed_and_does_not_grow(member):
    one, two = drawn(member, tokens=40), drawn(member, tokens=40)
    for name, value in one.inputs.items():
        assert_close(name, value, two.inputs[name], ROUNDED)
    assert np.abs(evaluate(one).tensors["out/y"]).max() < 10.0
