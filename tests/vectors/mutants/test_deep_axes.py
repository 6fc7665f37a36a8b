"""Mutants of younger axes of deep memories: their values, their inputs, and that v2 rejects them."""

from __future__ import annotations

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.deep import program
from atlas_ref.oracle.deep.readings import listed
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.judge.tolerance import PASS
from atlas_ref.vectors.inputs.axes.deep import DEEP_AXES
from atlas_ref.vectors.inputs.deep_targets import DEEP
from atlas_ref.vectors.inputs.draw import drawn, exact
from atlas_ref.vectors.mutants import mutants, own, score, younger
from tests.support.killed import (
    FOLDER,
    assert_kernel_is_the_rule,
    case_of,
    kills,
    of_target,
    possible,
)

#: Mistakes that go with an axis, and a target that rejects them.
LIST = {
    "deep: power of the error not lowered": "moneta",
    "parameters.retention={'kind': 'l2'}": "moneta",
    "parameters.retention={'kind': 'lq', 'link': 'dual'}": "moneta",
    "deep: norm of the link without its root": "moneta",
    "deep: threshold of the largest entry": "yaad",
    "parameters.bias={'kind': 'huber', 'form': 'norm'}": "yaad",
    "deep: softmax without its sum": "memora",
    "parameters.retention={'kind': 'kl', 'over': 'column'}": "memora",
    "parameters.bias={'kind': 'l1', 'smoothing': 'none'}": "l1",
    "deep: sign of the error held fixed": "l1",
    "deep: threshold left out of the slope": "huber-coordinate",
    "deep: threshold of the squared norm": "huber-norm",
    "deep: threshold of the token before": "thresholds",
    "deep: prediction without its softmax": "kullback-leibler",
    "deep: soft threshold before the decay": "elastic-net",
    "deep: projection at the reads alone": "sphere",
    "deep: weights of 0 come back": "simplex",
    "deep: threshold carried by writes": "ftrl",
    "deep: gradients without the link": "lq",
    "deep: lag token at the end of its span": "lag",
    "deep: network mapped before it learned": "deep-momentum",
    "deep: momentum of 1": "deep-momentum",
    "deep: objective as a mean": "deep-momentum-dot",
}


@pytest.mark.clause("VEC-16", "VEC-26")
@pytest.mark.sample(6)
@pytest.mark.parametrize("target", DEEP_AXES, ids=lambda target: target.name)
def test_the_kernel_without_a_mistake_is_the_rule(target) -> None:
    for topic in (target.topics[0], target.topics[-1]):
        case = drawn(target, topic, 1)
        assert all(exact(x) for x in case.inputs.values() if x.dtype.kind == "f")
        assert_kernel_is_the_rule(case, grad=topic.grad)


@pytest.mark.clause("VEC-26")
def test_every_target_kills_its_mutants_in_both_formats(listing) -> None:
    for target in DEEP_AXES:
        killed = {dtype: kills(listing, target.name, dtype) for dtype in score.FORMATS}
        assert killed["float32"] == killed["bfloat16"], target.name
        assert len(killed["float32"]) >= 90, target.name
    for mutant, name in LIST.items():
        assert mutant in kills(listing, f"deep_memory-{name}", "bfloat16"), (mutant, name)
    everywhere = {name for target in DEEP_AXES for name in kills(listing, target.name, "float32")}
    knobs = {own.ahead("deep_memory") + each.name for each in (*listed.KNOBS, *listed.MOMENTA)}
    assert knobs <= everywhere


@pytest.mark.clause("VEC-26")
@pytest.mark.sample(2)
@pytest.mark.parametrize("target", DEEP_AXES, ids=lambda target: target.name)
def test_every_mutant_of_a_vector_is_killed_by_one_of_its_target(listing, target) -> None:
    made = possible(listing, target.name, "deep_memory")
    for dtype in score.FORMATS:
        assert made == kills(listing, target.name, dtype)


