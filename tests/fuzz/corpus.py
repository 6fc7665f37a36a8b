"""Good files of every kind, which inputs are malformed from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.blocks import lmm
from atlas_ref.layers import convention, memory
from atlas_ref.levels import block
from atlas_ref.levels.level import Level
from atlas_ref.models import checkpoint, import_atlas_rnn, language_model
from atlas_ref.models.atlas_rnn_files import IMPORTER
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.replay.trace import add_trace
from atlas_ref.oracle.sweep.log import Log
from atlas_ref.oracle.sweep.run import Named, Plan
from atlas_ref.oracle.sweep.sweep import _describe
from atlas_ref.rules import delta, hebbian, titans_lmm
from atlas_ref.vectors.sets import encode, locate, manifest
from docs.clauses import record
from tests.support import recorded_modules, trained
from tests.support.casefiles import some

SMALL: dict[str, Any] = {"tokens": 3, "d_in": 3, "d_out": 2, "heads": 1}

#: Name -> the rule and the request of a case.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "delta": ("delta", {}),
    "delta-rows": ("delta", {"per_dimension_gates": True, "pulse": 2, "reset": 2, "heads": 2}),
    "hebbian": ("hebbian", {"convention": {"read": "before"}}),
    "titans": ("titans_lmm", {"dtype": "float32"}),
    "titans-span": ("titans_lmm", {"span": 2, "convention": {"reference": "chunk_start"}}),
    "omega": ("omega", {"window": 2, "history": 1, "convention": {"newton_schulz": "none"}}),
    "omega-map": ("omega", {"feature_map": {"kind": "polynomial"}, "convention": "atlas-paper"}),
    "omega-token": ("omega", {"level": "token", "window": 2, "d_model": 3, "heads": 2}),
    "delta-token": ("delta", {"level": "token", "d_model": 3, "periods": (1, 2)}),
    "newton_schulz": ("newton_schulz", {}),
    "feature_map": ("feature_map", {"feature_map": {"kind": "linear"}, "features": 4}),
    "dplr": ("dplr", {"parameters": {"member": "kda"}, "cotangent": True}),
    "gsa": ("recurrence", {"parameters": {"member": "gsa"}, "reset": 2, "cotangent": True}),
    "mesa": ("recurrence", {"parameters": {"member": "mesa"}, "cotangent": True}),
    "ttt_linear": ("recurrence", {"parameters": {"member": "ttt_linear", "mini_batch": 2}}),
    "log_linear": ("recurrence", {"parameters": {"member": "log_linear", "position": 2}}),
    "short_conv": ("recurrence", {"parameters": {"member": "short_conv"}, "reset": 2}),
    "tnt": ("tnt", {"reset": 2, "cotangent": True}),
    "block": ("cms", {"levels": ("delta", "titans_lmm"), "periods": (1, 2), "level": "token"}),
    "nested": ("cms", {"levels": ("delta", "titans_lmm"), "periods": (1, 2), "nested": True}),
    "learned": ("cms", {"levels": ("delta", "titans_lmm"), "periods": (1, 2), "learned": True}),
}

#: Name -> settings of a model of public code, beside its sizes.
PUBLIC: dict[str, dict[str, Any]] = {
    "mag": {"block_type": "mag", "num_persist_mem_tokens": 1},
    "mac": {"block_type": "mac", "omega_window": 2, "use_omega_gate": True},
    "lmm": {"block_type": "lmm", "poly_mode": "tensor", "poly_degree": 2},
}

#: Name -> memories of a model that public code does not have.
LEVELS: dict[str, Any] = {
    "titans": titans_lmm.Config(d_model=6, heads=2, d_in=3, d_out=3),
    "levels": block.Config(
        levels=(
            Level(config=delta.Config(d_model=6, heads=2, d_in=3, d_out=3)),
            Level(config=hebbian.Config(d_model=6, heads=2, d_in=3, d_out=3), period=2),
        )
    ),
}

#: Vectors, refusals and larger cases of v1 of which a small set is made.
MEMBERS = {
    "vectors": ("hebbian-edges", "newton_schulz-tiny"),
    "negative": ("cut-short", "missing-retain"),
    "large": ("newton_schulz-64",),
}

PLAN = {
    "set": "small",
    "version": "1.0.0",
    "vectors": [
        {
            "target": "newton_schulz",
            "topic": "tiny",
            "seed": 0,
            "kills": {"float32": [], "bfloat16": []},
        }
    ],
    "negative": [],
    "large": [],
}

XFAIL = [
    {"id": "file1", "reason": "issue 12", "expires": "2999-01-01"},
    {"id": "file1:grad/k", "reason": "old", "expires": "2020-02-29"},
]

SPEC = """# Small

