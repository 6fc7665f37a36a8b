"""Parameters as trees: dicts, tuples, lists, named tuples and pydantic models, with settings among
them.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field

import tape
from tape import ops
from tape.nested import flatten, matched
from tests.support.close import ANALYTIC, EXACT, assert_close

A, B = np.arange(4.0).reshape(2, 2), np.array([1.0, -2.0])


class Gate(BaseModel):
    """A model with arrays and settings, validated when it is built from outside."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    W: Any
    b: Any = None
    heads: int = 2
    kind: str = "soft"
    on: bool = True
    table: tuple[tuple[int, int], ...] = ((1, 2),)


class Loose(BaseModel):
    """A model that keeps fields it does not declare."""

    model_config = ConfigDict(extra="allow")

    gate: Any = Field(alias="the gate")


class Pair(NamedTuple):
    """A named tuple."""

    left: Any
    right: Any


@pytest.mark.clause("TAPE-17")
def test_gradients_come_back_in_the_structure_of_the_parameters() -> None:
    p = {
        "a": A,
        "list": [B, 2.0],
        "tuple": (A, (B,)),
        "pair": Pair(A, B),
        "gate": Gate(W=A, b=B),
        "none": None,
        "name": "p",
        7: B,
    }

    def loss(p: Any) -> Any:
        assert p["name"] == "p"
        assert p["none"] is None
        assert (p["gate"].heads, p["gate"].kind, p["gate"].on, p["gate"].table) == (
            2,
            "soft",
            True,
            ((1, 2),),
        )
        terms = [
            p["a"],
            2.0 * p["list"][0],
            p["list"][1],
            p["tuple"][0],
            p["tuple"][1][0],
            p["pair"].left,
            p["pair"].right,
        ]
        return sum(ops.sum(x) for x in [*terms, 3.0 * p["gate"].W, p["gate"].b * p[7]])

    gradient = tape.grad(loss)(p)
    assert list(gradient) == list(p)
    assert [type(gradient[key]) for key in p] == [
        np.ndarray,
        list,
        tuple,
        Pair,
        Gate,
        type(None),
        str,
        np.ndarray,
    ]
    assert_close("a", gradient["a"], np.ones((2, 2)), EXACT)
    assert_close("list", gradient["list"][0], np.full(2, 2.0), EXACT)
    assert gradient["list"][1] == 1.0
    assert_close("gate.W", gradient["gate"].W, np.full((2, 2), 3.0), EXACT)
    assert_close("gate.b", gradient["gate"].b, B, EXACT)
    assert_close("pair", gradient["pair"].right, np.ones(2), EXACT)
    assert (gradient["gate"].heads, gradient["gate"].kind, gradient["none"], gradient["name"]) == (
        2,
        "soft",
        None,
        "p",
    )


@pytest.mark.clause("TAPE-17")
def test_a_missing_optional_array_stays_missing() -> None:
    gradient = tape.grad(lambda g: ops.sum(g.W))(Gate(W=A))
    assert gradient.b is None
    assert_close("W", gradient.W, np.ones((2, 2)), EXACT)


@pytest.mark.clause("TAPE-17")
def test_models_nest_and_keep_extra_fields_and_aliases() -> None:
    model = Loose.model_validate({"the gate": Gate(W=A, b=2.0), "more": B, "count": 3})
    value, gradient = tape.value_and_grad(
        lambda m: ops.sum(m.gate.W * m.gate.b) + m.count * ops.sum(m.more)
    )(model)
    assert value == 2.0 * A.sum() + 3 * B.sum()
    assert_close("more", gradient.more, np.full(2, 3.0), EXACT)
    assert gradient.gate.b == A.sum()
    assert gradient.count == 3


@pytest.mark.clause("TAPE-17")
def test_second_derivatives_and_outputs_may_be_models() -> None:
    gate = Gate(W=A, b=B)
    direction = Gate(W=np.ones((2, 2)), b=np.zeros(2))
    product = tape.hvp(lambda g: ops.sum((g.W @ g.b) ** 2))(gate, direction)
    assert_close("W", product.W, 2.0 * np.outer(np.ones((2, 2)) @ B, B), ANALYTIC)
    value, pullback = tape.vjp(lambda g: Gate(W=g.W * 2.0, b=g.b @ g.W), gate)
    assert isinstance(value, Gate)
    assert_close("value", value.b, B @ A, EXACT)
    assert_close("b", pullback(Gate(W=A, b=B))[0].b, A @ B, EXACT)


@pytest.mark.clause("TAPE-17")
def test_integers_of_a_model_are_settings_but_integers_elsewhere_are_refused() -> None:
    assert tape.grad(lambda g: ops.sum(g.W) * g.heads)(Gate(W=A, heads=5)).W[0, 0] == 5.0
    with pytest.raises(
        tape.TapeError, match=r"argument 0 of 1\['heads'\]: 5 of type int has no derivative"
    ):
        tape.grad(lambda p: ops.sum(p["W"]))({"W": A, "heads": 5})


@pytest.mark.clause("TAPE-17")
def test_leaves_have_an_order_and_paths_that_name_them() -> None:
    tree = {"b": [A, Pair(1.0, 2j)], "a": Gate(W=B)}
    leaves, paths, build = flatten(tree)
    assert paths == ["['b'][0]", "['b'][1][0]", "['b'][1][1]", "['a'].W"]
    again = build(leaves)
    assert again["b"][0] is A
    assert again["b"][1] == Pair(1.0, 2j)
    assert again["a"].W is B
    assert matched({"a": Gate(W=B), "b": [A, Pair(1.0, 2j)]}, paths, "tree")[3] is B


@pytest.mark.clause("TAPE-17")
@pytest.mark.parametrize(
    "kind",
    [
        np.float16,
        np.float32,
        np.float64,
        np.longdouble,
        np.complex64,
        np.complex128,
        ml_dtypes.bfloat16,
    ],
)
def test_every_floating_and_complex_dtype_is_a_leaf_and_keeps_its_dtype(kind: Any) -> None:
    gradient = tape.grad(lambda x: ops.sum(x * x))(np.array([1.0, 2.0]).astype(kind))
    assert gradient.dtype == kind
    assert gradient.tolist() == [2.0, 4.0]


@pytest.mark.clause("TAPE-17")
def test_old_named_tuples_and_subclasses_of_containers_are_rebuilt_in_their_type() -> None:
    point = namedtuple("point", "x y")
    row = type("row", (list,), {})
    gradient = tape.grad(lambda p: p.x[0] * p.y[0])(point(row([2.0]), (3.0,)))
    assert isinstance(gradient, point)
    assert isinstance(gradient.x, row)
    assert (gradient.x[0], gradient.y[0]) == (3.0, 2.0)
