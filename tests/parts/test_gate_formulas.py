"""Formulas of log gates against their definitions, recordings of public code, and at the edges."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import tape
from atlas_ref.parts import gate_formulas
from tape import ops
from tests.support.close import ANALYTIC, EXACT, Tolerance, assert_close, assert_differs
from tests.truth import gate_formula_loops as literal

RECORDED = Path(__file__).parents[1] / "data" / "peers_gates"
RECORDING = Tolerance("RECORDING", 1e-12)
STEP = 1e-30

#: A few units of float64 for one number.
UNITS = Decimal(16 * 2.0**-53)

EVERY = ("GATES-17", "GATES-18", "GATES-19", "GATES-20", "GATES-21")

#: Formula, settings that are numbers, tensors beside the input.
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "softplus": ("softplus", {}, ("log_rate", "bias")),
    "threshold": ("softplus", {"threshold": 1.0}, ("log_rate", "bias")),
    "bounded": ("bounded", {"lower_bound": -5.0}, ("log_rate", "bias")),
    "log_sigmoid": ("log_sigmoid", {"normalizer": 16.0}, ("bias",)),
    "clamped": ("log_sigmoid", {"normalizer": 2.0, "least": -0.4}, ("bias",)),
    "floored_sigmoid": ("floored_sigmoid", {}, ("floor", "bias")),
    "exponential": ("exponential", {}, ("bias",)),
}


def drawn(name: str, channels: bool) -> dict[str, Any]:
    """Inputs of 2 sequences, 3 heads, 5 tokens, 4 channels or none."""
    draw, own = np.random.default_rng(3), (3, 4) if channels else (3,)
    x = {"x": 2.0 * draw.standard_normal((2, 3, 5, 4) if channels else (2, 3, 5))}
    made = {
        "log_rate": 0.5 * draw.standard_normal(3),
        "bias": draw.standard_normal(own),
        "floor": draw.uniform(0.05, 0.9, own),
    }
    return x | {each: made[each] for each in CASES[name][2]}


def computed(name: str, inputs: dict[str, Any], channels: bool) -> Any:
    """Log gates by the library, with the axis of tokens put into the tensors of heads."""
    formula, settings, _ = CASES[name]
    beside = {}
    for each, value in inputs.items():
        if each == "log_rate" and channels:
            value = ops.expand_dims(value, -1)
        if each != "x":
            beside[each] = ops.expand_dims(value, -2 if channels else -1)
    return getattr(gate_formulas, formula)(inputs["x"], **beside, **settings)


def by_definition(name: str, inputs: dict[str, Any]) -> Any:
    """The same by the loop of the definitions."""
    formula, settings, _ = CASES[name]
    heads = np.zeros(3)
    floors = {"floor": inputs["floor"]} if "floor" in inputs else {}
    rate, bias = inputs.get("log_rate", heads), inputs["bias"]
    return literal.run(formula, inputs["x"], rate, bias, **settings, **floors)


@pytest.mark.clause(*EVERY)
@pytest.mark.parametrize("channels", [True, False], ids=["channels", "one number"])
@pytest.mark.parametrize("name", CASES)
def test_a_formula_is_its_definition_in_values_and_gradients(name: str, channels: bool) -> None:
    """Gradients by complex steps of the definition, entry by entry."""
    inputs = drawn(name, channels)
    got = computed(name, inputs, channels)
    assert_close("gate", got, by_definition(name, inputs).real, ANALYTIC)
    bar = np.random.default_rng(4).standard_normal(got.shape)
    own = tape.grad(lambda x: ops.sum(bar * computed(name, x, channels)))(inputs)
    for each, value in inputs.items():
        slopes = np.zeros(value.shape)
        for place in np.ndindex(value.shape):
            moved = value.astype(complex)
            moved[place] += 1j * STEP
            changed = by_definition(name, {**inputs, each: moved})
            slopes[place] = np.sum(bar * changed).imag / STEP
        assert_close(each, own[each], slopes, ANALYTIC)


@pytest.mark.clause(*EVERY)
@pytest.mark.parametrize("name", CASES)
def test_the_op_is_analytic(name: str) -> None:
    """The library's own code under complex numbers, as every gradient of a case needs it."""
    inputs = {each: value.astype(complex) for each, value in drawn(name, True).items()}
    inputs["x"] = inputs["x"] + 0.1j
    assert_close("gate", computed(name, inputs, True), by_definition(name, inputs), ANALYTIC)


