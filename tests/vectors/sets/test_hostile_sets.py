"""Sets, plans and recipes of strangers: one line for whatever they hold, and soon."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.vectors.sets import cases, contents, encode, manifest, plan
from atlas_ref.vectors.sets.diff import diff
from atlas_ref.vectors.sets.verify import verify

CASE = "cases/delta-edges.safetensors"
RECIPE = "large/newton_schulz-64.json"


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """An end to what hangs, as opening a pipe does that nobody writes to."""

    def late(*arguments: Any) -> None:
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def small(shipped: Path, listed: manifest.Manifest, tmp_path: Path) -> Path:
    """A set of one vector, one file that must be refused, and one larger case."""
    folder = tmp_path / "set"
    few = listed.replaced(
        vectors=[each for each in listed.vectors if each.file == CASE],
        negative=listed.negative[:1],
        large=[each for each in listed.large if each.file == RECIPE],
    )
    for file in (*manifest.files_of(few), manifest.SCHEMA):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shipped / file, folder / file)
    (folder / manifest.MANIFEST).write_bytes(encode.json_bytes(few.plain()))
    summed(folder)
    return folder


def summed(folder: Path) -> None:
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != manifest.SUMS
    }
    (folder / manifest.SUMS).write_bytes(manifest.sums(files))


def problems(folder: Path) -> list[str]:
    """The problems of a set, each in one line, without the path of its folder."""
    lines = verify(folder).problems
    assert all("\n" not in line for line in lines)
    return [line.removeprefix(f"{folder}: ") for line in lines]


def recorded(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the tensors of the vector."""
    case = atlas_ref.load(folder / CASE)
    tensors = {**case.inputs, **case.recorded}
    change(tensors)
    (folder / CASE).write_bytes(encode.tensor_bytes(case.header.plain(), tensors))
    summed(folder)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.clause("VEC-15")
@pytest.mark.parametrize(
    "name", ["/dev/zero", "../outside", "cases/../../outside", "cases", "cases/pipe", "cases/link"]
)
def test_nothing_but_a_regular_file_inside_the_set_is_opened(name: str, small: Path) -> None:
    (small.parent / "outside").write_bytes(b"secret")
    (small / "cases" / "link").symlink_to(small.parent / "outside")
    os.mkfifo(small / "cases" / "pipe")
    with (small / manifest.SUMS).open("a") as stream:
        stream.write(f"{manifest.digest(b'secret')}  {name}\n")
    assert f"{name}: is not a regular file inside the set" in problems(small)


@pytest.mark.clause("VEC-15")
def test_a_vector_that_is_a_link_out_of_the_set_is_not_opened(small: Path, shipped: Path) -> None:
    (small / CASE).unlink()
    (small / CASE).symlink_to(shipped / CASE)
    assert problems(small) == [f"{CASE}: is not a regular file inside the set"]
    with pytest.raises(CaseError, match=r"is not a regular file inside the set$"):
        diff(small, shipped)


@pytest.mark.clause("VEC-15")
@pytest.mark.parametrize("name", [manifest.MANIFEST, manifest.SUMS])
def test_a_pipe_in_place_of_a_text_is_one_line(name: str, small: Path) -> None:
    (small / name).unlink()
    os.mkfifo(small / name)
    with pytest.raises(CaseError, match=f"{name}: is not a regular file$"):
        (manifest.load if name == manifest.MANIFEST else manifest.read_sums)(small)


@pytest.mark.clause("VEC-1", "VEC-15")
def test_a_file_larger_than_a_set_is_not_read_to_its_end(small: Path) -> None:
    with (small / "cases" / "endless").open("wb") as stream:
        stream.truncate(1 << 42)
    with (small / manifest.SUMS).open("a") as sums:
        sums.write(f"{'0' * 64}  cases/endless\n")
    said = f"cases/endless: is larger than the {contents.LARGEST} bytes that a set may have"
    assert said in problems(small)


@pytest.mark.clause("VEC-9")
def test_a_pipe_or_device_is_no_plan(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        with pytest.raises(CaseError, match=f"^{tmp_path / name}: is not a regular file$"):
            plan.load(str(tmp_path / name))


@pytest.mark.clause("VEC-9")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 5000, "nested more than 100 levels deep"),
        ('{"set": "a", "set": "b"}', "key 'set' stands twice"),
        ('{"set": NaN}', "NaN is not JSON"),
        ('{"set": ' + "1" * 30 + "}", "more than 18 digits"),
        ("\udcff", "not JSON: "),
    ],
)
def test_a_plan_of_a_stranger_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CaseError, match=said):
        plan.load(str(path))


# -- contents --------------------------------------------------------------------------------------


@pytest.mark.clause("VEC-1", "VEC-15")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda tensors: tensors.update({"out/M": tensors["out/M"][..., :1]}),
            "out/M: float64 of shape .* is needed, found float64",
        ),
        (
            lambda tensors: tensors.update({"out/M": tensors["out/M"].astype(np.complex64)}),
            "out/M: float64 of shape .* is needed, found complex64",
        ),
        (
            lambda tensors: tensors.update({"out/M": tensors["out/M"] * np.nan}),
            "out/M: an entry is not finite",
        ),
        (
            lambda tensors: tensors.update({"out/colour": tensors["out/M"]}),
            "out/colour: results are not those of the case",
        ),
    ],
)
def test_results_that_no_certified_ones_can_be(change: Any, said: str, small: Path) -> None:
    recorded(small, change)
    (line,) = problems(small)
    assert re.search(said, line), line


