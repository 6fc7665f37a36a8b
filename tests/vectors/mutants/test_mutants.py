"""Mutants and legal variants: all mistakes of the design's list, their effects, and scores as
verdicts of check.
"""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.family.mistake import compute, see
from atlas_ref.oracle.family.mistakes import FIXED, chunked, cuts, mistakes
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.inputs.targets import TARGETS, target_named, topic_named
from atlas_ref.vectors.mutants import mutants, score

#: What the design names, word for word, and the mutants that stand for it, by target.
LIST = {
    "forget for retain": {"omega": "gate=forget", "delta": "gate=forget", "hebbian": "gate=forget"},
    "rate in the wrong place": {
        "omega": "rate=memory",
        "omega-linear": "rate=memory",
        "titans_lmm": "rate=both",
    },
    "factor 2": {"omega": "gradient_scale=2", "delta": "gradient_scale=2"},
    "window off by one": {"omega": "window off by one", "omega-linear": "window off by one"},
    "window order swapped": {
        "omega": "window weights reversed",
        "omega-linear": "order=momentum_then_window",
    },
    "read before write": {"omega": "read=before", "hebbian": "read=before"},
    "frozen for running": {"omega": "reference=call_start", "delta": "reference=chunk_start"},
    "spurious transpose in a backward": {
        "omega": "spurious transpose in a backward",
        "delta": "dM transposed",
    },
    "cubic for quintic": {
        "omega": "newton_schulz.coefficients=cubic",
        "newton_schulz": "newton_schulz.coefficients=cubic",
    },
    "NS written back": {"omega": "newton_schulz.argument=written_back"},
    "missing eps": {"omega": "newton_schulz.eps=0", "newton_schulz": "newton_schulz.eps=0"},
    "a dropped carry of dM": {"omega": "dropped carry of dM", "hebbian": "dropped carry of dM"},
    "a dropped carry of dS": {"omega": "dropped carry of dS", "titans_lmm": "dropped carry of dS"},
    "gate values copied onto padding": dict.fromkeys(
        ("titans_lmm", "delta", "hebbian"), "gates copied onto padding"
    ),
    "padding that leaks a future token": {
        "omega": "padding leaks a future token",
        "delta": "padding leaks a future token",
    },
}


def case_of(target: str, topic: str, seed: int = 0):
    found = target_named(target)
    return drawn(found, topic_named(found, topic), seed)


@pytest.mark.clause("VEC-16")
def test_the_whole_list_is_killed(listed) -> None:
    for words, by_target in LIST.items():
        for target, mutant in by_target.items():
            for dtype in ("float32", "bfloat16"):
                killing = [
                    each.name
                    for each in listed.vectors
                    if each.target == target and mutant in each.kills[dtype]
                ]
                assert killing, (words, target, dtype)


@pytest.mark.clause("VEC-16")
def test_names_are_unique_and_every_mistake_is_made_somewhere(listed) -> None:
    names = [*(each.name for each in FIXED), *chunked.MISTAKES, *cuts.LOST]
    assert len(set(names)) == len(names)
    killed = {name for each in listed.vectors for names in each.kills.values() for name in names}
    assert set(names) - killed == set()
    assert all(mutants.words(name) for name in killed)


