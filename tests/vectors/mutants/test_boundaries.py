"""Mistakes at the boundaries of chunks: v1 and its few tokens let them pass, v2 and the sweep do
not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.mistakes import boundaries
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.arrays import relative_error
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.sweep.sweep import sweep
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.inputs.targets import TARGETS
from atlas_ref.vectors.mutants import mutants
from atlas_ref.vectors.sets import cases

#: Chunks of kernels, and targets that can have each mistake of a value.
SIZES = (16, 64, 128)
PLANTED = {
    "state one chunk late": ("delta", "titans_lmm", "omega-linear", "hebbian", "omega"),
    "momentum dropped": ("titans_lmm", "omega-linear", "omega"),
    "window dropped": ("omega-linear", "omega-gated-window", "omega"),
    "momenta dropped": ("omega-momenta",),
    "span restarted": ("delta-frozen", "omega-frozen"),
}


def kernel(size: int, wrong: str | None) -> Any:
    """A kernel in chunks, in float64, with a mistake."""

    def source(case: Case) -> Answer:
        return Answer(dict(boundaries.run(case, size, wrong)))

    return source


def verdicts(case: Case, size: int, wrong: str | None) -> set[str]:
    found = checked(case, source=kernel(size, wrong), only=["y", "M"])
    return {row.verdict for row in found.rows}


@pytest.mark.sample(8)
@pytest.mark.clause("VEC-21")
@pytest.mark.parametrize("target", [t for t in TARGETS if t.long], ids=lambda target: target.name)
def test_a_chain_of_calls_without_a_mistake_is_the_call(target) -> None:
    for topic in target.long:
        case = drawn(target, topic, 1)
        want = atlas_ref.evaluate(case, grad=topic.grad).tensors
        grad = "dM dropped" in boundaries.made_in(case, 16)
        found = boundaries.run(case, 16, grad=grad)
        assert "out/y" in found
        assert not grad or "grad/k" in found
        for name, value in found.items():
            assert relative_error(value, want[name]) < 1e-12, (topic.name, name)


@pytest.mark.clause("VEC-21")
@pytest.mark.parametrize("wrong", PLANTED)
def test_v1_lets_every_mistake_at_a_boundary_pass(wrong: str) -> None:
    for target in PLANTED[wrong]:
        for path in cases.paths("v1", targets=[target])[:3]:
            for size in SIZES:
                assert verdicts(atlas_ref.load(path), size, wrong) == {"PASS"}, (path.stem, size)


@pytest.mark.clause("VEC-21")
@pytest.mark.parametrize("wrong", PLANTED)
def test_v2_rejects_every_mistake_at_a_boundary(wrong: str) -> None:
    for target in PLANTED[wrong]:
        vectors = [atlas_ref.load(path) for path in cases.paths("v2", targets=[target])]
        for size in SIZES:
            possible = [each for each in vectors if wrong in boundaries.made_in(each, size)]
            assert any("WRONG" in verdicts(each, size, wrong) for each in possible), (target, size)
            assert verdicts(possible[0], size, None) == {"PASS"}


@pytest.mark.clause("VEC-16", "VEC-21")
def test_a_long_vector_has_these_mutants_alone_and_they_have_words() -> None:
    case = atlas_ref.load(cases.place("v2:titans_lmm-130-gradient"))
    names = [name for name, _ in mutants.mutants(case, "float32")]
    assert set(names) <= set(boundaries.words_by_name())
    assert "dS dropped in chunks of 64" in names
    assert "state one chunk late in chunks of 128" in names
    assert not any(name.endswith("of 256") for name in names)
    words = "a chunk starts from the state of the chunk before, of 16 tokens"
    assert mutants.words(names[0]) == words
    short = atlas_ref.load(cases.place("v1:delta-rows"))
    assert not set(boundaries.words_by_name()) & {
        name for name, _ in mutants.mutants(short, "float32")
    }


@pytest.mark.clause("VEC-21")
@pytest.mark.parametrize("wrong", ["dM dropped", "dS dropped"])
def test_cotangents_that_stop_at_a_chunk_change_gradients_before_it_alone(wrong: str) -> None:
    case = atlas_ref.load(cases.place("v2:titans_lmm-130-gradient"))
    want, found = case.recorded, boundaries.run(case, 64, wrong, grad=True)
    assert relative_error(found["out/y"], want["out/y"]) < 1e-12
    assert relative_error(found["grad/v"][..., 128:, :], want["grad/v"][..., 128:, :]) < 1e-12
    assert relative_error(found["grad/v"][..., :64, :], want["grad/v"][..., :64, :]) > 1e-6


@pytest.mark.sample(1)
@pytest.mark.clause("VEC-14", "VEC-21")
@pytest.mark.parametrize("size", SIZES)
def test_a_kernel_by_hand_whose_memory_is_a_chunk_old(cli, size: int) -> None:
    impl = ("--target", "delta", "--impl", f"tests.sweep_kernels:late_by_{size}", "--no-nearest")
    short = cli("check", "--set", "v1", *impl)
    assert short.code == 0, short.out
    assert short.out.rstrip().endswith("(at most 8 tokens; longer: --set v2)")
    ran = cli("check", "--set", "v2", *impl, "--json")
    assert ran.code == 1
    wrong = {Path(r["case"]).stem for r in ran.json["results"] if r["verdict"] == "WRONG"}
    assert {64: "delta-65", 16: "delta-65", 128: "delta-130"}[size] in wrong
    first = {
        r["first"]["token"] for r in ran.json["results"] if r["tensor"] == "out/y" and r["first"]
    }
    assert first == {size}


@pytest.mark.sample(1)
@pytest.mark.clause("SWEEP-12")
@pytest.mark.parametrize(
    ("rule", "wrong", "size"),
    [
        ("delta", "state one chunk late", 64),
        ("titans_lmm", "momentum dropped", 128),
        ("omega", "window dropped", 64),
    ],
)
def test_a_sweep_of_a_hundred_cases_meets_the_mistake(
    tmp_path: Path, rule: str, wrong: str, size: int
) -> None:
    """Kernels that are right on everything that is not longer than a chunk."""

    def source(case: Case) -> Answer:
        if wrong in boundaries.made_in(case, size):
            return Answer(dict(boundaries.run(case, size, wrong)))
        return Answer({name: case_results(case)[name] for name in ("out/y", "out/M")})

    found = sweep(rule, source, cases=100, only=["y", "M"], folder=tmp_path, keep=0)
    numbers = {each.number for each in found.failures}
    assert numbers
    assert all(number % 10 == 9 for number in numbers)


def case_results(case: Case) -> dict[str, np.ndarray]:
    return dict(atlas_ref.evaluate(case).tensors)


@pytest.mark.clause("SWEEP-7", "SWEEP-12")
def test_a_long_failure_is_shrunk_to_the_token_after_the_boundary(tmp_path: Path) -> None:
    found = sweep(
        "delta",
        kernel(64, "state one chunk late"),
        cases=20,
        only=["y", "M"],
        folder=tmp_path,
        keep=1,
        shrink=120,
    )
    assert {each.number for each in found.failures} <= {9, 19}
    (failure,) = (each for each in found.failures if each.file)
    small = atlas_ref.load(tmp_path / str(failure.file))
    assert cases.length(small) == 65
    assert failure.shrunk is not None
    assert failure.shrunk["numbers"][1] < failure.shrunk["numbers"][0] / 2