RECIPES: dict[str, tuple[Callable[[Any], None], str]] = {
    "endless": (
        lambda one: one["tensors"]["in/G"].update(shape=[9_999_999, 9_999_999]),
        "tensors: 99999980000001 numbers, a larger case has at most 10000000",
    ),
    "negative": (
        lambda one: one["tensors"]["in/G"].update(shape=[-1, 4]),
        "in/G: shape.0: must be at least 0",
    ),
    "word": (lambda one: one["tensors"]["in/G"].update(shape="ab"), "in/G: shape: must be a list"),
    "no-shape": (lambda one: one["tensors"]["in/G"].pop("shape"), "in/G: shape: missing"),
    "unknown-key": (
        lambda one: one["tensors"]["in/G"].update(colour=1),
        "in/G: colour: unknown key",
    ),
    "no-values": (
        lambda one: one["tensors"].update({"in/G": {"shape": [1], "seed": 1, "values": []}}),
        "in/G: values: must have at least 1 entry",
    ),
    "most": (
        lambda one: one["tensors"]["in/G"].update(most=2**40),
        "in/G: most: ",
    ),
    "seed": (lambda one: one.update(seed=True), "seed: must be an integer"),
    "a-list": (lambda one: one.update(tensors=[1]), "tensors: "),
    "too-large": (
        lambda one: one["tensors"]["in/G"].update(unit=1e300),
        "in/G: entries must be finite",
    ),
    "no-results": (lambda one: one.update(results={}), "out/X: results are not those of the case"),
    "strange-result": (
        lambda one: one["results"].update({"out/y": one["results"]["out/X"]}),
        "out/y: results are not those of the case",
    ),
    "projections": (
        lambda one: one["results"]["out/X"]["projections"].pop(),
        "out/X: projections: ",
    ),
    "rms": (lambda one: one["results"]["out/X"].update(rms="0"), "out/X: rms: must be a number"),
    "header": (lambda one: one.update(header=[]), "header: must be a dictionary"),
}


@pytest.mark.clause("VEC-13", "VEC-15")
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_of_a_stranger_is_one_line(name: str, small: Path) -> None:
    change, said = RECIPES[name]
    recipe = json.loads((small / RECIPE).read_text())
    change(recipe)
    (small / RECIPE).write_bytes(encode.json_bytes(recipe))
    summed(small)
    (line,) = problems(small)
    assert line.startswith((f"{small / RECIPE}: ", f"{RECIPE}: "))
    assert said in line


@pytest.mark.clause("VEC-13", "VEC-14")
@pytest.mark.parametrize(
    ("text", "said"),
    [("[" * 5000, "nested more than 100"), ("[]", "keys must be "), ("{", "not JSON: ")],
)
def test_a_recipe_that_is_none_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(CaseError, match=said):
        cases.load(tmp_path / "one.json")
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(CaseError, match="is not a regular file"):
        cases.load(tmp_path / "pipe.json")


STEPS = [
    ({"op": "put", "tensor": "in/v", "dtype": "F64", "shape": [1], "values": [10**17] * 2}, "2 va"),
    ({"op": "put", "tensor": "in/v", "dtype": "F64", "shape": [-1], "values": [1.0]}, "shape.0: "),
    ({"op": "put", "tensor": "in/v", "dtype": ["F64"], "shape": [], "values": [1]}, "dtype: "),
    ({"op": "put", "tensor": "in/v", "dtype": "U8", "shape": [1], "values": [300]}, ""),
    ({"op": "entry", "tensor": "in/v", "at": [-1], "value": 1.0}, "at.0: must be at least 0"),
    ({"op": "entry", "tensor": "in/v", "at": 3, "value": 1.0}, "at: must be a list"),
    ({"op": "bytes", "at": -4, "hex": "00"}, "at: must be at least 0"),
    ({"op": "bytes", "at": 0.5, "hex": "00"}, "at: must be an integer"),
    ({"op": "append", "hex": 3}, "hex: must be a string"),
    ({"op": "unset", "key": None}, "key: must be a string"),
    ({"op": ["set"], "key": "a", "value": 1}, "no such step"),
]


@pytest.mark.clause("VEC-12", "VEC-15")
@pytest.mark.parametrize(("step", "said"), STEPS)
def test_a_repair_of_a_stranger_is_one_line(step: Any, said: str, small: Path) -> None:
    path = small / manifest.MANIFEST
    plain = json.loads(path.read_text())
    plain["negative"][0]["repair"] = [step]
    path.write_bytes(encode.json_bytes(plain))
    summed(small)
    (line,) = problems(small)
    assert ("repair: no such step" if "such" in said else "repair: a step cannot be taken") in line
    assert said in line


@pytest.mark.clause("VEC-12", "VEC-15")
def test_a_refused_file_with_endless_nesting_is_one_line(small: Path, tmp_path: Path) -> None:
    """A file that is refused as the manifest says, and whose JSON object cannot be read either."""
    name = "negative/deep.safetensors"
    header = json.dumps({"__metadata__": {"atlas_ref": "[" * 5000}}).encode()
    (small / name).write_bytes(len(header).to_bytes(8, "little") + header)
    path = small / manifest.MANIFEST
    plain = json.loads(path.read_text())
    plain["negative"][0].update(file=name, code="contract", about="nested")
    path.write_bytes(encode.json_bytes(plain))
    summed(small)
    lines = [line for line in problems(small) if "not in manifest" not in line]
    assert len(lines) == 1
    assert "repair: the file cannot be read after it: nested more than 100" in lines[0]
