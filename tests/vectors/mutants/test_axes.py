"""Mutants of the younger axes of matrix memories: their kernels, inputs that reach every bound and
ceiling, and that v2 rejects every one of them.
"""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.family.mistake import Mistake, compute, see
from atlas_ref.oracle.family.mistakes import bounds, ceiling, fading, momenta, of_axes, surrogate
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.judge.tolerance import PASS, tolerances
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.parts.ceiling import held
from atlas_ref.parts.momentum import faded
from atlas_ref.vectors.inputs.axes.memories import MEMORIES
from atlas_ref.vectors.inputs.draw import drawn, exact
from atlas_ref.vectors.mutants import mutants, score
from tests.support.killed import FOLDER, case_of, kills, of_target
from tests.truth import literal

NAMES = [target.name for target in MEMORIES]

#: Mistakes and settings that are known of kernels, and the targets that reject them.
LIST = {
    "momentum_kind=sum": ("titans_lmm-average", "omega-average", "titans_lmm-delta-momentum"),
    "average on the write": ("titans_lmm-average", "omega-average-momenta"),
    "average without its factor at first": ("titans_lmm-average", "omega-average"),
    "average of the window": ("omega-average-momenta",),
    "average corrected for its start": ("titans_lmm-average",),
    "weight of the gradient held fixed": ("titans_lmm-average", "omega-average"),
    "fading by the norm": ("titans_lmm-delta-momentum", "omega-delta-momentum"),
    "clamp of the fading passed straight through": ("titans_lmm-delta-momentum",),
    "retain_bounds=none": ("titans_lmm-bounds", "delta-bounds", "titans_lmm-bounds-token"),
    "step_bounds=none": ("titans_lmm-bounds", "delta-bounds", "titans_lmm-bounds-token"),
    "bounds of the logarithm of retain": ("titans_lmm-bounds",),
    "bounds of the multiplier": ("delta-bounds", "titans_lmm-bounds-token"),
    "bounds not in the decay of the residual": ("delta-bounds",),
    "bounds in the decay of the residual alone": ("delta-bounds",),
    "bounds of step size passed straight through": ("titans_lmm-bounds", "delta-bounds"),
    "cotangent kept on a bound of retain": ("titans_lmm-bounds", "delta-bounds"),
    "cotangent kept on the least retain": ("titans_lmm-bounds", "delta-bounds"),
    "cotangent kept on the greatest retain": ("titans_lmm-bounds", "delta-bounds"),
    "cotangent kept on the least step size": ("titans_lmm-bounds", "delta-bounds"),
    "cotangent kept on the greatest step size": ("titans_lmm-bounds", "delta-bounds"),
    "slope of the bounded retain": ("titans_lmm-bounds-token",),
    "memory_ceiling=none": ("delta-ceiling", "titans_lmm-ceiling", "omega-ceiling"),
    "ceiling of the largest entry": ("delta-ceiling", "titans_lmm-ceiling", "omega-ceiling"),
    "ceiling at the read alone": ("delta-ceiling", "titans_lmm-ceiling", "omega-ceiling"),
    "ceiling over heads": ("titans_lmm-ceiling",),
    "derivative of the ceiling": ("delta-ceiling", "titans_lmm-ceiling", "omega-ceiling"),
    "surrogate of [v; k]": ("titans_lmm-surrogate", "omega-surrogate"),
    "surrogate without silu": ("titans_lmm-surrogate", "omega-surrogate"),
    "value transposed with key": ("titans_lmm-surrogate", "omega-surrogate"),
    "weights of the surrogate held fixed": ("titans_lmm-surrogate", "omega-surrogate"),
}


def passes(case, mistake) -> bool:
    """Whether a kernel with something planted in it has every result of the rule."""
    want = atlas_ref.evaluate(case, grad=mistake is not None and mistake.grad).tensors
    found = compute(case, mistake, "float32")
    allowed = tolerances(case, dtype="float32", only=list(want), results=want, alternatives=False)
    return score.ratio(found, want, allowed) <= PASS


def plant(case, **fields) -> Mistake:
    return Mistake("planted", "", lambda _: True, "in/y_bar" in case.inputs, **fields)


