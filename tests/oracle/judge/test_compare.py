"""Verdicts: the measure at every scale, the place of WRONG, and undecidable results."""

import math

import ml_dtypes
import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.arrays import compare_arrays, relative_error
from atlas_ref.oracle.judge.compare import Comparison, exit_code
from atlas_ref.oracle.replay.trace import add_trace
from tests.support.casefiles import some

TINY = 5e-324


def verdict(got, want=None):
    return compare_arrays(
        "case",
        "out/y",
        np.asarray(got),
        np.ones_like(np.asarray(got), np.float64) if want is None else np.asarray(want),
    )


@pytest.fixture
def ours():
    header, tensors = some()
    return header, tensors, atlas_ref.evaluate(atlas_ref.make(header, tensors), grad=True).tensors


def checked(ours, recorded, only=None, **changes):
    header, tensors, _ = ours
    return atlas_ref.check(
        atlas_ref.make({**header, **changes}, {**tensors, **recorded}), only=only
    )


@pytest.mark.clause("CASE-20")
@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300, 2.0**-1060])
@pytest.mark.parametrize("error", [3e-13, 0.25])
def test_the_measure_is_the_relative_distance_in_the_euclidean_norm_at_every_scale(scale, error):
    want = scale * np.array([[3.0, 4.0], [0.0, 12.0]])
    got = want + 13.0 * error * scale * np.array([[0.6, 0.0], [0.8, 0.0]])
    if scale > 2.0**-1060 or error == 0.25:
        assert relative_error(got, want) == pytest.approx(error, rel=1e-2)


@pytest.mark.clause("CASE-20")
def test_the_measure_is_absolute_where_ours_is_zero():
    assert relative_error(np.zeros(3), np.zeros(3)) == 0.0
    assert relative_error(np.zeros(0), np.zeros(0)) == 0.0
    assert relative_error(np.array([3e-13, 4e-13]), np.zeros(2)) == pytest.approx(5e-13, rel=1e-12)
    assert relative_error(np.array([3e200, 4e200]), np.zeros(2)) == pytest.approx(5e200, rel=1e-12)
    assert relative_error(np.array([TINY, 0.0]), np.zeros(2)) == TINY


@pytest.mark.clause("CASE-20")
def test_the_measure_neither_overflows_nor_vanishes():
    assert relative_error(np.array([TINY]), np.array([2 * TINY])) == 0.5
    assert relative_error(np.array([1.0]), np.array([TINY])) == math.inf
    assert relative_error(np.array([-1.7e308]), np.array([1.7e308])) == math.inf
    assert relative_error(np.array([1.0, 2.0]), np.array([math.inf, 1.0])) == math.inf
    for got, want in (([1.0, 2.0], [math.nan, 1.0]), ([math.inf, 1.0], [math.inf, 1.0])):
        assert math.isnan(relative_error(np.array(got), np.array(want)))
    assert relative_error(np.array([1.0]), np.array([1e300])) == 1.0


@pytest.mark.clause("CASE-20", "CASE-21")
def test_a_result_in_float64_passes_up_to_its_tolerance_and_not_beyond():
    want = np.full(4, 1.0)
    for share, word in ((0.9, "PASS"), (1.1, "WRONG"), (-0.9, "PASS"), (-1.1, "WRONG")):
        found = verdict(want + share * 1e-12, want)
        assert (found.verdict, found.tolerance) == (word, 1e-12)


@pytest.mark.clause("CASE-20", "CASE-22")
@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_narrow_result_is_judged_by_the_measured_tolerance(kind, ours):
    """One unit in the last place, which passes, and forty, which do not, for any unit."""
    header, tensors, _ = ours
    exact = atlas_ref.evaluate(
        round_inputs(atlas_ref.make(header, tensors), np.dtype(kind).name)
    ).tensors["out/y"]
    unit = float(ml_dtypes.finfo(kind).eps)
    for units, word in ((0, "PASS"), (1, "PASS"), (40, "WRONG")):
        (found,) = checked(ours, {"out/y": (exact * (1 + units * unit)).astype(kind)})
        assert found.verdict == word
        assert "units in the last place" in found.basis
        assert found.ratio == found.error / found.tolerance


