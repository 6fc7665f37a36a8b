"""The commands model import, model export and model show."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.models import checkpoint, language_model
from atlas_ref.storage import files
from tests.support.layers import recorded
from tests.support.models import MODELS, arguments, public_file

NAME = "atlas_rnn_lm_mag"

#: Files of the folder in which every command runs: a state_dict without settings, its settings
#: beside it, a model of ours, and where results go.
PUBLIC, SETTINGS, MODEL = "public.safetensors", "settings.json", "model.safetensors"
OUT, BACK = "out.safetensors", "back.safetensors"
IMPORT = ("import", PUBLIC, "--from", "atlas-rnn", "-o", OUT)
STATED = (*IMPORT, "--config", SETTINGS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = recorded(NAME)
    Path(SETTINGS).write_text(json.dumps(arguments(record)))
    public_file(Path(PUBLIC), record.named("in/param/"))
    config = MODELS["memory levels"]
    checkpoint.save(MODEL, config, language_model.init(config, dtype=np.float32))


@pytest.mark.clause("MODEL-13")
def test_an_import_tells_where_its_settings_are_from(cli: Any) -> None:
    ran = cli("model", *IMPORT)
    assert (ran.code, ran.out) == (0, "")
    lines = ran.err.splitlines()
    assert lines[0].startswith("read from the tensors: vocab 32, dim 16, depth 2, heads 2, ")
    assert lines[1:] == [
        "defaults: conv centred, omega_window 1, poly_mode off, poly_degree 1, scan_chunk_len "
        "None, window_size 64",
        f"wrote {OUT}: 5460 parameters",
    ]
    assert "stated: conv centred, omega_window 1, poly_mode off, " in cli("model", *STATED).err
    value = cli("model", *STATED, "--json").json
    assert value["settings"]["window_size"] == {"value": 8, "by": "given"}
    assert value["settings"]["vocab"] == {"value": 32, "by": "shapes"}
    assert value["settings"]["scan_chunk_len"] == {"value": None, "by": "default"}
    assert (value["exit"], value["parameters"], value["out"]) == (0, 5460, OUT)
    config, params = checkpoint.load(OUT)
    record = recorded(NAME)
    ids = record.tensors["in/ids"]
    logits = language_model.apply(config, params, language_model.start(config, len(ids)), ids)[1]
    assert np.abs(logits - record.tensors["out/logits"]).max() < 1e-10


@pytest.mark.clause("MODEL-13")
def test_an_export_is_what_was_imported(cli: Any) -> None:
    cli("model", *STATED)
    words = ("model", "export", OUT, "--to", "atlas-rnn", "-o", BACK)
    ran = cli(*words)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines()[0].startswith("arguments of its constructor: dim 16, dim_head 4, ")
    assert ran.err.endswith(f"wrote {BACK}: 5460 parameters\n")
    value = cli(*words, "--json").json
    assert (value["exit"], value["arguments"]["window_size"]) == (0, 8)
    metadata, tensors = files.read(BACK)
    assert json.loads(metadata["config"]) == value["arguments"]
    for name, array in recorded(NAME).named("in/param/").items():
        assert tensors[name].tobytes() == array.tobytes()


@pytest.mark.clause("MODEL-13")
def test_show_tells_sizes_blocks_rules_and_what_is_no_preset(cli: Any) -> None:
    ran = cli("model", "show", MODEL)
    assert (ran.code, ran.err) == (0, "")
    first = f"{MODEL}  language_model: 7 ids, d_model 6, 2 blocks, "
    assert ran.out.startswith(first)
    assert "float32, head not tied, causal" in ran.out.splitlines()[0]
    for word in ("0 to 1", "lmm", "delta", "titans_lmm", "omega", "spec, but rate momentum"):
        assert word in ran.out
    value = cli("model", "show", MODEL, "--json").json
    params = checkpoint.load(MODEL)[1]
    assert value["parameters"] == 2 * (value["blocks"][0]["parameters"]) + 2 * 42 + 4 * 6
    assert value["dtype"] == params.embedding.dtype.name == "float32"
    levels = value["blocks"][1]["levels"]
    assert [(each["rule"], each["period"]) for each in levels] == [
        ("delta", 1),
        ("titans_lmm", 2),
        ("omega", 4),
    ]
    assert (levels[2]["preset"], levels[2]["changes"]) == (
        "spec",
        {"newton_schulz": "none", "rate": "momentum", "reference": "chunk_start"},
    )
    assert (value["blocks"][0]["preset"], value["blocks"][0]["changes"]) == ("causal", {})
    assert value["config"] == checkpoint.described(checkpoint.load(MODEL)[0])


@pytest.mark.clause("MODEL-13")
@pytest.mark.parametrize(
    ("name", "preset", "changes"),
    [
        ("mag titans", "titans", {}),
        ("mag sum", "causal", {"mag": "sum"}),
        ("mal short", "causal", {"mal_order": "memory_attention_ff"}),
        ("rms norms", "causal", {"model_norm": "rms", "sampling": "temperature_first"}),
        ("memory titans exact", "causal", {"step_size": "softplus"}),
        ("memory clamped", "causal", {"state_clamp": 0.05}),
        ("memory public", "atlas-rnn", {"norm_eps": 1e-6}),
    ],
)
def test_readings_are_named_by_the_nearest_preset(
    name: str, preset: str, changes: Any, cli: Any
) -> None:
    checkpoint.save(MODEL, MODELS[name], language_model.init(MODELS[name]))
    block = cli("model", "show", MODEL, "--json").json["blocks"][0]
    assert (block["preset"], block["changes"]) == (preset, changes)


@pytest.mark.clause("MODEL-13")
def test_an_imported_model_says_where_it_is_from(cli: Any) -> None:
    cli("model", *IMPORT)
    assert "\nfrom atlas-rnn\n" in cli("model", "show", OUT).out
    value = cli("model", "show", OUT, "--json").json
    assert (value["source"]["from"], value["source"]["settings"]["dim"]) == ("atlas-rnn", 16)
    assert {each["preset"] for each in value["blocks"]} == {"atlas-rnn"}
    assert {str(each["changes"]) for each in value["blocks"]} == {"{}"}
    assert value["causal"] is False


BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "absent": (("show", "absent"), "absent: no such file"),
    "folder": (("show", "."), ".: is a folder, the file of a model is needed"),
    "not ours": (
        ("show", PUBLIC),
        f"{PUBLIC}: metadata key 'atlas_ref_model': missing, a model needs its settings "
        "there; atlas-ref model import reads files of other programs",
    ),
    "ours already": (
        ("import", MODEL, "--from", "atlas-rnn", "-o", OUT),
        f"{MODEL}: is a model of atlas-ref already",
    ),
    "from": (
        ("import", PUBLIC, "--from", "atlas-rn", "-o", OUT),
        "--from atlas-rn: unknown; atlas-rnn, atlas-mag are known; did you mean atlas-rnn or "
        "atlas-mag?",
    ),
    "to": (
        ("export", MODEL, "--to", "torch", "-o", OUT),
        "--to torch: unknown; atlas-rnn, atlas-mag are known",
    ),
    "no from": (
        ("import", PUBLIC, "-o", OUT),
        "Missing option '--from' (see atlas-ref --help)",
    ),
    "itself": (
        ("import", PUBLIC, "--from", "atlas-rnn", "-o", f"./{PUBLIC}"),
        f"{PUBLIC}: is the state_dict itself, which is not overwritten",
    ),
    "settings themselves": (
        ("import", PUBLIC, "--from", "atlas-rnn", "-o", SETTINGS, "--config", SETTINGS),
        f"{SETTINGS}: is the file of settings itself, which is not overwritten",
    ),
    "model itself": (
        ("export", MODEL, "--to", "atlas-rnn", "-o", MODEL),
        f"{MODEL}: is the model itself, which is not overwritten",
    ),
    "place": (
        ("import", PUBLIC, "--from", "atlas-rnn", "-o", "absent/out"),
        "absent/out: the folder ",
    ),
    "settings": ((*IMPORT, "--config", PUBLIC), f"{PUBLIC}: not JSON"),
    "no settings": ((*IMPORT, "--config", "absent"), "absent: no such file"),
    "list": (
        (*IMPORT, "--config", "list.json"),
        "list.json: an object of settings is needed",
    ),
    "contradiction": (
        (*IMPORT, "--config", "heads.json"),
        f"{PUBLIC}: heads: 3, but the tensors have 2, by layers.0.memory.to_lr.0.bias (2,)",
    ),
    "pickle": (
        ("import", "model.pt", "--from", "atlas-rnn", "-o", OUT),
        "model.pt: is a pickle, as torch.save writes it, and reading one may run its code; convert "
        "it with safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW)",
    ),
    "other model": (
        ("export", MODEL, "--to", "atlas-rnn", "-o", OUT),
        f"{MODEL}: atlas-rnn has no such model: blocks.0.memory.levels.levels: ",
    ),
}


@pytest.mark.clause("MODEL-13")
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_writes_nothing(name: str, cli: Any) -> None:
    Path("list.json").write_text("[]")
    Path("heads.json").write_text('{"heads": 3}')
    Path("model.pt").write_bytes(b"PK\x03\x04" + bytes(40))
    before = sorted(os.listdir())
    words, says = BAD[name]
    ran = cli("model", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert says in ran.err
    assert sorted(os.listdir()) == before
    told = json.loads(cli("model", *words, "--json").out)
    assert (told["exit"], len(told["bad_input"])) == (2, 1)
