"""Bad files: refused in one line, never with a traceback, never with half a result."""

import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from tests.support.casefiles import GONE, changed, raw, some, written
from tests.support.refusal import refused_everywhere

HEADER, TENSORS = some("delta", tokens=2, d_in=2, d_out=2, heads=1)
TEXT = json.dumps(HEADER)


def whole(folder):
    return written(folder / "case.safetensors", HEADER, TENSORS).read_bytes()


def nested(levels):
    inside = "".join('{"a":' for _ in range(levels - 2)) + "1" + "}" * (levels - 2)
    return f'{{"schema": 1, "rule": "ttl", "parameters": {inside}}}'


BYTES = {
    "empty": (b"", "not a whole safetensors file: "),
    "some text": (b"in/k = [1, 2, 3]", "not a whole safetensors file: "),
    "a length alone": (b"\x10" + bytes(7), "not a whole safetensors file: "),
    "a length beyond the file": (b"\xff" * 8 + b"{}", "not a whole safetensors file: "),
    "a header that is no JSON": (b"\x04" + bytes(7) + b"{\"a\"", "not a whole safetensors file: "),
    "no metadata": (b"\x02" + bytes(7) + b"{}", "metadata key 'atlas_ref': missing, a case needs its JSON object there"),
}  # fmt: skip

TEXTS = {
    "nothing": ("", "atlas_ref: not JSON: "),
    "half an object": ('{"schema": 1', "atlas_ref: not JSON: "),
    "two objects": (TEXT + TEXT, "atlas_ref: not JSON: Extra data"),
    "a byte order mark": ("\ufeff" + TEXT, "atlas_ref: not JSON: "),
    "single quotes": (TEXT.replace('"', "'"), "atlas_ref: not JSON: "),
    "an array": ("[1, 2]", "atlas_ref: must be a JSON object, found [1, 2]"),
    "a word": ('"omega"', 'atlas_ref: must be a JSON object, found "omega"'),
    "null": ("null", "atlas_ref: must be a JSON object, found null"),
    "NaN": ('{"schema": 1, "rule": "omega", "window": NaN}', "atlas_ref: NaN is not JSON"),
    "-Infinity": (
        '{"schema": 1, "rule": "ttl", "parameters": {"a": -Infinity}}',
        "atlas_ref: -Infinity is not JSON",
    ),
    "1e999": (
        '{"schema": 1, "rule": "ttl", "parameters": {"a": 1e999}}',
        "atlas_ref: the number 1e999 is beyond float64",
    ),
    "an integer of 5000 digits": (
        f'{{"schema": 1, "rule": "omega", "span": {"9" * 5000}}}',
        "atlas_ref: the integer 99999999999999999999... has more than 18 digits",
    ),
    "101 levels": (nested(102), "atlas_ref: nested more than 100 levels deep"),
    "900 levels": (nested(900), "atlas_ref: nested more than 100 levels deep"),
    "100000 levels": ("[" * 100_000, "atlas_ref: nested more than 100 levels deep"),
    "a key twice": (
        '{"schema": 1, "rule": "omega", "rule": "delta"}',
        "atlas_ref: key 'rule' stands twice",
    ),
    "an axis twice": (
        '{"schema": 1, "rule": "omega", "convention": {"read": "after", "read": "before"}}',
        "atlas_ref: key 'read' stands twice",
    ),
    "half a character": (
        '{"schema": 1, "rule": "omega", "note": "\\ud800"}',
        "atlas_ref: not JSON: half of a surrogate pair stands alone",
    ),
}


@pytest.mark.clause("CASE-1", "CASE-16", "CASE-17")
@pytest.mark.parametrize("name", BYTES)
def test_a_file_that_is_no_case_is_refused_in_one_line(name, cli, tmp_path):
    content, message = BYTES[name]
    file = tmp_path / "bad.safetensors"
    file.write_bytes(content)
    refused_everywhere(file, message, cli, tmp_path)


@pytest.mark.clause("CASE-1", "CASE-2", "CASE-17")
@pytest.mark.parametrize("name", TEXTS)
def test_metadata_that_is_no_header_is_refused_in_one_line(name, cli, tmp_path):
    text, message = TEXTS[name]
    refused_everywhere(written(tmp_path / "bad.safetensors", text, TENSORS), message, cli, tmp_path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (GONE, "metadata key 'atlas_ref': missing"),
        ({}, "metadata key 'atlas_ref': missing"),
        ({"format": "np"}, "metadata key 'atlas_ref': missing"),
        ({"atlas_ref": HEADER}, "not a whole safetensors file: invalid JSON in header: "),
        ("atlas_ref", "not a whole safetensors file: invalid JSON in header: "),
    ],
)
def test_metadata_must_hold_the_header_as_a_string(metadata, message, cli, tmp_path):
    refused_everywhere(raw(tmp_path / "bad.safetensors", TENSORS, metadata), message, cli, tmp_path)


