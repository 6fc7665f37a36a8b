"""Run the Delta rule on case files in JAX and compare with the results recorded in them.

python jax_reader.py CASE...
"""

import json
import sys

import jax
import jax.numpy as jnp
from safetensors import safe_open

jax.config.update("jax_enable_x64", True)
KNOWN = {"in/k", "in/v", "in/q", "in/retain", "in/step_size", "in/M0", "in/y_bar", "in/M_bar"}


@jax.jit
def delta(M, k, v, q, retain, step):
    def token(M, x):
        k, v, q, retain, step = x
        M = retain[:, None] * M - step[:, None] * jnp.outer(M @ k - v, k)
        return M, M @ q

    return jax.lax.scan(token, M, (k, v, q, retain, step))[1]


def verdict(path):
    with safe_open(path, framework="flax") as file:
        case = json.loads(file.metadata()["atlas_ref"])
        x = {name: file.get_tensor(name).astype(float) for name in file.keys()}  # noqa: SIM118
    inputs = {name for name in x if name.startswith("in/")}
    spec = case.get("convention", "spec") in ("spec", {}) and case.get("schedule") is None
    if case["rule"] != "delta" or not spec or inputs - KNOWN or "out/y" not in x:
        return "NOT SUPPORTED"
    k, v, q, y = (
        x[name].reshape(-1, *x[name].shape[-2:]) for name in ("in/k", "in/v", "in/q", "out/y")
    )
    retain, step = (
        jnp.broadcast_to(x[g].reshape(*k.shape[:2], -1), v.shape)
        for g in ("in/retain", "in/step_size")
    )
    M = (
        x["in/M0"].reshape(-1, v.shape[2], k.shape[2])
        if "in/M0" in x
        else jnp.zeros((k.shape[0], v.shape[2], k.shape[2]))
    )
    error = jnp.linalg.norm(jax.vmap(delta)(M, k, v, q, retain, step) - y) / jnp.maximum(
        jnp.linalg.norm(y), 1e-300
    )
    return "PASS" if error <= 1e-12 else f"FAIL: out/y differs by {error:.1e}"


verdicts = [verdict(path) for path in sys.argv[1:]]
print(*(f"{words}  {path}" for words, path in zip(verdicts, sys.argv[1:], strict=True)), sep="\n")
sys.exit(any(words.startswith("FAIL") for words in verdicts))
