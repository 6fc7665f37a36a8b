"""The exact form's inter-chunk loop over a group in one launch, and its backward in another.

Plain twins: `_running` of `atlas_ref.engine.masked.forward` and `_through_running` of
`atlas_ref.engine.masked.backward`. Specified in specs/cuda.md (CUDA-9, CUDA-10).
"""

from __future__ import annotations

from typing import NamedTuple

from atlas_ref.engine.cuda import launch
from atlas_ref.engine.cuda.launch import Device, Struct, View, ceil_div, view
from atlas_ref.types import Array

WIDTH = 8  # output dimensions of a block
TILE, GROUPS = 64, 16  # as in source/exact.cu


class LoopResults(NamedTuple):
    """Results of the inter-chunk loop; states are transposed, [M^T | S^T] (d, bases o).

    Attributes:
        E (B, g, K, o): residuals. scaled (B, g, K, bases o): [-D_C E | X_C E]. answered (B, g, K,
            bases o): Phi Z before each chunk.
        states (B, g + 1, d, bases o): at the start of each chunk and after the last.
    """

    E: Array
    scaled: Array
    answered: Array
    states: Array


class LoopCotangents(NamedTuple):
    """Results of the backward of the inter-chunk loop.

    Attributes:
        start (B, d, bases o): cotangent of the state before the first chunk. ends (B, g, d, bases
            o): of that after each chunk.
        F (B, g, K, bases o): Phi times the latter. R_bar (B, g, K, o): cotangent of the right side
            of the system.
    """

    start: Array
    ends: Array
    F: Array
    R_bar: Array


class LoopInputs(NamedTuple):
    """Arguments of the inter-chunk loop and of its backward, computed for all chunks at once.

    Attributes:
        phi (B, g, K, d), values (B, g, K, o): rows of the columns, with any strides.
        inverse (B, g, G, K, K): L^{-1}, lower triangular.
        D, X (C + 1, B, g, G, bases + K): coefficient rows, with any strides; X None without
        momentum.
        retain (C, B, g, G): where the memory decays before the residual is taken, else None.
        window: c, number of columns of a token.
    """

    phi: Array
    values: Array
    inverse: Array
    D: Array
    X: Array
    retain: Array
    window: int


def inter_chunk_loop(
    inputs: LoopInputs, start: Array, *, width: int = WIDTH, device: Device | None = None
) -> LoopResults:
    """Residuals and states of all chunks, one after the other, by forward substitution (EXACT-1 to
    EXACT-3).

        E = L^{-1} (c' Phi M_0^T + f' Phi S_0^T - V),    Z <- [c_C M^T + f_C S^T | n_C S^T] + Phi^T [-D_C E | X_C E]

    Args:
        start (B, d, bases o): [M^T | S^T] before the first chunk.
        width: output dimensions a block has, 2 to 16. Results do not depend on it.
        device: where to run; that of the arrays when None.

    Raises:
        TypeError: arrays that are not CuPy's, or of another type than float32 and float64.
        DoesNotFit: d or K for which a block has too little shared memory.

    Source: CUDA-9.
    """
    device = launch.device_of(inputs.phi, start, device=device)
    B, g, K, d = inputs.phi.shape
    o, wide = inputs.values.shape[-1], start.shape[-1]
    results = LoopResults(
        *(
            device.xp.empty((B, *shape), start.dtype)
            for shape in ((g, K, o), (g, K, wide), (g, K, wide), (g + 1, d, wide))
        )
    )
    _run(device, "exact_walk", inputs, results, {"start": start}, width)
    return results


def inter_chunk_loop_backward(
    inputs: LoopInputs,
    last: Array,
    E_bar: Array,
    states_bar: Array,
    *,
    width: int = WIDTH,
    device: Device | None = None,
) -> LoopCotangents:
    """The cotangents that pass from chunk to chunk, from the last to the first (EXACT-8).

        F = Phi Z_bar,    R_bar = L^{-T} (E_bar - D_C F_M + X_C F_S),
        Z_bar <- states_bar + [c_C M_bar | f_C M_bar + n_C S_bar] + Phi^T [c' R_bar | f' R_bar]

    Args:
        last (B, d, bases o): Z_bar after the last chunk.
        E_bar (B, g, K, o), states_bar (B, g, d, bases o): cotangents, from the reads, of residuals
            and of the state before each chunk.
        width, device: as for `inter_chunk_loop`.

    Raises:
        As `inter_chunk_loop`.

    Source: CUDA-10.
    """
    device = launch.device_of(inputs.phi, last, device=device)
    B, g, K, d = inputs.phi.shape
    o, wide = inputs.values.shape[-1], last.shape[-1]
    results = LoopCotangents(
        *(
            device.xp.empty((B, *shape), last.dtype)
            for shape in ((d, wide), (g, d, wide), (g, K, wide), (g, K, o))
        )
    )
    _run(
        device,
        "exact_walk_backward",
        inputs,
        results,
        {"E_bar": E_bar, "states_bar": states_bar, "last": last},
        width,
    )
    return results


def _run(
    device: Device,
    kernel: str,
    inputs: LoopInputs,
    results: tuple[Array, ...],
    arguments: dict[str, Array],
    width: int,
) -> None:
    if not 2 <= width <= 16:
        raise launch.DoesNotFit(f"width: {width} output dimensions a block, expected 2 to 16")
    B, g, K, d = inputs.phi.shape
    o, gates = inputs.values.shape[-1], inputs.inverse.shape[2]
    bases = 1 if inputs.X is None else 2
    tokens = inputs.D.shape[0] - 1
    others = {name: x for name, x in inputs._asdict().items() if name not in ("phi", "window")}
    kind = launch.arithmetic("phi", inputs.phi, **others, **arguments)
    views = (
        view(inputs.phi),
        view(inputs.values),
        view(inputs.D),
        View(inputs.X, 5),
        View(inputs.retain, 4),
    )
    sizes = (B, g, K, d, o, gates, inputs.window, tokens)
    launch.run(
        device,
        "exact",
        f"{kernel}<{kind}, {bases}>",
        grid=(ceil_div(o, width) * B,),
        block=(GROUPS * width,),
        shared=inputs.phi.dtype.itemsize
        * (TILE * (TILE + 1) + width * (d * bases + K + K * bases)),
        arguments=(
            *results,
            *map(device.xp.ascontiguousarray, arguments.values()),
            Struct((*views, device.xp.ascontiguousarray(inputs.inverse), *sizes)),
            width,
        ),
    )
