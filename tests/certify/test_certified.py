"""Certified values against the NumPy path and, bit for bit, against fractions; ties and precision.

Conventions are drawn for the NumPy path.
"""

from __future__ import annotations

import ast
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

import atlas_ref
from atlas_ref.certify import Unresolved, certify
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import Unsupported, evaluate
from atlas_ref.oracle.judge.arrays import judged
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.parts.newton_schulz.minimax import polar_express as numpy_polar_express
from tests.support.strategies import cases, repeatable

FOLDER = Path(atlas_ref.__file__).parent / "certify"


def assert_agrees(
    case: Case, ours: dict[str, np.ndarray], certified: dict[str, np.ndarray]
) -> None:
    """Compare to 1e-12 of the tensor's scale, else to the measured tolerance.

    The scale is 1 where a tensor is the small rest of larger terms.
    """
    for name, want in certified.items():
        assert want.shape == ours[name].shape
        assert want.dtype == np.float64
        if np.all(
            np.abs(ours[name] - want) <= 1e-12 * max(1.0, float(np.max(np.abs(want), initial=0.0)))
        ):
            continue
        # which knows what Newton-Schulz amplifies here
        allowed = tolerances(case, dtype="float64", only=[name])[name]
        assert judged(case.name, name, ours[name], want, allowed).verdict == "PASS", name


@pytest.mark.clause("CERT-2")
@settings(repeatable, max_examples=90)
@given(cases())
def test_two_implementations_that_share_no_code_agree_under_every_convention(case: Case) -> None:
    ours, found = evaluate(case, grad=True).tensors, certify(case, grad=True)
    assert found.values.keys() == ours.keys() <= found.bits.keys()
    for each in (entry for entries in found.unresolved.values() for entry in entries):
        # only a tie: no precision tells sqrt(1/2) sqrt(1/2) y from y / 2 halfway between two doubles
        assert np.nextafter(each.low, each.high) == each.high
    assert_agrees(case, ours, found.values)


@pytest.mark.slow
@pytest.mark.clause("CERT-2")
@settings(repeatable, max_examples=1500)
@given(cases())
def test_two_implementations_agree_on_many_more(case: Case) -> None:
    ours, found = evaluate(case, grad=True).tensors, certify(case, grad=True)
    assert found.values.keys() == ours.keys()
    assert_agrees(case, ours, found.values)


@pytest.mark.clause("CERT-1")
def test_nothing_of_the_numpy_path_is_imported() -> None:
    """Imports of its modules: the parsed case, refusals, a hint, progress, and each other."""
    taken = set()
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.startswith(("atlas_ref", "tape"))
            ):
                taken |= {f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Import):
                taken |= {
                    each.name for each in node.names if each.name.startswith(("atlas_ref", "tape"))
                }
    outside = {name for name in taken if not name.startswith("atlas_ref.certify")}
    case = "atlas_ref.oracle.cases.case."
    assert outside == {
        f"{case}Case",
        f"{case}CaseError",
        f"{case}differentiable",
        f"{case}Unsupported",
        f"{case}require_supported",
        "atlas_ref.messages.install",
        "atlas_ref.messages.Progress",
        "atlas_ref.messages.unwatched",
    }


@pytest.mark.clause("CERT-1")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_narrow_inputs_are_taken_exactly(dtype: str) -> None:
    narrow = new(Request(rule="titans_lmm", dtype=dtype))
    wide = make(
        narrow.header.plain(),
        {name: value.astype(np.float64) for name, value in narrow.inputs.items()},
    )
    for name, value in certify(narrow).values.items():
        assert np.array_equal(value, certify(wide).values[name])


# -- bit for bit -----------------------------------------------------------------------------------


def exact(array: Any) -> Any:
    """An array of fractions."""
    return np.array([Fraction(float(x)) for x in np.ravel(array)], dtype=object).reshape(
        np.shape(array)
    )


