"""Mutants of TNT: their kernel, their names, and that v2 rejects every one of them."""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.judge.tolerance import PASS
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.sweep.split import in_two, join, places
from atlas_ref.vectors.inputs.draw import drawn, exact
from atlas_ref.vectors.inputs.tnt_targets import TNT
from atlas_ref.vectors.mutants import mutants, own, score
from tests.support.killed import (
    FOLDER,
    assert_backward_mistakes_leave_values,
    assert_kernel_is_the_rule,
    case_of,
    kills,
    possible,
)

#: Mistakes and readings that the design names, and a target that can make them.
LIST = {
    "parameters.locals.0.base=previous": "tnt-inclusive",
    "parameters.locals.0.base=running": "tnt",
    "parameters.locals.0.base=chunk_start": "tnt-paper-literal",
    "parameters.locals.0.reset=instead_of_write": "tnt",
    "parameters.global.sum=inclusive": "tnt-paper-app-c",
    "parameters.global.sum=exclusive": "tnt-inclusive",
    "parameters.locals.0.reset_momentum=carry": "tnt",
    "parameters.locals.0.chunk_origin=document": "tnt",
    "parameters.locals.0.projection.own=exclusive": "tnt",
    "parameters.locals.0.projection.kind=none": "tnt",
    "parameters.locals.0.projection.range=sequence": "tnt",
    "parameters.locals.0.projection.norm=sum_of_norms": "tnt",
    "parameters.global.read=after": "tnt",
    "parameters.global.read=before": "tnt",
    "tnt: reset to the call": "tnt",
    "tnt: position ignored": "tnt",
    "tnt: global reset": "tnt",
    "tnt: global asks local0": "tnt",
    "tnt: mean of reads": "tnt",
    "tnt: global without tail": "tnt",
    "tnt: local1 was not reset for a last shard that is short": "tnt",
    "tnt: local0 was never reset": "tnt",
    "tnt: local0 was reset one token late": "tnt",
    "tnt: span of local0": "tnt",
    "tnt: local0 keys held": "tnt",
    "tnt: local0 start held": "tnt",
    "tnt: in/local1/q ignored": "tnt",
    "tnt: in/state/local0/P ignored": "tnt-sequence",
    "tnt: local0 window kept": "tnt-atlas",
    "tnt: global start of chunk late": "tnt",
    "tnt: local0 start of chunk late": "tnt",
    "tnt: in/state/global/M_ref ignored": "tnt",
    "tnt: in/state/local1/S ignored": "tnt",
    "tnt: in/state/local0/window ignored": "tnt-atlas",
    "tnt: in/reset ignored": "tnt",
    "tnt: numbers kept": "tnt",
    "tnt: global kept": "tnt",
    "tnt: local1 kept": "tnt",
}


@pytest.mark.clause("VEC-16", "VEC-23")
@pytest.mark.sample(3)
@pytest.mark.parametrize("target", TNT, ids=lambda target: target.name)
def test_the_kernel_without_a_mistake_is_the_rule(target) -> None:
    for topic in target.topics[:: max(1, len(target.topics) - 1)]:
        assert_kernel_is_the_rule(drawn(target, topic, 1), grad=topic.grad)


@pytest.mark.clause("VEC-23")
def test_every_target_kills_what_the_design_names_in_both_formats(listing) -> None:
    for target in TNT:
        float32, bfloat16 = (kills(listing, target.name, dtype) for dtype in score.FORMATS)
        assert float32 == bfloat16, target.name
        assert len(float32) >= 40, target.name
        assert sum(name.startswith(own.ahead("tnt")) for name in float32) >= 20, target.name
    for mutant, target in LIST.items():
        assert mutant in kills(listing, target, "bfloat16"), (mutant, target)


@pytest.mark.clause("VEC-23")
@pytest.mark.slow
@pytest.mark.parametrize("target", TNT, ids=lambda target: target.name)
def test_every_mutant_of_a_vector_is_killed_by_one_of_its_target(listing, target) -> None:
    made = possible(listing, target.name, "tnt")
    for dtype in score.FORMATS:
        assert made == kills(listing, target.name, dtype)


