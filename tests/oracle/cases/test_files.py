"""Writing and reading files: bit for bit, whole or not at all."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import atlas_ref
from atlas_ref.oracle.cases import files
from tests.support.casefiles import NAMES, some, written
from tests.support.close import EXACT, assert_close

HEADER = {"schema": 1, "rule": "omega", "note": "a 'quoted' né\u0301e \U0001f9e0 \\ \n line"}

ARRAYS = {
    "scalar": np.array(-0.0),
    "empty": np.zeros((2, 0, 3)),
    "specials": np.array(
        [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, np.finfo(float).max]
    ),
    "float32": np.linspace(-1, 1, 6, dtype=np.float32).reshape(1, 2, 3),
    "float16": np.linspace(-1, 1, 6).astype(np.float16),
    "bfloat16": np.linspace(-1, 1, 6).astype(ml_dtypes.bfloat16),
    "float8": np.linspace(-1, 1, 6).astype(ml_dtypes.float8_e4m3fn),
    "bool": np.array([[True, False]]),
    "uint8": np.arange(256, dtype=np.uint8),
    "int64": np.array([-(2**63), 2**63 - 1]),
    "complex64": np.array([1 + 2j], np.complex64),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "strided": np.arange(10.0)[::3],
}


@pytest.mark.clause("CASE-1")
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path):
    file = tmp_path / "file"
    atlas_ref.save(file, HEADER, {f"trace/{name}": array for name, array in ARRAYS.items()})
    text, tensors = files.read(str(file))
    assert json.loads(text) == HEADER
    assert tensors.keys() == {f"trace/{name}" for name in ARRAYS}
    for name, array in ARRAYS.items():
        assert_close(
            name, tensors[f"trace/{name}"], np.ascontiguousarray(array).reshape(array.shape), EXACT
        )


def test_big_endian_arrays_are_stored_little_endian(tmp_path):
    atlas_ref.save(
        tmp_path / "file",
        HEADER,
        {"out/y": np.array([1.5, -2.0], ">f8"), "out/M": np.array([[0.5]], ">f4")},
    )
    _, tensors = files.read(str(tmp_path / "file"))
    assert_close("y", tensors["out/y"], np.array([1.5, -2.0]), EXACT)
    assert_close("M", tensors["out/M"], np.array([[0.5]], np.float32), EXACT)


@pytest.mark.clause("CASE-1")
def test_a_saved_case_is_the_same_case_and_the_same_bytes(tmp_path):
    header, tensors = some(window=3, history=2, reset=2, dtype="bfloat16")
    first, second = tmp_path / "first", tmp_path / "second"
    atlas_ref.save(first, header, dict(reversed(tensors.items())))
    case = atlas_ref.load(first)
    assert case == atlas_ref.make(header, tensors, name=str(first))
    atlas_ref.save(second, case.header.plain(), case.inputs)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.clause("CASE-1")
def test_the_container_is_the_one_that_safetensors_reads(tmp_path):
    """Our writer against the library's reader, and the library's writer against ours."""
    header, tensors = some()
    atlas_ref.save(tmp_path / "ours", header, tensors)
    for name, array in safetensors.numpy.load_file(tmp_path / "ours").items():
        assert_close(name, array, tensors[name], EXACT)
    safetensors.numpy.save_file(
        tensors,
        tmp_path / "theirs",
        metadata={"atlas_ref": json.dumps(header), "format": "np"},
    )
    assert atlas_ref.load(tmp_path / "theirs").inputs.keys() == tensors.keys()


def test_every_dtype_of_a_hand_written_file_is_read(tmp_path):
    arrays = {
        f"trace/{kind}": np.zeros(2, ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
        for kind in NAMES
    }
    _, tensors = files.read(str(written(tmp_path / "file", HEADER, arrays)))
    assert {name: array.dtype for name, array in tensors.items()} == {
        name: array.dtype for name, array in arrays.items()
    }


@pytest.mark.clause("CASE-19")
@pytest.mark.parametrize("place", ["fdopen", "chmod", "replace"])
def test_a_failing_write_leaves_the_old_file_and_no_other(place, monkeypatch, tmp_path):
    target = tmp_path / "out"
    target.write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, place, fail)
        with pytest.raises(atlas_ref.CaseError) as refusal:
            atlas_ref.save(target, HEADER, {"out/y": np.zeros(3)})
    assert str(refusal.value) == f"{target}: cannot be written: No space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert target.read_bytes() == b"old"


@pytest.mark.clause("CASE-19")
def test_an_interrupted_write_leaves_the_old_file_and_no_other(monkeypatch, tmp_path):
    target = tmp_path / "out"
    target.write_bytes(b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "chmod", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atlas_ref.save(target, HEADER, {"out/y": np.zeros(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert target.read_bytes() == b"old"


@pytest.mark.clause("CASE-19")
def test_the_name_appears_only_when_the_file_is_whole(monkeypatch, tmp_path):
    target = tmp_path / "out"
    seen = []
    replace = os.replace

    def watched(source, destination):
        seen.append((target.exists(), len(os.listdir(tmp_path)), os.path.dirname(source)))
        files.read(source)
        replace(source, destination)

    monkeypatch.setattr(os, "replace", watched)
    atlas_ref.save(target, HEADER, {"out/y": np.zeros(3)})
    assert seen == [(False, 1, str(tmp_path))]


def test_a_file_has_the_mode_that_the_umask_leaves(tmp_path):
    for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            atlas_ref.save(tmp_path / "out", HEADER, {"out/y": np.zeros(3)})
        finally:
            after = os.umask(before)
        assert after == mask
        assert (tmp_path / "out").stat().st_mode & 0o777 == mode


def test_writing_through_a_link_writes_what_it_names_and_keeps_the_link(tmp_path):
    named, link = tmp_path / "named", tmp_path / "link"
    named.write_bytes(b"old")
    link.symlink_to(named)
    atlas_ref.save(link, HEADER, {"out/y": np.zeros(3)})
    assert link.is_symlink()
    assert named.read_bytes() != b"old"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["link", "named"]


@pytest.mark.parametrize("length", [230, 255])
def test_any_name_that_the_system_takes_is_written(length, tmp_path):
    atlas_ref.save(tmp_path / ("x" * length), HEADER, {"out/y": np.zeros(3)})
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("header", "tensors", "message"),
    [
        (HEADER, {"out/y": np.array([None])}, "out/y: dtype object cannot be stored"),
        (HEADER, {"out/y": np.array(["a"])}, "out/y: dtype <U1 cannot be stored"),
        (HEADER, {"out/y": np.zeros(2, np.longdouble)}, "out/y: dtype float128 cannot be stored"),
        ({**HEADER, "note": np.zeros(2)}, {}, "Object of type ndarray is not JSON serializable"),
        (
            {**HEADER, "parameters": {"a": float("nan")}},
            {},
            "Out of range float values are not JSON compliant",
        ),
    ],
)
def test_what_the_format_cannot_hold_is_refused(header, tensors, message, tmp_path):
    with pytest.raises(atlas_ref.CaseError) as refusal:
        atlas_ref.save(tmp_path / "out", header, tensors)
    assert str(refusal.value).startswith(f"{tmp_path / 'out'}: {message}")
    assert list(tmp_path.iterdir()) == []
