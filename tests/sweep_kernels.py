"""Implementations of the Delta rule for sweeps: a right one by hand, and wrong ones that odd cases
expose.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]


def right(case: dict[str, Any], inputs: Tensors, late: int = 0) -> Tensors:
    """y and M, token by token, in float64; preset spec at level projected.

    Args:
        late: tokens of chunks, each of which starts from the memory of the chunk before; 0 for none.
    """
    if case.get("convention", "spec") != "spec" or case.get("level", "projected") != "projected":
        raise NotImplementedError("preset spec at level projected alone")
    k, v, q = (inputs[name].astype(np.float64) for name in ("k", "v", "q"))
    T, d_out = v.shape[-2:]
    retain, step = (_column(inputs[name], d_out, v.ndim) for name in ("retain", "step_size"))
    start = (
        inputs["M0"].astype(np.float64)
        if "M0" in inputs
        else np.zeros((*k.shape[:-2], d_out, k.shape[-1]))
    )
    active, reset = inputs.get("active", np.ones(T)), inputs.get("reset", np.zeros(T))
    M, y, starts = start, [], [start]
    for t in range(T):
        if late and t and t % late == 0:
            starts.append(M)
            M = starts[-2]
        M = start if reset[t] else M
        if active[t]:
            error = (M @ k[..., t, :, None])[..., 0] - v[..., t, :]
            M = retain[..., t, :, None] * M - step[..., t, :, None] * (
                error[..., :, None] * k[..., t, None, :]
            )
        y.append((M @ q[..., t, :, None])[..., 0])
    return {"y": np.stack(y, axis=-2), "M": M}


def _column(gate: np.ndarray, d_out: int, rank: int) -> np.ndarray:
    """The gate as a factor of rows, (..., T, d_out) or (..., T, 1)."""
    return gate.astype(np.float64) if gate.ndim == rank else gate.astype(np.float64)[..., None]


def late_by_16(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Chunks of 16 tokens that start from a memory that is a chunk old."""
    return right(case, inputs, 16)


def late_by_64(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Chunks of 64 tokens that start from a memory that is a chunk old."""
    return right(case, inputs, 64)


def late_by_128(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Chunks of 128 tokens that start from a memory that is a chunk old."""
    return right(case, inputs, 128)


def no_pulse(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """The rule that writes at inactive tokens, too; slow on request."""
    time.sleep(float(os.environ.get("ATLAS_REF_TEST_PAUSE", "0")))
    return right(case, {name: value for name, value in inputs.items() if name != "active"})


def by_chunks_of_four(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """The rule without the tokens after the last whole chunk."""
    T = inputs["k"].shape[-2]
    if T <= 4 or T % 4 == 0:
        return right(case, inputs)
    found = right(case, inputs)
    found["y"][..., T - T % 4 :, :] = 0.0
    return found


def divides_by_gates(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """The rule by quotients of products of gates in float32, lost where these leave the format."""
    found = right(case, inputs)
    with np.errstate(all="ignore"):
        product = np.cumprod(inputs["retain"].astype(np.float32), axis=-1, dtype=np.float32)
        lost = ~np.isfinite(np.float32(1.0) / product)
    found["y"][lost if lost.ndim < found["y"].ndim else lost.any(axis=-1)] = np.nan
    return found


def crashes_after_eight(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """End of the process where there are more than eight tokens."""
    if inputs["k"].shape[-2] > 8:
        os.kill(os.getpid(), signal.SIGSEGV)
    return right(case, inputs)


def hangs_on_three(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """An endless run where there are exactly three tokens."""
    if inputs["k"].shape[-2] == 3:
        time.sleep(3600)
    return right(case, inputs)


def garbage(case: dict[str, Any], inputs: Tensors) -> Any:
    """An answer without arrays."""
    print("a print belongs on standard error")
    return {"y": "yes"}


def another_result(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """A momentum, which this rule does not have."""
    return right(case, inputs) | {"S": np.zeros(3)}


def no_such_result(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """A result that no rule has."""
    return right(case, inputs) | {"zz": np.zeros(3)}


def answers_nothing(case: dict[str, Any], inputs: Tensors) -> Tensors:
    return {}


def enormous(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Numbers as large as float64 allows, at level projected."""
    return {"y": np.full(inputs["v"].shape, 1.7e308)}


def unsupported(case: dict[str, Any], inputs: Tensors) -> Tensors:
    raise NotImplementedError("not today")
