"""The commands model import, show and export on a recorded model of Atlas-MAG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.storage import files
from tests.support.layers import recorded
from tests.support.mag_files import FOLDER, public, written


@pytest.mark.clause("MODEL-13", "MAG-7")
def test_the_commands_import_show_and_export_it(cli: Any, tmp_path: Path) -> None:
    _, tensors = public("ttl")
    written(tmp_path / "public", tensors)
    (tmp_path / "stated.json").write_text(json.dumps({"attn_window_size": 8, "training": True}))
    ran = cli(
        *("model", "import", tmp_path / "public", "--from", "atlas-mag"),
        *("-o", tmp_path / "ours", "--config", tmp_path / "stated.json", "--json"),
    )
    settings = ran.json["settings"]
    assert ran.json["parameters"] == 29986
    assert settings["attn_window_size"] == {"value": 8, "by": "given"}
    assert settings["omega_context_window"] == {"value": 16, "by": "shapes"}
    assert settings["ttl_theta"] == {"value": 0.9, "by": "default"}
    shown = cli("model", "show", tmp_path / "ours", "--json").json
    assert (shown["parameters"], shown["tied"], shown["causal"]) == (29986, True, False)
    level = shown["blocks"][0]["levels"][0]
    assert (level["rule"], level["preset"], level["changes"]) == ("deep_memory", "atlas-mag", {})
    assert "from atlas-mag" in cli("model", "show", tmp_path / "ours").out
    ran = cli("model", "export", tmp_path / "ours", "--to", "atlas-mag", "-o", tmp_path / "back")
    assert ran.code == 0
    back = files.read(tmp_path / "back")[1]
    for name, each in tensors.items():
        assert back[name].tobytes() == np.asarray(each).tobytes()


@pytest.mark.clause("MAG-8", "MAG-9", "MAG-10", "MODEL-13")
def test_show_says_what_memories_do_on_ids(cli: Any, tmp_path: Path) -> None:
    own, tensors = public("inference")
    written(tmp_path / "public", tensors, own)
    ours, ids = tmp_path / "ours", tmp_path / "ids"
    cli("model", "import", tmp_path / "public", "--from", "atlas-mag", "-o", ours)
    read = recorded("mag_skeleton_inference", FOLDER).tensors
    written(ids, {"in/ids": read["in/ids"]})
    about = cli("model", "show", ours, "--on", ids, "--json").json["memories"]
    assert about["ids"] == [2, 25]
    assert about["loss"] == pytest.approx(float(read["out/loss"]), rel=1e-6)
    assert [each["block"] for each in about["blocks"]] == [0, 1]
    first = about["blocks"][0]
    assert first["ratio"] == first["memory"] / first["attention"]
    assert first["gate"].keys() == {"mean", "std", "min", "max"}
    assert about["neutral"] != about["disabled"]
    ran = cli("model", "show", ours, "--on", ids)
    assert f"on 2 x 25 ids: loss {about['loss']:.6g}, with memories that return 0" in ran.out
    assert "shared memories: mean, deviation, least, largest" in ran.out
    assert ("sizes apart by more than 2 times" in ran.out) == any(
        not 0.5 <= each["ratio"] <= 2.0 for each in about["blocks"]
    )
    assert "memories" not in cli("model", "show", ours, "--json").json


@pytest.mark.clause("MAG-9", "MODEL-13")
def test_ids_that_do_not_fit_are_one_line(cli: Any, tmp_path: Path) -> None:
    own, tensors = public("attention_only")
    written(tmp_path / "public", tensors, own)
    ours, ids = tmp_path / "ours", tmp_path / "ids"
    cli("model", "import", tmp_path / "public", "--from", "atlas-mag", "-o", ours)
    for found, words in (
        ({"ids": np.zeros((2, 4), np.int64)}, "config: no block has a memory that shares"),
        ({"ids": np.zeros((2, 1), np.int64)}, "ids: shape (2, 1), expected (batch, at least 2"),
        ({"x": np.zeros(2)}, "no tensor ids or in/ids, found x"),
    ):
        written(ids, found)
        ran = cli("model", "show", ours, "--on", ids)
        assert (ran.code, ran.out) == (2, "")
        assert f"{ids}: {words}" in ran.err
        assert ran.err.count("\n") == 1
