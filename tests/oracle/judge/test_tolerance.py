"""Tolerances: norms, floor, amplification, verdicts; correct programs pass, wrong ones do not."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import atlas_ref
from atlas_ref.conventions import resolve
from atlas_ref.forms.support import refusal
from atlas_ref.oracle.cases.inputs import round_inputs as stored
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.judge import ensemble, op_steps
from atlas_ref.oracle.judge.arrays import decisive, judged
from atlas_ref.oracle.judge.op_tolerance import op_tolerance
from atlas_ref.oracle.judge.tolerance import FLOOR, from_members, tolerances
from atlas_ref.oracle.norms import Norms, norms, round_to, ulp
from atlas_ref.parts.newton_schulz import NewtonSchulz
from tests.support.close import EXACT, assert_close

NARROW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
PLAIN_OMEGA = {"newton_schulz": "none"}


@pytest.mark.clause("TOL-1")
def test_the_three_norms_by_hand():
    assert norms(np.array([3.0, -4.0])) == Norms(4.0, math.sqrt(12.5), 4.0)
    assert norms(np.arange(200.0)) == Norms(
        199.0, pytest.approx(math.sqrt(sum(i * i for i in range(200)) / 200)), 197.0
    )
    assert norms(np.zeros((2, 3))) == norms(np.zeros(0)) == Norms(0.0, 0.0, 0.0)
    assert norms(np.array([1e300, 1e300])).rms == pytest.approx(1e300)
    assert norms(np.array([1e-300])).rms == pytest.approx(1e-300)


@pytest.mark.clause("TOL-1")
def test_the_worst_quotient_decides():
    assert Norms(2.0, 9.0, 1.0).over(Norms(1.0, 3.0, 1.0)) == 3.0
    assert Norms(0.0, 0.0, 0.0).over(Norms(0.0, 0.0, 0.0)) == 0.0
    assert Norms(1.0, 0.0, 0.0).over(Norms(0.0, 0.0, 0.0)) == math.inf
    assert decisive(Norms(2.0, 9.0, 1.0), Norms(1.0, 3.0, 1.0)) == "rms"


@pytest.mark.clause("TOL-2")
def test_units_in_the_last_place_are_those_of_the_formats():
    for scale in (1.0, 1.5, 2.0, 3.9999, 1e-3, 12345.678, 6e-8):
        assert ulp(scale, "float64") == np.spacing(scale)
        assert ulp(float(np.float32(scale)), "float32") == np.spacing(np.float32(scale))
        for name, kind in NARROW.items():
            value = kind(scale)
            up = float(np.nextafter(value, kind(np.inf), dtype=kind)) - float(value)
            assert ulp(float(value), name) == up
    assert ulp(0.0, "float64") == 5e-324
    assert ulp(0.0, "float32") == float(np.finfo(np.float32).smallest_subnormal)


def made(rule, **request):
    return new(Request(rule=rule, cotangent=True, **request))


CASES = {
    "titans_lmm": made("titans_lmm", tokens=12),
    "delta": made("delta", tokens=12, per_dimension_gates=True),
    "hebbian": made("hebbian", tokens=12),
    "omega": made("omega", tokens=8, window=3),
    "omega without": made(
        "omega", tokens=12, window=3, span=4, convention=PLAIN_OMEGA | {"reference": "chunk_start"}
    ),
    "token": made(
        "omega",
        tokens=6,
        window=2,
        level="token",
        feature_map={"kind": "random_fourier"},
        features=5,
    ),
    "norms": made("delta", tokens=8, convention={"q_norm": "l2", "k_norm": "rms"}),
    "newton_schulz": made("newton_schulz", d_out=6),
    "feature_map": made("feature_map", feature_map={"kind": "elu"}),
}


@pytest.mark.clause("TOL-4")
def test_a_tolerance_is_the_largest_error_and_the_floor():
    want = np.array([1.0, 2.0])
    members = {"one": want + np.array([0.0, 3e-6]), "other": want + 1e-6}
    found = from_members("out/y", want, members, "float32", amplification=10.0)
    floor = FLOOR * 10.0 * 2.0**-22
    assert found.floor.max == floor
    assert found.max == pytest.approx(3e-6 + floor)
    assert found.rms == pytest.approx(3e-6 / math.sqrt(2) + FLOOR * 10.0 * 2.0**-23)
    assert found.ensemble["other"].max == pytest.approx(1e-6)


@pytest.mark.clause("TOL-5")
def test_amplification_is_one_without_newton_schulz_and_the_slope_at_zero_for_rank_one():
    assert {
        each.amplification for each in tolerances(CASES["delta"], dtype="float32").values()
    } == {1.0}
    header, slope = {"schema": 1, "rule": "newton_schulz"}, 3.4445**5
    one_entry = np.zeros((3, 4))
    one_entry[1, 2] = 1.0  # at any size its direction is the same
    assert (
        tolerances(atlas_ref.make(header, {"in/G": one_entry}), dtype="float32")[
            "out/X"
        ].amplification
        == 1.0
    )
    rank_one = np.outer([1.0, 0.5, 0.7], [0.4, 1.0, 0.6, 0.8])
    found = tolerances(atlas_ref.make(header, {"in/G": rank_one}), dtype="float32")[
        "out/X"
    ].amplification
    assert 0.1 * slope < found < 2.0 * slope


@pytest.mark.sample(6)
@pytest.mark.clause("TOL-3", "TOL-6")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_rules_own_evaluation_passes_at_every_precision(name, dtype):
    case = CASES[name]
    grad = name != "feature_map"
    want = evaluate(case, grad=grad).tensors
    got = evaluate(case, grad=grad, dtype=dtype).tensors
    found = tolerances(case, dtype=dtype, only=list(want))
    for tensor, tolerance in found.items():
        row = judged(case.name, tensor, got[tensor], want[tensor], tolerance)
        assert row.verdict == "PASS", (tensor, row)


@pytest.mark.clause("TOL-3", "TOL-6")
@pytest.mark.parametrize("form", ["chunkwise", "exact", "scan", "atlas_parallel", "kernel"])
def test_every_parallel_form_passes_at_float32(form):
    """The same function by other algebra: chunks, scans, triangular solves, kernels."""
    ran = 0
    for case in (CASES["titans_lmm"], CASES["delta"], CASES["omega without"]):
        if refusal(case.header.rule, case.convention, form) is not None:
            continue
        want, found = evaluate(case).tensors, tolerances(case, dtype="float32")
        got = evaluate(
            case, dtype="float32", form=form, chunk=None if form in ("kernel", "scan") else 4
        ).tensors
        for tensor in ("out/y", "out/M"):
            row = judged(case.name, tensor, got[tensor], want[tensor], found[tensor])
            assert row.verdict == "PASS", (form, case.header.rule, tensor, row)
            ran += 1
    assert ran


@pytest.mark.clause("TOL-6")
def test_the_limits_of_the_verdicts():
    case = CASES["delta"]
    want = evaluate(case).tensors["out/y"]
    tolerance = tolerances(case, dtype="float64", only=["out/y"])["out/y"]
    moved = np.zeros_like(want)
    moved.flat[7] = tolerance.max
    words = [
        judged("c", "out/y", want + factor * moved, want, tolerance).verdict
        for factor in (0.0, 1.9, 2.1, 3.9, 4.1, -1.9, -4.1)
    ]
    assert words == ["PASS", "PASS", "MARGINAL", "MARGINAL", "WRONG", "PASS", "WRONG"]
    row = judged("c", "out/y", want + 3.0 * moved, want, tolerance)
    assert (row.place, row.tolerance) == (np.unravel_index(7, want.shape), tolerance.max)
    assert row.basis.startswith("max: ")


@pytest.mark.clause("TOL-6")
def test_what_is_not_finite_or_misshapen_is_wrong_and_an_overflow_of_ours_is_no_verdict():
    tolerance = from_members("out/y", np.ones((2, 3)), {"one": np.ones((2, 3))}, "float32")
    bad = np.ones((2, 3))
    bad[1, 2] = np.nan
    row = judged("c", "out/y", bad, np.ones((2, 3)), tolerance)
    assert (row.verdict, row.why, row.place) == ("WRONG", "nan at (1, 2)", (1, 2))
    assert (
        judged("c", "out/y", np.zeros((3, 2)), np.ones((2, 3)), tolerance).why
        == "shape (3, 2), expected (2, 3)"
    )
    bad[1, 2] = np.inf
    assert judged("c", "out/y", np.ones((2, 3)), bad, tolerance).verdict == "UNDECIDABLE"
    assert judged("c", "out/y", np.ones((2, 3), np.int64), bad, tolerance).verdict == "UNDECIDABLE"


@pytest.mark.clause("TOL-6", "CASE-21")
def test_what_the_format_cannot_hold_is_undecidable_and_never_wrong():
    """A right program that answers in float16, which has nothing but infinity for 98301."""
    want = np.array([1.0, -98301.0, 2.0])
    tolerance = from_members("grad/G", want, {"one": want}, "float16", arithmetic="float32")
    with np.errstate(over="ignore"):
        right = want.astype(np.float16)
    row = judged("c", "grad/G", right, want, tolerance)
    assert (row.verdict, row.why, row.place) == (
        "UNDECIDABLE",
        "ours is -98301 at (1,), which float16 cannot hold",
        (1,),
    )
    assert (
        judged("c", "grad/G", np.where(np.isinf(right), -right, right), want, tolerance).why
        == "inf at (1,)"
    )
    assert (
        judged("c", "grad/G", np.array([1.0, -np.inf, np.nan], np.float16), want, tolerance).why
        == "nan at (2,)"
    )
    small = from_members("grad/G", np.ones(3), {"one": np.ones(3)}, "float16", arithmetic="float32")
    assert (
        judged("c", "grad/G", np.array([np.inf, 1, 1], np.float16), np.ones(3), small).why
        == "inf at (0,)"
    )


@pytest.mark.clause("TOL-6")
def test_a_precision_that_separates_no_alternative_decides_nothing():
    case = CASES["delta"]
    tolerance = tolerances(case, dtype="float32", only=["out/y"])["out/y"]
    assert (tolerance.note, tolerance.merged) == ("", ())
    want = evaluate(case).tensors["out/y"]
    blind = tolerance._replace(merged=("decay before_error", "rate memory"))
    row = judged("c", "out/y", want, want, blind)
    assert (row.verdict, row.why) == (
        "UNDECIDABLE",
        "float32 cannot separate ours from decay before_error; rate memory",
    )
    assert judged("c", "out/y", want + 1.0, want, blind).verdict == "WRONG"


@pytest.mark.clause("TOL-6")
def test_alternatives_that_the_format_hides_are_named_in_a_note():
    """Steps so small that their writes are lost beside the memory."""
    case = CASES["delta"]
    still = atlas_ref.make(
        case.header.plain(), case.inputs | {"in/step_size": 1e-6 * case.inputs["in/step_size"]}
    )
    found = tolerances(still, dtype="bfloat16", only=["out/y"])["out/y"]
    assert found.note.startswith("bfloat16 cannot separate this case's out/y from that of: ")
    assert "gradient_scale 2;" in found.note
    assert "query_scale" not in found.note
    assert found.merged == ()
    assert tolerances(still, dtype="float64", only=["out/y"])["out/y"].note == ""


@pytest.mark.clause("TOL-6")
def test_alternatives_that_only_eps_tells_apart_are_a_note():
    tolerance = tolerances(CASES["omega"], dtype="float32", only=["out/y"])["out/y"]
    assert tolerance.note.startswith(
        "float32 cannot separate this case's out/y from that of: newton_schulz.eps 0"
    )
    assert "newton_schulz.guard clamp" in tolerance.note
    assert "read before" not in tolerance.note
    assert tolerance.merged == ()


@pytest.mark.clause("TOL-7")
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", ["titans_lmm", "omega", "omega without", "newton_schulz"])
def test_narrow_results_of_float32_arithmetic_pass(name, dtype):
    case = stored(CASES[name], dtype)
    want = evaluate(case, grad=True).tensors
    got = {
        tensor: value.astype(NARROW[dtype])
        for tensor, value in evaluate(case, grad=True, dtype="float32").tensors.items()
    }
    for tensor, tolerance in tolerances(CASES[name], dtype=dtype, only=list(want)).items():
        row = judged(case.name, tensor, got[tensor], want[tensor], tolerance)
        assert row.verdict == "PASS", (tensor, row)


@pytest.mark.clause("TOL-7")
def test_amplification_concerns_the_arithmetic_and_not_what_was_stored():
    wide = tolerances(CASES["omega"], dtype="bfloat16", only=["out/y"])["out/y"]
    narrow = evaluate(stored(CASES["omega"], "bfloat16")).tensors["out/y"]
    top = norms(narrow).max
    assert wide.floor.max == pytest.approx(
        FLOOR * (ulp(top, "bfloat16") + wide.amplification * ulp(top, "float32"))
    )


@pytest.mark.clause("TOL-8")
def test_a_state_that_is_rounded_after_every_token_needs_the_wider_tolerance():
    case = made("titans_lmm", tokens=64, d_in=8, d_out=8)
    case = stored(case, "bfloat16")
    want = evaluate(case).tensors["out/M"]
    inputs = {name: value.astype(np.float32) for name, value in case.inputs.items()}
    got = ensemble.evaluate(case, inputs, MEMBERS[0], state_dtype="bfloat16")["out/M"]
    plain, wide = (
        tolerances(case, dtype="bfloat16", state_dtype=state, only=["out/M"])["out/M"]
        for state in (None, "bfloat16")
    )
    assert judged("c", "out/M", round_to(got, "bfloat16"), want, wide).verdict == "PASS"
    assert wide.rms > plain.rms


@pytest.mark.clause("TOL-6")
@pytest.mark.parametrize("name", ["titans_lmm", "delta", "omega", "omega without"])
def test_another_convention_is_wrong_at_float32(name):
    case = CASES[name]
    want, tolerance = (
        evaluate(case).tensors["out/y"],
        tolerances(case, dtype="float32", only=["out/y"])["out/y"],
    )
    for changes in (
        {"decay": "before_error"},
        {"read": "before"},
        {"query_scale": "1/sqrt(d_in)"},
        {"value_sign": "plus"},
    ):
        got = evaluate(case, convention=changes).tensors["out/y"].astype(np.float32)
        assert judged(case.name, "out/y", got, want, tolerance).verdict == "WRONG", changes


@pytest.mark.clause("TOL-1")
def test_what_is_no_result_of_the_case_is_refused():
    with pytest.raises(
        atlas_ref.CaseError, match=r"out/X: not a result of this case; it has out/y, out/M$"
    ):
        tolerances(CASES["delta"], dtype="float32", only=["out/X"])
    with pytest.raises(atlas_ref.CaseError, match=r"dtype 'float8' is not available"):
        tolerances(CASES["delta"], dtype="float8")


# -- single ops ------------------------------------------------------------------------------------


def op_inputs():
    random = np.random.default_rng(5)
    S, column = random.standard_normal((2, 8, 5, 3)), random.uniform(0.3, 1.0, (2, 8, 1, 1))
    keys, values = random.standard_normal((2, 8, 4, 3)), random.standard_normal((2, 8, 4, 5))
    return {
        "residual": {"M_ref": S, "keys": keys, "values": values, "retain": column},
        "gradient": {
            "residual": values,
            "keys": keys,
            "weights": random.uniform(0.1, 1.0, (2, 8, 4, 1)),
        },
        "S": {"S": S, "gradient": S[::-1], "momentum": column, "a": column[::-1]},
        "X0": {"S": S},
        "X3": {"X": S / 8.0},
        "U": {"S": S},
        "M": {"M": S, "U": S[::-1], "retain": column, "b": column[::-1]},
        "y": {"M": S, "phi_q": random.standard_normal((2, 8, 3))},
    }


OPS = op_inputs()
SPEC = resolve("spec", rule="omega")


@pytest.mark.clause("TOL-9")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_an_op_computed_before_or_after_its_inputs_were_rounded_passes(op, dtype):
    kind = {"float64": np.float64, "float32": np.float32, **NARROW}[dtype]
    arithmetic = np.float64 if dtype == "float64" else np.float32
    exact = {name: value.astype(arithmetic) for name, value in OPS[op].items()}
    recorded = {name: value.astype(kind).astype(arithmetic) for name, value in exact.items()}
    want = op_steps.evaluate(
        op, {name: value.astype(np.float64) for name, value in recorded.items()}, SPEC, MEMBERS[0]
    )
    tolerance = op_tolerance(op, recorded, SPEC, dtype)
    for inputs in (exact, recorded):
        for way in MEMBERS:
            got = op_steps.evaluate(op, inputs, SPEC, way).astype(kind)
            assert judged("c", op, got, want, tolerance).verdict == "PASS", (op, dtype, way)


@pytest.mark.clause("TOL-9")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cubic_in_place_of_the_quintic_is_wrong(dtype):
    want = op_steps.evaluate("X3", OPS["X3"], SPEC, MEMBERS[0])
    got = op_steps.evaluate("X3", OPS["X3"], NewtonSchulz(coefficients="cubic"), MEMBERS[0])
    assert (
        judged("c", "X3", got, want, op_tolerance("X3", OPS["X3"], SPEC, dtype)).verdict == "WRONG"
    )


@pytest.mark.clause("TOL-9")
def test_an_op_of_ones_own_and_inputs_that_were_never_rounded():
    x = {"x": np.linspace(-1.0, 1.0, 50)}

    def cube(inputs):
        return inputs["x"] * inputs["x"] * inputs["x"]

    found = op_tolerance("cube", x, SPEC, "bfloat16", function=cube)
    exact = op_tolerance("cube", x, SPEC, "bfloat16", function=cube, exact=("x",))
    assert exact.rms < found.rms
    with pytest.raises(ValueError, match="square: no such op"):
        op_tolerance("square", x, SPEC, "float32")
    with pytest.raises(ValueError, match="X9: no such op"):
        op_tolerance("X9", OPS["X3"], SPEC, "float32")


def test_rounding_to_a_format_is_to_nearest_even():
    third = round_to(np.array([1 / 3, 1.0 + 2.0**-9, 1.0 + 3 * 2.0**-9]), "bfloat16")
    assert Fraction(third[0]) == Fraction(171, 512)
    assert_close("ties", third[1:], np.array([1.0, 1.0 + 2.0**-7]), EXACT)
