"""Batches of a step over workers: the same bytes as in one process, whatever is lost on the way."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from atlas_ref import backend
from atlas_ref.backend import cluster, threads
from atlas_ref.train import checkpoint, loop, run, workers
from atlas_ref.train.settings import Model, Optimiser
from tests.support.training import library, log_of, settings, trained

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.host("trains in folders"),
    pytest.mark.skipif(
        importlib.util.find_spec("distributed") is None,
        reason="dask and distributed are not installed: pip install 'atlas-ref[cluster]'",
    ),
]

SMALL = {"dim": 8, "layers": 1, "heads": 2, "expansion": 1, "window": 4}


def alone(folder, asked):
    """A run in one process on one thread, as each worker computes."""
    with threads.alone():
        return trained(folder, asked)


def spread(folder, asked, elsewhere, resume=False, **watched):
    own, moment = run.prepare(folder, asked, resume=resume)
    return run.run(folder, own, moment, run.Watcher(**watched), elsewhere=elsewhere)


def assert_same(folder, other, step=6):
    for name in (checkpoint.NAME.format(step), run.MODEL):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    assert log_of(folder) == log_of(other)


@pytest.fixture
def asked(tmp_path):
    """Three batches to a step, with documents that start within their rows."""
    text = library(tmp_path, files=12, size=60)
    return settings(text, accumulation=3, save_every=100)


@pytest.fixture
def inside():
    """A cluster of two workers, each a thread of this process: started in no time."""
    import distributed

    with (
        cluster.unwatched(),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as made,
    ):
        yield made


MUON = {"optimiser": Optimiser(name="muon")}
MODELS = (
    ("lmm", {}, {}),
    ("lmm", {}, {"documents": False}),
    ("atlas-mag", {}, {"state": "fresh"}),
    *(
        pytest.param(kind, {}, MUON, marks=pytest.mark.slow)
        for kind in ("mag", "mal", "mac", "omega")
    ),
    pytest.param("mac", {"preset": "atlas-rnn"}, {}, marks=pytest.mark.slow),
)


@pytest.mark.sample(1)
@pytest.mark.clause("TRAIN-20", "TRAIN-10")
@pytest.mark.parametrize(("kind", "own", "changes"), MODELS)
def test_a_run_over_workers_has_the_bytes_of_one_process(
    kind, own, changes, asked, inside, tmp_path, monkeypatch
):
    """Also where the first batch of each step is ready last."""
    asked = asked.replaced(model=Model(model=kind, **SMALL | own), **changes)
    alone(tmp_path / "one", asked)
    true, seen = loop.of_batch, []

    def late(config, params, state, batch, **how):
        first = len(seen) % 3 == 0
        seen.append(threading.get_ident())
        time.sleep(0.1 if first else 0)
        return true(config, params, state, batch, **how)

    monkeypatch.setattr(loop, "of_batch", late)
    with workers.opened(asked, scheduler=inside.scheduler_address) as elsewhere:
        assert elsewhere.threads == 2
        spread(tmp_path / "two", asked, elsewhere)
    assert_same(tmp_path / "one", tmp_path / "two")
    assert len(seen) == 18
    assert len(set(seen)) > 1
    assert threading.get_ident() not in seen


@pytest.mark.clause("TRAIN-10", "TRAIN-20")
def test_batches_of_documents_are_several_calls(asked):
    """So that the sums over calls, then over batches, are seen above."""
    from atlas_ref.train import data

    own = loop.task(asked, data.load(asked))
    batches, _ = loop._drawn(own, loop.start(own).place)
    assert own.documents
    assert max(len(loop.calls_of(each, True)) for each in batches) == 2


@pytest.mark.slow
@pytest.mark.clause("TRAIN-20", "TRAIN-21")
def test_a_worker_that_is_killed_changes_nothing(asked, tmp_path):
    """Killed in the midst of a step, a process is replaced, and its batches go to another."""
    import dask

    asked = asked.replaced(steps=3)
    alone(tmp_path / "one", asked)
    killed, environment = [], dict(os.environ)

    with workers.opened(asked, count=2) as elsewhere:
        pids = elsewhere.client.run(os.getpid)
        assert len(set(pids.values()) - {os.getpid()}) == 2
        watches = elsewhere.client.run(dask.config.get, "distributed.worker.profile.enabled")
        assert set(watches.values()) == {False}

        def killing(own, params, batches):
            for i, found in enumerate(elsewhere(own, params, batches)):
                if i == 0 and len(run.lines(tmp_path / "two" / run.LOG)) == 1:
                    killed.extend(pids.values())
                    os.kill(killed[0], signal.SIGKILL)
                yield found

        spread(tmp_path / "two", asked, killing)
        assert len(killed) == 2
        assert killed[0] not in elsewhere.client.run(os.getpid).values()
        with (
            dask.config.set({"distributed.scheduler.allowed-failures": 0}),
            pytest.raises(loop.Lost, match="every worker that computed one of its batches was"),
        ):
            elsewhere._result(elsewhere.client.submit(os._exit, 1, pure=False))
    assert_same(tmp_path / "one", tmp_path / "two", step=3)
    assert dict(os.environ) == environment


@pytest.mark.slow
@pytest.mark.clause("TRAIN-20")
@pytest.mark.parametrize("kind", ["mag", "mac", "atlas-mag"])
def test_a_run_over_processes_has_the_bytes_of_a_command_on_one_processor(kind, cli, tmp_path):
    """Products are so large that more threads would share them; numbers travel in messages."""
    text = library(tmp_path, files=12, size=600)
    words = ("--model", kind, "--dim", 64, "--layers", 2, "--heads", 2, "--state", "fresh")
    words += ("--data", text, "--held-out-share", 0.25, "--batch-size", 4, "--seq-len", 96)
    words += ("--steps", 3, "--gradient-accumulation-steps", 5, "--eval-batches", 2)
    # the new process binds itself to one processor: a preexec_fn would fork this one's threads
    bind = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    start = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    command = [sys.executable, "-c", bind + start, "-m", "atlas_ref.cli", "train"]
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(
        [*command, *map(str, words), "--out", str(one)],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert cli("train", *words, "--workers", 3, "--out", two).code == 0
    assert_same(one, two, step=3)


@pytest.mark.clause("TRAIN-21", "TRAIN-13")
def test_without_a_worker_a_run_ends_in_a_checkpoint_and_goes_on(
    asked, inside, tmp_path, monkeypatch
):
    alone(tmp_path / "one", asked)
    out = tmp_path / "two"

    def leave(line):
        if line["step"] == 2:
            monkeypatch.setattr(cluster, "PATIENCE", 0.5)
            inside.scale(0)

    with (
        workers.opened(asked, scheduler=inside.scheduler_address) as elsewhere,
        pytest.raises(loop.Lost) as refused,
    ):
        spread(out, asked, elsewhere, told=leave)
    last = out / "step-00000002.safetensors"
    assert str(refused.value) == (
        "step 3: every worker was lost, none came for 0.5 s; the last checkpoint is "
        f"{last}, --resume goes on"
    )
    assert checkpoint.steps(out) == [2, 0]
    own = loop.task(asked, run.data.load(asked))
    assert checkpoint.newest(out, own).broken == ()
    with threads.alone():
        trained(out, asked, resume=True)
    assert_same(tmp_path / "one", out)


@pytest.mark.clause("TRAIN-21")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("no room"), "step 1: a worker failed: MemoryError: no room; the last"),
        (ValueError("x: not finite"), "step 1: x: not finite; the last checkpoint is "),
    ],
)
def test_what_fails_in_a_worker_is_one_line(error, message, asked, inside, tmp_path, monkeypatch):
    def fails(*args, **how):
        raise error

    monkeypatch.setattr(loop, "of_batch", fails)
    with (
        workers.opened(asked, scheduler=inside.scheduler_address) as elsewhere,
        pytest.raises(loop.Lost if isinstance(error, MemoryError) else loop.Diverged) as refused,
    ):
        spread(tmp_path / "out", asked, elsewhere)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    assert checkpoint.steps(tmp_path / "out") == [0]


@pytest.mark.clause("TRAIN-20")
def test_workers_that_have_nothing_to_share_are_refused(asked, monkeypatch):
    for changes, how, message in (
        ({"state": "carried"}, {"count": 2}, "workers: the state is carried from batch to batch"),
        ({"state": "carried"}, {"scheduler": "x"}, "scheduler: the state is carried"),
        (
            {},
            {"count": 4},
            "workers: 4, but a step has 3 to share; --gradient-accumulation-steps 4",
        ),
        ({}, {"count": 2, "scheduler": "x"}, "scheduler: takes the place of workers"),
    ):
        with (
            pytest.raises(ValueError, match=message),
            workers.opened(asked.replaced(**changes), **how),
        ):
            pass
    with workers.opened(asked) as nothing:
        assert nothing is None
    monkeypatch.setattr(backend, "current", lambda: SimpleNamespace(name="cupy"))
    with pytest.raises(ValueError, match="workers: compute with numpy, not with cupy"):
        workers.require_shared(asked, 2, None)


def wait_until(true, seconds=120.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextlib.contextmanager
def apart(place):
    """A scheduler and a worker without a nurse, as processes of their own."""

    def started(*words):
        words = [sys.executable, "-m", *words, "--no-dashboard", "--scheduler-file", str(place)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, **quiet)

    scheduler = started("distributed.cli.dask_scheduler", "--port", "0", "--host", "127.0.0.1")
    wait_until(lambda: place.exists() and bool(place.read_text()))
    worker = started("distributed.cli.dask_worker", "--no-nanny", "--nthreads", "2")
    try:
        yield SimpleNamespace(
            scheduler=scheduler, worker=worker, address=json.loads(place.read_text())["address"]
        )
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.clause("TRAIN-21", "TRAIN-13")
@pytest.mark.parametrize(
    ("victim", "message"),
    [
        ("worker", "every worker was lost, none came for 3 s"),
        ("scheduler", "the scheduler of the workers was lost: "),
    ],
)
def test_a_cluster_that_is_killed_ends_the_command_with_a_checkpoint(
    victim, message, asked, cli, tmp_path, monkeypatch
):
    alone(tmp_path / "one", asked)
    out = tmp_path / "two"
    run.prepare(out, asked)
    with apart(tmp_path / "scheduler.json") as made:

        def kill(true=run._Log.write):
            def write(log, line, **how):
                true(log, line, **how)
                if line["step"] == 2:
                    monkeypatch.setattr(cluster, "PATIENCE", 3.0)
                    getattr(made, victim).kill()

            return write

        monkeypatch.setattr(run._Log, "write", kill())
        ran = cli("train", "--out", out, "--resume", "--scheduler", made.address)
    assert (ran.code, ran.out) == (2, "")
    told = [x for x in ran.err.splitlines() if not x.startswith(("the first step", "step "))]
    assert told[0].endswith("; 3 batches of a step on 2 threads of workers")
    assert told[1].startswith(f"atlas-ref: step 3: {message}")
    assert told[1].endswith(
        f"; the last checkpoint is {out}/step-00000002.safetensors, --resume goes on"
    )
    assert len(told) == 2
    monkeypatch.undo()
    with threads.alone():
        assert cli("train", "--out", out, "--resume").code == 0
    assert_same(tmp_path / "one", out)


@pytest.mark.slow
@pytest.mark.clause("TRAIN-20", "TRAIN-16")
def test_an_interrupt_of_the_terminal_reaches_the_leading_process_alone(tmp_path):
    """The whole group of processes is interrupted, as a terminal does it."""
    out, text = tmp_path / "out", library(tmp_path)
    words = ("--model", "lmm", "--rule", "delta", "--dim", 8, "--layers", 1, "--heads", 2)
    words += ("--kernel", 1, "--batch-size", 2, "--seq-len", 16, "--steps", 100000)
    words += ("--save-every", 100000, "--eval-every", 0, "--workers", 2)
    words += ("--gradient-accumulation-steps", 4, "--data", text, "--out", out)
    child = subprocess.Popen(
        [sys.executable, "-m", "atlas_ref.cli", "train", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: child.poll() is not None or len(run.lines(out / run.LOG)) >= 3)
    os.killpg(child.pid, signal.SIGINT)
    _, told = child.communicate(timeout=600)
    step = checkpoint.steps(out)[0]
    assert (child.returncode, step >= 3) == (130, True)
    assert [x for x in told.splitlines()[1:] if not x.startswith(("the first step", "step "))] == [
        f"stopped after step {step}; --resume goes on"
    ]
    wait_until(lambda: running(child.pid) == [])


def running(group):
    """Processes of a group that have not ended; what nothing has waited for has."""
    import psutil

    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(each.pid) == group and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
    return found


@pytest.mark.slow
@pytest.mark.clause("TRAIN-20")
def test_bad_input_about_workers_is_one_line_and_makes_no_folder(asked, cli, tmp_path, monkeypatch):
    new = tmp_path / "new"
    words = ("--data", asked.text.paths[0], "--out", new)
    shared = ("--gradient-accumulation-steps", 2)
    monkeypatch.setattr(cluster, "PATIENCE", 0.2)
    for more, message in (
        (("--workers", 2), "workers: 2, but a step has 1 to share; "),
        (("--jobs", 2, "--state", "carried"), "workers: the state is carried"),
        (("--scheduler", "tcp://127.0.0.1:9"), "scheduler: nothing answers at 'tcp://127.0.0.1:9'"),
    ):
        ran = cli("train", *words, *more)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert ran.err.startswith(f"atlas-ref: {message}")
    monkeypatch.setitem(sys.modules, "distributed", None)
    for option, value in (("workers", 2), ("scheduler", "x")):
        ran = cli("train", *words, *shared, f"--{option}", value)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert ran.err.startswith(f"atlas-ref: {option}: dask and distributed are needed: ")
        assert "[cluster]" in ran.err
    assert not new.exists()


@pytest.mark.clause("TRAIN-20")
def test_a_worker_computes_in_one_thread_as_the_leading_process_does(monkeypatch):
    """How work is cut among threads decides last bits, which small models do not show."""
    monkeypatch.setattr(workers.loop, "of_batch", lambda *given, **own: threads._inside.yes)
    assert workers.computed(workers.Job(None, False), None, None) is True
    assert not threads._inside.yes
