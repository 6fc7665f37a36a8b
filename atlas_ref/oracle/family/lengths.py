"""The length of the longest memory of a case, which says whether a ceiling shows (CONV-67)."""

from __future__ import annotations

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.family import family, prepare, steps
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.types import Array


def longest(prepared: prepare.Prepared, convention: Convention) -> float:
    """The greatest Frobenius norm of a memory after a write (CONV-67)."""
    lengths: list[float] = []

    def values(op: str, t: int, x: Array) -> Array:
        if op == "M":
            lengths.append(float(np.max(np.linalg.norm(x, axis=(-2, -1)))))
        return x

    def orthogonalise(S: Array, t: int) -> Array:
        return steps.newton_schulz(PLAIN, S, convention.newton_schulz_settings)

    structure = prepare.structure(convention, prepared.header)
    hook = family.value_hook(values)
    family.run(structure, prepared.stacked([convention]), orthogonalise, hook=hook)
    return max(lengths, default=0.0)
