"""Readings of rule dplr: every setting and every mistake is found in what a program returns."""

import types

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr import parameters
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.deciding import deciding_case
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.subjects.dplr import SUBJECT
from tests.support.close import ANALYTIC, assert_close, relative_error
from tests.truth import dplr_mistakes, family_loops

COMPLEX_STEP = 1e-30


def made(member=None, *, logs=False, start=True, bar=False, drop=(), events=True, **fields):
    """A case with silent tokens, a reset and a first memory."""
    chosen = fields.pop("parameters", {}) | ({} if member is None else {"member": member})
    sizes = {"tokens": 7, "d_in": 3, "d_out": 3, "heads": 1, "seed": 5, "cotangent": True}
    sizes |= {"pulse": 2, "reset": 3} if events else {}
    case = new(Request(rule="dplr", draw=1, parameters=chosen, **sizes | fields))
    x = {name: value for name, value in case.inputs.items() if name not in drop}
    if "in/active" in x:
        x["in/active"] = np.array([1, 0, 1, 1, 1, 0, 1], np.uint8)
    draw = np.random.default_rng(6)
    if start:
        x["in/M0"] = draw.standard_normal((*x["in/v"].shape[:-2], sizes["d_out"], sizes["d_in"]))
        x["in/M0"] = x["in/M0"][..., : fields.get("d_out", 3), : fields.get("d_in", 3)]
    if start and parameters.parse(case.header).of.second == "z":
        x["in/z0"] = draw.uniform(0.0, 1.0, (*x["in/v"].shape[:-2], x["in/k"].shape[-1]))
    if start and parameters.parse(case.header).of.second == "S":
        x["in/S0"] = draw.standard_normal(x["in/M0"].shape)
    if start and parameters.parse(case.header).of.second == "A":
        x["in/A0"] = draw.uniform(0.0, 1.0, (*x["in/k"].shape[:-2], x["in/k"].shape[-1]))
    if bar:
        x["in/M_bar"] = draw.standard_normal(x["in/M0"].shape)
    if "in/retain" in x:
        x["in/retain"] = draw.uniform(0.3, 0.9, x["in/retain"].shape)
    if logs:
        x["in/log_retain"] = np.log(x.pop("in/retain"))
    return make(case.header.plain(), x)


def by_value(member, **fields):
    """A case whose erase has a factor for each value."""
    case = made(member, **fields)
    factors = np.random.default_rng(8).uniform(0.2, 1.0, case.inputs["in/v"].shape)
    name = "in/erase_scale" if member is None else "in/beta"
    return make(case.header.plain(), {**case.inputs, name: factors})


GROUPS = {"groups": 2}
NORMED = {"k_norm": "l2", "norm_eps": 0.01}
CASES = {
    "rule": made(heads=2),
    "kda": made("kda", parameters=GROUPS, heads=2, logs=True, bar=True),
    "qwen3_next": made("qwen3_next", parameters=GROUPS, heads=2),
    "comba": made("comba_decay_after_erase"),
    "product": made("gated_delta_product", parameters={"steps": 2}),
    "rwkv6": made("rwkv6"),
    "rwkv7": made("rwkv7"),
    "gdn2": made("gdn2", parameters={"k_norm": "l2", "norm_eps": 0.01}),
    "dplr": made("dplr"),
    "delta": by_value("delta"),
    "rows": by_value(None, d_out=4, start=False),
    "linear_attn": made("linear_attn", start=False),
    "squares": made("precond_kda", parameters=GROUPS, heads=2),
    "units": made("precond_gated_delta", start=False, events=False),
    "momentum": made("momentum_delta", parameters=GROUPS, heads=2, logs=True),
    "moved": made("momentum_delta", parameters=NORMED, start=False, d_out=2),
    "normalised": made("linear_attn_normalized", parameters=GROUPS, heads=2),
    "sums": made("linear_attn_normalized", start=False, events=False),
    "oblong": made("gla", d_out=4, heads=2, start=False),
}


