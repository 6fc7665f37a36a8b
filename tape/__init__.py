"""Reverse-mode differentiation on a Wengert list.

    >>> import numpy as np
    >>> import tape
    >>> from tape import ops
    >>> tape.grad(lambda w: ops.sum(w**2))(np.array([1.0, 2.0]))
    array([2., 4.])

Specified in specs/tape.md. Knows nothing of `atlas_ref`.
"""

from tape import check, ops
from tape.core import (
    Array,
    Op,
    TapeError,
    Variable,
    checking,
    defvjp,
    defvjp_joint,
    plain,
    primitive,
)
from tape.opaque import opaque
from tape.transforms import checkpoint, grad, hvp, jacobian, value_and_grad, vjp

__all__ = [
    "Array",
    "Op",
    "TapeError",
    "Variable",
    "check",
    "checking",
    "checkpoint",
    "defvjp",
    "defvjp_joint",
    "grad",
    "hvp",
    "jacobian",
    "opaque",
    "ops",
    "plain",
    "primitive",
    "value_and_grad",
    "vjp",
]
