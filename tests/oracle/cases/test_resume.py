"""The results of one call as the state of the next: two calls against one (CASE-13)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atlas_ref
from atlas_ref.oracle.cases.files import read
from atlas_ref.oracle.subjects.memory_tensors import PROJECTED
from tests.support.casefiles import some
from tests.support.close import ANALYTIC, assert_close
from tests.support.strategies import cases, repeatable
from tests.truth import literal

RENAMED = {"out/M": "in/M0", "out/S": "in/S0"}

#: What belongs to a call as a whole, or to its end.
KEPT = ("in/phi/", "in/proj", "in/param/")
START = (
    "in/M0",
    "in/S0",
    "in/M_ref",
    "in/window_k",
    "in/window_v",
    "in/window_residual",
    "in/window_gate_before",
    "in/window_momentum",
)


def part(inputs, tokens):
    """The inputs of some of the tokens, without any state."""
    lead = inputs["in/k"].ndim - 2 if "in/k" in inputs else 1
    found = {}
    for name, value in inputs.items():
        if name.startswith(KEPT):
            found[name] = value
        elif name not in START and not name.endswith("_bar"):
            axis = 0 if name in ("in/active", "in/reset") else lead
            found[name] = value[(slice(None),) * axis + (tokens,)]
    return found


def state_of(results):
    """Results as the next call's inputs: out/X becomes in/X, out/M becomes in/M0, out/S becomes
    in/S0.
    """
    return {
        RENAMED.get(name, name.replace("out/", "in/")): value
        for name, value in results.items()
        if name != "out/y"
    }


def resumes(header, inputs, cut, tolerance=ANALYTIC):
    whole = atlas_ref.evaluate(atlas_ref.make(header, inputs)).tensors
    start = {name: value for name, value in inputs.items() if name in START}
    first = atlas_ref.evaluate(atlas_ref.make(header, part(inputs, slice(0, cut)) | start))
    state = state_of(first.tensors)
    assert state.keys() <= {*START} <= PROJECTED.keys()
    second = atlas_ref.evaluate(
        atlas_ref.make(first.header, part(inputs, slice(cut, None)) | state)
    )
    joined = np.concatenate([first.tensors["out/y"], second.tensors["out/y"]], axis=-2)
    assert_close("y", joined, whole["out/y"], tolerance)
    assert second.tensors.keys() == whole.keys()
    for name in whole.keys() - {"out/y"}:
        assert_close(name, second.tensors[name], whole[name], tolerance)
    assert second.header.get("phase") == atlas_ref.evaluate(
        atlas_ref.make(header, inputs)
    ).header.get("phase")


CONVENTIONS = [
    *({"reference": reference, "window_at_boundary": boundary, "decay": decay} for reference in ("chunk_start", "call_start")
      for boundary in ("recompute", "carry", "cut") for decay in ("after_error", "before_error")),
    {"reference": "chunk_start", "span_origin": "multiple", "window_at_boundary": "carry"},
    {"reference": "running", "read": "chunk_start"},
    {"reference": "zero", "read": "chunk_start", "span_origin": "multiple"},
    {"reference": "call_start", "read": "chunk_start"},
    {"read": "before", "window_edge": "renormalise"},
    {"order": "momentum_then_window"},
    {"order": "momentum_then_window", "reference": "chunk_start", "layout": "transposed", "momentum_sign": "minus"},
    {"newton_schulz": "none", "layout": "transposed", "rate": "split"},
    {"newton_schulz": {"argument": "written_back"}, "k_norm": "l2", "norm_place": "after_phi"},
    {"newton_schulz": {"argument": "accumulated"}, "read": "before"},
    {"newton_schulz": {"argument": "nesterov"}, "momentum_sign": "minus", "k_norm": "rms", "q_norm": "l2"},
    *("atlas-paper", "atlas-eq40", "atlas-eq57", "atlas-rnn", "fla-delta", "fla-gated-delta", "titans-paper", "nl-hecate"),
]  # fmt: skip


@pytest.mark.sample(100)
@pytest.mark.clause("CASE-12", "CASE-13", "WINDOW-25")
@pytest.mark.parametrize("cut", [1, 2, 4, 6])
@pytest.mark.parametrize("convention", CONVENTIONS, ids=str)
@pytest.mark.parametrize("gate", [False, True], ids=["weights", "gate"])
def test_two_calls_of_omega_give_what_one_gives(convention, cut, gate):
    header, inputs = some(
        tokens=7,
        window=4,
        history=2,
        span=3,
        convention=convention,
        window_gate=gate,
        cotangent=False,
        pulse=2,
    )
    resumes(header, inputs, cut)


@pytest.mark.clause("CASE-12", "CASE-13")
@pytest.mark.parametrize("rule", ["titans_lmm", "delta", "hebbian"])
@pytest.mark.parametrize(
    "convention",
    ["spec", "atlas-rnn", "atlas-eq40", "fla-gated-delta", {"read": "chunk_start"}],
    ids=str,
)
def test_two_calls_of_the_other_rules_give_what_one_gives(rule, convention):
    header, inputs = some(
        rule, tokens=7, span=3, convention=convention, cotangent=False, per_dimension_gates=True
    )
    for cut in range(1, 7):
        resumes(header, inputs, cut)


@pytest.mark.clause("CASE-13")
def test_a_packed_sequence_that_ended_in_the_first_call_leaves_no_trace():
    for convention in (
        "spec",
        "atlas-rnn",
        {"reference": "chunk_start", "window_at_boundary": "carry"},
        {"order": "momentum_then_window"},
    ):
        header, inputs = some(tokens=7, window=4, span=3, convention=convention, cotangent=False)
        for start in (0, 2, 3):
            inputs["in/reset"] = (np.arange(7) == start).astype(np.uint8)
            resumes(header, inputs, 4)


@pytest.mark.clause("CASE-13")
@settings(repeatable, max_examples=40)
@given(data=st.data())
def test_any_case_resumes_anywhere(data):
    """A case in two calls, without a reset in the second and without call_end.

    A reset would go back to a state that the second call does not hold.
    """
    case = data.draw(cases(reset=0).filter(lambda case: case.convention.read != "call_end"))
    inputs = {name: value for name, value in case.inputs.items() if not name.endswith("_bar")}
    tokens = inputs["in/k" if "in/k" in inputs else "in/x"].shape[-2]
    if tokens > 1:
        resumes(
            case.header.plain(),
            inputs,
            data.draw(st.integers(1, tokens - 1)),
            ANALYTIC._replace(bound=1e-9),
        )


@pytest.mark.clause("CASE-12", "CASE-13")
@pytest.mark.parametrize("level", ["projected", "token"])
def test_through_files_and_commands_a_run_continues(level, cli, tmp_path):
    """Three calls of the program, each on the file of the one before, against one call."""
    weights = {"window_weights": {"kind": "gate"}} if level == "token" else {"window_gate": True}
    convention = {"preset": "atlas-rnn", "reference": "chunk_start"}
    header, inputs = some(
        level=level, tokens=9, window=3, span=4, convention=convention, cotangent=False, **weights
    )
    pieces, state, head = [], {name: inputs[name] for name in START if name in inputs}, header
    for i in range(3):
        atlas_ref.save(tmp_path / f"in{i}", head, part(inputs, slice(3 * i, 3 * i + 3)) | state)
        assert cli("eval", tmp_path / f"in{i}", "-o", tmp_path / f"out{i}").code == 0
        text, results = read(str(tmp_path / f"out{i}"))
        pieces.append(results["out/y"])
        head, state = atlas_ref.oracle.cases.header.parse(text).plain(), state_of(results)
    whole = atlas_ref.evaluate(atlas_ref.make(header, inputs)).tensors
    assert_close("y", np.concatenate(pieces, axis=-2), whole["out/y"], ANALYTIC)
    assert state.keys() == {
        "in/M0",
        "in/S0",
        "in/M_ref",
        "in/window_k",
        "in/window_v",
        "in/window_residual",
        "in/window_gate_before",
    }
    assert head["phase"] == 9 % 4


@pytest.mark.clause("WINDOW-7", "WINDOW-25", "CASE-13")
@pytest.mark.parametrize("factors", [1, 2, 3])
def test_what_a_token_brings_is_the_product_of_its_gates(factors):
    """Products of gates for initial tokens and for returned ones, by the plain loops and over two
    calls.
    """
    kind = {
        "kind": "product",
        "of": [{"kind": "gate"}, {"kind": "product", "of": [{"kind": "gate"}] * factors}],
    }
    header, inputs = some(
        level="token", tokens=7, window=4, history=2, window_weights=kind, cotangent=False
    )
    case = atlas_ref.make(header, inputs)
    found, want = atlas_ref.evaluate(case).tensors, literal.evaluate(header, case.inputs)
    single = literal.evaluate({**header, "window_weights": {"kind": "gate"}}, case.inputs)[
        "out/window_gate_before"
    ]
    assert_close(
        "window_gate_before", found["out/window_gate_before"], single ** (factors + 1), ANALYTIC
    )
    for name, value in found.items():
        assert_close(name, value, want[name], ANALYTIC)
    resumes(header, inputs, 2)
