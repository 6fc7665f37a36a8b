"""The same sweep in one process, in several, on a cluster and after a kill: bit-equal results.

The cluster loses a worker.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from atlas_ref.backend import cluster as workers
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.sweep import modes as sweep_modes
from atlas_ref.oracle.sweep.log import Log
from atlas_ref.oracle.sweep.sweep import Named, Sweep, sweep
from tests.oracle.sweep.test_sweep import PLAIN, kernel

ROOT = Path(__file__).parents[3]
NAMED = Named("function", "tests.sweep_kernels:no_pulse")
CASES = 40


class Kept(NamedTuple):
    """Everything that a sweep leaves behind."""

    found: Sweep
    lines: list[str]
    files: dict[str, bytes]


def swept(folder: Path, **mode: Any) -> Kept:
    found = sweep(
        "delta",
        NAMED,
        cases=CASES,
        choices=PLAIN,
        folder=folder / "out",
        resume=folder / "log",
        keep=3,
        **mode,
    )
    return kept(folder, found)


def kept(folder: Path, found: Sweep) -> Kept:
    files = {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}
    return Kept(found, sorted((folder / "log").read_text().splitlines()), files)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A sweep in this process, without interruption."""
    made = swept(tmp_path_factory.mktemp("alone"))
    assert made.found.counts["WRONG"] > 5
    assert made.found.counts["PASS"] > 5
    assert len(made.files) == 3
    assert len(made.lines) == 1 + CASES + 3
    return made


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


# -- processes -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.clause("SWEEP-8")
def test_two_processes_find_the_same(alone: Kept, tmp_path: Path) -> None:
    assert swept(tmp_path, jobs=2) == alone


@pytest.mark.slow
@pytest.mark.clause("SWEEP-10")
def test_a_process_that_is_killed_is_replaced(
    alone: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, words: list[str], **how: Any) -> None:
            super().__init__(words, **how)
            started.append(self)

    monkeypatch.setattr(sweep_modes.subprocess, "Popen", Watched)
    killed: list[int] = []

    def kill_one(doing: str, done: int, of: int) -> None:
        if doing == "judge" and done == CASES // 3:
            killed.append(started[0].pid)
            os.kill(started[0].pid, signal.SIGKILL)

    assert swept(tmp_path, jobs=2, progress=kill_one) == alone
    mine = [each for each in started if "atlas_ref.oracle.sweep.worker" in each.args]  # type: ignore[operator]
    assert len(killed) == 1
    assert len(mine) == 2 + 1 + 2  # two to judge, one in place of the killed, two to shrink
    assert all(each.poll() is not None for each in started)


@pytest.mark.slow
def test_a_task_that_ends_every_process_is_one_line(tmp_path: Path) -> None:
    """An unprotected source, not named on the command line, which ends its process."""
    with pytest.raises(
        CaseError,
        match="sweep: case 0: every process that computed it ended before its answer, 4 of them",
    ):
        sweep("delta", ends_its_process, cases=1, folder=tmp_path, jobs=2)


def ends_its_process(case: Any) -> Any:
    os._exit(1)


def test_a_source_that_cannot_be_sent_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="cannot be sent to other processes, give its name instead"):
        sweep("delta", kernel("right"), cases=2, folder=tmp_path, jobs=2)


@pytest.mark.slow
def test_bad_input_in_a_process_is_one_line_here(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"impl tests\.sweep_kernels:nothing: AttributeError"):
        sweep(
            "delta",
            Named("function", "tests.sweep_kernels:nothing"),
            cases=2,
            folder=tmp_path,
            jobs=2,
        )


# -- the log ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.clause("SWEEP-9")
def test_a_sweep_that_was_killed_goes_on(alone: Kept, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "atlas_ref.cli",
        "sweep",
        "delta",
        "--impl",
        "tests.sweep_kernels:no_pulse",
        "--convention",
        "spec",
    ]
    words += [
        "--fix",
        "level=projected",
        "--cases",
        str(CASES),
        "--keep",
        "3",
        "-o",
        str(tmp_path / "out"),
        "--resume",
        str(tmp_path / "log"),
    ]
    env = {**os.environ, "ATLAS_REF_TEST_PAUSE": "0.03"}
    killed = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    log = tmp_path / "log"
    wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") > CASES // 4)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    before = log.read_text().splitlines()
    assert CASES // 4 < len(before) < 1 + CASES
    with log.open("a") as stream:
        # as a kill in the middle of a write leaves it
        stream.write('{"case": 39, "drawn": null, "ro')
    assert kept(tmp_path, swept(tmp_path).found).found == alone.found
    after = log.read_text().splitlines()
    assert after[: len(before)] == before
    # nothing was done twice
    assert sorted(line for line in after if not line.endswith('"ro')) == alone.lines
    assert swept(tmp_path).found == alone.found
    assert log.read_text().splitlines() == after


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.clause("SWEEP-9")
def test_a_longer_sweep_goes_on_from_a_shorter(tmp_path: Path) -> None:
    short = sweep(
        "delta", kernel("right"), cases=10, choices=PLAIN, folder=tmp_path, resume=tmp_path / "log"
    )
    done: list[tuple[str, int, int]] = []
    longer = sweep(
        "delta",
        kernel("right"),
        cases=20,
        choices=PLAIN,
        folder=tmp_path,
        resume=tmp_path / "log",
        progress=lambda *at: done.append(at),
    )
    assert done[0] == ("judge", 10, 20)
    assert (short.counts, longer.counts) == ({"PASS": 10}, {"PASS": 20})


