"""Large arrays are copied and looked through by all threads, and come out as by one."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref import own_copies as module
from atlas_ref.own_copies import own_copies
from atlas_ref.types import Array, Dims, Frozen
from tape import vjp

pytestmark = pytest.mark.host("a device's arrays are not copied")


class Rows(Frozen):
    a: Annotated[Array, Dims("... n d")]
    b: Annotated[Array, Dims("... n", low=0.0, optional=True)] = None


@pytest.fixture(params=[2, 3, 7])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many processors, for arrays of any size."""
    monkeypatch.setattr(module, "processors", lambda: request.param)
    monkeypatch.setattr(module, "LARGE", 0)
    return int(request.param)


def drawn(*shape: int, kind: Any = np.float32) -> Any:
    return np.random.default_rng(0).random(shape).astype(kind)


@pytest.mark.clause("CONV-27")
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(1, 9, 2), (5, 1, 2), (2, 3, 4, 2), (1, 1), (1, 2, 0), (3, 5)])
def test_copies_have_the_same_bits_and_stand_alone(threads: int, shape: tuple[int, ...], kind: Any) -> None:
    a = drawn(*shape, kind=kind)
    for given in (a, np.asfortranarray(a), np.flip(a), np.stack([a, a], axis=-1)[..., 1]):
        copies, finite = own_copies({"a": given, "other": "no array", "none": None})
        assert finite == {"a": True}
        assert copies["a"].tobytes() == given.tobytes()
        assert copies["a"].shape == given.shape
        assert copies["a"].dtype == given.dtype
        assert copies["a"].flags.c_contiguous
        assert not copies["a"].flags.writeable
        assert not np.shares_memory(copies["a"], given)


@pytest.mark.clause("CONV-27")
def test_what_nobody_can_change_is_looked_through_and_not_copied(threads: int) -> None:
    a = drawn(4, 6)
    a.flags.writeable = False
    assert own_copies({"a": a}) == ({}, {"a": True})
    assert Rows(a=a).a is a


@pytest.mark.clause("CONV-27")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0, 0), (1, 4, 2), (3, 8, 2)])
def test_an_entry_that_is_not_finite_is_found_wherever_it_is(threads: int, where: tuple[int, ...], bad: float) -> None:
    a = drawn(4, 9, 3)
    a[where] = bad
    with pytest.raises(ValidationError, match=rf"a: every entry must be finite, found {bad} at \({where[0]}, {where[1]}, {where[2]}\)"):
        Rows(a=a)


@pytest.mark.clause("CONV-27")
def test_ranges_and_shapes_are_still_checked(threads: int) -> None:
    with pytest.raises(ValidationError, match=r"b: entries must be at least 0, found -1\.0 at"):
        Rows(a=drawn(4, 9, 3), b=-np.ones((4, 9)))
    with pytest.raises(ValidationError, match="b: shape"):
        Rows(a=drawn(4, 9, 3), b=np.ones((4, 8)))


@pytest.mark.clause("CONV-27")
def test_variables_are_looked_through_and_kept(threads: int) -> None:
    a = drawn(4, 6, kind=np.float64)
    y, pullback = vjp(lambda a: Rows(a=a).a * 2.0, a)
    assert np.array_equal(y, 2.0 * a)
    assert np.array_equal(pullback(np.ones_like(a))[0], np.full_like(a, 2.0))
    a[3, 5] = np.nan
    with pytest.raises(ValidationError, match="a: every entry must be finite"):
        vjp(lambda a: Rows(a=a).a * 2.0, a)


@pytest.mark.clause("CONV-27")
def test_small_arrays_and_one_processor_are_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "processors", lambda: 2)
    large = np.ones((module.LARGE // 4, 4))
    assert own_copies({"a": large[1:]}) == ({}, {})
    assert set(own_copies({"a": large})[1]) == {"a"}
    monkeypatch.setattr(module, "processors", lambda: 1)
    assert own_copies({"a": large}) == ({}, {})
