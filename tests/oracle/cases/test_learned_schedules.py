"""Learned schedules in case files, against loops over every row and the package's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import atlas_ref
import tape
from atlas_ref.levels import block as cms
from atlas_ref.levels import learned
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import results as results_of
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.judge.ensemble import exact
from atlas_ref.oracle.subjects.levels import learned as subject
from tests.support.blocks import MIXED
from tests.support.casefiles import some, written
from tests.support.close import ANALYTIC, assert_close, assert_differs, reordered
from tests.support.learned_blocks import (
    AFFINE,
    combined,
    learnt,
    levels_in_loops,
    mask_in_loops,
)
from tests.support.level_cases import case_of
from tests.support.refusal import refused_everywhere
from tests.truth import literal

Array = np.ndarray[Any, Any]

LOOPS = reordered(1, amplification=1e7)  # Newton-Schulz


def case_with_gates(
    specs: Any,
    params: learned.Params,
    x: Array,
    context: cms.Context,
    *,
    until: int = 0,
    reset: Array | None = None,
    **tensors: Any,
) -> atlas_ref.Case:
    """A block of the package with a learned schedule, as a case; its threshold is 0.45."""
    plain = case_of(specs, params.block, x, context, reset=reset)
    gates = {"threshold": 0.45, "until": until}
    header = plain.header.plain()
    header["schedule"] = {**header["schedule"], "learned": gates}
    own = {"in/param/W_active": params.W, "in/param/b_active": params.b}
    return atlas_ref.make(header, {**plain.inputs, **own, **tensors})


@pytest.mark.clause("CASE-37", "CASE-33", "CMS-20")
@pytest.mark.parametrize("specs", [MIXED, AFFINE], ids=["mixed", "affine"])
def test_a_learned_schedule_in_a_case_is_its_definition_in_loops_and_the_package_s_own(
    specs: Any,
) -> None:
    config, params, x, context = learnt(specs)
    places = [spec["period"] for spec in specs]
    active = mask_in_loops(params, x, 0.45, fastest=places.index(1))
    assert (active[0] != active[1]).any()  # each row decides for itself
    for reset in (None, np.isin(np.arange(9), [4]), np.arange(9) == 0):
        case = case_with_gates(specs, params, x, context, reset=reset)
        found = atlas_ref.evaluate(case).tensors
        want = levels_in_loops(specs, params.block, x, context, active, reset)
        assert_close("out/y", found["out/y"], combined(want, params.block.logits), LOOPS)
        for i, rows in enumerate(want):
            for b, row in enumerate(rows):
                names = [name for name in row if name.startswith("out/") and name != "out/y"]
                for name in names:
                    own = found[name.replace("out/", f"out/level{i}/", 1)][b]
                    assert_close(f"{name} of level {i}", own, row[name][0], LOOPS)
        after, y = learned.run(config, params, x, context, reset=reset)
        assert_close("the package's y", y, found["out/y"], LOOPS)
        for i, state in enumerate(after.states):
            assert_close(f"M of level {i}", state.M, found[f"out/level{i}/M"], LOOPS)


@pytest.mark.clause("CASE-14", "CASE-37", "CMS-21")
def test_gradients_of_a_learned_schedule_are_those_of_loops_whose_writes_are_flipped() -> None:
    """Of rules that are affine in each activity: tensors by the complex step of loops with the writes
    that gates decide, gates by the difference of loops with and without each write.
    """
    draw = np.random.default_rng(6)
    _, params, x, context = learnt(AFFINE, tokens=5, batch=1, d_model=3, d_out=2, heads=1)
    bars: dict[str, Any] = {"in/y_bar": draw.standard_normal((1, 1, 5, 2))}
    bars |= {
        f"in/level{i}/M_bar": draw.standard_normal(state.M.shape)
        for i, state in enumerate(context.states)
    }
    case = case_with_gates(AFFINE, params, x, context, **bars)
    found = atlas_ref.evaluate(case, grad=True).tensors
    active = mask_in_loops(params, x, 0.45, fastest=1)[0]

    def loss(inputs: Any, writes: Array) -> complex:
        total, reads = 0.0 + 0.0j, []
        for i in range(len(AFFINE)):
            own = {
                f"in/{name.removeprefix(f'in/level{i}/')}": value
                for name, value in inputs.items()
                if name.startswith(f"in/level{i}/")
            }
            results = literal.evaluate(
                case.header.of_level(i).plain(),
                {**own, "in/x": inputs["in/x"], "in/active": writes[:, i]},
            )
            reads.append(results["out/y"])
            total += np.sum(results["out/M"] * bars[f"in/level{i}/M_bar"])
        weights = np.exp(inputs["in/logits"])
        for weight, y in zip(weights / weights.sum(), reads, strict=True):
            total += np.sum(weight * y * bars["in/y_bar"])
        return complex(total)

    want = {name: np.zeros_like(case.inputs[name]) for name in (*subject.GATES, "in/x")}
    for i in range(len(AFFINE)):
        for t in range(5):
            if i == 1:
                continue
            on, off = active.copy(), active.copy()
            on[t, i], off[t, i] = True, False
            g = 1.0 / (1.0 + math.exp(-(params.W[i] @ x[0, t] + params.b[i])))
            slope = (loss(case.inputs, on) - loss(case.inputs, off)).real * g * (1.0 - g)
            want["in/param/W_active"][i] += slope * x[0, t]
            want["in/param/b_active"][i] += slope
            want["in/x"][0, t] += slope * params.W[i]
    for name in subject.GATES:
        assert_close(name, found[f"grad/{name[3:]}"], want[name], ANALYTIC)
    assert (np.abs(np.delete(found["grad/param/b_active"], 1)) > 1e-6).all()
    names = [name for name in case.inputs if name not in bars and name not in subject.GATES]
    for name in names:
        direction = draw.standard_normal(case.inputs[name].shape)
        moved = {**case.inputs, name: case.inputs[name] + 1e-30j * direction}
        slope = loss(moved, active).imag / 1e-30
        slope += float(np.sum(want[name] * direction)) if name in want else 0.0
        got = np.sum(found[f"grad/{name[3:]}"] * direction)
        size = float(np.linalg.norm(found[f"grad/{name[3:]}"]) * np.linalg.norm(direction)) + 1.0
        assert abs(got - slope) <= ANALYTIC.bound * 1e2 * size, f"{name}: {got} against {slope}"  # type: ignore[operator]


@pytest.mark.clause("CASE-14", "CASE-37", "CMS-21")
def test_gradients_are_the_complex_step_and_the_package_s_with_newton_schulz_too() -> None:
    """A derivative along one random direction per tensor, and those of all gates."""
    config, params, x, context = learnt(
        MIXED, tokens=6, batch=2, d_model=3, d_out=2, heads=1, until=2
    )
    bar = np.random.default_rng(4).standard_normal((2, 1, 6, 2))
    case = case_with_gates(MIXED, params, x, context, until=2, **{"in/y_bar": bar})
    found = atlas_ref.evaluate(case, grad=True).tensors
    names = [name for name in case.inputs if name != "in/y_bar"]

    draw = np.random.default_rng(5)
    for name in names:
        direction = draw.standard_normal(case.inputs[name].shape)
        moved = {**case.inputs, name: case.inputs[name] + 1e-30j * direction}
        slope = np.sum(results_of(moved, case)[0]["out/y"] * bar).imag / 1e-30
        got = np.sum(found[f"grad/{name[3:]}"] * direction)
        size = float(np.linalg.norm(found[f"grad/{name[3:]}"]) * np.linalg.norm(direction)) + 1.0
        assert abs(got - slope) <= ANALYTIC.bound * 1e2 * size, f"{name}: {got} against {slope}"  # type: ignore[operator]

    def package(at: learned.Params) -> Any:
        return tape.ops.sum(learned.run(config, at, x, context)[1] * bar)

    own = tape.grad(package)(params)
    assert_close("W", found["grad/param/W_active"], own.W, ANALYTIC)
    assert_close("b", found["grad/param/b_active"], own.b, ANALYTIC)


@pytest.mark.clause("CASE-37", "CMS-20", "CMS-22")
def test_before_the_first_step_of_the_gates_the_periods_decide() -> None:
    _, params, x, context = learnt(MIXED)
    case = case_with_gates(MIXED, params, x, context, until=6)
    by_period = case_of(MIXED, params.block, x, context)
    got, want = (atlas_ref.evaluate(each).tensors["out/y"] for each in (case, by_period))
    assert_close("six tokens", got[:, :, :6], want[:, :, :6], LOOPS)
    assert_differs("then gates", got[:, :, 6:], want[:, :, 6:], 1e-6)


@pytest.mark.clause("CASE-13", "CASE-37")
def test_results_of_a_learned_schedule_continue_it() -> None:
    _, params, x, context = learnt(MIXED, tokens=12)
    whole = case_with_gates(MIXED, params, x, context, until=3)
    want = atlas_ref.evaluate(whole).tensors
    for cut in (2, 5):
        head = atlas_ref.evaluate(
            atlas_ref.make(whole.header.plain(), {**whole.inputs, "in/x": x[:, :cut]})
        )
        state = {}
        for name, value in head.tensors.items():
            place = name.replace("out/", "in/", 1)
            state[place + "0" if place.endswith(("/M", "/S")) else place] = value
        del state["in/y"]
        tail = atlas_ref.evaluate(
            atlas_ref.make(head.header, {**whole.inputs, **state, "in/x": x[:, cut:]})
        )
        y = np.concatenate([head.tensors["out/y"], tail.tensors["out/y"]], axis=2)
        assert_close("y", y, want["out/y"], LOOPS)
        for name, value in want.items():
            if name != "out/y":
                assert_close(name, tail.tensors[name], value, LOOPS)
        assert tail.header["schedule"]["first_step"] == 12


@pytest.mark.clause("CASE-22", "CASE-37")
@pytest.mark.parametrize("reset", [0, 5])
def test_the_loops_of_the_tolerance_compute_the_same_learned_schedule(reset: int) -> None:
    case = new(
        Request(
            rule="cms",
            tokens=12,
            batch=2,
            periods=(1, 2, 3, 4),
            cotangent=True,
            history=2,
            reset=reset,
            learned=True,
        )
    )
    want, found = atlas_ref.evaluate(case, grad=True).tensors, exact(case, grad=True)
    for name, value in found.items():
        assert_close(name, value, want[name], LOOPS)
    assert {"out/level3/S", "grad/param/W_active", "grad/param/b_active"} <= found.keys()


@pytest.mark.clause("CASE-22", "CASE-37")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_results_of_a_learned_schedule_are_judged(dtype: str) -> None:
    case = new(
        Request(
            rule="cms",
            tokens=10,
            periods=(1, 2),
            levels=("titans_lmm", "delta"),
            cotangent=True,
            learned=True,
        )
    )
    ours = atlas_ref.evaluate(case, grad=True, dtype=dtype).tensors
    answered = atlas_ref.make(case.header.plain(), {**case.inputs, **ours})
    assert {row.verdict for row in check(answered)} <= {"PASS", "UNDECIDABLE"}
    assert {row.verdict for row in check(answered, only=["y", "level1/M"])} == {"PASS"}
    turned = {name: -case.inputs[name] for name in subject.GATES}  # every gate decides otherwise
    moved = {**case.inputs, **turned}
    other = atlas_ref.evaluate(atlas_ref.make(case.header.plain(), moved), dtype=dtype).tensors
    rows = check(atlas_ref.make(case.header.plain(), {**case.inputs, **other}))
    verdicts = {row.tensor: row.verdict for row in rows}
    assert verdicts["out/level1/M"] == "WRONG"
    assert verdicts["out/y"] == "WRONG" or dtype == "bfloat16"  # level 1 weighs little here
    assert verdicts["out/level0/M"] == "PASS"


@pytest.mark.clause("CASE-27", "CASE-37")
def test_a_wrong_gradient_of_a_gate_names_its_clause(cli: Any, tmp_path: Any) -> None:
    case = new(
        Request(rule="cms", periods=(1, 2), levels=("delta", "delta"), cotangent=True, learned=True)
    )
    ours = atlas_ref.evaluate(case, grad=True).tensors
    stopped = {**ours, "grad/param/W_active": np.zeros_like(ours["grad/param/W_active"])}
    atlas_ref.save(tmp_path / "w", case.header, {**case.inputs, **stopped})
    ran = cli("check", tmp_path / "w")
    assert ran.code == 1
    assert "CMS-21" in ran.out + ran.err
    assert cli("check", tmp_path / "w", "--without", "learned").code == 3
    assert cli("check", tmp_path / "w", "--without", "nested").code == 1


@pytest.mark.clause("CASE-21", "CASE-37")
def test_a_gate_at_the_threshold_is_undecidable_in_the_arithmetic_that_may_turn_it() -> None:
    header, tensors = some(
        "cms", levels=("delta", "delta"), periods=(1, 3), batch=2, tokens=6, learned=True
    )
    z = tensors["in/x"][1, 4] @ tensors["in/param/W_active"][1]
    tensors["in/param/b_active"] = np.array([0.0, 1e-9 - z])
    case = atlas_ref.make(header, tensors)
    ours = atlas_ref.evaluate(case).tensors
    assert {row.verdict for row in check(atlas_ref.make(header, {**tensors, **ours}))} == {"PASS"}
    narrow = atlas_ref.evaluate(case, dtype="float32").tensors
    rows = check(atlas_ref.make(header, {**tensors, **narrow}))
    assert {row.verdict for row in rows} == {"UNDECIDABLE"}
    assert rows[0].why == (
        "the gate of level 1 at token 4 of row 1 is too near to the threshold 0.5 for the "
        "arithmetic of float32"
    )
    late = {**header, "schedule": {**header["schedule"], "learned": {"until": 5}}}
    narrow = atlas_ref.evaluate(atlas_ref.make(late, tensors), dtype="float32").tensors
    rows = check(atlas_ref.make(late, {**tensors, **narrow}))
    assert {row.verdict for row in rows} == {"PASS"}


@pytest.mark.clause("CASE-37")
@pytest.mark.parametrize("tokens", [1, 2, 9, 64])
def test_gates_of_a_new_case_open_and_close_away_from_the_threshold(tokens: int) -> None:
    case = new(Request(rule="cms", tokens=tokens, batch=1, learned=True))
    z = case.inputs["in/x"] @ case.inputs["in/param/W_active"].T + case.inputs["in/param/b_active"]
    assert np.abs(z).min() > 1e-3
    if tokens > 1:
        assert (z > 0).any(axis=(0, 1)).all()
        assert (z < 0).any(axis=(0, 1)).all()


@pytest.mark.clause("CASE-16", "CASE-37")
@pytest.mark.parametrize(
    ("levels", "tensors", "message"),
    [
        (
            [{"rule": "delta"}, {"rule": "delta", "convention": {"reference": "call_start"}}],
            {},
            "levels[1]: convention: reference call_start is not possible under schedule.learned, ",
        ),
        (
            [{"rule": "delta"}, {"rule": "delta", "convention": {"read": "call_end"}}],
            {},
            "levels[1]: convention: read call_end is not possible under schedule.learned, ",
        ),
        (
            [{"rule": "delta"}, {"rule": "delta"}],
            {"in/param/W_active": None},
            "in/param/W_active: missing, axes (k, d_model) are needed",
        ),
        (
            [{"rule": "delta"}, {"rule": "delta"}],
            {"in/param/b_active": np.zeros(3)},
            "in/param/b_active: shape (3,) makes k 3, but levels makes it 2",
        ),
        (
            [{"rule": "delta"}, {"rule": "delta"}],
            {"in/param/b_active": np.array([0.0, np.inf])},
            "in/param/b_active: entries must be finite, found inf at (1,)",
        ),
        (
            [{"rule": "delta"}, {"rule": "delta"}],
            {"in/level1/active": np.ones(8, np.uint8)},
            "in/level1/active: not part of this case: ",
        ),
    ],
    ids=str,
)
def test_what_a_learned_schedule_cannot_have_is_refused_in_one_line(
    levels: Any, tensors: Any, message: str, cli: Any, tmp_path: Any
) -> None:
    header, own = some("cms", levels=("delta", "delta"), periods=(1, 3), learned=True)
    changed = {name: value for name, value in {**own, **tensors}.items() if value is not None}
    file = written(tmp_path / "bad.safetensors", {**header, "levels": levels}, changed)
    refused_everywhere(file, message, cli, tmp_path)


@pytest.mark.clause("CASE-37")
def test_averages_of_momenta_are_refused_under_a_learned_schedule() -> None:
    own = {"rule": "omega", "window": 2}
    convention = {"order": "momentum_then_window", "newton_schulz": "none"}
    header, tensors = some("cms", levels=("delta", own), periods=(1, 3), learned=True)
    bad = [{"rule": "delta"}, {**own, "convention": convention}]
    with pytest.raises(
        atlas_ref.CaseError,
        match=r"levels\[1\]: convention: order momentum_then_window is not possible under sched",
    ):
        atlas_ref.make({**header, "levels": bad}, tensors)


@pytest.mark.clause("CASE-37")
def test_a_learned_schedule_has_no_other_form_and_no_case_of_a_level(
    cli: Any, tmp_path: Any
) -> None:
    case = new(Request(rule="cms", periods=(1, 2), levels=("titans_lmm", "delta"), learned=True))
    file = tmp_path / "c"
    atlas_ref.save(file, case.header, case.inputs)
    why = "under schedule.learned each row writes at tokens of its own, which no case states"
    assert cli("eval", file, "-o", tmp_path / "o").code == 0
    for command, what in [
        (("identify", file, "--out", tmp_path / "o"), "identify looks into one memory; "),
        (("certify", file), "certify looks into one memory; "),
        (("levels", file, "-o", tmp_path / "each"), ""),
    ]:
        ran = cli(*command)
        assert (ran.code, ran.err) == (2, f"atlas-ref: {file}: rule cms: {what}{why}\n")
    ran = cli("eval", file, "-o", tmp_path / "n", "--form", "exact")
    words = "form exact: under schedule.learned each token is written alone, sequential computes it"
    assert (ran.code, ran.err) == (2, f"atlas-ref: {file}: {words}\n")
    last = {**case.header.plain()["schedule"], "first_step": 10**18 - 8}
    with pytest.raises(atlas_ref.CaseError, match="the step after 8 tokens has more than 18 dig"):
        atlas_ref.make({**case.header.plain(), "schedule": last}, case.inputs)


@pytest.mark.clause("CASE-21", "CASE-37")
def test_a_memory_that_overflows_after_tokens_whose_gates_decide_is_no_fault_of_the_tool() -> None:
    case = new(
        Request(rule="cms", periods=(1, 3), levels=("delta", "delta"), learned=True, cotangent=True)
    )
    huge = atlas_ref.make(case.header, {**case.inputs, "in/x": case.inputs["in/x"] * 1e60})
    for grad in (False, True):
        results = atlas_ref.evaluate(huge, grad=grad)
        assert not np.isfinite(results.tensors["out/y"][:, :, -1]).all()
        assert "out/y" in results.not_finite
    zeros = {"out/y": np.zeros_like(results.tensors["out/y"])}
    rows = check(atlas_ref.make(huge.header, {**huge.inputs, **zeros}))
    assert [row.verdict for row in rows] == ["UNDECIDABLE"]
