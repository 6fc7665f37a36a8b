"""The ceiling of the memory's norm: CONV-67, with its straight-through gradient, certified,
replayed, identified and refused.
"""

import numpy as np
import pytest

from atlas_ref import CaseError, evaluate, make
from atlas_ref.conventions import resolve
from atlas_ref.forms import tnt
from atlas_ref.forms.support import FORMS, refusal
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge import op_steps
from atlas_ref.oracle.replay.replay import exit_code, first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.rules import RULES, deep_memory, titans_lmm
from tests.support.certified import assert_certified
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.identified import made, results, same_point
from tests.support.literally import assert_literal

CEILING = {"memory_ceiling": 0.6}
PLAIN = {"newton_schulz": "none"}
#: Rule, and what the case has beside its ceiling.
CASES = {
    "titans": ("titans_lmm", {}),
    "titans token": ("titans_lmm", {"level": "token"}),
    "titans rows": ("titans_lmm", {"per_dimension_gates": True, "heads": 2}),
    "titans before": ("titans_lmm", {"convention": {"read": "before", "layout": "transposed"}}),
    "delta early": ("delta", {"convention": {"decay": "before_error"}, "pulse": 2}),
    "delta frozen": ("delta", {"convention": {"reference": "chunk_start"}, "span": 2}),
    "hebbian": ("hebbian", {"reset": 3}),
    "omega": ("omega", {"window": 2}),
    "omega plain": ("omega", {"window": 2, "convention": PLAIN}),
    "omega momenta": (
        "omega",
        {"window": 2, "convention": {"order": "momentum_then_window", "rate": "memory"}},
    ),
}
FREE = {"memory_ceiling": "none"}


def case_of(name, axes=CEILING):
    rule, more = CASES[name]
    sizes = {"tokens": 5, "d_in": 3, "d_out": 2, "seed": 7, "cotangent": True}
    convention = more.get("convention", {}) | axes
    return new(Request(**{"rule": rule, **sizes, **more, "convention": convention}))


@pytest.mark.clause("CONV-67")
@pytest.mark.parametrize("name", CASES)
def test_the_memory_is_shortened_as_in_the_literal_loop_and_the_gradient_passes_straight(name):
    case = case_of(name)
    ours = assert_literal(case)
    assert_differs("y", ours["out/y"], evaluate(case, convention=FREE).tensors["out/y"], 1e-4)
    norms = np.linalg.norm(ours["out/M"], axis=(-2, -1))
    assert np.all(norms <= CEILING["memory_ceiling"] * (1 + 1e-15))


@pytest.mark.clause("CONV-67")
def test_a_ceiling_that_is_not_reached_changes_no_bit():
    case = case_of("titans")
    high, free = (evaluate(case, convention=each, grad=True).tensors for each in (
        {"memory_ceiling": 1e3}, FREE,
    ))  # fmt: skip
    for name, value in free.items():
        assert_close(name, high[name], value, EXACT)


@pytest.mark.clause("CONV-67")
def test_neither_the_first_memory_nor_an_inactive_token_is_shortened():
    case = case_of("titans")
    inputs = dict(case.inputs) | {"in/active": np.zeros(5, bool)}
    inputs["in/M0"] = inputs["in/M0"] * (9.0 / np.linalg.norm(inputs["in/M0"]))
    still = make(case.header.plain(), inputs)
    assert_close("M", evaluate(still).tensors["out/M"], inputs["in/M0"], EXACT)


@pytest.mark.clause("CONV-67")
@pytest.mark.parametrize("name", ["titans token", "delta early", "hebbian", "omega"])
def test_a_memory_under_a_ceiling_is_certified(name):
    case = case_of(name)
    assert_certified(case, ANALYTIC)


@pytest.mark.clause("CONV-67")
@pytest.mark.parametrize("name", ["titans", "delta early", "hebbian", "omega momenta"])
def test_a_replay_passes_and_names_the_ceiling_that_a_program_does_without(name):
    case = case_of(name)
    assert exit_code(replay(case, trace(case, dtype="float32"))) == 0
    free = make(case.header.plain() | {"convention": case_of(name, FREE).header.plain()["convention"]},
                case.inputs)  # fmt: skip
    first = first_wrong(replay(case, trace(free, dtype="float32")))
    assert first.op == "M"
    assert "memory_ceiling none" in first.nearest.split(" or ")


