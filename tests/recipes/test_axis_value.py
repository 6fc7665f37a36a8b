"""The recipe for a value of a convention's axis: the axis, the rule, and a hand that certifies it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.copied import Copy

pytestmark = [pytest.mark.slow, pytest.mark.host("runs commands in a copy of the packages")]

#: A guard of norms that divides by the hypotenuse of the norm and the eps.
RULE = """    if guard == "hypotenuse":
        return x / ops.sqrt(squares + (eps * s) ** 2)"""
CERTIFIED = """    if guard == "hypotenuse":
        return scaled(inverse(_roots(squares.plus(eps * eps))), x)"""
KERNEL = """
import numpy as np


def normed(x, eps):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + eps * eps)


def right(case, inputs, rate=1.0):
    convention = case.get("convention", {})
    if case["rule"] != "delta" or convention.get("norm_guard") != "hypotenuse":
        raise NotImplementedError("another guard")
    if {"reset", "active", "phi"} & {name.split("/")[0] for name in inputs}:
        raise NotImplementedError("masks and features")
    eps = convention["norm_eps"]
    k = normed(inputs["k"], eps)
    q, v = inputs["q"], inputs["v"]
    M = inputs.get("M0", np.zeros((*v.shape[:-2], v.shape[-1], k.shape[-1])))
    reads = []
    for t in range(v.shape[-2]):
        r, h = (inputs[n][..., t].reshape(*v.shape[:-2], 1, 1) for n in ("retain", "step_size"))
        error = (M @ k[..., t, :, None])[..., 0] - v[..., t, :]
        M = r * M - rate * h * error[..., None] * k[..., t, None, :]
        reads.append((M @ q[..., t, :, None])[..., 0])
    return {"y": np.stack(reads, axis=-2), "M": M}


def wrong(case, inputs):
    return right(case, inputs, rate=1.1)
"""
FILES = [
    "atlas_ref/certify/functions.py",
    "atlas_ref/conventions/axes.py",
    "atlas_ref/parts/norms.py",
]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy with the guard `hypotenuse`."""
    found = Copy(tmp_path)
    legal = 'norm_guard: Literal["root", "add", "clamp"'
    found.put("atlas_ref/conventions/axes.py", legal, f'{legal}, "hypotenuse"')
    found.insert("atlas_ref/parts/norms.py", '    if guard == "add":', RULE)
    found.insert("atlas_ref/certify/functions.py", '    if guard == "root":', CERTIFIED)
    (tmp_path / "mine.py").write_text(KERNEL)
    return found


def test_a_value_of_an_axis_is_three_files_and_has_every_command(copy: Copy) -> None:
    assert copy.changed() == FILES
    words = ["new", "delta", "--tokens", 6, "--cotangent", "--seed", 3]
    for each in ("k_norm=l2", "norm_eps=0.25"):
        words += ["--convention", each]
    copy.run(*words, "--convention", "norm_guard=hypotenuse", "-o", "case.safetensors")
    copy.run(*words, "-o", "other.safetensors")
    copy.run("eval", "case.safetensors", "--grad", "--trace", "-o", "out.safetensors")
    copy.run("check", "case.safetensors", "--against", "out.safetensors", "--json")
    copy.run("check", "case.safetensors", "--impl", "mine:right", "--json")
    copy.run("replay", "case.safetensors", "--trace", "out.safetensors", "--json")
    copy.run("tolerance", "case.safetensors:y", "--dtype", "float32", "--json")
    copy.run("certify", "case.safetensors", "-o", "exact.safetensors")
    copy.run("check", "case.safetensors", "--against", "exact.safetensors", "--json")
    found = json.loads(
        copy.run("identify", "other.safetensors", "--against", "out.safetensors", "--json")
    )
    assert found["from_own"] == {"norm_guard": "hypotenuse"}
    fixed = []
    for each in ("k_norm=l2", "norm_eps=0.25", "norm_guard=hypotenuse"):
        fixed += ["--convention", each]
    for each in ("pulse=1", "reset=0", "dtype=float64"):
        fixed += ["--fix", each]
    fixed += ["--fix", "per_dimension_gates=false", "--without", "map,token"]
    sweep = ("sweep", "delta", "--cases", 6, "--json", *fixed, "--impl")
    counts = json.loads(copy.run(*sweep, "mine:right"))["counts"]
    assert counts["PASS"] >= 4
    assert set(counts) <= {"PASS", "NOT SUPPORTED"}
    assert "WRONG" in json.loads(copy.run(*sweep, "mine:wrong", expected=1))["counts"]
