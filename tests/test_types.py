"""Frozen validated data: shapes in named dimensions, finite entries, ranges, dtypes, read-only
arrays, equality by bits.
"""

from __future__ import annotations

import copy
import json
import pickle
from typing import Annotated, Any

import ml_dtypes
import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref.types import (
    Array,
    Count,
    Dims,
    Frozen,
    Pulse,
    bind_dims,
    check_array,
    read_only,
    same_bits,
)
from tape import TapeError, Variable, grad, ops, vjp
from tests.support.close import EXACT, assert_close


class Memory(Frozen):
    M: Annotated[Array, Dims("... d_out d_phi")]
    S: Annotated[Array, Dims("... d_out d_phi", optional=True)] = None
    retain: Annotated[Array, Dims("d_out", low=0.0, high=1.0, optional=True)] = None
    name: str = "memory"
    count: int = 0
    tensors: dict[str, Any] = {}
    mask: Any = None


class Square(Frozen):
    A: Annotated[Array, Dims("3 n n")]


class Other(Frozen):
    M: Annotated[Array, Dims("... d_out d_phi")]


def message(build: Any) -> str:
    """The message of the first problem, without pydantic's frame."""
    with pytest.raises(ValidationError) as caught:
        build()
    return str(caught.value.errors()[0]["msg"]).removeprefix("Value error, ")


# -- shapes ----------------------------------------------------------------------------------------


@pytest.mark.clause("CONV-27", "NOTATION-5", "NOTATION-6")
@pytest.mark.parametrize("lead", [(), (1,), (2,), (2, 5, 1)])
def test_equal_names_are_equal_sizes_and_dots_are_any_leading_axes(lead: tuple[int, ...]) -> None:
    made = Memory(M=np.ones((*lead, 3, 4)), S=np.ones((*lead, 3, 4)), retain=np.ones(3))
    assert made.M.shape == (*lead, 3, 4)
    assert Memory(M=np.ones((*lead, 3, 4))).S is None


@pytest.mark.clause("CONV-27", "NOTATION-6", "CASE-16", "CASE-17")
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"M": (4,)}, "M: shape (4,), expected axes (..., d_out, d_phi)"),
        ({"M": ()}, "M: shape (), expected axes (..., d_out, d_phi)"),
        ({"M": (3, 4), "S": (3, 5)}, "S: shape (3, 5) makes d_phi 5, but M makes it 4"),
        ({"M": (3, 4), "S": (4, 3)}, "S: shape (4, 3) makes d_out 4, but M makes it 3"),
        (
            {"M": (2, 3, 4), "S": (3, 4)},
            "S: shape (3, 4) makes leading axes (), but M makes it (2,)",
        ),
        (
            {"M": (2, 3, 4), "S": (1, 3, 4)},
            "S: shape (1, 3, 4) makes leading axes (1,), but M makes it (2,)",
        ),
        ({"M": (3, 4), "retain": (4,)}, "retain: shape (4,) makes d_out 4, but M makes it 3"),
        ({"M": (3, 4), "retain": (1,)}, "retain: shape (1,) makes d_out 1, but M makes it 3"),
        ({"M": (3, 4), "retain": (3, 1)}, "retain: shape (3, 1), expected axes (d_out)"),
    ],
    ids=str,
)
def test_a_shape_that_does_not_fit_is_refused_with_both_sizes(
    fields: dict[str, tuple[int, ...]], says: str
) -> None:
    assert (
        message(lambda: Memory(**{name: np.ones(shape) for name, shape in fields.items()})) == says
    )


@pytest.mark.clause("CASE-16", "CASE-17")
def test_a_number_is_an_exact_size_and_a_name_may_stand_twice() -> None:
    assert Square(A=np.ones((3, 5, 5))).A.shape == (3, 5, 5)
    assert (
        message(lambda: Square(A=np.ones((2, 5, 5))))
        == "A: shape (2, 5, 5), expected axes (3, n, n); found 2 where 3 is needed"
    )
    assert (
        message(lambda: Square(A=np.ones((3, 5, 4))))
        == "A: shape (3, 5, 4) makes n 4, but A makes it 5"
    )


