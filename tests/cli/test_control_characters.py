"""Files of strangers with what a terminal would act upon, in every place that is printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.vectors.sets import encode, manifest
from tests.support.casefiles import some

#: Colour, a new title, a C1 command, delete, text from right to left, and a return.
HOSTILE = "\x1b[31m\x1b]0;owned\x07\x9b2J\x7f\u202e\rx"

#: What reaches the terminal as text: lines, and the frames of tables.
Run = Callable[..., Any]


def harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A case with such names and words wherever one may stand, and with recorded results."""
    header, tensors = some("delta")
    results = atlas_ref.evaluate(atlas_ref.make(header, tensors)).tensors
    wrong = {name: value + 1.0 for name, value in results.items()}
    extra: Any = {f"trace/{HOSTILE}": np.zeros(3), f"chunk/{HOSTILE}": np.ones(2)}
    path = tmp_path / "case.safetensors"
    header = {**header, "note": HOSTILE}
    path.write_bytes(encode.tensor_bytes(header, {**tensors, **wrong, **extra}))
    return path


@pytest.mark.clause("CASE-17")
@pytest.mark.parametrize("json_", [[], ["--json"]])
@pytest.mark.parametrize("command", ["show", "check", "eval", "identify", "replay"])
def test_a_case_of_a_stranger_prints_text_alone(
    command: str, json_: list[str], cli: Run, case: Path
) -> None:
    more = {
        "eval": ("-o", case.with_name("out")),
        "identify": ("--out", case),
        "replay": ("--trace", case),
    }
    ran = cli(command, case, *more.get(command, ()), *json_)
    assert ran.out or ran.err
    assert harmless(ran.out)
    assert harmless(ran.err)


@pytest.mark.clause("CASE-17")
@pytest.mark.parametrize(
    "change",
    [
        lambda header, tensors: header.update({HOSTILE: 1}),
        lambda header, tensors: header.update(rule=HOSTILE),
        lambda header, tensors: header.update(convention=HOSTILE),
        lambda header, tensors: header.update(convention={HOSTILE: 1}),
        lambda header, tensors: header.update(feature_map={"kind": HOSTILE}),
        lambda header, tensors: tensors.update({f"in/{HOSTILE}": np.zeros(2)}),
        lambda header, tensors: tensors.update({f"out/{HOSTILE}": np.zeros(2)}),
        lambda header, tensors: tensors.update({HOSTILE: np.zeros(2)}),
    ],
)
def test_what_is_wrong_with_a_case_is_told_in_text_alone(
    change: Callable[[Any, Any], None], cli: Run, tmp_path: Path
) -> None:
    header, tensors = some("delta")
    change(header, tensors)
    path = tmp_path / "case.safetensors"
    path.write_bytes(encode.tensor_bytes(header, tensors))
    for words in (("show", path), ("check", path), ("check", path, "--json")):
        ran = cli(*words)
        assert ran.err or ran.out
        assert harmless(ran.out + ran.err)


@pytest.mark.slow
@pytest.mark.clause("VEC-19")
def test_a_set_of_a_stranger_is_compared_in_text_alone(
    cli: Run, shipped: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(shipped, tmp_path / "set"))
    path = other / "cases" / "delta-edges.safetensors"
    case = atlas_ref.load(path)
    header = {**case.header.plain(), "note": HOSTILE}
    extra: Any = {f"trace/{HOSTILE}": np.zeros(3)}
    path.write_bytes(encode.tensor_bytes(header, {**case.inputs, **case.recorded, **extra}))
    recipe = other / "large" / "delta-odd.json"
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), HOSTILE: HOSTILE}))
    listing = json.loads((other / manifest.MANIFEST).read_text())
    listing["vectors"][0]["properties"].append(HOSTILE)
    listing["negative"][0]["about"] = HOSTILE
    listing["mutants"][HOSTILE] = HOSTILE
    (other / manifest.MANIFEST).write_bytes(encode.json_bytes(listing))
    (other / "cases" / f"{HOSTILE.replace('/', '')}.safetensors").write_bytes(b"")
    for words in (("diff", shipped, other), ("list", other), ("verify", other)):
        for json_ in ((), ("--json",)):
            ran = cli("vectors", *words, *json_)
            assert ran.out
            assert harmless(ran.out + ran.err), words


@pytest.mark.clause("SRC-20")
def test_a_failing_test_of_the_plugin_shows_text_alone() -> None:
    from atlas_ref.pytest_plugin import NotPassed

    text = str(NotPassed(f"first\n{HOSTILE}"))
    assert harmless(text)
    assert text.startswith("first\n")
