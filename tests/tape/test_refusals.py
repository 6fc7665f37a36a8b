"""Refusals of a variable, each with what to write instead."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tape
from tape import ops

X = np.array([[1.0, 2.0], [3.0, 4.0]])
PLAIN = np.arange(4.0).reshape(2, 2)


def used(use: Callable[[Any], Any], x: Any = X) -> None:
    """Use a variable while it is being recorded."""
    tape.vjp(lambda v: use(v), x)


@pytest.mark.clause("TAPE-11")
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (np.asarray, "use the function of the same name in tape.ops"),
        (np.array, "use the function of the same name in tape.ops"),
        (lambda v: np.asarray(v, dtype=float), "use the function of the same name in tape.ops"),
        (lambda v: np.array([v, v]), "use the function of the same name in tape.ops"),
        (lambda v: np.array([[1.0, v[0, 0]]]), "use the function of the same name in tape.ops"),
        (np.sum, "np.sum .* use tape.ops.sum"),
        (np.concatenate, "np.concatenate .* use tape.ops.concatenate"),
        (lambda v: np.concatenate([v, PLAIN]), "np.concatenate .* use tape.ops.concatenate"),
        (lambda v: np.where(PLAIN > 1, v, PLAIN), "np.where .* use tape.ops.where"),
        (lambda v: np.einsum("ij->i", v), "np.einsum .* or compose it of functions of tape.ops"),
        (np.linalg.norm, "np.norm .* use tape.ops.norm"),
        (np.shape, "np.shape .* compose it of functions of tape.ops"),
        (lambda v: PLAIN[v], "use the function of the same name in tape.ops"),
    ],
)
def test_numpy_functions_and_conversion_to_an_array_are_refused(
    use: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(tape.TapeError, match=message):
        used(use)


@pytest.mark.clause("TAPE-11")
@pytest.mark.parametrize(
    "use",
    [
        np.sin,
        np.negative,
        lambda v: np.add(v, PLAIN),
        lambda v: np.add(PLAIN, v),
        lambda v: np.matmul(PLAIN, v),
        lambda v: np.multiply.outer(v, v),
    ],
    ids=["sin", "negative", "add left", "add right", "matmul", "method"],
)
def test_ufuncs_are_refused_by_numpy(use: Callable[[Any], Any]) -> None:
    """An error of NumPy itself, without our message: the price of `array + variable` being
    recorded.
    """
    with pytest.raises(
        TypeError, match=r"'Variable' does not support ufuncs \(__array_ufunc__=None\)"
    ):
        used(use)


@pytest.mark.clause("TAPE-11")
def test_an_operator_in_place_on_an_array_is_refused_and_on_a_variable_makes_a_new_one() -> None:
    with pytest.raises(TypeError, match="does not support ufuncs"):
        used(lambda v: operator.iadd(PLAIN.copy(), v))

    def f(x: Any) -> Any:
        y = x
        y += PLAIN
        return ops.sum(y * x)

    assert (tape.grad(f)(X) == 2 * X + PLAIN).all()


@pytest.mark.clause("TAPE-11")
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (bool, r"truth value.*branch on a plain array, or use ops\.where"),
        (lambda v: 1 if v else 2, r"truth value.*use ops\.where"),
        (lambda v: v and 1, r"truth value.*use ops\.where"),
        (float, r"float\(\).*keep it a variable; math functions are in tape\.ops"),
        (math.sin, r"float\(\).*math functions are in tape\.ops"),
        (int, r"int\(\).*compute it from plain arrays"),
        (
            complex,
            r"complex\(\).*keep it a variable; every function of tape\.ops takes complex arrays",
        ),
        (operator.index, "use as an index.*compute indices from plain arrays"),
        (range, "use as an index.*compute indices from plain arrays"),
        (lambda v: [1, 2][v], "use as an index.*compute indices from plain arrays"),
        (lambda v: X[v:], "use as an index.*compute indices from plain arrays"),
    ],
)
def test_conversion_to_a_number_is_refused(use: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(tape.TapeError, match=message):
        used(use, 1.0)


@pytest.mark.clause("TAPE-11")
@pytest.mark.parametrize(
    "compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
)
@pytest.mark.parametrize("other", [1.0, PLAIN, None], ids=["number", "array", "None"])
def test_all_six_comparisons_are_refused_on_either_side(
    compare: Callable[[Any, Any], Any], other: Any
) -> None:
    for use in (lambda v: compare(v, other), lambda v: compare(other, v)):
        with pytest.raises(
            tape.TapeError, match=r"comparison.*use ops\.less, ops\.greater or ops\.equal"
        ):
            used(use)


@pytest.mark.clause("TAPE-11")
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda v: 1.0 in v, r"in is not possible.*use ops\.equal"),
        (lambda v: v in [1.0], r"comparison.*use ops\.less, ops\.greater or ops\.equal"),
        (
            lambda v: operator.setitem(v, 0, 1.0),
            r"build a new array with ops\.where, ops\.concatenate or ops\.stack",
        ),
        (copy.copy, "copy or pickle.*copy plain arrays"),
        (copy.deepcopy, "copy or pickle.*copy plain arrays"),
        (pickle.dumps, "copy or pickle.*copy plain arrays"),
        (hash, "use a name or a position as the key"),
        (lambda v: {v: 1}, "use a name or a position as the key"),
        (lambda v: {v}, "use a name or a position as the key"),
        (lambda v: v[v], "an index must be plain.*compute indices from plain arrays"),
        (lambda v: v[0, v], "an index must be plain.*compute indices from plain arrays"),
        (lambda v: v[v:], "use as an index.*compute indices from plain arrays"),
        (lambda v: v[None].T, r"3 axes: use ops\.swapaxes or ops\.moveaxis"),
        (lambda v: v[0].T, r"1 axes: use ops\.swapaxes or ops\.moveaxis"),
        (
            lambda v: ops.astype(v, np.int64),
            r"int64 has no derivative; convert ops\.stop_gradient of it",
        ),
        (
            lambda v: ops.where(v, 1.0, 2.0),
            "ops.where has no derivative with respect to argument 0; pass it as a plain array",
        ),
        (
            lambda v: ops.solve_triangular(v, v[0]),
            r"must be square and match the rows.*write b as \(\.\.\., n, m\)",
        ),
        (lambda v: ops.solve_triangular(v[0], v), r"must be square and match the rows"),
        (lambda v: ops.solve(v, v[0]), r"ops.solve: a .* must be square and match the rows"),
    ],
)
def test_what_would_lose_the_record_is_refused(use: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(tape.TapeError, match=message):
        used(use)


@pytest.mark.clause("TAPE-11")
@pytest.mark.parametrize("x", [X, 1.0], ids=["array", "number"])
def test_assignment_into_an_array_is_refused(x: Any) -> None:
    """An error of NumPy around our refusal, which is its cause."""
    with pytest.raises(
        (tape.TapeError, ValueError),
        match=r"not possible on a tape variable|setting an array element",
    ) as caught:
        used(lambda v: operator.setitem(np.zeros((2, 2)), (0, 0), v), x)
    assert isinstance(caught.value, tape.TapeError) or isinstance(
        caught.value.__cause__, tape.TapeError
    )


@pytest.mark.clause("TAPE-11")
def test_length_and_iteration_follow_the_first_axis() -> None:
    assert tape.grad(lambda v: len(v) * sum(ops.sum(row) for row in v))(X).tolist() == [
        [2.0, 2.0],
        [2.0, 2.0],
    ]
    with pytest.raises(TypeError, match="without axes"):
        used(len, 1.0)


@pytest.mark.clause("TAPE-11")
def test_a_variable_shows_shape_dtype_and_level() -> None:
    shown: list[Any] = []
    tape.grad(lambda v: shown.extend([repr(v), v.shape, v.ndim, v.size, v.dtype]) or ops.sum(v))(X)
    assert shown == ["Variable(shape=(2, 2), dtype=float64, level=1)", (2, 2), 2, 4, np.float64]


@pytest.mark.clause("TAPE-6")
def test_a_missing_rule_names_the_op_and_the_argument() -> None:
    halved = tape.primitive(lambda x, s: x / s, "halved")
    message = r"ops\.halved has no derivative with respect to argument {}; pass it as a plain array"
    with pytest.raises(tape.TapeError, match=message.format(0)):
        used(lambda v: halved(v, 2.0))
    tape.defvjp(halved, lambda y, x, s: lambda g: g / s)
    assert tape.grad(lambda v: ops.sum(halved(v, 2.0)))(X).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    with pytest.raises(tape.TapeError, match=message.format(1)):
        used(lambda v: halved(1.0, v))
    tape.defvjp(halved, None, lambda y, x, s: lambda g: -g * y / s)
    with pytest.raises(tape.TapeError, match=message.format(0)):
        used(lambda v: halved(v, 2.0))


@pytest.mark.clause("TAPE-6")
def test_no_argument_is_too_far_along_to_be_refused() -> None:
    total = tape.primitive(lambda *xs: sum(xs), "total")
    tape.defvjp(total, *[lambda y, *xs: lambda g: g] * 2)
    with pytest.raises(
        tape.TapeError, match=r"ops\.total has no derivative with respect to argument 11"
    ):
        used(lambda v: total(*[1.0] * 11, v))


@pytest.mark.clause("TAPE-6")
def test_a_variable_that_comes_in_by_keyword_or_capture_is_refused() -> None:
    scaled = tape.primitive(lambda x, s: x * s, "scaled")
    tape.defvjp(scaled, lambda y, x, s: lambda g: g * s)
    with pytest.raises(
        tape.TapeError,
        match=r"ops\.scaled: .* by keyword or was captured; pass it as a positional argument",
    ):
        used(lambda v: scaled(v, s=v))
    with pytest.raises(tape.TapeError, match="pass it as a positional argument"):
        used(lambda v: tape.opaque(lambda a: a * v, lambda a: (a * v, a), lambda r, g: (g,))(v))


@pytest.mark.clause("TAPE-17")
@pytest.mark.parametrize(
    ("x", "named"),
    [
        (3, r"argument\[0\]: 3 of type int"),
        (True, r"argument\[0\]: True of type bool"),
        (np.arange(3), r"argument\[0\]: an array of int64"),
        (np.array([True]), r"argument\[0\]: an array of bool"),
        ({"w": [1.0, 2]}, r"argument\[0\]\['w'\]\[1\]: 2 of type int"),
        (np.array([None]), r"argument\[0\]: an array of object"),
        (np.zeros(2, "datetime64[s]"), "an array of datetime64"),
        (np.zeros(2, "timedelta64[s]"), "an array of timedelta64"),
        (np.zeros(2, "i4,f4"), "an array of"),
        (np.zeros(2, ml_dtypes.int4), "an array of int4"),
        (threading, r"of type module"),
    ],
)
def test_leaves_that_are_not_floating_are_refused_by_their_path(x: Any, named: str) -> None:
    with pytest.raises(
        tape.TapeError,
        match=named + r".* has no derivative; write it as a float \(1\.0, array\.astype\(float\)\)",
    ):
        tape.vjp(lambda v: 1.0, x)


@pytest.mark.clause("TAPE-17")
def test_an_integer_result_is_refused() -> None:
    with pytest.raises(
        tape.TapeError,
        match=r"value\[1\]: an array of int64 has no derivative; write it as a float",
    ):
        tape.vjp(lambda v: (v, np.arange(2)), X)