@pytest.mark.clause("CASE-21")
def test_a_wrong_result_names_the_first_of_its_worst_entries():
    got = np.ones((2, 3))
    got[0, 2] = got[1, 1] = 1.5
    found = verdict(got)
    assert (found.verdict, found.place, found.got, found.want) == ("WRONG", (0, 2), 1.5, 1.0)
    assert found.error == pytest.approx(math.sqrt(0.5 / 6))


@pytest.mark.clause("CASE-21")
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_result_that_is_not_finite_is_wrong_and_names_its_first_index(value, kind):
    got = np.ones((2, 3, 2), kind)
    got[1, 0, 1] = got[1, 2, 0] = value
    found = verdict(got)
    assert (found.verdict, found.place, found.want, found.error) == ("WRONG", (1, 0, 1), 1.0, None)
    assert found.why == f"{value} at (1, 0, 1)"


@pytest.mark.clause("CASE-20")
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64])
def test_a_result_of_another_shape_is_wrong_whatever_its_dtype(kind):
    found = verdict(np.zeros((3, 2), kind), np.ones((2, 3)))
    assert (found.verdict, found.why) == ("WRONG", "shape (3, 2), expected (2, 3)")


@pytest.mark.clause("CASE-20")
@pytest.mark.parametrize("kind", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_a_result_without_entries_is_equal_by_its_shape(kind):
    row = verdict(np.zeros((2, 0, 3), kind), np.zeros((2, 0, 3)))
    assert (row.verdict, row.error, row.place) == ("PASS", 0.0, None)
    assert verdict(np.zeros((2, 1, 3), kind), np.zeros((2, 0, 3))).verdict == "WRONG"


@pytest.mark.clause("CASE-20")
@pytest.mark.parametrize(
    "kind", ["float8_e4m3fn", "float8_e5m2", "int64", "uint8", "bool", "complex64"]
)
def test_a_result_of_another_dtype_is_undecidable(kind):
    found = verdict(np.ones(3, getattr(ml_dtypes, kind, kind)))
    assert (found.verdict, found.why) == ("UNDECIDABLE", f"no tolerance is stated for {kind}")


def test_where_the_rule_itself_overflows_nothing_is_decided(ours):
    """A memory that grows beyond 1e308: no implementation has a finite answer to hand over."""
    header, tensors, results = ours
    grown = tensors | {"in/M0": np.full((2, 3, 4), 1e308), "in/k": 1e3 * tensors["in/k"]}
    found = atlas_ref.check(atlas_ref.make(header, {**grown, "out/y": results["out/y"]}))
    assert [each.verdict for each in found] == ["UNDECIDABLE"]
    assert found[0].why.endswith("the rule itself gives no finite number here")


@pytest.mark.clause("CASE-21", "CASE-23")
def test_every_recorded_result_is_compared_and_an_absent_main_result_is_missing(ours):
    results = ours[2]
    assert [(each.tensor, each.verdict) for each in checked(ours, {"out/M": results["out/M"]})] == [
        ("out/y", "MISSING"),
        ("out/M", "PASS"),
    ]
    everything = checked(ours, results)
    assert [each.tensor for each in everything] == list(results)
    assert {each.verdict for each in everything} == {"PASS"}
    for rule, main in (("newton_schulz", "out/X"), ("feature_map", "out/phi")):
        header, tensors = some(rule)
        (gradient,) = (
            name
            for name in atlas_ref.evaluate(atlas_ref.make(header, tensors), grad=True).tensors
            if name.startswith("grad/")
        )
        value = atlas_ref.evaluate(atlas_ref.make(header, tensors), grad=True).tensors[gradient]
        found = atlas_ref.check(atlas_ref.make(header, {**tensors, gradient: value}))
        assert [(each.tensor, each.verdict) for each in found] == [
            (main, "MISSING"),
            (gradient, "PASS"),
        ]


@pytest.mark.clause("CASE-23")
def test_only_the_chosen_results_are_compared(ours):
    results = ours[2]
    for only, want in (
        (["y"], ["out/y"]),
        (["out/y", "grad/k"], ["out/y", "grad/k"]),
        (["grad/k", "M"], ["out/M", "grad/k"]),
        (["X"], []),
    ):
        assert [each.tensor for each in checked(ours, results, only)] == want
    assert [
        (each.tensor, each.verdict) for each in checked(ours, {"out/M": results["out/M"]}, ["y"])
    ] == [("out/y", "MISSING")]
    assert checked(ours, {"out/M": results["out/M"]}, ["S"]) == []


@pytest.mark.clause("CASE-23")
@pytest.mark.parametrize(
    "name", ["out/Y", "out/X", "out/window_k", "grad/y_bar", "grad/window_k", "grad/", "out/"]
)
def test_a_recorded_name_that_is_no_result_of_the_case_is_bad_input(name, ours):
    with pytest.raises(
        atlas_ref.CaseError, match=f"^case: {name}: not a result of this case; it has (out|grad)/"
    ):
        checked(ours, {name: np.zeros(3), "out/y": ours[2]["out/y"]})


@pytest.mark.clause("CASE-14", "CASE-23")
def test_recorded_gradients_need_a_cotangent_unless_they_are_not_compared(ours):
    header, tensors, results = ours
    bare = {name: value for name, value in tensors.items() if name != "in/y_bar"}
    with pytest.raises(atlas_ref.CaseError, match=r"^case: in/y_bar: missing, gradients need it$"):
        checked((header, bare, results), results)
    assert [each.verdict for each in checked((header, bare, results), results, ["y"])] == ["PASS"]


@pytest.mark.clause("CASE-23")
def test_a_case_that_records_nothing_is_bad_input(ours):
    with pytest.raises(atlas_ref.CaseError, match="is recorded, so there is nothing to check"):
        checked(ours, {})


@pytest.mark.clause("CASE-26")
@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["PASS", "PASS"], 0),
        (["PASS", "NOT SUPPORTED"], 0),
        (["PASS", "WRONG"], 1),
        (["NOT SUPPORTED", "WRONG"], 1),
        (["PASS", "MISSING"], 1),
        (["PASS", "MARGINAL"], 1),
        (["PASS", "FAILED"], 1),
        (["UNDECIDABLE"], 1),
        (["NOT SUPPORTED"], 3),
        ([], 3),
    ],
)
def test_only_pass_is_success(verdicts, code):
    assert exit_code([Comparison("case", "out/y", word) for word in verdicts]) == code


@pytest.mark.clause("SRC-3")
@pytest.mark.parametrize("rule", ["delta", "omega", "dplr", "newton_schulz", "deep_memory"])
def test_a_misspelt_op_of_a_right_answer_is_refused_with_those_there_are(rule):
    case = atlas_ref.make(*some(rule))
    results = add_trace(case, atlas_ref.evaluate(case)).tensors
    ops = [name for name in results if name.startswith("trace/")]
    rows = atlas_ref.check(case, source=lambda _: Answer(dict(results)))
    assert {row.verdict for row in rows} == {"PASS"}
    answer = Answer({**results, f"{ops[0]}o": results[ops[0]]})
    with pytest.raises(atlas_ref.CaseError) as refusal:
        atlas_ref.check(case, source=lambda _: answer)
    head = f"{case.name}: {ops[0]}o: not an op of this case; it has "
    assert str(refusal.value).startswith(head)
    named = str(refusal.value).removeprefix(head).split(", ")
    assert {name.removeprefix("trace/") for name in ops} <= set(named)
