"""Mutants of deep memories: their kernel, their names, and that v2 rejects every one of them."""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.vectors.inputs.deep_targets import DEEP
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.mutants import mutants, own, score
from tests.support.killed import (
    FOLDER,
    assert_backward_mistakes_leave_values,
    assert_kernel_is_the_rule,
    case_of,
    kills,
    possible,
)

#: Mistakes that are known of public code or named in the design, and a target that can make them.
LIST = {
    "deep: gates of the first token": "deep_memory",
    "deep: gradient of the newest token": "deep_memory",
    "deep: slope left out": "deep_memory",
    "deep: momentum left out": "deep_memory",
    "deep: retain after the step": "deep_memory",
    "deep: weights from before ignored": "deep_memory",
    "deep: Newton-Schulz passed straight through": "deep_memory",
    "deep: gradient of a write held fixed": "deep_memory",
    "parameters.outer_gradient=first_order": "deep_memory",
    "parameters.window=2": "deep_memory",
    "deep: norm without its mean": "deep_memory-titans-pytorch",
    "deep: gain without the one": "deep_memory-titans-pytorch",
    "parameters.clip=hard": "deep_memory-titans-pytorch",
    "deep: pairs twice": "deep_memory-atlas-mag",
    "parameters.coupling=per_sample": "deep_memory-atlas-mag",
    "parameters.vectors=raw": "deep_memory-atlas-mag",
    "deep: clip that lengthens": "deep_memory-polynomial",
    "deep: squared norm in the step": "deep_memory-polynomial",
    "reference=running": "deep_memory-frozen",
}


@pytest.mark.clause("VEC-16", "VEC-22")
@pytest.mark.parametrize("target", DEEP, ids=lambda target: target.name)
def test_the_kernel_without_a_mistake_is_the_rule(target) -> None:
    for topic in target.topics[:: max(1, len(target.topics) - 1)]:
        assert_kernel_is_the_rule(drawn(target, topic, 1), grad=topic.grad)


@pytest.mark.clause("VEC-22")
def test_at_least_sixty_mutants_are_killed_in_both_formats_for_every_target(listing) -> None:
    every: dict[str, set[str]] = {dtype: set() for dtype in score.FORMATS}
    for target in DEEP:
        killed = {dtype: kills(listing, target.name, dtype) for dtype in score.FORMATS}
        assert killed["float32"] == killed["bfloat16"], target.name
        assert len(killed["float32"]) >= 60, target.name
        assert sum(name.startswith(own.ahead("deep_memory")) for name in killed["float32"]) >= 30, (
            target.name
        )
        for dtype in score.FORMATS:
            every[dtype] |= killed[dtype]
    assert len(every["bfloat16"]) > 180
    for mutant, target in LIST.items():
        assert mutant in kills(listing, target, "bfloat16"), (mutant, target)


@pytest.mark.clause("VEC-22")
@pytest.mark.slow
@pytest.mark.parametrize("target", DEEP, ids=lambda target: target.name)
def test_every_mutant_of_a_vector_is_killed_by_one_of_its_target(listing, target) -> None:
    made = possible(listing, target.name, "deep_memory")
    for dtype in score.FORMATS:
        assert made == kills(listing, target.name, dtype)


@pytest.mark.slow
@pytest.mark.clause("VEC-22")
def test_mutants_are_named_in_words(listing) -> None:
    assert mutants.words("deep: momentum left out") == "there were no momentum"
    assert mutants.words("momentum left out") == "momentum is 1 at every token"
    assert mutants.words("parameters.chunk=3") == "parameters.chunk=3 in place of the case's"
    killed = {name for each in listing.vectors for names in each.kills.values() for name in names}
    assert all(listing.mutants[name] == mutants.words(name) for name in killed)