def floats(array: Any) -> np.ndarray:
    """Fractions as float64, each rounded once."""
    return np.array([float(x) for x in np.ravel(array)]).reshape(np.shape(array))


@pytest.mark.clause("CERT-4")
@pytest.mark.clause("CERT-6")
@pytest.mark.parametrize("seed", range(3))
def test_titans_is_the_fraction_rounded_once(seed: int) -> None:
    case = new(Request(rule="titans_lmm", tokens=12, heads=1, seed=seed))
    x = {name.removeprefix("in/"): exact(value[0]) for name, value in case.inputs.items()}
    M, S = x.get("M0", exact(np.zeros((3, 4)))), x.get("S0", exact(np.zeros((3, 4))))
    y = []
    for t in range(12):
        error = M @ x["k"][t] - x["v"][t]
        S = x["momentum"][t] * S + x["step_size"][t] * np.outer(error, x["k"][t])
        M = x["retain"][t] * M - S
        y.append(M @ x["q"][t])
    found = certify(case)
    for name, want in (("out/y", np.array(y)), ("out/M", M), ("out/S", S)):
        assert np.array_equal(found.values[name][0], floats(want)), name


@pytest.mark.clause("CERT-3")
def test_newton_schulz_is_the_fraction_rounded_once() -> None:
    """A matrix of norm 5, so that all numbers are fractions."""
    G = np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    rows = [[2.0, -1.5, 0.5], [1.5, -0.5, 0.0], [3.4445, -4.775, 2.0315]]
    settings_ = {"coefficients": rows, "steps": 4, "eps": 1e-7, "scale": "norm"}
    case = make(
        {"schema": 1, "rule": "newton_schulz", "convention": {"newton_schulz": settings_}},
        {"in/G": G},
    )
    X = exact(G) / (5 + Fraction(1e-7))
    for row in [*rows, rows[-1]]:
        a, b, c = map(Fraction, row)
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    assert np.array_equal(certify(case).values["out/X"], floats(5 * X))


@pytest.mark.clause("CERT-3")
@pytest.mark.parametrize("lower_bound", [1e-3, 0.3, 0.99, 1e-12, 1e-300])
def test_polar_express_has_the_coefficients_of_the_other_implementation(lower_bound: float) -> None:
    from atlas_ref.certify.newton_schulz import polar_express

    assert tuple(polar_express(lower_bound, 7)) == numpy_polar_express(lower_bound, 7)


# -- ties, zeros and precision ---------------------------------------------------------------------

UP = 1.0 + 2.0**-52
#: 1.5 (1 + 2^-52) lies in the middle of two float64; the even one is the larger.
LOWER, UPPER = 1.5 + 2.0**-52, 1.5 + 2.0**-51


def one_token(rule: str, k: float, v: float, q: float, **more: Any) -> Case:
    """A case of one token and one dimension, with retain and step size 1."""
    header = {"schema": 1, "rule": rule, **more}
    tensors = {"in/k": [[k]], "in/v": [[v]], "in/q": [[q]], "in/retain": [1.0]}
    if rule == "omega":
        header["convention"] = {"newton_schulz": "none", "rate": "none"}
    return make(header, {name: np.array(value) for name, value in tensors.items()})


@pytest.mark.clause("CERT-5")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_tie_of_a_linear_rule_is_exact_and_goes_to_even(sign: float) -> None:
    found = certify(one_token("hebbian", 1.0, sign * UP, 1.5))
    assert found.unresolved == {}
    assert found.values["out/y"].item() == sign * UPPER


@pytest.mark.clause("CERT-5")
@pytest.mark.clause("CERT-7")
def test_a_tie_that_no_ball_can_be_exact_about_is_reported_with_both_neighbours() -> None:
    # weight 1/3: M = 1/3 * 3 * (1 + 2^-52), which is a float64
    case = one_token("omega", UP, 3.0, 1.5, window=3)
    found = certify(case, max_bits=1024)
    assert found.values["out/M"].item() == UP
    assert found.unresolved == {"out/y": [Unresolved((0, 0), LOWER, UPPER)]}
    assert found.values["out/y"].item() == LOWER