@pytest.mark.clause("CASE-16", "CASE-17")
def test_sizes_are_shared_over_several_calls() -> None:
    sizes: dict[str, Any] = {"c": (4, "window")}
    bind_dims("in/k", (2, 8, 3), "... T d_in", sizes)
    bind_dims("in/retain", (2, 8), "... T", sizes)
    assert sizes == {
        "c": (4, "window"),
        "...": ((2,), "in/k"),
        "T": (8, "in/k"),
        "d_in": (3, "in/k"),
    }
    with pytest.raises(
        ValueError, match=r"^in/window_weights: shape \(2, 8, 5\) makes c 5, but window makes it 4$"
    ):
        bind_dims("in/window_weights", (2, 8, 5), "... T c", sizes)
    bind_dims("scalar", (), "", sizes)
    bind_dims("anything", (2,), "...", sizes)


# -- entries ---------------------------------------------------------------------------------------


@pytest.mark.clause("CASE-16", "CASE-17", "CONV-28")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, complex(0, np.nan), complex(1, np.inf)])
def test_every_entry_is_finite(bad: Any) -> None:
    M = np.ones((2, 3, 4), dtype=type(bad) if isinstance(bad, complex) else float)
    M[1, 0, 2] = bad
    assert (
        message(lambda: Memory(M=M))
        == f"M: every entry must be finite, found {M[1, 0, 2]} at (1, 0, 2)"
    )


@pytest.mark.clause("CASE-6", "CASE-16", "CASE-17")
def test_ranges_are_inclusive_and_of_real_parts() -> None:
    M = np.ones((3, 2))
    for good in ([0.0, 0.5, 1.0], np.array([0.0, 1.0, 1.0]) + 1e-30j):
        assert Memory(M=M, retain=np.asarray(good)).retain is not None
    assert (
        message(lambda: Memory(M=M, retain=np.array([0.5, 0.5, 1.5])))
        == "retain: entries must be at most 1, found 1.5 at (2,)"
    )
    assert (
        message(lambda: Memory(M=M, retain=np.array([-0.25, 0.5, 2])))
        == "retain: entries must be at least 0, found -0.25 at (0,)"
    )
    assert message(lambda: Memory(M=M, retain=np.array([1.0, 1 + 2**-52, 0]))).startswith(
        "retain: entries must be at most 1, found 1.0000"
    )


@pytest.mark.clause("CASE-16", "CASE-17")
def test_a_number_in_an_array_without_axes_is_reported_as_well() -> None:
    check_array("x", np.array(0.5), Dims("", low=0.0, high=1.0))
    with pytest.raises(ValueError, match=r"^x: every entry must be finite, found nan at \(\)$"):
        check_array("x", np.array(np.nan), Dims(""))
    with pytest.raises(ValueError, match=r"^x: entries must be at most 1, found 2.0 at \(\)$"):
        check_array("x", np.float64(2.0), Dims("", high=1.0))


@pytest.mark.clause("CASE-4", "TAPE-13")
@pytest.mark.parametrize(
    "kind",
    [
        np.float64,
        np.float32,
        np.float16,
        np.complex64,
        np.complex128,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float4_e2m1fn,
    ],
)
def test_floating_and_complex_dtypes_are_kept(kind: Any) -> None:
    M = np.array([[0.5, -1.0], [2.0, 0.0]]).astype(kind)
    made = Memory(M=M, retain=np.array([0.5, 1.0]).astype(kind))
    assert_close("M", made.M, M, EXACT)
    assert made == Memory(M=M.copy(), retain=np.array([0.5, 1.0]).astype(kind))
    if not np.issubdtype(kind, np.complexfloating) and kind is not ml_dtypes.float4_e2m1fn:
        assert "at most 1, found 1.5" in message(
            lambda: Memory(M=M, retain=np.array([0.5, 1.5]).astype(kind))
        )


@pytest.mark.clause("CASE-4", "CASE-16", "CASE-17")
@pytest.mark.parametrize(
    "kind",
    [
        np.int64,
        np.uint8,
        np.bool_,
        ml_dtypes.int4,
        ml_dtypes.uint4,
        object,
        "U3",
        "S3",
        "M8[s]",
        "m8[s]",
        [("a", float)],
    ],
    ids=str,
)
def test_other_dtypes_are_refused(kind: Any) -> None:
    M = np.zeros((2, 2), dtype=kind)
    assert (
        message(lambda: Memory(M=M)) == f"M: a floating or complex dtype is needed, found {M.dtype}"
    )


@pytest.mark.clause("CASE-16", "CASE-17")
@pytest.mark.parametrize(
    ("value", "found"),
    [([[1.0]], "list"), (1.0, "float"), (None, "NoneType"), ("M", "str"), (((1.0,),), "tuple")],
)
def test_what_is_not_an_array_is_refused(value: Any, found: str) -> None:
    assert message(lambda: Memory(M=value)) == f"M: an array is needed, found {found}"


