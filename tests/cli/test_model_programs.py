"""A further public project is one entry of a list: a small one, imported, shown and exported."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from atlas_ref.cli.models.programs import PROGRAMS, beginning
from atlas_ref.models import checkpoint, language_model
from atlas_ref.models.public import names
from atlas_ref.models.public.importer import Importer
from atlas_ref.models.public.names import Name, Table
from atlas_ref.models.shapes import params_of
from atlas_ref.storage import files
from atlas_ref.types import Frozen
from tape.nested import flatten
from tests.support.models import MODELS, public_file

pytestmark = pytest.mark.clause("MODEL-13")

CONFIG = MODELS["memory delta"]


def _table() -> Table:
    """Every parameter, under a number, turned where it is a matrix."""
    leaves, places, _ = flatten(params_of(CONFIG), "params")
    return {
        f"w.{i}": Name(
            " ".join(map(str, reversed(leaf.shape) if len(leaf.shape) == 2 else leaf.shape)),
            place,
            order=(1, 0) if len(leaf.shape) == 2 else (),
        )
        for i, (leaf, place) in enumerate(zip(leaves, places, strict=True))
    }


class Arguments(Frozen):
    """What no tensor tells."""

    window: int = 1


TOY = Importer(
    program="toy",
    arguments=Arguments,
    tells=lambda tensors: {},
    nearest=lambda described: {},
    table=lambda told: _table(),
    sizes=lambda settings: {},
    config=lambda told, tensors: CONFIG,
    like=lambda told, config: CONFIG,
    effective=lambda told: ("window",),
    always=lambda told: ("window",),
)


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("toy_files")
    module.__dict__["IMPORTER"] = TOY
    monkeypatch.setitem(sys.modules, "toy_files", module)
    monkeypatch.setitem(PROGRAMS, "toy", "toy_files")
    monkeypatch.chdir(tmp_path)


def test_every_project_of_the_list_has_files() -> None:
    assert {name for name in PROGRAMS if name != "toy"} == {"atlas-rnn", "atlas-mag"}
    for module in PROGRAMS.values():
        assert isinstance(importlib.import_module(module).IMPORTER, Importer)


def test_a_second_project_is_imported_shown_and_exported(cli: Any) -> None:
    params = language_model.init(CONFIG, 5)
    tensors = names.tensors_of(params, _table(), {})
    assert any(
        not np.array_equal(tensors[f"w.{i}"], leaf) for i, leaf in enumerate(_leaves(params))
    )
    public_file(Path("public"), tensors)
    Path("settings.json").write_text('{"window": 3}')
    words = (
        "model",
        "import",
        "public",
        "--from",
        "toy",
        "-o",
        "ours",
        "--config",
        "settings.json",
    )
    assert "stated: window 3\n" in cli(*words).err
    assert cli(*words, "--json").json["settings"] == {"window": {"value": 3, "by": "given"}}
    assert checkpoint.load("ours")[1] == params
    assert "\nfrom toy\n" in cli("model", "show", "ours").out
    ran = cli("model", "export", "ours", "--to", "toy", "-o", "back", "--json")
    assert ran.json["arguments"] == {"window": 3}
    back = files.read("back")[1]
    assert back.keys() == tensors.keys()
    for name, tensor in back.items():
        assert tensor.tobytes() == np.ascontiguousarray(tensors[name]).tobytes()


def _leaves(params: Any) -> list[Any]:
    return flatten(params, "params")[0]


def test_a_model_of_one_project_need_not_be_one_of_another(cli: Any) -> None:
    checkpoint.save("ours", MODELS["memory levels"], language_model.init(MODELS["memory levels"]))
    ran = cli("model", "export", "ours", "--to", "toy", "-o", "out")
    assert ran.code == 2
    assert ran.err.startswith(
        "atlas-ref: ours: toy has no such model: blocks.0.memory.levels.levels: "
    )
    ran = cli("model", "export", "ours", "--to", "torch", "-o", "out")
    assert (ran.code, "--to torch: unknown; atlas-rnn, atlas-mag, toy are known" in ran.err) == (
        2,
        True,
    )
    assert not Path("out").exists()


def test_a_shell_completes_names_of_projects() -> None:
    assert beginning("t") == ["toy"]
    assert beginning("atlas") == ["atlas-rnn", "atlas-mag"]


@pytest.mark.clause("MODEL-12", "MAG-7")
@pytest.mark.parametrize("program", ["atlas-rnn", "atlas-mag"])
def test_any_model_is_one_of_a_project_or_refused_by_what_differs(program: str) -> None:
    importer = importlib.import_module(PROGRAMS[program]).IMPORTER
    said = rf"{program} has no such model: \S.*|blocks\.0\.memory: none, {program} has one in each block"
    refused = []
    for config in MODELS.values():
        try:
            importer.express(config)
        except ValueError as error:
            refused.append(str(error))
    assert refused
    assert [each for each in refused if not re.fullmatch(said, each)] == []
