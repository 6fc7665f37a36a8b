"""The table of TAPE-22, run as it is printed: NumPy's values and the derivatives of the complex step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tape
from tape import check, ops
from tests.support.close import ANALYTIC, EXACT, assert_close

SPEC = Path(__file__).parents[2] / "specs/tape.md"

#: The ops of C-36 in the inventory of claims.
LISTED = {
    "Matmul",
    "MatmulTransposeB",
    "Transpose",
    "OuterProduct",
    "FrobeniusDot",
    "Add",
    "Sub",
    "Mul",
    "Scale",
    "Negate",
    "Sigmoid",
    "Softplus",
    "SiLU",
    "Softmax",
    "CrossEntropy",
    "EmbedLookup",
    "L2Norm",
    "SumReduce",
    "L2Retention",
    "Concat",
    "Slice",
    "LayerNorm",
    "NormalizedSiLU",
    "SphereProjectNormalize",
    "KLRetention",
    "StraightThroughBool",
    "Opaque",
}

draw = np.random.default_rng(136)
TOKENS, CLASSES = np.array([2, 0, 2]), np.array([3, 1, 0])
ARRAYS: dict[str, Any] = {
    "a": draw.standard_normal((3, 4)),
    "b": draw.standard_normal((4, 2)),
    "c": draw.standard_normal((3, 4)),
    "u": draw.standard_normal(3),
    "v": draw.standard_normal(4),
    "x": draw.standard_normal((3, 4)),
    "table": draw.standard_normal((5, 4)),
    "gain": draw.standard_normal(4),
    "bias": draw.standard_normal(4),
    "prior": draw.uniform(0.1, 1.0, 4),
}


def _silu(x: Any) -> Any:
    return x / (1.0 + np.exp(-x))


def _softmax(x: Any) -> Any:
    return np.array([np.exp(row) / np.exp(row).sum() for row in x])


def _cross_entropy(x: Any) -> Any:
    return -np.mean([np.log(np.exp(x[t, c]) / np.exp(x[t]).sum()) for t, c in enumerate(CLASSES)])


def _layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    return np.array([gain * (row - row.mean()) / np.sqrt(row.var() + 1e-5) + bias for row in x])


def _sphere(x: Any) -> Any:
    return np.array([row / np.sqrt(row @ row) for row in x])


#: The value in NumPy, by the arrays of its arguments' names.
VALUES: dict[str, Callable[..., Any]] = {
    "Matmul": lambda a, b: np.einsum("ij,jk->ik", a, b),
    "MatmulTransposeB": lambda a, c: np.einsum("ij,kj->ik", a, c),
    "Transpose": lambda a: a.T,
    "OuterProduct": lambda u, v: np.multiply.outer(u, v),
    "FrobeniusDot": lambda a, c: np.einsum("ij,ij->", a, c),
    "Add": lambda a, c: np.add(a, c),
    "Sub": lambda a, c: np.subtract(a, c),
    "Mul": lambda a, c: np.multiply(a, c),
    "Scale": lambda a: np.multiply(a, 0.7),
    "Negate": lambda a: np.negative(a),
    "Sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "Softplus": lambda x: np.log(1.0 + np.exp(x)),
    "SiLU": _silu,
    "Softmax": _softmax,
    "CrossEntropy": _cross_entropy,
    "EmbedLookup": lambda table: np.array([table[t] for t in TOKENS]),
    "L2Norm": lambda x: np.linalg.norm(x),
    "SumReduce": lambda x: np.sum(x),
    "L2Retention": lambda a: np.multiply(a, 0.9),
    "Concat": lambda a, c: np.hstack([a, c]),
    "Slice": lambda x: x[:, [1, 2]],
    "LayerNorm": _layer_norm,
    "NormalizedSiLU": lambda x: _silu(x) / np.linalg.norm(_silu(x)),
    "SphereProjectNormalize": _sphere,
    "KLRetention": lambda prior, x: _softmax(np.log(prior) * 0.9 - x * 0.1),
    "StraightThroughBool": lambda x: (x > 0.5).astype(float),
}


def printed() -> dict[str, str]:
    """The expression of each op, from the table of the spec."""
    clause = SPEC.read_text().split("### TAPE-22 ")[1].split("\n#")[0]
    return dict(re.findall(r"^\| (\w+) \| `(.+?)`", clause, flags=re.MULTILINE))


def run(expression: str, **arrays: Any) -> Any:
    """The expression of the spec, on arrays or variables."""
    names = {
        "ops": ops,
        "range": range,
        "len": len,
        "tokens": TOKENS,
        "classes": CLASSES,
        "centred": lambda x: x - ops.mean(x, axis=-1, keepdims=True),
    }
    return eval(expression, {"__builtins__": {}, **names, **arrays})


def arguments(name: str) -> dict[str, Any]:
    """The arrays that the expression names."""
    named = re.findall(r"(?<![\w.])(\w+)", printed()[name])
    return {each: ARRAYS[each] for each in dict.fromkeys(named) if each in ARRAYS}


@pytest.mark.clause("TAPE-22")
def test_the_table_has_every_listed_op() -> None:
    assert set(printed()) == LISTED
    assert set(VALUES) == LISTED - {"Opaque"}


@pytest.mark.clause("TAPE-22")
@pytest.mark.parametrize("name", VALUES)
def test_the_expression_has_the_value_of_the_op(name: str) -> None:
    given = arguments(name)
    exact = name == "StraightThroughBool"
    assert_close(
        name, run(printed()[name], **given), VALUES[name](**given), EXACT if exact else ANALYTIC
    )


@pytest.mark.clause("TAPE-22", "TAPE-14")
@pytest.mark.parametrize("name", [name for name in VALUES if name != "StraightThroughBool"])
def test_the_expression_has_the_derivative_of_the_value(name: str) -> None:
    given = arguments(name)
    weights = np.random.default_rng(5).standard_normal(np.shape(VALUES[name](**given)))
    check.check_gradient(lambda arrays: ops.sum(weights * run(printed()[name], **arrays)), given)


@pytest.mark.clause("TAPE-22", "TAPE-20")
def test_a_straight_choice_passes_its_cotangent_on() -> None:
    x = ARRAYS["x"]
    value, pullback = tape.vjp(lambda x: run(printed()["StraightThroughBool"], x=x), x)
    assert set(np.unique(value)) == {0.0, 1.0}
    cotangent = np.arange(x.size, dtype=float).reshape(x.shape)
    assert_close("x", pullback(cotangent)[0], cotangent, EXACT)
