"""Replay of modules: graphs against the models and against public code, and what verdicts say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import atlas_ref
from atlas_ref.models import language_model
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.modules import recipe as recipes
from atlas_ref.oracle.modules import tolerance
from atlas_ref.oracle.modules.graph import ancestry, evaluate
from atlas_ref.oracle.modules.inside import case_of
from atlas_ref.oracle.modules.judge import first_wrong, judge
from atlas_ref.oracle.modules.recording import load_recording, make_recording
from atlas_ref.oracle.modules.report import exit_code, plain, report
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.replay.trace import trace
from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.layers import recorded
from tests.support.recorded_modules import drawn, header_of, of_ours, tokens

PEERS = ("lm_mag", "lm_mal", "lm_lmm", "lm_mag_causal", "lm_lmm_causal", "lm_mag_float32")


def wrong(verdicts: Any) -> list[str]:
    return [each.key for each in verdicts if each.verdict != "PASS"]


#: Of recordings, whose persistent rows are keys and values of each head.
TITANS = {"preset": "titans", "persistent_kind": "key_value"}


def parts_alone(tensors: Any) -> Any:
    """A recording without the results of modules of modules, whose parts are then looked at."""
    ends = ("layers.0/out/y", "memory/out/y", "attention/out/y", "layer/out/y", "ff/out/y")
    return {key: each for key, each in tensors.items() if not key.endswith(ends)}


@pytest.mark.clause("MODULES-2", "MODULES-4", "MODULES-7")
@pytest.mark.parametrize("convention", ["causal", "atlas-rnn", TITANS], ids=str)
@pytest.mark.parametrize("block", ["mag", "mal", "lmm", "mac"])
def test_a_graph_computes_what_the_model_computes_over_calls(block: str, convention: Any) -> None:
    header = header_of(
        convention=convention,
        settings={"block_type": block, "segment_len": 4},
        calls=[5, 1, 3],
        rule=convention if convention == "atlas-rnn" else recipes.RULE,
    )
    recording = make_recording(header, drawn(header) | tokens(header))
    config, ids = recipes.config_of(recording.recipe), tokens(header)["modules/embed/in/ids"]
    state, logits = language_model.start(config, 2), []
    for first, last in ((0, 5), (5, 6), (6, 9)):
        state, y = language_model.apply(config, recording.params, state, ids[:, first:last])
        logits.append(y)
    got = evaluate(recording.graph(), "to_logits/out/y", {"embed/in/ids": ids})
    assert_close("logits", got, np.concatenate(logits, axis=1), ANALYTIC)
    cut = make_recording({**header, "calls": []}, drawn(header) | tokens(header)).graph()
    if convention == "causal" and block != "mac":
        assert_close("one call", evaluate(cut, "to_logits/out/y", recording.values), got, ANALYTIC)
    if convention == "atlas-rnn":
        other = evaluate(cut, "to_logits/out/y", recording.values)
        assert_differs("one call", other, got, 1e-3)


@pytest.mark.sample(2)
@pytest.mark.clause("MODULES-3", "MODULES-6", "MODULES-8")
@pytest.mark.parametrize("name", PEERS)
def test_logits_and_loss_recorded_of_public_code_are_right_and_wrong_under_other_readings(
    name: str,
) -> None:
    file = recorded(f"atlas_rnn_{name}")
    settings = {k: v for k, v in file.settings.items() if k in recipes.Settings.model_fields}
    causal = name.endswith("causal")
    changes = {"conv_padding": "causal"} if causal else {}
    header = {
        "schema": 1,
        "recording": "modules",
        "settings": settings,
        "convention": {"preset": "atlas-rnn", **changes},
        "rule": "atlas-rnn",
    }
    params = {f"in/param/{key}": each for key, each in file.named("in/param/").items()}
    ids = file.tensors["in/ids"]
    logits = {"modules/embed/in/ids": ids, "modules/to_logits/out/y": file.tensors["out/logits"]}
    loss = {  # the public code runs the model on all tokens but the last
        "modules/embed/in/ids": ids[:, :-1],
        "modules/loss/in/ids": ids,
        "modules/loss/out/y": np.asarray(file.tensors["out/loss"]).reshape(()),
    }
    for values, key in ((logits, "to_logits/out/y"), (loss, "loss/out/y")):
        right = judge(make_recording(header, params | values))
        assert [(each.key, each.verdict) for each in right] == [(key, "PASS")]
        other = make_recording({**header, "rule": recipes.RULE}, params | values)
        assert wrong(judge(other, nearest=False)) == [key]


#: Changed axes, the first wrong value, and words of the nearest reading.
CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "norm_eps": ({"norm_eps": 1e-5}, "attention.norm/out/y", "norm_eps 1e-05"),
    "machine": ({"norm_eps": "machine"}, "attention.norm/out/y", "norm_eps 2.22045e-16"),
    "pairs": ({"rotary_pairs": "halves"}, "attention.rotary/out/q", "rotary_pairs halves"),
    "base": ({"rotary_base": 100.0}, "attention.rotary/out/q", "rotary_base 100;"),
    "frequencies": (
        {"rotary_frequencies": "float32"},
        "attention.rotary/out/q",
        "rotary_frequencies float32",
    ),
    "position": (
        {"rotary_position": "restart"},
        "attention.rotary/out/q",
        "rotary_position restart",
    ),
    "self": ({"window_counts_self": False}, "attention.attend/out/y", "window_counts_self false"),
    "last keys": (
        {"attention_window": "last_keys_of_call", "persistent_visible": "right_aligned"},
        "attention.attend/out/y",
        "attention_window last_keys_of_call, persistent_visible right_aligned",
    ),
    "silu": ({"conv_activation": "silu"}, "memory.q_conv/out/y", "conv_activation silu"),
    "per call": (
        {"conv_state": "zero_per_call"},
        "memory.q_conv/out/y",
        "conv_state zero_per_call",
    ),
    "l2": ({"head_norm": "l2"}, "memory.q_norm/out/y", "head_norm l2"),
    "guard": (
        {"head_norm_eps": 1e-3, "head_norm_guard": "add"},
        "memory.q_norm/out/y",
        "head_norm_guard add, head_norm_eps 0.001",
    ),
    "softplus": ({"step_size": "softplus"}, "memory.to_lr/out/y", "step_size softplus"),
    "sum": ({"mag": "sum"}, "mix/out/y", "mag sum"),
    "first": ({"ff_gate_half": "first"}, "ff.2/out/y", "ff_gate_half first"),
    "gelu": ({"ff_activation": "gelu"}, "ff.2/out/y", "ff_activation gelu"),
}


@pytest.mark.sample(2)
@pytest.mark.clause("MODULES-5", "MODULES-6", "MODULES-12")
@pytest.mark.parametrize("name", CHANGES)
def test_an_axis_read_otherwise_is_named_with_the_one_module_that_has_it(name: str) -> None:
    changes, place, words = CHANGES[name]
    truth = header_of(settings={"depth": 1}, calls=[7, 2], convention={"mag": "gate_mix"})
    other = {**truth, "convention": {"mag": "gate_mix", **changes}}
    recording = make_recording(truth, of_ours(other, truth=truth))
    first = first_wrong(judge(recording))
    assert first is not None
    assert (first.key, first.verdict) == (f"layers.0.{place}", "WRONG")
    assert f"computes {words}" in first.nearest
    module = first.module
    assert {key.partition("/")[0] for key in wrong(judge(recording, nearest=False))} <= {
        module,
        *(module.replace("q_", f"{each}_") for each in "kv"),
        *(f"layers.0.{each}" for each in ("memory.pre_norm", "ff.0") if "norm_eps" in changes),
    }


@pytest.mark.sample(1)
@pytest.mark.clause("MODULES-7", "MODULES-12", "MODULES-14")
@pytest.mark.parametrize("axis", ["read", "gate"])
def test_a_wrong_cell_is_looked_into_where_its_steps_were_recorded(axis: str) -> None:
    value = {"read": "after", "gate": "forget"}[axis]
    truth = header_of("memory")
    other = {**truth, "rule": {**recipes.RULE, axis: value}}
    tensors = of_ours(other, truth=truth)
    first = first_wrong(judge(make_recording(truth, tensors)))
    assert first is not None
    assert first.key == "layer.cell/out/y"
    assert f"computes {axis} of the rule {value}" in first.nearest
    assert "record modules/layer.cell/trace/phi_k" in first.inside
    steps = trace(case_of(make_recording(other, tensors), "layer.cell"))
    tensors |= {f"modules/layer.cell/{key}": each for key, each in steps.items()}
    first = first_wrong(judge(make_recording(truth, tensors)))
    assert first is not None
    place = {"read": "token 0, y", "gate": "token 1, M"}[axis]
    assert first.inside.startswith(f"WRONG inside the rule: {place}")
    assert axis in first.inside
    calls = make_recording(
        {**truth, "calls": [5, 4], "rule": {**recipes.RULE, "reference": "call_start"}}, tensors
    )
    first = first_wrong(judge(calls))
    assert first is not None
    assert "record one call" in first.inside


@pytest.mark.clause("MODULES-7")
def test_a_state_before_the_first_token_is_taken_as_it_is() -> None:
    header = header_of("memory")
    tensors = of_ours(header)
    start, tensors = np.full((2, 2, 4, 4), 0.25), parts_alone(tensors)
    recording = make_recording(header, tensors | {"modules/layer.cell/in/state/M": start})
    assert wrong(judge(recording, nearest=False))[:2] == [
        "layer.cell/out/y",
        "layer.cell/out/state/M",
    ]
    for each in ("y", "state/M", "state/S"):
        known = recording.values
        tensors[f"modules/layer.cell/out/{each}"] = evaluate(
            recording.graph(), f"layer.cell/out/{each}", known
        )
    recording = make_recording(header, tensors | {"modules/layer.cell/in/state/M": start})
    assert "layer.cell/out/y" not in wrong(judge(recording, nearest=False))


@pytest.mark.clause("MODULES-5", "MODULES-10", "MODULES-11")
def test_a_value_that_others_passed_on_wrongly_is_between_them_and_named_with_its_place() -> None:
    header = header_of(settings={"depth": 1}, calls=[5, 4])
    tensors = parts_alone(of_ours(header))
    x = tensors["modules/layers.0.attention.to_out/in/x"].copy()
    x[1, 6:, 3] += 0.5
    tensors["modules/layers.0.attention.to_out/in/x"] = x
    verdicts = judge(make_recording(header, tensors))
    first = first_wrong(verdicts)
    assert first is not None
    assert first.fault == "between layers.0.attention.attend and layers.0.attention.to_out"
    assert first.place == "batch row 1, token 6 (call 1, its token 1), index 3"
    assert (first.entry, first.nearest) == ((1, 6, 3), "")
    assert first.got is not None
    assert first.expected is not None
    assert abs(first.got - first.expected - 0.5) < 1e-12
    text = report(verdicts)
    lines = text.splitlines()
    assert lines[0] == f"{first.fault}: WRONG"
    assert lines[1].split() == ["tensor", "modules/layers.0.attention.to_out/in/x"]
    before = next(line for line in lines if line.startswith("  found before"))
    assert before.startswith("  found before  right: embed, embed_norm, layers.0.attention.norm")
    assert not before.endswith("to_out")
    assert plain(verdicts)["first_wrong"]["fault"] == first.fault
    assert exit_code(verdicts) == 1
    json.dumps(plain(verdicts))


@pytest.mark.clause("MODULES-5", "MODULES-6")
def test_modules_that_were_not_recorded_are_evaluated_together_and_named() -> None:
    header = header_of(settings={"depth": 1})
    tensors = of_ours({**header, "convention": {"rotary_base": 100.0}}, truth=header)
    few = {key: each for key, each in tensors.items() if ".rotary" not in key}
    first = first_wrong(judge(make_recording(header, few)))
    assert first is not None
    assert first.fault == (
        "between layers.0.attention.to_qkv and layers.0.attention.attend "
        "(layers.0.attention.rotary not recorded)"
    )
    assert first.nearest == "computes rotary_base 100; the recording says 10000"
    whole = {key: each for key, each in tensors.items() if "modules/layers.0." not in key}
    whole["modules/layers.0.attention/in/x"] = tensors["modules/layers.0.attention/in/x"]
    whole["modules/layers.0.attention/out/y"] = tensors["modules/layers.0.attention/out/y"]
    first = first_wrong(judge(make_recording(header, whole)))
    assert first is not None
    assert (first.fault, first.key) == ("layers.0.attention", "layers.0.attention/out/y")
    inner = set(make_recording(header, of_ours(header)).values)
    passed = [each.key for each in judge(make_recording(header, of_ours(header)))]
    assert len(passed) < len(inner)
    assert not any(".memory." in key for key in passed)


@pytest.mark.clause("MODULES-5", "MODULES-11")
def test_what_nothing_stands_before_is_undecidable_if_returned_and_not_judged_if_received() -> None:
    header = header_of(settings={"depth": 1})
    tensors = of_ours(header)
    kept = {key: each for key, each in tensors.items() if key.startswith("in/param")}
    alone = kept | {"modules/norm/out/y": tensors["modules/norm/out/y"]}
    only = judge(make_recording(header, alone))[0]
    assert (only.verdict, only.why) == (
        "UNDECIDABLE",
        "nothing before it was recorded: modules/embed/in/ids",
    )
    received = kept | {"modules/norm/in/x": tensors["modules/norm/in/x"]}
    verdicts = judge(make_recording(header, received))
    assert (verdicts, exit_code(verdicts)) == ([], 3)
    assert report(verdicts).startswith("nothing could be judged")


@pytest.mark.clause("MODULES-5")
def test_a_number_that_is_not_finite_is_wrong_where_it_arises_and_nowhere_after() -> None:
    header = header_of(settings={"depth": 1})
    tensors = parts_alone(of_ours(header))
    for key in ("mix/out/y", "ff/in/x", "ff.0/in/x", "ff.0/out/y"):
        bad = tensors[f"modules/layers.0.{key}"].copy()
        bad[1, 4, 2] = np.nan
        tensors[f"modules/layers.0.{key}"] = bad
    verdicts = judge(make_recording(header, tensors))
    first = first_wrong(verdicts)
    assert first is not None
    assert (first.key, first.entry, first.nearest) == ("layers.0.mix/out/y", (1, 4, 2), "")
    others = {each.verdict for each in verdicts if each.verdict != "PASS" and each is not first}
    assert others == {"UNDECIDABLE"}
    assert "is not finite: modules/layers.0.mix/out/y" in report(verdicts)


@pytest.mark.clause("MODULES-9")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_tolerance_is_that_of_rounding_and_no_more(dtype: str) -> None:
    header = header_of(settings={"depth": 1}, convention={"norm_eps": "machine"})
    tensors = of_ours(header, dtype=dtype)
    kind = FORMATS[dtype][0]
    tensors = {k: v if v.dtype.kind == "i" else v.astype(kind) for k, v in tensors.items()}
    recording = make_recording(header, tensors)
    assert recording.dtype == dtype
    assert wrong(judge(recording, nearest=False)) == []
    eps = 2.0 ** -FORMATS[dtype][1]
    for key in ("layers.0.memory.to_q/out/y", "layers.0.attention.attend/out/y"):
        moved = tensors[f"modules/{key}"].copy()
        moved[0, 1] += (40 * eps * np.abs(moved).max()).astype(kind)
        # an outer module is right all the same, so that nobody would look inside
        outer = [
            name for name in tensors if name.endswith((".0/out/y", "memory/out/y", "ion/out/y"))
        ]
        others = {k: v for k, v in tensors.items() if k not in outer}
        found = judge(make_recording(header, others | {f"modules/{key}": moved}), nearest=False)
        assert wrong(found)[0] == key


@pytest.mark.clause("MODULES-13")
def test_the_parameters_of_another_module_are_named() -> None:
    header = header_of("memory")
    tensors = of_ours(header)
    recording = make_recording(header, tensors)
    swapped = dict(tensors)
    for field in ("weight", "bias"):
        swapped[f"in/param/to_lr.0.{field}"] = tensors[f"in/param/to_decay.0.{field}"]
    other = make_recording(header, swapped).graph()
    x = {"layer.to_lr/in/x": recording.values["layer.to_lr/in/x"]}
    tensors["modules/layer.to_lr/out/y"] = evaluate(other, "layer.to_lr/out/y", x)
    del tensors["modules/layer/out/y"]
    first = first_wrong(judge(make_recording(header, tensors)))
    assert first is not None
    assert first.nearest == "computes with the parameters of to_decay.0"


@pytest.mark.clause("MODULES-1", "MODULES-2", "MODULES-3", "MODULES-4")
def test_bad_recordings_are_refused_by_name(tmp_path: Path) -> None:
    header = header_of("attention", calls=[5, 4])
    tensors = of_ours(header)

    def refused(changes: Any = (), header: Any = header, **other: Any) -> str:
        with pytest.raises(CaseError) as error:
            make_recording(header, {**tensors, **dict(changes), **other}, name="mine")
        return str(error.value)

    x = tensors["modules/layer/in/x"]
    assert "colour: unknown key" in refused(header={**header, "colour": 1})
    assert 'recording "modules" are needed' in refused(header={**header, "recording": "x"})
    assert "layer: 'atention', expected one of" in refused(header={**header, "layer": "atention"})
    assert "calls: [5, 0]" in refused(header={**header, "calls": [5, 0]})
    assert "calls: 8 tokens together, found 9" in refused(header={**header, "calls": [8]})
    assert "axis 'eps' does not exist" in refused(header={**header, "convention": {"eps": 1}})
    rows = {**header, "layer": "attention", "convention": "titans"}
    assert "convention: persistent_kind prepended, but num_persist_mem_tokens is 2, and" in refused(
        header={**rows, "settings": {**header["settings"], "num_persist_mem_tokens": 2}}
    )
    assert "settings: dim" in refused(header={**header, "settings": {"dim": 0}})
    assert "axis 'red' does not exist" in refused(header={**header, "rule": {"red": "after"}})
    assert "mine: out/y: unknown name" in refused({"out/y": x})
    assert "the model has no such value" in refused({"modules/layer.to_kqv/out/y": x})
    assert "shape (2, 9, 5)" in refused({"modules/layer/in/x": x[..., :5]})
    assert "expected floating numbers" in refused({"modules/layer/in/x": np.zeros((2, 9, 6), int)})
    weight = tensors["in/param/to_out.weight"]
    assert "in/param/to_out.weight: shape (5, 2, 4)" in refused(
        {"in/param/to_out.weight": weight[:5]}
    )
    own = tensors.pop("in/param/norm.weight")
    assert "in/param/norm.weight: missing, shape (6,) is needed" in refused()
    tensors["in/param/norm.weight"] = own
    none = {key: each for key, each in tensors.items() if key.startswith("in/param")}
    with pytest.raises(CaseError, match="nothing to judge"):
        make_recording(header, none)
    for empty in (x[:, :0], x[:0]):
        with pytest.raises(CaseError, match="modules/layer/in/x: no entry, at least one token"):
            make_recording(header, {**none, "modules/layer/in/x": empty})
    file = tmp_path / "mine.safetensors"
    safetensors.numpy.save_file(tensors, file, metadata={"atlas_ref": json.dumps(header)})
    assert wrong(judge(load_recording(file))) == []
    safetensors.numpy.save_file(tensors, file, metadata={"atlas_ref": "[]"})
    with pytest.raises(CaseError, match="no JSON object"):
        load_recording(file)
    assert issubclass(CaseError, atlas_ref.CaseError)


@pytest.mark.clause("MODULES-2")
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ([], r"settings: an object is needed, found \[\]"),
        ({"depth": 10**9}, "settings: depth: must be at most 1000, found 1000000000"),
        ({"omega_window": 10**9}, "settings: omega_window: must be at most 1000000, found 10"),
        ({"omega_window": 999_999, "heads": 80}, "a window of 999999 needs an array of 319"),
    ],
)
def test_sizes_that_no_tensor_bounds_are_refused_before_any_work(settings: Any, says: str) -> None:
    header = {"schema": 1, "recording": "modules", "layer": "memory"}
    sizes = {"dim": 4, "dim_head": 4, "heads": 1, "qkv_conv_kernel": None}
    tensors: Any = {"modules/layer/in/x": np.zeros((1, 2, 4))}
    if settings and "heads" in settings:
        whole = {**header, "settings": sizes | {"heads": 80}}
        tensors = drawn(whole) | tensors
    own = sizes | settings if isinstance(settings, dict) else settings
    with pytest.raises(CaseError, match=says):
        make_recording({**header, "settings": own}, tensors)


def test_ancestry_is_what_a_value_is_computed_from() -> None:
    header = header_of("attention")
    graph = make_recording(header, drawn(header) | tokens(header)).graph()
    before = ancestry(graph, "layer.attend/in/q", {"layer.to_qkv/out/q", "layer/in/x"})
    assert before.known == ("layer.to_qkv/out/q",)
    assert before.between == ("layer.rotary/in/q", "layer.rotary/out/q")
    assert before.lacking == ()


@pytest.mark.clause("MODULES-9")
def test_a_long_sum_may_be_taken_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    header = header_of("feed_forward", settings={"ff_mult": 300.0})
    tensors = of_ours(header)
    x, W = tensors["modules/layer.3/in/x"], tensors["in/param/3.weight"]
    total = np.zeros((*x.shape[:-1], len(W)))
    for i in range(W.shape[1]):
        total = total + x[..., i, None] * W[:, i]
    tensors["modules/layer.3/out/y"] = total + tensors["in/param/3.bias"]
    del tensors["modules/layer/out/y"]
    assert wrong(judge(make_recording(header, tensors), nearest=False)) == []
    monkeypatch.setattr(tolerance, "PARTS", (1,))
    assert wrong(judge(make_recording(header, tensors), nearest=False)) == ["layer.3/out/y"]


@pytest.mark.clause("MODULES-5", "MODULES-8")
def test_the_loss_of_a_single_token_is_undecidable_with_its_reason() -> None:
    header = header_of(settings={"depth": 1})
    tensors = drawn(header) | {
        "modules/embed/in/ids": np.array([[1], [2]]),
        "modules/loss/out/y": np.array(1.0),
        "modules/loss/grad/out/y": np.array(1.0),
        "modules/loss/grad/in/logits": np.zeros((2, 1, 11)),
    }
    verdicts = judge(make_recording(header, tensors))
    assert [each.verdict for each in verdicts] == ["UNDECIDABLE", "UNDECIDABLE"]
    words = "targets: a single token has no next one, so there is no loss"
    assert all(each.why.endswith(words) for each in verdicts)
