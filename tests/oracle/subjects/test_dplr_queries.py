"""Cases of rule dplr in which several query heads read one memory: loops, gradients, tools."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.dplr import cut
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from tests.support import plain_loops
from tests.support.close import ANALYTIC, Tolerance, assert_close
from tests.support.dplr_cases import STEP, by_loop, made, of, weighed
from tests.support.replayed import assert_listed

ROUNDED = Tolerance("ROUNDED", 1e-12)
NAMES = (None, "kda", "gated_delta", "qwen3_next", "rwkv6", "retention", "precond_kda")
NAMES += ("linear_attn_normalized", "momentum_delta")
ORDERS = ("blocks", "round_robin")


def grouped(member: str | None, order: str = "blocks", **more: Any) -> Any:
    """A case of two key heads, four memories and twelve query heads."""
    parameters = {"groups": 2, "query_groups": 3, "group_order": order, **more}
    return made(member, parameters, heads=2)


@pytest.mark.clause("DPLRCASE-29")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("member", NAMES)
def test_results_and_gradients_are_those_of_the_loop(member: str | None, order: str) -> None:
    case = grouped(member, order)
    ours, x = evaluate(case, grad=True).tensors, dict(case.inputs)
    assert ours["out/y"].shape == x["in/y_bar"].shape == (12, 5, 2)
    assert (x["in/q"].shape, ours["out/M"].shape) == ((12, 5, 3), (4, 2, 3))
    for name, value in by_loop(case, x).items():
        assert_close(name, ours[name], value, ANALYTIC)
    draw = np.random.default_rng(1)
    for name in (each for each in x if f"grad/{each[3:]}" in ours):
        along = draw.standard_normal(x[name].shape)
        moved = by_loop(case, {**x, name: x[name] + 1j * STEP * along})
        slope = weighed(case, moved).imag / STEP
        assert_close(name, np.sum(ours[f"grad/{name[3:]}"] * along), slope, ANALYTIC)


@pytest.mark.clause("DPLRCASE-29", "DPLRCASE-6", "DPLRCASE-13")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("member", NAMES)
def test_the_plain_loop_and_the_forms_are_the_rule(member: str | None, order: str) -> None:
    case = grouped(member, order)
    plain_loops.assert_plain_loop(case, MEMBERS[:2], ROUNDED)
    ours = evaluate(case).tensors
    for form, chunk in (("scan", None), ("chunk", 2)) if member != "momentum_delta" else ():
        for name, value in evaluate(case, form=form, chunk=chunk).tensors.items():
            assert_close(name, value, ours[name], ROUNDED)


@pytest.mark.clause("DPLRCASE-29", "DPLRCASE-28")
@pytest.mark.parametrize("read", ["memory", "written", "zero"])
@pytest.mark.parametrize("member", ["kda", "linear_attn_normalized"])
def test_masked_tokens_of_every_query_head_read_the_same_way(member: str, read: str) -> None:
    case = grouped(member, masked_read=read)
    ours = evaluate(case).tensors
    for name, value in by_loop(case, dict(case.inputs)).items():
        assert_close(name, ours[name], value, ANALYTIC)
    plain_loops.assert_plain_loop(case, MEMBERS[:1], ROUNDED)


@pytest.mark.clause("DPLRCASE-29", "DPLRCASE-9", "DPLRCASE-11", "DPLRCASE-12")
@pytest.mark.parametrize("member", ["kda", "linear_attn_normalized"])
def test_identify_trace_and_replay_take_query_heads(member: str) -> None:
    case = made(member, {"query_groups": 2}, heads=2)
    assert case.void == {}
    header = case.header.plain() | {"parameters": {**of(case), "group_order": "round_robin"}}
    other = make(header, case.inputs)
    answer = identify(case, evaluate(other).tensors, depth=1)
    assert answer.verdict == "MATCH"
    assert answer.from_own == {"parameters.group_order": "round_robin"}
    assert_listed(case)
    assert {row.verdict for row in replay(case, trace(case, grad=True))} == {"PASS"}
    first = first_wrong(replay(case, trace(other)))
    assert first is not None
    assert first.op == ("normaliser" if member != "kda" else "y")
    assert "parameters.group_order=round_robin" in first.nearest


@pytest.mark.clause("DPLRCASE-29", "DPLRCASE-4")
def test_what_query_heads_cannot_be_is_refused() -> None:
    case = grouped("kda")
    with pytest.raises(atlas_ref.CaseError, match=r"in/q: shape .*, expected \(12, 5, 3\)"):
        make(case.header.plain(), {**case.inputs, "in/q": case.inputs["in/q"][:4]})
    with pytest.raises(atlas_ref.CaseError, match="query_groups: certify of several queries"):
        certify(case)
    one = made("kda", {"query_groups": 1}, heads=1)
    assert certify(one).values.keys() == {"out/y", "out/M"}
    bare = {name: x if x.ndim == 1 else x[0] for name, x in one.inputs.items()}
    assert make(one.header.plain(), bare).void == {}
    header = one.header.plain() | {"parameters": {"member": "kda", "query_groups": 2}}
    with pytest.raises(atlas_ref.CaseError, match="query_groups: 2, but in/v has no axis of heads"):
        make(header, bare)


@pytest.mark.clause("DPLRCASE-29", "SWEEP-16")
@pytest.mark.parametrize("order", ORDERS)
def test_a_sweep_cuts_query_heads_with_their_memories(order: str) -> None:
    _, settings, _, heads, *_ = cut.MOVES
    case = grouped("kda", order)
    whole = evaluate(case).tensors["out/y"]
    seen = set()
    for each in (*heads(case), *settings(case)):
        left = None
        with contextlib.suppress(
            atlas_ref.CaseError
        ):  # one query a key head, of which there are fewer
            left = None if each is None else make(*each)
        if left is None or of(left).get("member") != "kda" or of(left).keys() - of(case).keys():
            continue
        y = evaluate(left).tensors["out/y"]
        if of(left).get("group_order", "blocks") == order and len(y) < 12:
            assert all(any(np.array_equal(row, old) for old in whole) for row in y)
            seen.add((len(y), left.inputs["in/v"].shape[0], left.inputs["in/k"].shape[0]))
    assert {(6, 2, 1), (6, 2, 2), (8, 4, 2)} <= seen
