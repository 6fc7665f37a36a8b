"""Small steps of a group of chunks, each in one launch.

As array operations they take launches for every chunk. Plain twins: `pass_on` of
`atlas_ref.engine.masked.forward`, and `_hand_back` of `atlas_ref.engine.masked.backward`. Specified in specs/cuda.md (CUDA-12).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.engine.cuda import launch
from atlas_ref.engine.cuda.launch import Device, Struct, View, ceil_div, view
from atlas_ref.types import Array

THREADS = 256


def carried(
    start: Array, change: Array, D: Array, X: Array, *, device: Device | None = None
) -> Array:
    """The state before each chunk and after the last, as `pass_on` computes it chunk by chunk
    (CHUNK-8).

        Z_{k+1} = [c_C M^T + f_C S^T | n_C S^T] + change_k

    Args:
        start (B, d, bases o): [M^T | S^T]. change (B, g, d, bases o): the term of the residuals of
            each chunk.
        D, X (C + 1, B, g, G, bases + K): coefficient rows, with any strides; X None without
        momentum.

    Returns:
        (B, g + 1, d, bases o).

    Source: CUDA-12.
    """
    found = launch.device_of(start, device=device)
    B, g, d, wide = change.shape
    states = found.xp.empty((B, g + 1, d, wide), start.dtype)
    arrays = (states, *map(found.xp.ascontiguousarray, (start, change)))
    _run(found, "carried", D, X, wide, arrays, (B, g, d))
    return states


def carried_backward(
    last: Array, asked: Array, D: Array, X: Array, *, device: Device | None = None
) -> tuple[Array, Array]:
    """Cotangents of the state before the first chunk and after each (CHUNK-16).

    They are (B, d, bases o) and (B, g, d, bases o); the latter is also that of `change`.

    Args:
        last (B, d, bases o): cotangent of the state after the last chunk.
        asked (B, g, d, bases o): cotangents of the state before each chunk from the reads.
        D, X: as for `carried`.

    Source: CUDA-12.
    """
    found = launch.device_of(last, device=device)
    B, g, d, wide = asked.shape
    start, after = found.xp.empty(last.shape, last.dtype), found.xp.empty(asked.shape, last.dtype)
    arrays = (start, after, *map(found.xp.ascontiguousarray, (last, asked)))
    _run(found, "carried_backward", D, X, wide, arrays, (B, g, d))
    return start, after


def _run(
    device: Device,
    kernel: str,
    D: Array,
    X: Array,
    wide: int,
    arrays: tuple[Any, ...],
    sizes: tuple[int, ...],
) -> None:
    """Run a kernel over (memory, row, output), which loops over chunks."""
    outputs = wide if X is None else wide // 2
    ends = Struct((view(D[-1]), View(None if X is None else X[-1], 4), int(D.shape[3])))
    B, _, rows = sizes
    others = {f"argument {i}": x.array if isinstance(x, View) else x for i, x in enumerate(arrays)}
    name = f"{kernel}<{launch.arithmetic('D', D, X=X, **others)}, {wide // outputs}>"
    launch.run(
        device,
        "pieces",
        name,
        grid=(ceil_div(B * rows * outputs, THREADS),),
        block=(THREADS,),
        arguments=(*arrays, ends, *sizes, outputs),
    )
