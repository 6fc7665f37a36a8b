"""The command verify: one line for a changed byte, a missing file, a wrong hash and an unknown key.

The same holds for every other way to spoil a set.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.vectors.refusals import repair
from atlas_ref.vectors.refusals.codes import CODES, code_of
from atlas_ref.vectors.sets import encode, manifest
from atlas_ref.vectors.sets.verify import verify
from tests.support.golden import assert_golden

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def small(shipped, listed, tmp_path):
    """A set of a few files of v1, with sums of its own."""
    folder = tmp_path / "set"
    kept = [each for each in listed.vectors if each.target in ("delta", "newton_schulz")]
    few = listed.replaced(vectors=kept, negative=listed.negative[:4], large=listed.large[-1:])
    for file in manifest.files_of(few):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shipped / file, folder / file)
    (folder / manifest.MANIFEST).write_bytes(encode.json_bytes(few.plain()))
    shutil.copy(shipped / manifest.SCHEMA, folder / manifest.SCHEMA)
    summed(folder)
    return folder


def summed(folder: Path) -> None:
    """Write SHA256SUMS of the files."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != manifest.SUMS
    }
    (folder / manifest.SUMS).write_bytes(manifest.sums(files))


def edited(folder: Path, change) -> None:
    """Change the manifest, and write its digest."""
    path = folder / manifest.MANIFEST
    plain = json.loads(path.read_text())
    change(plain)
    path.write_bytes(encode.json_bytes(plain))
    summed(folder)


def one_problem(folder: Path) -> str:
    found = verify(folder)
    assert len(found.problems) == 1, found.problems
    assert "\n" not in found.problems[0]
    assert found.exit_code == 1
    return found.problems[0].replace(str(folder), "SET")


def some_case(folder: Path) -> Path:
    return sorted((folder / "cases").glob("delta-*.safetensors"))[0]


@pytest.mark.clause("VEC-15")
def test_the_shipped_set_is_verified(shipped, listed) -> None:
    found = verify(shipped)
    assert found.problems == []
    assert found.counts == {
        "vectors": len(listed.vectors),
        "negative": len(listed.negative),
        "large": len(listed.large),
    }
    assert found.worst is not None
    assert max(each.error for each in found.agreements) < 2e-13
    assert {each.vector for each in found.agreements} == {each.name for each in listed.vectors}


@pytest.mark.clause("VEC-15")
def test_verify_needs_no_ball_arithmetic(small) -> None:
    """A process in which python-flint cannot be imported."""
    code = (
        "import sys; sys.modules['flint'] = None; from pathlib import Path; from "
        "atlas_ref.vectors.sets.verify import verify; "
    )
    code += "print(verify(Path(sys.argv[1])).problems)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(small)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.clause("VEC-15")
def test_a_changed_byte(small) -> None:
    path = some_case(small)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    said = one_problem(small)
    assert said.startswith(f"SET: cases/{path.name}: its SHA-256 is ")
    assert "SHA256SUMS says" in said


@pytest.mark.clause("VEC-15")
def test_a_missing_file(small) -> None:
    path = some_case(small)
    path.unlink()
    assert one_problem(small) == f"SET: cases/{path.name}: missing; SHA256SUMS lists it"


@pytest.mark.clause("VEC-15")
def test_a_wrong_hash(small) -> None:
    sums = small / manifest.SUMS
    lines = sums.read_text().splitlines()
    lines[0] = ("1" if lines[0][0] == "0" else "0") + lines[0][1:]
    sums.write_text("\n".join(lines) + "\n")
    assert lines[0].split("  ")[1] in one_problem(small)


@pytest.mark.clause("VEC-8", "VEC-15")
def test_an_unknown_key(small) -> None:
    edited(small, lambda plain: plain["vectors"][0].update(colour="red"))
    with pytest.raises(CaseError, match=r"manifest\.json: vectors\.0\.colour: unknown key$"):
        verify(small)


@pytest.mark.clause("VEC-8", "VEC-15")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plain: plain.pop("version"), "version: missing"),
        (lambda plain: plain["vectors"][0].update(seed=-1), "seed: must be at least 0"),
        (lambda plain: plain["vectors"][0]["kills"].update(float16=[]), "unknown|must be"),
        (lambda plain: plain.update(format=2), "format: must be"),
        (
            lambda plain: plain["vectors"][0].update(file="../../outside.safetensors"),
            "file: must match",
        ),
        (lambda plain: plain["vectors"][0]["kills"].pop("float32"), "kills: float32: missing"),
        (
            lambda plain: plain["vectors"][0]["kills"]["bfloat16"].append("colour"),
            "kills.bfloat16: 'colour' is none of mutants",
        ),
        (lambda plain: plain["vectors"].append(plain["vectors"][0]), "vectors: '.*' stands twice"),
    ],
)
def test_a_manifest_that_is_none(change, said, small) -> None:
    edited(small, change)
    with pytest.raises(CaseError, match=said):
        verify(small)


@pytest.mark.clause("VEC-15")
def test_files_that_only_one_place_knows(small) -> None:
    (small / "cases" / "extra.safetensors").write_bytes(b"")
    assert (
        one_problem(small)
        == "SET: cases/extra.safetensors: neither in manifest.json nor in SHA256SUMS"
    )
    summed(small)
    assert one_problem(small) == "SET: cases/extra.safetensors: not in manifest.json"
    (small / "cases" / "extra.safetensors").unlink()
    sums = (small / manifest.SUMS).read_text().splitlines()
    kept = [line for line in sums if "delta" not in line and "extra" not in line]
    (small / manifest.SUMS).write_text("\n".join(kept) + "\n")
    assert all("no digest in SHA256SUMS" in line for line in verify(small).problems)


