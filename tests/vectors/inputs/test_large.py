"""Larger cases, read from their JSON by plain loops as another language would, and their promises
of results.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.vectors.inputs import large
from atlas_ref.vectors.sets.verify import load_large
from tests.vectors.inputs.test_stream import BITS, fnv1a64, mix

GOLDEN = 0x9E3779B97F4A7C15


def word(seed: int, name: str, i: int) -> int:
    return mix((mix((fnv1a64(name) + seed * GOLDEN) % BITS) + (i + 1) * GOLDEN) % BITS)


def entry(recipe, name: str, i: int) -> float:
    """Entry i of a tensor, counted in row-major order."""
    top = word(recipe["seed"], name, i) >> 32
    if "values" in recipe:
        return recipe["values"][top * len(recipe["values"]) >> 32]
    return (-recipe["most"] + (top * (2 * recipe["most"] + 1) >> 32)) * recipe["unit"]


@pytest.mark.clause("VEC-13", "VEC-4")
def test_a_recipe_read_by_plain_loops_is_the_case(shipped, listed) -> None:
    for one in listed.large:
        case, given = load_large(shipped / one.file)
        assert case.header.rule == one.rule == given["header"]["rule"]
        assert given["tensors"].keys() == case.inputs.keys()
        for name, recipe in given["tensors"].items():
            count = math.prod(recipe["shape"])
            found = case.inputs[name].reshape(-1)
            assert list(case.inputs[name].shape) == recipe["shape"]
            for i in {0, 1, 7, count // 3, count - 1} & set(range(count)):
                assert found[i] == entry(recipe, name, i), (one.name, name, i)


@pytest.mark.clause("VEC-13")
def test_norms_and_projections_by_plain_loops(shipped, listed) -> None:
    (one,) = [each for each in listed.large if each.name == "delta-odd"]
    case, given = load_large(shipped / one.file)
    y = evaluate(case).tensors["out/y"].reshape(-1).tolist()
    want = given["results"]["out/y"]
    assert max(map(abs, y)) == pytest.approx(want["max"], rel=1e-12)
    assert math.sqrt(sum(x * x for x in y) / len(y)) == pytest.approx(want["rms"], rel=1e-12)
    size = math.sqrt(sum(x * x for x in y))
    for number, projection in enumerate(want["projections"]):
        signs = [
            1.0 if word(given["seed"], f"out/y projection {number}", i) >> 63 == 0 else -1.0
            for i in range(len(y))
        ]
        assert abs(sum(s * x for s, x in zip(signs, y, strict=True)) - projection) < 1e-12 * size
    assert len(set(want["projections"])) == large.PROJECTIONS


@pytest.mark.clause("VEC-13")
def test_a_small_error_anywhere_shows(shipped, listed) -> None:
    """One entry off by 1e-9 of the norm, in every tensor, and two entries swapped."""
    for one in listed.large:
        case, given = load_large(shipped / one.file)
        if one.name not in ("delta-odd", "newton_schulz-64", "omega-frozen-128"):
            continue
        for name, value in evaluate(case).tensors.items():
            want = given["results"][name]
            assert large.apart(large.summary(name, value, given["seed"]), want) <= 1.0
            wrong = np.array(value)
            wrong.flat[wrong.size // 2] += 1e-9 * np.linalg.norm(wrong)
            assert large.apart(large.summary(name, wrong, given["seed"]), want) > 1.0, name
            swapped = np.array(value)
            swapped.flat[[0, 1]] = swapped.flat[[1, 0]]
            assert large.apart(large.summary(name, swapped, given["seed"]), want) > 1.0, name
            assert (
                large.apart(large.summary(name, wrong.reshape(-1), given["seed"]), want) == math.inf
            )


@pytest.mark.clause("VEC-2", "VEC-13")
def test_larger_cases_are_large_and_odd(listed, shipped) -> None:
    tokens = {}
    for one in listed.large:
        given = json.loads((shipped / one.file).read_text())
        if "in/k" in given["tensors"]:
            tokens[one.name] = given["tensors"]["in/k"]["shape"][-2]
    assert max(tokens.values()) >= 512
    assert any(count % 2 for count in tokens.values())
    assert {one.rule for one in listed.large} == {
        "hebbian",
        "delta",
        "titans_lmm",
        "omega",
        "newton_schulz",
    }


def test_what_does_not_exist_is_said() -> None:
    with pytest.raises(
        CaseError, match="larger case 'giant' does not exist; there are hebbian-1024"
    ):
        large.large_named("giant")
