"""Memories of any rule of the family and of several levels: graphs, verdicts, readings, steps inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.layers import memory
from atlas_ref.models import language_model
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.modules import recipe as recipes
from atlas_ref.oracle.modules.graph import evaluate
from atlas_ref.oracle.modules.habits import of_work
from atlas_ref.oracle.modules.inside import case_of
from atlas_ref.oracle.modules.judge import first_wrong, judge
from atlas_ref.oracle.modules.recording import make_recording
from atlas_ref.oracle.replay.trace import trace
from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.recorded_modules import drawn, header_of, of_ours, tokens

#: Levels by name: of one rule each, and several.
LEVELS: dict[str, list[dict[str, Any]]] = {
    "titans_lmm": [{"rule": "titans_lmm"}],
    "delta": [{"rule": "delta"}],
    "hebbian": [{"rule": "hebbian"}],
    "omega": [{"rule": "omega", "window": 3, "window_weights": {"kind": "decay"}}],
    "delta, span": [
        {"rule": "delta", "span": 3, "convention": {"reference": "chunk_start"}, "period": 2}
    ],
    "two": [
        {"rule": "omega", "window": 2, "window_weights": {"kind": "softmax"}},
        {"rule": "delta", "period": 3, "convention": {"read": "before"}},
    ],
    "three": [
        {"rule": "titans_lmm", "convention": {"momentum_sign": "minus"}},
        {"rule": "hebbian", "period": 2},
        {
            "rule": "omega",
            "window": 3,
            "period": 4,
            "feature_map": {"kind": "elementwise", "degree": 2},
        },
    ],
}
SEVERAL = ("two", "three")


def header(name: str, layer: str = "memory", **changes: Any) -> dict[str, Any]:
    """The header of a recording with these levels."""
    levels = changes.pop("levels", LEVELS[name])
    own = header_of(layer, levels=levels, **changes)
    own["settings"] = {
        key: value
        for key, value in own["settings"].items()
        if key not in ("omega_window", "use_omega_gate")
    }
    return own


def changed(name: str, number: int, **axes: Any) -> list[dict[str, Any]]:
    """Levels with other axes of one of them."""
    levels = [dict(each) for each in LEVELS[name]]
    levels[number]["convention"] = {**levels[number].get("convention", {}), **axes}
    return levels


def cell_of(name: str, number: int = 0) -> str:
    return f"layer.levels.{number}.cell" if name in SEVERAL else "layer.cell"


@pytest.mark.clause("MODULES-7", "MODULES-19", "CMS-6", "CMS-7", "PULSE-2")
@pytest.mark.parametrize("ways", [{}, {"combine": "masked"}, {"first_step": 1}], ids=str)
@pytest.mark.parametrize("name", LEVELS)
def test_a_graph_of_levels_computes_what_the_layer_computes_over_calls(
    name: str, ways: dict[str, Any]
) -> None:
    own = header(name, calls=[5, 1, 3], **ways)
    if name == "delta, span" and "combine" in ways:
        with pytest.raises(CaseError, match="combine: masked needs a level that always writes"):
            make_recording(own, drawn(header(name)) | tokens(own))
        return
    recording = make_recording(own, drawn(own) | tokens(own))
    config, x = recipes.config_of(recording.recipe), tokens(own)["modules/layer/in/x"]
    state, rows = memory.start(config, 2), []
    for first, last in ((0, 5), (5, 6), (6, 9)):
        state, y = memory.apply(config, recording.params, state, x[:, first:last])
        rows.append(y)
    graph = recording.graph()
    want = np.concatenate(rows, axis=1)
    assert_close("y", evaluate(graph, "layer/out/y", {"layer/in/x": x}), want, ANALYTIC)
    for i in range(len(LEVELS[name])):
        M = evaluate(graph, f"{cell_of(name, i)}/out/state/M", {"layer/in/x": x})
        assert_close(f"M {i}", M, state.levels.states[i].M, ANALYTIC)
    if ways:  # another schedule, or other weights, are not the same
        plain = make_recording(header(name, calls=[5, 1, 3]), drawn(own) | tokens(own)).graph()
        same = (
            name not in SEVERAL
            if "combine" in ways
            else all(level.get("period", 1) == 1 for level in LEVELS[name])
        )
        other = evaluate(plain, "layer/out/y", {"layer/in/x": x})
        if same:
            assert_close("the same", other, want, ANALYTIC)
        else:
            assert_differs("others", other, want, 1e-4)


@pytest.mark.clause("MODULES-2", "MODULES-19")
@pytest.mark.parametrize("block", ["mag", "mal", "lmm"])
def test_a_model_of_levels_is_the_model(block: str) -> None:
    own = header("two", "language_model", calls=[5, 4], settings={"block_type": block})
    recording = make_recording(own, drawn(own) | tokens(own))
    ids = tokens(own)["modules/embed/in/ids"]
    config = recipes.config_of(recording.recipe)
    _, want = language_model.apply(config, recording.params, language_model.start(config, 2), ids)
    got = evaluate(recording.graph(), "to_logits/out/y", {"embed/in/ids": ids})
    assert_close("logits", got, want, ANALYTIC)
    names = drawn(own)
    assert "in/param/layers.1.memory.levels.1.to_q.weight" in names
    assert "in/param/layers.0.memory.logits" in names
    assert "in/param/layers.0.memory.levels.1.to_momentum.0.weight" not in names


#: Axes of a level read otherwise.
READINGS = [
    ("titans_lmm", 0, {"read": "before"}, "level 0 read", "before"),
    ("titans_lmm", 0, {"gate": "retain"}, "level 0 gate", "retain"),
    ("delta", 0, {"value_sign": "plus"}, "level 0 value_sign", "plus"),
    ("hebbian", 0, {"read": "before"}, "level 0 read", "before"),
    ("two", 0, {"gate": "forget"}, "level 0 gate", "forget"),
    ("two", 1, {"value_sign": "plus"}, "level 1 value_sign", "plus"),
    ("three", 1, {"read": "before"}, "level 1 read", "before"),
    ("three", 2, {"rate": "momentum"}, "level 2 rate", "momentum"),
]


@pytest.mark.sample(2)
@pytest.mark.clause("MODULES-12", "MODULES-14", "MODULES-19")
@pytest.mark.parametrize(
    ("name", "number", "axes", "axis", "value"), READINGS, ids=lambda each: str(each)
)
def test_a_level_read_otherwise_is_named_and_looked_into(
    name: str, number: int, axes: dict[str, Any], axis: str, value: str
) -> None:
    truth, cell = header(name), cell_of(name, number)
    other = header(name, levels=changed(name, number, **axes))
    tensors = of_ours(other, truth=truth)
    first = first_wrong(judge(make_recording(truth, tensors)))
    assert first is not None
    assert (first.fault, first.key) == (cell, f"{cell}/out/y")
    assert first.nearest.startswith(f"computes {axis} {value}; the recording says ")
    assert f"record modules/{cell}/trace/" in first.inside
    steps = trace(case_of(make_recording(other, tensors), cell))
    tensors |= {f"modules/{cell}/{key}": each for key, each in steps.items()}
    assert judge(make_recording(other, tensors), nearest=False)[0].verdict == "PASS"
    first = first_wrong(judge(make_recording(truth, tensors)))
    assert first is not None
    assert first.inside.startswith("WRONG inside the rule: ")


@pytest.mark.clause("MODULES-14", "MODULES-19")
@pytest.mark.parametrize("name", LEVELS)
def test_the_case_of_a_cell_has_the_steps_of_the_graph(name: str) -> None:
    """Weights by lag and by token, periods, spans and feature maps of the cell's own case."""
    own = header(name)
    recording = make_recording(own, of_ours(own))
    for i in range(len(LEVELS[name])):
        cell = cell_of(name, i)
        reads = trace(case_of(recording, cell))["trace/y"]
        assert_close(cell, reads, recording.values[f"{cell}/out/y"], ANALYTIC)