## Part

### SMALL-1 First

Words of a clause.

### SMALL-2 Second

Words, no code: a definition.
"""

CODE = '''"""Code of a clause."""


def first() -> int:
    """The first (SMALL-1)."""
    return 1
'''

PROOF = """import pytest


@pytest.mark.clause("SMALL-1")
def test_first():
    pass
"""


def write(folder: Path) -> Path:
    """Write a folder of good files for each kind, and return `folder`."""
    for kind in ("case", "results", "trace"):
        (folder / kind).mkdir(parents=True)
    for name, (rule, request) in CASES.items():
        header, tensors = some(rule, **{**SMALL, **request})
        case = atlas_ref.make(header, tensors)
        results = evaluate(case, grad=True)
        file = f"{name}.safetensors"
        _put(folder / "results" / file, results.header, results.tensors)
        recorded = results.tensors if name != "hebbian" else {}
        _put(folder / "case" / file, header, {**tensors, **recorded})
        if rule not in ("cms", "newton_schulz", "feature_map", "dplr", "recurrence"):
            trace = add_trace(case, results, grad=False)
            _put(folder / "trace" / file, trace.header, trace.tensors)
    _write_models(folder)
    _write_set(folder / "set")
    _write_texts(folder)
    _write_training(folder)
    _write_root(folder / "root")
    return folder


def _write_training(folder: Path) -> None:
    """A text, and the folder of a run."""
    for kind in ("prose", "run", "trained", "checkpoints"):
        (folder / kind).mkdir()
    (folder / "prose" / "a.txt").write_text("a memory learns at test time\n" * 20)
    lines = [
        {"step": 1, "tokens": 8, "loss": 5.5, "bits_per_byte": 7.9},
        {"step": 1, "held_out": {"loss": 5.4, "bits_per_byte": 7.8, "tokens": 8}},
    ]
    text = "".join(json.dumps(each) + "\n" for each in lines)
    (folder / "run" / "log.jsonl").write_text(text)
    (folder / "checkpoints" / "evaluations.jsonl").write_text(
        json.dumps({"checkpoint": "step-00000000.safetensors", "step": 0}) + "\n"
    )
    path = trained.ended("mag").path
    for place in ("trained", "checkpoints"):
        (folder / place / path.name).write_bytes(path.read_bytes())
    for kind in ("lmm", "atlas-mag"):
        (folder / "trained" / f"{kind}.safetensors").write_bytes(trained.model(kind).read_bytes())


def _put(path: Path, header: Any, tensors: Any) -> None:
    plain = header if isinstance(header, dict) else header.plain()
    path.write_bytes(encode.tensor_bytes(plain, tensors))


def _write_models(folder: Path) -> None:
    """Models, state_dicts of public code, and the settings of one of them."""
    for kind in ("model", "public", "settings"):
        (folder / kind).mkdir()
    for name, settings in PUBLIC.items():
        given = import_atlas_rnn.Settings(dim=6, dim_head=4, heads=2, vocab=5, depth=2, **settings)
        config = import_atlas_rnn.model_config(given)
        file = f"{name}.safetensors"
        model = checkpoint.Checkpoint(config, language_model.init(config), {})
        IMPORTER.write(folder / "public" / file, model)
        checkpoint.save(folder / "model" / file, config, model.params)
    for name, levels in LEVELS.items():
        own = memory.configured(convention.resolve("titans"), levels)
        each = lmm.configured(convention.resolve("titans"), own, d_model=6, d_inner=5)
        config = language_model.configured(convention.resolve("causal"), [each], vocabulary=5)
        params = language_model.init(config, dtype=np.float32)
        checkpoint.save(folder / "model" / f"{name}.safetensors", config, params)
    (folder / "recording").mkdir()
    for kind in ("feed_forward", "attention"):
        header = recorded_modules.header_of(kind)
        tensors = recorded_modules.with_gradients(header)
        _put(folder / "recording" / f"{kind}.safetensors", header, tensors)
    levels = [
        {"rule": "delta", "period": 2},
        {"rule": "titans_lmm", "convention": {"gate": "none"}},
    ]
    header = recorded_modules.header_of("memory", levels=levels, calls=[5, 4])
    for key in ("omega_window", "use_omega_gate"):
        header["settings"].pop(key)
    tensors = recorded_modules.of_ours(header)
    _put(folder / "recording" / "levels.safetensors", header, tensors)
    stated = {"omega_window": 1, "window_size": 8}
    (folder / "settings" / "settings.json").write_text(json.dumps(stated))


def _write_set(folder: Path) -> None:
    """A set of a few members of v1."""
    source = locate.folder("v1")
    listing = manifest.load(source)
    chosen: dict[str, Any] = {
        kind: [each for each in getattr(listing, kind) if each.name in names]
        for kind, names in MEMBERS.items()
    }
    assert {kind: len(each) for kind, each in chosen.items()} == {
        kind: len(names) for kind, names in MEMBERS.items()
    }
    killed = {name for each in chosen["vectors"] for names in each.kills.values() for name in names}
    words = {name: text for name, text in listing.mutants.items() if name in killed}
    small = listing.replaced(**chosen, set="small", mutants=words)
    files = {each: (source / each).read_bytes() for each in manifest.files_of(small)}
    files[manifest.MANIFEST] = encode.json_bytes(small.plain())
    files[manifest.SCHEMA] = (source / manifest.SCHEMA).read_bytes()
    files[manifest.SUMS] = manifest.sums(files)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _write_texts(folder: Path) -> None:
    (folder / "plan").mkdir()
    (folder / "plan" / "plan.json").write_text(json.dumps(PLAN))
    (folder / "xfail").mkdir()
    (folder / "xfail" / "known.json").write_text(json.dumps({"xfail": XFAIL}))
    tables = "\n".join(
        "[[xfail]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in each.items())
        for each in XFAIL
    )
    (folder / "xfail" / "known.toml").write_text(tables)
    (folder / "log").mkdir()
    plan = Plan("delta", 0, {}, None, None, None, 0, ())
    source = Named("program", "sh ./does {case} {out}", 60.0)
    with Log(folder / "log" / "log", _describe(plan, source)) as log:
        row = {"tensor": "-", "verdict": "FAILED", "error": None, "tolerance": None, "why": "x"}
        line = {"task": "judge", "case": 0, "verdict": "FAILED", "row": row, "drawn": {}}
        log.append(line)
        log.append({**line, "case": 1})


def _write_root(folder: Path) -> None:
    """A clone of a repository as trace-spec reads it, with a record of its tests."""
    for path, text in (
        ("specs/small.md", SPEC),
        ("atlas_ref/small.py", CODE),
        ("tests/test_small.py", PROOF),
    ):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    name = "tests/test_small.py::test_first"
    ran = record.Ran(("SMALL-1",), True, {"atlas_ref/small.py": frozenset({6})})
    record.write(folder, record.Record({name: ran}))
