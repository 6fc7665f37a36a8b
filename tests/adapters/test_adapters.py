"""The adapters for PyTorch, JAX and C++ against the oracle, on every case that they say they
support.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.sources import sources
from tests.support.casefiles import some

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"

CASES = {
    "spec": {},
    "fla": {"convention": "fla-gated-delta"},
    "plain fla": {"convention": "fla-delta"},
    "forget, read before": {"convention": {"gate": "forget", "read": "before"}},
    "both": {"convention": {"rate": "both", "gradient_scale": "2/d_out", "value_sign": "plus"}},
    "no gates": {
        "convention": {"rate": "none", "gate": "none", "direction": "ascent", "gradient_scale": 0.1}
    },
    "before_error, scaled": {
        "convention": {
            "decay": "before_error",
            "query_scale": "1/sqrt(d_in)",
            "gradient_scale": 0.7,
        }
    },
    "per dimension, pulses, packed": {"per_dimension_gates": True, "pulse": 2, "reset": 3},
    "one token": {"tokens": 1},
}

REFUSED = {
    "omega": {"rule": "omega"},
    "token": {"level": "token"},
    "frozen": {"convention": {"reference": "call_start"}},
    "norm": {"convention": {"k_norm": "l2"}},
    "call_end": {"convention": {"read": "call_end"}},
    "preset": {"convention": "titans-paper"},
}


def cases(table, *, grad=True):
    for name, changes in table.items():
        request = {"rule": "delta", "tokens": 7, "cotangent": grad, **changes}
        header, tensors = some(request.pop("rule"), **request)
        yield name, header, tensors
    if table is CASES:  # shapes and gates that `new` does not draw
        header, tensors = some("delta", tokens=7, cotangent=grad)
        logs = {
            name: value for name, value in tensors.items() if name not in ("in/retain", "in/M0")
        }
        logs["in/log_retain"] = np.log(tensors["in/retain"])
        yield "logarithms, no M0", header, logs
        yield "no leading axes", header, {name: value[0] for name, value in tensors.items()}
        yield (
            "three leading axes",
            header,
            {name: np.stack([value, 0.5 * value])[None] for name, value in tensors.items()},
        )


def in_process(folder, name, monkeypatch):
    monkeypatch.syspath_prepend(str(ADAPTERS / folder))
    return sources.function(f"{name}:answer")


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    built = tmp_path_factory.mktemp("cpp") / "delta"
    words = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    done = subprocess.run(
        [*words, "-o", built, ADAPTERS / "cpp_delta" / "delta.cpp"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return built


#: JAX compiles for a second a case and precision.
PRECISIONS = [
    pytest.param(library, dtype, marks=[pytest.mark.slow] if library == "jax" else [])
    for library in ("torch", "jax", "cpp")
    for dtype in ("float64", "float32", "bfloat16", "float16")
]


@pytest.fixture(params=["torch", "jax", "cpp"])
def source(request, monkeypatch):
    """Each adapter whose toolchain is installed; the first two have gradients."""
    if request.param == "cpp":
        built = request.getfixturevalue("program")
        return "cpp", sources.program(f"{built} {{case}} {{out}}", timeout=20)
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param, in_process(
        f"{request.param}_delta", f"delta_{request.param}", monkeypatch
    )


@pytest.mark.sample(2)
@pytest.mark.clause("SRC-6", "SRC-7", "CASE-24", "CASE-25")
@pytest.mark.parametrize(("source", "dtype"), PRECISIONS, indirect=["source"])
def test_an_adapter_passes_on_every_case_that_it_carries_out(source, dtype):
    passes(source, dtype, CASES)


@pytest.mark.sample(1)
@pytest.mark.clause("SRC-6", "SRC-7")
@pytest.mark.parametrize("source", ["jax"], indirect=True)
def test_the_adapter_of_jax_passes_on_cases_of_each_kind(source):
    few = ("both", "before_error, scaled", "per dimension, pulses, packed")
    passes(source, "float32", {name: CASES[name] for name in few})


def passes(source, dtype, table):
    """Every result of an adapter, and every gradient where it has them."""
    library, ask = source
    for name, header, tensors in cases(table):
        case = atlas_ref.make(header, tensors, name=name)
        rows = atlas_ref.check(case, source=ask, dtype=dtype)
        wrong = [
            (row.case, row.tensor, row.verdict, row.error, row.why)
            for row in rows
            if row.verdict != "PASS"
        ]
        assert wrong == []
        gradients = {
            f"grad/{key.removeprefix('in/')}"
            for key in tensors
            if not key.endswith(("_bar", "active", "reset"))
        }
        assert {row.tensor for row in rows} == {"out/y", "out/M"} | (
            set() if library == "cpp" else gradients
        )


@pytest.mark.clause("SRC-1")
def test_what_an_adapter_does_not_carry_out_is_not_supported(source):
    for name, header, tensors in cases(REFUSED):
        (row,) = atlas_ref.check(atlas_ref.make(header, tensors, name=name), source=source[1])
        assert (row.tensor, row.verdict) == ("-", "NOT SUPPORTED"), name
        assert row.why


def test_the_program_reads_and_writes_every_character_and_every_format(program, tmp_path):
    """Round trip of a header with quotation marks, escapes and letters beyond ASCII, and of numbers
    of 16 bits.
    """
    header, tensors = some(
        "delta", tokens=3, d_in=2, d_out=2, heads=1, dtype="float16", cotangent=False
    )
    header = {**header, "note": 'é "quoted" \\ \t \U0001f9e0 \u0001'}
    tiny = np.array([6e-8, -6.1e-5, 65504.0, 0.0, -0.0, 1.0], np.float16).reshape(1, 3, 2)
    atlas_ref.save(
        tmp_path / "case",
        header,
        tensors | {"in/q": tiny, "in/retain": np.zeros((1, 3), np.float16)},
    )
    assert (
        subprocess.run([program, tmp_path / "case", tmp_path / "out"], check=False).returncode == 0
    )
    from atlas_ref.oracle.cases.files import read

    text, found = read(str(tmp_path / "out"))
    assert json.loads(text) == header
    assert {value.dtype for value in found.values()} == {np.dtype(np.float32)}
    assert {
        row.verdict
        for row in atlas_ref.check(
            atlas_ref.load(tmp_path / "case"), source=sources.against(tmp_path / "out")
        )
    } == {"PASS"}


def test_the_program_says_what_is_wrong_and_does_not_crash(program, tmp_path):
    whole = tmp_path / "case"
    atlas_ref.save(whole, *some("delta"))
    data = whole.read_bytes()
    for content in (
        b"",
        b"\xff" * 8,
        data[:40],
        data[:-8],
        data[:8] + b"{" * 200 + data[208:],
        b"\x02" + bytes(7) + b"{}",
    ):
        (tmp_path / "broken").write_bytes(content)
        ended = subprocess.run(
            [program, tmp_path / "broken", tmp_path / "out"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert subprocess.run([program], capture_output=True, check=False).returncode == 2
    assert (
        subprocess.run(
            [program, whole, tmp_path / "no" / "out"], capture_output=True, check=False
        ).returncode
        == 1
    )
    assert not (tmp_path / "out").exists()


def test_the_readme_of_the_adapters_runs(tmp_path):
    text = (ADAPTERS / "README.md").read_text()
    (block,) = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    path = {"PYTHONPATH": f"{ADAPTERS}:{ADAPTERS.parents[1]}"}
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        env=path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(1, 12, 4, 8) (1, 12, 2, 8)\n"
    for folder in ("torch_delta", "jax_delta", "cpp_delta"):
        assert f"({folder}/README.md)" in text
        assert (ADAPTERS / folder / "README.md").exists()