@pytest.mark.clause("CERT-4")
def test_a_sum_that_cancels_is_zero_once_its_ball_is_below_half_of_the_smallest_number() -> None:
    header = {
        "schema": 1,
        "rule": "omega",
        "window": 3,
        "convention": {"newton_schulz": "none", "rate": "none"},
    }
    tensors = {
        "in/k": [[1.0], [-1.0]],
        "in/v": [[1.0], [1.0]],
        "in/q": [[1.0], [1.0]],
        "in/retain": [1.0, 0.0],
    }
    tensors |= {"in/M0": [[0.0]]}
    header["convention"] |= {"reference": "zero"}
    found = certify(make(header, {name: np.array(value) for name, value in tensors.items()}))
    assert found.unresolved == {}
    assert str(found.values["out/M"].item()) == "0.0"  # 1/3 - 1/3
    assert found.bits["out/M"] == 2048
    assert found.bits["out/window_k"] == 128


@pytest.mark.clause("CERT-4")
def test_results_below_and_beyond_the_normal_numbers() -> None:
    found = certify(one_token("hebbian", 2.0**-1000, 3.0, 2.0**-75))
    assert found.values["out/y"].item() == 1e-323  # 1.5 units of the smallest, to even
    assert certify(one_token("hebbian", 1e300, 1e300, 1.0)).values["out/y"].item() == math.inf


@pytest.mark.clause("CERT-6")
def test_precision_doubles_until_every_entry_is_resolved() -> None:
    case = new(Request(rule="omega", tokens=8, window=2, heads=1))
    found = certify(case)
    assert set(found.bits.values()) <= {128, 256, 512, 1024}
    assert found.bits["out/window_k"] == 128 < found.bits["out/y"]


@pytest.mark.clause("CERT-7")
@pytest.mark.parametrize("bits", [2, 8, 40, 60])
def test_with_too_few_bits_the_ends_enclose_the_certified_value(bits: int) -> None:
    case = new(Request(rule="delta", tokens=5))
    whole, found = certify(case), certify(case, max_bits=bits)
    assert found.unresolved
    for name, entries in found.unresolved.items():
        for each in entries:
            assert each.low < each.high
            assert each.low <= whole.values[name][each.index] <= each.high
    for name, value in found.values.items():
        resolved = np.ones(value.shape, bool)
        for each in found.unresolved.get(name, ()):
            resolved[each.index] = False
        assert np.array_equal(value[resolved], whole.values[name][resolved])


@pytest.mark.clause("CERT-8")
def test_balls_that_have_lost_everything_stop_growing_and_are_reported_as_unknown() -> None:
    case = new(Request(rule="omega", tokens=64, d_in=6, d_out=6, heads=1))
    found = certify(case, max_bits=32)
    last = found.unresolved["out/M"][0]
    assert (last.low, last.high) == (-math.inf, math.inf)
    assert np.isnan(found.values["out/M"][(0, *last.index[1:])])


@pytest.mark.clause("CERT-8")
@pytest.mark.parametrize("size", [0.25, 0.5, 0.75])
def test_the_guard_return_is_decided_where_norms_are_exact(size: float) -> None:
    """The two sides of the guard at eps = 0.5.

    Below it the argument comes back itself; at and above it size / (size + eps) goes through the
    cubic once.
    """
    chosen = {"coefficients": "cubic", "steps": 1, "eps": 0.5, "guard": "return"}
    case = make(
        {"schema": 1, "rule": "newton_schulz", "convention": {"newton_schulz": chosen}},
        {"in/G": np.array([[size]])},
    )
    x = Fraction(size) / (Fraction(size) + Fraction(1, 2))
    want = size if size < 0.5 else float(Fraction(3, 2) * x - x**3 / 2)
    assert certify(case).values["out/X"].item() == want


