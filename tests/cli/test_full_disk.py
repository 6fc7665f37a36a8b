"""A disk that is full under a command about models: one line with the file, exit code 2."""

from __future__ import annotations

import contextlib

import pytest

from atlas_ref.train import checkpoint, run
from atlas_ref.train.trained import load
from tests.support import trained

pytestmark = pytest.mark.host("trains in folders")


@contextlib.contextmanager
def room(size):
    """Let no file grow beyond so many bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource", reason="no system of POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.clause("TRAIN-12", "TRAIN-17", "EVAL-5", "EVAL-11", "PROBE-15")
@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("plot", "{run}", "-o", "{out}/a.png"), "a.png"),
        (("probe", "capacity", "--pairs", 2, "--seeds", 1, "-o", "{out}/a.svg"), "a.svg"),
        (
            ("probe", "needle", "{run}", "--lengths", 60, "--samples", 1, "-o", "{out}/a.png"),
            "a.png",
        ),
        (("train", "--data", "{text}", "--dim", 8, "--out", "{out}/run"), "run/run.json"),
        (
            ("evaluate", "--watch", "{run}", "--once", "--seq-len", 16, "-o", "{out}/a.jsonl"),
            "a.jsonl",
        ),
    ],
    ids=lambda each: str(each[:2]) if isinstance(each, tuple) else "",
)
def test_a_full_disk_is_one_line_with_the_file(words, file, cli, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    places = {"run": trained.folder(), "text": trained.text(), "out": tmp_path}
    with room(64):
        ran = cli(*(str(each).format(**places) for each in words))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"atlas-ref: {tmp_path / file}: cannot be written: File too large\n"


@pytest.mark.clause("TRAIN-12", "TRAIN-15")
def test_a_run_on_a_full_disk_leaves_its_last_checkpoint_whole(cli, tmp_path):
    """The log fits, and no checkpoint; where room comes the run goes on from the one that is left."""
    folder = trained.copied(tmp_path / "run")
    back = ("train", "--out", folder, "--resume", "--rollback", 1)
    with room(4096):
        ran = cli(*back)
    last = folder / checkpoint.NAME.format(2)
    assert ran.code == 2
    assert ran.err.endswith(f"atlas-ref: {last}: cannot be written: File too large\n")
    assert checkpoint.steps(folder) == [1, 0]
    assert load(folder).step == 1
    assert cli(*back).code == 0
    assert last.read_bytes() == (trained.folder() / last.name).read_bytes()
    assert (folder / run.MODEL).read_bytes() == trained.model().read_bytes()