@pytest.mark.clause("VEC-22", "VEC-26")
def test_older_targets_have_no_mutant_of_a_younger_axis() -> None:
    for target in DEEP:
        case = drawn(target, target.topics[-1], 0)
        names = {each.name for each in own.readings(case)}
        assert not any(name.startswith(younger.YOUNGER) for name in names)
        assert not names & {each.name for each in listed.KNOBS}


@pytest.mark.clause("VEC-26")
def test_a_value_is_one_step_from_that_of_the_case() -> None:
    names = {
        own.named(each, "deep_memory") for each in own.readings(case_of("deep_memory-l1", "square"))
    }
    assert "parameters.bias={'kind': 'huber'}" in names
    assert "parameters.bias={'kind': 'l1', 'sharpness': 10.0}" not in names  # its default
    assert "parameters.bias={'kind': 'l1'}" in names
    assert "parameters.bias={'kind': 'lp', 'power': 4.0}" not in names
    assert not any("eps" in name for name in names if name.startswith("parameters.bias"))
    moneta = own.readings(case_of("deep_memory-moneta", "gradient"))
    found = {own.named(each, "deep_memory") for each in moneta}
    assert "parameters.bias={'kind': 'lp', 'power': 4.0}" in found
    assert not any("smoothing" in name or "sharpness" in name for name in found)
    assert "deep: sign of the error held fixed" not in found
    yaad = {
        own.named(each, "deep_memory")
        for each in own.readings(case_of("deep_memory-yaad", "square"))
    }
    assert "deep: residual clipped" not in yaad
    assert "deep: residual clipped" in found


def beyond(case) -> list[bool]:
    """Which errors of all writes are beyond their threshold."""
    bias, sides = program.program_and_settings(case)[1].bias, []

    def take(op, t, compute, *args, **counts):
        if op == "cotangent":
            e, _, *own = args
            size = np.abs(e) if bias.form == "coordinate" else np.linalg.norm(e, axis=-1)
            d = own[0] if own else bias.threshold
            sides.extend(np.ravel(size > d).tolist())
        return compute(*args)

    program.TRACED.run(case, convert(case, "float64"), take, PLAIN)
    return sides


@pytest.mark.clause("VEC-26")
def test_inputs_make_their_axis_active(listing) -> None:
    """Errors on both sides of a threshold, weights that it takes away, weights of 0."""
    for name in ("yaad", "huber-coordinate", "huber-norm", "huber-mixture", "thresholds"):
        sides = [
            side
            for each in of_target(listing, f"deep_memory-{name}")
            for side in beyond(atlas_ref.load(FOLDER / each.file))
        ]
        assert 0.05 < np.mean(sides) < 0.95, name
    for name in ("elastic-net", "ftrl", "simplex"):
        weights = [
            atlas_ref.load(FOLDER / each.file).recorded["out/state/weights/W"]
            for each in of_target(listing, f"deep_memory-{name}")
        ]
        flat = np.concatenate([x.ravel() for x in weights])
        low = flat == 0.0 if name != "ftrl" else np.abs(flat) < 0.2265625
        assert 0 < low.sum() < low.size, name
    lag = [atlas_ref.load(FOLDER / each.file) for each in of_target(listing, "deep_memory-lag")]
    assert any("in/state/position" in case.inputs for case in lag)


@pytest.mark.clause("VEC-26")
def test_mutants_are_named_in_words(listing) -> None:
    assert mutants.words("deep: hard threshold") == "entries above the threshold stayed as they are"
    killed = {name for target in DEEP_AXES for name in kills(listing, target.name, "float32")}
    assert all(listing.mutants[name] == mutants.words(name) for name in killed)


@pytest.mark.clause("VEC-17", "VEC-26")
@pytest.mark.parametrize("name", ["huber-norm", "deep-momentum"])
def test_legal_variants_pass_on_a_vector(listing, name: str) -> None:
    each = of_target(listing, f"deep_memory-{name}")[0]
    found = score.score(atlas_ref.load(FOLDER / each.file), "float32")
    assert max(found.controls.values()) <= PASS
    assert found.hidden == []
    rejected = {mutant for mutant, ratio in found.mutants.items() if ratio > PASS}
    assert rejected >= {*each.kills["float32"]}
