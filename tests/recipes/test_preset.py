"""The recipe for a preset of rule dplr: two rows, one of them of what is certified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.copied import Copy

pytestmark = [pytest.mark.slow, pytest.mark.host("runs commands in a copy of the packages")]

ROW = '    ("quiet_delta", _GATED_DELTA._replace(source="nowhere", norm="l2", query_scale=1)),'
NEXT = '    ("kimi_linear", _KDA._replace(source="transformers 5.23.0, kimi_linear", norm="l2")),'
KERNEL = """
import numpy as np


def kernel(case, inputs, scale=1.0):
    normed = {
        name: inputs[name] / np.sqrt((inputs[name] ** 2).sum(-1, keepdims=True) + 1e-6)
        for name in ("k", "q")
    }
    gates = np.exp(inputs["log_retain"]) if "log_retain" in inputs else inputs["retain"]
    k, q, v, beta = normed["k"], scale * normed["q"], inputs["v"], inputs["beta"]
    keys_first = case["parameters"].get("state_layout") == "(d_in, d_out)"
    M, reads = np.zeros((*v.shape[:-2], v.shape[-1], k.shape[-1])), []
    if "M0" in inputs:
        M = inputs["M0"].swapaxes(-1, -2) if keys_first else inputs["M0"]
    for t in range(v.shape[-2]):
        gate = gates[..., t, None, None] if gates.ndim < v.ndim else gates[..., t, None, :]
        M = gate * M
        error = v[..., t, :] - (M @ k[..., t, :, None])[..., 0]
        M = M + beta[..., t, None, None] * error[..., None] * k[..., t, None, :]
        reads.append((M @ q[..., t, :, None])[..., 0])
    return {"y": np.stack(reads, axis=-2), "M": M.swapaxes(-1, -2) if keys_first else M}


def scaled(case, inputs):
    return kernel(case, inputs, scale=inputs["q"].shape[-1] ** -0.5)
"""


def test_a_preset_is_two_rows_and_has_every_command(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.insert("atlas_ref/oracle/dplr/members.py", NEXT, ROW)
    copy.insert(
        "atlas_ref/certify/dplr/members.py",
        '    "kimi_linear": _DELTA._replace(norm="l2"),',
        '    "quiet_delta": _DELTA._replace(norm="l2", query_scale=1),',
    )
    assert copy.changed() == [
        "atlas_ref/certify/dplr/members.py",
        "atlas_ref/oracle/dplr/members.py",
    ]
    (tmp_path / "mine.py").write_text(KERNEL)
    words = ("new", "dplr", "--parameter", "member=quiet_delta", "--cotangent")
    copy.run(*words, "-o", "case.safetensors")
    copy.run("eval", "case.safetensors", "--grad", "--trace", "-o", "out.safetensors")
    copy.run("check", "case.safetensors", "--against", "out.safetensors", "--json")
    copy.run("replay", "case.safetensors", "--trace", "out.safetensors", "--json")
    copy.run("tolerance", "case.safetensors:y", "--dtype", "float32", "--json")
    copy.run("certify", "case.safetensors", "-o", "exact.safetensors")
    copy.run("check", "case.safetensors", "--against", "exact.safetensors", "--json")
    found = json.loads(copy.run("identify", "case.safetensors", "--impl", "mine:scaled", "--json"))
    assert (
        found["match"]["option"] == "spec parameters.member=qwen3_next"
    )  # the same but for the scale
    fixed = ("member=quiet_delta", "pulse=1", "reset=0", "steps=1", "groups=1", "rates=row")
    others = ("q_norm=null", "k_norm=null", "decay=null", "query_scale=null", "norm_eps=1e-6")
    sweep = ["sweep", "dplr", "--cases", 6, "--json"]
    for each in (*fixed, *others, "dtype=float64"):
        sweep += ["--fix", each]
    assert json.loads(copy.run(*sweep, "--impl", "mine:kernel"))["counts"] == {"PASS": 6}
