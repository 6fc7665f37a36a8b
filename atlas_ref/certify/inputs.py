"""The tensors of a case as exact matrices of balls, one matrix for each slice (CERT-1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flint import arb, arb_mat

from atlas_ref.certify.matrix import Matrix

Array = np.ndarray[Any, Any]
Index = tuple[int, ...]


class Inputs:
    """Slices of the input tensors.

    Args:
        arrays: the tensors of a case in float64, which holds every format of the file exactly.
        live: names of the tensors to differentiate by.
        moved: numbers, of any precision, that are added to a tensor, for differences of values.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        live: frozenset[str] = frozenset(),
        moved: Mapping[str, Array] | None = None,
    ) -> None:
        self.arrays, self.live, self.moved = arrays, live, moved or {}
        self.slices: dict[tuple[str, Index], Matrix] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.arrays[name].shape)

    def get(self, name: str, *index: int) -> Matrix:
        """The slice at an index: a number 1 x 1, a vector as a column, a matrix as it is."""
        key = (name, index)
        if key not in self.slices:
            self.slices[key] = Matrix(self._balls(name, index), live=name in self.live)
        return self.slices[key]

    def optional(self, name: str, *index: int) -> Matrix | None:
        """The slice, None where the case has no such tensor."""
        return self.get(name, *index) if name in self.arrays else None

    def flag(self, name: str, t: int, default: bool, index: tuple[int, ...] = ()) -> bool:
        """One entry of a mask of all rows, or of that of the row at an index (CONV-68)."""
        if name not in self.arrays:
            return default
        rows = self.arrays[name].ndim - 1
        return bool(self.arrays[name][(*index[:rows], t)])

    def phi(self) -> dict[str, Matrix]:
        """The tensors of the feature map: W, b, W1, W2, c, proj, and H1, H2, H3, slices of H."""
        tensors = {
            name.removeprefix("in/phi/"): self.get(name)
            for name in self.arrays
            if name.startswith("in/phi/") and name != "in/phi/H"
        }
        if "in/phi/H" in self.arrays:
            hashes = range(self.shape("in/phi/H")[0])
            tensors |= {f"H{n + 1}": self.get("in/phi/H", n) for n in hashes}
        return tensors | ({"proj": self.get("in/proj")} if "in/proj" in self.arrays else {})

    def _balls(self, name: str, index: Index) -> arb_mat:
        part = self.arrays[name][index]
        entries = [arb(float(x)) for x in np.ravel(part)]
        if name in self.moved:
            entries = [
                x + y for x, y in zip(entries, np.ravel(self.moved[name][index]), strict=True)
            ]
        rows, columns = (*np.shape(part), 1, 1)[:2] if np.ndim(part) else (1, 1)
        return arb_mat(rows, columns, entries)