LOGS = {
    "another-seed": (
        '{"atlas_ref_sweep": 1, "seed": 5}\n',
        "choices: the log is that of a sweep with null",
    ),
    "foreign": ("hello\n", "not the log of a sweep: its first line has no 'atlas_ref_sweep' 1"),
    "cut-short": (
        '{"atlas_ref_sw',
        "not the log of a sweep: its first line has no 'atlas_ref_sweep' 1",
    ),
    "binary": ("\x00\x01\n", "not the log of a sweep: its first line has no 'atlas_ref_sweep' 1"),
    "a-list": ("[1]\n", "not the log of a sweep: its first line has no 'atlas_ref_sweep' 1"),
    "later-version": (
        '{"atlas_ref_sweep": 2}\n',
        "not the log of a sweep: its first line has no 'atlas_ref_sweep' 1",
    ),
}


@pytest.mark.clause("SWEEP-9")
@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_something_else_is_refused(name: str, tmp_path: Path) -> None:
    text, message = LOGS[name]
    log = tmp_path / "log"
    log.write_text(text)
    with pytest.raises(CaseError) as refusal:
        sweep("delta", kernel("right"), cases=2, folder=tmp_path, resume=log)
    assert str(refusal.value).startswith(f"{log}: {message}")
    assert log.read_text() == text


@pytest.mark.clause("SWEEP-9")
def test_a_log_of_another_sweep_is_refused_by_the_key_that_differs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    sweep("delta", kernel("right"), cases=1, folder=tmp_path, resume=log)
    text = log.read_text()
    for change, message in (
        ({"seed": 1}, "seed: the log is that of a sweep with 0, this one has 1"),
        ({"dtype": "float32"}, "dtype: "),
    ):
        with pytest.raises(CaseError) as refusal:
            sweep("delta", kernel("right"), cases=1, folder=tmp_path, resume=log, **change)
        assert str(refusal.value).startswith(f"{log}: {message}")
    assert log.read_text() == text


@pytest.mark.clause("SWEEP-9")
@pytest.mark.parametrize(
    "line",
    [
        '{"task": "judge", "case": "three"}',
        '{"task": "judge", "case": 0, "verdict": "PASS", "row": {}, "drawn": null}',
        '{"task": "boil", "case": 0}',
        '{"seed": 3}',
    ],
)
def test_a_whole_line_that_no_sweep_writes_is_refused_by_its_number(
    line: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    sweep("delta", kernel("right"), cases=2, folder=tmp_path, resume=log)
    # the one before it counts as cut short
    text = log.read_text() + "[" * 9999 + "\n" + line + "\n"
    log.write_text(text)
    with pytest.raises(CaseError) as refusal:
        sweep("delta", kernel("right"), cases=2, folder=tmp_path, resume=log)
    assert str(refusal.value) == f"{log}: line 5: not what a sweep writes there"
    assert log.read_text() == text


@pytest.mark.clause("SWEEP-9")
def test_a_pipe_or_device_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/full")):
        with pytest.raises(CaseError, match=f"^{path}: is not a regular file"):
            sweep("delta", kernel("right"), cases=1, folder=tmp_path, resume=path)


@pytest.mark.clause("SWEEP-9")
def test_a_failure_whose_file_is_gone_is_shrunk_again(tmp_path: Path) -> None:
    def found(folder: str) -> Sweep:
        return sweep(
            "delta",
            kernel("no_pulse"),
            cases=6,
            choices=PLAIN,
            folder=tmp_path / folder,
            resume=tmp_path / "log",
            keep=1,
        )

    first = found("here")
    (name,) = (path.name for path in (tmp_path / "here").iterdir())
    assert found("there") == first
    assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_a_log_in_no_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="none does not exist"):
        sweep("delta", kernel("right"), cases=1, folder=tmp_path, resume=tmp_path / "none" / "log")


