"""Conversion between the layout of a case, (..., T, D), and that of most kernels, (B, T, H, D).

Packed sequences and grouped heads are converted too.

NumPy alone, and nothing of atlas_ref: copy this file beside your kernel. A case has any leading
axes L, the same for every tensor, and time behind them: k (L, T, d_in), gates (L, T) or (L, T,
d_out), states (L, d_out, d_in). Kernels have time in front of the heads, may pack several sequences
into one (cu_seqlens), and may share a key or value head among several query heads (grouped heads).
Two ways through this file:

- a case arrives (`--impl`): `Leading.of(inputs)` turns its arrays into the kernel's and the
  kernel's results back;
- a kernel's own arrays are to be checked: `to_case` makes a case of them, and `Packed.back` brings
  the oracle's results into the kernel's layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

#: Tensors of a case that have no time axis.
STATES = ("M0", "S0", "M_ref", "M", "S")

#: Tensors that the same rows stand for in every head.
MASKS = ("active", "reset")


class Leading(NamedTuple):
    """The leading axes of a case, folded into (B, H).

    None is (1, 1), one is (1, H), more are (product of the others, H).
    """

    axes: tuple[int, ...]

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> Leading:
        """The leading axes of a case's inputs, named without `in/`."""
        return cls(tuple(inputs["k"].shape[:-2]))

    @property
    def folded(self) -> tuple[int, int]:
        """(B, H)."""
        return int(np.prod(self.axes[:-1], dtype=int)), (self.axes[-1] if self.axes else 1)

    def to_kernel(self, name: str, x: Array) -> Array:
        """An array of the case in the kernel's layout; masks stay.

        (L, T, D) becomes (B, T, H, D), (L, T) becomes (B, T, H), and a state (L, d_out, d_in)
        becomes (B, H, d_out, d_in).
        """
        if name in MASKS:
            return x
        x = x.reshape(*self.folded, *x.shape[len(self.axes) :])
        return x if name in STATES else np.swapaxes(x, 1, 2)

    def to_case(self, name: str, x: Array) -> Array:
        """The inverse of `to_kernel`; `name` may begin with `grad/`."""
        name = name.removeprefix("grad/").removeprefix("out/")
        x = x if name in STATES else np.swapaxes(x, 1, 2)
        return np.ascontiguousarray(x.reshape(*self.axes, *x.shape[2:]))


def cu_seqlens(reset: Array | None, tokens: int) -> Array:
    """Starts of packed sequences and the end of the last, from in/reset: [0, ..., T]."""
    starts = [0] if reset is None else [0, *(int(t) for t in np.flatnonzero(reset) if t)]
    return np.array([*starts, tokens], np.int64)


def resets(starts: Array) -> Array:
    """in/reset from cu_seqlens: 1 where a packed sequence starts, but for the first."""
    mask = np.zeros(int(starts[-1]), np.uint8)
    mask[np.asarray(starts[1:-1], int)] = 1
    return mask


class Packed(NamedTuple):
    """The conversion of a kernel's arrays to a case, and back.

    Attributes:
        heads: heads of the case, those of the queries.
        groups: input -> how many heads of the case share one of the kernel's.
    """

    heads: int
    groups: dict[str, int]

    def back(self, results: Mapping[str, Array]) -> dict[str, Array]:
        """Results of the case in the kernel's layout, with gradients by the kernel's own arrays.

        y is (B, T, H, D), and M is (B, H, d_out, d_in).

        A head that several heads of the case share gets the sum of their gradients.
        """
        arrays = {}
        for full, value in results.items():
            kind, _, name = full.partition("/")
            arrays[full] = value
            if kind == "grad" and self.groups.get(name, 1) > 1:
                shared = value.reshape(value.shape[0], -1, self.groups[name], *value.shape[2:])
                arrays[full] = shared.sum(axis=2)
            if name not in STATES and not name.startswith("window_"):
                arrays[full] = np.swapaxes(arrays[full], 1, 2)
        return arrays


def to_case(
    rule: str,
    arrays: Mapping[str, Array],
    *,
    starts: Array | None = None,
    convention: str | dict[str, Any] = "spec",
    **header: Any,
) -> tuple[dict[str, Any], dict[str, Array], Packed]:
    """A case from a kernel's arrays.

    Args:
        arrays: q (B, T, H, D); k, v, gates (B, T, H'), (B, T, H', D), states (B, H', d_out, d_in)
            and the cotangent y_bar (B, T, H, D), by their names in a case without `in/`. H' divides
            H: each of its heads stands for H / H' neighbouring ones, as in grouped-query attention.
        starts: cu_seqlens of packed sequences; then B is 1. Every sequence starts from the same
            states: for one state per sequence make a case of each, with `sequences`.
        header: further keys of the case, as window=4.

    Returns:
        header, tensors, and the way back.

    Raises:
        ValueError: heads that do not divide those of the queries, or packed sequences in a batch.
    """
    batch, _tokens, heads = arrays["q"].shape[:3]
    if starts is not None and batch != 1:
        raise ValueError(f"packed sequences have batch 1, found {batch}")
    groups: dict[str, int] = {}
    tensors: dict[str, Array] = {}
    for name, value in arrays.items():
        own = value.shape[1 if name in STATES else 2]
        if heads % own:
            raise ValueError(f"{name} has {own} heads, which does not divide the {heads} of q")
        groups[name] = heads // own
        x = value if name in STATES else np.swapaxes(value, 1, 2)
        tensors[f"in/{name}"] = np.ascontiguousarray(np.repeat(x, groups[name], axis=1))
    if starts is not None and len(starts) > 2:
        tensors["in/reset"] = resets(np.asarray(starts))
    return (
        {"schema": 1, "rule": rule, "convention": convention, **header},
        tensors,
        Packed(heads, groups),
    )


def sequences(arrays: Mapping[str, Array], starts: Array) -> list[dict[str, Array]]:
    """Each packed sequence by itself, with its own row of every state (N, H, d_out, d_in)."""
    parts = []
    for n, (first, last) in enumerate(itertools.pairwise(starts)):
        parts.append(
            {
                name: x[n : n + 1] if name in STATES else x[:, int(first) : int(last)]
                for name, x in arrays.items()
            }
        )
    return parts
