"""AdamW on one buffer: the same bits as AdamW, without memory of its own in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref.optim import adamw, flat, tensors
from tests.support.close import EXACT, assert_close
from tests.support.optimised import FALLS, drawn, run

SETTINGS: dict[str, Any] = {"rate": 0.05, "schedule": FALLS}


def assert_same(found: Any, want: Any) -> None:
    (params, state), (other, plain) = found, want
    for name, p in params.items():
        assert_close(name, p, other[name], EXACT)
    assert state.count == plain.count
    for slot in ("m", "v"):
        for name, x in state.slots[slot].items():
            assert_close(f"{slot} {name}", x, plain.slots[slot][name], EXACT)


@pytest.mark.clause("OPTIM-24", "OPTIM-25")
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("settings", [{}, {"decay": 0.1, "b2": 0.95}, {"correct": False}], ids=str)
def test_it_has_the_bits_of_adamw(settings: Any, dtype: Any, in_place: bool) -> None:
    params, grads = drawn(dtype=dtype)
    found = run(flat.Config(**SETTINGS, **settings, in_place=in_place), params, grads)
    assert_same(found, run(adamw.Config(**SETTINGS, **settings), params, grads))
    assert {p.dtype for p in found[0].values()} == {np.dtype(dtype)}


@pytest.mark.clause("OPTIM-24")
def test_many_blocks_are_one_function() -> None:
    """Tensors that end inside of a block, begin there, and span several."""
    draw = np.random.default_rng(2)
    sizes = (3, flat.BLOCK - 1, 2 * flat.BLOCK + 5, 1, 0, flat.BLOCK)
    params = {f"p{i}": draw.standard_normal(n) for i, n in enumerate(sizes)}
    grads = [{name: draw.standard_normal(p.shape) for name, p in params.items()} for _ in range(3)]
    config = flat.Config(rate=0.1, decay=0.1)
    assert_same(run(config, params, grads), run(adamw.Config(rate=0.1, decay=0.1), params, grads))


@pytest.mark.clause("OPTIM-24")
def test_a_state_of_one_is_a_state_of_the_other() -> None:
    params, grads = drawn()
    config, plain = flat.Config(**SETTINGS), adamw.Config(**SETTINGS)
    whole = run(plain, params, grads)
    half, state = run(config, params, grads[:3])
    assert_same(run(plain, half, grads[3:], state, 3), whole)
    half, state = run(plain, params, grads[:3])
    assert_same(run(config, half, grads[3:], state, 3), whole)
    saved = tensors.tensors_of(state)
    again = tensors.of_tensors(flat.init(config, params), saved)
    assert_same(run(config, half, grads[3:], again, 3), whole)


@pytest.mark.clause("OPTIM-25")
@pytest.mark.host("addresses of arrays")
def test_in_place_nothing_moves_but_numbers() -> None:
    params, grads = drawn(steps=4)
    config = flat.Config(**SETTINGS, in_place=True)
    before = {name: p.copy() for name, p in params.items()}
    own, state = run(config, params, grads[:1])
    addresses = {name: p.ctypes.data for name, p in own.items()}
    moved, state = run(config, own, grads[1:], state, 1)
    assert {name: p.ctypes.data for name, p in moved.items()} == addresses
    assert all(moved[name] is own[name] for name in own)
    for name, p in params.items():  # those of the caller keep their values
        assert_close(name, p, before[name], EXACT)


@pytest.mark.clause("OPTIM-1", "OPTIM-25")
def test_without_it_what_went_in_keeps_its_values() -> None:
    params, grads = drawn(steps=4)
    config = flat.Config(**SETTINGS)
    own, state = run(config, params, grads[:1])
    before = {name: p.copy() for name, p in own.items()}
    first = {name: x.copy() for name, x in state.slots["m"].items()}
    run(config, own, grads[1:], state, 1)
    for name, p in own.items():
        assert_close(name, p, before[name], EXACT)
        assert_close(name, state.slots["m"][name], first[name], EXACT)


@pytest.mark.clause("OPTIM-25")
@pytest.mark.parametrize("in_place", [False, True])
def test_other_parameters_than_those_of_the_state_are_taken(in_place: bool) -> None:
    params, grads = drawn(steps=2)
    config = flat.Config(**SETTINGS, in_place=in_place)
    own, state = run(config, params, grads[:1])
    other = {name: p + 1.0 for name, p in own.items()}
    plain, held = run(adamw.Config(**SETTINGS), params, grads[:1])
    want = run(adamw.Config(**SETTINGS), {n: p + 1.0 for n, p in plain.items()}, grads[1:], held, 1)
    assert_same(run(config, other, grads[1:], state, 1), want)


@pytest.mark.clause("OPTIM-24")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoupled": False}, "decoupled: the flat form has the decay on the parameters alone"),
        ({"eps": 0.0}, "eps: the flat form needs one above 0"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        flat.Config(rate=0.1, **settings)


@pytest.mark.clause("OPTIM-24")
def test_two_dtypes_are_refused_by_name() -> None:
    params = {"W": np.ones((2, 2)), "b": np.ones(2, np.float32)}
    with pytest.raises(ValueError, match=r"params\.b: float32, but W is float64; one buffer has"):
        flat.init(flat.Config(rate=0.1), params)
