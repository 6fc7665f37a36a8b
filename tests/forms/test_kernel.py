"""The kernel form: every rule from products of features alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_ref import forms as parallel
from atlas_ref.conventions import Convention, resolve
from atlas_ref.forms.kernel_steps import orthogonalised
from atlas_ref.oracle.cases.case import Case, differentiable
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.tensor_spec import phi_of
from atlas_ref.oracle.subjects import memory
from atlas_ref.parts.newton_schulz import NewtonSchulz, plain_newton_schulz
from atlas_ref.rules import FAMILY, sequence
from tape import grad, ops
from tests.support.close import (
    ANALYTIC,
    EXACT,
    assert_close,
    assert_differs,
    relative_error,
    reordered,
)
from tests.support.form_results import gradients, results, with_edges
from tests.support.strategies import AXES, NEWTON_SCHULZ, cases, header_of, repeatable
from tests.truth import literal, literal_parts

#: As in tests/rules/test_literal.py: what a rule amplifies, and Newton-Schulz in small singular
#: values, once per token.
WITHOUT, WITH = 1e4, 1e7


def amplified(convention: Convention) -> Any:
    return reordered(1, amplification=WITH if convention.has_newton_schulz else WITHOUT)


# -- features at hand: every rule under every convention -------------------------------------------


def determined(case: Case) -> bool:
    """Whether an ulp in the inputs moves the results of the loops by no more than 1e-12.

    Written back at every token, Newton-Schulz feeds on its own rounding: after eight tokens of
    Polar Express the loops, the sequential form and a run in long double can differ in the fourth
    digit. Such a case has no result to agree on, and is drawn again.
    """
    if case.convention.argument != "written_back":
        return True
    draw = np.random.default_rng(1)
    ulp = {
        name: x * (1 + 2.0**-52 * draw.standard_normal(x.shape))
        for name, x in case.inputs.items()
        if name in differentiable(case)
    }
    one, two = (literal.evaluate(header_of(case), case.inputs | changes) for changes in ({}, ulp))
    return all(relative_error(two[name], one[name]) <= 1e-12 for name in ("out/y", "out/M"))


def equals_the_loops(case: Case) -> None:
    want = literal.evaluate(header_of(case), case.inputs)
    phase = want.pop("phase", None)
    got, position = results(case, "kernel")
    assert got.keys() == want.keys()
    assert position == phase
    for name, value in want.items():
        assert_close(name, got[name], value, amplified(case.convention))


def gradients_equal_the_sequential_ones(case: Case) -> None:
    got, want = gradients(case, "kernel"), gradients(case, "sequential")
    assert got.keys() == want.keys()
    # some vanish, since Newton-Schulz hides scales
    size = max(float(np.linalg.norm(value)) for value in want.values())
    bound = amplified(case.convention).bound
    for name, value in want.items():
        gap = float(np.linalg.norm(np.asarray(got[name]) - value))
        assert gap <= bound * max(size, float(np.linalg.norm(value))), f"{name}: {gap} of {size}"


@pytest.mark.clause(
    "KERNEL-1", "KERNEL-2", "KERNEL-3", "KERNEL-4", "KERNEL-5", "KERNEL-7", "KERNEL-14", "CHUNK-1"
)
@pytest.mark.parametrize("rule", FAMILY)
def test_every_result_equals_the_literal_loops(rule: str) -> None:
    settings(repeatable, max_examples=150 if rule == "omega" else 40)(
        given(cases(rule).filter(determined))(equals_the_loops)
    )()


@pytest.mark.clause("KERNEL-13")
@pytest.mark.parametrize("rule", FAMILY)
def test_every_gradient_equals_the_sequential_one(rule: str) -> None:
    settings(repeatable, max_examples=50 if rule == "omega" else 15)(
        given(cases(rule).filter(determined))(gradients_equal_the_sequential_ones)
    )()


@pytest.mark.clause("KERNEL-2", "KERNEL-4", "WINDOW-11", "WINDOW-12", "WINDOW-13")
@pytest.mark.parametrize("reference", AXES["reference"])
@pytest.mark.parametrize("boundary", AXES["window_at_boundary"])
def test_reference_boundary_decay_order_and_read_together_equal_the_literal_loops(
    reference: str, boundary: str
) -> None:
    for i, (decay, order, read) in enumerate(
        itertools.product(AXES["decay"], AXES["order"], AXES["read"])
    ):
        axes = {
            "reference": reference,
            "window_at_boundary": boundary,
            "decay": decay,
            "order": order,
            "read": read,
            "gradient_scale": 2,
        }
        axes |= {"newton_schulz": {} if i % 2 else "none", "momentum_sign": "minus"}
        request = {
            "tokens": 8,
            "window": 3,
            "span": 2 + i % 3,
            "history": 2,
            "pulse": 3,
            "per_dimension_gates": i % 4 == 1,
        }
        case = new(Request(rule="omega", seed=i, cotangent=True, convention=axes, **request))
        equals_the_loops(case)
        if read == "after":
            gradients_equal_the_sequential_ones(case)


@pytest.mark.slow
@pytest.mark.parametrize("rule", FAMILY)
def test_every_result_equals_the_literal_loops_at_length(rule: str) -> None:
    settings(repeatable, max_examples=1500)(
        given(cases(rule).filter(determined))(equals_the_loops)
    )()


@pytest.mark.slow
@pytest.mark.parametrize("rule", FAMILY)
def test_every_gradient_equals_the_sequential_one_at_length(rule: str) -> None:
    settings(repeatable, max_examples=500)(
        given(cases(rule).filter(determined))(gradients_equal_the_sequential_ones)
    )()


@pytest.mark.clause("KERNEL-2")
@settings(repeatable, max_examples=40)
@given(cases(newton_schulz=False), st.integers(0, 100))
def test_gates_that_are_exactly_0_or_1_or_underflow_give_what_the_sequential_form_gives(
    case: Case, seed: int
) -> None:
    equals_the_loops(with_edges(case, seed))
    gradients_equal_the_sequential_ones(with_edges(case, seed))


@pytest.mark.clause("KERNEL-2", "KERNEL-3")
@pytest.mark.parametrize(
    ("argument", "order"),
    [(argument, "window_then_momentum") for argument in NEWTON_SCHULZ["argument"]]
    + [(argument, "momentum_then_window") for argument in ("S", "nesterov", "accumulated")],
)
def test_an_inactive_token_leaves_memory_and_momentum_alone(argument: str, order: str) -> None:
    axes = {"order": order, "gradient_scale": 2, "newton_schulz": {"argument": argument}}
    case = new(
        Request(
            rule="omega", tokens=7, window=3, history=2, pulse=3, cotangent=True, convention=axes
        )
    )
    equals_the_loops(case)
    gradients_equal_the_sequential_ones(case)


@pytest.mark.clause("KERNEL-3")
def test_a_silent_step_and_an_active_one_of_rate_0_differ_in_what_is_written_back() -> None:
    case = new(
        Request(rule="omega", tokens=4, convention={"newton_schulz": {"argument": "written_back"}})
    )
    inputs = {
        **case.inputs,
        "in/step_size": np.zeros((2, 4)),
        "in/retain": np.ones((2, 4)),
        "in/momentum": np.ones((2, 4)),
    }
    silent, _ = results(case, "kernel", inputs={**inputs, "in/active": np.zeros(4, bool)})
    writes, _ = results(case, "kernel", inputs=inputs)
    for form, want in (("silent", silent), ("writes", writes)):
        same = inputs if form == "writes" else {**inputs, "in/active": np.zeros(4, bool)}
        for name, value in results(case, "sequential", inputs=same)[0].items():
            assert_close(f"{form} {name}", want[name], value, amplified(case.convention))
    assert_close("S stays", silent["out/S"], case.inputs["in/S0"], reordered(4))
    assert_differs("S is replaced", writes["out/S"], case.inputs["in/S0"], 0.1)


@pytest.mark.clause("KERNEL-9")
def test_coefficients_without_influence_do_not_grow_where_newton_schulz_is_written_back() -> None:
    # d_out > d_phi: some combination of the rows of Z has no features left, and the first term of
    # every step multiplies it
    axes = {"rate": "memory", "newton_schulz": {"argument": "written_back"}}
    case = new(
        Request(
            rule="omega",
            tokens=12,
            d_in=2,
            d_out=5,
            window=2,
            history=1,
            cotangent=True,
            convention=axes,
        )
    )
    assert determined(case)
    equals_the_loops(case)
    gradients_equal_the_sequential_ones(case)


@pytest.mark.clause("KERNEL-14", "CHUNK-19")
@pytest.mark.parametrize(
    "forms", [("kernel", "kernel"), ("kernel", "sequential"), ("sequential", "kernel")]
)
def test_a_call_in_two_parts_equals_one_and_either_part_may_be_sequential(
    forms: tuple[str, str],
) -> None:
    @settings(repeatable, max_examples=30)
    @given(cases(tokens=5, reset=0, level="projected").filter(determined), st.integers(1, 4))
    def split(case: Case, first: int) -> None:
        whole, _ = results(case, "sequential")
        y = []
        state = None
        for form, tokens in zip(forms, (slice(0, first), slice(first, 5)), strict=True):
            state, reads = part(case, form, tokens, state)
            y.append(reads)
        assert state is not None
        assert_close("M", layout(case, state.M), whole["out/M"], amplified(case.convention))
        if "out/S" in whole:
            assert_close("S", layout(case, state.S), whole["out/S"], amplified(case.convention))
        if case.convention.read != "call_end":
            assert_close(
                "y", np.concatenate(y, axis=-2), whole["out/y"], amplified(case.convention)
            )

    split()


def layout(case: Case, x: Any) -> Any:
    return x.swapaxes(-1, -2) if case.convention.layout == "transposed" else x


def part(case: Case, form: str, tokens: slice, state: Any) -> tuple[Any, Any]:
    """The results of some tokens of a case in a form, from a state or from that of the case."""
    rule = FAMILY[case.header.rule]
    config, whole = memory.sequence_of(rule, case.inputs, case)
    lead = len(whole.k.shape) - 2
    cut = {
        name: value[tokens]
        if name in ("active", "reset")
        else value[(*[slice(None)] * lead, tokens)]
        for name, value in whole.__dict__.items()
        if value is not None
    }
    if state is None:
        state = memory.initial_state(rule, config, case.inputs, whole, case.header.phase)
    return parallel.run(
        rule, config, sequence.Tokens(**cut), state, form=form, phi=phi_of(case.inputs)
    )


@pytest.mark.clause("KERNEL-10")
def test_the_chunk_is_accepted_and_ignored() -> None:
    case = new(Request(rule="omega", tokens=5, window=2))
    one, _ = results(case, "kernel")
    for chunk in (1, 3, 100):
        for name, value in results(case, "kernel", chunk)[0].items():
            assert_close(name, value, one[name], EXACT)


@pytest.mark.clause("KERNEL-7")
@pytest.mark.parametrize("convention", ["spec", {"newton_schulz": "none"}])
def test_a_rotation_of_the_features_changes_no_result_but_the_memory(convention: Any) -> None:
    axes = {
        "rule": "omega",
        "tokens": 6,
        "window": 2,
        "feature_map": {"kind": "linear"},
        "features": 6,
        "convention": convention,
    }
    case = new(Request(**axes))
    Q, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((6, 6)))
    rotation = {
        name: value @ Q.T for name, value in case.inputs.items() if name in ("in/M0", "in/S0")
    }
    rotation |= {"in/phi/W": Q @ case.inputs["in/phi/W"]}
    one, _ = results(case, "kernel")
    two, _ = results(case, "kernel", inputs={**case.inputs, **rotation})
    assert_close("y", two["out/y"], one["out/y"], amplified(case.convention))
    assert_close("M", two["out/M"], one["out/M"] @ Q.T, amplified(case.convention))


@pytest.mark.clause("KERNEL-3")
@pytest.mark.parametrize("guard", NEWTON_SCHULZ["guard"])
@pytest.mark.parametrize("scale", NEWTON_SCHULZ["scale"])
@pytest.mark.parametrize("coefficients", NEWTON_SCHULZ["coefficients"])
def test_newton_schulz_on_coefficients_equals_the_loops_at_every_size(
    guard: str, scale: str, coefficients: Any
) -> None:
    draw = np.random.default_rng(4)
    for shape, eps in itertools.product(((3, 5), (5, 3), (4, 4)), (1e-7, 1e-2, 0.0)):
        Phi = draw.standard_normal((7, shape[1]))
        settings_ = {
            "guard": guard,
            "scale": scale,
            "coefficients": coefficients,
            "eps": eps,
            "norm_factor": 1.2,
        }
        parsed = resolve({"newton_schulz": settings_}, rule="omega").newton_schulz_settings
        Z = draw.standard_normal((shape[0], 7))
        Z = Z / np.linalg.norm(Z @ Phi)
        # 0.9: below eps, with norm_factor above it
        for size in (
            0.0,
            0.01 * eps,
            0.9 * eps,
            1.1 * eps,
            1.0,
            100.0,
        ):
            result = orthogonalised(size * Z, Phi @ Phi.T, parsed, shape[1]) @ Phi
            want = literal_parts.newton_schulz(size * Z @ Phi, parsed.model_dump())
            assert_close(f"{shape} {eps} {size}", result, want, reordered(1, amplification=WITH))


@pytest.mark.clause("KERNEL-3", "KERNEL-13")
@pytest.mark.parametrize("guard", NEWTON_SCHULZ["guard"])
def test_newton_schulz_on_coefficients_has_the_derivative_of_newton_schulz_at_zero(
    guard: str,
) -> None:
    draw = np.random.default_rng(4)
    Phi, g = draw.standard_normal((7, 4)), draw.standard_normal((3, 4))
    keys = np.concatenate([Phi, Phi[:1]])
    # its trace is rounding, of either sign
    cancelling = np.outer([1.0, 2.0, -1.0], [1.0, 0, 0, 0, 0, 0, 0, -1.0])
    parsed = NewtonSchulz(guard=guard, eps=1e-2)
    # the norm of what cancels is the root of its rounding, 1e-8, beside eps = 1e-2
    cancels = reordered(1, amplification=1e9)
    for Z, features, bound in (
        (np.zeros((3, 7)), Phi, ANALYTIC),
        (cancelling, keys, cancels),
        (0.3 * cancelling, keys, cancels),
    ):
        got = grad(lambda Z, F=features: ops.sum(orthogonalised(Z, F @ F.T, parsed, 4) @ F * g))(Z)
        want = (
            grad(lambda S: ops.sum(plain_newton_schulz(S, parsed) * g))(np.zeros((3, 4)))
            @ features.T
        )
        assert_close("gradient", got, want, bound)
