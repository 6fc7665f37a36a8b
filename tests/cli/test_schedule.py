"""check --schedule and the plugin's --atlas-schedule: what they print, and what they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from atlas_ref.oracle.cases.case import save
from atlas_ref.oracle.cases.new import Request, new

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

KERNEL = """
import numpy as np


def kda(case, inputs, loses=False):
    q, k, v, beta, retain = (inputs[name] for name in ("q", "k", "v", "beta", "retain"))
    M = inputs.get("M0", np.zeros((*v.shape[:-2], v.shape[-1], k.shape[-1])))
    M, reads = (0 * M if loses and v.shape[-2] > 1 else M), []
    for t in range(v.shape[-2]):
        M = M * retain[..., t, None, :]
        error = v[..., t, :] - (M @ k[..., t, :, None])[..., 0]
        M = M + beta[..., t, None, None] * error[..., None] * k[..., t, None, :]
        reads.append((M @ q[..., t, :, None])[..., 0] * k.shape[-1] ** -0.5)
    return {"y": np.stack(reads, axis=-2), "M": M}


def forgets(case, inputs):
    return kda(case, inputs, loses=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a case and a module of kernels."""
    sizes = {"tokens": 24, "d_in": 4, "d_out": 3, "seed": 1, "state": False}
    case = new(Request(rule="dplr", parameters={"member": "kda"}, draw=1, **sizes))
    save(tmp_path / "kda.safetensors", case.header, case.inputs)
    (tmp_path / "scheduled_kernels.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_right_kernel_passes_and_one_that_forgets_is_named(folder: Path, cli: Any) -> None:
    words = ("check", "kda.safetensors", "--schedule", "serving", "--impl")
    right = cli(*words, "scheduled_kernels:kda", "--exactly", "--json")
    assert right.code == 0
    assert {row["verdict"] for row in json.loads(right.out)["results"]} == {"PASS"}
    wrong = cli(*words, "scheduled_kernels:forgets")
    assert wrong.code == 1
    assert "as if calls of several tokens started from no state" in wrong.out
    assert "--impl scheduled_kernels:forgets --schedule serving" in wrong.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schedule", "serving"], "--schedule: calls your code again and again; it needs --impl"),
        (
            ["--exactly", "--impl", "scheduled_kernels:kda"],
            "--exactly: says what --schedule claims",
        ),
        (
            ["--schedule", "serving", "--impl", "scheduled_kernels:kda", "--only", "y"],
            "--only: not with --schedule",
        ),
        (
            ["--schedule", "serving", "--impl", "scheduled_kernels:kda", "--form", "scan"],
            "--form: not with --schedule",
        ),
        (
            ["--schedule", "prefill:4", "--impl", "scheduled_kernels:kda"],
            "schedule: ends after 4 of 24 tokens",
        ),
    ],
)
def test_what_is_refused(words: list[str], said: str, folder: Path, cli: Any) -> None:
    done = cli("check", "kda.safetensors", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.host("starts pytest in processes of its own")
@pytest.mark.slow
def test_the_plugin_calls_by_a_schedule(
    folder: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = ("-p", "atlas_ref.pytest_plugin", "--atlas-cases", str(folder / "kda.safetensors"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(folder)]))
    for kernel, passed in (("kda", 1), ("forgets", 0)):
        words = ("--atlas-impl", f"scheduled_kernels:{kernel}", "--atlas-schedule", "serving")
        result = pytester.runpytest_subprocess(*shared, *words)
        result.assert_outcomes(passed=passed, failed=1 - passed)
    result.stdout.fnmatch_lines(["*as if calls of several tokens started from no state"])
    result = pytester.runpytest_subprocess(
        *shared, "--atlas-impl", "scheduled_kernels:plain", "--atlas-schedule", "prefil:3"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--atlas-schedule: schedule: 'prefil:3' is no step*"])
    result = pytester.runpytest_subprocess(*shared, "--atlas-schedule", "serving")
    result.stderr.fnmatch_lines(["*--atlas-schedule needs --atlas-impl or --atlas-exec*"])