@pytest.mark.clause("VEC-25")
@pytest.mark.sample(4)
@pytest.mark.parametrize("target", MEMORIES, ids=lambda target: target.name)
def test_the_kernel_without_a_mistake_is_the_rule(target) -> None:
    for topic in target.topics[:: max(1, len(target.topics) // 3)]:
        assert passes(drawn(target, topic, 1), None), topic.name


@pytest.mark.clause("VEC-25")
def test_a_kernel_in_which_the_right_thing_is_planted_is_the_rule() -> None:
    """So that a mutant is wrong by its mistake alone, in values and in gradients."""
    off = {"memory_ceiling": "none"}
    for name in ("titans_lmm-ceiling", "omega-ceiling", "delta-ceiling"):
        case = case_of(name, "gradient")
        assert passes(case, plant(case, hooks=ceiling._write(held, 2.0), convention=off)), name
        assert not passes(case, plant(case, convention=off)), name
    for name in ("titans_lmm-delta-momentum", "omega-delta-momentum"):
        case, plain = case_of(name, "gradient"), {"momentum_kind": "sum"}
        hooks = fading._plant(lambda token: faded(token.momentum, token.gradient))
        assert passes(case, plant(case, hooks=hooks, convention=plain)), name
        assert not passes(case, plant(case, convention=plain)), name
    for name in ("titans_lmm-average", "omega-average", "omega-average-momenta"):
        case = case_of(name, "gradient")
        inputs = momenta._entering(momenta._share)
        assert passes(case, plant(case, inputs=inputs, convention=momenta.SUM)), name
    for name in ("titans_lmm-surrogate", "omega-surrogate"):
        case, zero = case_of(name, "gradient-tall"), {"reference": "zero"}
        tensors = surrogate._plant(surrogate._right)
        assert passes(case, plant(case, tensors=tensors, convention=zero)), name
    for name in ("titans_lmm-bounds", "delta-bounds", "titans_lmm-bounds-token"):
        case = case_of(name, "gradient")
        right = dict.fromkeys(("retain", "step size"), bounds._right)
        assert passes(case, bounds._plant(see(case), "planted", "", right, grad=True)), name


@pytest.mark.clause("VEC-25")
@pytest.mark.parametrize("dtype", score.FORMATS)
def test_v2_rejects_what_is_known_of_kernels(listing, dtype) -> None:
    for mutant, targets in LIST.items():
        for target in targets:
            assert mutant in kills(listing, target, dtype), (mutant, target)


@pytest.mark.clause("VEC-25")
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_every_mutant_of_a_vector_is_killed_by_one_of_its_target(listing, name) -> None:
    cases = [atlas_ref.load(FOLDER / each.file) for each in of_target(listing, name)]
    made = {mutant for case in cases for mutant, _ in mutants.mutants(case, "float32")}
    for dtype in score.FORMATS:
        assert made == kills(listing, name, dtype)


@pytest.mark.clause("VEC-25")
def test_every_mistake_is_made_and_has_its_words(listing) -> None:
    made, killed = set(), set()
    for name in NAMES:
        for each in of_target(listing, name):
            case = atlas_ref.load(FOLDER / each.file)
            made |= {mistake.name for mistake in of_axes(case, see(case))}
        killed |= kills(listing, name, "bfloat16")
    words = {name: text for kind in (momenta, fading, bounds, ceiling, surrogate)
             for name, text in kind.words_by_name().items()}  # fmt: skip
    assert made == set(words) <= killed
    assert all(listing.mutants[name] == mutants.words(name) == words[name] for name in words)


@pytest.mark.clause("VEC-25")
def test_other_targets_have_none_of_these_mutants(listing) -> None:
    for target in ("titans_lmm", "omega-linear", "delta"):
        case = case_of(target, "gradient")
        assert of_axes(case, see(case)) == []
        assert not any(name.startswith("momentum_kind") for name in mutants.conventions(case))


@pytest.mark.clause("VEC-25")
def test_some_gates_are_beyond_their_bounds_some_on_them_and_some_between(listing) -> None:
    for name in ("titans_lmm-bounds", "delta-bounds"):
        on_bound: set[str] = set()
        for each in of_target(listing, name):
            case = atlas_ref.load(FOLDER / each.file)
            for gate in ("retain", "step_size"):
                value = np.asarray(case.inputs[f"in/{gate}"], np.float64)
                least, greatest = _limits(case, gate)
                assert (value < least).any() or (value > greatest).any(), (each.name, gate)
                assert ((least < value) & (value < greatest)).any(), (each.name, gate)
                if each.grad:
                    on_bound |= {gate} if np.isin(value, (least, greatest)).any() else set()
        assert on_bound == {"retain", "step_size"}, name
    for each in of_target(listing, "titans_lmm-bounds-token"):
        case = atlas_ref.load(FOLDER / each.file)
        least, greatest = case.convention.retain_bounds
        value = trace(case)["trace/retain"]  # as computed, before it is bounded
        assert ((value < least) | (value > greatest)).any(), each.name
        assert ((least < value) & (value < greatest)).any(), each.name


def _limits(case, gate: str) -> tuple[float, float]:
    c = case.convention
    return c.retain_bounds if gate == "retain" else c.step_bounds


@pytest.mark.clause("VEC-25")
def test_some_memories_reach_their_ceiling_and_others_do_not(listing) -> None:
    for name in ("delta-ceiling", "titans_lmm-ceiling", "omega-ceiling"):
        sizes = []
        for each in of_target(listing, name):
            case = atlas_ref.load(FOLDER / each.file)
            M = trace(case)["trace/M"]
            sizes.append(np.linalg.norm(M, axis=(-2, -1)).ravel() / case.convention.memory_ceiling)
            assert sizes[-1].max() <= max(1.0, _first_memory(case)) + 1e-12
            if each.grad:
                assert np.isclose(sizes[-1], 1.0, rtol=1e-12).any(), each.name
        every = np.concatenate(sizes)
        reached = np.isclose(every, 1.0, rtol=1e-12).mean()
        assert 0.1 < reached < 0.9, (name, reached)


def _first_memory(case) -> float:
    """The largest initial memory in ceilings, which an inactive token leaves as it is."""
    if "in/active" not in case.inputs:
        return 0.0
    M0 = np.asarray(case.inputs["in/M0"], np.float64)
    return float(np.linalg.norm(M0, axis=(-2, -1)).max() / case.convention.memory_ceiling)


@pytest.mark.clause("VEC-25")
def test_some_factors_of_delta_momentum_are_clamped_and_others_are_not(listing) -> None:
    for name in ("titans_lmm-delta-momentum", "omega-delta-momentum"):
        for each in of_target(listing, name):
            case = atlas_ref.load(FOLDER / each.file)
            square = (trace(case)["trace/gradient"] ** 2).sum(axis=(-2, -1))
            m = np.asarray(case.inputs["in/momentum"], np.float64)
            room = m - square.reshape(square.shape + (1,) * (m.ndim - square.ndim))
            if each.topic != "edges":
                assert (room > 1e-3).any(), each.name
            if each.topic != "short":
                assert (room < 1e-6).any(), each.name


@pytest.mark.clause("VEC-25")
def test_values_of_a_backward_mistake_are_right() -> None:
    count = 0
    for name in NAMES:
        case = case_of(name, "gradient")
        at = see(case)
        right = compute(case, None, "float32")
        for mistake in of_axes(case, at):
            if not mistake.grad:
                continue
            found = compute(case, mistake, "float32")
            for key, value in right.items():
                assert np.allclose(found[key], value, rtol=1e-4, atol=1e-6), (mistake.name, key)
            count += 1
    assert count > 35


@pytest.mark.clause("VEC-25")
@pytest.mark.parametrize("name", NAMES)
def test_recorded_values_are_those_of_a_literal_loop(listing, name) -> None:
    for each in of_target(listing, name):
        case = atlas_ref.load(FOLDER / each.file)
        found = literal.evaluate(case.header.plain(), dict(convert(case, "float64")))
        for key in ("out/y", "out/M", "out/S"):
            if key in case.recorded:
                assert relative_error(found[key], case.recorded[key]) < 1e-12, (each.name, key)
        assert all(exact(x) for x in case.inputs.values() if x.dtype.kind == "f")


@pytest.mark.clause("VEC-6", "VEC-25")
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_recorded_values_are_certified(listing, name) -> None:
    pytest.importorskip("flint", reason="python-flint is not installed")
    from atlas_ref.vectors.sets.expected import expected

    for each in of_target(listing, name):
        case = atlas_ref.load(FOLDER / each.file)
        found = expected(case, grad=each.grad)
        assert found.keys() == case.recorded.keys()
        assert all(value.tobytes() == case.recorded[key].tobytes() for key, value in found.items())
