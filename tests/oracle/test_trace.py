"""The trace against literal loops, and its gradients against the complex step through those loops."""

import numpy as np
import pytest
from close import ANALYTIC, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_trace import adjoint
from literal_trace import trace as literal_trace
from strategies import cases, header_of, repeatable
from traced_cases import KINDS, small

from atlas_ref.oracle.case import Case
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.trace import trace


def assert_is_literal(case: Case) -> None:
    got = trace(case)
    want, _ = literal_trace(header_of(case), case.inputs)
    active = case.inputs["in/active"].any() if "in/active" in case.inputs else True
    assert {name.removeprefix("trace/") for name in got} == want.keys() or not active
    for op, value in want.items():
        assert_close(f"trace/{op}", got[f"trace/{op}"], value, ANALYTIC)
    results = evaluate(case).tensors
    last = (slice(None),) * (got["trace/y"].ndim - 2) + (-1,)
    assert_close("y", got["trace/y"], results["out/y"], ANALYTIC)
    assert_close("M", got["trace/M"][last], results["out/M"], ANALYTIC)


@pytest.mark.clause("CASE-15", "REPLAY-1", "REPLAY-4", "REPLAY-5", "REPLAY-6")
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_is_what_literal_loops_write_down(kind):
    assert_is_literal(small(kind))


@pytest.mark.clause("CASE-15", "REPLAY-1")
@settings(repeatable, max_examples=60)
@given(cases())
def test_a_trace_of_any_case_is_what_literal_loops_write_down(case):
    assert_is_literal(case)


@pytest.mark.clause("CASE-15", "REPLAY-7")
@pytest.mark.parametrize("kind", KINDS)
def test_adjoints_are_derivatives_by_every_traced_number(kind):
    """Each op at four places, the first and the last token among them, by the complex step through the loops."""
    case = small(kind)
    got = trace(case, grad=True)
    header, lead = header_of(case), got["trace/y"].ndim - 2
    draw = np.random.default_rng(1)
    for op in [name.removeprefix("trace/") for name in got if name.startswith("trace/")]:
        adjoints = got[f"trace_grad/{op}"]
        assert adjoints.shape == got[f"trace/{op}"].shape
        inactive = np.nonzero(case.inputs.get("in/active", np.ones(6)) == 0)[0][:1].tolist()
        found, want = [], []
        for t in [0, 5, 2, *inactive]:
            place = tuple(int(draw.integers(n)) for n in adjoints.shape)
            head, rest = place[:lead], place[lead + 1 :]
            found.append(adjoints[(*head, t, *rest)])
            want.append(adjoint(header, case.inputs, op, head, t, rest))
        assert_close(f"trace_grad/{op}", np.array(found), np.array(want), ANALYTIC)


@pytest.mark.clause("CASE-15", "REPLAY-7")
@settings(repeatable, max_examples=25)
@given(cases(tokens=5), st.integers(0, 2**32 - 1))
def test_an_adjoint_of_any_case_is_the_derivative(case, seed):
    got = trace(case, grad=True)
    draw = np.random.default_rng(seed)
    names = [name for name in got if name.startswith("trace/")]
    lead = got["trace/y"].ndim - 2
    found, want = [], []
    for name in draw.choice(names, 4):
        place = tuple(int(draw.integers(n)) for n in got[name].shape)
        found.append(got[name.replace("trace/", "trace_grad/")][place])
        want.append(adjoint(header_of(case), case.inputs, name.removeprefix("trace/"), place[:lead], place[lead], place[lead + 1 :]))
    scale = np.abs(got["trace_grad/M"]).max() + 1.0  # derivatives may cancel to nothing
    assert_close(str(names), np.array(found) / scale + 1.0, np.array(want) / scale + 1.0, ANALYTIC)