@pytest.mark.clause("VEC-16")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_kernel_without_a_mistake_is_the_rule(target) -> None:
    for topic in target.topics[:: max(1, len(target.topics) // 4)]:
        case = drawn(target, topic, 1)
        want = atlas_ref.evaluate(case).tensors
        found = compute(case, None, "float32")
        allowed = tolerances(
            case, dtype="float32", only=list(found), results=want, alternatives=False
        )
        assert score.ratio(found, want, allowed) <= PASS, topic.name


@pytest.mark.clause("VEC-16")
@pytest.mark.parametrize(
    "target", ["titans_lmm", "titans_lmm-paper", "titans_lmm-fla-momentum", "delta", "hebbian"]
)
def test_the_chunk_form_without_a_mistake_is_the_rule(target) -> None:
    for topic in ("tall", "square", "wide", "edges", "repeated", "short", "one"):
        case = case_of(target, topic)
        at = see(case)
        assert at is not None
        assert chunked.made_in(at, ""), topic
        want = atlas_ref.evaluate(case).tensors
        for name, value in chunked.results(case, "float32").items():
            assert np.linalg.norm(value - want[name]) <= 1e-5 * np.linalg.norm(want[name]), (
                topic,
                name,
            )


@pytest.mark.sample(1)
@pytest.mark.clause("VEC-16")
@pytest.mark.parametrize("dtype", score.FORMATS)
@pytest.mark.parametrize(
    ("target", "topic"),
    [("delta", "gradient"), ("omega", "gradient-tall"), ("newton_schulz", "gradient")],
)
def test_scores_are_the_verdicts_of_check(target, topic, dtype) -> None:
    """An implementation that is a mutant: PASS exactly where its score is at most that of PASS.

    But a state, which check judges by float32 (TOL-8), may be wrong beside a score of PASS.
    """
    case = case_of(target, topic)
    scores = score.score(case, dtype).mutants
    given = round_inputs(case, dtype)
    kind = {"float32": np.float32, "bfloat16": atlas_ref.oracle.norms.FORMATS["bfloat16"][0]}[dtype]
    own = set(atlas_ref.evaluate(given).tensors)
    seen_passes = set()
    for number, (name, results) in enumerate(mutants.mutants(given, dtype)):
        if number % 5 and scores[name] > PASS:
            continue
        answer = {
            key: np.asarray(value).astype(kind)
            for key, value in results.items()
            if key in own or key.startswith("grad/")
        }
        rows = checked(case, source=lambda _, answer=answer: Answer(answer), dtype=dtype).rows
        wrong = [row.tensor for row in rows if row.verdict != "PASS"]
        if scores[name] <= PASS:
            assert set(wrong) <= ({"out/M", "out/S"} if dtype == "bfloat16" else set()), name
        else:
            assert wrong, (name, scores[name], rows)
        seen_passes.add(not wrong)
    assert False in seen_passes


@pytest.mark.clause("VEC-16")
def test_values_of_a_backward_mistake_are_right() -> None:
    case = case_of("omega", "gradient")
    at = see(case)
    assert at is not None
    right = compute(case, None, "float32")
    made = [each for each in mistakes(case) if each.grad]
    assert len(made) > 12
    for mistake in made:
        found = compute(case, mistake, "float32")
        for name, value in right.items():
            assert np.allclose(found[name], value, rtol=1e-4, atol=1e-6), (mistake.name, name)
        assert any(name.startswith("grad/") for name in found)


@pytest.mark.clause("VEC-16")
def test_conventions_are_those_that_identify_searches() -> None:
    case = case_of("omega", "square")
    spanned = case.replaced(header=case.header.replaced(span=3))
    names = set(mutants.conventions(spanned))
    assert {
        "gate=forget",
        "read=call_end",
        "reference=chunk_start",
        "newton_schulz.steps=4",
        "newton_schulz=none",
        "k_norm=rms",
    } <= names
    assert "newton_schulz.transpose=never" not in names
    assert "window_at_boundary=carry" not in names
    assert len(names) > 50


@pytest.mark.clause("VEC-16")
def test_what_is_not_carried_over_a_cut_shows_in_the_second_call() -> None:
    case = case_of("omega-frozen", "wide")
    want = atlas_ref.evaluate(case).tensors["out/y"]
    found = {
        name: results for name, results in mutants.mutants(case, "float32") if name in cuts.LOST
    }
    assert {
        "momentum lost at a cut",
        "window lost at a cut",
        "phase lost at a cut",
        "reference lost at a cut",
    } <= set(found)
    for name, results in found.items():
        gaps = np.abs(results["out/y"] - want).max(axis=(0, -1))
        assert (gaps[:4] < 1e-5).all(), name
        assert gaps[4:].max() > 1e-3, name


@pytest.mark.clause("VEC-17")
@pytest.mark.parametrize("dtype", score.FORMATS)
def test_legal_variants_differ_and_pass(dtype) -> None:
    """Distinct legal variants: at float32 most differ in some bit, and all pass."""
    case = round_inputs(case_of("omega", "gradient-tall", 1), dtype)
    found = dict(score.controls(case, dtype, grad=True))
    assert len(found) >= 10
    assert all(
        ratio <= PASS
        for ratio in score.score(case_of("omega", "gradient-tall", 1), dtype).controls.values()
    )
    if dtype == "float32":
        assert len({results["out/M"].tobytes() for results in found.values()}) >= 6


@pytest.mark.clause("VEC-17")
def test_every_kind_of_legal_variant_is_there() -> None:
    names = " ".join(way.name for way in score.LEGAL)
    for word in (
        "transposed Newton-Schulz",
        "reordered",
        "fused multiply-add",
        "float32 accumulation",
    ):
        assert word in names
    forms = {
        name.split(",")[0]
        for name, _ in score.controls(case_of("omega-frozen", "square"), "float32", grad=False)
        if "form" in name
    }
    assert {"form chunkwise", "form atlas_parallel"} <= forms
