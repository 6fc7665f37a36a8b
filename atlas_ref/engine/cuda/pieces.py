"""Small steps of a group of chunks, each in one launch.

As array operations they take a launch for every product and sum. Plain twins: `pass_on`,
`scale_residuals`, `combined` and `gathered` of `atlas_ref.engine.masked.forward`, and `_hand_back`
of `atlas_ref.engine.masked.backward`. Specified in specs/cuda.md (CUDA-12).
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


def scaled_residuals(
    E: Array, D: Array, X: Array, out: Array, *, device: Device | None = None
) -> None:
    """Write [-D_C E | X_C E] of residuals E (B, g, K, o) into out (B, g, K, bases o).

    D and X are as for `carried`; all arrays may have any strides.

    Source: CUDA-12.
    """
    found = launch.device_of(E, device=device)
    B, g, K, _ = E.shape
    _run(found, "scaled_residuals", D, X, out.shape[-1], (view(out), view(E)), (B, g, K))


def combined_reads(
    asked: Array, mixed: Array, rows: Array, out: Array, *, device: Device | None = None
) -> None:
    """Write y = c (Psi M_0^T) + f (Psi S_0^T) - A E into `out` (CHUNK-7).

    `out` is (B, g, C, o), with any strides.

    Args:
        asked (B, g, C, bases o): [Psi M_0^T | Psi S_0^T]. mixed (B, g, C, o): A E.
        rows (C, B, g, G, bases + K): the coefficient rows that tokens read with, D[1:] after the
        write, D[:-1] before it.

    Source: CUDA-12.
    """
    found = launch.device_of(asked, device=device)
    B, g, C, o = mixed.shape
    launch.run(
        found,
        "pieces",
        f"combined_reads<{launch.arithmetic('asked', asked, mixed=mixed, rows=rows, out=out)}, {asked.shape[-1] // o}>",
        **_grid(mixed.size),
        arguments=(
            view(out),
            *map(found.xp.ascontiguousarray, (asked, mixed)),
            view(rows),
            B,
            g,
            C,
            rows.shape[3],
            o,
        ),
    )


def gathered(
    columns: Array,
    rows: Array,
    chunk: int,
    window: int,
    *,
    own_columns: bool,
    device: Device | None = None,
) -> None:
    """Add columns (B, g, K, x) in place into their rows (B, h + n, x) (EXACT-10).

    Both may have any strides.

    Args:
        own_columns: whether each token has c columns of its own (K = C c), rather than all tokens
            of a chunk one for each row (K = h + C).

    Source: CUDA-12.
    """
    found = launch.device_of(rows, columns, device=device)
    B, g, _, d = columns.shape
    launch.run(
        found,
        "pieces",
        f"gathered<{launch.arithmetic('columns', columns, rows=rows)}>",
        **_grid(rows.size),
        arguments=(view(rows), view(columns), B, g, chunk, window, d, int(own_columns)),
    )


def _grid(entries: int) -> dict[str, Any]:
    """A thread for each entry."""
    return {"grid": (ceil_div(entries, THREADS),), "block": (THREADS,)}


def _run(
    device: Device,
    kernel: str,
    D: Array,
    X: Array,
    wide: int,
    arrays: tuple[Any, ...],
    sizes: tuple[int, ...],
) -> None:
    """Run a kernel over (memory, chunk, row, output); if it loops over chunks, without chunk."""
    outputs = wide if X is None else wide // 2
    ends = Struct((view(D[-1]), View(None if X is None else X[-1], 4), int(D.shape[3])))
    B, g, rows = sizes
    entries = B * rows * outputs * (g if kernel == "scaled_residuals" else 1)
    others = {f"argument {i}": x.array if isinstance(x, View) else x for i, x in enumerate(arrays)}
    name = f"{kernel}<{launch.arithmetic('D', D, X=X, **others)}, {wide // outputs}>"
    launch.run(device, "pieces", name, **_grid(entries), arguments=(*arrays, ends, *sizes, outputs))