@pytest.mark.clause("CONV-67", "TOL-9")
@pytest.mark.parametrize("way", MEMBERS, ids=lambda way: way.name)
def test_a_write_is_judged_with_its_ceiling(way):
    random = np.random.default_rng(5)
    M, U = random.standard_normal((2, 3, 4))
    after = 0.5 * M - U
    want = after * (0.6 / np.linalg.norm(after))
    inputs = {"M": M, "U": U, "retain": np.full((1, 1), 0.5)}
    got = op_steps.evaluate("M", inputs, resolve(CEILING, rule="titans_lmm"), way)
    assert_close("M", got, want, ANALYTIC)


@pytest.mark.clause("CONV-67", "IDENT-2")
def test_a_program_without_the_ceiling_is_identified_and_one_out_of_reach_is_a_twin():
    case = made("titans_lmm", convention=CEILING)
    answer = identify(case, results(case, FREE, "out/y"), depth=1)
    assert answer.verdict == "MATCH"
    assert same_point(case, answer.match.convention, FREE)
    for rule in ("titans_lmm", "omega"):
        high = made(rule, convention={"memory_ceiling": 1e3})
        twins = identify(high, results(high, FREE, "out/y"), depth=1).twins
        reasons = [each.reason for each in twins if set(each.changes) == {"memory_ceiling"}]
        assert [each.split(" (")[0] for each in reasons] == [
            "CONV-67: no memory is longer than the ceiling"
        ]


@pytest.mark.clause("CONV-67", "CHUNK-21")
@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("sequential", "tnt")])
def test_forms_that_need_an_affine_memory_refuse_a_ceiling(form):
    for name, rule in RULES.items():
        if not rule.in_family:
            continue
        axes = CEILING | ({"reference": "zero"} if form in ("chunkwise", "atlas_parallel") else {})
        axes |= PLAIN if name == "omega" else {}
        free = resolve(axes | FREE, rule=name)
        assert refusal(name, free, form) is None
        assert "memory_ceiling" in refusal(name, resolve(axes, rule=name), form)
        assert refusal(name, resolve(axes, rule=name), "sequential") is None


@pytest.mark.clause("CONV-67")
def test_the_system_of_a_chunk_is_refused_where_it_does_not_exist():
    case = case_of("titans")
    with pytest.raises(CaseError, match="no chunk of memories under memory_ceiling is affine"):
        replay(case, {"chunk/A": np.zeros((1, 5, 2, 5, 5))}, chunk=5)


@pytest.mark.clause("CONV-67")
def test_the_memories_of_tnt_have_the_ceiling_of_their_rule():
    memories = {"global": {"span": 3}, "locals": [{"span": 2, "shard": 4}]}
    case = new(
        Request(
            rule="tnt", tokens=6, d_in=3, d_out=2, seed=3, convention=CEILING,
            parameters={"rule": "titans_lmm"} | memories,
        )
    )  # fmt: skip
    ours = evaluate(case).tensors
    free = evaluate(case, convention=FREE).tensors
    assert_differs("y", ours["out/y"], free["out/y"], 1e-4)
    assert exit_code(replay(case, trace(case, dtype="float32"))) == 0


@pytest.mark.clause("CONV-67")
@pytest.mark.parametrize("value", [0, -1.0, True, [0.5], "high"], ids=str)
def test_what_is_no_length_is_refused(value):
    with pytest.raises(CaseError, match="memory_ceiling must be a finite number above 0 or"):
        new(Request(rule="delta", tokens=2, d_in=2, d_out=2, convention={"memory_ceiling": value}))


@pytest.mark.clause("CONV-67")
def test_what_has_no_ceiling_refuses_it():
    with pytest.raises(ValueError, match="memory_ceiling is not defined for deep_memory"):
        deep_memory.Config(d_in=3, d_out=2, convention=CEILING)
    with pytest.raises(ValueError, match="memory_ceiling must be a finite number above 0"):
        resolve({"memory_ceiling": float("inf")}, rule="titans_lmm")
    stated = resolve(CEILING | {"gate": "none"}, rule="titans_lmm")
    own = titans_lmm.Config(d_in=3, d_out=2, convention=stated)
    with pytest.raises(ValueError, match="without Newton-Schulz and memory_ceiling"):
        tnt.Local(config=own, shard=4, span=2, base="previous")
