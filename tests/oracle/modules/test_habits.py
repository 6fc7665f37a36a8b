"""Habits of programs: each is found where it is planted, and nothing is named that does not give the value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.modules.graph import Graph, ancestry, evaluate
from atlas_ref.oracle.modules.habits import HABITS, of_work, wires
from atlas_ref.oracle.modules.habits.cells import Combine
from atlas_ref.oracle.modules.habits.search import explain
from atlas_ref.oracle.modules.judge import first_wrong, judge
from atlas_ref.oracle.modules.nearest import exactly, ratio_of
from atlas_ref.oracle.modules.recording import Recording, make_recording
from atlas_ref.oracle.modules.tolerance import truth
from tests.support.recorded_modules import header_of, of_ours


def recording_of(mag: str = "gate_mix", **settings: Any) -> Recording:
    header = header_of(calls=[5, 4], convention={"mag": mag}, settings={"depth": 1, **settings})
    return make_recording(header, of_ours(header))


RECORDING = recording_of()
GRAPH = RECORDING.graph()
OPEN = recording_of("attention_times_gate")
GRAPHS = {"gated": (RECORDING, GRAPH), "open": (OPEN, OPEN.graph())}

#: One value of each kind of work, by the graph that has it.
PLACES = {
    "gated": [
        *("embed_norm/out/y", "layers.0.attention.norm/out/y", "layers.0.memory.q_norm/out/y"),
        *("layers.0.memory.to_q/out/y", "to_logits/out/y", "layers.0.ff.1/out/y"),
        *("layers.0.memory.to_decay/out/y", "layers.0.gate/out/y"),
        *("layers.0.memory.v_conv/out/y", "layers.0.attention.to_qkv/out/q"),
        *("layers.0.memory.q_norm/in/x", "layers.0.memory.to_out/in/x"),
        *("layers.0.attention.rotary/out/q", "layers.0.attention.attend/in/v"),
        *("layers.0.attention.attend/out/y", "layers.0.memory.cell/out/y"),
        *("layers.0.ff.2/out/y", "layers.0.mix/out/y", "loss/out/y"),
    ],
    "open": ["layers.0.mix/out/y"],
}
CASES = [(graph, key) for graph, keys in PLACES.items() for key in keys]


def found(recording: Recording, graph: Graph, key: str, got: Any) -> list[str]:
    """What is named for a value that a program returned, and everything else is right."""
    values = recording.values
    before = ancestry(graph, key, frozenset(values))
    inputs = {each: values[each] for each in before.known}
    own = truth(key, inputs, graph, graph, "float64")
    assert ratio_of(graph, key, exactly(inputs), got, own.tolerance) > 4.0
    return explain(
        graph,
        key,
        exactly(values),
        lambda other, known: ratio_of(other, key, known, got, own.tolerance) <= 2.0,
    )


def test_every_kind_of_work_has_a_place_and_habits_of_other_words() -> None:
    kinds = {type(GRAPHS[graph][1].values[key].work) for graph, key in CASES}
    assert kinds | {Combine} == set(HABITS)  # that one in test_levels
    for kind, habits in HABITS.items():
        words = [each.words for each in habits]
        assert len(words) == len(set(words)), kind


@pytest.mark.clause("MODULES-18")
@pytest.mark.parametrize(("name", "key"), CASES, ids=lambda each: each)
def test_a_habit_that_is_planted_is_named_and_few_others_give_the_same(name: str, key: str) -> None:
    recording, graph = GRAPHS[name]
    value, known = graph.values[key], exactly(recording.values)
    habits, factors = list(of_work(value)), list(wires.factors(value))
    for way in (*habits, *factors):
        got = evaluate(graph.otherwise(key, way.sources, way.function), key, known)
        words = found(recording, graph, key, np.asarray(got))
        if way in habits:
            assert way.words in words
        assert 1 <= len(words) <= 2, (way.words, words)


#: Values that are passed on, changed.
PASSED = ("layers.0.attention.to_out/in/x", "embed_norm/in/x", "layers.0.memory.to_q/in/x")


@pytest.mark.clause("MODULES-18")
@pytest.mark.parametrize("key", PASSED)
def test_a_change_of_what_is_passed_on_is_named(key: str) -> None:
    value, known = GRAPH.values[key], exactly(RECORDING.values)
    for way in wires.changes(value):
        got = evaluate(GRAPH.otherwise(key, way.sources, way.function), key, known)
        assert found(RECORDING, GRAPH, key, np.asarray(got)) == [way.words]


@pytest.mark.clause("MODULES-18")
@pytest.mark.parametrize(
    ("key", "terms"),
    [
        ("layers.0.ff/in/x", ("layers.0/in/x", "layers.0.mix/out/y")),
        ("layers.0/out/y", ("layers.0.ff/in/x", "layers.0.ff/out/y")),
    ],
)
def test_a_term_of_the_residual_stream_that_is_missing_or_there_twice_is_named(
    key: str, terms: tuple[str, str]
) -> None:
    values = RECORDING.values
    for i, each in enumerate(terms):
        for verb, weight in (("leaves out", 0.0), ("adds twice", 2.0), ("subtracts", -1.0)):
            got = values[terms[1 - i]] + weight * values[each]
            assert found(RECORDING, GRAPH, key, got) == [f"{verb} modules/{each}"]


@pytest.mark.clause("MODULES-18")
def test_what_another_module_returned_is_named_by_the_nearest_that_has_it_and_is_right() -> None:
    n, x = (RECORDING.values[f"layers.0.memory.pre_norm/{each}"] for each in ("out/y", "in/x"))
    conv = RECORDING.values["layers.0.memory.k_conv/out/y"]
    instead = "in place of modules/layers.0.memory"
    for key, got, words in (
        ("to_lr/in/x", x, f"pre_norm/in/x {instead}.pre_norm/out/y"),
        ("v_conv/in/x", x, f"pre_norm/in/x {instead}.pre_norm/out/y"),
        ("to_v/in/x", n, f"pre_norm/out/y {instead}.v_conv/out/y"),
        ("to_v/in/x", conv, f"k_conv/out/y {instead}.v_conv/out/y"),
    ):
        own = f"layers.0.memory.{key}"
        assert found(RECORDING, GRAPH, own, got) == [f"receives modules/layers.0.memory.{words}"]
    # a value that is itself wrong is not what another one stands for
    wrong = RECORDING._replace(
        values={
            **RECORDING.values,
            "layers.0.memory.to_decay/in/x": x,
            "layers.0.memory.to_momentum/in/x": x,
        }
    )
    (words,) = found(wrong, GRAPH, "layers.0.memory.to_lr/in/x", x)
    assert words.startswith("receives modules/layers.0.memory.pre_norm/in/x")


@pytest.mark.clause("MODULES-12", "MODULES-18")
@pytest.mark.parametrize(("name", "key"), CASES, ids=lambda each: each)
def test_nothing_is_named_for_a_value_that_no_habit_gives(name: str, key: str) -> None:
    """A value off by a thousandth of its size in one entry, and one off in all."""
    recording, graph = GRAPHS[name]
    right = np.asarray(evaluate(graph, key, exactly(recording.values)))
    noise = np.random.default_rng(0).standard_normal(right.shape)
    one = np.zeros(right.size)
    one[right.size // 2] = 1.0
    for way in (noise, one.reshape(right.shape)):
        assert found(recording, graph, key, right + 1e-3 * np.abs(right).max() * way) == []


@pytest.mark.clause("MODULES-18")
def test_two_habits_at_once_are_not_named_as_one() -> None:
    known = exactly(RECORDING.values)
    key = "layers.0.memory.to_decay/out/y"
    z = GRAPH.values[key].work.linear(known["layers.0.memory.to_decay/in/x"])
    bias = GRAPH.values[key].work.bias
    assert found(RECORDING, GRAPH, key, 1.0 - 1.0 / (1.0 + np.exp(bias - z))) == []


@pytest.mark.slow
@pytest.mark.clause("MODULES-18")
@pytest.mark.parametrize("depth", [1, 2])
def test_a_habit_of_every_layer_is_named_where_modules_between_were_not_recorded(
    depth: int,
) -> None:
    """Queries and keys of all layers from position 1, seen in the logits alone."""
    header = header_of(calls=[5, 4], settings={"depth": depth})
    tensors = of_ours(header)
    recording = make_recording(header, tensors)
    graph = recording.graph()
    ids = recording.values["embed/in/ids"]
    other = graph
    for key, value in graph.values.items():
        if ".rotary/out/" in key:
            (way,) = [each for each in of_work(value) if "from 1" in each.words]
            other = other.otherwise(key, way.sources, way.function)
    kept = {name: each for name, each in tensors.items() if name.startswith("in/param/")}
    logits = evaluate(other, "to_logits/out/y", {"embed/in/ids": ids})
    kept |= {"modules/embed/in/ids": ids, "modules/to_logits/out/y": logits}
    first = first_wrong(judge(make_recording(header, kept)))
    assert first is not None
    modules = " and ".join(f"layers.{i}.attention.rotary" for i in range(depth))
    assert first.nearest == f"in {modules} counts positions from 1"


@pytest.mark.clause("MODULES-18")
def test_generic_ways_between_are_tried_for_few_tokens_alone() -> None:
    """A factor at the queries shows in the reads, which scale 1/d would give too."""
    from atlas_ref.oracle.modules.habits import search

    key, known = "layers.0.attention.to_out/in/x", exactly(RECORDING.values)
    values = {each: a for each, a in known.items() if ".attend/" not in each}
    other = GRAPH.otherwise(
        "layers.0.attention.attend/in/v",
        ("layers.0.attention.to_qkv/out/v",),
        lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
    )
    before = {each: a for each, a in values.items() if each != key}
    got = np.asarray(evaluate(other, key, before))

    def fits(graph: Graph, its: Any) -> bool:
        return bool(np.abs(np.asarray(evaluate(graph, key, its)) - got).max() < 1e-12)

    words = "in layers.0.attention.attend norms rows to length 1"
    assert explain(GRAPH, key, values, fits) == [words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "TOKENS", 4)
        assert explain(GRAPH, key, values, fits) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "BETWEEN", 1)
        assert explain(GRAPH, key, values, fits) == []


@pytest.mark.clause("MODULES-8", "MODULES-18")
def test_a_wrong_loss_of_one_predicted_token_is_no_error_of_habits_that_need_two() -> None:
    header = header_of(settings={"depth": 1})
    tensors = {name: each for name, each in of_ours(header).items() if name.startswith("in/param")}
    logits, targets = np.ones((2, 1, 11)), np.array([[3], [4]])
    tensors |= {
        "modules/loss/in/logits": logits,
        "modules/loss/in/targets": targets,
        "modules/loss/out/y": np.array(2.0 * np.log(11.0)),
    }
    (only,) = judge(make_recording(header, tensors))
    words = "sums over batch rows or sums over all tokens"
    assert (only.verdict, only.nearest) == ("WRONG", words)
