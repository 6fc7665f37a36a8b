"""Cases of deep momentum: evaluation, plain loop, certify, splits, replay, identify, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.deep import program
from atlas_ref.oracle.deep.program import SEARCHED
from atlas_ref.oracle.deep.sweep.cut import MOVES
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.subjects import deep_memory
from atlas_ref.oracle.sweep.draw import checked_choices, draw_case
from tests.support import deep_cases, plain_loops
from tests.support.casefiles import parts
from tests.support.close import EXACT, assert_close, assert_differs, reordered

SILU = {"function": {"kind": "mlp", "activation": "silu", "expansion": 0.5}, "objective": "l2"}
GELU = {"kind": "mlp", "activation": "gelu", "expansion": 0.5}

#: Cases by name: every objective, both signs, networks of every kind of tensor, a call that goes on.
CASES: dict[str, dict[str, Any]] = {
    "l2": {},
    "minus": {"convention": {"momentum_sign": "minus"}, "history": 2, "reset": 4},
    "dot of a linear network": {
        "parameters": {"deep_momentum": {"function": {"kind": "linear"}, "objective": "dot"}}
    },
    "ones of a normed network, several tensors": {
        "convention": {"newton_schulz": {"steps": 2}},
        "parameters": {
            "memory": {"kind": "mlp", "expansion": 1.0, "residual_norm": True},
            "fast": "all",
            "vectors": "raw",
            "clip": "soft",
            "deep_momentum": {
                "function": {"kind": "mlp", "expansion": 0.2, "residual_norm": True},
                "objective": "ones",
            },
        },
        "d_out": 3,
        "tokens": 5,
    },
    "first order": {"parameters": {"outer_gradient": "first_order", "clip": "hard"}},
    "shared": {"parameters": {"coupling": "batch_shared", "reduction": "mean"}},
}


def case_of(name: str = "l2", **more: Any) -> Any:
    given = {"tokens": 6, "d_in": 3, "d_out": 2, "heads": 2} | CASES[name] | more
    own = {"memory": {"kind": "linear"}, "chunk": 2, "window": 3, "deep_momentum": SILU}
    given["parameters"] = own | CASES[name].get("parameters", {})
    axes = {"newton_schulz": "none", "rate": "both"} | CASES[name].get("convention", {})
    return deep_cases.made(**given | {"convention": axes})


@pytest.mark.slow
@pytest.mark.clause("DEEPCASE-10")
@pytest.mark.parametrize("memory", ["linear", "mlp"])
@pytest.mark.parametrize("objective", ["l2", "dot"])
def test_a_long_case_that_is_drawn_does_not_grow(objective: str, memory: str) -> None:
    for axes in ({}, {"newton_schulz": "none"}):
        own = {"memory": {"kind": memory}, "deep_momentum": {"objective": objective}}
        request = {"tokens": 64, "d_in": 8, "d_out": 8, "heads": 1, "parameters": own}
        found = evaluate(deep_cases.made(**request, convention=axes), grad=True).tensors
        assert max(np.abs(each).max() for each in found.values() if each.size) < 100.0


@pytest.mark.clause("DEEP-37", "DEEP-38", "DEEPCASE-1", "DEEPCASE-6", "DEEPCASE-7", "DEEPCASE-9")
@pytest.mark.clause("CERT-17", "DEEPCASE-11")
@pytest.mark.parametrize("name", CASES)
def test_the_rule_the_plain_loop_and_certified_results_agree(name: str) -> None:
    ours = plain_loops.assert_all_agree(case_of(name))
    assert any(each.startswith("grad/memory/momentum/") for each in ours)


@pytest.mark.clause("DEEP-37", "DEEPCASE-5", "DEEPCASE-6")
def test_a_call_that_goes_on_carries_the_network() -> None:
    case = case_of(cotangent=False)
    whole, inputs = evaluate(case).tensors, dict(case.inputs)
    first = evaluate(case.replaced(inputs=deep_cases.cut(inputs, 0, 3))).tensors
    rest = deep_cases.cut(inputs, 3, 6) | deep_cases.resumed(first)
    last = evaluate(atlas_ref.make(dict(case.header), rest)).tensors
    joined = np.concatenate([first["out/y"], last["out/y"]], axis=-2)
    assert_close("y", joined, whole["out/y"], reordered(16))
    for each in ("W_1", "W_2"):
        name = f"out/state/momentum/{each}"
        assert_close(name, last[name], whole[name], reordered(16))
    for each in ("W_1", "W_2"):
        del rest[f"in/state/momentum/{each}"]
    other = evaluate(atlas_ref.make(dict(case.header), rest)).tensors["out/y"]
    assert_differs("y", other, last["out/y"], 1e-6)


@pytest.mark.clause("DEEP-37", "DEEPCASE-5", "DEEPCASE-6")
def test_a_call_that_writes_nothing_leaves_the_first_network() -> None:
    case = case_of(tokens=1, cotangent=False)
    found = evaluate(case).tensors["out/state/momentum/W_1"]
    first = case.inputs["in/memory/momentum/W_1"]
    assert_close("W_1", found, np.broadcast_to(first, found.shape), EXACT)


@pytest.mark.sample(1)
@pytest.mark.clause("DEEP-37", "DEEPCASE-12", "DEEPCASE-13")
@pytest.mark.parametrize("name", ["l2", "ones of a normed network, several tensors", "first order"])
def test_a_replay_names_the_op_of_the_network_that_is_wrong(name: str) -> None:
    case = case_of(name)
    right = trace(case, dtype="float32", grad=True)
    assert first_wrong(replay(case, right, nearest=False)) is None
    ops = [
        each for each in right if each.startswith(("trace/learn/", "trace/slope", "trace/move/"))
    ]
    ops += [
        f"trace/S/{each}" for each in deep_memory.config(case.header, case.inputs).momentum_shapes
    ]
    assert len(ops) > 6
    for op in ops:
        wrong = dict(right) | {op: np.float32(1.02) * right[op] + np.float32(0.01)}
        first = first_wrong(replay(case, wrong, nearest=False))
        assert first is not None, op
        assert first.tensor == op


@pytest.mark.clause("DEEP-38", "DEEPCASE-14")
def test_identify_names_the_objective_the_activation_and_the_sign() -> None:
    case = case_of()
    assert identify(case, dict(evaluate(case).tensors), depth=1).verdict == "MATCH"
    axes, own = case.header.plain()["convention"], case.header.parameters
    for settings, changed in (
        ({"deep_momentum": SILU | {"objective": "dot"}}, "parameters.deep_momentum"),
        ({"deep_momentum": SILU | {"objective": "ones"}}, "parameters.deep_momentum"),
        ({"deep_momentum": SILU | {"function": GELU}}, "parameters.deep_momentum"),
        ({"direction": "ascent"}, "direction"),
    ):
        header = case.header.plain()
        if changed in settings:
            header["convention"] = axes | settings
        else:
            header["parameters"] = {**own, **settings}
        other = atlas_ref.make(header, dict(case.inputs))
        answer = identify(case, dict(evaluate(other).tensors), depth=1)
        assert answer.verdict == "MATCH"
        assert set(answer.from_own) == {changed}


@pytest.mark.clause("DEEPCASE-15")
def test_mistakes_of_a_network_are_made_in_its_cases_alone() -> None:
    case = case_of()
    names = {"network mapped before it learned", "network held fixed"}
    mistakes = {each.name: each for each in SEARCHED.departures(case)}
    assert names <= mistakes.keys()
    ours = evaluate(case, grad=True).tensors
    late = program.run(
        case.inputs, case, plain_loops.PLAINLY, [mistakes["network mapped before it learned"]]
    )
    assert_differs("y", late["out/y"], ours["out/y"], 1e-6)
    plain = deep_cases.made(tokens=6, parameters={"memory": {"kind": "linear"}})
    assert not names & {each.name for each in SEARCHED.departures(plain)}


@pytest.mark.clause("SWEEP-13")
def test_a_sweep_draws_a_network_where_it_is_fixed_and_nothing_else_for_it() -> None:
    alike = 0
    for number in range(6):
        plain = draw_case("deep_memory", 0, number, {})
        fixed = draw_case("deep_memory", 0, number, {"deep_momentum": (SILU,)})
        own = {**fixed.request, "parameters": {**fixed.request["parameters"]}}
        assert own["parameters"].pop("deep_momentum") == SILU
        if own["seed"] == plain.request["seed"]:  # its first attempt fits a network
            assert own == plain.request
            alike += 1
        evaluate(fixed.case)
    assert alike > 2
    with pytest.raises(CaseError, match="'deep_momentums' is not drawn"):
        checked_choices("deep_memory", {"deep_momentums": (SILU,)})


@pytest.mark.clause("SWEEP-13")
def test_smaller_cases_keep_a_network_that_fits() -> None:
    case = case_of("minus")
    made = 0
    for move in MOVES:
        for candidate in move(case):
            if candidate is None:
                continue
            try:
                smaller = atlas_ref.make(candidate.header, candidate.tensors)
            except CaseError:
                continue
            evaluate(smaller)
            made += "deep_momentum" in (smaller.header.parameters or {})
    assert made > 10


@pytest.mark.clause("DEEPCASE-3", "DEEP-37")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("in/momentum"), "in/momentum: missing"),
        (lambda t: t.pop("in/memory/momentum/W_2"), "in/memory/momentum/W_2: missing"),
        (
            lambda t: t.update({"in/memory/momentum/W_1": np.zeros((2, 2))}),
            r"in/memory/momentum/W_1: shape \(2, 2\), expected",
        ),
        (
            lambda t: t.update({"in/state/momentum/W": np.zeros((2, 2, 3))}),
            "in/state/momentum/W: not part of this case: no write moves it",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(change: Any, words: str) -> None:
    header, tensors = parts(case_of(cotangent=False))
    change(tensors)
    with pytest.raises(CaseError, match=words):
        atlas_ref.make(header, tensors)
