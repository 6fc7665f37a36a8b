"""Masked tokens of rule dplr: masks by row, three kinds of read, and gradients by complex steps."""

from __future__ import annotations

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
from atlas_ref.oracle.sweep.draw import draw_case
from tests.support import plain_loops
from tests.support.close import ANALYTIC, Tolerance, assert_close, assert_differs
from tests.support.dplr_cases import STEP, by_loop, made, of, weighed
from tests.support.replayed import assert_listed

READS = ("memory", "written", "zero")
ROUNDED = Tolerance("ROUNDED", 1e-12)
ROWS = np.array([[1, 0, 1, 0, 1], [1, 1, 0, 0, 1], [1, 1, 1, 1, 1]], np.uint8)
NAMES = (None, "kda", "gdn2", "qwen3_next", "rwkv6", "rwkv7", "retention", "dplr")
NAMES += ("precond_kda", "precond_gated_delta", "linear_attn_normalized", "momentum_delta")


def masked(member: str | None, read: str = "memory", *, steps: int = 1, **sizes: Any) -> Any:
    """A case of one row: two groups of two heads, tokens 1 and 3 masked, a reset at token 3."""
    own = {"groups": 2, "masked_read": read} | ({"steps": steps} if steps > 1 else {})
    return made(member, own, **{"pulse": 2, "heads": 2} | sizes)


def in_rows(member: str | None, read: str = "memory", **sizes: Any) -> tuple[Any, list[Any]]:
    """A case of three rows of a batch, and the rows as cases of their own."""
    rows = [masked(member, read, pulse=1, seed=number, **sizes) for number in range(3)]
    shared = {"in/reset", "in/bonus"}
    x = {
        name: each if name in shared else np.stack([row.inputs[name] for row in rows])
        for name, each in rows[0].inputs.items()
    }
    case = make(rows[0].header.plain(), {**x, "in/active": ROWS})
    alone = [
        make(row.header.plain(), {**row.inputs, "in/active": mask}
             | {name: x[name] for name in shared & x.keys()})
        for row, mask in zip(rows, ROWS, strict=True)
    ]  # fmt: skip
    return case, alone


@pytest.mark.clause("DPLRCASE-28")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("member", [name for name in NAMES if name != "precond_gated_delta"])
def test_reads_and_gradients_of_masked_tokens_are_those_of_the_loop(
    member: str | None, read: str
) -> None:
    case = masked(member, read, steps=2 if member in (None, "kda") else 1)
    ours, x = evaluate(case, grad=True).tensors, dict(case.inputs)
    for name, value in by_loop(case, x).items():
        assert_close(name, ours[name], value, ANALYTIC)
    draw = np.random.default_rng(1)
    for name in (each for each in x if f"grad/{each[3:]}" in ours):
        along = draw.standard_normal(x[name].shape)
        moved = by_loop(case, {**x, name: x[name] + 1j * STEP * along})
        slope = weighed(case, moved).imag / STEP
        assert_close(name, np.sum(ours[f"grad/{name[3:]}"] * along), slope, ANALYTIC)
    plain = evaluate(masked(member, steps=2 if member in (None, "kda") else 1)).tensors
    assert np.array_equal(plain["out/M"], ours["out/M"]) or read == "written"
    assert_close("M", ours["out/M"], plain["out/M"], ROUNDED)
    if read != "memory":
        assert_differs("y", ours["out/y"], plain["out/y"], 1e-3)
    if read == "zero":
        assert not ours["out/y"][:, x["in/active"] == 0].any()


@pytest.mark.clause("DPLRCASE-27")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("member", NAMES)
def test_a_row_of_a_batch_is_what_it_is_alone(member: str | None, read: str) -> None:
    case, rows = in_rows(member, read)
    ours = evaluate(case, grad=True).tensors
    each = [evaluate(row, grad=True).tensors for row in rows]
    for name, value in ours.items():
        parts = [one[name] for one in each]
        want = sum(parts) if name == "grad/bonus" else np.stack(parts)
        assert_close(name, value, want, ROUNDED)


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-28", "DPLRCASE-6")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("member", NAMES)
def test_the_plain_loop_is_the_rule(member: str | None, read: str) -> None:
    plain_loops.assert_plain_loop(in_rows(member, read)[0], MEMBERS[:2], ROUNDED)


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-28", "CERT-18", "DPLRCASE-13")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("member", [None, "linear_attn_normalized", "momentum_delta", "rwkv6"])
def test_forms_and_certified_results_are_the_rule(member: str | None, read: str) -> None:
    case = in_rows(member, read, tokens=5, d_in=2)[0]
    ours = evaluate(case, grad=True).tensors
    for name, value in certify(case, grad=True).values.items():
        assert_close(name, ours[name], value, ROUNDED)
    for form, chunk in (("scan", None), ("chunk", 2)) if member != "momentum_delta" else ():
        for name, value in evaluate(case, form=form, chunk=chunk).tensors.items():
            assert_close(name, value, ours[name], ROUNDED)