def of_case(case):
    """Settings in force, for the loop of the tests."""
    own = parameters.parse(case.header)
    scale = 1.0 if own.scale == 1 else case.inputs["in/k"].shape[-1] ** -0.5
    return types.SimpleNamespace(
        erase=own.of.erase, decay=own.order, order=own.order, scale=scale, steps=own.steps, groups=own.groups,
        k_norm=own.norm("in/k"), q_norm=own.norm("in/q"), eps=own.norm_eps,
        second=own.of.second, floor=own.of.floor,
    )  # fmt: skip


def planted(case, mistake="", **tensors):
    """Results of the loop of the tests with one mistake."""
    bare = {name.removeprefix("in/"): value for name, value in case.inputs.items()}
    bare = {n: x for n, x in bare.items() if not n.endswith("_bar")} | tensors
    return dplr_mistakes.run(bare, of_case(case), mistake)


def results(case, mistake=""):
    found = planted(case, mistake)
    return {f"out/{name}": x.astype(np.float32) for name, x in found.items()}


def shows(case, mistake):
    own, other = planted(case), planted(case, mistake)
    return any(relative_error(other[name], own[name]) > 1e-5 for name in own)


MISTAKES = [
    (name, each)
    for name, case in CASES.items()
    for each in SUBJECT.searched.departures(case)
    if not each.grad and shows(case, each.name)
]
SETTINGS = [
    (name, each) for name, case in CASES.items() for each in SUBJECT.searched.settings(case)
]


@pytest.mark.clause("DPLRCASE-9")
@pytest.mark.parametrize("name", CASES)
def test_own_results_match_the_case(name):
    answer = identify(CASES[name], results(CASES[name]), depth=1)
    assert (answer.verdict, answer.own) == ("MATCH", True), (answer.undecided, answer.why)


@pytest.mark.clause("DPLRCASE-9", "IDENT-7")
@pytest.mark.parametrize(("name", "each"), SETTINGS, ids=lambda each: getattr(each, "name", each))
def test_every_other_setting_is_found(name, each):
    case = CASES[name]
    header = case.header.plain()
    header["parameters"] = {**header.get("parameters", {}), **each.settings}
    stated = make(header, case.inputs)
    ours = {n: x for n, x in evaluate(stated).tensors.items() if n.startswith("out/")}
    answer = identify(case, ours)
    assert answer.verdict in ("MATCH", "UNDECIDABLE")
    twins = [dict(twin.changes) for twin in answer.twins]
    assert dict(each.change) in [answer.from_own, *twins], (answer.from_own, twins)
    assert not answer.own


@pytest.mark.clause("DPLRCASE-10", "IDENT-14")
@pytest.mark.parametrize(("name", "each"), MISTAKES, ids=lambda each: getattr(each, "name", each))
def test_every_mistake_is_named(name, each):
    answer = identify(CASES[name], results(CASES[name], each.name))
    words = [one.words for one in answer.departures]
    if each.name == "round robin":  # which is a setting too
        assert answer.from_own == {"parameters.group_order": "round_robin"}
        return
    assert answer.verdict == "NO MATCH"
    assert each.words in words, (answer.from_own, words)


@pytest.mark.clause("DPLRCASE-10")
def test_every_mistake_of_the_list_is_shown_by_some_case():
    every = {each.name for case in CASES.values() for each in SUBJECT.searched.departures(case)}
    graded = {
        each.name
        for case in CASES.values()
        for each in SUBJECT.searched.departures(case)
        if each.grad
    }
    assert every - graded == {each.name for _, each in MISTAKES}
    assert graded == {name for _, name in HELD}


