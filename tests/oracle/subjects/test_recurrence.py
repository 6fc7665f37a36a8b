"""Cases of rule recurrence: recordings of public code, verdicts, the plain loop, refusals."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import make, save
from atlas_ref.oracle.cases.features import features
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.deep import functions
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS as WAYS
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.schema.schema import case_schema
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.sweep.draw import SWEPT
from atlas_ref.rules.recurrences.log_linear import holding
from tests.support import plain_loops
from tests.support.close import ANALYTIC, Tolerance, assert_close
from tests.support.recurrences import FILES
from tests.truth import recurrence_loops

ROUNDED = Tolerance("ROUNDED", 1e-13)

#: Settings under which a drawn case is no other member's and has no edge at its ends.
CHOSEN = {
    "ttt_linear": {"mini_batch": 2},
    "log_linear": {"position": 6, "groups": 2},
    "short_conv": {"activation": "silu"},
}
#: Masks of few tokens; tokens that fill mini-batches and join levels.
SIZES = ({"pulse": 2, "reset": 3}, {"pulse": 1, "reset": 0, "tokens": 11})

#: States that a recording does not have: log_linear returns none, and a short mini-batch a wrong one.
UNRECORDED = {
    "log_linear_11": {"out/M"},
    "log_linear_extreme_11": {"out/M"},
    "ttt_linear_tail_11": {"out/bias"},
}
EVERY = pytest.mark.parametrize("member", MEMBERS)


def drawn(member, parameters=None, **fields):
    chosen = {"member": member, **(CHOSEN.get(member, {}) if parameters is None else parameters)}
    sizes = {"tokens": 6, "cotangent": True, "seed": 3, "pulse": 2, "reset": 3}
    return new(Request(rule="recurrence", draw=1, parameters=chosen, **sizes | fields))


def with_state(case):
    """The case with a first state and a cotangent of the last."""
    draw = np.random.default_rng(5)
    known = {name: value.shape for name, value in evaluate(case).tensors.items()}
    member = case.header.parameters["member"]
    shapes = {name: known[f"out/{name}"] for name in MEMBERS[member].program.states}
    tensors = {f"in/{name}0": draw.standard_normal(shape) for name, shape in shapes.items()}
    if member == "mesa":  # a sum of products of keys, which no ridge makes singular
        root = tensors["in/G0"]
        tensors["in/G0"] = root @ root.swapaxes(-1, -2)
    if member == "log_linear":
        held = holding(case.header.parameters.get("position", 0))
        levels = np.arange(tensors["in/M0"].shape[-3])
        tensors["in/M0"][:, ~np.isin(levels, held)] = 0.0
    tensors |= {f"in/{name}_bar": draw.standard_normal(shape) for name, shape in shapes.items()}
    return make(case.header.plain(), {**case.inputs, **tensors})


def loop_inputs(case):
    """Inputs of a literal loop from those of a case whose matrices lie as the rule has them."""
    member = case.header.parameters["member"]
    x = {name.removeprefix("in/"): value for name, value in case.inputs.items()}
    own = {name: value for name, value in x.items() if not name.endswith(("_bar", "0"))}
    own |= {name: x[f"{name}0"] for name in MEMBERS[member].program.states}
    return own | {name: x[name].astype(bool) for name in ("active", "reset") if name in x}


@pytest.mark.clause("RECUR-2", "RECUR-3", "RECUR-4", "RECUR-7", "RECUR-9")
@pytest.mark.clause("RECUR-10", "RECUR-11", "RECUR-12")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_outputs_states_and_gradients_of_every_recording_are_those_of_its_member(file):
    case = atlas_ref.load(file)
    verdicts = atlas_ref.check(case)
    assert {each.tensor for each in verdicts} == set(case.recorded)
    for each in verdicts:
        assert (each.verdict, each.tolerance) == ("PASS", 1e-12), each
    states = {f"out/{name}" for name in MEMBERS[case.header.parameters["member"]].program.states}
    assert states - UNRECORDED.get(file.stem, set()) < set(case.recorded)
    assert sum(name.startswith("grad/") for name in case.recorded) > 2


@pytest.mark.clause("RECUR-9")
def test_a_recording_of_every_member_is_read_and_of_another_refused(tmp_path):
    recorded = {atlas_ref.load(file).header.parameters["member"] for file in FILES}
    assert recorded == set(MEMBERS) - {"short_conv"}  # whose public code has no such recording
    assert len(FILES) == 8
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
    want, got = recurrence_loops.run("gsa", own, scale=scale), evaluate(case).tensors
    assert_close("y", got["out/y"], want["y"], ANALYTIC)
    for name in ("K", "M"):
        assert_close(name, turn(got[f"out/{name}"]), want[name], ANALYTIC)


@pytest.mark.clause("RECUR-5", "RECUR-6", "RECUR-10", "RECUR-11", "RECUR-12")
@pytest.mark.parametrize("sizes", SIZES, ids=["masks", "long"])
@pytest.mark.parametrize(
    ("member", "parameters", "own"),
    [
        ("mesa", {}, {}),
        ("ttt_linear", {"mini_batch": 2, "query_scale": 1}, {"mini_batch": 2}),
        ("ttt_linear", {"mini_batch": 4, "norm_eps": 0.1}, {"mini_batch": 4, "norm_eps": 0.1}),
        ("log_linear", {"query_scale": 1}, {}),
        ("log_linear", {"position": 6}, {"position": 6}),
        ("short_conv", {}, {}),
        ("short_conv", {"activation": "silu"}, {"activation": "silu"}),
        ("short_conv", {"columns": "W"}, {"columns": "W"}),
        ("short_conv", {"reset_to": "first"}, {"reset_to": "first"}),
    ],
)
def test_a_case_is_the_literal_loop_under_its_settings(member, parameters, own, sizes):
    case = with_state(drawn(member, parameters, **sizes))
    if "query_scale" not in parameters and member not in ("mesa", "short_conv"):
        own = own | {"scale": case.inputs["in/k"].shape[-1] ** -0.5}
    want, got = recurrence_loops.run(member, loop_inputs(case), **own), evaluate(case).tensors
    for name, value in want.items():
        assert_close(name, got[f"out/{name}"], value, ANALYTIC)


@pytest.mark.clause("RECUR-5")
@EVERY
def test_a_turned_state_is_the_transposed_one(member):
    case, of = with_state(drawn(member)), MEMBERS[member].program
    if not of.matrices:
        assert "state_layout" not in [each.name for each in of.settings]
        return
    kept = {
        f"{at}{name}{end}" for name in of.matrices for at, end in (("in/", "0"), ("in/", "_bar"))
    }
    turned = {
        name: value.swapaxes(-1, -2) if name in kept else value
        for name, value in case.inputs.items()
    }
    header = case.header.plain()
    header["parameters"] = {**header["parameters"], "state_layout": "(d_in, d_out)"}
    want, got = (evaluate(each, grad=True).tensors for each in (case, make(header, turned)))
    back = {f"out/{name}" for name in of.matrices} | {f"grad/{name}0" for name in of.matrices}
    for name, value in want.items():
        own = got[name].swapaxes(-1, -2) if name in back else got[name]
        assert_close(name, own, value, ROUNDED)


@pytest.mark.clause("RECUR-7")
@pytest.mark.parametrize("sizes", SIZES, ids=["masks", "long"])
@EVERY
def test_the_plain_loop_is_the_rule_in_values_and_tolerances_are_measured(member, sizes):
    plain_loops.assert_plain_loop(with_state(drawn(member, **sizes)), WAYS, ROUNDED)


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
    state = f"out/{MEMBERS[member].program.states[0]}"
    off = {**by_float32, state: by_float32[state] * np.float32(1.001)}
    wrong = atlas_ref.check(make(case.header.plain(), {**narrow, **off}))
    assert [each.tensor for each in wrong if each.verdict == "WRONG"] == [state]
    whole = evaluate(case, grad=True).tensors
    names = ("grad/log_retain", "grad/step_size", "grad/x")
    of_tokens = next(name for name in names if name in whole)
    gate = whole[of_tokens].copy()
    gate[0, 4 if of_tokens != "grad/x" else 3] += 1e-3 * np.abs(gate).max()
    moved = {**whole, of_tokens: gate}
    (bad,) = [
        each
        for each in atlas_ref.check(make(case.header.plain(), {**case.inputs, **moved}))
        if each.verdict != "PASS"
    ]
    assert (bad.tensor, bad.first.token) == (of_tokens, 4 if of_tokens != "grad/x" else 3)


@pytest.mark.clause("RECUR-6")
@EVERY
def test_other_tensors_are_refused_by_name(member):
    case, need = drawn(member), next(iter(MEMBERS[member].program.tensors))

    def refused(words, drop=(), **tensors):
        kept = {name: value for name, value in case.inputs.items() if name not in drop}
        with pytest.raises(atlas_ref.CaseError, match=words):
            make(case.header.plain(), kept | {f"in/{n}": z for n, z in tensors.items()})

    refused("in/beta: unknown tensor for member", beta=np.ones(6))
    refused(f"{need}: missing, axes", drop=(need,))
    refused(f"{need}: shape .*axes .* above 0 are needed", **{need[3:]: np.ones(3)})
    if member == "ttt_linear":
        refused(r"in/gain: shape .*, expected", gain=np.ones((3, 4)))
        return
    if member == "short_conv":
        refused(r"in/w: shape .*, expected", w=np.ones((2, 5, 4)))
        refused(r"in/w: shape \(2, 3, 1\), one tap leaves", ("in/window0",), w=np.ones((2, 3, 1)))
        refused(r"in/window0: shape .*, expected \(2, 3, 3\)", window0=np.ones((2, 3, 4)))
        return
    logs = case.inputs["in/log_retain"]
    refused(r"in/log_retain: shape .*, expected", log_retain=logs[:, :-1])
    refused("in/log_retain: entries must be at most 0", log_retain=logs + 1.0)
    refused("in/log_retain: entries must be finite", log_retain=logs + np.nan)
    zero = make(case.header.plain(), {**case.inputs, "in/log_retain": np.full_like(logs, -np.inf)})
    assert all(np.isfinite(value).all() for value in evaluate(zero, grad=True).tensors.values())


@pytest.mark.clause("RECUR-6", "RECUR-12")
def test_a_case_of_log_linear_of_more_tokens_than_its_levels_hold_is_refused():
    case = with_state(drawn("log_linear", {"position": 6}, reset=0))

    def refused(words, parameters, **tensors):
        header = case.header.plain()
        header["parameters"] = {"member": "log_linear", **parameters}
        with pytest.raises(atlas_ref.CaseError, match=words):
            make(header, case.inputs | {f"in/{n}": z for n, z in tensors.items()})

    scales = case.inputs["in/level_scales"]
    few = {"level_scales": scales[..., :4], "M0": case.inputs["in/M0"][:, :4]}
    few |= {"M_bar": case.inputs["in/M_bar"][:, :4]}
    refused("in/level_scales: 4 levels, which hold 8 tokens, found 9", {"position": 6}, **few)
    full = np.ones_like(case.inputs["in/M0"])
    refused("in/M0: level 2 must be 0, which holds no token at", {"position": 6}, M0=full)
    refused("in/M0: level 0 must be 0, which holds no token at", {})
    refused("in/v: leading axes .*, expected whole groups of parameters.groups", {"groups": 3})


@pytest.mark.clause("RECUR-6", "RECUR-10")
def test_a_ridge_below_zero_or_of_other_heads_is_refused_and_one_for_all_heads_taken():
    case = drawn("mesa")

    def with_ridge(value):
        return make(case.header.plain(), {**case.inputs, "in/ridge": value})

    with pytest.raises(atlas_ref.CaseError, match="in/ridge: entries must be at least 0"):
        with_ridge(-np.ones(4))
    with pytest.raises(atlas_ref.CaseError, match=r"in/ridge: shape \(3, 4\), expected \(2, 4\)"):
        with_ridge(np.ones((3, 4)))
    one, each = (evaluate(with_ridge(np.ones(shape))).tensors for shape in (4, (2, 4)))
    assert_close("y", one["out/y"], each["out/y"], ROUNDED)


@pytest.mark.clause("RECUR-5")
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "parameters.member"),
        ({"member": "mamba"}, "parameters.member"),
        ({"member": "gsa", "steps": 2}, "parameters.steps: the rule recurrence has none"),
        ({"member": "hgrn", "query_scale": 1}, "query_scale: the member hgrn has none"),
        ({"member": "gsa", "state_layout": "rows"}, "parameters.state_layout"),
        ({"member": "ttt_linear", "mini_batch": 0}, "parameters.mini_batch"),
        ({"member": "ttt_linear", "norm_eps": 1e-320}, "parameters.norm_eps"),
        ({"member": "log_linear", "groups": 0}, "parameters.groups"),
        ({"member": "log_linear", "position": -1}, "parameters.position"),
        ({"member": "mesa", "query_scale": 1}, "query_scale: the member mesa has none"),
        ({"member": "short_conv", "columns": 3}, "parameters.columns"),
        ({"member": "short_conv", "activation": "relu"}, "parameters.activation"),
        ({"member": "short_conv", "reset_to": "last"}, "parameters.reset_to"),
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
    always = {"heads"} | {"ttt_linear": {"state"}, "short_conv": set()}.get(member, {"logarithms"})
    always |= {"rectangular"} if member not in ("hgrn", "ttt_linear", "short_conv") else set()
    bare = drawn(member, pulse=1, reset=0, cotangent=False)
    assert set(features(bare)) == always
    whole = with_state(drawn(member))
    assert set(features(whole)) == always | {"pulse", "reset", "state", "gradient"}


@pytest.mark.clause("RECUR-8")
@EVERY
def test_a_form_that_does_not_take_the_rule_says_so_in_one_line(member):
    case = drawn(member)
    assert "recurrence" in SWEPT
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


@pytest.mark.clause("RECUR-13", "CASE-13")
@pytest.mark.parametrize("member", list(MEMBERS))
def test_what_one_call_returns_is_where_the_next_begins(member):
    own = {"log_linear": {"position": 3, "groups": 2}, "ttt_linear": {"mini_batch": 2}}
    pulse = 1 if member == "ttt_linear" else 2
    case = drawn(member, own.get(member, {}), tokens=9, pulse=pulse, reset=0, cotangent=False)
    case = with_state(case)
    whole = evaluate(case).tensors
    bars = {name for name in case.inputs if name.endswith("_bar")}
    first, second = {}, {}
    for name, value in case.inputs.items():
        if name in bars:
            continue
        wide = value.ndim > 2 or name in ("in/gain", "in/shift", "in/ridge")
        axis = -2 if wide and value.ndim > 1 else -1
        tokens = value.shape[axis] == 9 and not name.endswith("0")
        first[name] = value.take(range(4), axis) if tokens else value
        if not name.endswith("0"):
            second[name] = value.take(range(4, 9), axis) if tokens else value
    begun = evaluate(make(case.header.plain(), first))
    second |= {
        f"in/{name}0": begun.tensors[f"out/{name}"] for name in MEMBERS[member].program.states
    }
    ended = evaluate(make(dict(begun.header), second))
    y = np.concatenate([each.tensors["out/y"] for each in (begun, ended)], axis=-2)
    assert np.array_equal(y, whole["out/y"])
    for name in MEMBERS[member].program.states:
        assert np.array_equal(ended.tensors[f"out/{name}"], whole[f"out/{name}"])
    if member != "log_linear":
        assert begun.header == case.header.plain()
        return
    positions = [each.header["parameters"]["position"] for each in (begun, ended)]
    assert positions == [3 + 2, 3 + 4]  # every second token is active
    with pytest.raises(atlas_ref.CaseError, match=r"in/M0: level \d must be 0"):
        make(case.header.plain(), second)


@pytest.mark.clause("RECUR-13")
def test_a_reset_goes_back_to_the_position_that_the_call_began_with():
    case = with_state(drawn("log_linear", {"position": 3}, tokens=9, pulse=1, reset=4))
    after = evaluate(case).header["parameters"]
    assert after == {**case.header.plain()["parameters"], "position": 3 + 1}  # token 8 starts one
