"""The ops: array functions that record themselves on a tape, and the operators of a variable.

An op is two statements: the function on plain arrays and `defvjp` with one rule per argument. A
rule is two-stage: its outer stage sees the value and the arguments, decides what to keep and
returns the pullback. Pullbacks use operators and ops, never NumPy, so they can be differentiated
again.

Every op takes complex arrays and no rule conjugates: derivatives are those of the holomorphic
extension, which is what makes the complex step exact (TAPE-13). Where an op must choose (maximum,
absolute, where), it chooses by real parts. Functions follow their arrays: NumPy's dispatch hands
CuPy arrays to CuPy.

They are written in `shapes`, `elementwise` and `contractions`; this is where they are used from.

The set of ops, and points without a derivative: TAPE-19, TAPE-20. Ops of other tapes: TAPE-22.
"""

from __future__ import annotations

from typing import NoReturn

from tape.contractions import (
    logsumexp,
    matmul,
    mean,
    norm,
    outer,
    softmax,
    solve,
    solve_triangular,
    vdot,
)
from tape.core import Array, TapeError, Variable
from tape.elementwise import (
    absolute,
    add,
    cos,
    divide,
    elu,
    equal,
    erf,
    exp,
    expm1,
    gelu,
    greater,
    less,
    log,
    log1p,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    sigmoid,
    silu,
    sin,
    softplus,
    sqrt,
    square,
    stop_gradient,
    subtract,
    tanh,
    where,
)
from tape.shapes import (
    astype,
    broadcast_to,
    concatenate,
    cumsum,
    expand_dims,
    flip,
    index,
    moveaxis,
    ones_like,
    reshape,
    slide,
    squeeze,
    stack,
    sum,
    swapaxes,
    transpose,
    tril,
    triu,
    zeros_like,
)

__all__ = [
    "absolute",
    "add",
    "astype",
    "broadcast_to",
    "concatenate",
    "cos",
    "cumsum",
    "divide",
    "elu",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "expm1",
    "flip",
    "gelu",
    "greater",
    "index",
    "less",
    "log",
    "log1p",
    "logsumexp",
    "matmul",
    "maximum",
    "mean",
    "minimum",
    "moveaxis",
    "multiply",
    "negative",
    "norm",
    "ones_like",
    "outer",
    "power",
    "reshape",
    "sigmoid",
    "silu",
    "sin",
    "slide",
    "softmax",
    "softplus",
    "solve",
    "solve_triangular",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "subtract",
    "sum",
    "swapaxes",
    "tanh",
    "transpose",
    "tril",
    "triu",
    "vdot",
    "where",
    "zeros_like",
]


def _square_transpose(a: Array) -> Array:
    return transpose(a) if a.ndim == 2 else _refuse_T(a)


def _refuse_T(a: Array) -> NoReturn:
    raise TapeError(f".T of a variable with {a.ndim} axes: use ops.swapaxes or ops.moveaxis")


Variable.__add__ = lambda a, b: add(a, b)
Variable.__radd__ = lambda a, b: add(b, a)
Variable.__sub__ = lambda a, b: subtract(a, b)
Variable.__rsub__ = lambda a, b: subtract(b, a)
Variable.__mul__ = lambda a, b: multiply(a, b)
Variable.__rmul__ = lambda a, b: multiply(b, a)
Variable.__truediv__ = lambda a, b: divide(a, b)
Variable.__rtruediv__ = lambda a, b: divide(b, a)
Variable.__pow__ = lambda a, b: power(a, b)
Variable.__rpow__ = lambda a, b: power(b, a)
Variable.__neg__ = lambda a: negative(a)
Variable.__matmul__ = lambda a, b: matmul(a, b)
Variable.__rmatmul__ = lambda a, b: matmul(b, a)
Variable.__getitem__ = index
Variable.swapaxes = lambda a, i, j: swapaxes(a, i, j)
Variable.T = property(_square_transpose)
