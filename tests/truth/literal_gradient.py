"""Gradients of the literal evaluation by complex step: exact to rounding, entry by entry."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.truth.literal import evaluate

COTANGENTS = {
    "in/y_bar": "out/y",
    "in/M_bar": "out/M",
    "in/S_bar": "out/S",
    "in/X_bar": "out/X",
    "in/phi_bar": "out/phi",
}


def pairing(
    header: dict[str, Any], tensors: dict[str, np.ndarray], cotangents: dict[str, np.ndarray]
) -> complex:
    """<out/y, in/y_bar> + <out/M, in/M_bar> + <out/S, in/S_bar>, over the cotangents that are
    there.
    """
    results = evaluate(header, tensors)
    present = [
        (results[out], cotangents[bar])
        for bar, out in COTANGENTS.items()
        if bar in cotangents and out in results
    ]
    return complex(sum(np.sum(result * bar) for result, bar in present))


def complex_step(
    header: dict[str, Any],
    tensors: dict[str, np.ndarray],
    name: str,
    cotangents: dict[str, np.ndarray],
    step: float = 1e-30,
    entries: Iterable[tuple[int, ...]] | None = None,
) -> np.ndarray:
    """The gradient of tensors[name] by the complex step, at `entries` alone where given and nan
    elsewhere.

    df/dx[i] = Im f(x + i step e_i) / step.
    """
    base = np.asarray(tensors[name], dtype=complex)
    gradient = np.full(base.shape, np.nan)
    for index in np.ndindex(*base.shape) if entries is None else entries:
        moved = base.copy()
        moved[index] += 1j * step
        gradient[index] = pairing(header, {**tensors, name: moved}, cotangents).imag / step
    return gradient