@pytest.mark.clause("CERT-8")
def test_a_guard_whose_boundary_no_ball_decides_leaves_nothing_known() -> None:
    """A guard at ||S|| = sqrt 2 and the float64 nearest to it: undecided in 40 bits, decided in
    128.
    """
    root = math.sqrt(2.0)
    chosen = {"coefficients": "cubic", "steps": 1, "eps": root, "guard": "return"}
    G = np.array([[1.0, 1.0]])
    case = make(
        {"schema": 1, "rule": "newton_schulz", "convention": {"newton_schulz": chosen}}, {"in/G": G}
    )
    assert certify(case, max_bits=40).unresolved["out/X"][0] == Unresolved(
        (0, 0), -math.inf, math.inf
    )
    # the float64 nearest to sqrt 2 is the larger
    assert np.array_equal(certify(case).values["out/X"], G)


def test_what_cannot_be_certified_is_refused_in_one_line() -> None:
    with pytest.raises(CaseError, match=r"^new: in/y_bar: missing, gradients need it$"):
        certify(new(Request(rule="delta")), grad=True)
    with pytest.raises(CaseError, match=r"^max_bits: must be at least 2, found 1$"):
        certify(new(Request(rule="delta")), max_bits=1)
    with pytest.raises(Unsupported, match="rule ttl: not yet supported"):
        certify(make({"schema": 1, "rule": "ttl"}, {"in/x": np.zeros((1, 2))}))
    with pytest.raises(
        CaseError,
        match=r"^new: rule cms: certify looks into one memory; atlas-ref levels makes a case of each level$",
    ):
        certify(new(Request(rule="cms")))


@pytest.mark.clause("CERT-13", "CASE-30")
def test_a_schedule_says_which_tokens_write() -> None:
    case = new(Request(rule="omega", window=3, periods=(1, 2, 4), schedule_level=1, cotangent=True))
    given = {name: value for name, value in case.inputs.items() if name != "in/active"}
    alone = certify(make(case.header.plain(), given), grad=True)
    stated = {name: value for name, value in case.header.plain().items() if name != "schedule"}
    same = certify(make(stated, case.inputs), grad=True)
    assert_agrees(case, evaluate(case, grad=True).tensors, alone.values)
    assert all(np.array_equal(alone.values[name], same.values[name]) for name in same.values)
    every = certify(make(stated, given), grad=True)
    assert not np.array_equal(every.values["out/M"], alone.values["out/M"])


@pytest.mark.clause("CERT-2", "WINDOW-7", "WINDOW-25")
def test_a_product_of_gates_is_what_a_token_brings() -> None:
    kind = {"kind": "product", "of": [{"kind": "gate"}, {"kind": "gate"}]}
    case = new(
        Request(
            rule="omega", level="token", window=3, history=2, window_weights=kind, cotangent=True
        )
    )
    ours = evaluate(case, grad=True).tensors
    assert "out/window_gate_before" in ours
    assert_agrees(case, ours, certify(case, grad=True).values)


def test_bfloat16_is_read_as_itself() -> None:
    case = new(Request(rule="hebbian", dtype="bfloat16"))
    assert case.inputs["in/k"].dtype == ml_dtypes.bfloat16
    assert certify(case).bits["out/y"] == 128


@pytest.mark.clause("CERT-15")
def test_newton_schulz_and_length_take_bits_and_a_linear_rule_few() -> None:
    """The precision that each needs.

    The seconds are those of `python -m benchmarks certify`.
    """

    def bits(grad: bool, **request: Any) -> int:
        found = certify(new(Request(heads=1, cotangent=True, **request)), grad=grad)
        assert not found.unresolved
        return max(found.bits.values())

    small = {"tokens": 8, "d_in": 4, "d_out": 4}
    assert bits(True, rule="omega", window=3, **small) == 512
    assert bits(True, rule="titans_lmm", **small) <= 128
    assert bits(False, rule="omega", tokens=24, d_in=4, d_out=4) > bits(
        False, rule="omega", tokens=4, d_in=4, d_out=4
    )
