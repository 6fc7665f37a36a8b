"""The recipe for an importer: a module of tables and a row, and a file goes both ways."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.copied import Copy

pytestmark = pytest.mark.host("imports files, in programs of their own")

MODULE = '''"""Files of a project of attention alone, whose names of tensors are short."""

from __future__ import annotations

from atlas_ref.models import atlas_mag
from atlas_ref.models.public.importer import Importer
from atlas_ref.models.public.names import Name, Table, repeated
from atlas_ref.models.public.tells import Near, Tell, layers, read_off
from atlas_ref.models.public.tells import facts as told_by
from atlas_ref.types import Count, Frozen


class Arguments(Frozen):
    """Of its constructor; feed-forwards have 8/3 of dim."""

    vocab: Count
    dim: Count
    depth: Count
    window: Count = 8


LAYER = "blocks.{i}"
NAMES: Table = {
    "emb": Name("dim vocab", ".embedding", order=(1, 0)),
    "bias": Name("dim", ".embedding_bias"),
    "out": Name("dim", ".norm.weight"),
    **{f"l{{i}}.n{n}": Name("dim", f".blocks[{{i}}].{part}.norm.weight") for n, part in enumerate(("attention", "feed_forward"))},
    "l{i}.qkv": Name("3*dim dim", ".blocks[{i}].attention.W_qkv"),
    "l{i}.qk": Name("2*dim", ".blocks[{i}].attention.q_norm.weight .blocks[{i}].attention.k_norm.weight"),
    "l{i}.o": Name("dim dim", ".blocks[{i}].attention.W_out", order=(1, 0)),
    "l{i}.in": Name("2*inner dim", ".blocks[{i}].feed_forward.W_in"),
    "l{i}.down": Name("dim inner", ".blocks[{i}].feed_forward.W_out"),
}
TELLS = {
    "vocab": Tell("emb", 2, axis=1),
    "dim": Tell("emb", 2),
    "depth": layers("l"),
}
NEAREST = {
    "vocab": Near("vocabulary"),
    "dim": Near("embed_norm.d"),
    "depth": Near("blocks", lambda blocks, _: len(blocks)),
    "window": Near("blocks.0.attention.window"),
}


def _sizes(s):
    inner = 8 * s.dim // 3
    return {"vocab": s.vocab, "dim": s.dim, "2*dim": 2 * s.dim, "3*dim": 3 * s.dim, "inner": inner, "2*inner": 2 * inner}


def _table(told):
    rows = {name: each for name, each in NAMES.items() if "{i}" in name}
    return {name: each for name, each in NAMES.items() if name not in rows} | repeated(rows, told.settings.depth)


def _config(told, _):
    s = told.settings
    settings = atlas_mag.Settings(vocab_size=s.vocab, dim=s.dim, n_layers=s.depth, n_heads=1, attn_window_size=s.window)
    return atlas_mag.attention_only(settings)


IMPORTER = Importer(
    program="short",
    arguments=Arguments,
    tells=lambda tensors: told_by(TELLS, tensors),
    nearest=lambda described: read_off(NEAREST, described),
    table=_table,
    sizes=_sizes,
    config=_config,
    like=_config,
    effective=lambda told: Arguments.model_fields,
    always=lambda told: ("window",),
)
'''
ROW = '    "short": "atlas_ref.models.short",'
NEXT = '    "atlas-mag": "atlas_ref.models.atlas_mag.files",'


def test_an_importer_is_a_module_of_tables_and_a_row(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.add("atlas_ref/models/short.py", MODULE)
    copy.insert("atlas_ref/cli/models/programs.py", NEXT, ROW)
    assert copy.changed() == ["atlas_ref/cli/models/programs.py", "atlas_ref/models/short.py"]

    draw = np.random.default_rng(0)
    shapes = {"emb": (6, 11), "bias": (6,), "out": (6,)}
    for i in range(2):
        shapes |= {f"l{i}.n0": (6,), f"l{i}.n1": (6,), f"l{i}.qkv": (18, 6), f"l{i}.qk": (12,)}
        shapes |= {f"l{i}.o": (6, 6), f"l{i}.in": (32, 6), f"l{i}.down": (6, 16)}
    tensors = {name: draw.standard_normal(shape) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "public")
    (tmp_path / "stated.json").write_text('{"window": 5}')
    words = ("public", "--from", "short", "-o", "ours", "--config", "stated.json", "--json")
    told = json.loads(copy.run("model", "import", *words))["settings"]
    assert {name: each["by"] for name, each in told.items()} == {
        **dict.fromkeys(("vocab", "dim", "depth"), "shapes"),
        "window": "given",
    }
    assert "from short" in copy.run("model", "show", "ours")
    words = ("ours", "--to", "short", "-o", "back", "--json")
    assert json.loads(copy.run("model", "export", *words))["arguments"] == {
        **{"vocab": 11, "dim": 6, "depth": 2, "window": 5}
    }
    back = load_file(tmp_path / "back")
    assert back.keys() == tensors.keys()
    assert all(back[name].tobytes() == each.tobytes() for name, each in tensors.items())

    wrong = {name: each for name, each in tensors.items() if name != "l1.qk"}
    save_file({**wrong, "l0.o": np.ones((6, 5)), "x": np.ones(1)}, tmp_path / "public")
    said = copy.refused("model", "import", "public", "--from", "short", "-o", "other")
    assert said == (
        "atlas-ref: public: l1.qk: missing, shape (12,) is needed; x: unknown tensor; "
        "l0.o: shape (6, 5), expected (6, 6)"
    )