@pytest.mark.clause("DPLRCASE-28", "DPLRCASE-9")
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("mine", READS)
def test_identify_names_what_masked_tokens_read(mine: str, rows: bool) -> None:
    other = "memory" if mine != "memory" else "zero"
    case = in_rows("kda", other)[0] if rows else masked("kda", other)
    header = case.header.plain() | {"parameters": {**of(case), "masked_read": mine}}
    answer = identify(case, evaluate(make(header, case.inputs)).tensors, depth=1)
    assert answer.verdict == "MATCH"
    assert answer.from_own == {"parameters.masked_read": mine}


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-28", "DPLRCASE-4")
def test_what_cannot_matter_is_void_and_other_masks_are_refused() -> None:
    assert masked("kda", "zero").void == {}
    assert list(masked("kda", "zero", pulse=1).void) == ["parameters.masked_read"]
    case = in_rows("kda")[0]
    for mask in (ROWS[:2], ROWS[:, :4], ROWS[:, None], np.repeat(ROWS[:, None], 4, axis=1)):
        with pytest.raises(atlas_ref.CaseError, match=r"in/active: shape .*, expected \(5,\) or"):
            make(case.header.plain(), {**case.inputs, "in/active": mask})
    alone = masked("kda")
    with pytest.raises(atlas_ref.CaseError, match=r"in/active: shape \(1, 5\), expected \(5,\)$"):
        make(alone.header.plain(), {**alone.inputs, "in/active": ROWS[:1]})


@pytest.mark.clause("DPLRCASE-27", "DPLR-7")
@pytest.mark.parametrize("read", READS)
def test_a_call_that_is_cut_gives_what_the_whole_one_gives(read: str) -> None:
    whole = in_rows("kda", read)[0]
    x = {name: value for name, value in whole.inputs.items() if name != "in/reset"}
    whole = make(whole.header.plain(), x)
    axes = {name: -1 if name == "in/active" or x[name].ndim == 3 else -2 for name in x}
    state, reads = {}, []
    for tokens in (range(2), range(2, 5)):
        part = {
            name: value.take(tokens, axes[name]) if value.shape[axes[name]] == 5 else value
            for name, value in x.items()
        }
        found = evaluate(make(whole.header.plain(), part | state)).tensors
        state = {"in/M0": found["out/M"]}
        reads.append(found["out/y"])
    assert_close("y", np.concatenate(reads, -2), evaluate(whole).tensors["out/y"], ROUNDED)


@pytest.mark.clause("DPLRCASE-27", "SWEEP-16")
def test_a_failure_shrinks_with_its_mask_by_row() -> None:
    case = in_rows("kda", "zero")[0]
    for move in cut.MOVES:
        for each in move(case):
            if each is not None and "in/active" in each[1]:
                assert make(*each).inputs["in/active"].ndim == 2


@pytest.mark.clause("DPLRCASE-16", "DPLRCASE-17", "SWEEP-16")
@pytest.mark.parametrize(
    "fixed",
    [
        {"gate_formula": ("softplus",), "member": ("kda",)},
        {"beta_formula": ("sigmoid",), "member": ("delta",)},
    ],
)
def test_a_failure_shrinks_with_its_formula_and_without(fixed: dict[str, Any]) -> None:
    """A plainer member that has no use for a formula is no candidate."""
    key, left = next(iter(fixed)), set[bool]()
    for number in range(4):
        case = draw_case("dplr", 0, number, fixed).case
        found = [each for move in cut.MOVES for each in move(case) if each is not None]
        left |= {key in each.header.get("parameters", {}) for each in found}
    assert left == {False, True}


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-28", "DPLRCASE-12", "REPLAY-23")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("member", ["kda", "momentum_delta", "linear_attn_normalized"])
def test_a_right_trace_passes_and_another_read_is_the_first_wrong_op(
    member: str, read: str
) -> None:
    case = in_rows(member, read)[0]
    assert_listed(case)
    own = trace(case, grad=True)
    assert {row.verdict for row in replay(case, own)} == {"PASS"}
    other = "zero" if read != "zero" else "memory"
    header = case.header.plain() | {"parameters": {**of(case), "masked_read": other}}
    first = first_wrong(replay(case, trace(make(header, case.inputs))))
    assert first is not None
    divides = member == "linear_attn_normalized" and read == "written"
    assert (first.op, first.token) == ("normaliser" if divides else "y", 1)
    assert f"parameters.masked_read={other}" in first.nearest
