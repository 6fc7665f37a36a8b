"""The readers of examples/readers, which use nothing of this package, on recorded results."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from tests.support.casefiles import some

ROOT = Path(__file__).parents[2]
READERS = ROOT / "examples" / "readers"
CRATES = Path("/usr/share/cargo/registry")
VECTORS = ROOT / "vectors" / "v1" / "cases"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # the matrices are small
JSON = Path("/usr/include/nlohmann/json.hpp")

#: In place of what a reader says where only libraries that know bfloat16 can read it.
NARROW = "PASS where bfloat16 is known"

#: What each case asks, what is left out of it, and what a reader says.
CASES = {
    "right": ({}, (), "PASS"),
    "per dimension": ({"per_dimension_gates": True}, (), "PASS"),
    "from zero": ({}, ("in/M0",), "PASS"),
    "one token": ({"tokens": 1}, (), "PASS"),
    "stored in float32": ({"dtype": "float32"}, (), "PASS"),
    "another rule": ({"rule": "titans_lmm"}, (), "NOT SUPPORTED"),
    "another convention": ({"convention": {"gate": "forget"}}, (), "NOT SUPPORTED"),
    "packed": ({"reset": 2}, (), "NOT SUPPORTED"),
    "under a schedule": ({"periods": (1, 2), "schedule_level": 1}, ("in/active",), "NOT SUPPORTED"),
    "stored in bfloat16": ({"dtype": "bfloat16"}, (), NARROW),
}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Each case with its recorded results, without its leading axis, and with a read that is 1e-9
    off.
    """
    folder, told = tmp_path_factory.mktemp("cases"), {}

    def save(name, header, inputs, says, off=0.0):
        results = dict(atlas_ref.evaluate(atlas_ref.make(header, inputs)).tensors)
        results["out/y"] = np.array(results["out/y"])
        results["out/y"].flat[-1] += off
        path = folder / f"{name}.safetensors"
        atlas_ref.save(path, header, {**inputs, **results})
        told[str(path)] = says

    for name, (request, left_out, says) in CASES.items():
        header, inputs = some(**{"rule": "delta", **request})
        save(
            name, header, {key: value for key, value in inputs.items() if key not in left_out}, says
        )
    header, inputs = some("delta")
    save("no leading axes", header, {key: value[0] for key, value in inputs.items()}, "PASS")
    save("wrong", header, inputs, "FAIL", off=1e-9)
    return told


def _cpp(folder):
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    if not JSON.exists():
        pytest.skip("no nlohmann/json on this machine (Debian: nlohmann-json3-dev)")
    words = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    _run([*words, "-o", folder / "reader", READERS / "reader.cpp"])
    return [folder / "reader"]


def _rust(folder):
    if shutil.which("cargo") is None:
        pytest.skip("no cargo on this machine")
    if not any(CRATES.glob("serde_json-*")):
        pytest.skip("no serde_json on this machine (Debian: librust-serde-json-dev)")
    shutil.copytree(
        READERS / "rust", folder / "rust", ignore=shutil.ignore_patterns("target", "Cargo.lock")
    )
    source = (
        "--config",
        'source.crates-io.replace-with="debian"',
        "--config",
        f'source.debian.directory="{CRATES}"',
    )
    _run(
        [
            "cargo",
            "build",
            "--quiet",
            "--offline",
            "--manifest-path",
            folder / "rust" / "Cargo.toml",
            *source,
        ]
    )
    return [folder / "rust" / "target" / "debug" / "reader"]


def _python(library, folder):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return [sys.executable, "-W", "error", READERS / f"{library}_reader.py"]


BUILD = {
    "torch": functools.partial(_python, "torch"),
    "jax": functools.partial(_python, "jax"),
    "cpp": _cpp,
    "rust": _rust,
}


def _run(words):
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session", params=BUILD)
def reader(request, tmp_path_factory):
    """The language and command line of each reader whose toolchain is installed."""
    return request.param, BUILD[request.param](tmp_path_factory.mktemp(request.param))


@pytest.mark.slow
@pytest.mark.clause(
    "CASE-1", "CASE-2", "CASE-3", "CASE-6", "CASE-12", "DELTA-2", "DELTA-3", "DELTA-4"
)
def test_a_reader_says_of_each_case_what_is_true(reader, files):
    language, words = reader
    done = subprocess.run(
        [*words, *files], capture_output=True, text=True, check=False, timeout=120, env=ONE_THREAD
    )
    assert done.stderr == ""
    told = {
        path: says
        if says != NARROW
        else {"torch": "PASS", "jax": "PASS"}.get(language, "NOT SUPPORTED")
        for path, says in files.items()
    }
    said = dict(reversed(line.split("  ", 1)) for line in done.stdout.splitlines())
    assert {path: each.partition(":")[0] for path, each in said.items()} == told
    assert said[next(path for path in files if path.endswith("wrong.safetensors"))].startswith(
        "FAIL: out/y differs by "
    )
    assert done.returncode == 1
    right = [path for path, says in files.items() if says == "PASS"]
    assert (
        subprocess.run(
            [*words, *right], capture_output=True, check=False, timeout=120, env=ONE_THREAD
        ).returncode
        == 0
    )


@pytest.mark.slow
def test_a_reader_passes_on_the_vectors_of_its_rule(reader):
    if not VECTORS.exists():
        pytest.skip(f"{VECTORS.relative_to(ROOT)} is not here")
    paths = sorted(VECTORS.glob("delta*.safetensors"))
    done = subprocess.run(
        [*reader[1], *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=ONE_THREAD,
    )
    said = [line.partition("  ")[0] for line in done.stdout.splitlines()]
    assert (done.returncode, len(said)) == (0, len(paths))
    assert said.count("PASS") >= 3


@pytest.mark.parametrize(
    "file", ["torch_reader.py", "jax_reader.py", "reader.cpp", "rust/src/main.rs"]
)
def test_a_reader_holds_nothing_of_ours(file):
    text = (READERS / file).read_text()
    assert "import atlas" not in text
    assert "from atlas" not in text
    assert len(text.splitlines()) <= 65