@pytest.mark.clause("MODULES-14", "MODULES-19")
def test_weights_by_lag_and_by_token_are_those_of_the_case() -> None:
    own = header_of(
        "memory", levels=[{"rule": "omega", "window": 3, "window_weights": {"kind": "decay"}}]
    )
    own["settings"].pop("omega_window")
    recording = make_recording(own, of_ours(own))
    case = case_of(recording, "layer.cell")
    u = recording.values["layer.cell/in/window_gate"]
    weights = case.inputs["in/window_weights"]
    for t in range(9):
        for j in range(3):
            want = 0.95**j * u[..., t - j] if j <= t else np.zeros((2, 2))
            assert_close(f"{t}, {j}", weights[..., t, j], want, ANALYTIC)
    assert_close("y", trace(case)["trace/y"], recording.values["layer.cell/out/y"], ANALYTIC)


@pytest.mark.slow
@pytest.mark.clause("MODULES-18", "MODULES-19")
def test_a_habit_of_combining_levels_is_named() -> None:
    own = header("two", combine="masked")
    tensors = of_ours(own)
    graph = make_recording(own, tensors).graph()
    key = "layer.combine/out/y"
    known = {name.removeprefix("modules/"): each for name, each in tensors.items()}
    ways = list(of_work(graph.values[key]))
    assert len(ways) == 8
    for way in ways:
        got = evaluate(graph.otherwise(key, way.sources, way.function), key, known)
        kept = {
            each: a
            for each, a in tensors.items()
            if "/layer/out" not in each and "/layer.to_out" not in each
        }
        first = first_wrong(judge(make_recording(own, kept | {f"modules/{key}": np.asarray(got)})))
        assert first is not None
        assert (first.key, first.nearest) == (key, way.words)


