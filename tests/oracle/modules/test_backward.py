"""Cotangents of graphs against the complex step, and what verdicts about recorded ones say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.modules.backward import Lacking, Pullbacks, around, readers, route
from atlas_ref.oracle.modules.graph import evaluate
from atlas_ref.oracle.modules.judge import first_wrong, judge
from atlas_ref.oracle.modules.recording import grad_name, make_recording
from atlas_ref.oracle.modules.report import exit_code, plain, report
from tests.support.recorded_modules import (
    drawn,
    end_of,
    header_of,
    of_ours,
    tokens,
    with_gradients,
)

LEVELS = [
    {"rule": "titans_lmm", "convention": {"read": "before"}},
    {"rule": "delta", "period": 2},
]


def with_levels(layer: str) -> dict[str, Any]:
    own = header_of(layer, levels=LEVELS, calls=[5, 4])
    for key in ("omega_window", "use_omega_gate"):
        own["settings"].pop(key)
    return own


HEADERS: dict[str, dict[str, Any]] = {
    **{
        block: header_of(calls=[5, 4], settings={"depth": 1, "block_type": block, "segment_len": 4})
        for block in ("mag", "mal", "lmm", "mac")
    },
    "gate_mix": header_of(settings={"depth": 1}, convention={"mag": "gate_mix"}),
    "atlas-rnn": header_of(settings={"depth": 1}, convention="atlas-rnn", rule="atlas-rnn"),
    "titans": header_of("memory", calls=[5, 4], convention="titans"),
    "attention": header_of("attention", calls=[5, 4]),
    "feed_forward": header_of("feed_forward"),
    "levels": with_levels("memory"),
    "levels of a block": with_levels("block"),
}


def alone(tensors: dict[str, Any]) -> dict[str, Any]:
    """A recording without what came back to modules of modules, whose parts are then looked at."""
    wholes = ("0", "memory", "attention", "layer", "ff", "ff_pre", "ff_post")
    return {
        key: each
        for key, each in tensors.items()
        if not ("/grad/in/" in key and key.split("/")[1].rpartition(".")[2] in wholes)
        or (".ff" in key.split("/")[1].removesuffix(".0") and key.split("/")[1].endswith(".0"))
    }


@pytest.mark.clause("MODULES-20")
@pytest.mark.parametrize("name", HEADERS)
def test_the_cotangent_of_the_first_value_is_the_derivative_by_the_complex_step(name: str) -> None:
    header = HEADERS[name]
    recording = make_recording(header, drawn(header) | tokens(header))
    graph, known = recording.graph(), dict(recording.values)
    start = "embed_norm/out/y" if "embed/in/ids" in known else "layer/in/x"
    if start not in known:
        known[start] = evaluate(graph, start, known)
    end = end_of(graph)
    bar = np.random.default_rng(3).standard_normal(np.shape(evaluate(graph, end, known)))
    got = Pullbacks(graph, known, {end: bar}).cotangent(start)
    for seed in range(3):
        way = np.random.default_rng(seed).standard_normal(got.shape)
        moved = evaluate(graph, end, known | {start: known[start] + 1e-30j * way})
        want = np.sum(np.imag(moved) / 1e-30 * bar)
        assert np.sum(got * way) == pytest.approx(want, rel=1e-12, abs=1e-13)


@pytest.mark.sample(2)
@pytest.mark.clause("MODULES-20")
@pytest.mark.parametrize("name", HEADERS)
def test_recorded_cotangents_are_right_part_by_part(name: str) -> None:
    header = HEADERS[name]
    tensors = with_gradients(header)
    parts = alone(tensors)
    verdicts = judge(make_recording(header, parts), nearest=False)
    assert {each.verdict for each in verdicts} == {"PASS"}
    judged = {each.tensor for each in verdicts if "/grad/" in each.tensor}
    ends = {f"modules/{grad_name(end_of(make_recording(header, parts).graph()))}"}
    assert judged == {key for key in parts if "/grad/" in key} - ends
    few = judge(make_recording(header, tensors), nearest=False)
    assert len(few) < len(verdicts)


@pytest.mark.clause("MODULES-10", "MODULES-11", "MODULES-20")
def test_a_wrong_cotangent_is_named_with_its_place_after_those_that_are_right() -> None:
    header = HEADERS["mag"]
    tensors = with_gradients(header)
    key = "modules/layers.0.attention.attend/grad/in/k"
    k = tensors[key].copy()
    k[1, 0, :7, 2] += 0.01
    verdicts = judge(make_recording(header, {**tensors, key: k}))
    # the block is right as a whole, so that nobody looks inside
    assert {each.verdict for each in verdicts} == {"PASS"}
    verdicts = judge(make_recording(header, {**alone(tensors), key: k}))
    first = first_wrong(verdicts)
    assert first is not None
    assert first.fault == "backward of layers.0.attention.attend"
    assert (first.tensor, first.clause, first.nearest) == (key, "MODULES-20", "")
    assert first.place == "batch row 1, head 0, token 6 (call 1, its token 1), index 2"
    assert first.got is not None
    assert first.expected is not None
    assert abs(first.got - first.expected - 0.01) < 1e-12
    lines = report(verdicts).splitlines()
    assert lines[0] == "backward of layers.0.attention.attend: WRONG"
    before = next(line for line in lines if line.startswith("  found before"))
    assert before.startswith("  found before  right: loss, to_logits, norm, layers.0.ff")
    assert exit_code(verdicts) == 1
    assert json.loads(json.dumps(plain(verdicts)))["first_wrong"]["tensor"] == key
    faults = [each.fault for each in verdicts if each.verdict == "WRONG"]
    assert faults == [
        "backward of layers.0.attention.attend",
        "backward between layers.0.attention.rotary and layers.0.attention.attend",
    ]


@pytest.mark.clause("MODULES-20")
def test_modules_without_cotangents_are_computed_together_and_named() -> None:
    header = HEADERS["mag"]
    tensors = with_gradients(header)
    kept = {
        key: each
        for key, each in alone(tensors).items()
        if not ("/grad/" in key and ".rotary" in key)
        and not ("to_qkv/grad/out" in key and not key.endswith("y"))
    }
    key = "modules/layers.0.attention.to_qkv/grad/out/y"
    kept[key] = kept[key] * 1.5
    first = first_wrong(judge(make_recording(header, kept)))
    assert first is not None
    assert first.fault == (
        "backward between layers.0.attention.to_qkv and layers.0.attention.attend "
        "(layers.0.attention.rotary not recorded)"
    )
    assert (first.tensor, first.together) == (key, ("layers.0.attention.rotary",))


@pytest.mark.clause("MODULES-20")
def test_what_nothing_comes_after_is_taken_as_it_is_and_a_state_weighs_nothing() -> None:
    header = HEADERS["titans"]
    tensors = with_gradients(header)
    recording = make_recording(header, tensors)
    graph = recording.graph()
    after = readers(graph)
    assert after["layer/out/y"] == after["layer.cell/out/state/M"] == []
    way = route(graph, "layer.cell/in/v", {"layer.cell/out/y"})
    assert (way.known, way.lacking) == (("layer.cell/out/y",), ())
    assert route(graph, "layer/out/y", {"layer.cell/out/y"}).lacking == ("layer/out/y",)
    with pytest.raises(Lacking, match="layer/out/y"):
        Pullbacks(graph, recording.values, {}).cotangent("layer.cell/in/v")
    alone = {key: each for key, each in tensors.items() if "/grad/" not in key}
    y = tensors["modules/layer/grad/out/y"]
    only = judge(make_recording(header, {**alone, "modules/layer/grad/out/y": 2 * y}))
    assert not any("/grad/" in each.tensor for each in only)
    # a state that a loss weighs has a cotangent of its own
    M = np.ones((2, 2, 4, 4))
    back = Pullbacks(
        graph,
        recording.values,
        {"layer.cell/out/y": 0 * recording.values["layer.cell/out/y"], "layer.cell/out/state/M": M},
    )
    v = recording.values["layer.cell/in/v"]
    known = {key: each for key, each in recording.values.items() if key.startswith("layer.cell/in")}
    moved = evaluate(graph, "layer.cell/out/state/M", known | {"layer.cell/in/v": v + 1e-30j})
    want = np.sum(np.imag(moved) / 1e-30)
    assert np.sum(back.cotangent("layer.cell/in/v")) == pytest.approx(want, rel=1e-12)


@pytest.mark.clause("MODULES-20")
def test_the_stream_beside_a_module_is_no_cotangent_of_what_it_received() -> None:
    """What a feed-forward received is the residual stream, which the end of the block reads too."""
    recording = make_recording(HEADERS["mag"], with_gradients(HEADERS["mag"]))
    graph = recording.graph()
    inner, outer = around(graph, "layers.0.ff/in/x", readers(graph))
    assert (inner, outer) == (["layers.0.ff.0/in/x"], ["layers.0/out/y"])
    bars = recording.cotangents
    through, stream = bars["layers.0.ff/in/x"], bars["layers.0/out/y"]
    assert np.allclose(bars["layers.0.mix/out/y"], through + stream, rtol=1e-13)
    assert not np.allclose(through, through + stream, rtol=0.1)


@pytest.mark.clause("MODULES-20")
def test_a_cotangent_that_is_not_finite_is_wrong_where_it_arises_and_nowhere_before() -> None:
    header = HEADERS["mag"]
    tensors = {k: v for k, v in with_gradients(header).items() if "modules/layers.0/grad" not in k}
    for key in ("layers.0.ff.3/grad/in/x", "layers.0.ff.2/grad/out/y", "layers.0.ff.2/grad/in/x"):
        bad = tensors[f"modules/{key}"].copy()
        bad[0, 2, 1] = np.inf
        tensors[f"modules/{key}"] = bad
    tensors.pop("modules/layers.0.ff/grad/in/x")
    verdicts = [each for each in judge(make_recording(header, tensors)) if each.verdict != "PASS"]
    assert [(each.tensor, each.verdict) for each in verdicts] == [
        ("modules/layers.0.ff.3/grad/in/x", "WRONG"),
        ("modules/layers.0.ff.2/grad/out/y", "UNDECIDABLE"),
        ("modules/layers.0.ff.2/grad/in/x", "UNDECIDABLE"),
        ("modules/layers.0.ff.1/grad/out/y", "UNDECIDABLE"),
    ]
    assert verdicts[1].why == (
        "what it is computed from is not finite: modules/layers.0.ff.3/grad/in/x"
    )


@pytest.mark.clause("MODULES-20")
def test_a_backward_whose_inputs_were_not_recorded_is_undecidable() -> None:
    header = HEADERS["feed_forward"]
    tensors = with_gradients(header)
    kept = {
        key: each
        for key, each in tensors.items()
        if key.startswith("in/param")
        or key in ("modules/layer.2/grad/in/x", "modules/layer.2/grad/out/y")
    }
    kept["modules/layer.3/in/x"] = tensors["modules/layer.3/in/x"]
    (only,) = [each for each in judge(make_recording(header, kept)) if "/grad/" in each.tensor]
    assert (only.verdict, only.tensor) == ("UNDECIDABLE", "modules/layer.2/grad/in/x")
    assert only.why == "its backward needs modules/layer/in/x, which was not recorded"


BAD: dict[str, tuple[str, Any, str]] = {
    "unknown": ("layer.cell/grad/in/w", np.zeros(3), "modules/layer.cell/grad/in/w: the model has"),
    "no way": (
        "layer.cell/grad/v",
        np.zeros(3),
        "modules/layer.cell/grad/v: the model has no such",
    ),
    "shape": ("layer.cell/grad/in/v", np.zeros((2, 2, 8, 4)), "modules/layer.cell/grad/in/v: "),
    "whole": (
        "layer.cell/grad/in/v",
        np.zeros((2, 2, 9, 4), int),
        "modules/layer.cell/grad/in/v: ",
    ),
}


@pytest.mark.clause("MODULES-1", "MODULES-20")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_cotangent_is_refused(name: str) -> None:
    key, array, words = BAD[name]
    header = header_of("memory")
    with pytest.raises(CaseError, match=f"recording: {words}"):
        make_recording(header, of_ours(header) | {f"modules/{key}": array})


@pytest.mark.clause("MODULES-1", "MODULES-20")
def test_ids_have_no_gradient_and_detached_is_a_word_of_json() -> None:
    header = HEADERS["mag"]
    ids = tokens(header)["modules/embed/in/ids"]
    with pytest.raises(CaseError, match="modules/embed/grad/in/ids: whole numbers have no grad"):
        make_recording(header, of_ours(header) | {"modules/embed/grad/in/ids": ids})
    with pytest.raises(CaseError, match="detached: true or false is needed, found 'yes'"):
        make_recording({**header, "detached": "yes"}, of_ours(header))


@pytest.mark.clause("MODULES-16", "MODULES-20")
def test_the_command_replays_gradients(cli: Any, tmp_path: Any) -> None:
    header = HEADERS["feed_forward"]
    tensors = with_gradients(header)
    file = tmp_path / "mine.safetensors"
    text = {"atlas_ref": json.dumps(header)}
    safetensors.numpy.save_file(tensors, file, text)
    ran = cli("model", "replay", file)
    assert ran.code == 0
    assert "PASS" in ran.out
    assert "modules/layer/grad/in/x" in ran.out
    wrong = {**tensors, "modules/layer/grad/in/x": -tensors["modules/layer/grad/in/x"]}
    safetensors.numpy.save_file(wrong, file, text)
    ran = cli("model", "replay", file)
    assert ran.code == 1
    assert "backward between layer and layer.0: WRONG" in ran.out
    assert "multiplies what comes back by -1" in ran.out
