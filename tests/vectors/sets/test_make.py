"""The command make: the same bytes on every machine, in any number of processes, after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.cases.files import read
from atlas_ref.vectors.sets import build, encode, locate, manifest, plan

pytest.importorskip(
    "flint", reason="python-flint is not installed, and values are certified with it"
)


@pytest.fixture
def few(tmp_path: Path) -> str:
    """A plan of few vectors, as a file."""
    found = plan.load("v1")
    kept = [entry for entry in found.vectors if entry.target == "delta"]
    path = tmp_path / "few.json"
    few = found.replaced(vectors=kept, negative=found.negative[:2], large=["newton_schulz-64"])
    path.write_bytes(encode.json_bytes(few.model_dump(mode="json")))
    return str(path)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.clause("VEC-9")
def test_the_shipped_set_is_made_again_byte_for_byte(shipped, tmp_path) -> None:
    sizes = build.build("v1", tmp_path / "v1", jobs=2)
    made, want = contents(tmp_path / "v1"), contents(shipped)
    assert made.keys() == want.keys() == sizes.keys()
    assert [name for name in made if made[name] != want[name]] == []


@pytest.mark.clause("VEC-9")
def test_a_log_that_was_cut_short_is_completed(few, tmp_path, monkeypatch) -> None:
    log = tmp_path / "log"
    build.build(few, tmp_path / "one", resume=log)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:4]) + lines[4][:30])
    asked = []
    perform = build.Certifying.perform
    monkeypatch.setattr(
        build.Certifying,
        "perform",
        lambda self, source, kind, n: asked.append((kind, n)) or perform(self, source, kind, n),
    )
    build.build(few, tmp_path / "two", resume=log)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    # a log is no proof: everything is certified here, and what the log lacks is appended
    assert ("certify", 0) in asked
    assert len(asked) == len(lines) - 1
    after = log.read_bytes().splitlines(keepends=True)
    assert after[:4] == lines[:4]
    assert after[4] == lines[4][:30] + b"\n"
    assert after[5:] == lines[4:]


@pytest.mark.slow
@pytest.mark.clause("VEC-9")
def test_a_killed_make_goes_on(few, tmp_path) -> None:
    log, out = tmp_path / "log", tmp_path / "killed"
    words = [
        sys.executable,
        "-m",
        "atlas_ref.cli",
        "vectors",
        "make",
        few,
        "-o",
        str(out),
        "--resume",
        str(log),
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < 4):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / manifest.MANIFEST).exists() or process.returncode == 0
    assert subprocess.run(words, capture_output=True, check=True).stdout == b""
    build.build(few, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.clause("VEC-9")
def test_a_log_of_another_set_is_refused(few, tmp_path) -> None:
    log = tmp_path / "log"
    build.build(few, tmp_path / "one", resume=log)
    changed = json.loads(Path(few).read_text())
    changed["version"] = "2.0.0"
    Path(few).write_text(json.dumps(changed))
    with pytest.raises(CaseError, match="plan: the log is that of a set of vectors with"):
        build.build(few, tmp_path / "two", resume=log)
    log.write_text('{"atlas_ref_sweep": 1}\n')
    with pytest.raises(CaseError, match="not the log of a set of vectors"):
        build.build(few, tmp_path / "two", resume=log)


@pytest.mark.clause("VEC-9")
def test_a_set_is_replaced_and_anything_else_is_not(few, tmp_path) -> None:
    out = tmp_path / "out"
    build.build(few, out)
    stale = out / "cases" / "stale.safetensors"
    stale.write_bytes(b"")
    build.build(few, out)
    assert not stale.exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(CaseError, match="other: holds something else than a set"):
        build.build(few, other)
    assert (other / "letter.txt").read_text() == "dear"
    with pytest.raises(CaseError, match=r"letter\.txt: is no folder"):
        build.build(few, other / "letter.txt")
    with pytest.raises(CaseError, match=r"^x{300}: cannot be written: File name too long$"):
        build.build(few, Path("x" * 300))
    with pytest.raises(CaseError, match="does not exist"):
        build.build(few, tmp_path / "absent" / "set")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.clause("VEC-9")
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("letter.txt", lambda path: path.write_text("dear")),
        ("cases/letter.txt", lambda path: path.write_text("dear")),
        ("manifest.json.orig", lambda path: path.write_text("{}")),
        ("photos", lambda path: path.mkdir()),
        ("large/more", lambda path: path.mkdir()),
        (".git", lambda path: path.mkdir()),
        ("cases/link.safetensors", lambda path: path.symlink_to("/dev/null")),
        ("cases/pipe.safetensors", os.mkfifo),
    ],
)
def test_a_set_beside_which_something_lies_is_not_replaced(name, make, few, tmp_path) -> None:
    out = tmp_path / "out"
    build.build(few, out)
    make(out / name)
    before = contents(out)
    with pytest.raises(CaseError, match=f"out: holds {name}, which is no part of a set and would"):
        build.build(few, out)
    assert os.path.lexists(out / name)
    assert contents(out) == before


@pytest.mark.clause("VEC-9")
def test_a_manifest_of_something_else_is_not_replaced(few, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text('{"name": "a web application"}')
    with pytest.raises(CaseError, match=r"manifest\.json: name: unknown key$"):
        build.build(few, tmp_path / "out")
    assert "web" in (tmp_path / "out" / "manifest.json").read_text()


@pytest.mark.clause("VEC-9")
def test_a_file_that_was_put_there_meanwhile_is_not_lost(few, tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    build.build(few, out)
    perform = build.Certifying.perform

    def putting(self, source, kind, number):
        (out / "letter.txt").write_text("dear")
        return perform(self, source, kind, number)

    monkeypatch.setattr(build.Certifying, "perform", putting)
    with pytest.raises(CaseError, match=r"out: holds letter\.txt, which is no part of a set"):
        build.build(few, out)
    assert (out / "letter.txt").read_text() == "dear"


@pytest.mark.clause("VEC-9")
def test_a_link_is_followed_and_a_failure_leaves_everything_as_it_was(
    few, tmp_path, monkeypatch
) -> None:
    out, link = tmp_path / "out", tmp_path / "link"
    out.mkdir()
    link.symlink_to(out)
    log = tmp_path / "log"
    build.build(few, link, resume=log)
    assert link.is_symlink()
    before, replace = contents(out), os.replace
    (out / "cases" / "stale.safetensors").write_bytes(b"")

    def refused(source, target) -> None:
        if Path(target) == out and Path(source).name == "new":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(CaseError, match=r"out: cannot be written: No space left on device$"):
        build.build(few, link, resume=log)
    assert contents(out) == before | {"cases/stale.safetensors": b""}

    def interrupted(source, target) -> None:
        if Path(target) == out and Path(source).name == "new":
            raise SystemExit(143)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(SystemExit):
        build.build(few, link, resume=log)
    assert contents(out) == before | {"cases/stale.safetensors": b""}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plain: plain.update(version="1"), r"version: must match .*, found '1'$"),
        (lambda plain: plain.update(set="my set"), "set: must match .*, found 'my set'$"),
        (lambda plain: plain["vectors"].append(plain["vectors"][0]), "vectors: '.*' stands twice$"),
        (
            lambda plain: plain["vectors"][0]["kills"].pop("bfloat16"),
            "vectors.0.kills: bfloat16: missing$",
        ),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_before_any_work(change, said, few) -> None:
    plain = json.loads(Path(few).read_text())
    change(plain)
    Path(few).write_text(json.dumps(plain))
    with pytest.raises(CaseError, match=said):
        plan.load(few)


def test_a_plan_that_is_none(tmp_path) -> None:
    with pytest.raises(CaseError, match="there is no plan 'v9'; plans are v1"):
        build.build("v9", tmp_path / "x")
    path = tmp_path / "plan.json"
    path.write_text(
        '{"set": "a", "version": "1.0.0", "vectors": [], "negative": [], "large": [], "colour": 1}'
    )
    with pytest.raises(CaseError, match="colour: unknown key"):
        plan.load(str(path))
    path.write_text("[")
    with pytest.raises(CaseError, match=r"plan\.json: not JSON: "):
        plan.load(str(path))


def test_without_python_flint_there_is_one_line(few, tmp_path) -> None:
    code = (
        "import sys; sys.modules['flint'] = None; sys.argv[0] = 'atlas-ref'; from "
        "atlas_ref.cli.main import main; main()"
    )
    words = [sys.executable, "-c", code, "vectors", "make", few, "-o", str(tmp_path / "x")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("atlas-ref: ")
    assert "[certify]" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.clause("VEC-9")
def test_bytes_depend_on_content_alone(tmp_path) -> None:
    tensors = {
        "b": np.arange(6.0).reshape(2, 3),
        "a": np.zeros((0, 2), np.float32),
        "z": np.ones((), np.float64),
        "m": np.array([1, 0], np.uint8),
        "t": np.arange(6.0).reshape(2, 3).T,
    }
    header = {"schema": 1, "rule": "delta", "note": "ä"}
    data = encode.tensor_bytes(header, tensors)
    assert data == encode.tensor_bytes(
        dict(reversed(header.items())), dict(reversed(tensors.items()))
    )
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    for found in (safetensors.numpy.load_file(path), read(str(path))[1]):
        assert found.keys() == tensors.keys()
        assert all(
            np.array_equal(found[name], tensors[name]) and found[name].dtype == tensors[name].dtype
            for name in tensors
        )
    assert json.loads(read(str(path))[0]) == header
    assert (int.from_bytes(data[:8], "little") + 8) % 8 == 0


def test_json_is_sorted_and_reads_back() -> None:
    value = {
        "b": [1, 2.5, "x"],
        "a": {"d": [], "c": [{"y": 1, "x": [0.1]}]},
        "e": {},
        "f": [[1], [2]],
    }
    text = encode.json_bytes(value)
    assert json.loads(text) == value
    assert text.index(b'"a"') < text.index(b'"b"')
    assert text.endswith(b"}\n")


@pytest.mark.clause("VEC-14")
def test_sets_are_found_by_name_and_by_folder(shipped, tmp_path) -> None:
    assert locate.folder("v1") == shipped
    assert locate.folder(shipped) == shipped
    with pytest.raises(
        CaseError, match="set 'v9' is neither a folder nor a shipped set; shipped sets: v1"
    ):
        locate.folder("v9")
    with pytest.raises(CaseError, match=r"is a folder without manifest\.json"):
        locate.folder(tmp_path)
