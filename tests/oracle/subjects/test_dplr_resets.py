"""Resets by row of rule dplr: every row of a batch starts its own sequences, and nothing else moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import CaseError, make
from atlas_ref.oracle.dplr import parameters
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.replay import replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.sweep import split
from tests.oracle.subjects.test_dplr_masked import NAMES, READS, ROUNDED, in_rows
from tests.support import plain_loops
from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.dplr_cases import STEP

#: A row that starts once, one that starts twice, the last time at its last token, and one of one document.
RESETS = np.array([[0, 0, 1, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]], np.uint8)


def packed(
    member: str | None, read: str = "memory", resets: Any = RESETS, **sizes: Any
) -> tuple[Any, list[Any]]:
    """A case of three rows with masks of their own, and the rows as cases of their own."""
    case, alone = in_rows(member, read, **sizes)
    whole = make(case.header.plain(), {**case.inputs, "in/reset": resets})
    each = zip(alone, resets, strict=True)
    return whole, [make(row.header.plain(), {**row.inputs, "in/reset": x}) for row, x in each]


def assert_rows(case: Any, rows: list[Any], **form: Any) -> None:
    """A case of rows gives what each of them gives by itself."""
    ours = evaluate(case, grad=True, **form).tensors
    each = [evaluate(row, grad=True, **form).tensors for row in rows]
    for name, value in ours.items():
        parts = [one[name] for one in each]
        want = sum(parts) if name == "grad/bonus" else np.stack(parts)
        assert_close(name, value, want, ROUNDED)


@pytest.mark.clause("DPLRCASE-27", "CONV-68", "DPLR-19", "DPLR-20", "DPLR-21")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("member", NAMES)
def test_a_row_of_a_batch_is_what_it_is_alone(member: str | None, read: str) -> None:
    case, rows = packed(member, read)
    assert_rows(case, rows)
    of_all = make(case.header.plain(), {**case.inputs, "in/reset": RESETS[0]})
    assert_differs("y", evaluate(case).tensors["out/y"], evaluate(of_all).tensors["out/y"], 1e-3)


@pytest.mark.clause("DPLRCASE-27", "CONV-68", "DPLR-12")
@pytest.mark.parametrize(("form", "chunk"), [("scan", None), ("chunk", 1), ("chunk", 2)])
@pytest.mark.parametrize("member", [None, "kda", "rwkv6", "linear_attn_normalized"])
def test_every_form_takes_the_rows(member: str | None, form: str, chunk: int | None) -> None:
    assert_rows(*packed(member), form=form, chunk=chunk)


@pytest.mark.clause("DPLRCASE-27", "CONV-68")
@pytest.mark.parametrize("seed", range(4))
def test_drawn_masks_are_those_of_the_rows(seed: int) -> None:
    """Rows that share their masks, and rows that begin with a reset, among others."""
    draw = np.random.default_rng(seed)
    resets = (draw.uniform(size=(3, 7)) < 0.4).astype(np.uint8)
    resets[1] = resets[0]
    case, rows = packed("gdn2", resets=np.zeros((3, 5), np.uint8))
    active = (draw.uniform(size=(3, 7)) < 0.7).astype(np.uint8)
    active[2] = active[0]
    twice = [0, 1, 2, 3, 4, 4, 1]

    def longer(name: str, x: Any, masks: dict[str, Any]) -> Any:
        if name in masks:
            return masks[name]
        tokens = [axis for axis in range(x.ndim) if x.shape[axis] == 5]
        return np.take(x, twice, axis=tokens[-1]) if tokens else x

    def of(case: Any, masks: dict[str, Any]) -> Any:
        return make(case.header.plain(), {n: longer(n, x, masks) for n, x in case.inputs.items()})

    whole = of(case, {"in/reset": resets, "in/active": active})
    each = [of(row, {"in/reset": resets[i], "in/active": active[i]}) for i, row in enumerate(rows)]
    for form in ("sequential", "scan", "chunk"):
        assert_rows(whole, each, form=form)


def literal(case: Any, x: dict[str, Any]) -> tuple[Any, Any]:
    """Reads and last memories, number by number, of a case without a member (DPLR-2, DPLR-5)."""
    own = parameters.parse(case.header)
    batch, heads, T, d_out = x["in/v"].shape
    d_in = x["in/k"].shape[-1]
    y = np.zeros((batch, heads, T, d_out), complex)
    last = np.zeros((batch, heads, d_out, d_in), complex)
    for b in range(batch):
        for h in range(heads):
            key = h // own.groups
            M = [[x["in/M0"][b, h, i, j] for j in range(d_in)] for i in range(d_out)]
            for t in range(T):
                if x["in/reset"][b, t]:
                    M = [[x["in/M0"][b, h, i, j] for j in range(d_in)] for i in range(d_out)]
                if x["in/active"][b, t]:
                    k, v = x["in/k"][b, key, t], x["in/v"][b, h, t]
                    w = x["in/retain"][b, h, t]
                    read, write = x["in/erase_read"][b, h, t], x["in/erase_write"][b, h, t]
                    new = []
                    for i in range(d_out):
                        found = sum(M[i][j] * read[j] for j in range(d_in))
                        new.append(
                            [M[i][j] * w[j] - found * write[j] + v[i] * k[j] for j in range(d_in)]
                        )
                    M = new
                q = x["in/q"][b, key, t]
                for i in range(d_out):
                    y[b, h, t, i] = sum(M[i][j] * q[j] for j in range(d_in))
            last[b, h] = M
    return y, last


@pytest.mark.clause("DPLRCASE-27", "CONV-68", "DPLR-10")
def test_values_and_gradients_are_those_of_a_loop_over_numbers() -> None:
    case, _ = packed(None)
    ours, x = evaluate(case, grad=True).tensors, dict(case.inputs)
    y, M = literal(case, x)
    assert_close("y", ours["out/y"], y.real, ANALYTIC)
    assert_close("M", ours["out/M"], M.real, ANALYTIC)
    draw = np.random.default_rng(3)
    names = [name for name in x if f"grad/{name[3:]}" in ours]
    assert {"in/M0", "in/k", "in/retain", "in/erase_read"} <= {*names}
    for name in names:
        along = draw.standard_normal(x[name].shape)
        y, M = literal(case, {**x, name: x[name] + 1j * STEP * along})
        slope = (np.sum(x["in/y_bar"] * y) + np.sum(x["in/M_bar"] * M)).imag / STEP
        assert_close(name, np.sum(ours[f"grad/{name[3:]}"] * along), slope, ANALYTIC)


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-6", "PROG-2")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("member", NAMES)
def test_the_plain_loop_is_the_rule(member: str | None, read: str) -> None:
    plain_loops.assert_plain_loop(packed(member, read)[0], MEMBERS[:2], ROUNDED)


@pytest.mark.clause("DPLRCASE-27", "CERT-18", "DPLRCASE-13")
@pytest.mark.parametrize("member", [None, "linear_attn_normalized", "momentum_delta", "rwkv6"])
def test_certified_results_are_the_rule(member: str | None) -> None:
    case = packed(member, tokens=5, d_in=2)[0]
    ours = evaluate(case, grad=True).tensors
    for name, value in certify(case, grad=True).values.items():
        assert_close(name, ours[name], value, ROUNDED)


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-14", "DPLRCASE-15")
@pytest.mark.parametrize(
    "declared", [{"state_dtype": "bfloat16", "state_every": 2}, {"log_chunk": 2}]
)
def test_rounding_begins_anew_in_the_rows_where_a_sequence_starts(
    declared: dict[str, Any],
) -> None:
    """A tolerance knows the larger of its rows' errors; a mask of all rows gives them all another."""
    case, rows = packed("kda")
    plain = SUBJECTS["dplr"].plain

    def narrow(one: Any) -> dict[str, Any]:
        own = {**one.header["parameters"], **declared}
        stated = make({**one.header.plain(), "parameters": own}, one.inputs)
        x = {n: v if v.dtype == np.uint8 else v.astype(np.float32) for n, v in one.inputs.items()}
        rounding = plain_loops.PLAINLY
        if "state_dtype" in declared:
            rounding = rounding._replace(
                store=lambda v: v.astype(np.float16).astype(np.float32)  # coarse, like any format
            )
        return dict(plain(x, stated, rounding))

    ours, each = narrow(case), [narrow(row) for row in rows]
    for name, value in ours.items():
        np.testing.assert_allclose(value, np.stack([one[name] for one in each]), 1e-5, 1e-6)
    undeclared = plain(
        {n: v if v.dtype == np.uint8 else v.astype(np.float32) for n, v in case.inputs.items()},
        case,
        plain_loops.PLAINLY,
    )
    assert any(not np.array_equal(ours[name], undeclared[name]) for name in ours)
    assert set(tolerances(case, dtype="float32")) == set(ours)


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-12", "REPLAY-23")
@pytest.mark.parametrize("member", ["kda", "momentum_delta", "precond_kda", "rwkv7"])
def test_a_right_trace_passes(member: str) -> None:
    case = packed(member)[0]
    assert {row.verdict for row in replay(case, trace(case, grad=True))} == {"PASS"}


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-9", "PROG-4")
@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("resets came one token late", lambda x: np.roll(x, 1, axis=1)),
        ("resets came one token early", lambda x: np.roll(x, -1, axis=1)),
        ("in/reset was absent", np.zeros_like),
    ],
)
def test_identify_names_a_mistake_with_the_resets_of_rows(words: str, change: Any) -> None:
    inside = np.array([[0, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], np.uint8)
    case, _ = packed("kda", resets=inside)
    found = make(case.header.plain(), {**case.inputs, "in/reset": change(inside)})
    answer = identify(case, evaluate(found).tensors, depth=1)
    assert words in str(answer)


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-25")
def test_identify_goes_through_every_mistake_of_a_case_of_rows() -> None:
    """Mistakes at boundaries are those of each row, also where none explains the results."""
    case, rows = packed("kda")
    wrong = evaluate(case).tensors
    answer = identify(case, {**wrong, "out/y": 1.37 * wrong["out/y"] + 0.01}, depth=1)
    assert answer.verdict != "MATCH"
    # the state of a row ran on through its resets, which a program does by itself in each row
    free = [
        make(r.header.plain(), {**r.inputs, "in/reset": 0 * r.inputs["in/reset"]}) for r in rows
    ]
    each = [evaluate(row).tensors for row in free]
    ours = {name: np.stack([one[name] for one in each]) for name in wrong}
    assert "in/reset was absent" in str(identify(case, ours, depth=1))


@pytest.mark.clause("DPLRCASE-27", "CONV-38")
def test_a_call_is_cut_behind_the_last_reset_of_every_row() -> None:
    """A later one would go back to the first state of its own call."""
    resets = np.array([[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0] * 5], np.uint8)
    case, _ = packed("kda", resets=resets)
    assert split.places(case) == [4]
    assert split.places(packed("kda")[0]) == []
    calls = SUBJECTS["dplr"].calls
    assert calls is not None
    whole, state, reads = evaluate(case).tensors, dict[str, Any](), []
    for tokens in (range(4), range(4, 5)):
        part = calls.cut(case, list(tokens))
        begun = evaluate(make(part.header, {**part.tensors, **state})).tensors
        state = {"in/M0": begun["out/M"]}
        reads.append(begun["out/y"])
    assert_close("y", np.concatenate(reads, -2), whole["out/y"], ROUNDED)
    assert_close("M", state["in/M0"], whole["out/M"], ROUNDED)


@pytest.mark.clause("DPLRCASE-27", "DPLRCASE-4")
def test_other_shapes_are_refused() -> None:
    case, rows = packed("kda")
    for mask in (RESETS[:2], RESETS[:, :4], RESETS[:, None], np.repeat(RESETS[:, None], 4, axis=1)):
        with pytest.raises(CaseError, match=r"in/reset: shape .*, expected \(5,\) or \(3, 5\)"):
            make(case.header.plain(), {**case.inputs, "in/reset": mask})
    with pytest.raises(CaseError, match=r"in/reset: shape \(1, 5\), expected \(5,\)$"):
        make(rows[0].header.plain(), {**rows[0].inputs, "in/reset": RESETS[:1]})
