"""Every op with test arguments and NumPy's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tape import ops
from tape.core import Array

_draw = np.random.default_rng(20240229)


class OpCase(NamedTuple):
    """One call of an op.

    Attributes:
        op: its name in `tape.ops`.
        call: the op as a function of arrays alone.
        literal: the same in NumPy; real parts decide where a choice is made.
        args: where to try it, away from points without a derivative.
        exact: whether the value has the same bits as the literal.
        holds_arrays: whether the call combines its arguments with NumPy arrays of its own.
    """

    op: str
    call: Callable[..., Array]
    literal: Callable[..., Array]
    args: tuple[Array, ...]
    exact: bool = True
    holds_arrays: bool = False


def normal(*shape: int) -> Array:
    return _draw.standard_normal(shape) if shape else float(_draw.standard_normal())


def positive(*shape: int) -> Array:
    return _draw.uniform(0.5, 2.0, shape) if shape else float(_draw.uniform(0.5, 2.0))


def case(
    op: str, literal: Callable[..., Array], *args: Array, exact: bool = True, **settings: Any
) -> OpCase:
    """A case whose op and literal take the same settings."""
    return OpCase(
        op,
        lambda *xs: getattr(ops, op)(*xs, **settings),
        lambda *xs: literal(*xs, **settings),
        args,
        exact,
    )


def joined(op: str, literal: Callable[..., Array], *args: Array, axis: int) -> OpCase:
    """A case of an op that takes a sequence of arrays."""
    return OpCase(
        op, lambda *xs: getattr(ops, op)(xs, axis=axis), lambda *xs: literal(xs, axis=axis), args
    )


def with_key(key: Any, *shape: int) -> OpCase:
    holds_arrays = any(
        isinstance(part, np.ndarray | np.bool)
        for part in (key if isinstance(key, tuple) else (key,))
    )
    return OpCase(
        "index", lambda x: x[key], lambda x: x[key], (normal(*shape),), holds_arrays=holds_arrays
    )


def _triangle(n: int, *lead: int) -> Array:
    return normal(*lead, n, n) + 3.0 * np.eye(n)


def _solve(a: Array, b: Array, lower: bool = True, unit: bool = False) -> Array:
    part = np.tril(a, -1 if unit else 0) if lower else np.triu(a, 1 if unit else 0)
    return np.linalg.solve(part + (np.eye(a.shape[-1]) if unit else 0.0), b)


def _by_real_part(larger: bool) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.where((np.real(a) > np.real(b)) == larger, a, b)


def _softmax(x: Array, axis: Any = -1) -> Array:
    return np.exp(x) / np.sum(np.exp(x), axis=axis, keepdims=True)


def _logsumexp(x: Array, axis: Any, keepdims: bool = False) -> Array:
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def _norm(x: Array, axis: Any, keepdims: bool) -> Array:
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))


def _erf(x: Array) -> Array:
    """The Taylor series 2/sqrt(pi) sum_n (-1)^n x^(2n+1) / (n! (2n+1)), for |x| up to 3."""
    term, total = x, x
    for n in range(1, 80):
        term = -term * x * x / n
        total = total + term / (2 * n + 1)
    return 2.0 / np.sqrt(np.pi) * total


def _slide(window: Array, row: Array) -> Array:
    rows = np.broadcast_to(row[..., None, :], (*window.shape[:-2], 1, window.shape[-1]))
    return np.concatenate([window, rows], axis=-2)[..., 1:, :]


#: Shapes of two operands: equal, repeated on either side, on both, numbers, and batches.
PAIRS = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((4,), (3, 4)),
    ((3, 1), (1, 4)),
    ((), (3, 4)),
    ((3, 4), ()),
    ((2, 3, 4), (3, 1)),
    ((), ()),
]
TWO_OPERANDS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": lambda a, b: a**b,
    "maximum": _by_real_part(larger=True),
    "minimum": _by_real_part(larger=False),
    "vdot": lambda a, b: np.sum(a * b),
}
ON_ENTRIES: dict[str, tuple[Callable[[Array], Array], bool]] = {
    "negative": (np.negative, True),
    "square": (np.square, True),
    "sqrt": (np.sqrt, True),
    "exp": (np.exp, True),
    "log": (np.log, True),
    "expm1": (np.expm1, True),
    "log1p": (np.log1p, True),
    "sin": (np.sin, True),
    "cos": (np.cos, True),
    "tanh": (np.tanh, True),
    "sigmoid": (lambda x: 1.0 / (1.0 + np.exp(-x)), False),
    "softplus": (lambda x: np.log(1.0 + np.exp(x)), False),
    "silu": (lambda x: x / (1.0 + np.exp(-x)), False),
    "gelu": (lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), False),
    "elu": (lambda x: np.where(np.real(x) > 0, x, np.exp(x) - 1.0), False),
    "absolute": (lambda x: np.where(np.real(x) < 0, -x, x), True),
}
MASK = np.eye(3, 4) > 0
POWERS = np.arange(4, dtype=np.float32)
SUMS = [("sum", np.sum), ("mean", np.mean)]
TRIANGLES = [("tril", np.tril), ("triu", np.triu)]
AXES: list[Any] = [None, 0, -1, (0, 2), (-1, -3), ()]
MATRICES = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (4, 3, 2)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
]
KEYS: list[tuple[Any, tuple[int, ...]]] = [
    (1, (3, 4)),
    (-1, (3, 4)),
    ((slice(None, None, -2), 2), (5, 4)),
    ((Ellipsis, None, slice(1, 3)), (3, 4)),
    ((), (3, 4)),
    ((np.int64(1), 2), (3, 4)),
    ([0, 2, 2, 0, 2], (3, 4)),
    ((np.array([[0, 1], [1, 1]]), slice(None, 2)), (3, 4)),
    ((np.array([0, 0, 1]), np.array([2, 2, 1])), (3, 4)),
    (np.array(2), (3, 4)),
    (np.arange(12).reshape(3, 4) % 3 == 0, (3, 4)),
    (True, (3,)),
    (np.True_, (3,)),
    (None, ()),
]

CASES: list[OpCase] = [
    *[
        case(op, f, (positive if op == "power" else normal)(*a), positive(*b))
        for op, f in TWO_OPERANDS.items()
        for a, b in PAIRS
    ],
    *[
        case(
            op,
            f,
            positive(*shape) if op in ("sqrt", "log", "log1p") else normal(*shape),
            exact=exact,
        )
        for op, (f, exact) in ON_ENTRIES.items()
        for shape in [(3, 4), (), (2, 1, 3)]
    ],
    *[
        OpCase(
            "power",
            lambda a, p=p: ops.power(a, p),
            lambda a, p=p: a**p,
            (normal(3, 4) if p in (0, 1, 2, 3) else positive(3, 4),),
        )
        for p in (0, 1, 2, 3, -1, 0.5, 2.5)
    ],
    OpCase("power", lambda a: a**POWERS, lambda a: a**POWERS, (normal(3, 1),), holds_arrays=True),
    OpCase("power", lambda p: 3.0**p, lambda p: 3.0**p, (normal(2, 3),)),
    OpCase(
        "where",
        lambda a, b: ops.where(MASK, a, b),
        lambda a, b: np.where(MASK, a, b),
        (normal(3, 4), normal(4)),
        holds_arrays=True,
    ),
    OpCase(
        "where",
        lambda a, b: ops.where(True, a, b),
        lambda a, b: np.where(True, a, b),
        (normal(), normal(2, 3)),
    ),
    *[case(op, f, normal(2, 3, 4), axis=axis) for op, f in SUMS for axis in AXES],
    *[
        case(op, f, normal(2, 3, 4), axis=axis, keepdims=True)
        for op, f in SUMS
        for axis in (None, 1, (0, -1))
    ],
    case("sum", np.sum, normal()),
    *[
        case("norm", _norm, normal(2, 3, 4), axis=axis, keepdims=axis == (-2, -1))
        for axis in (None, -1, (-2, -1))
    ],
    *[case("cumsum", np.cumsum, normal(2, 3, 4), axis=axis) for axis in (0, 1, -1)],
    *[case("softmax", _softmax, normal(2, 3, 4), axis=axis, exact=False) for axis in (0, -1, -2)],
    *[
        case("logsumexp", _logsumexp, normal(2, 3, 4), axis=axis, exact=False)
        for axis in (0, -1, (0, 2))
    ],
    case("logsumexp", _logsumexp, normal(3, 4), axis=-1, keepdims=True, exact=False),
    *[case("matmul", np.matmul, normal(*a), normal(*b)) for a, b in MATRICES],
    *[
        case("outer", lambda a, b: a[..., :, None] * b[..., None, :], normal(*a), normal(*b))
        for a, b in (((3,), (4,)), ((2, 3), (4,)))
    ],
    *[
        case(
            "solve_triangular",
            _solve,
            _triangle(4),
            normal(4, 2),
            exact=False,
            lower=i < 2,
            unit=i % 2 == 1,
        )
        for i in range(4)
    ],
    case("solve_triangular", _solve, _triangle(3, 2, 1), normal(5, 3, 2), exact=False),
    case("solve_triangular", _solve, _triangle(3), normal(2, 3, 2), exact=False, lower=False),
    case("solve", np.linalg.solve, normal(4, 4), normal(4, 2), exact=False),
    case("solve", np.linalg.solve, normal(3, 2, 2), normal(2, 1), exact=False),
    case("solve", np.linalg.solve, normal(3, 3), normal(2, 3, 2), exact=False),
    case("reshape", np.reshape, normal(2, 6), shape=(3, 4)),
    case("reshape", np.reshape, normal(2, 6), shape=-1),
    case("broadcast_to", np.broadcast_to, normal(3, 1), shape=(2, 3, 4)),
    case("swapaxes", np.swapaxes, normal(2, 3, 4), axis1=0, axis2=-1),
    case("moveaxis", np.moveaxis, normal(2, 3, 4), source=0, destination=-1),
    case("moveaxis", np.moveaxis, normal(2, 3, 4), source=(0, -1), destination=(-1, 0)),
    case("expand_dims", np.expand_dims, normal(3, 4), axis=-2),
    case("expand_dims", np.expand_dims, normal(3, 4), axis=(0, -1)),
    case("squeeze", np.squeeze, normal(1, 3, 1)),
    case("squeeze", np.squeeze, normal(1, 3, 1), axis=-1),
    *[case("flip", np.flip, normal(2, 3), axis=axis) for axis in (None, 0, -1, (0, 1))],
    *[
        case(op, f, normal(*shape), k=k)
        for op, f in TRIANGLES
        for k in (0, 1, -1)
        for shape in ((3, 4), (2, 3, 3))
    ],
    case("tril", np.tril, normal(3)),
    case("transpose", lambda x: np.swapaxes(x, -1, -2), normal(2, 3, 4)),
    OpCase("astype", lambda x: ops.astype(x, np.float64), lambda x: x + 0.0, (normal(3),)),
    *[with_key(key, *(shape or (1,))) for key, shape in KEYS],
    joined("concatenate", np.concatenate, normal(2, 3), normal(2, 1), normal(2, 4), axis=-1),
    joined("concatenate", np.concatenate, normal(2, 3), normal(1, 3), axis=0),
    joined("stack", np.stack, normal(2, 3), normal(2, 3), axis=0),
    joined("stack", np.stack, normal(2, 3), normal(2, 3), axis=-2),
    joined("stack", np.stack, normal(), normal(), axis=0),
    case("slide", _slide, normal(3, 4), normal(4)),
    case("slide", _slide, normal(2, 1, 4), normal(2, 4)),
    case("slide", _slide, normal(2, 3, 4), normal(4)),
    *[case("erf", _erf, normal(*shape), exact=False) for shape in [(3, 4), (), (2, 1, 3)]],
]

#: Ops that give plain arrays: nothing to differentiate, proved by tests of their own.
PLAIN_RESULTS = {"less", "greater", "equal", "zeros_like", "ones_like", "stop_gradient"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every op where it has an argument `case` or `free_case`.

    A `free_case` holds no NumPy arrays of its own.
    """
    for name, cases in (
        ("case", CASES),
        ("free_case", [case for case in CASES if not case.holds_arrays]),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(
                name, cases, ids=[f"{case.op}-{i}" for i, case in enumerate(cases)]
            )


@pytest.fixture
def ops_with_cases() -> set[str]:
    """Names of the ops that have a case, or a plain result."""
    return {case.op for case in CASES} | PLAIN_RESULTS
