"""The Delta rule in JAX, one scan per head, with an adapter for atlas-ref.

The adapter answers values and, by vjp, gradients.

atlas-ref check cases/ --impl delta_jax:answer
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import layouts
import settings
from settings import Settings

jax.config.update("jax_enable_x64", True)

Array = jax.Array


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    step: Array,
    retain: Array,
    M: Array,
    write: Array,
    start: Array,
    how: Settings,
) -> Any:
    """One head: y (T, d_out) and the last memory (d_out, d_in).

    Args:
        q, k (T, d_in); v (T, d_out).
        step, retain (T, d_out): 1 where the case has none.
        M (d_out, d_in): the memory that every packed sequence starts from.
        write, start (T,): whether the token is active, and whether a packed sequence starts.
    """

    def token(memory: Array, at: Any) -> tuple[Array, Array]:
        key, value, query, h, r, writes, starts = at
        memory = jnp.where(starts, M, memory)
        decayed = r[:, None] * memory
        reference = decayed if how.decay == "before_error" else memory
        error = reference @ key + (value if how.value_sign == "plus" else -value)
        change = (
            how.gradient_scale
            * (h * h if how.rate == "both" else h)[:, None]
            * jnp.outer(error, key)
        )
        new = jnp.where(
            writes, decayed + change if how.direction == "ascent" else decayed - change, memory
        )
        return new, (memory if how.read == "before" else new) @ (how.query_scale * query)

    last, y = jax.lax.scan(token, M, (k, v, q, step, retain, write, start))
    return y, last


def answer(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Array]:
    """Answer a case for `--impl`: arrays of the case in, results by name out."""
    how, view = settings.read(case, inputs), layouts.Leading.of(inputs)
    tokens, kind = inputs["k"].shape[-2], inputs["k"].dtype
    wide = jnp.float64 if kind == np.float64 else jnp.float32
    masks = {
        name: jnp.asarray(inputs.get(name, np.full(tokens, default)), bool)
        for name, default in (("active", 1), ("reset", 0))
    }
    arrays = {
        name: jnp.asarray(value)
        for name, value in inputs.items()
        if name not in (*layouts.MASKS, "y_bar", "M_bar")
    }

    def results(chosen: dict[str, Array]) -> dict[str, Array]:
        x = {name: value.astype(wide) for name, value in chosen.items()}
        M = _memory(x, how)
        gates = [_wide_gate(each, x["v"]) for each in (x.get("step_size"), _retain(x, how))]
        heads = [
            each.reshape(-1, *each.shape[len(view.axes) :])
            for each in (x["q"], x["k"], x["v"], *gates, M)
        ]
        rule = jax.vmap(lambda *head: delta_rule(*head, masks["active"], masks["reset"], how))
        y, last = rule(*heads)
        last = last.swapaxes(-1, -2) if how.transposed else last
        return {"y": y.reshape(x["v"].shape), "M": last.reshape(*view.axes, *last.shape[1:])}

    if "y_bar" not in inputs:
        return {name: value.astype(kind) for name, value in results(arrays).items()}
    outputs, pullback = jax.vjp(results, arrays)
    bars = {
        name: jnp.asarray(inputs.get(f"{name}_bar", np.zeros(value.shape)), wide)
        for name, value in outputs.items()
    }
    (gradients,) = pullback(bars)
    outputs |= {f"grad/{name}": value for name, value in gradients.items()}
    return {name: value.astype(kind) for name, value in outputs.items()}


def _wide_gate(gate: Array | None, v: Array) -> Array:
    """A gate for every output dimension; 1 where the case has none."""
    if gate is None:
        return jnp.ones_like(v)
    return jnp.broadcast_to(gate[..., None], v.shape) if gate.ndim < v.ndim else gate


def _retain(x: dict[str, Array], how: Settings) -> Array | None:
    if how.gate == "none":
        return None
    gate = jnp.exp(x["log_retain"]) if "log_retain" in x else x["retain"]
    return 1.0 - gate if how.gate == "forget" else gate


def _memory(x: dict[str, Array], how: Settings) -> Array:
    if "M0" not in x:
        return jnp.zeros((*x["k"].shape[:-2], x["v"].shape[-1], x["k"].shape[-1]), x["k"].dtype)
    return x["M0"].swapaxes(-1, -2) if how.transposed else x["M0"]
