"""The commands model import, show and export on a recorded model of Atlas-MAG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.storage import files
from tests.support.mag_files import public, written


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