@pytest.mark.clause("DPLRCASE-9")
@pytest.mark.parametrize(
    ("member", "other", "change"),
    [
        ("comba_decay_after_erase", "comba_decay_before_erase", {"parameters.member"}),
        ("kda", "kimi_linear", {"parameters.member"}),
    ],
)
def test_results_of_another_member_name_it(member, other, change):
    """By the loops that the recordings of public code are compared with."""
    case = made(member, logs=True, events=False, start=False)
    x = {name.removeprefix("in/"): value[None] for name, value in case.inputs.items()}
    x |= {"log_decay": x.pop("log_retain"), "state0": np.zeros((1, 1, 3, 3))}
    x = {name: value for name, value in x.items() if not name.endswith("_bar")}
    y = family_loops.run(other, x)["y"][0]
    answer = identify(case, {"out/y": y.astype(np.float32)})
    assert answer.verdict == "MATCH"
    assert answer.from_own.keys() == change
    named = parameters.Parameters(member=answer.from_own["parameters.member"]).of
    # the gate that its code has is no part of the function
    same = parameters.Parameters(member=other).of
    assert named._replace(source=same.source, gate=same.gate) == same


HELD = [
    ("kda", "gate held"),
    ("kda", "log held"),
    ("kda", "erase held"),
    ("kda", "memory held"),
    ("kda", "heads held"),
    ("qwen3_next", "norm held"),
    ("normalised", "normaliser held"),
    ("squares", "preconditioner held"),
    ("momentum", "momentum held"),
    ("momentum", "eta held"),
    ("kda", "erase_read held"),
    ("kda", "beta held"),
    ("kda", "M0 held"),
    ("kda", "last held"),
    ("kda", "reset held"),
    ("kda", "scale held"),
    ("rwkv6", "bonus held"),
    ("rwkv7", "a held"),
    ("gdn2", "erase_gate held"),
    ("gdn2", "write_gate held"),
    ("dplr", "alpha held"),
    ("rows", "erase_scale held"),
]


def gradients(case, mistake):
    """Derivatives by complex steps, in which a part that is held fixed has no imaginary part."""
    bars = {"y": case.inputs["in/y_bar"]}
    bars |= {name: case.inputs.get(f"in/{name}_bar", 0.0) for name in ("M", "z", "A", "S")}
    found = {}
    for name in (each[3:] for each in case.inputs if each[3:] in STEPPED):
        x, slopes = case.inputs[f"in/{name}"], []
        for place in np.ndindex(x.shape):
            moved = x.astype(complex)
            moved[place] += 1j * COMPLEX_STEP
            out = planted(case, mistake, **{name: moved})
            slopes.append(sum(np.sum(bars[n] * out[n]).imag for n in out) / COMPLEX_STEP)
        found[f"grad/{name}"] = np.reshape(slopes, x.shape)
    return found


MOMENTUM = ("eta", "log_momentum", "erase_key", "S0")
PRECOND = ("log_retain_precond", "beta_precond", "A0")
STEPPED = (
    *("k", "v", "q", "retain", "log_retain", "beta", "M0", "bonus"),
    *("a", "alpha", "erase_gate", "write_gate", "erase_scale", "z0", *PRECOND, *MOMENTUM),
)


@pytest.mark.clause("DPLRCASE-1")
@pytest.mark.parametrize("name", ["kda", "qwen3_next", "normalised", "squares", "momentum"])
def test_complex_steps_without_a_mistake_are_the_gradients_of_the_rule(name):
    case = CASES[name]
    want = evaluate(case, grad=True).tensors
    for each, value in gradients(case, "").items():
        assert_close(each, value, want[each], ANALYTIC)


@pytest.mark.sample(2)
@pytest.mark.clause("DPLRCASE-10", "IDENT-14")
@pytest.mark.parametrize(("name", "mistake"), HELD)
def test_a_part_of_the_backward_that_is_held_fixed_is_named(name, mistake):
    case = CASES[name]
    (each,) = [one for one in SUBJECT.searched.departures(case) if one.name == mistake]
    slopes = {n: x.astype(np.float32) for n, x in gradients(case, mistake).items()}
    answer = identify(case, results(case) | slopes, depth=1)
    assert each.words in [one.words for one in answer.departures], answer


@pytest.mark.clause("DPLRCASE-9", "IDENT-8")
def test_a_deciding_case_separates_two_readings():
    case = CASES["comba"]
    member = SUBJECT.searched.settings(case)[0]
    trial = deciding_case(case, [(), (member,)])
    assert trial is not None
    assert trial.header.parameters == case.header.parameters
    assert convert(trial, "float64")["in/q"].shape[-2] <= 5
