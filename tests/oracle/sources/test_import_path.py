"""Where a command imports from: a file in the current folder never stands in for a library."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atlas_ref.oracle.sources import sources
from atlas_ref.oracle.sweep.modes import Task, Work

ROOT = Path(__file__).parents[3]

#: What a user's `atlas-ref` is: no folder on the path that the interpreter was not told about.
COMMAND = [sys.executable, "-P", "-c", "from atlas_ref.cli.main import main; main()"]
MODULE = [sys.executable, "-m", "atlas_ref.cli"]
SWEEP = ["sweep", "delta", "--impl", "mine:nothing", "--cases", "2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with an implementation, and a file that is called like a library."""
    (tmp_path / "mine.py").write_text("def nothing(case, inputs): raise NotImplementedError\n")
    (tmp_path / "safetensors.py").write_text(
        f"open({str(tmp_path / 'executed')!r}, 'w').close()\nraise SystemExit(9)\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sample(1)
@pytest.mark.clause("SRC-6", "SWEEP-10")
@pytest.mark.parametrize("start", [COMMAND, MODULE], ids=["installed", "module"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_no_process_imports_a_library_from_the_current_folder(
    start: list[str], jobs: int, folder: Path
) -> None:
    words = [*start, *SWEEP, "--jobs", str(jobs)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert not (folder / "executed").exists()
    assert done.returncode == 3
    assert done.stdout.startswith("sweep delta, seed 0, 2 cases: 2 NOT SUPPORTED\n")


@pytest.mark.clause("SRC-6")
def test_an_installed_module_comes_before_one_of_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = folder / "installed"
    installed.mkdir()
    (installed / "twice.py").write_text("def f(case, inputs): return 'installed'\n")
    (folder / "twice.py").write_text("def f(case, inputs): return 'current folder'\n")
    monkeypatch.setattr(sys, "path", [*(place for place in sys.path if place), str(installed)])
    assert sources.import_function("twice:f")({}, {}) == "installed"  # type: ignore[comparison-overlap]
    with pytest.raises(NotImplementedError):
        sources.import_function("mine:nothing")({}, {})
    assert sys.path[-1] == str(folder)


@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="distributed is not installed"
)
@pytest.mark.clause("SWEEP-10")
@pytest.mark.parametrize("implementation", [True, False])
def test_a_worker_of_a_cluster_looks_into_the_folder_of_an_implementation_last(
    implementation: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atlas_ref.oracle.sweep import cluster

    asked: list[Any] = []

    monkeypatch.setattr(
        cluster.cluster, "connected", lambda address: contextlib.nullcontext(address)
    )
    monkeypatch.setattr(
        cluster, "_on_client", lambda client, perform, tasks: iter([asked.append(perform)])
    )
    monkeypatch.setattr(cluster, "_per_thread", type("Room", (), {})())
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    work = Work(Nothing(), answers if implementation else None)
    list(cluster.on_dask(work, iter(()), "tcp://nowhere"))
    pickle.loads(pickle.dumps(asked[0]))(Task("judge", 3))
    assert sys.path == [*before, str(folder)] if implementation else sys.path == before


class Nothing:
    """A plan without work."""

    def perform(self, source: Any, kind: str, number: int) -> int:
        return number


def answers(case: Any) -> Any:
    raise NotImplementedError