# -- tape variables --------------------------------------------------------------------------------


@pytest.mark.clause("TAPE-17")
def test_tape_variables_are_checked_and_kept() -> None:
    def function(x: Any) -> Any:
        made = Memory(M=x, S=np.ones((2, 2)))
        assert type(made.M) is Variable
        assert made.M is x
        return ops.sum(made.M * made.M * made.S)

    M = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert_close("gradient", grad(function)(M), 2 * M, EXACT)
    assert_close("nested", grad(lambda x: ops.sum(grad(function)(x) * M))(M), 2 * M, EXACT)
    with pytest.raises(ValidationError, match=r"S: shape \(2, 2\) makes d_phi 2, but M makes it 3"):
        grad(function)(np.ones((2, 3)))
    with pytest.raises(ValidationError, match="M: every entry must be finite, found nan"):
        grad(function)(np.array([[np.nan, 1.0], [1.0, 1.0]]))


@pytest.mark.clause("TAPE-17", "TAPE-11")
def test_data_that_holds_variables_cannot_be_compared() -> None:
    with pytest.raises(TapeError, match="comparison"):
        vjp(lambda x: ops.sum(x) if Memory(M=x) == Memory(M=x) else x, np.ones((2, 2)))


@pytest.mark.clause("TAPE-17")
def test_gradients_come_back_in_the_same_model() -> None:
    made = Memory(M=np.ones((2, 2)), retain=np.array([0.5, 0.25]), name="first", count=3)
    gradient = grad(lambda m: ops.sum(ops.expand_dims(m.retain, -1) * m.M))(made)
    assert type(gradient) is Memory
    assert_close("M", gradient.M, np.array([[0.5, 0.5], [0.25, 0.25]]), EXACT)
    assert (gradient.name, gradient.count, gradient.S) == ("first", 3, None)


# -- immutability ----------------------------------------------------------------------------------


