"""Reverse-mode differentiation on a Wengert list.

    >>> import numpy as np
    >>> import tape
    >>> from tape import ops
    >>> tape.grad(lambda w: ops.sum(w**2))(np.array([1.0, 2.0]))
    array([2., 4.])

Specified in specs/tape.md. Knows nothing of `atlas_ref`.
"""

from tape import check, ops
from tape.core import Op, checking, defvjp, defvjp_joint, primitive
from tape.opaque import opaque
from tape.transforms import checkpoint, grad, hvp, jacobian, value_and_grad, vjp
from tape.variable import Array, TapeError, Variable, plain

__all__ = ["Array", "Op", "TapeError", "Variable", "check", "checking", "checkpoint", "defvjp"]
__all__ += ["defvjp_joint", "grad", "hvp", "jacobian", "opaque", "ops", "plain", "primitive"]
__all__ += ["value_and_grad", "vjp"]
