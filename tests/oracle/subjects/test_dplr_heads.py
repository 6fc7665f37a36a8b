"""Cases of rule dplr whose value heads take key heads round robin: loops, gradients, tools."""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.features import features
from atlas_ref.oracle.dplr import cut
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.identify.identify import identify
from tests.support import plain_loops
from tests.support.close import ANALYTIC, Tolerance, assert_close, assert_differs
from tests.support.dplr_cases import ROBIN, STEP, by_loop, made, of, weighed

ROUNDED = Tolerance("ROUNDED", 1e-12)

#: Every kind of state and erase, a batch axis among them.
NAMES = (None, "kda", "delta", "gdn2", "qwen3_next", "rwkv6", "rwkv7", "retention")
NAMES += ("precond_kda", "linear_attn_normalized", "momentum_delta")


@pytest.mark.clause("DPLRCASE-26")
@pytest.mark.parametrize("member", NAMES)
def test_results_and_gradients_are_those_of_the_loop(member: str | None) -> None:
    case = made(member)
    ours, x = evaluate(case, grad=True).tensors, dict(case.inputs)
    want = by_loop(case, x)
    assert want.keys() == {name for name in ours if name.startswith("out/")}
    for name, value in want.items():
        assert_close(name, ours[name], value, ANALYTIC)
    draw = np.random.default_rng(1)
    for name in (each for each in x if f"grad/{each[3:]}" in ours):
        along = draw.standard_normal(x[name].shape)
        moved = by_loop(case, {**x, name: x[name] + 1j * STEP * along})
        slope = weighed(case, moved).imag / STEP
        assert_close(name, np.sum(ours[f"grad/{name[3:]}"] * along), slope, ANALYTIC)
    blocks = make(case.header.plain() | {"parameters": {**of(case), "group_order": "blocks"}}, x)
    assert_differs("y", ours["out/y"], evaluate(blocks).tensors["out/y"], 1e-3)


@pytest.mark.clause("DPLRCASE-26", "DPLRCASE-6")
@pytest.mark.parametrize("member", [None, "precond_kda", "momentum_delta"])
def test_the_plain_loop_the_forms_and_certified_results_are_the_rule(member: str | None) -> None:
    case = made(member, pulse=1)
    plain_loops.assert_plain_loop(case, MEMBERS[:2], ROUNDED)
    ours = evaluate(case, grad=True).tensors
    if member != "precond_kda":  # which certify has no groups of
        for name, value in certify(case, grad=True).values.items():
            assert_close(name, ours[name], value, ROUNDED)
    for form, chunk in (("scan", None), ("chunk", 2)) if member != "momentum_delta" else ():
        for name, value in evaluate(case, form=form, chunk=chunk).tensors.items():
            assert_close(name, value, ours[name], ROUNDED)


@pytest.mark.clause("DPLRCASE-26", "DPLRCASE-9")
def test_identify_names_the_order_of_heads_both_ways() -> None:
    for mine, other in (("round_robin", "blocks"), ("blocks", "round_robin")):
        case = made("kda", {"groups": 2, "group_order": other})
        header = case.header.plain() | {"parameters": {**of(case), "group_order": mine}}
        results = evaluate(make(header, case.inputs)).tensors
        answer = identify(case, results, depth=1)
        assert answer.verdict == "MATCH"
        assert answer.from_own == {"parameters.group_order": mine}


@pytest.mark.clause("DPLRCASE-26", "DPLRCASE-5")
def test_an_order_that_cannot_matter_is_void() -> None:
    assert made("kda").void == {}
    for sizes in ({"heads": 1}, {"parameters": {**ROBIN, "groups": 1}}):
        case = made("kda", **sizes)
        assert list(case.void) == ["parameters.group_order"]
        answer = identify(case, evaluate(case).tensors, depth=1)
        assert answer.own
        assert not any("group_order" in each for each in answer.undecided)
    assert "heads" in features(made("kda"))
    words = "parameters.group_order: must be 'blocks' or 'round_robin', found 'robin'"
    with pytest.raises(atlas_ref.CaseError, match=words):
        made("kda", {"groups": 2, "group_order": "robin"})


@pytest.mark.clause("DPLRCASE-26", "SWEEP-16")
def test_a_sweep_cuts_heads_and_groups_in_their_order() -> None:
    """Of a cut case the results are those of the heads that are left."""
    _, settings, _, heads, *_ = cut.MOVES
    case = made("kda")
    whole = evaluate(case).tensors["out/y"]
    found = [each for each in (*heads(case), *settings(case)) if each is not None]
    seen = set()
    for each in found:
        left = make(*each)
        y, own = evaluate(left).tensors["out/y"], of(left)
        V, H = y.shape[0], left.inputs["in/k"].shape[0]
        if V == 6 or own.get("member") != "kda" or own.keys() - {"member", *ROBIN}:
            continue
        heads = [h for h in range(6) if any(np.array_equal(whole[h], row) for row in y)]
        seen.add((V, H, tuple(heads)))
    assert {(2, 1, (0, 3)), (3, 3, (0, 1, 2))} <= seen