@pytest.mark.clause("CONV-1", "OMEGA-28")
def test_nothing_of_it_can_be_changed() -> None:
    made = Memory(M=np.ones((2, 2)), tensors={"W": np.ones(3)}, mask=np.ones(2, bool))
    with pytest.raises(ValidationError, match="frozen"):
        made.M = np.zeros((2, 2))
    with pytest.raises(ValidationError, match="frozen"):
        del made.name
    for array in (made.M, made.tensors["W"], made.mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        made.M[0] += 1


@pytest.mark.clause("CONV-1", "OMEGA-28")
def test_changing_the_array_it_was_made_from_does_not_reach_it() -> None:
    base = np.ones((3, 4))
    view = base[:2]
    hidden = base[:2]
    hidden.flags.writeable = False  # read-only itself, a view of what is not
    broadcast = np.broadcast_to(base[0], (2, 4))
    kept = [Memory(M=each) for each in (base, view, hidden, broadcast, base.T)]
    inside = Memory(M=base, tensors={"W": base, "deep": {"V": base[1:]}})
    base[:] = 7.0
    for made in kept:
        assert np.all(made.M == 1.0)
    assert np.all(inside.tensors["W"] == 1.0)
    assert np.all(inside.tensors["deep"]["V"] == 1.0)
    assert base.flags.writeable


@pytest.mark.clause("CONV-1")
def test_what_nobody_can_change_is_not_copied() -> None:
    own = read_only(np.ones((2, 3)))
    assert not own.flags.writeable
    assert read_only(own) is own
    assert Memory(M=own).M is own
    assert Memory(M=own.T).M.base is own
    frozen = np.frombuffer(np.ones((2, 3)).tobytes()).reshape(2, 3)
    assert Memory(M=frozen).M is frozen
    assert not np.shares_memory(
        read_only(np.frombuffer(bytearray(48)).reshape(2, 3)), np.frombuffer(bytearray(48))
    )
    assert read_only("text") == "text"


@pytest.mark.clause("OMEGA-28")
def test_copies_and_pickles_are_equal_and_as_immutable() -> None:
    made = Memory(M=np.ones((2, 2)), tensors={"W": np.ones(3)}, count=2)
    for again in (
        pickle.loads(pickle.dumps(made)),
        copy.deepcopy(made),
        copy.copy(made),
        made.model_copy(deep=True),
    ):
        assert again == made
        assert again is not made
        assert not again.M.flags.writeable
        assert not again.tensors["W"].flags.writeable
        assert again.model_fields_set == {"M", "tensors", "count"}
    made.model_copy(deep=True, update={"count": 5})
    assert made.count == 2


@pytest.mark.clause("CASE-2", "CASE-17")
def test_fields_are_strict() -> None:
    M = np.ones((2, 2))
    for fields, word in (
        ({"count": 1.0}, "integer"),
        ({"count": "1"}, "integer"),
        ({"name": 1}, "string"),
        ({"unknown": 1}, "Extra inputs"),
    ):
        assert word in message(lambda fields=fields: Memory(M=M, **fields))
    assert "required" in message(Memory)


# -- equality --------------------------------------------------------------------------------------


@pytest.mark.clause("NOTATION-9")
def test_equal_means_the_same_type_and_the_same_bits() -> None:
    M = np.array([[1.0, 0.0]])
    made = Memory(M=M, tensors={"W": np.ones(2)})
    assert made == Memory(M=M.copy(), tensors={"W": np.ones(2)})
    assert not made != Memory(M=M.copy(), tensors={"W": np.ones(2)})  # noqa: SIM202  # != is a method of its own
    different = [
        Memory(M=np.array([[1.0, -0.0]]), tensors={"W": np.ones(2)}),
        Memory(M=np.nextafter(M, 2), tensors={"W": np.ones(2)}),
        Memory(M=M.astype(np.float32), tensors={"W": np.ones(2)}),
        Memory(M=M[None], tensors={"W": np.ones(2)}),
        Memory(M=M, tensors={"W": np.zeros(2)}),
        Memory(M=M, tensors={"V": np.ones(2)}),
        Memory(M=M, S=M, tensors={"W": np.ones(2)}),
        Memory(M=M, tensors={"W": np.ones(2)}, count=1),
        Other(M=M),
        M,
        None,
    ]
    for other in different:
        assert (made == other) is False
        assert (made != other) is True


@pytest.mark.clause("NOTATION-9")
def test_nests_are_compared_by_type_and_bits() -> None:
    assert same_bits({"a": [np.ones(2), (1, "x")]}, {"a": [np.ones(2), (1, "x")]})
    for a, b in (
        ([1], (1,)),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        (1, 1.0),
        (True, 1),
        (np.ones(2), np.ones(3)),
        ((0.5,), (0.25,)),
    ):
        assert not same_bits(a, b)
    assert not same_bits(np.zeros(2, np.float16), np.zeros(2, ml_dtypes.bfloat16))  # the same bytes
    assert same_bits(np.ones((2, 2)).T, np.ones((2, 2)))


@pytest.mark.clause("NOTATION-9")
def test_with_arrays_inside_it_is_no_key() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Memory(M=np.ones((1, 1))))
    assert {Pulse(step=3): "third"}[Pulse(step=3)] == "third"


# -- without validation ----------------------------------------------------------------------------


@pytest.mark.clause("OMEGA-28")
def test_trusted_and_replaced_skip_validation_and_copy_nothing() -> None:
    M = np.full((2, 2), np.nan)
    trusted = Memory.trusted(M=M, S=None, retain=None, name="x", count=1, tensors={}, mask=None)
    assert trusted.M is M
    assert trusted.model_fields_set == set(Memory.model_fields)
    before = Memory(M=np.ones((2, 2)), count=1)
    after = before.replaced(M=M, count=2)
    assert type(after) is Memory
    assert (after.M is M, after.count, after.name) == (True, 2, "memory")
    assert (before.count, before.M[0, 0]) == (1, 1.0)
    assert before.replaced() == before
    with pytest.raises(ValidationError, match="frozen"):
        after.count = 3


@pytest.mark.clause("CONV-32")
def test_a_pulse_is_a_number_and_a_switch_for_each_level() -> None:
    assert (Pulse().step, Pulse().active, Pulse().learns) == (0, (True,), True)
    assert Pulse.model_validate_json(json.dumps({"step": 4, "active": [False]})) == Pulse(
        step=4, active=(False,)
    )
    for bad in ({"step": 1.5}, {"step": -1}, {"active": True}, {"level": 0}, {"phase": "train"}):
        with pytest.raises(ValidationError):
            Pulse(**bad)


class Sized(Frozen):
    tokens: Count


def test_a_count_is_one_that_an_array_can_index() -> None:
    assert Sized(tokens=2**63 - 1).tokens == 2**63 - 1
    for bad in (0, 2**63, 10**30, 2.5):
        with pytest.raises(ValidationError, match="tokens"):
            Sized(tokens=bad)