@pytest.mark.clause("VEC-23")
def test_targets_cover_every_projection_and_every_kind_of_call(listing) -> None:
    cases = [atlas_ref.load(FOLDER / v.file) for v in listing.vectors if v.rule == "tnt"]
    moved = [
        memory.get("projection", {})
        for case in cases
        for memory in case.header.plain()["parameters"]["locals"]
    ]
    assert {each.get("kind", "sum_outer") for each in moved} == {
        "sum_outer", "orthogonal", "learned", "none"
    }  # fmt: skip
    assert {each.get("range", "chunk") for each in moved} >= {
        "chunk",
        "sequence",
        "shard",
        "window",
    }
    assert {each.get("own", "inclusive") for each in moved} == {"inclusive", "exclusive"}
    for name in ("in/reset", "in/state/position", "in/y_bar", "in/local0/W_QK", "in/local1/k"):
        assert any(name in case.inputs for case in cases), name
    assert all(exact(x) for case in cases for x in case.inputs.values() if x.dtype.kind == "f")
    assert max(case.inputs["in/k"].shape[-2] for case in cases) <= 8
    assert max(case.inputs[name].shape[-1] for case in cases for name in ("in/k", "in/v")) <= 4


@pytest.mark.clause("VEC-23")
def test_mutants_are_named_in_words(listing) -> None:
    assert mutants.words("tnt: mean of reads") == "the reads were averaged"
    assert mutants.words("parameters.origin=1") == "parameters.origin=1 in place of the case's"
    names = {name for target in TNT for name in kills(listing, target.name, "float32")}
    assert all(listing.mutants[name] == mutants.words(name) for name in names)


@pytest.mark.slow
@pytest.mark.clause("VEC-23")
def test_settings_that_are_the_same_function_are_no_mutants() -> None:
    names = {own.named(each, "tnt") for each in own.readings(case_of("tnt", "square"))}
    assert {"tnt: mean of reads", "parameters.locals.1.shard=4"} <= names
    assert "parameters.global.span=7" in names  # the last chunk is read, though never written out
    assert "parameters.origin=0" not in names
    whole = {own.named(each, "tnt") for each in own.readings(case_of("tnt", "gradient"))}
    assert {"tnt: local0 keys held", "tnt: local1 whole held"} <= whole - names
    sequence = own.readings(case_of("tnt-sequence", "square"))
    # a window of all tokens is the sequence in a call from the start of a document
    assert "parameters.locals.0.projection.window=7" not in {each.name for each in sequence}
    resumed = {each.name for each in own.readings(case_of("tnt-sequence", "resumed"))}
    assert "parameters.locals.0.projection.window=7" in resumed


@pytest.mark.clause("VEC-23")
def test_values_of_a_backward_mistake_are_right() -> None:
    assert assert_backward_mistakes_leave_values(case_of("tnt", "gradient")) == 6


@pytest.mark.clause("VEC-23")
@pytest.mark.parametrize("dtype", score.FORMATS)
def test_scores_are_the_verdicts_of_check(dtype) -> None:
    case = case_of("tnt-orthogonal", "square")
    scores = score.score(case, dtype).mutants
    kind = np.float32 if dtype == "float32" else FORMATS[dtype][0]
    wrong = 0
    for name, results in list(own.mutants(case, dtype))[::7]:
        answer = {
            key: np.asarray(x).astype(kind)
            for key, x in results.items()
            if not own.KEPT.fullmatch(key)
        }
        rows = checked(case, source=lambda _, answer=answer: Answer(answer), dtype=dtype).rows
        if scores[name] > PASS:
            assert any(row.verdict != "PASS" for row in rows), name
            wrong += 1
    assert wrong > 5


@pytest.mark.clause("VEC-17", "VEC-23")
def test_legal_variants_pass_on_a_vector(listing) -> None:
    each = next(v for v in listing.vectors if v.target == "tnt")
    found = score.score(atlas_ref.load(FOLDER / each.file), "float32")
    assert len(found.controls) >= 10
    assert max(found.controls.values()) <= PASS
    assert found.hidden == []
    assert {name for name, ratio in found.mutants.items() if ratio > PASS} >= {
        *each.kills["float32"]
    }


@pytest.mark.sample(2)
@pytest.mark.clause("VEC-10", "VEC-23")
@pytest.mark.parametrize("target", TNT, ids=lambda target: target.name)
def test_a_call_may_be_cut_at_any_token(target) -> None:
    for topic in target.topics:
        case = drawn(target, topic, 0)
        whole = evaluate(case).tensors
        found = places(case)
        assert len(found) == 3
        for place in found:
            both = join(*(evaluate(part).tensors for part in in_two(case, place)))
            for name, value in whole.items():
                assert relative_error(both[name], value) < 1e-12, (topic.name, place, name)
