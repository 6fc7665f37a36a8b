"""T tokens of a rule one after the other in one launch, and their plain twin.

Specified in specs/cuda.md (CUDA-6 to CUDA-8).
"""

from __future__ import annotations

from typing import NamedTuple

from atlas_ref.engine.cuda import launch
from atlas_ref.engine.cuda.launch import Device, DoesNotFit, View, ceil_div, view
from atlas_ref.types import Array

#: Entries of a row of M that a thread has, and threads that have a row: the first whose product is
#: not below d_phi.
SPLITS = ((1, 8), (2, 8), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32))
MOST_THREADS = 256
READS = {"after": 0, "before": 1, "none": 2}


class Steps(NamedTuple):
    """Results of T tokens.

    They are y (B, T, d_out), None where nothing is read; M and S (B, d_out, d_phi), S None without
    momentum.
    """

    y: Array
    M: Array
    S: Array


def steps(
    keys: Array,
    values: Array,
    queries: Array,
    retain: Array,
    momentum: Array,
    rate_in: Array,
    rate_out: Array,
    weights: Array,
    M: Array,
    S: Array,
    *,
    read: str = "after",
    reference: str = "running",
    before_error: bool = False,
    tile: int | None = None,
    device: Device | None = None,
) -> Steps:
    """The recurrence of CHUNK-2 token by token, with M and S in registers and no launch but one.

        e_j = M_{t-1} phi_{t-j} - v_{t-j},    S_t = momentum_t S_{t-1} + rate_in_t sum_j w_t[j] e_j phi_{t-j}^T
        M_t = retain_t M_{t-1} - rate_out_t S_t,    y_t = M_t q_t, or M_{t-1} q_t

    Rows of M do not meet, given keys and weights, so a block has a tile of rows of one memory and
    not a whole memory: that is ceil(d_out / tile) blocks a memory, which keeps a large GPU busy
    with few heads. The state never leaves the registers.

    Args:
        keys (B, h + T, d_phi), values (B, h + T, d_out): those of the h = c - 1 tokens before
        first; queries (B, T, d_phi). Of one
            type: float32, float64, or bfloat16 or float16, which are computed with in float32.
        retain, rate_in, rate_out (B or 1, T, 1 or d_out): gates, in the type of the arithmetic,
            with any strides.
        momentum: the same; None for a rule without momentum.
        weights (B or 1, T, c): by lag, 0 where there is no token.
        M, S (B, d_out, d_phi): the first state, in the type of the arithmetic; S None without
            momentum.
        read: "after" or "before" the write of the token, or "none".
        reference: "running", or "zero", where residuals are -v (Hebbian).
        before_error: whether the memory decays before the residual is taken.
        tile: rows of M a block has; chosen when None. Results do not depend on it.
        device: where to run; that of the arrays when None.

    Returns:
        Steps; y in the type of the keys, M and S in that of the arithmetic.

    Raises:
        TypeError: arrays that are not CuPy's, or types that do not go together.
        DoesNotFit: d_phi above 512, a window longer than a block has threads, or one that does not
            fit its shared memory.

    Source: CUDA-6, CUDA-7; OMEGA-4 to OMEGA-13 without Newton-Schulz.
    """
    found = launch.device_of(keys, M, device=device)
    stored, kind = _types(keys, M)
    launch.arithmetic(
        "M",
        M,
        S=S,
        retain=retain,
        momentum=momentum,
        rate_in=rate_in,
        rate_out=rate_out,
        weights=weights,
    )
    for name, x in (("values", values), ("queries", queries if read != "none" else keys)):
        if x.dtype != keys.dtype:
            raise TypeError(f"{name}: {x.dtype.name}, expected {keys.dtype.name} as keys")
    B, outputs, features = M.shape
    tokens, window = weights.shape[-2:]
    part, lanes, tile, shared = _plan(M, window, tile)
    xp = found.xp
    if tokens == 0:
        return Steps(
            None if read == "none" else xp.empty((B, 0, outputs), keys.dtype),
            M.copy(),
            None if momentum is None else S.copy(),
        )
    y = None if read == "none" else xp.empty((B, tokens, outputs), keys.dtype)
    M_after, S_after = (
        xp.empty(M.shape, M.dtype),
        None if momentum is None else xp.empty(M.shape, M.dtype),
    )
    gates = [
        View(x if x is None else xp.broadcast_to(x, (B, tokens, outputs)), 3)
        for x in (retain, momentum, rate_in, rate_out)
    ]
    contiguous = [
        None if x is None else xp.ascontiguousarray(x)
        for x in (keys, values, queries if y is not None else None, M, S)
    ]
    launch.run(
        found,
        "sequential",
        f"sequential<{stored}, {kind}, {part}, {lanes}>",
        grid=(B, ceil_div(outputs, tile)),  # the first axis takes 2^31 of them, the second 65535
        block=(lanes, tile),
        shared=shared,
        arguments=(
            *(
                y,
                M_after,
                S_after,
                *contiguous,
                *gates,
                view(xp.broadcast_to(weights, (B, tokens, window))),
            ),
            *(
                tokens,
                outputs,
                features,
                window,
                READS[read],
                int(before_error),
                int(reference == "zero"),
            ),
        ),
    )
    return Steps(y, M_after, S_after)