#: Inputs far out, at 0, and where a formula changes sides.
EDGES = (-1e3, -745.2, -708.0, -88.0, -40.0, -17.0, -1e-9, 0.0, 1e-9, 17.0, 40.0, 88.0, 700.0, 1e3)


@pytest.mark.clause(*EVERY, "GATES-10")
@pytest.mark.parametrize("name", ["softplus", "bounded", "log_sigmoid", "floored_sigmoid"])
@pytest.mark.parametrize("x", EDGES)
def test_no_digit_is_lost_and_nothing_overflows_far_out(name: str, x: float) -> None:
    formula, settings, beside = CASES[name]
    rate = 0.75 if "log_rate" in beside else 0.0
    own = {"log_rate": np.float64(rate)} if rate else {}
    floors = {"floor": np.float64(2.0**-30)} if "floor" in beside else {}
    each = getattr(gate_formulas, formula)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        got = each(np.float64(x), **own, **floors, **settings)
        slopes = tape.grad(lambda x: each(x["x"], **settings, **_rest(x)))(
            {"x": np.float64(x), **own, **floors}
        )
    want = literal.exact(
        formula, x, rate, 0.0, **settings, **{n: float(v) for n, v in floors.items()}
    )
    gap = abs(Decimal(float(got)) - want)
    assert gap <= UNITS * abs(want) * max(1, int(abs(x) / 4)) + Decimal("5e-324"), (got, want)
    assert all(np.isfinite(value).all() for value in slopes.values()), slopes


def _rest(x: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in x.items() if name != "x"}


@pytest.mark.clause("GATES-21")
@pytest.mark.parametrize("x", [-1e3, -40.0, 0.0, 5.0, 63.9, 64.1, 1e3])
def test_a_gate_of_minus_an_exponential_is_finite_and_without_slope_where_it_is_0(x: float) -> None:
    def kept(x: Any) -> Any:
        return ops.exp(gate_formulas.exponential(x))

    with np.errstate(over="raise", invalid="raise"):
        value, slope = kept(np.float64(x)), tape.grad(kept)(np.float64(x))
    want = np.exp(-np.exp(min(x, 700.0)))
    assert_close("gate", value, want, ANALYTIC)
    assert np.isfinite(slope)
    if x > 64:
        assert (value, slope) == (0.0, 0.0)


@pytest.mark.clause("GATES-19", "GATES-16")
def test_a_gate_at_its_least_has_no_slope() -> None:
    x = np.array([-1e3, -3.0, -np.log(np.e - 1.0), 0.5])

    def gates(x: Any) -> Any:
        return gate_formulas.log_sigmoid(x, normalizer=2.0, least=-0.5)

    values = gates(x)
    assert (values[0], values[1]) == (-0.5, -0.5)
    slopes = tape.grad(lambda x: ops.sum(gates(x)))(x)
    assert (slopes[0], slopes[1]) == (0.0, 0.0)
    assert slopes[3] > 0.1
    at = np.float64(2.0 * gates(np.float64(0.5)))  # exactly on the bound
    edge = tape.grad(lambda x: gate_formulas.log_sigmoid(x, least=float(at)))(np.float64(0.5))
    assert edge == 0.0


@pytest.mark.clause("GATES-17")
def test_a_threshold_is_off_by_two_billionths_at_20() -> None:
    """As PyTorch's softplus has it: the jump at 20 is e^-20, a relative error of 1e-10."""
    x = np.array([19.99, 20.01])
    plain = gate_formulas.softplus(x)
    cut = gate_formulas.softplus(x, threshold=20.0)
    assert_close("below", cut[0], plain[0], EXACT)
    assert_differs("above", cut[1], plain[1], 9e-11)
    assert_close("above", cut[1], plain[1], Tolerance("one", 1.1e-10))