@pytest.mark.clause("CASE-1")
def test_a_tensor_or_metadata_that_stands_twice_is_refused(cli, tmp_path):
    """Two empty copies of a tensor, since the container refuses bytes with no owner or with two."""
    file = tmp_path / "bad.safetensors"
    empty = '"in/k":{"dtype":"F64","shape":[0],"data_offsets":[0,0]}'
    metadata = f'"__metadata__":{{"atlas_ref":{json.dumps(TEXT)}}}'
    for content, name in (
        (f"{{{metadata},{empty},{empty}}}", "in/k"),
        (f"{{{metadata},{metadata}}}", "__metadata__"),
    ):
        file.write_bytes(len(content).to_bytes(8, "little") + content.encode())
        refused_everywhere(file, "", cli, tmp_path)
        with pytest.raises(atlas_ref.CaseError, match=f"duplicate|key '{name}' stands twice"):
            atlas_ref.load(file)


@pytest.mark.parametrize(
    "tensor",
    [
        ("F65", (2,), bytes(16)),
        ("F64", (3,), bytes(16)),
        ("F64", (-1,), bytes(16)),
        ("F64", (2**62, 8), bytes(16)),
    ],
    ids=["unknown dtype", "too few bytes", "negative axis", "axes that overflow"],
)
def test_a_tensor_entry_that_contradicts_itself_is_refused(tensor, cli, tmp_path):
    file = raw(
        tmp_path / "bad.safetensors", changed(TENSORS, {"in/k": tensor}), {"atlas_ref": TEXT}
    )
    refused_everywhere(file, "not a whole safetensors file: ", cli, tmp_path)


@pytest.mark.clause("CASE-17")
def test_a_file_cut_anywhere_is_refused(tmp_path):
    data = whole(tmp_path)
    file = tmp_path / "cut"
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(atlas_ref.CaseError, match="not a whole safetensors file"):
            atlas_ref.load(file)
    file.write_bytes(data + b"\0")
    with pytest.raises(atlas_ref.CaseError, match="not a whole safetensors file"):
        atlas_ref.load(file)


def test_a_damaged_header_is_read_or_refused_but_never_a_crash(tmp_path):
    data = whole(tmp_path)
    end = 8 + int.from_bytes(data[:8], "little")
    random = np.random.default_rng(0)
    file = tmp_path / "damaged"
    refusals = []
    for place in range(end):
        damaged = bytearray(data)
        damaged[place] ^= int(random.integers(1, 256))
        file.write_bytes(damaged)
        try:
            atlas_ref.load(file)
        except atlas_ref.CaseError as error:
            refusals.append(str(error))
    assert len(refusals) > 0.9 * end
    assert all(line.startswith(f"{file}: ") and "\n" not in line for line in refusals)


@pytest.mark.clause("CASE-17")
def test_what_is_no_file_is_refused_by_name(cli, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
    for path, message in (
        (tmp_path / "absent", "no such file"),
        (tmp_path / "absent" / "case", "no such file"),
        (
            folder,
            "is a folder; a case file, or for check a folder with .safetensors files, is needed",
        ),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path / "socket", "is not a regular file"),
        (Path("/dev/null"), "is not a regular file"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
    ):
        for arguments in (("show", path), ("eval", path, "-o", tmp_path / "out"), ("check", path)):
            ran = cli(*arguments)
            assert (ran.code, ran.out, ran.err) == (2, "", f"atlas-ref: {path}: {message}\n")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_too_large_by_far_is_refused_by_its_header(cli, tmp_path):
    """A sparse file far too large to read, refused by its header.

    A disk holds such a file in a few blocks; no machine reads it in a second.
    """
    case = written(tmp_path / "case", HEADER, TENSORS)
    zeros = tmp_path / "zeros"
    zeros.touch()
    for path, words in (
        (case, "incomplete metadata, file not fully covered"),
        (zeros, "invalid JSON in header"),
    ):
        os.truncate(path, 2**42)
        ran = cli("show", path)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"atlas-ref: {path}: not a whole safetensors file: {words}")


def test_a_file_without_permission_is_refused(monkeypatch, tmp_path):
    file = written(tmp_path / "case.safetensors", HEADER, TENSORS)

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(atlas_ref.CaseError) as refusal:
        atlas_ref.load(file)
    assert str(refusal.value) == f"{file}: cannot be read: Permission denied"


@pytest.mark.clause("CASE-17")
@pytest.mark.parametrize(
    ("header", "tensors", "message"),
    [
        (
            {"schema": 1, "rule": {1, 2}},
            TENSORS,
            "case: Object of type set is not JSON serializable",
        ),
        (
            {"schema": 1, "rule": "delta", "span": float("nan")},
            TENSORS,
            "case: atlas_ref: NaN is not JSON",
        ),
        (3, TENSORS, "case: 'int' object is not iterable"),
        (HEADER, {**TENSORS, "in/k": [[1.0, 2.0]]}, "case: in/k: an array is needed, found list"),
        (HEADER, {**TENSORS, 3: TENSORS["in/k"]}, "case: 3: tensor names start with in/, out/, "),
        (
            HEADER,
            {**TENSORS, "in/k": np.array([[None, None]])},
            "case: in/v: shape (1, 2, 2) makes leading axes (1,), ",
        ),
        (
            HEADER,
            {**TENSORS, "in/k": np.array([[["a", "b"]] * 2])},
            "case: in/k: dtype str32, float64, ",
        ),
        (
            HEADER,
            {},
            "case: no in/... tensor: these are results or an empty file, and a case needs inputs",
        ),
    ],
)
def test_bad_input_from_memory_is_refused_with_the_same_words(header, tensors, message):
    with pytest.raises(atlas_ref.CaseError) as refusal:
        atlas_ref.make(header, tensors)
    assert str(refusal.value).startswith(message)