def test_every_line_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    line = {"task": "judge", "case": 3, "verdict": "PASS", "drawn": None}
    line |= {"row": {"tensor": "out/y", "error": 0.1, "tolerance": 1.0, "why": ""}}
    with Log(tmp_path / "log", {"seed": 0}) as log:
        log.append(line)
        assert [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()][1][
            "case"
        ] == 3
    with Log(tmp_path / "log", {"seed": 0}) as log:
        assert log.known == {("judge", 3): line}


# -- Dask ------------------------------------------------------------------------------------------

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="dask and distributed are not installed: pip install 'atlas-ref[cluster]'",
)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two workers, each a process with one thread."""
    import distributed

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as made:
        yield made


@pytest.mark.slow
@needs_dask
@pytest.mark.clause("SWEEP-10")
def test_a_cluster_that_loses_a_worker_finds_the_same(
    alone: Kept, cluster: Any, tmp_path: Path
) -> None:
    victim = next(iter(cluster.workers.values())).pid
    killed: list[int] = []

    def kill_one(doing: str, done: int, of: int) -> None:
        if doing == "judge" and done == CASES // 3:
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    assert swept(tmp_path, scheduler=cluster.scheduler_address, progress=kill_one) == alone
    assert killed == [victim]
    assert victim not in [each.pid for each in cluster.workers.values()]


@pytest.mark.slow
@needs_dask
@pytest.mark.clause("SWEEP-9", "SWEEP-10")
def test_a_scheduler_that_is_lost_is_one_line_and_the_log_goes_on_without_it(
    alone: Kept, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place, env = tmp_path / "scheduler.json", {**os.environ, "PYTHONPATH": str(ROOT)}

    def started(*words: str) -> subprocess.Popen[bytes]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(
            [sys.executable, "-m", *words, "--no-dashboard", "--scheduler-file", str(place)],
            env=env,
            **quiet,
        )

    scheduler = started("distributed.cli.dask_scheduler", "--port", "0", "--host", "127.0.0.1")
    wait_until(lambda: place.exists() and bool(place.read_text()))
    worker = started("distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1")

    def kill(doing: str, done: int, of: int) -> None:
        if done == CASES // 3:
            scheduler.kill()

    try:
        with pytest.raises(CaseError, match=r"the connection to tcp://.* was lost"):
            swept(tmp_path, scheduler=json.loads(place.read_text())["address"], progress=kill)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
    assert capfd.readouterr().err == ""
    assert swept(tmp_path) == alone


@pytest.mark.slow
@needs_dask
def test_bad_input_on_a_cluster_is_one_line_here(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"impl tests\.sweep_kernels:nothing: AttributeError"):
        sweep(
            "delta",
            Named("function", "tests.sweep_kernels:nothing"),
            cases=2,
            folder=tmp_path,
            scheduler=cluster.scheduler_address,
        )


@pytest.mark.sample(1)
@needs_dask
@pytest.mark.clause("SWEEP-11")
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere", "tcp://127.0.0.1:many"])
def test_no_scheduler_is_one_line(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 1.0)
    with pytest.raises(CaseError, match="scheduler: nothing answers at"):
        sweep("delta", NAMED, cases=2, folder=tmp_path, scheduler=address)


@pytest.mark.sample(1)
@needs_dask
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere"])
def test_a_client_that_could_not_connect_is_gone(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Collected later, it may wait for a lock that the start of another client holds.
    import distributed

    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    gc.disable()
    try:
        with pytest.raises(CaseError, match="scheduler: nothing answers at") as refused:
            sweep("delta", NAMED, cases=2, folder=tmp_path, scheduler=address)
        left = [x for x in gc.get_objects() if type(x) is distributed.Client]
    finally:
        gc.enable()
    assert refused.value.__context__ is None
    assert [client.status for client in left if client.status != "closed"] == []


@needs_dask
def test_a_scheduler_without_workers_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import distributed

    monkeypatch.setattr(workers, "PATIENCE", 1.0)
    with (
        distributed.LocalCluster(
            n_workers=0, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as empty,
        pytest.raises(CaseError, match="has had no worker for 1 s"),
    ):
        sweep("delta", NAMED, cases=2, folder=tmp_path, scheduler=empty.scheduler_address)


@pytest.mark.clause("SWEEP-11")
def test_without_dask_the_option_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        CaseError,
        match=r"scheduler: dask and distributed are needed: .* -m pip install .*\[cluster\]",
    ):
        sweep("delta", NAMED, cases=2, folder=tmp_path, scheduler="tcp://127.0.0.1:9")


def test_nothing_imports_dask_before_it_is_asked_for() -> None:
    program = (
        "import sys, atlas_ref.cli.sweep, atlas_ref.oracle.sweep.sweep; print({'dask', "
        "'distributed'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )
