"""The command diff: each difference of two sets, and nothing else."""

from __future__ import annotations

import json

import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.vectors.sets import encode, manifest
from atlas_ref.vectors.sets.diff import diff, told


def saved(folder, plain) -> None:
    """Write the manifest, and digests of the files."""
    (folder / manifest.MANIFEST).write_bytes(encode.json_bytes(plain))
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != manifest.SUMS
    }
    (folder / manifest.SUMS).write_bytes(manifest.sums(files))


@pytest.mark.clause("VEC-19")
def test_a_set_and_its_copy(shipped, spoilt) -> None:
    assert diff(shipped, spoilt) == []


@pytest.mark.clause("VEC-19")
def test_every_kind_of_change_is_told(shipped, listed, spoilt) -> None:
    plain = listed.plain()
    plain["version"] = "1.1.0"
    gone, changed, renamed = plain["vectors"][0], plain["vectors"][1], plain["vectors"][2]
    plain["vectors"].remove(gone)
    (spoilt / gone["file"]).unlink()
    case = atlas_ref.load(spoilt / changed["file"])
    tensors = {**case.inputs, **case.recorded}
    M = tensors["out/M"].copy()
    M.flat[1] *= 1 + 2**-50
    tensors |= {"out/M": M, "in/v": tensors["in/v"][..., :1, :]}
    del tensors["in/M0"]
    (spoilt / changed["file"]).write_bytes(
        encode.tensor_bytes(case.header.plain() | {"note": "new"}, tensors)
    )
    lost = changed["kills"]["bfloat16"].pop(0)
    old_name, renamed["name"] = renamed["name"], "another"
    path = spoilt / plain["large"][0]["file"]
    recipe = json.loads(path.read_text())
    recipe["results"]["out/y"]["max"] *= 2
    path.write_bytes(encode.json_bytes(recipe))
    plain["negative"][0]["code"] = "range"
    saved(spoilt, plain)
    lines = told(diff(shipped, spoilt))
    name = changed["name"]
    want = [
        'metadata: version: "1.0.0" -> "1.1.0"',
        f"vectors: {gone['name']}: removed",
        f"vectors: {old_name}: removed",
        "vectors: another: added",
        f"vectors: {name}: kills.bfloat16: lost {lost}",
        f'vectors: {name}: header.note: absent -> "new"',
        f"vectors: {name}: in/M0: removed",
        f'negative: {plain["negative"][0]["name"]}: code: "{listed.negative[0].code}" -> "range"',
    ]
    for line in want:
        assert line in lines, line
    (moved,) = [line for line in lines if f"{name}: out/M: " in line]
    assert f"1 of {M.size} entries, most at " in moved
    assert "units in the last place" in moved
    (cut,) = [line for line in lines if f"{name}: in/v: " in line]
    assert "float32 [" in cut
    assert any(
        line.startswith(f"large: {plain['large'][0]['name']}: results.out/y.max: ")
        for line in lines
    )
    assert len(lines) == len(want) + 3


@pytest.mark.clause("VEC-19")
def test_the_same_numbers_in_other_bytes(shipped, listed, spoilt) -> None:
    file = listed.vectors[0].file
    case = atlas_ref.load(spoilt / file)
    header = {key: value for key, value in case.header.plain().items() if key != "gate_axis"}
    atlas_ref.save(spoilt / file, header, {**case.inputs, **case.recorded})
    saved(spoilt, listed.plain())
    assert told(diff(shipped, spoilt)) == [
        f"vectors: {listed.vectors[0].name}: the same numbers in other bytes"
    ]


@pytest.mark.clause("VEC-19")
def test_bytes_are_compared_whatever_the_digests_say(shipped, listed, spoilt) -> None:
    path = spoilt / listed.vectors[0].file
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (line,) = told(diff(shipped, spoilt))
    assert line.startswith(f"vectors: {listed.vectors[0].name}: ")
    path.unlink()
    with pytest.raises(CaseError, match=f"{path.name}: cannot be read: No such file or directory$"):
        diff(shipped, spoilt)
    path.write_bytes(whole)
    sums = spoilt / manifest.SUMS
    sums.write_text(("1" if sums.read_text()[0] == "0" else "0") + sums.read_text()[1:])
    (line,) = told(diff(shipped, spoilt))
    assert line.startswith("metadata: SHA256SUMS: another digest of ")


def test_a_folder_without_a_set_is_refused(shipped, tmp_path) -> None:
    with pytest.raises(CaseError, match=r"is no set of vectors: it has no SHA256SUMS"):
        diff(shipped, tmp_path)