@pytest.mark.clause("MODULES-7", "MODULES-18", "MODULES-19")
def test_what_a_level_forgets_at_a_call_is_named() -> None:
    own = header("delta", calls=[5, 4])
    tensors = of_ours(own)
    graph = make_recording(own, tensors).graph()
    known = {name.removeprefix("modules/"): each for name, each in tensors.items()}
    key = "layer.cell/out/y"
    (way,) = [each for each in of_work(graph.values[key]) if "forgets" in each.words]
    got = np.asarray(evaluate(graph.otherwise(key, way.sources, way.function), key, known))
    kept = {
        each: a for each, a in tensors.items() if "/layer/out" not in each and "state" not in each
    }
    first = first_wrong(judge(make_recording(own, kept | {f"modules/{key}": got})))
    assert first is not None
    assert (first.key, first.nearest) == (key, "forgets the memory at each call")
    assert "token 5 (call 1, its token 0)" in first.place


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"levels": {"rule": "delta"}}, "levels: a list of 1 to 64 objects is needed"),
    "none": ({"levels": []}, "levels: a list of 1 to 64 objects is needed"),
    "a number": ({"levels": [3]}, r"levels\[0\]: .*"),
    "unknown rule": ({"levels": [{"rule": "ttl"}]}, r"levels\[0\]: rule: must be "),
    "a rule of no family": ({"levels": [{"rule": "deep_memory"}]}, r"levels\[0\]: rule: must be "),
    "unknown key": ({"levels": [{"rule": "delta", "periods": 3}]}, r"levels\[0\]: periods: "),
    "period 0": ({"levels": [{"rule": "delta", "period": 0}]}, r"levels\[0\]: period: "),
    "window of delta": (
        {"levels": [{"rule": "delta", "window": 2}]},
        r"levels\[0\]: window: rule delta has none",
    ),
    "window too wide": (
        {"levels": [{"rule": "delta"}, {"rule": "omega", "window": 1_000_001}]},
        r"levels\[1\]: window: must be at most 1000000, found 1000001",
    ),
    "learned weights by token": (
        {"levels": [{"rule": "omega", "window_weights": {"kind": "gate"}}]},
        r"levels\[0\]: window_weights: kind gate has no module to record",
    ),
    "no span": (
        {"levels": [{"rule": "delta", "convention": {"reference": "chunk_start"}}]},
        "span: ",
    ),
    "unknown axis": ({"levels": [{"rule": "delta", "convention": {"gait": 1}}]}, r"levels\[0\]: "),
    "a rule too": ({"rule": "atlas-rnn"}, "rule: each of levels has its own convention"),
    "combine": ({"combine": "mean"}, "combine: must be "),
    "first step": ({"first_step": 2}, "first_step: "),
}


@pytest.mark.clause("MODULES-2", "MODULES-19")
@pytest.mark.parametrize("name", BAD)
def test_bad_levels_are_refused(name: str) -> None:
    changes, words = BAD[name]
    own = header("two")
    with pytest.raises(CaseError, match=f"recording: .*{words}"):
        make_recording({**own, **changes}, drawn(own) | tokens(own))


@pytest.mark.clause("MODULES-2", "MODULES-19")
def test_what_belongs_to_levels_needs_them_and_they_exclude_the_settings_of_omega() -> None:
    own = header_of("memory")
    for key, value in (("combine", "masked"), ("first_step", 1)):
        with pytest.raises(CaseError, match=f"{key}: belongs to levels, and there are none"):
            make_recording({**own, key: value}, drawn(own) | tokens(own))
    with pytest.raises(CaseError, match="settings: omega_window: each of levels has its own"):
        make_recording({**own, "levels": LEVELS["two"]}, drawn(own) | tokens(own))
