"""Tables of public names: axes turned, tensors joined and divided, layers, copies, and what is wrong."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest

from atlas_ref.models.public.names import (
    Name,
    Table,
    check,
    parameters,
    repeated,
    rows,
    tensors_of,
    under,
)
from atlas_ref.types import Array, Dims, Frozen
from tape import grad, ops
from tape.nested import flatten
from tests.support.close import EXACT, assert_close

pytestmark = [pytest.mark.clause("MODEL-10"), pytest.mark.host("tensors of files")]

D, N, V = 3, 2, 4
SIZES = {"d": D, "n": N, "vocab": V, "2n": 2 * N}


class Layer(Frozen):
    """Two projections in one array, two arrays that the public code holds as one, and a scalar."""

    W_qk: Annotated[Array, Dims("2 d d")]
    W_up: Annotated[Array, Dims("n d")]
    W_gate: Annotated[Array, Dims("n d")]
    W_down: Annotated[Array, Dims("d n")]
    scale: Annotated[Array, Dims("")]


class Model(Frozen):
    embedding: Annotated[Array, Dims("vocab d")]
    layers: tuple[Layer, ...]


LAYER: Table = {
    "q.weight": Name("d d", ".W_qk"),
    "k.weight": Name("d d", ".W_qk", order=(1, 0)),
    "up_gate": Name("2n d", ".W_up .W_gate"),
    "down.weight": Name("n d", ".W_down", order=(1, 0)),
    "scale": Name("", ".scale"),
    "step": Name("1", unread=True),
}
TABLE: Table = {
    "embed": Name("vocab d", ".embedding"),
    "head": Name("vocab d", copy_of="embed"),
    **repeated(under(LAYER, "blocks.{i}.", ".layers[{i}]"), 2),
}


def ours(seed: int = 0) -> Model:
    draw = np.random.default_rng(seed).standard_normal
    layers = tuple(
        Layer(
            W_qk=draw((2, D, D)),
            W_up=draw((N, D)),
            W_gate=draw((N, D)),
            W_down=draw((D, N)),
            scale=draw(()),
        )
        for _ in range(2)
    )
    return Model(embedding=draw((V, D)), layers=layers)


def public(model: Model) -> dict[str, Any]:
    """Its tensors, written out."""
    tensors: dict[str, Any] = {"embed": model.embedding, "head": model.embedding}
    for i, layer in enumerate(model.layers):
        tensors |= {
            f"blocks.{i}.q.weight": layer.W_qk[0],
            f"blocks.{i}.k.weight": layer.W_qk[1].T,
            f"blocks.{i}.up_gate": np.concatenate([layer.W_up, layer.W_gate]),
            f"blocks.{i}.down.weight": layer.W_down.T,
            f"blocks.{i}.scale": layer.scale,
        }
    return tensors


def test_a_table_takes_tensors_in_and_gives_them_back_bit_by_bit() -> None:
    want, tensors = ours(), public(ours())
    assert parameters(ours(1), TABLE, tensors) == want
    back = tensors_of(want, TABLE, SIZES)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert_close(name, back[name], tensor, EXACT)


def test_variables_pass_through_a_table() -> None:
    """The gradient by public tensors is the table applied to the gradient by our parameters."""
    weights = ours(2)

    def inner(params: Any) -> Any:
        own, given = (flatten(each, "params")[0] for each in (params, weights))
        return sum(
            (ops.sum(x * x * w) for x, w in zip(own, given, strict=True)), start=np.float64(0.0)
        )

    tensors = public(ours())
    del tensors["head"]
    by_tensor = grad(lambda own: inner(parameters(ours(1), TABLE, own)))(tensors)
    by_params = tensors_of(grad(inner)(ours()), TABLE, SIZES)
    for name in tensors:
        assert_close(name, by_tensor[name], by_params[name], EXACT)


def test_layers_follow_each_other_whole() -> None:
    table = repeated({"a.{i}": Name("d", ".a[{i}]"), "b.{i}": Name("d", copy_of="a.{i}")}, 2)
    assert list(table) == ["a.0", "b.0", "a.1", "b.1"]
    assert (table["a.1"].field, table["b.1"].copy_of) == (".a[1]", "a.1")


def test_a_part_stands_under_its_name_and_its_place() -> None:
    table = under(LAYER | {"other": Name("d", copy_of="scale")}, "ff.", ".ff")
    assert table["ff.up_gate"].field == ".ff.W_up .ff.W_gate"
    assert table["ff.step"].field == ""
    assert table["ff.other"].copy_of == "ff.scale"


def test_a_row_needs_its_setting() -> None:
    class Settings(Frozen):
        biased: bool

    table = {"w": Name("d", ".w"), "b": Name("d", ".b", when="biased")}
    assert list(rows(table, Settings(biased=True))) == ["w", "b"]
    assert list(rows(table, Settings(biased=False))) == ["w"]


def test_a_parameter_that_no_tensor_holds_is_named() -> None:
    table = {name: each for name, each in TABLE.items() if name != "blocks.1.scale"}
    with pytest.raises(ValueError, match=r"params\.layers\[1\]\.scale: no tensor of the public"):
        parameters(ours(), table, public(ours()))
    tensors = public(ours())
    tensors.pop("blocks.0.k.weight")
    with pytest.raises(KeyError, match=r"blocks\.0\.k\.weight"):
        parameters(ours(), TABLE, tensors)


def test_what_may_be_missing_may_be_missing() -> None:
    tensors = public(ours())
    check(TABLE, SIZES, tensors)
    check(TABLE, SIZES, tensors | {"blocks.1.step": np.zeros(1)})
    tensors.pop("head")
    check(TABLE, SIZES, tensors)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t.pop("blocks.1.scale"), "blocks.1.scale: missing, shape () is needed"),
        (lambda t: t.update(extra=np.ones(1)), "extra: unknown tensor"),
        (
            lambda t: t.update({"blocks.0.up_gate": np.ones((2, 3))}),
            "blocks.0.up_gate: shape (2, 3), expected (4, 3)",
        ),
        (
            lambda t: t.update({"blocks.0.step": np.ones(2)}),
            "blocks.0.step: shape (2,), expected (1,)",
        ),
        (lambda t: t.update(head=t["head"] + 1.0), "head: differs from embed, which it is another"),
        (
            lambda t: t.update({"blocks.0.scale": np.float32(1.0)}),
            "blocks.0.scale: float32, but others are float64",
        ),
    ],
)
def test_a_wrong_tensor_is_named(edit: Any, says: str) -> None:
    tensors = public(ours())
    edit(tensors)
    with pytest.raises(ValueError) as found:
        check(TABLE, SIZES, tensors)
    assert says in str(found.value)


@pytest.mark.parametrize(("low", "says"), [(0.0, "be negative"), (0.5, "be below 0.5")])
def test_an_entry_below_the_least_value_is_named(low: float, says: str) -> None:
    table = {"rates": Name("d", low=low)}
    check(table, SIZES, {"rates": np.full(D, low)})
    with pytest.raises(ValueError, match=f"rates: no entry may {says}"):
        check(table, SIZES, {"rates": np.full(D, low - 0.25)})
