"""Commands on cases of layers: those that take them, and those that refuse them in one line."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import atlas_ref
from tests.support.casefiles import PEERS
from tests.support.layer_cases import FEW, ONE, PARTS, file_of

FILE = file_of("attention_w5_p3")


@pytest.mark.clause("LAYER-2", "LAYER-12", "CASE-26")
def test_a_folder_of_recorded_layers_is_checked(cli, tmp_path):
    for file in FEW:
        shutil.copy(file, tmp_path)
    count = sum(len(atlas_ref.load(file).recorded) for file in FEW)
    ran = cli("check", tmp_path)
    assert ran.code == 0
    assert ran.out.rstrip().endswith(f"{count} PASS")
    ran = cli("check", tmp_path, "--json")
    verdicts = [row["verdict"] for row in ran.json["results"]]
    assert (ran.json["exit"], verdicts.count("PASS"), len(verdicts)) == (0, count, count)
    assert count > 200


@pytest.mark.clause("LAYER-12", "CASE-26", "CASE-27")
def test_a_wrong_result_in_a_file_fails_with_its_tensor_and_place(cli, tmp_path):
    case = atlas_ref.load(file_of("feed_forward_mult4"))
    tensors = {**case.inputs, **case.recorded}
    y = tensors["out/y"].copy()
    y[1, 3, 7] += 1e-4
    atlas_ref.save(tmp_path / "bad.safetensors", case.header, {**tensors, "out/y": y})
    ran = cli("check", tmp_path / "bad.safetensors", "-v")
    assert ran.code == 1
    assert "bad.safetensors: WRONG (layer feed_forward)" in ran.out + ran.err
    assert "token 3, out/y, index (1, 3, 7)" in ran.out + ran.err
    (failure,) = cli("check", tmp_path / "bad.safetensors", "--json").json["failures"]
    assert failure["first_wrong"] == {"token": 3, "op": "out/y", "index": [1, 3, 7]}
    assert (failure["clause"], failure["nearest_convention"]) == ("FEED-1", "")


@pytest.mark.clause("LAYER-12")
@pytest.mark.parametrize(
    "name",
    [*ONE.values(), "attention_cache_w32_p2", "memory_omega4_chained", "block_mag"],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_eval_writes_passes_as_an_answer(name, dtype, cli, tmp_path):
    out = tmp_path / "out.safetensors"
    assert cli("eval", file_of(name), "-o", out, "--grad", "--dtype", dtype).code == 0
    ran = cli("check", file_of(name), "--against", out, "--dtype", dtype, "--json")
    assert ran.json["exit"] == 0
    recorded = set(atlas_ref.load(file_of(name)).recorded)
    assert recorded <= {row["tensor"] for row in ran.json["results"]}
    other = file_of("rms_norm" if name != "rms_norm" else "feed_forward_mult1")
    refused = cli("check", other, "--against", out)
    assert refused.code == 2
    assert "results of another case" in refused.err


REFUSALS = {
    "identify": ["identify", FILE, "--out", FILE],
    "replay": ["replay", FILE, "--trace", FILE],
    "certify": ["certify", FILE],
    "a trace": ["eval", FILE, "-o", "{out}", "--trace"],
    "another convention": ["eval", FILE, "-o", "{out}", "--convention", "titans-paper"],
}


@pytest.mark.clause("LAYER-12")
@pytest.mark.parametrize("what", REFUSALS)
def test_a_tool_that_looks_into_one_memory_refuses_a_layer_and_names_the_commands(
    what, cli, tmp_path
):
    if what == "certify":
        pytest.importorskip("flint", reason="certify needs python-flint")
    ran = cli(*(tmp_path / "out" if word == "{out}" else word for word in REFUSALS[what]))
    assert ran.code == 2
    assert ran.err == (
        f"atlas-ref: {FILE}: rule layer: {what} looks into one memory; "
        "atlas-ref check, eval and tolerance take a layer, atlas-ref model replay and identify "
        "a recording of its modules\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.clause("LAYER-12")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["levels", FILE, "-o", "{out}"], "rule layer sliding_window_attention: has no levels"),
        (["new", "layer", "-o", "{out}"], "rule layer: its cases are recorded, none is drawn"),
        (["sweep", "layer", "--impl", "a:b"], "sweep: rule 'layer' is none of omega, "),
        (["eval", FILE, "-o", "{out}", "--form", "scan"], "form: the rule layer has no sequence"),
        (["check", FILE, "--form", "scan"], "form: the rule layer has no sequence"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_other_commands_refuse_a_layer_in_one_line(words, message, cli, tmp_path):
    ran = cli(*(tmp_path / "out" if word == "{out}" else word for word in words))
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert message in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.clause("LAYER-12")
def test_a_layer_is_described_with_its_parameters_and_without_a_convention(cli):
    shown = cli("show", FILE, "--json").json
    assert shown["header"]["parameters"]["window_size"] == 5
    assert (shown["convention"], shown["void"]) == ({}, {})
    assert shown["tensors"]["in/param/to_qkv.weight"]["shape"] == [24, 9]
    assert "layer sliding_window_attention" in cli("show", FILE).out


@pytest.mark.slow
@pytest.mark.clause("LAYER-12", "CASE-25", "LAYER-9")
def test_a_function_answers_for_the_layers_that_it_has(cli, monkeypatch):
    support = Path(__file__).parents[1] / "support"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(support.parents[1]), str(support)]))
    ran = cli("check", *PARTS, "--impl", "layer_implementations:norms", "--json")
    rows = {(row["case"], row["verdict"]) for row in ran.json["results"]}
    assert ran.json["exit"] == 0
    assert len([each for each in rows if each[1] == "PASS"]) == 2
    assert len([each for each in rows if each[1] == "NOT SUPPORTED"]) == 13
    file = file_of("rms_norm_tiny")
    for dtype in ("float64", "float32"):
        ran = cli("check", file, "--impl", "layer_implementations:norms", "--dtype", dtype)
        assert ran.code == 0
    wrong = cli("check", file, "--impl", "layer_implementations:another_eps", "--json")
    assert [row["verdict"] for row in wrong.json["results"]] == ["WRONG"]


@pytest.mark.clause("LAYER-12", "CASE-24")
def test_a_program_answers_for_a_layer(cli, tmp_path):
    program = tmp_path / "mine.py"
    program.write_text(
        "import sys, json, numpy as np\n"
        "from safetensors import safe_open\nfrom safetensors.numpy import save_file\n"
        "with safe_open(sys.argv[1], 'np') as f:\n"
        "    header = json.loads(f.metadata()['atlas_ref'])\n"
        "    x, w = f.get_tensor('in/x'), f.get_tensor('in/param/gamma')\n"
        "assert header['layer'] == 'multihead_rms_norm'\n"
        "size = np.sqrt(np.mean(x * x, -1, keepdims=True))\n"
        "y = x / np.maximum(size, 1e-8) * w\n"
        "save_file({'out/y': y}, sys.argv[2], metadata={'atlas_ref': json.dumps(header)})\n"
    )
    command = f"{sys.executable} {program} {{case}} {{out}}"
    files = [file_of("multihead_rms_norm"), file_of("multihead_rms_norm_clamped")]
    ran = cli("check", *files, "--exec", command, "--json")
    assert (ran.json["exit"], len(ran.json["results"])) == (0, 2)


@pytest.mark.clause("LAYER-12")
def test_a_layer_beside_a_memory_is_checked_with_it(cli):
    ran = cli("check", PEERS / "fla_delta_11.safetensors", FILE, "--only", "y", "--json")
    assert [row["verdict"] for row in ran.json["results"]] == ["PASS", "PASS"]
    ran = cli("check", FILE, "--only", "y_prefix,grad/param/persist_mem", "--json")
    assert len(ran.json["results"]) == 2
    skipped = cli("check", FILE, "--without", "gradient", "--json")
    assert [row["verdict"] for row in skipped.json["results"]] == ["NOT SUPPORTED"]


@pytest.mark.clause("LAYER-12", "CASE-2")
def test_a_layer_that_no_machine_holds_is_refused_before_any_work(cli, tmp_path):
    case = atlas_ref.load(FILE)
    tensors = {**case.inputs, "in/x": np.zeros((1, 12000, 9))}
    tensors.pop("in/y_bar")
    header = case.header.plain()
    header["parameters"].pop("calls")
    atlas_ref.save(tmp_path / "long.safetensors", header, tensors)
    ran = cli("eval", tmp_path / "long.safetensors", "-o", tmp_path / "out")
    assert ran.code == 2
    assert "layer sliding_window_attention needs an array of 288072000 numbers" in ran.err


@pytest.mark.clause("LAYER-12", "CASE-2")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lm_mag", {"max_length": 10**9}),
        ("lm_mac", {"num_longterm_mem_tokens": 10**9}),
        ("block_mac", {"num_longterm_mem_tokens": 10**9}),
    ],
)
def test_a_model_that_no_machine_finishes_is_refused_before_any_work(name, change, cli, tmp_path):
    case = atlas_ref.load(file_of(name))
    header = case.header.plain()
    header["parameters"] |= change
    inputs = {key: value for key, value in case.inputs.items() if key != "in/uniform"}
    atlas_ref.save(tmp_path / "long.safetensors", header, inputs)
    ran = cli("eval", tmp_path / "long.safetensors", "-o", tmp_path / "out")
    assert ran.code == 2
    assert "needs an array of " in ran.err


@pytest.mark.clause("LAYER-8")
def test_numbers_to_draw_with_have_no_gradient(cli, tmp_path):
    out = tmp_path / "out.safetensors"
    assert cli("eval", file_of("lm_mag"), "-o", out, "--grad").code == 0
    names = set(safetensors.numpy.load_file(out))
    assert "grad/param/embed.weight" in names
    assert "grad/uniform" not in names