@pytest.mark.clause("GATES-17", "GATES-18", "GATES-19", "GATES-20")
def test_what_formulas_reduce_to() -> None:
    x = np.random.default_rng(5).standard_normal((3, 5))
    assert_close("log_sigmoid", gate_formulas.log_sigmoid(x), gate_formulas.softplus(-x), EXACT)
    tiny = gate_formulas.floored_sigmoid(x, floor=np.float64(1e-30))
    assert_close("no floor", tiny, gate_formulas.log_sigmoid(x), ANALYTIC)
    whole = gate_formulas.floored_sigmoid(x, floor=np.float64(1.0))
    assert_close("gate of 1", whole, np.zeros((3, 5)), ANALYTIC)
    rwkv7 = gate_formulas.bounded(x, lower_bound=-float(np.exp(-0.5)))
    assert np.exp(rwkv7).min() > 0.545
    assert_differs("rate", gate_formulas.bounded(x, lower_bound=-5.0, log_rate=np.float64(1.0)),
                   gate_formulas.bounded(x, lower_bound=-5.0), 0.1)  # fmt: skip


@pytest.mark.clause("GATES-17", "GATES-18")
@pytest.mark.parametrize("formula", ["softplus", "lower_bound"])
def test_gates_of_public_code_and_all_their_gradients(formula: str) -> None:
    """fla-core's gates of KDA, (B, T, H, K): values, and gradients of x, A_log and dt_bias."""
    file = load_file(RECORDED / f"gate_{formula}_11.safetensors")
    inputs = {name: file[f"in/{name}"] for name in ("x", "A_log", "dt_bias")}

    def gates(x: Any) -> Any:
        beside = {
            "log_rate": ops.expand_dims(x["A_log"], -1),
            "bias": ops.reshape(x["dt_bias"], inputs["x"].shape[-2:]),
        }
        if formula == "softplus":
            return gate_formulas.softplus(x["x"], **beside)
        return gate_formulas.bounded(x["x"], lower_bound=-5.0, **beside)

    assert_close("y", gates(inputs), file["out/y"], RECORDING)
    own = tape.grad(lambda x: ops.sum(file["in/y_bar"] * gates(x)))(inputs)
    for name, value in own.items():
        assert_close(f"grad/{name}", value, file[f"grad/{name}"], RECORDING)
    assert len(own) == 3


#: Largest size of raw numbers and biases in a case, and of a log rate (DPLRCASE-4).
SIZE, LOG_RATE = 1e6, 64.0


@st.composite
def raw_numbers(draw: Any) -> dict[str, Any]:
    """Numbers of every size that a case may have, of float64 or float32."""
    kind = draw(st.sampled_from([np.float64, np.float32]))
    wide = st.floats(-SIZE, SIZE)
    return {
        "x": kind(draw(wide)),
        "bias": kind(draw(wide)),
        "log_rate": kind(draw(st.floats(-SIZE, LOG_RATE))),
        "floor": kind(draw(st.floats(2.0**-99, 1.0))),
    }


@pytest.mark.clause(*EVERY)
@given(inputs=raw_numbers(), name=st.sampled_from(list(CASES)))
def test_every_gate_is_at_most_1_with_finite_slopes_within_the_ranges_of_a_case(
    inputs: dict[str, Any], name: str
) -> None:
    formula, settings, beside = CASES[name]
    compute = getattr(gate_formulas, formula)
    numbers = {each: inputs[each] for each in ("x", *beside)}

    def gate(at: dict[str, Any]) -> Any:
        return compute(at["x"], **settings, **_rest(at))

    with np.errstate(over="raise", invalid="raise", divide="raise"):
        g, slopes = gate(numbers), tape.grad(gate)(numbers)
        kept = np.exp(g)
    assert g.dtype == inputs["x"].dtype
    assert np.isfinite(g)
    assert 0.0 <= kept <= 1.0
    assert all(np.isfinite(value) for value in slopes.values()), slopes
