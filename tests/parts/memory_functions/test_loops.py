"""Memory functions and their hand gradient against plain loops, with fast and slow parameters."""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.parts import memory_functions
from atlas_ref.parts.memory_functions import pairs
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.memory_functions import (
    FUNCTIONS,
    LEADING,
    drawn,
    literal,
    one_row,
    own_shapes,
)
from tests.truth import memory_function_loops as loops

every_function = pytest.mark.parametrize("name", FUNCTIONS)
every_leading = pytest.mark.parametrize("leading", LEADING)


@pytest.mark.clause("MEMFUN-1", "MEMFUN-3", "MEMFUN-4", "MEMFUN-5", "MEMFUN-7")
@every_leading
@every_function
def test_values_are_those_of_the_loops(name: str, leading: str) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, leading)
    full = gy.shape[:-2]
    rows = np.broadcast_to(x, (*full, *x.shape[-2:]))
    want = np.empty(gy.shape)
    for row in np.ndindex(*full):
        want[row] = loops.values(literal(function), one_row(params, full, row), rows[row])
    assert_close("y", memory_functions.apply(function, params, x), want, ANALYTIC)


@pytest.mark.clause("MEMFUN-3", "MEMFUN-6", "MEMFUN-7")
@every_leading
@every_function
def test_cotangents_are_those_of_the_loops_summed_over_tokens_alone(
    name: str, leading: str
) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, leading)
    full = gy.shape[:-2]
    rows = np.broadcast_to(x, (*full, *x.shape[-2:]))
    by_name, gx = memory_functions.gradient(function, params, x, gy)
    assert list(by_name) == list(params)
    assert gx is not None
    shapes = own_shapes(params)
    for each, gradient in by_name.items():
        assert gradient.shape == (*full, *shapes[each]), each
    for row in np.ndindex(*full):
        memory = literal(function), one_row(params, full, row)
        want, of_x = loops.cotangents(*memory, rows[row], gy[row])
        assert_close("x", gx[row], of_x, ANALYTIC)
        for each, gradient in by_name.items():
            assert_close(each, gradient[row], want[each], ANALYTIC)


@pytest.mark.clause("MEMFUN-2", "MEMFUN-6")
@pytest.mark.parametrize("name", ["linear", "mlp 1 plain", "mlp 3 silu", "geglu compress"])
def test_a_result_of_another_width_is_that_of_the_loops(name: str) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, "no leading axis", d_in=4, d_out=6)
    assert_close(
        "y",
        memory_functions.apply(function, params, x),
        loops.values(literal(function), params, x),
        ANALYTIC,
    )
    by_name, gx = memory_functions.gradient(function, params, x, gy)
    want, of_x = loops.cotangents(literal(function), params, x, gy)
    assert_close("x", gx, of_x, ANALYTIC)
    for each, gradient in by_name.items():
        assert_close(each, gradient, want[each], ANALYTIC)


@pytest.mark.clause("MEMFUN-3")
@every_function
def test_pieces_are_the_values_of_the_loops_in_order(name: str) -> None:
    function = FUNCTIONS[name]
    params, x, _ = drawn(function, "no leading axis")
    found = memory_functions.pieces(function, params, x)
    memory = literal(function)
    tokens = [loops.TOKENS[memory.kind](memory, params, token) for token in x]
    of_loops = {"features": "f", "normed": "u", "compressed": "m"}
    if function.kind == "mlp":
        of_loops = {"normed": "n"}
    for each, value in found.items():
        want = np.array([token[of_loops.get(each, each)] for token in tokens])
        if each == "y" and function.with_input:
            want = want + x
        assert_close(each, value, want, ANALYTIC)
    expected = {
        "linear": "y",
        "mlp 2": "a_1 s_1 o normed y",
        "mlp 3 silu": "a_1 s_1 a_2 s_2 o y",
        "gelu": "z features normed a s o e y",
        "swiglu": "z features normed compressed a b s o e y",
    }
    if name in expected:
        assert list(found) == expected[name].split()
    y = memory_functions.apply(function, params, x)
    assert_close("y", found["y"], y, EXACT)


@pytest.mark.clause("MEMFUN-3")
@every_function
def test_a_call_without_tokens_is_empty_and_has_cotangents_zero(name: str) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, "mixed", n=0)
    assert memory_functions.apply(function, params, x).shape == gy.shape
    by_name, gx = memory_functions.gradient(function, params, x, gy)
    assert gx.shape == gy.shape
    for each, gradient in by_name.items():
        assert not gradient.any(), each


@pytest.mark.clause("MEMFUN-4")
@pytest.mark.parametrize("d", [1, 2, 5])
def test_pairs_are_each_product_once_and_its_maps_are_transposes(d: int) -> None:
    draw = np.random.default_rng(d)
    z, count = draw.standard_normal((2, d)), d * (d + 1) // 2
    want = np.stack([[row[i] * row[j] for i in range(d) for j in range(i, d)] for row in z])
    assert_close("pairs", pairs.pairs(z), want, EXACT)
    H, g = draw.standard_normal((2, d, d)), draw.standard_normal((2, count))
    spread = pairs.spread(g, d=d)
    assert_close(
        "<gather(H), g>",
        np.sum(pairs.gather(H) * g),
        np.sum(H * spread),
        reordered(64),
    )
    assert_close("spread(g) is symmetric", spread, spread.swapaxes(-1, -2), EXACT)
    square = z[..., :, None] * z[..., None, :]
    assert_close("pairs(z)", 0.5 * pairs.gather(square), want, reordered(2))


@pytest.mark.clause("MEMFUN-4", "MEMFUN-5")
def test_each_setting_changes_the_result() -> None:
    function = FUNCTIONS["geglu compress"]
    params, x, _ = drawn(function)
    y = memory_functions.apply(function, params, x)
    for change in (
        {"activation": "gelu_tanh"},
        {"activation": "silu"},
        {"norm_eps": 1e-3},
        {"with_input": True},
    ):
        other = memory_functions.apply(function.replaced(**change), params, x)
        assert_differs(str(change), other, y, 1e-7)
    params["W_down"] = 0.02 * params["W_down"]  # where features are small, the eps is not
    y = memory_functions.apply(function, params, x)
    half = memory_functions.apply(function.replaced(norm_eps=5e-6), params, x)
    assert_differs("eps of small features", half, y, 1e-2)
