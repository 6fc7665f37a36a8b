"""Inverses of unit lower triangular matrices in one launch.

Plain twin: `inverse_unit_lower` of `atlas_ref.engine.group.triangular`. Specified in specs/cuda.md
(CUDA-11).
"""

from __future__ import annotations

from atlas_ref.engine.cuda import launch
from atlas_ref.engine.cuda.launch import Device
from atlas_ref.types import Array


def inverse_unit_lower(strict: Array, *, device: Device | None = None) -> Array:
    """(I + N)^{-1} for the strictly lower triangular part N of a matrix (EXACT-4), by substitution.

        X[i,j] = -(N[i,j] + sum over j < l < i of N[i,l] X[l,j])

    Args:
        strict (..., n, n): N; entries on and above the diagonal are not read.
        device: where to run; that of the arrays when None.

    Returns:
        (..., n, n), unit lower triangular, exact zeros above the diagonal.

    Raises:
        TypeError: arrays that are not CuPy's, or of another type than float32 and float64.
        DoesNotFit: n of which a block cannot hold the matrix.

    Source: CUDA-11.
    """
    found = launch.device_of(strict, device=device)
    kind = launch.arithmetic("strict", strict)
    *lead, n, _ = strict.shape
    if n > 1024:
        raise launch.DoesNotFit(f"strict: {n} rows, of which the kernel takes at most 1024")
    inverse = found.xp.empty((*lead, n, n), strict.dtype)
    if inverse.size == 0:
        return inverse
    launch.run(
        found,
        "triangular",
        f"inverse_unit_lower<{kind}>",
        grid=(inverse.size // (n * n),),
        block=(32 * launch.ceil_div(n, 32),),
        shared=strict.dtype.itemsize * (n * n + 2 * n),
        arguments=(inverse, found.xp.ascontiguousarray(strict), n),
    )
    return inverse
