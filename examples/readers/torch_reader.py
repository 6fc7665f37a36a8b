"""Run the Delta rule on case files in PyTorch and compare with the results recorded in them.

python torch_reader.py CASE...
"""

import json
import sys

import torch
from safetensors import safe_open

KNOWN = {"in/k", "in/v", "in/q", "in/retain", "in/step_size", "in/M0", "in/y_bar", "in/M_bar"}


def verdict(path):
    with safe_open(path, framework="pt") as file:
        case = json.loads(file.metadata()["atlas_ref"])
        x = {name: file.get_tensor(name).double() for name in file.keys()}  # noqa: SIM118
    inputs = {name for name in x if name.startswith("in/")}
    spec = case.get("convention", "spec") in ("spec", {}) and case.get("schedule") is None
    if case["rule"] != "delta" or not spec or inputs - KNOWN or "out/y" not in x:
        return "NOT SUPPORTED"
    k, v, q = x["in/k"], x["in/v"], x["in/q"]
    retain, step = (
        g if g.ndim == v.ndim else g[..., None] for g in (x["in/retain"], x["in/step_size"])
    )
    M = x.get("in/M0", k.new_zeros(*k.shape[:-2], v.shape[-1], k.shape[-1]))
    reads = []
    for t in range(k.shape[-2]):
        key = k[..., t, :, None]
        error = M @ key - v[..., t, :, None]
        M = retain[..., t, :, None] * M - step[..., t, :, None] * error @ key.mT
        reads.append((M @ q[..., t, :, None])[..., 0])
    error = (torch.stack(reads, -2) - x["out/y"]).norm() / x["out/y"].norm().clamp(min=1e-300)
    return "PASS" if error <= 1e-12 else f"FAIL: out/y differs by {error:.1e}"


verdicts = [verdict(path) for path in sys.argv[1:]]
print(*(f"{words}  {path}" for words, path in zip(verdicts, sys.argv[1:], strict=True)), sep="\n")
sys.exit(any(words.startswith("FAIL") for words in verdicts))
