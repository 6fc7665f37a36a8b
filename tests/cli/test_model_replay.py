"""The command model replay: recordings that are right, wrong in a module, or no recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.support.recorded_modules import header_of, of_ours


def written(path: Path, header: dict[str, Any], tensors: Any) -> Path:
    contiguous = {name: np.array(array, order="C") for name, array in tensors.items()}
    safetensors.numpy.save_file(contiguous, path, metadata={"atlas_ref": json.dumps(header)})
    return path


@pytest.fixture
def recording(tmp_path: Path) -> tuple[Path, dict[str, Any], Any]:
    header = header_of(settings={"depth": 1})
    tensors = of_ours(header)
    return written(tmp_path / "mine.safetensors", header, tensors), header, tensors


@pytest.mark.clause("MODULES-11", "MODULES-16")
def test_a_right_recording_passes_and_a_wrong_module_is_named(
    cli: Any, recording: Any, tmp_path: Path
) -> None:
    path, header, tensors = recording
    ran = cli("model", "replay", path)
    assert ran.code == 0
    assert ran.out.rstrip().endswith("values PASS")
    name = "modules/layers.0.attention.norm/out/y"
    y = np.array(tensors[name])
    y[1, 3] *= 1.5
    parts = {  # a module that is right as a whole is not searched
        each: array
        for each, array in tensors.items()
        if not each.endswith(("layers.0/out/y", "attention/out/y"))
    }
    wrong = written(tmp_path / "wrong.safetensors", header, {**parts, name: y})
    ran = cli("model", "replay", wrong, "--no-nearest")
    assert ran.code == 1
    assert "layers.0.attention.norm: WRONG" in ran.out
    assert "token 3" in ran.out
    reply = cli("model", "replay", wrong, "--json", "--no-nearest").json
    assert (reply["exit"], reply["recording"]) == (1, str(wrong))
    assert reply["first_wrong"]["module"] == "layers.0.attention.norm"
    assert {each["verdict"] for each in reply["verdicts"]} >= {"PASS", "WRONG"}


@pytest.mark.clause("MODULES-16")
def test_a_recording_of_inputs_alone_judges_nothing(
    cli: Any, recording: Any, tmp_path: Path
) -> None:
    _, header, tensors = recording
    bare = {
        name: each
        for name, each in tensors.items()
        if name.startswith("in/param/") or name == "modules/embed/in/ids"
    }
    ran = cli("model", "replay", written(tmp_path / "bare.safetensors", header, bare))
    assert ran.code == 3
    assert "0 of 0 values PASS" in ran.out


@pytest.mark.clause("MODULES-2", "MODULES-16")
@pytest.mark.parametrize("command", ["replay", "identify"])
def test_a_case_and_a_word_for_tied_are_refused(
    cli: Any, recording: Any, tmp_path: Path, command: str
) -> None:
    """A case of a layer has parameters too; the refusal says what takes it."""
    _, header, tensors = recording
    case = {"schema": 1, "rule": "layer", "layer": "feed_forward", "parameters": {"dim": 6}}
    for given, says in (
        (case, 'recording: missing, "modules" is needed; a case is judged by atlas-ref check'),
        ({**header, "tied": "no"}, "tied: true or false is needed, found 'no'"),
    ):
        path = written(tmp_path / "other.safetensors", given, tensors)
        ran = cli("model", command, path)
        assert (ran.code, ran.err) == (2, f"atlas-ref: {path}: {says}\n")


@pytest.mark.clause("MODULES-16")
@pytest.mark.parametrize("wrong", ["missing", "no recording", "unknown name"])
def test_another_file_is_refused_in_one_line(
    cli: Any, recording: Any, tmp_path: Path, wrong: str
) -> None:
    _, header, tensors = recording
    path = tmp_path / "other.safetensors"
    if wrong == "no recording":
        written(path, {"schema": 1, "rule": "delta"}, tensors)
    elif wrong == "unknown name":
        written(path, header, {**tensors, "modules/nobody/out/y": np.ones(3)})
    ran = cli("model", "replay", path)
    assert ran.code == 2
    assert ran.err.startswith(f"atlas-ref: {path}: ")
    assert ran.err.count("\n") == 1


@pytest.mark.clause("MODULES-4", "MODULES-16")
@pytest.mark.parametrize("name", ["modules/embed/in/ids", "modules/loss/in/targets"])
@pytest.mark.parametrize("id_", [11, -100])
def test_ids_that_have_no_row_are_refused(
    cli: Any, recording: Any, tmp_path: Path, name: str, id_: int
) -> None:
    """An id of -100, which PyTorch leaves out of a loss, is no row counted from the end."""
    _, header, tensors = recording
    ids = np.array(tensors["modules/embed/in/ids"])
    ids[1, 2] = id_
    path = written(tmp_path / "ids.safetensors", header, {**tensors, name: ids})
    ran = cli("model", "replay", path, "--no-nearest")
    assert ran.code == 2
    assert ran.err == f"atlas-ref: {path}: {name}: ids must lie in 0 to 10, found {id_} at (1, 2)\n"


@pytest.mark.clause("MODULES-15", "MODULES-17")
def test_the_readings_of_a_whole_are_named(cli: Any, tmp_path: Path) -> None:
    header = header_of("attention")
    tensors = of_ours({**header, "convention": {"rotary_pairs": "halves"}}, truth=header)
    path = written(tmp_path / "mine.safetensors", header, tensors)
    ran = cli("model", "identify", path)
    assert ran.code == 0
    assert "computes rotary_pairs halves" in ran.out
    reply = cli("model", "identify", path, "--json").json
    assert reply["exit"] == 0
    assert reply["readings"] == [["rotary_pairs halves"]]
    bare = {name: each for name, each in tensors.items() if name != "modules/layer/out/y"}
    ran = cli("model", "identify", written(tmp_path / "bare.safetensors", header, bare))
    assert ran.code == 2
    assert "no result of the whole: modules/layer/out/y or modules/to_logits" in ran.err
