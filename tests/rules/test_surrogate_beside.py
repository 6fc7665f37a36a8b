"""A learned residual beside its rule: blocks of levels, layers, readings, sweeps and mutants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.layers import memory, shared_memory
from atlas_ref.layers.convention import resolve
from atlas_ref.levels import block as cms
from atlas_ref.levels.level import Level
from atlas_ref.oracle import drawn_axes
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.identify.equivalence import TESTS
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.properties import Numbers
from atlas_ref.oracle.judge.alternatives import alternatives
from atlas_ref.oracle.sweep.draw import draw_case as drawn_of_sweep
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.rules import delta, titans_lmm
from atlas_ref.vectors.mutants.mutants import conventions
from tape.check import complex_step
from tests.levels.test_gradients import every_leaf_agrees, weighed
from tests.rules.test_surrogate import LEARNED, drawn, without
from tests.support.blocks import block, in_loops
from tests.support.blocks import drawn as drawn_of_block
from tests.support.close import assert_close, reordered

#: Levels whose residuals are learned, beside one that asks its memory.
LEVELS: tuple[dict[str, Any], ...] = (
    {"rule": "titans_lmm", "period": 1, "d_in": 2, "convention": LEARNED},
    {"rule": "omega", "period": 3, "d_in": 3, "window": 3, "convention": LEARNED},
    {"rule": "delta", "period": 2, "d_in": 2},
)


@pytest.mark.clause("SURROGATE-2", "SURROGATE-7")
def test_levels_of_a_block_are_their_loops() -> None:
    config = block(LEVELS)
    params, x, context = drawn_of_block(config)
    want, levels = in_loops(LEVELS, params, x, context)
    after, y = cms.run(config, params, x, context)
    assert_close("y", y, want, reordered(1, amplification=1e7))
    for i, state in enumerate(after.states):
        assert_close(
            f"M of level {i}", state.M, levels[i]["out/M"], reordered(1, amplification=1e7)
        )


@pytest.mark.clause("SURROGATE-2", "SURROGATE-7")
def test_weights_of_a_level_have_the_gradient_of_the_complex_step() -> None:
    config = block(LEVELS, d_model=2, d_out=2, heads=1)
    params, x, context = drawn_of_block(config, tokens=7, batch=1)
    loss = weighed(config, x, context)
    every_leaf_agrees(tape.grad(loss)(params), complex_step(loss, params))


@pytest.mark.clause("SURROGATE-7")
def test_a_block_of_levels_is_a_case_with_weights_of_each_level() -> None:
    case = new(Request(rule="cms", levels=({"rule": "delta", "convention": LEARNED}, "delta")))
    names = {name for name in case.inputs if "surrogate" in name}
    assert names == {"in/level0/param/W_surrogate"}


@pytest.mark.clause("SURROGATE-7")
def test_a_layer_refuses_it_by_name() -> None:
    rule = titans_lmm.Config(d_in=2, d_out=2, d_model=4, heads=2, convention=LEARNED)
    words = "levels: titans_lmm: reference surrogate is that of a rule or of a block of levels"
    with pytest.raises(ValueError, match=words):
        memory.configured(resolve("titans"), rule)
    shared = shared_memory.configured(
        "causal", d_model=4, heads=2, memory=MemoryFunction(kind="linear")
    )
    own = delta.Config(d_in=2, d_out=2, d_model=4, heads=2, convention=LEARNED)
    settings = {**shared.__dict__, "levels": cms.Config(levels=(Level(config=own),))}
    with pytest.raises(ValueError, match="levels: delta: reference surrogate"):
        shared_memory.Config(**settings)


@pytest.mark.clause("SURROGATE-7")
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("deep_memory", "convention: reference surrogate is not defined for a deep memory"),
        ("tnt", "convention: reference: TNT sets it for each memory"),
        ("dplr", "convention: the rule dplr has none"),
    ],
)
def test_other_rules_refuse_it_by_name(rule: str, words: str) -> None:
    with pytest.raises(CaseError, match=words):
        new(Request(rule=rule, convention=LEARNED))


@pytest.mark.clause("SURROGATE-7")
def test_what_was_drawn_before_it_came_is_drawn_without_it() -> None:
    assert drawn_axes.choices("reference") == ("running", "chunk_start", "call_start", "zero")
    for rule in ("titans_lmm", "hebbian"):
        case = new(Request(rule=rule, tokens=5, span=2, convention={"read": "chunk_start"}))
        names = conventions(case)
        assert "read=after" in names
        assert "reference=surrogate" not in names


@pytest.mark.clause("SURROGATE-7")
def test_a_sweep_takes_it_where_it_is_stated() -> None:
    case = drawn_of_sweep("delta", 3, 0, {"convention": (LEARNED,)}).case
    assert case.convention.reference == "surrogate"
    assert "in/param/W_surrogate" in case.inputs
    assert np.isfinite(evaluate(case).tensors["out/y"]).all()


@pytest.mark.clause("SURROGATE-7")
def test_readings_of_a_case_with_its_weights_include_it() -> None:
    case = drawn("titans_lmm", cotangent=False)
    own = lattice.tried_values(case.convention, "titans_lmm", case.inputs)["reference"]
    assert own == ("running", "chunk_start", "call_start", "zero", "surrogate")
    named = [dict(each.changes) for each in alternatives(case, evaluate(case).tensors)]
    assert {"reference": "running"} in named
    assert {"reference": "zero"} in named


@pytest.mark.clause("SURROGATE-7")
def test_a_memory_of_zero_is_no_reason_to_take_it_for_another_reference() -> None:
    case = drawn("titans_lmm", cotangent=False)
    tensors = {name: value for name, value in case.inputs.items() if name not in ("in/M0", "in/S0")}
    case = case.replaced(inputs=tensors)
    numbers = Numbers(case, case.inputs, case.convention)
    assert TESTS["reference"](numbers, "zero", "call_start", frozenset({"out/y"})) is not None
    assert TESTS["reference"](numbers, "surrogate", "zero", frozenset({"out/y"})) is None
    answer = identify(case, dict(evaluate(case).tensors), depth=1)
    assert answer.verdict == "MATCH"
    assert answer.match.convention.get("reference") == "surrogate"
    assert without(case).keys() < case.inputs.keys()
