"""Coefficient rows of all chunks in one launch, and their cotangents in another.

Plain twins: `coefficient_rows` and `coefficient_rows_backward` of
`atlas_ref.engine.group.coefficients`, with the equations and the layout. Specified in specs/cuda.md
(CUDA-4, CUDA-5).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from atlas_ref.engine.cuda import launch
from atlas_ref.engine.cuda.launch import Device, View, ceil_div, view
from atlas_ref.types import Array

THREADS = 128


class GateBars(NamedTuple):
    """Cotangents of the gates of a group.

    Gates are (C, B, g, G), momentum None without momentum; weights are (C, B, g, 1, c).
    """

    retain: Array
    momentum: Array
    rate_in: Array
    rate_out: Array
    weights: Array


def coefficient_rows(
    gates: Any, columns: int, stride: int, *, device: Device | None = None
) -> tuple[Array, Array]:
    """D_0 .. D_C and X_0 .. X_C of every chunk (CHUNK-4), a thread for each column.

        X_t = momentum_t X_{t-1} + rate_in_t w_t,    D_t = retain_t D_{t-1} + rate_out_t X_t

    Args:
        gates: retain, momentum (or None), rate_in, rate_out (C, B, g, G) and weights (C, B or 1, g,
            1, c), with any strides, B of a gate or the weights may be 1.
        columns: K, number of columns of the keys of a chunk.
        stride: the window of token t occupies c columns from stride * t on.
        device: where to run; that of the arrays when None.

    Returns:
        D (C + 1, B, g, G, bases + K) and X likewise; X None without momentum.

    Raises:
        TypeError: arrays that are not CuPy's, or of another type than float32 and float64.

    Source: CUDA-4.
    """
    device, kind, shape = _launch_settings(gates, columns, device)
    tokens, *rows, wide = shape
    made = [
        device.xp.empty((tokens + 1, *rows, wide), gates.retain.dtype)
        for _ in range(1 if gates.momentum is None else 2)
    ]
    D, X = made[0], made[1] if len(made) == 2 else None
    every = made[0][0].size
    launch.run(
        device,
        "coefficients",
        f"coefficient_rows<{kind}>",
        grid=(ceil_div(every, THREADS),),
        block=(THREADS,),
        arguments=(D, X, *_views(device, gates, shape), *_sizes(gates, shape, stride)),
    )
    return D, X


def coefficient_rows_backward(
    gates: Any,
    D: Array,
    X: Array,
    dD: Array,
    dX_last: Array,
    stride: int,
    *,
    device: Device | None = None,
) -> GateBars:
    """Cotangents of the gates from those of D and of the last row of X (CHUNK-17).

    A block of threads computes each row; dD is not overwritten.

        lambda_t = dX_t + rate_out_t mu_t + momentum_{t+1} lambda_{t+1},    mu_t = dD_t + retain_{t+1} mu_{t+1}

    Args:
        gates: as for `coefficient_rows`. D, X: its results.
        dD (C + 1, B, g, G, bases + K), dX_last (B, g, G, bases + K): cotangents; dX_last None
        without momentum.
        stride, device: as there.

    Raises:
        TypeError: as `coefficient_rows`.
        DoesNotFit: more columns or tokens than the shared memory of a block can hold.

    Source: CUDA-5.
    """
    bases = 1 if gates.momentum is None else 2
    device, kind, shape = _launch_settings(gates, D.shape[-1] - bases, device)
    tokens, B, g, G, wide = shape
    launch.arithmetic("retain", gates.retain, D=D, X=X, dD=dD, dX_last=dX_last)
    xp, dtype, window = device.xp, D.dtype, gates.weights.shape[-1]
    found = {
        name: xp.empty((tokens, B, g, G), dtype)
        for name in ("retain", "momentum", "rate_in", "rate_out")
    }
    if gates.momentum is None:
        found["momentum"] = None
    entering = xp.empty((tokens, B, g, G, window), dtype)
    contiguous = [None if x is None else xp.ascontiguousarray(x) for x in (D, X, dD, dX_last)]
    launch.run(
        device,
        "coefficients",
        f"coefficient_rows_backward<{kind}>",
        grid=(B * g * G,),
        block=(THREADS,),
        shared=dtype.itemsize * (2 * wide + 4 * tokens * (THREADS // 32)),
        arguments=(
            *found.values(),
            entering,
            *contiguous,
            *_views(device, gates, shape),
            *_sizes(gates, shape, stride),
        ),
    )
    return GateBars(
        **found, weights=entering if G == 1 else xp.sum(entering, axis=-2, keepdims=True)
    )


def _launch_settings(
    gates: Any, columns: int, device: Device | None
) -> tuple[Device, str, tuple[int, ...]]:
    """Device, template arguments and (C, B, g, G, bases + K)."""
    device = launch.device_of(gates.retain, device=device)
    others = {name: getattr(gates, name) for name in ("momentum", "rate_in", "rate_out", "weights")}
    kind = launch.arithmetic("retain", gates.retain, **others)
    tokens, B, g, G = gates.retain.shape
    bases = 1 if gates.momentum is None else 2
    shape = (tokens, max(B, gates.weights.shape[1]), g, G, bases + columns)
    return device, f"{kind}, {'true' if bases == 2 else 'false'}", shape


def _views(device: Device, gates: Any, shape: tuple[int, ...]) -> list[View]:
    """The gates as views of the kernels; memories that share one are repeated by a stride of 0."""
    tokens, B, g, G, _ = shape
    momentum = gates.retain if gates.momentum is None else gates.momentum  # not read
    weights = gates.weights[..., 0, :]
    each = [(x, G) for x in (gates.retain, momentum, gates.rate_in, gates.rate_out)] + [
        (weights, weights.shape[-1])
    ]
    return [view(device.xp.broadcast_to(x, (tokens, B, g, last))) for x, last in each]


def _sizes(gates: Any, shape: tuple[int, ...], stride: int) -> tuple[int, ...]:
    tokens, B, g, G, wide = shape
    return tokens, B, g, G, int(gates.weights.shape[-1]), wide, stride
