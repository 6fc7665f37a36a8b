"""Nested levels in case files, against loops over every context and the package's nested levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.levels import nested
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.tensors import bare
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.judge.ensemble import exact
from tests.support.blocks import block, drawn
from tests.support.casefiles import some, written
from tests.support.close import assert_close, assert_differs, reordered
from tests.support.level_cases import assert_complex_steps, case_of
from tests.support.nested_blocks import NESTED, SPANS, by_name, in_loops
from tests.support.refusal import refused_everywhere

LOOPS = reordered(1, amplification=1e7)  # Newton-Schulz


@pytest.mark.clause("CASE-36", "CASE-33", "CMS-23")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("specs", [NESTED, SPANS], ids=["nested", "spans"])
def test_nested_levels_in_a_case_are_their_definition_in_loops_and_the_package_s_own(
    specs: Any, first: int
) -> None:
    config = block(specs, first_step=first)
    params, x, context = drawn(config, tokens=11)
    for reset in (None, np.isin(np.arange(11), [5, 9]), np.arange(11) == 0):
        case = case_of(specs, params, x, context, reset=reset, nested=True)
        found = atlas_ref.evaluate(case).tensors
        want, each = in_loops(specs, params, x, context, first=first, reset=reset)
        assert_close("out/y", found["out/y"], want, LOOPS)
        after, y = nested.run(nested.Config(block=config), params, x, context, reset=reset)
        assert_close("the package's y", y, found["out/y"], LOOPS)
        for i, state in enumerate(after.states):
            names = {
                name for name in found if name.startswith(f"out/level{i}/") and name != "out/y"
            }
            assert names == {
                f"out/level{i}/{name[4:]}"
                for name in each[i]
                if name.startswith("out/") and name != "out/y"
            }
            for name in names:
                assert_close(name, found[name], each[i][bare(name)], LOOPS)
            assert_close(f"M of level {i}", state.M, found[f"out/level{i}/M"], LOOPS)
        apart = case_of(specs, params, x, context, reset=reset)
        assert_differs("apart", atlas_ref.evaluate(apart).tensors["out/y"], want, 1e-3)


@pytest.mark.clause("CASE-14", "CASE-36", "CMS-25")
@pytest.mark.parametrize("combine", ["softmax", "masked"])
@pytest.mark.parametrize("specs", [NESTED, SPANS], ids=["nested", "spans"])
def test_gradients_of_nested_levels_are_the_complex_step_of_the_loops(
    specs: Any, combine: Any
) -> None:
    """A derivative along one random direction per tensor."""
    draw = np.random.default_rng(5)
    config = block(specs, combine=combine, d_model=3, d_out=2, heads=1)
    params, x, context = drawn(config, tokens=6, batch=1)
    case = case_of(specs, params, x, context, combine=combine, nested=True)
    bars: dict[str, Any] = {"in/y_bar": draw.standard_normal((1, 1, 6, 2))}
    bars |= {
        f"in/level{i}/M_bar": draw.standard_normal(state.M.shape)
        for i, state in enumerate(context.states)
    }
    case = atlas_ref.make(case.header.plain(), {**case.inputs, **bars})
    found = atlas_ref.evaluate(case, grad=True).tensors

    def weighed(inputs: dict[str, Any]) -> complex:
        y, each = by_name(specs, inputs, masked=combine == "masked")
        total = np.sum(y * bars["in/y_bar"])
        for i, results in enumerate(each):
            total += np.sum(results["out/M"] * bars[f"in/level{i}/M_bar"])
        return complex(total)

    assert_close(
        "out/y", found["out/y"], by_name(specs, case.inputs, masked=combine == "masked")[0], LOOPS
    )
    names = [name for name in case.inputs if name not in bars]
    assert {f"grad/{name[3:]}" for name in names} == {
        name for name in found if name.startswith("grad/")
    }
    assert_complex_steps(case.inputs, found, weighed, names, draw)


@pytest.mark.clause("CASE-36")
def test_layouts_and_signs_of_files_change_no_nested_level() -> None:
    """The memory that one level hands to the next is turned where one of them lies the other way."""
    config = block(NESTED)
    params, x, context = drawn(config, tokens=10)
    case = case_of(NESTED, params, x, context, nested=True)
    want = atlas_ref.evaluate(case).tensors
    own = [dict(each) for each in case.header.plain()["levels"]]
    turned = {"layout": "transposed", "momentum_sign": "minus"}
    for i in (1, 2):
        own[i] = {**own[i], "convention": turned}
    tensors = dict(case.inputs)
    for i in (1, 2):
        tensors[f"in/level{i}/M0"] = tensors[f"in/level{i}/M0"].swapaxes(-1, -2).copy()
        tensors[f"in/level{i}/S0"] = -tensors[f"in/level{i}/S0"].swapaxes(-1, -2)
    other = atlas_ref.make({**case.header.plain(), "levels": own}, tensors)
    for found in (atlas_ref.evaluate(other).tensors, exact(other)):
        assert_close("y", found["out/y"], want["out/y"], LOOPS)
        for i in range(4):
            M = found[f"out/level{i}/M"]
            M = M.swapaxes(-1, -2) if i in (1, 2) else M
            assert_close(f"M of level {i}", M, want[f"out/level{i}/M"], LOOPS)


@pytest.mark.clause("CASE-13", "CASE-36")
@pytest.mark.parametrize(("periods", "cut"), [((3, 1, 8, 4), 1), ((2, 1, 8, 4), 9)])
def test_results_continue_where_all_levels_but_the_fastest_have_just_written(
    periods: Any, cut: int
) -> None:
    """Level 2 is the slowest one."""
    specs = [{**each, "period": p} for each, p in zip(NESTED, periods, strict=True)]
    params, x, context = drawn(block(specs), tokens=14)
    whole = case_of(specs, params, x, context, nested=True)
    want = atlas_ref.evaluate(whole).tensors
    head = atlas_ref.evaluate(
        atlas_ref.make(whole.header.plain(), {**whole.inputs, "in/x": x[:, :cut]})
    )
    results = head.tensors
    state = {f"in/level{i}/M0": results["out/level2/M"] for i in range(4)}
    state |= {
        f"in/level2/{name}": results[f"out/level2/{name}"] for name in ("window_k", "window_v")
    }
    state["in/level2/S0"] = results["out/level2/S"]
    tail = atlas_ref.evaluate(
        atlas_ref.make(head.header, {**whole.inputs, **state, "in/x": x[:, cut:]})
    )
    assert tail.header["schedule"]["first_step"] == 14
    y = np.concatenate([results["out/y"], tail.tensors["out/y"]], axis=2)
    assert_close("y", y, want["out/y"], LOOPS)
    for name, value in want.items():
        if name != "out/y":
            assert_close(name, tail.tensors[name], value, LOOPS)


@pytest.mark.clause("CASE-22", "CASE-36")
def test_the_loops_of_the_tolerance_compute_the_same_nested_levels() -> None:
    case = new(
        Request(
            rule="cms",
            tokens=12,
            periods=(1, 2, 4, 8),
            cotangent=True,
            history=2,
            reset=7,
            nested=True,
        )
    )
    want, found = atlas_ref.evaluate(case, grad=True).tensors, exact(case, grad=True)
    for name, value in found.items():
        assert_close(name, value, want[name], LOOPS)
    assert {"out/y", "out/level3/M", "grad/logits", "grad/level0/param/W_K"} <= found.keys()


@pytest.mark.clause("CASE-22", "CASE-36")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_results_of_nested_levels_are_judged_and_those_of_levels_apart_are_wrong(
    dtype: str,
) -> None:
    case = new(
        Request(
            rule="cms",
            tokens=10,
            periods=(1, 4),
            levels=("titans_lmm", "delta"),
            cotangent=True,
            nested=True,
        )
    )
    ours = atlas_ref.evaluate(case, grad=True, dtype=dtype).tensors
    answered = atlas_ref.make(case.header.plain(), {**case.inputs, **ours})
    assert {row.verdict for row in check(answered)} <= {"PASS", "UNDECIDABLE"}
    assert {row.verdict for row in check(answered, only=["y", "level0/M"])} == {"PASS"}
    fields = {key: value for key, value in case.header.plain().items() if key != "nested"}
    apart = atlas_ref.evaluate(atlas_ref.make(fields, case.inputs), dtype=dtype).tensors
    rows = check(atlas_ref.make(case.header.plain(), {**case.inputs, **apart}))
    verdicts = {row.tensor: row.verdict for row in rows}
    assert verdicts == {
        "out/y": "WRONG",
        "out/level0/M": "WRONG",
        "out/level0/S": "WRONG",
        "out/level1/M": "PASS",
    }


@pytest.mark.clause("CASE-29", "CASE-36")
def test_nested_levels_in_another_form() -> None:
    case = new(
        Request(
            rule="cms",
            tokens=20,
            periods=(1, 7),
            levels=("titans_lmm", "delta"),
            nested=True,
        )
    )
    want, got = (atlas_ref.evaluate(case, form=form).tensors for form in ("sequential", "exact"))
    for name, value in want.items():
        assert_close(name, got[name], value, reordered(20, amplification=1e3))


@pytest.mark.clause("CASE-16", "CASE-36")
@pytest.mark.parametrize(
    ("changes", "tensors", "message"),
    [
        (
            {"levels": [{"rule": "delta", "convention": {"read": "call_end"}}, {"rule": "delta"}]},
            {},
            "levels[0]: convention: read call_end is not possible under nested, whose contexts ",
        ),
        (
            {},
            {
                "in/level1/param/W_K": np.zeros((2, 3, 6)),
                "in/level1/param/W_Q": np.zeros((2, 3, 6)),
                "in/level1/M0": np.zeros((1, 2, 3, 3)),
                "in/level1/param/W_retain": np.zeros((2, 1, 6)),
                "in/level1/param/W_step_size": np.zeros((2, 1, 6)),
            },
            "nested: memories of one shape are needed, found d_phi 4, 3 of the levels",
        ),
    ],
    ids=["call_end", "shapes"],
)
def test_levels_that_cannot_be_nested_are_refused_in_one_line(
    changes: Any, tensors: Any, message: str, cli: Any, tmp_path: Any
) -> None:
    header, own = some("cms", levels=("delta", "delta"), periods=(1, 3), nested=True)
    file = written(tmp_path / "bad.safetensors", {**header, **changes}, {**own, **tensors})
    refused_everywhere(file, message, cli, tmp_path)


@pytest.mark.clause("CASE-36")
def test_tools_that_look_into_one_memory_say_that_nested_levels_are_none(
    cli: Any, tmp_path: Any
) -> None:
    case = new(Request(rule="cms", periods=(1, 2), levels=("titans_lmm", "delta"), nested=True))
    file = tmp_path / "c"
    atlas_ref.save(file, case.header, case.inputs)
    why = "contexts of nested levels begin from each other, so none is a case of its own"
    assert cli("eval", file, "-o", tmp_path / "o").code == 0
    for command, what in [
        (("identify", file, "--out", tmp_path / "o"), "identify looks into one memory; "),
        (("replay", file, "--trace", tmp_path / "o"), "replay looks into one memory; "),
        (("certify", file), "certify looks into one memory; "),
        (("levels", file, "-o", tmp_path / "each"), ""),
    ]:
        ran = cli(*command)
        assert (ran.code, ran.err) == (2, f"atlas-ref: {file}: rule cms: {what}{why}\n")
    assert not (tmp_path / "each").exists()


@pytest.mark.clause("CASE-21", "CASE-36")
def test_a_memory_that_overflows_within_a_context_is_no_fault_of_the_tool() -> None:
    case = new(
        Request(rule="cms", periods=(1, 3), levels=("delta", "delta"), nested=True, cotangent=True)
    )
    huge = atlas_ref.make(case.header, {**case.inputs, "in/x": case.inputs["in/x"] * 1e60})
    for grad in (False, True):
        results = atlas_ref.evaluate(huge, grad=grad)
        assert not np.isfinite(results.tensors["out/y"][:, :, -1]).all()
        assert "out/y" in results.not_finite
    zeros = {"out/y": np.zeros_like(results.tensors["out/y"])}
    rows = check(atlas_ref.make(huge.header, {**huge.inputs, **zeros}))
    assert [row.verdict for row in rows] == ["UNDECIDABLE"]


@pytest.mark.clause("CASE-27")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nested", "nested (contexts that begin from a slower level, CMS-23)"),
        ("learned", "schedule.learned (gates that decide which level writes, CMS-20)"),
    ],
)
def test_a_failure_of_a_block_says_what_it_has_that_kernels_tend_to_miss(
    kind: str, words: str, cli: Any, tmp_path: Any
) -> None:
    levels = ({"rule": "omega", "window": 3}, {"rule": "delta"})
    request = Request(rule="cms", levels=levels, periods=(1, 3), reset=5, history=2, **{kind: True})
    case = new(request)
    wrong = {"out/y": atlas_ref.evaluate(case).tensors["out/y"] + 1.0}
    atlas_ref.save(tmp_path / "wrong", case.header, {**case.inputs, **wrong})
    (failure,) = cli("check", tmp_path / "wrong", "--json").json["failures"]
    assert failure["case_has"] == [
        words,
        "in/reset (1 start of a sequence)",
        "in/level0/window_k (a window from before)",
    ]