def _types(keys: Array, M: Array) -> tuple[str, str]:
    """C++ types of storage and arithmetic."""
    kind = launch.arithmetic("M", M)
    stored = launch.C_TYPES.get(keys.dtype.name)
    if stored is None or (stored != kind and (kind != "float" or stored == "double")):
        raise TypeError(
            f"keys: {keys.dtype.name} with M in {M.dtype.name}, expected M's type, or "
            "bfloat16 or float16 with M in float32"
        )
    return stored, kind


def fits(M: Array, window: int, *, device: Device | None = None) -> bool:
    """Whether `steps` takes memories of this shape and type with this window."""
    try:
        return _plan(M, window, None).shared <= launch.device_of(M, device=device).shared_limit()
    except DoesNotFit:
        return False


class _Plan(NamedTuple):
    """Entries of a row of M a thread, threads a row, rows a block, bytes of shared memory."""

    part: int
    lanes: int
    tile: int
    shared: int


def _plan(M: Array, window: int, tile: int | None) -> _Plan:
    features = M.shape[-1]
    split = next((each for each in SPLITS if each[0] * each[1] >= features), None)
    if split is None:
        raise DoesNotFit(
            f"keys: d_phi {features}, of which the sequential kernel takes at most "
            f"{SPLITS[-1][0] * SPLITS[-1][1]}"
        )
    part, lanes = split
    tile = tile or max(128 // lanes, part // 2)
    threads, wide = lanes * tile, part * lanes
    if threads > MOST_THREADS or threads % 32 or 2 * tile < part:
        raise DoesNotFit(
            f"tile: {tile} rows of {lanes} threads, expected at least {part / 2:g} rows, a "
            "multiple of 32 threads, at most 256"
        )
    if window > threads:
        raise DoesNotFit(
            f"weights: a window of {window} tokens, of which a block of {threads} threads "
            f"takes at most {threads}"
        )
    return _Plan(
        part, lanes, tile, M.dtype.itemsize * ((window + 1) * (wide + tile) + 2 * (wide + window))
    )


def plain_steps(
    keys: Array,
    values: Array,
    queries: Array,
    retain: Array,
    momentum: Array,
    rate_in: Array,
    rate_out: Array,
    weights: Array,
    M: Array,
    S: Array,
    *,
    read: str = "after",
    reference: str = "running",
    before_error: bool = False,
) -> Steps:
    """The plain twin of `steps`: array operations, token by token (CUDA-6)."""
    tokens, window = weights.shape[-2:]
    y: list[Array] = []
    for t in range(tokens):
        r, a, b = (gate[:, t, :, None] for gate in (retain, rate_in, rate_out))
        before, gradient = M, 0.0 * M
        for j in range(window):
            # phi has shape (B, 1, d_phi), v has (B, d_out, 1)
            phi, v = (
                keys[:, window - 1 + t - j, None],
                values[:, window - 1 + t - j, :, None],
            )
            error = -v
            if reference == "running":
                predicted = (M * phi).sum(axis=-1, keepdims=True)
                error = error + (r * predicted if before_error else predicted)
            gradient = gradient + weights[:, t, j, None, None] * error * phi
        S = a * gradient if momentum is None else momentum[:, t, :, None] * S + a * gradient
        M = r * M - b * S
        if read != "none":
            y.append(((M if read == "after" else before) * queries[:, t, None]).sum(axis=-1))
    made = None
    if y:
        made = 0.0 * values[:, window - 1 :]
        for t, each in enumerate(y):
            made[:, t] = each
    return Steps(made, M, None if momentum is None else S)
