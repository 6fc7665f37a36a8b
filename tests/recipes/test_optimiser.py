"""The recipe for an optimiser: a module and a row, and a run learns by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.support.copied import Copy
from tests.support.training import library

pytestmark = pytest.mark.host("trains in folders, in programs of their own")

MODULE = '''"""Descent by the sign of a mean gradient."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from atlas_ref.optim import tensors
from atlas_ref.optim.matrices import MatrixSettings
from atlas_ref.optim.tensors import Moment, Settings, Share, State, Tensors
from atlas_ref.types import Array


class Config(Settings):
    kind: Literal["signs"] = "signs"
    keep: Share = 0.9


def init(config: Config, params: Any) -> State:
    return tensors.start(config, params, _slots)


def update(config: Config, state: State, params: Any, grads: Any, step: int) -> tuple[Any, State]:
    return tensors.updated(config, state, params, grads, step, _slots, _one)


def _slots(config: Config, name: str, p: Array) -> tuple[str, ...]:
    return ("mean",)


def _one(config: Config, at: Moment, p: Array, g: Array, held: Tensors) -> tuple[Array, Tensors]:
    mean = config.keep * held["mean"] + (1.0 - config.keep) * g
    return tensors.decayed(config, at, p) - at.rate * np.sign(mean), {"mean": mean}
'''
ROW = '    "signs": Optimiser("signs", matrices={matrices}, run={{"keep": 0.5}}),'
NEXT = '    "m3": Optimiser("m3", matrices=True),'


@pytest.mark.sample(1)
@pytest.mark.parametrize("matrices", [False, True], ids=["of_all_parameters", "of_matrices"])
def test_an_optimiser_is_a_module_and_a_row(matrices: bool, tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    module = MODULE if not matrices else MODULE.replace("(Settings)", "(MatrixSettings)")
    copy.add("atlas_ref/optim/signs.py", module)
    copy.insert("atlas_ref/optim/__init__.py", NEXT, ROW.format(matrices=matrices))
    assert copy.changed() == ["atlas_ref/optim/__init__.py", "atlas_ref/optim/signs.py"]

    told = " ".join(copy.run("train", "--help").replace("│", " ").split())
    assert "adamw, sgd, muon, adamuon, signs or m3. adamw." in told
    assert f"Of muon, adamuon, {'signs, ' if matrices else ''}m3. 0.02." in told

    tiny = "--model lmm --rule delta --dim 8 --layers 1 --heads 2 --kernel 1 --expansion 1"
    words = (*tiny.split(), "--batch-size", 2, "--seq-len", 16, "--steps", 2, "--save-every", 1)
    out, text = tmp_path / "out", library(tmp_path)
    copy.run("train", *words, "--data", text, "--optimiser", "signs", "--out", out)
    again = copy.run("train", "--resume", "--rollback", 1, "--out", out, "--json")
    assert json.loads(again)["step"] == 2
    named = load_file(max(out.rglob("step-*.safetensors")))
    mean = {name.partition("/mean/")[0] for name in named if "/mean/" in name}
    groups = ("outputs", "hidden") if matrices else ("signs",)
    assert mean == {f"optimiser/{group}" for group in groups}
