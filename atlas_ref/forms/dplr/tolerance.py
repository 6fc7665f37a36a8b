"""The error that a float32 chunk kernel of dplr may have, by the logs of gates that it cumulates.

Specified in specs/dplr.md (DPLR-16).
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Error of such a kernel without decay, and of its best exponential, measured.
FLOOR = 1e-6
#: Units of the largest cumulated log gate, measured up to chunks of 128 tokens.
UNITS = 2


def of_cumulated_logs(log_retain: Any, chunk: int) -> float:
    """The relative error, by norms, of y and memory that cumulated logs in float32 explain (DPLR-16).

        10^-6 + 2 * 2^-24 max_t |g_first + ... + g_t|

    A kernel that is further off has a mistake; one that multiplies gates keeps below 5e-7.

    Args:
        log_retain (..., T, d): natural logs of the gates; columns of one number for scalar gates.
        chunk: tokens over which the kernel cumulates.

    Returns:
        the tolerance; infinite where a gate is 0, since such a kernel then gives NaN.

    Raises:
        ValueError: a chunk below 1, no tokens, or a log gate that is above 0 or not a number.
    """
    logs = np.asarray(log_retain, np.float64)
    if chunk < 1:
        raise ValueError(f"chunk: {chunk}, expected at least 1")
    if logs.ndim < 2 or not logs.size:
        raise ValueError(f"log_retain: shape {logs.shape}, expected (..., T, d) with tokens")
    if not (logs <= 0).all():
        raise ValueError("log_retain: every log gate must be at most 0")
    largest = max(
        float(-logs[..., first : first + chunk, :].sum(axis=-2).min())
        for first in range(0, logs.shape[-2], chunk)
    )
    return FLOOR + UNITS * 2.0**-24 * largest
