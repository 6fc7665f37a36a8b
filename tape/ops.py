"""The ops: array functions that record themselves on a tape, and the operators of a variable.

An op is two statements: the function on plain arrays and `defvjp` with one rule per argument, as
`tape.core.Op` describes. They are written in `shapes`, `elementwise` and `contractions`, whose
`__all__` list them; this is where they are used from.

Every op takes complex arrays and no rule conjugates: derivatives are those of the holomorphic
extension, which is what makes the complex step exact (TAPE-13). Where an op must choose (maximum,
absolute, where), it chooses by real parts. Functions follow their arrays: NumPy's dispatch hands
CuPy arrays to CuPy.

The set of ops, and points without a derivative: TAPE-19, TAPE-20. Ops of other tapes: TAPE-22.
"""

from __future__ import annotations

from tape import contractions, elementwise, shapes
from tape.contractions import *  # noqa: F403
from tape.core import Op
from tape.elementwise import *  # noqa: F403
from tape.shapes import *  # noqa: F403
from tape.variable import Array, TapeError, Variable

__all__ = contractions.__all__ + elementwise.__all__ + shapes.__all__


def _square_transpose(a: Array) -> Array:
    if a.ndim == 2:
        return shapes.transpose(a)
    raise TapeError(f".T of a variable with {a.ndim} axes: use ops.swapaxes or ops.moveaxis")


def _set_operator(name: str, op: Op) -> None:
    """Let `variable (op) x` and `x (op) variable` record the op."""
    setattr(Variable, f"__{name}__", lambda a, b: op(a, b))
    setattr(Variable, f"__r{name}__", lambda a, b: op(b, a))


_set_operator("add", elementwise.add)
_set_operator("sub", elementwise.subtract)
_set_operator("mul", elementwise.multiply)
_set_operator("truediv", elementwise.divide)
_set_operator("pow", elementwise.power)
_set_operator("matmul", contractions.matmul)
Variable.__neg__ = lambda a: elementwise.negative(a)
Variable.__getitem__ = shapes.index
Variable.swapaxes = lambda a, i, j: shapes.swapaxes(a, i, j)
Variable.T = property(_square_transpose)