@pytest.mark.clause("VEC-15")
def test_a_wrong_value_with_the_right_hash(small) -> None:
    path = some_case(small)
    case = atlas_ref.load(path)
    wrong = {
        name: value + 1e-9 if name == "out/M" else value for name, value in case.recorded.items()
    }
    path.write_bytes(encode.tensor_bytes(case.header.plain(), {**case.inputs, **wrong}))
    summed(small)
    said = one_problem(small)
    assert "out/M: ours is " in said
    assert "at most 1e-12 is expected" in said


@pytest.mark.clause("VEC-8", "VEC-15")
@pytest.mark.parametrize("kind", ["vectors", "large"])
def test_another_rule_than_that_of_the_file(kind, small) -> None:
    edited(small, lambda plain: plain[kind][0].update(rule="omega"))
    assert re.search(
        r"^SET: (cases|large)/.*: rule (delta|newton_schulz), manifest.json says omega$",
        one_problem(small),
    )


@pytest.mark.clause("VEC-4", "VEC-15")
def test_an_input_that_bfloat16_does_not_hold(small) -> None:
    path = some_case(small)
    case = atlas_ref.load(path)
    path.write_bytes(
        encode.tensor_bytes(
            case.header.plain(),
            {**case.inputs, "in/k": case.inputs["in/k"] * 1.01, **case.recorded},
        )
    )
    summed(small)
    assert "in/k: holds a number that bfloat16 or float16 does not" in one_problem(small)


@pytest.mark.clause("VEC-15")
def test_a_result_that_is_left_out(small) -> None:
    path = some_case(small)
    case = atlas_ref.load(path)
    path.write_bytes(
        encode.tensor_bytes(case.header.plain(), {**case.inputs, "out/y": case.recorded["out/y"]})
    )
    summed(small)
    assert "out/M: results are not those of the case" in one_problem(small)


@pytest.mark.clause("VEC-13", "VEC-15")
def test_a_larger_case_with_another_projection(small) -> None:
    (path,) = (small / "large").glob("*.json")
    given = json.loads(path.read_text())
    given["results"]["out/X"]["projections"][3] += 1e-6
    path.write_bytes(encode.json_bytes(given))
    summed(small)
    assert "out/X: ours is " in one_problem(small)
    given["colour"] = 1
    path.write_bytes(encode.json_bytes(given))
    summed(small)
    assert "keys must be header, name, results, seed, tensors" in one_problem(small)


# -- negative cases --------------------------------------------------------------------------------


@pytest.mark.clause("VEC-11")
def test_every_code_is_used_and_told_from_the_message(shipped, listed) -> None:
    assert {each.code for each in listed.negative} == set(CODES)
    for each in listed.negative:
        with pytest.raises(CaseError) as refused:
            atlas_ref.load(shipped / each.file)
        assert code_of(refused.value) == each.code
        assert each.about in str(refused.value)


@pytest.mark.clause("VEC-11")
def test_what_is_said_of_every_negative_case(shipped, listed) -> None:
    lines = []
    for each in listed.negative:
        with pytest.raises(CaseError) as refused:
            atlas_ref.load(shipped / each.file)
        lines.append(
            f"{each.name} [{each.code}]: "
            f"{str(refused.value).removeprefix(f'{shipped / each.file}: ')}"
        )
    assert_golden("negative.txt", "\n".join(lines) + "\n", folder=GOLDEN)


@pytest.mark.clause("VEC-12")
def test_a_repair_is_the_least_and_makes_the_case_pass(shipped, listed) -> None:
    """A repair without its last step or with none, under which the file is still refused."""
    for each in listed.negative:
        data = (shipped / each.file).read_bytes()
        case = repair.repaired(data, each.repair, each.name)
        rows = atlas_ref.check(case)
        assert {row.verdict for row in rows} == {"PASS"}, each.name
        with pytest.raises(CaseError):
            repair.repaired(data, each.repair[:-1], each.name)


@pytest.mark.clause("VEC-12", "VEC-15")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda negative: negative.update(code="unknown-value"),
            "is refused as unknown-key .*, expected unknown-value about 'windw'",
        ),
        (
            lambda negative: negative.update(about="in/k"),
            "is refused as unknown-key .*, expected unknown-key about 'in/k'",
        ),
        (lambda negative: negative.update(code="colour"), "code 'colour' does not exist"),
        (
            lambda negative: negative.update(repair=[{"op": "unset", "key": "note"}]),
            "windw: unknown key",
        ),
        (lambda negative: negative.update(repair=[{"op": "paint"}]), "repair: no such step"),
        (
            lambda negative: negative.update(repair=[{"op": "append", "hex": "xy"}]),
            "repair: a step cannot be taken",
        ),
        (
            lambda negative: negative.update(repair=[{"op": "append", "hex": "00"}]),
            "repair: the file cannot be read after it",
        ),
        (
            lambda negative: negative.update(
                repair=[*negative["repair"], {"op": "drop", "tensor": "in/M0"}]
            ),
            "does not pass after its repair",
        ),
        (
            lambda negative: negative.update(file="cases/delta-edges.safetensors"),
            "is accepted, expected unknown-key",
        ),
    ],
)
def test_a_negative_case_that_is_not_what_it_says(change, said, small) -> None:
    edited(small, lambda plain: change(plain["negative"][0]))
    lines = [
        line
        for line in verify(small).problems
        if "neither" not in line and "not in manifest" not in line
    ]
    assert len(lines) == 1
    assert re.search(said, lines[0]), lines
