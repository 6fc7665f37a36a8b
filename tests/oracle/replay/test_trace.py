"""The trace against literal loops, and its gradients against the complex step through those
loops.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.replay.trace import trace
from tests.support.close import ANALYTIC, assert_close
from tests.support.strategies import cases, header_of, repeatable
from tests.support.traced_cases import KINDS, small
from tests.truth.literal_trace import adjoint
from tests.truth.literal_trace import trace as literal_trace


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


@pytest.mark.sample(8)
@pytest.mark.clause("CASE-15", "REPLAY-7")
@pytest.mark.parametrize("kind", KINDS)
def test_adjoints_are_derivatives_by_every_traced_number(kind):
    """Derivatives by each op at four places, the first and last token among them, by complex
    step.
    """
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
        want.append(
            adjoint(
                header_of(case),
                case.inputs,
                name.removeprefix("trace/"),
                place[:lead],
                place[lead],
                place[lead + 1 :],
            )
        )
    scale = np.abs(got["trace_grad/M"]).max() + 1.0  # derivatives may cancel to nothing
    assert_close(str(names), np.array(found) / scale + 1.0, np.array(want) / scale + 1.0, ANALYTIC)


#: What the table of ops says: shape of a token, and the rules that have the op.
OPS = {
    **dict.fromkeys(("k", "q"), ("d_in", "token")),
    "v": ("d_out", "token"),
    **dict.fromkeys(("retain", "momentum", "step_size"), ("gate", "token")),
    "window_weights": ("c", "token omega"),
    "window_gate": ("", "token omega"),
    "phi_k": ("d_phi", "omega titans_lmm delta hebbian"),
    "residual": ("c d_out", "omega titans_lmm delta"),
    "gradient": ("matrix", "omega titans_lmm delta"),
    "S": ("matrix", "omega titans_lmm"),
    "P": ("matrix", "omega"),
    "X": ("matrix", "omega"),
    "U": ("matrix", "omega"),
    "M": ("matrix", "omega titans_lmm delta hebbian"),
    "phi_q": ("d_phi", "omega titans_lmm delta hebbian"),
    "y": ("d_out", "omega titans_lmm delta hebbian"),
}


@pytest.mark.clause("REPLAY-3")
def test_the_ops_of_a_trace_and_their_shapes_are_those_of_the_table():
    seen = set()
    for kind in KINDS:
        case = small(kind)
        got = trace(case)
        d_out, d_phi = got["trace/y"].shape[-1], got["trace/phi_k"].shape[-1]
        lead = got["trace/y"].shape[:-1]
        sizes = {
            "c": (case.header.window,),
            "d_in": (3 if d_phi != 5 else 2,),
            "d_out": (d_out,),
            "d_phi": (d_phi,),
            "": (),
        }
        sizes |= {"matrix": (d_out, d_phi), "c d_out": (case.header.window, d_out)}
        for name, value in got.items():
            op = name.removeprefix("trace/")
            op = "X" if op[0] == "X" else op
            shape, rules = OPS[op]
            assert "token" in rules.split() or case.header.rule in rules.split(), f"{kind}: {op}"
            assert "token" not in rules.split() or case.header.level == "token", f"{kind}: {op}"
            token = value.shape[len(lead) :]
            turned = shape == "matrix" and case.convention.layout == "transposed"
            assert value.shape[: len(lead)] == lead, f"{kind}: {op}"
            assert (
                token == (sizes[shape][::-1] if turned else sizes[shape])
                if shape != "gate"
                else token in ((), (d_out,))
            ), f"{kind}: {op}: {token}"
            seen.add(op)
    assert seen == set(OPS)
