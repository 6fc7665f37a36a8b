"""The JavaScript program for onnxruntime-node: with a package of JavaScript alone in its place, and
with the package where it is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import atlas_ref
from tests.support.linear_attention import KINDS, asked, verdicts

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "adapters" / "onnx_node" / "run.js"
STAND_IN = ROOT / "tests" / "support" / "standin" / "onnxruntime_node.js"

MEMBERS = ("linear_attn", "simple_gla", "gla", "delta", "gated_delta", "kda")
CHANNELS = ("gla", "kda")


@pytest.fixture(scope="session")
def node() -> str:
    if (found := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    return found


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the stand-in as onnxruntime-node."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "onnxruntime-node").mkdir()
    shutil.copy(STAND_IN, folder / "onnxruntime-node" / "index.js")
    return folder


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The program in a folder where no package is installed."""
    folder = tmp_path / "program"
    shutil.copytree(PROGRAM.parent, folder, ignore=shutil.ignore_patterns("node_modules"))
    return folder / PROGRAM.name


def answer(node: str, program: Path, case: Any, modules: Path | None = None) -> Any:
    """The process that answers a case, and the path of its results."""
    path, out = program.parent / "case.safetensors", program.parent / "out.safetensors"
    inputs = {name: np.asarray(x) for name, x in case.inputs.items()}
    atlas_ref.save(path, case.header.plain(), inputs)
    others = os.environ if modules is None else {**os.environ, "NODE_PATH": str(modules)}
    command = [node, str(program), str(path), str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, env=others, timeout=60)
    return ended, out


def judged(node: str, program: Path, case: Any, modules: Path | None = None) -> dict[str, str]:
    """Tensor -> verdict."""
    ended, out = answer(node, program, case, modules)
    assert (ended.returncode, ended.stderr) == (0, "")
    results = load_file(out)
    assert {x.dtype.name for x in results.values()} == {"float32"}
    given = {name.removeprefix("out/"): x for name, x in results.items()}
    return {name: row[0] for name, row in verdicts(case, lambda header, inputs: given).items()}


PASSED = {"out/y": "PASS", "out/M": "PASS"}


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("member", MEMBERS)
def test_the_program_reads_a_case_and_writes_what_is_right(
    node: str, copied: Path, modules: Path, member: str, kind: str
) -> None:
    case = asked(member, kind, channels=member in CHANNELS, d_out=3)
    assert judged(node, copied, case, modules) == PASSED


def test_a_scale_what_it_computes_anyway_and_no_first_memory(
    node: str, copied: Path, modules: Path
) -> None:
    stated = {"query_scale": 1, "steps": 1, "decay": "before_error", "norm_eps": 0.01}
    for request in ({"parameters": stated}, {"first": False}):
        assert judged(node, copied, asked("gated_delta", **request), modules) == PASSED


@pytest.mark.clause("SRC-1")
def test_what_it_does_not_compute_ends_with_3_and_a_reason(
    node: str, copied: Path, modules: Path
) -> None:
    reasons = {
        "parameters.k_norm l2: it computes none": asked("gated_delta", parameters={"k_norm": "l2"}),
        "parameters.decay after_error: it computes before_error": asked(
            "gated_delta", parameters={"decay": "after_error"}
        ),
        "in/reset: it takes none": asked("gated_delta", reset=2),
        "dplr rwkv7: it computes": asked("rwkv7", channels=True),
    }
    for reason, case in reasons.items():
        ended, out = answer(node, copied, case, modules)
        assert (ended.returncode, ended.stdout.startswith(reason)) == (3, True), ended
        assert not out.exists()


def test_without_the_package_it_fails_and_says_so(node: str, copied: Path, tmp_path: Path) -> None:
    ended, out = answer(node, copied, asked("kda", channels=True), tmp_path)
    assert (ended.returncode, out.exists()) == (1, False)
    assert "Cannot find module 'onnxruntime-node'" in ended.stderr


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("member", MEMBERS)
def test_the_package_is_right_where_it_is_installed(node: str, copied: Path, member: str) -> None:
    look = [node, "-e", "console.log(require.resolve('onnxruntime-node/package.json'))"]
    found = subprocess.run(look, capture_output=True, text=True, cwd=PROGRAM.parent)
    if found.returncode:
        pytest.skip("onnxruntime-node is not installed")
    modules = Path(found.stdout.strip()).parents[1]
    for kind in KINDS:
        case = asked(member, kind, channels=member in CHANNELS, d_out=3)
        assert judged(node, copied, case, modules) == PASSED, kind
