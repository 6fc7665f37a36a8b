"""Every form against the literal loops, the sequential run, and itself under any chunk (rungs a and
e).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atlas_ref
from atlas_ref.conventions import resolve
from atlas_ref.forms.support import CONDITIONS, FORMS, SUPPORT, refusal
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.rules import FAMILY
from tests.support.casefiles import PEERS
from tests.support.close import assert_close, reordered
from tests.support.resumed import in_two
from tests.support.strategies import form_cases, header_of, repeatable
from tests.truth import literal

PARALLEL = [form for form in FORMS if form not in ("sequential", "tnt")]
CHUNKS = st.sampled_from([None, 1, 2, 3, 4, 7, 64])

#: What Newton-Schulz may make of a rounding error, as in tests/rules/test_literal.py.
WITHOUT, WITH = 1e4, 1e7


def bound(case: Case) -> Any:
    return reordered(1, amplification=WITH if case.convention.has_newton_schulz else WITHOUT)


def assert_same(got: dict[str, Any], want: dict[str, Any], case: Case) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        if name.startswith("grad/"):
            # A gradient may vanish where Newton-Schulz hides the scale of its argument: it is
            # measured among its like.
            size = max(
                np.linalg.norm(value),
                1e-6
                * max(
                    np.linalg.norm(each) for key, each in want.items() if key.startswith("grad/")
                ),
            )
            allowed = bound(case).bound
            assert allowed is not None
            assert np.linalg.norm(got[name] - value) <= allowed * max(size, 1e-300) * 10, name
        else:
            assert_close(name, got[name], value, bound(case))


@pytest.mark.clause("CHUNK-1", "CHUNK-20", "CASE-29")
@pytest.mark.parametrize("form", PARALLEL)
@settings(repeatable, max_examples=60)
@given(st.data())
def test_every_form_equals_the_literal_loops(form: str, data: st.DataObject) -> None:
    case, chunk = data.draw(form_cases(form)), data.draw(CHUNKS)
    want = literal.evaluate(header_of(case), case.inputs)
    phase = want.pop("phase", None)
    got = evaluate(case, form=form, chunk=chunk)
    assert phase is None or got.header["phase"] == phase
    assert_same(dict(got.tensors), want, case)


@pytest.mark.clause("CHUNK-1", "CHUNK-16", "CHUNK-17")
@pytest.mark.parametrize("form", PARALLEL)
@settings(repeatable, max_examples=60)
@given(st.data())
def test_every_form_has_the_gradients_of_the_sequential_run(form: str, data: st.DataObject) -> None:
    case, chunk = data.draw(form_cases(form)), data.draw(CHUNKS)
    assert_same(
        evaluate(case, grad=True, form=form, chunk=chunk).tensors,
        evaluate(case, grad=True).tensors,
        case,
    )


@pytest.mark.clause("CHUNK-14", "CHUNK-24", "EXACT-12")
@pytest.mark.parametrize("form", ["chunkwise", "exact"])
@settings(repeatable, max_examples=25)
@given(st.data())
def test_longer_sequences_with_chunks_that_do_not_divide_them(
    form: str, data: st.DataObject
) -> None:
    fixed = {
        "tokens": data.draw(st.sampled_from([23, 64, 65])),
        "span": data.draw(st.sampled_from([5, 16, 100])),
    }
    case = data.draw(form_cases(form, newton_schulz=False, **fixed))
    chunk = data.draw(st.sampled_from([None, 1, 5, 8, 63]))
    assert_same(
        evaluate(case, grad=True, form=form, chunk=chunk).tensors,
        evaluate(case, grad=True).tensors,
        case,
    )


@pytest.mark.clause("CHUNK-20", "CHUNK-23")
@pytest.mark.parametrize("form", PARALLEL)
@pytest.mark.parametrize("rule", FAMILY)
def test_every_yes_of_the_matrix_is_computed(form: str, rule: str) -> None:
    """One plain case per cell, so that none depends on the draws of hypothesis."""
    frozen = SUPPORT[form][rule] == "frozen"
    convention = {"reference": "chunk_start"} if frozen else {}
    convention |= {"newton_schulz": "none"} if rule == "omega" else {}
    random = np.random.default_rng(3)
    tensors = {
        f"in/{name}": random.standard_normal((2, 9, d))
        for name, d in (("k", 4), ("v", 3), ("q", 4))
    }
    for gate in FAMILY[rule].gates:
        tensors[f"in/{gate}"] = random.uniform(0.05, 0.3, (2, 9))
    header = {
        "schema": 1,
        "rule": rule,
        "convention": convention,
        "window": 3 if rule == "omega" else 1,
    }
    case = atlas_ref.make(header | ({"span": 4} if frozen else {}), tensors)
    assert refusal(rule, case.convention, form) is None
    want = literal.evaluate(header_of(case), case.inputs)
    want.pop("phase", None)
    assert_same(dict(evaluate(case, form=form).tensors), want, case)


@pytest.mark.clause("CHUNK-21", "CHUNK-23", "CASE-29")
@pytest.mark.parametrize("rule", FAMILY)
@pytest.mark.parametrize("form", ["tnt", "chunkwise", "exact", "scan", "atlas_parallel"])
def test_every_no_is_refused_in_one_line_before_anything_is_computed(form: str, rule: str) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"reference": "call_start"},
        {"order": "momentum_then_window"},
    ]
    changes += (
        [
            {"newton_schulz": {"argument": "written_back"}, "reference": "zero"},
            {"newton_schulz": {}},
        ]
        if rule == "omega"
        else []
    )
    refused = 0
    for change in changes:
        convention = resolve(
            {"newton_schulz": "none"} | change if rule == "omega" else change, rule=rule
        )
        reason = refusal(rule, convention, form)
        if reason is None:
            continue
        refused += 1
        header = {
            "schema": 1,
            "rule": rule,
            "convention": change if rule != "omega" else {"newton_schulz": "none"} | change,
        }
        tensors = {f"in/{name}": np.zeros((2, 3)) for name in ("k", "v", "q")} | {
            "in/retain": np.ones(2)
        }
        tensors |= {"in/step_size": np.ones(2)} if rule != "hebbian" else {}
        case = atlas_ref.make(header, tensors)
        with pytest.raises(CaseError) as error:
            evaluate(case, form=form)
        assert str(error.value) == f"{case.name}: {reason}"
        assert "\n" not in reason
        assert reason.startswith(f"form {form}: ")
    assert refused or (rule == "hebbian" and form != "tnt")


def test_every_condition_refuses_something() -> None:
    """A use for every condition: one that no convention meets would be superfluous."""
    conventions = [
        resolve({"newton_schulz": ns, "reference": reference, "order": order}, rule="omega")
        for ns in ("none", {}, {"argument": "accumulated"})
        for reference in ("running", "zero")
        for order in ("window_then_momentum", "momentum_then_window")
    ]
    more = ({"momentum_kind": "delta_momentum"}, {"memory_ceiling": 1.0})
    conventions += [resolve(each, rule="omega") for each in more]
    for condition in CONDITIONS:
        assert any(condition.breaks("omega", each) for each in conventions), condition.reason


@pytest.mark.clause("CHUNK-22")
@pytest.mark.parametrize("chunk", [0, -1, 2.0, True, "16"])
def test_a_chunk_is_a_whole_number_of_tokens(chunk: Any) -> None:
    case = atlas_ref.load(PEERS / "fla_delta_11.safetensors")
    with pytest.raises(
        CaseError, match=r"chunk: .*, expected a whole number of tokens, at least 1$"
    ):
        evaluate(case, form="exact", chunk=chunk)


@pytest.mark.parametrize("form", ["", "Exact", "tnt2"])
def test_an_unknown_form_names_those_that_exist(form: str) -> None:
    case = atlas_ref.load(PEERS / "fla_delta_11.safetensors")
    with pytest.raises(
        CaseError,
        match="is not one of sequential, chunkwise, exact, scan, atlas_parallel, kernel, tnt",
    ):
        evaluate(case, form=form)


@pytest.mark.clause("CASE-29")
@pytest.mark.parametrize("form", PARALLEL)
@pytest.mark.parametrize("file", sorted(PEERS.glob("*.safetensors")), ids=lambda file: file.stem)
def test_recorded_runs_of_public_implementations_pass_in_every_form_that_computes_them(
    file: Any, form: str
) -> None:
    case = atlas_ref.load(file)
    if (
        case.header.rule not in FAMILY
        or refusal(case.header.rule, case.convention, form) is not None
    ):
        with pytest.raises(CaseError):
            evaluate(case, form=form)
        return
    verdicts = atlas_ref.check(case, form=form)
    assert verdicts
    for each in verdicts:
        assert each.verdict == "PASS", each


def test_every_recorded_case_with_a_span_is_computed_in_chunks_and_every_other_exactly() -> None:
    """A count of the computed cases, so that none of the tests above passes by refusals."""
    cases = [atlas_ref.load(file) for file in sorted(PEERS.glob("*.safetensors"))]
    cases = [case for case in cases if case.header.rule in FAMILY]
    computed = {
        case.name: {
            form for form in PARALLEL if refusal(case.header.rule, case.convention, form) is None
        }
        for case in cases
    }
    spans = {case.name for case in cases if case.header.span is not None}
    assert len(spans) >= 6
    assert len(cases) - len(spans) >= 3
    for name, forms in computed.items():
        assert forms == (
            {"chunkwise", "atlas_parallel", "kernel"}
            if name in spans
            else {"exact", "scan", "kernel"}
        ), name


@pytest.mark.sample(6)
@pytest.mark.clause("CHUNK-19")
@pytest.mark.parametrize("first", ["sequential", "chunkwise", "atlas_parallel", "kernel"])
@pytest.mark.parametrize("second", ["sequential", "chunkwise", "atlas_parallel", "kernel"])
@settings(repeatable, max_examples=12)
@given(st.data())
def test_a_call_in_one_form_continues_in_another(
    first: str, second: str, data: st.DataObject
) -> None:
    fixed = {"level": "projected", "tokens": 8, "reset": 0, "newton_schulz": False}
    case = data.draw(form_cases("chunkwise", **fixed))
    if case.convention.read == "call_end":
        return
    continues(case, first, second, data.draw(st.sampled_from([1, 3, 6])))


@pytest.mark.clause("CHUNK-19", "EXACT-19")
@pytest.mark.parametrize(
    "forms",
    [("exact", "sequential"), ("sequential", "exact"), ("scan", "exact"), ("exact", "kernel")],
)
@settings(repeatable, max_examples=12)
@given(st.data())
def test_a_running_call_in_one_form_continues_in_another(
    forms: tuple[str, str], data: st.DataObject
) -> None:
    case = data.draw(form_cases("scan", level="projected", tokens=8, reset=0, newton_schulz=False))
    if case.convention.read == "call_end":
        return
    continues(case, *forms, data.draw(st.sampled_from([1, 3, 6])))


def continues(case: Case, first: str, second: str, at: int) -> None:
    split = in_two(case, at, {"form": first, "chunk": 3}, {"form": second, "chunk": 2})
    assert_same(split, dict(evaluate(case).tensors), case)
