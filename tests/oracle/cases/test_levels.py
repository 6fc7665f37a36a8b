"""Frequency levels in case files: schedules of one memory and whole blocks, against loops and the
package's block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.levels import block as cms
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.tensors import bare
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.judge.ensemble import exact
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.sources.sources import function
from atlas_ref.oracle.subjects import block as levels
from tests.support.blocks import COUNTING, MIXED, block, countdown, drawn, in_loops
from tests.support.casefiles import some, written
from tests.support.close import EXACT, assert_close, reordered
from tests.support.level_cases import assert_complex_steps, case_of
from tests.support.refusal import refused_everywhere
from tests.truth import literal

LOOPS = reordered(1, amplification=1e7)
RULES = ("omega", "titans_lmm", "delta", "hebbian")


# -- a schedule ------------------------------------------------------------------------------------


@pytest.mark.clause("CASE-30", "PULSE-2")
@pytest.mark.parametrize("level", ["projected", "token"])
@pytest.mark.parametrize("rule", RULES)
def test_a_schedule_is_the_mask_that_a_countdown_makes(rule: str, level: str) -> None:
    for first in (0, 1, 7):
        header, tensors = some(rule, level=level, tokens=20, window=3 if rule == "omega" else 1)
        schedule = {"periods": [1, 3, 8], "level": 1, "first_step": first}
        case = atlas_ref.make({**header, "schedule": schedule}, tensors)
        want = countdown([1, 3, 8], 0, 40)[first : first + 20, 1]
        assert case.inputs["in/active"].tolist() == want.astype(int).tolist()
        masked = atlas_ref.make(header, {**tensors, "in/active": want})
        ours, same = atlas_ref.evaluate(case, grad=True), atlas_ref.evaluate(masked, grad=True)
        for name, value in same.tensors.items():
            assert_close(name, ours.tensors[name], value, EXACT)
        assert ours.header["schedule"] == {**schedule, "first_step": first + 20}


@pytest.mark.clause("CASE-30")
def test_a_mask_may_stand_beside_its_schedule() -> None:
    header, tensors = some("delta", tokens=8)
    case = atlas_ref.make({**header, "schedule": {"periods": [2], "level": 0}}, tensors)
    again = atlas_ref.make(case.header.plain(), case.inputs)
    assert again.inputs["in/active"].tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
    assert again == case


@pytest.mark.clause("CASE-13", "CASE-30")
def test_results_of_a_schedule_continue_it() -> None:
    whole = new(
        Request(rule="titans_lmm", tokens=12, periods=(1, 5), schedule_level=1, first_step=1)
    )
    want = atlas_ref.evaluate(whole).tensors["out/y"]
    tokens = ("in/k", "in/v", "in/q", "in/retain", "in/momentum", "in/step_size")

    def part(start: int, stop: int) -> dict[str, Any]:
        return {name: whole.inputs[name][:, start:stop] for name in tokens}

    first = atlas_ref.evaluate(
        atlas_ref.make(
            whole.header.plain(), {**part(0, 7), **{n: whole.inputs[n] for n in ("in/M0", "in/S0")}}
        )
    )
    state = {"in/M0": first.tensors["out/M"], "in/S0": first.tensors["out/S"]}
    second = atlas_ref.evaluate(atlas_ref.make(first.header, {**part(7, 12), **state}))
    assert first.header["schedule"]["first_step"] == 8
    assert_close(
        "y",
        np.concatenate([first.tensors["out/y"], second.tensors["out/y"]], axis=1),
        want,
        reordered(12),
    )


@pytest.mark.clause("CASE-2", "CASE-30")
def test_results_can_name_the_step_that_follows_or_there_are_none() -> None:
    header, tensors = some("delta", tokens=8)
    last = 10**18 - 9
    fits = atlas_ref.make(
        {**header, "schedule": {"periods": [3], "level": 0, "first_step": last}}, tensors
    )
    assert fits.inputs["in/active"].tolist() == [int((last + t) % 3 == 0) for t in range(8)]
    after = atlas_ref.evaluate(fits).header["schedule"]
    assert after["first_step"] == 10**18 - 1
    with pytest.raises(
        atlas_ref.CaseError,
        match=r"schedule.first_step: 9{18}, the step after 8 tokens has more than 18 digits$",
    ):
        atlas_ref.make({**header, "schedule": after}, tensors)


# -- a block ---------------------------------------------------------------------------------------


@pytest.mark.clause("CASE-31", "CASE-32", "CASE-33", "CMS-6", "CMS-7")
@pytest.mark.parametrize("combine", ["softmax", "masked"])
@pytest.mark.parametrize("specs", [MIXED, COUNTING], ids=["mixed", "counting"])
def test_a_block_in_a_case_is_its_definition_in_loops_and_the_package_s_own(
    specs: Any, combine: Any
) -> None:
    config = block(specs, combine=combine)
    params, x, context = drawn(config)
    reset = np.arange(12) == 5
    case = case_of(specs, params, x, context, reset=reset, combine=combine)
    found = atlas_ref.evaluate(case).tensors
    want, each = in_loops(specs, params, x, context, masked=combine == "masked", reset=reset)
    assert_close("out/y", found["out/y"], want, LOOPS)
    after, y = cms.run(config, params, x, context, reset=reset)
    assert_close("the block's y", y, found["out/y"], LOOPS)
    for i, state in enumerate(after.states):
        names = {
            f"out/level{i}/{name[4:]}"
            for name in each[i]
            if name.startswith("out/") and name != "out/y"
        }
        assert names == {name for name in found if name.startswith(f"out/level{i}/")}
        for name in names:
            assert_close(name, found[name], each[i][bare(name)], LOOPS)
        assert_close(f"M of level {i}", state.M, found[f"out/level{i}/M"], LOOPS)


@pytest.mark.clause("CASE-14", "CASE-33", "CMS-15")
@pytest.mark.parametrize("combine", ["softmax", "masked"])
def test_gradients_of_a_block_are_the_complex_step_of_the_loops(combine: Any) -> None:
    """A derivative along one random direction per tensor, from the loops of each level combined by
    hand.
    """
    draw = np.random.default_rng(5)
    specs = MIXED
    config = block(specs, combine=combine, d_model=3, d_out=2, heads=1)
    params, x, context = drawn(config, tokens=7, batch=1)
    case = case_of(specs, params, x, context, combine=combine)
    bars = {"in/y_bar": draw.standard_normal((1, 1, 7, 2))}
    bars |= {
        f"in/level{i}/M_bar": draw.standard_normal(state.M.shape)
        for i, state in enumerate(context.states)
    }
    case = atlas_ref.make(case.header.plain(), {**case.inputs, **bars})
    found = atlas_ref.evaluate(case, grad=True).tensors
    active = countdown([spec["period"] for spec in specs], 0, 7)

    def weighed(inputs: dict[str, Any]) -> complex:
        total, reads = 0.0 + 0.0j, []
        for i in range(len(specs)):
            own = {
                f"in/{name.removeprefix(f'in/level{i}/')}": value
                for name, value in inputs.items()
                if name.startswith(f"in/level{i}/")
            }
            header = case.header.of_level(i).plain()
            results = literal.evaluate(
                header, {**own, "in/x": inputs["in/x"], "in/active": active[:, i]}
            )
            reads.append(results["out/y"])
            total += np.sum(results["out/M"] * bars[f"in/level{i}/M_bar"])
        for t in range(7):
            counted = [i for i in range(len(specs)) if combine == "softmax" or active[t, i]]
            weights = np.exp(inputs["in/logits"][counted])
            for weight, i in zip(weights / weights.sum(), counted, strict=True):
                total += np.sum(weight * reads[i][:, :, t] * bars["in/y_bar"][:, :, t])
        return complex(total)

    names = [name for name in case.inputs if name not in bars and name != "in/active"]
    assert {f"grad/{name[3:]}" for name in names} == {
        name for name in found if name.startswith("grad/")
    }
    assert_complex_steps(case.inputs, found, weighed, names, draw)


@pytest.mark.clause("CASE-13", "CASE-33", "CMS-8")
def test_results_of_a_block_continue_it() -> None:
    for specs in (MIXED, COUNTING):
        config = block(specs)
        params, x, context = drawn(config)
        whole = case_of(specs, params, x, context)
        want = atlas_ref.evaluate(whole).tensors
        head = atlas_ref.evaluate(
            atlas_ref.make(whole.header.plain(), {**whole.inputs, "in/x": x[:, :5]})
        )
        state = {}
        for name, value in head.tensors.items():
            place = name.replace("out/", "in/", 1)
            state[place + "0" if place.endswith(("/M", "/S")) else place] = value
        del state["in/y"]
        tail = atlas_ref.evaluate(
            atlas_ref.make(head.header, {**whole.inputs, **state, "in/x": x[:, 5:]})
        )
        assert tail.header["schedule"]["first_step"] == 12
        assert_close(
            "y",
            np.concatenate([head.tensors["out/y"], tail.tensors["out/y"]], axis=2),
            want["out/y"],
            LOOPS,
        )
        for name, value in want.items():
            if name != "out/y":
                assert_close(name, tail.tensors[name], value, LOOPS)


@pytest.mark.clause("CASE-33")
def test_the_loops_of_the_tolerance_compute_the_same_block() -> None:
    case = new(
        Request(rule="cms", tokens=12, periods=(1, 2, 3, 4), cotangent=True, history=2, reset=5)
    )
    want, found = atlas_ref.evaluate(case, grad=True).tensors, exact(case, grad=True)
    for name, value in found.items():
        assert_close(name, value, want[name], LOOPS)
    assert {"out/y", "out/level3/M", "grad/logits", "grad/level0/param/W_K"} <= found.keys()


@pytest.mark.clause("CASE-22", "CASE-33")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_results_of_a_block_are_judged_by_the_measured_tolerance(dtype: str) -> None:
    case = new(
        Request(
            rule="cms", tokens=10, periods=(1, 2), levels=("titans_lmm", "delta"), cotangent=True
        )
    )
    ours = atlas_ref.evaluate(case, grad=True, dtype=dtype).tensors
    answered = atlas_ref.make(case.header.plain(), {**case.inputs, **ours})
    assert {row.verdict for row in check(answered)} <= {"PASS", "UNDECIDABLE"}
    wrong = {**ours, "out/y": (ours["out/y"].astype(np.float64) * 1.2).astype(ours["out/y"].dtype)}
    rows = {
        row.tensor: row.verdict
        for row in check(atlas_ref.make(case.header.plain(), {**case.inputs, **wrong}))
    }
    assert rows["out/y"] == "WRONG"
    assert rows["out/level0/M"] == "PASS"


@pytest.mark.clause("CASE-33", "CMS-17")
def test_a_block_in_another_form_and_a_form_that_a_level_does_not_have() -> None:
    levels_ = (
        "titans_lmm",
        {"rule": "omega", "window": 3, "convention": {"newton_schulz": "none"}},
    )
    case = new(Request(rule="cms", tokens=20, periods=(1, 3), levels=levels_))
    want, got = (atlas_ref.evaluate(case, form=form).tensors for form in ("sequential", "exact"))
    for name, value in want.items():
        assert_close(name, got[name], value, reordered(20, amplification=1e3))
    with pytest.raises(
        atlas_ref.CaseError, match=r"^new: level0: form chunkwise: the reference is running"
    ):
        atlas_ref.evaluate(case, form="chunkwise")


@pytest.mark.clause("CASE-16", "CASE-17", "CASE-32")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in/logits": None}, "in/logits: missing, axes (k) are needed"),
        ({"in/logits": np.zeros(3)}, "in/logits: shape (3,) makes k 3, but levels makes it 2"),
        (
            {"in/logits": np.array([0.0, np.nan])},
            "in/logits: entries must be finite, found nan at (1,)",
        ),
        (
            {"in/logits": np.zeros(2, np.int64)},
            "in/logits: dtype int64, float64, float32, bfloat16 or float16 is needed",
        ),
        ({"in/x": None}, "in/x: missing, axes (B, T, d_model) are needed"),
        (
            {"in/y_bar": np.zeros((1, 2, 5, 4))},
            "in/y_bar: shape (1, 2, 5, 4) makes d_out 4, but in/level0/param/W_V makes it 3",
        ),
        (
            {"in/level1/param/W_K": None},
            "in/level1/param/W_K: missing, axes (H, d_in, d_model) are needed",
        ),
        (
            {"in/level1/param/W_V": np.zeros((2, 4, 6))},
            "in/level1/param/W_retain: shape (2, 1, 7) makes d_kv 7, but d_in + d_out makes it 8",
        ),
        (
            {"in/level2/M0": np.zeros((1, 2, 3, 4))},
            "in/level2/M0: unknown tensor for rule cms with 2 levels; it has in/x, in/logits, ",
        ),
        ({"in/level01/M0": np.zeros((1, 2, 3, 4))}, "in/level01/M0: unknown tensor for rule cms"),
        ({"in/k": np.zeros((1, 5, 4))}, "in/k: unknown tensor for rule cms"),
        ({"in/active": np.ones(5, np.uint8)}, "in/active: unknown tensor for rule cms"),
        ({"in/level0/active": np.ones(5, np.uint8)}, "in/level0/active: not part of this case: "),
        ({"in/level0/y_bar": np.zeros((1, 2, 5, 3))}, "in/level0/y_bar: not part of this case: "),
        (
            {"in/level0/hat": np.zeros(3)},
            "in/level0/hat: unknown tensor for rule delta, level token; it has ",
        ),
        (
            {"in/level0/S0": np.zeros((1, 2, 3, 4))},
            "in/level0/S0: not part of this case: delta has none",
        ),
        (
            {"in/level1/M0": np.full((1, 2, 3, 4), np.inf)},
            "in/level1/M0: entries must be finite, found inf at (0, 0, 0, 0)",
        ),
        (
            {"in/level1/M0": np.zeros((1, 2, 3, 3))},
            "in/level1/M0: shape (1, 2, 3, 3) makes d_phi 3",
        ),
        (
            {"in/reset": np.zeros(4, np.uint8)},
            "in/reset: shape (4,) makes T 4, but in/x makes it 5",
        ),
    ],
    ids=str,
)
def test_bad_tensors_of_a_block_are_refused_in_one_line(
    changes: Any, message: str, cli: Any, tmp_path: Any
) -> None:
    header, tensors = some("cms", levels=("delta", {"rule": "omega", "window": 2}), periods=(1, 3))
    made = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
    refused_everywhere(written(tmp_path / "bad.safetensors", header, made), message, cli, tmp_path)


@pytest.mark.clause("CASE-32")
def test_levels_must_agree_on_what_they_share() -> None:
    header, tensors = some("cms", levels=("delta", "delta"), periods=(1, 3))
    other = some("cms", levels=("delta", "delta"), periods=(1, 3), d_out=2)[1]
    mixed = {
        name: other[name] if name.startswith("in/level1/") else value
        for name, value in tensors.items()
    }
    with pytest.raises(
        atlas_ref.CaseError,
        match=r"in/level1/param/W_V: shape .* makes d_out 2, but in/level0/param/W_V makes it 3",
    ):
        atlas_ref.make(header, mixed)


@pytest.mark.clause("CASE-33")
def test_tools_that_look_into_one_memory_refuse_a_block(cli: Any, tmp_path: Any) -> None:
    case = new(Request(rule="cms", periods=(1, 2), levels=("titans_lmm", "delta")))
    atlas_ref.save(tmp_path / "c", case.header, case.inputs)
    words = "looks into one memory; atlas-ref levels makes a case of each level"
    assert cli("eval", tmp_path / "c", "-o", tmp_path / "o").code == 0
    for command, what in [
        (("eval", tmp_path / "c", "-o", tmp_path / "t", "--trace"), "a trace"),
        (
            ("eval", tmp_path / "c", "-o", tmp_path / "t", "--convention", "atlas-paper"),
            "another convention",
        ),
        (("identify", tmp_path / "c", "--out", tmp_path / "o"), "identify"),
        (("replay", tmp_path / "c", "--trace", tmp_path / "o"), "replay"),
        (("certify", tmp_path / "c"), "certify"),
    ]:
        ran = cli(*command)
        assert (ran.code, ran.err) == (
            2,
            f"atlas-ref: {tmp_path / 'c'}: rule cms: {what} {words}\n",
        )
    with pytest.raises(atlas_ref.CaseError, match="a trace looks into one memory"):
        trace(case)


@pytest.mark.clause("CASE-33")
def test_each_level_is_a_case_of_its_own() -> None:
    case = new(Request(rule="cms", tokens=12, periods=(1, 2, 3, 4), reset=5, history=3))
    whole = atlas_ref.evaluate(case).tensors
    for number, part in enumerate(levels.parts(case)):
        alone = atlas_ref.make(part.header.plain(), part.inputs)
        for name, value in atlas_ref.evaluate(alone).tensors.items():
            if name != "out/y":
                assert_close(
                    name, whole[name.replace("out/", f"out/level{number}/", 1)], value, EXACT
                )


@pytest.mark.slow
@pytest.mark.clause("CASE-33")
def test_levels_writes_a_case_of_each_level_with_what_is_recorded_of_it(
    cli: Any, tmp_path: Any
) -> None:
    case = new(
        Request(
            rule="cms",
            tokens=9,
            periods=(1, 2),
            levels=("titans_lmm", {"rule": "omega", "window": 3}),
            history=1,
        )
    )
    ours = atlas_ref.evaluate(case).tensors
    mine = {**ours, "out/level1/M": 1.1 * ours["out/level1/M"]}
    atlas_ref.save(tmp_path / "c", case.header, {**case.inputs, **mine})
    ran = cli("levels", tmp_path / "c", "-o", tmp_path / "each", "--json")
    assert ran.code == 0
    files = [tmp_path / "each" / f"level{number}.safetensors" for number in (0, 1)]
    assert ran.json == {"case": str(tmp_path / "c"), "levels": [str(file) for file in files]}
    assert [cli("check", file, "--only", "M,S").code for file in files] == [0, 1]
    assert atlas_ref.load(files[1]).recorded.keys() == {
        "out/M",
        "out/S",
        "out/window_k",
        "out/window_v",
    }
    ran = cli("levels", files[0], "-o", tmp_path / "no")
    assert (ran.code, ran.err) == (
        2,
        f"atlas-ref: {files[0]}: rule titans_lmm: is one memory already; rule cms has levels\n",
    )
    (tmp_path / "in").mkdir()
    itself = (tmp_path / "c").rename(tmp_path / "in" / "level1.safetensors")
    ran = cli("levels", itself, "-o", tmp_path / "in")
    assert (ran.code, ran.err) == (
        2,
        f"atlas-ref: {itself}: is the case itself, which is not overwritten\n",
    )
    assert [each.name for each in (tmp_path / "in").iterdir()] == ["level1.safetensors"]
    itself.rename(tmp_path / "c")
    ran = cli("levels", tmp_path / "c", "-o", files[0])
    assert (ran.code, ran.err) == (2, f"atlas-ref: {files[0]}: cannot be made: File exists\n")


@pytest.mark.clause("CASE-18", "CASE-33")
def test_void_settings_and_conventions_are_those_of_the_levels(cli: Any, tmp_path: Any) -> None:
    own = (
        {"rule": "delta", "span": 3},
        {"rule": "omega", "window": 2, "convention": "atlas-paper"},
    )
    case = new(Request(rule="cms", periods=(1, 2), levels=own))
    assert case.void == {"level0.span": "nothing is refreshed by spans"}
    assert case.in_force["level1"]["rate"] == "memory"
    atlas_ref.save(tmp_path / "c", case.header, case.inputs)
    shown = cli("show", tmp_path / "c", "--json").json
    assert shown["convention"]["level0"]["gate"] == "forget"
    ran = cli("eval", tmp_path / "c", "-o", tmp_path / "o")
    assert "void: level0.span: nothing is refreshed by spans\n" in ran.err


@pytest.mark.clause("CASE-23", "CASE-25")
def test_a_block_is_checked_against_a_function() -> None:
    case = new(
        Request(
            rule="cms",
            tokens=9,
            periods=(1, 3),
            levels=("delta", {"rule": "omega", "window": 2}),
            first_step=1,
        )
    )
    rows = {
        row.tensor: row.verdict for row in check(case, source=function("implementations:block"))
    }
    assert rows == {"out/y": "PASS", "out/level0/M": "PASS", "out/level1/M": "PASS"}
    late = atlas_ref.make(
        {**case.header.plain(), "schedule": {"periods": [1, 3], "first_step": 0}}, case.inputs
    )
    answer = function("implementations:block")(case)
    rows = {row.tensor: row.verdict for row in check(late, source=lambda _: answer)}
    assert rows == {"out/y": "WRONG", "out/level0/M": "PASS", "out/level1/M": "WRONG"}


@pytest.mark.clause("CASE-23", "CASE-33")
def test_results_of_a_block_are_chosen_by_name(cli: Any, tmp_path: Any) -> None:
    case = new(Request(rule="cms", periods=(1, 2), levels=("titans_lmm", "delta"), cotangent=True))
    ours = atlas_ref.evaluate(case, grad=True)
    atlas_ref.save(tmp_path / "c", case.header, {**case.inputs, **ours.tensors})
    ran = cli("check", tmp_path / "c", "--only", "y,level1/M,grad/level0/param/W_K", "--json")
    assert (ran.code, len(ran.json["results"])) == (0, 3)
    assert cli("check", tmp_path / "c", "--only", "level1/hat").code == 2
    broken = {**ours.tensors, "out/level1/M": ours.tensors["out/level1/M"] * 1.1}
    atlas_ref.save(tmp_path / "w", case.header, {**case.inputs, **broken})
    ran = cli("check", tmp_path / "w")
    assert ran.code == 1
    assert "DELTA-3" in ran.out + ran.err