@pytest.mark.clause("VEC-22")
def test_settings_that_are_the_same_function_are_no_mutants() -> None:
    names = {
        own.named(each, "deep_memory") for each in own.readings(case_of("deep_memory", "square"))
    }
    assert "parameters.memory.activation=silu" in names
    assert "deep: window_gate ignored" not in names  # no token brings a weight
    assert "parameters.unfinished=flush" in names
    assert "parameters.memory_reset=never" not in names  # one document from its beginning
    assert "reference=chunk_start" not in names  # a span of one chunk
    assert not any(name.startswith(own.FINE) for name in names)
    whole = {
        own.named(each, "deep_memory") for each in own.readings(case_of("deep_memory", "gradient"))
    }
    assert {"deep: values held fixed", "parameters.outer_gradient=none"} <= whole - names


@pytest.mark.clause("VEC-22")
@pytest.mark.parametrize("vector", ["deep_memory-tall", "deep_memory-titans-pytorch-edges"])
def test_settings_are_left_out_that_bfloat16_lets_pass_and_float32_does_not(vector: str) -> None:
    """All but the guard of Newton-Schulz and its smallest eps."""
    case = atlas_ref.load(FOLDER / "cases" / f"{vector}.safetensors")
    searched = SUBJECTS["deep_memory"].searched
    left_out = [each for each in searched.settings(case, ()) if each.name.startswith(own.FINE)]
    rejected: dict[str, set[str]] = {}
    for dtype in score.FORMATS:
        want = atlas_ref.evaluate(case).tensors
        want = {name: x for name, x in want.items() if not own.KEPT.fullmatch(name)}
        allowed = tolerances(case, dtype=dtype, only=list(want), results=want)
        rejected[dtype] = {
            each.name
            for each in left_out
            if score.ratio(own.kernel(case, dtype, (each,)), want, allowed) > PASS
        }
    names = {each.name for each in left_out}
    never = {"newton_schulz.guard=clamp", "newton_schulz.guard=return"}
    never |= {f"newton_schulz.eps={eps}" for eps in ("0", "1e-12", "1e-10", "1e-08", "1e-06")}
    assert names - never <= rejected["float32"]
    assert never & rejected["float32"] <= {"newton_schulz.eps=1e-06"}
    passing = names - rejected["bfloat16"]
    assert {name for name in names if "activation" in name or "newton_schulz" in name} <= passing
    assert {name for name in names if "0.98" in name or "0.99" in name} <= passing


@pytest.mark.clause("VEC-22")
def test_values_of_a_backward_mistake_are_right() -> None:
    assert assert_backward_mistakes_leave_values(case_of("deep_memory", "gradient")) > 12


@pytest.mark.clause("VEC-22")
@pytest.mark.parametrize("dtype", score.FORMATS)
def test_scores_are_the_verdicts_of_check(dtype) -> None:
    case = case_of("deep_memory-linear", "square")
    scores = score.score(case, dtype).mutants
    kind = np.float32 if dtype == "float32" else atlas_ref.oracle.norms.FORMATS[dtype][0]
    wrong = 0
    for name, results in list(own.mutants(case, dtype))[::7]:
        answer = {
            key: np.asarray(x).astype(kind)
            for key, x in results.items()
            if not own.KEPT.fullmatch(key)
        }
        rows = checked(case, source=lambda _, answer=answer: Answer(answer), dtype=dtype).rows
        floats = [row for row in rows if not row.tensor.startswith("out/state")]
        assert floats
        if scores[name] > PASS:
            assert any(row.verdict != "PASS" for row in rows), name
            wrong += 1
    assert wrong > 5


@pytest.mark.clause("VEC-17", "VEC-22")
def test_legal_variants_pass_on_a_vector(listing) -> None:
    each = next(v for v in listing.vectors if v.target == "deep_memory")
    case = atlas_ref.load(FOLDER / each.file)
    found = score.score(case, "float32")
    assert len(found.controls) >= 10
    assert max(found.controls.values()) <= PASS
    assert found.hidden == []
    assert {name for name, ratio in found.mutants.items() if ratio > PASS} >= {
        *each.kills["float32"]
    }
