"""Settings, tensors, starts and refusals of memory functions, and which are special cases."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import pytest

from atlas_ref.parts import memory_functions
from atlas_ref.parts.memory_functions import (
    MemoryFunction,
    check,
    initial,
    matrices,
    mlp_matrices,
    tensors,
)
from atlas_ref.parts.memory_functions.activations import share
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.counting import counted, multiply_adds
from tests.support.memory_functions import FUNCTIONS, drawn, names, polynomial, recorded

#: Atlas-MAG as its README counts it, in a memory of width 512 with keys of 64.
README = MemoryFunction(kind="polynomial", key_width=64, gated=True)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.clause("MEMFUN-1")
def test_defaults_are_those_of_public_code() -> None:
    function = MemoryFunction(kind="mlp")
    assert (function.depth, function.expansion, function.norm_eps) == (2, 4.0, 1e-5)
    function = MemoryFunction(kind="polynomial", key_width=6)
    assert (function.activation, function.gated, function.degree) == ("gelu", False, 2)
    assert (function.compress, function.scale, function.with_input) == (None, 0.15, False)


@pytest.mark.clause("MEMFUN-1", "MEMFUN-2")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "cubic"}, "linear"),
        ({"kind": "polynomial"}, "key_width: kind polynomial needs it"),
        ({"kind": "linear", "depth": 3}, "depth: 3 belongs to kind mlp, found kind linear"),
        (
            {"kind": "linear", "activation": "silu"},
            "activation: 'silu' belongs to kind mlp or polynomial, found kind linear",
        ),
        ({"kind": "mlp", "gated": True}, "gated: True belongs to kind polynomial, found kind mlp"),
        ({"kind": "mlp", "key_width": 4}, "key_width: 4 belongs to kind polynomial"),
        ({"kind": "mlp", "compress": 4}, "compress: 4 belongs to kind polynomial"),
        ({"kind": "mlp", "degree": 1}, "degree: 1 belongs to kind polynomial"),
        ({"kind": "mlp", "scale": 1.0}, "scale: 1.0 belongs to kind polynomial"),
        ({"kind": "linear", "norm_eps": 1.0}, "norm_eps: 1.0 belongs to kind mlp or polynomial"),
        ({"kind": "linear", "expansion": 2.0}, "expansion: 2.0 belongs to kind mlp or polynomial"),
        (
            {"kind": "polynomial", "key_width": 2, "residual_norm": True},
            "residual_norm: True belongs to kind mlp, found kind polynomial",
        ),
        ({"kind": "mlp", "depth": 0}, "greater than or equal to 1"),
        ({"kind": "mlp", "depth": 10**9}, "less than or equal to 1000"),
        ({"kind": "mlp", "expansion": 0.0}, "greater than 0"),
        ({"kind": "mlp", "norm_eps": 0.0}, "greater than 0"),
        ({"kind": "polynomial", "key_width": 2, "scale": float("nan")}, "finite"),
        ({"kind": "polynomial", "key_width": 2, "degree": 3}, "1 or 2"),
        (
            {"kind": "polynomial", "key_width": 2, "expansion": 0.25},
            "expansion: 0.25 of 2 leaves no hidden unit",
        ),
        ({"kind": "linear", "bias": True}, "bias"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        MemoryFunction(**settings)


# -- tensors ---------------------------------------------------------------------------------------


@pytest.mark.clause("MEMFUN-2")
def test_tensors_have_the_names_and_shapes_of_the_table_in_order() -> None:
    linear = MemoryFunction(kind="linear")
    assert tensors(linear, 3, 5) == {"W": (5, 3)}
    assert matrices(linear) == mlp_matrices(linear) == ("W",)
    mlp = MemoryFunction(kind="mlp", depth=3, expansion=2.5)
    assert list(tensors(mlp, 3, 5).items()) == [("W_1", (7, 3)), ("W_2", (7, 7)), ("W_3", (5, 7))]
    normed = MemoryFunction(kind="mlp", residual_norm=True)
    assert list(tensors(normed, 3, 3)) == ["W_1", "W_2", "norm/gain"]
    assert matrices(normed) == mlp_matrices(normed) == ("W_1", "W_2")
    gated = MemoryFunction(kind="polynomial", key_width=3, gated=True, compress=5, expansion=2)
    assert list(tensors(gated, 4, 7).items()) == [
        ("W_down", (3, 4)),
        ("feature_norm/gain", (9,)),
        ("feature_norm/bias", (9,)),
        ("W_compress", (5, 9)),
        ("W_in", (6, 5)),
        ("W_value", (6, 5)),
        ("W_out", (3, 6)),
        ("W_up", (7, 3)),
        ("read_norm/gain", (7,)),
        ("read_norm/bias", (7,)),
        ("read_scale", ()),
    ]
    assert matrices(gated) == ("W_down", "W_compress", "W_in", "W_value", "W_out", "W_up")
    assert mlp_matrices(gated) == ("W_in", "W_value", "W_out")
    plain = MemoryFunction(kind="polynomial", key_width=3)
    assert matrices(plain) == ("W_down", "W_in", "W_out", "W_up")
    assert mlp_matrices(plain) == ("W_in", "W_out")
    small = MemoryFunction(kind="mlp", expansion=0.01)
    assert matrices(small) == ("W_1", "W_2")


@pytest.mark.clause("MEMFUN-2")
def test_compressing_to_all_features_or_more_compresses_nothing() -> None:
    for compress, rows in ((26, 26), (27, None), (512, None)):
        function = MemoryFunction(kind="polynomial", key_width=6, compress=compress)
        shapes = tensors(function, 16, 16)
        assert shapes.get("W_compress") == (None if rows is None else (rows, 27))
        assert shapes["W_in"] == (24, rows or 27)


@pytest.mark.clause("MEMFUN-2")
@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({}, 42_569_990),
        ({"compress": 512}, 44_142_854),
        ({"gated": False}, 39_276_806),
        ({"gated": False, "compress": 512}, 43_356_422),
    ],
)
def test_the_memory_has_as_many_parameters_as_public_code_counts(
    changes: dict[str, Any], parameters: int
) -> None:
    """Its model of 6 blocks has so many, and 35,263,232 without memories and their gates."""
    shapes = tensors(README.replaced(**changes), 512, 512)
    gate = 64 * 512 + 64
    of_memory = sum(int(np.prod(shape)) for shape in shapes.values())
    assert 6 * (of_memory + gate) == parameters - 35_263_232


@pytest.mark.clause("MEMFUN-2")
@pytest.mark.parametrize(
    ("function", "sizes", "words"),
    [
        (MemoryFunction(kind="linear"), (0, 3), "d_in: 0, expected a whole number of at least 1"),
        (MemoryFunction(kind="linear"), (3, 2.0), "d_out: 2.0, expected a whole number"),
        (MemoryFunction(kind="linear"), (True, 3), "d_in: True, expected a whole number"),
        (
            MemoryFunction(kind="linear", with_input=True),
            (3, 4),
            "with_input: d_in 3 and d_out 4 must be the same",
        ),
        (
            MemoryFunction(kind="mlp", residual_norm=True),
            (3, 4),
            "residual_norm: d_in 3 and d_out 4 must be the same",
        ),
        (
            MemoryFunction(kind="mlp", expansion=0.25),
            (3, 3),
            "expansion: 0.25 of 3 leaves no hidden unit",
        ),
    ],
)
def test_sizes_that_contradict_the_settings_are_refused(
    function: MemoryFunction, sizes: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        tensors(function, *sizes)


# -- starts ----------------------------------------------------------------------------------------


@pytest.mark.clause("MEMFUN-8")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_tensor_starts_from_a_stream_of_its_own(name: str) -> None:
    function = FUNCTIONS[name]
    start = initial(function, 4, 4, seed=7)
    assert {each: array.shape for each, array in start.items()} == tensors(function, 4, 4)
    check(function, start, 4, 4)
    for each, array in start.items():
        draw = np.random.Generator(np.random.Philox([7, zlib.crc32(each.encode())]))
        if function.kind == "polynomial" and array.ndim == 2:
            want = 0.02 * draw.standard_normal(array.shape)
        elif function.kind == "mlp" and array.ndim == 2:
            bound = np.sqrt(6.0 / sum(array.shape))
            want = draw.uniform(-bound, bound, array.shape)
        else:
            ones = each in ("feature_norm/gain", "read_norm/gain")
            want = np.full(array.shape, 0.15 if each == "read_scale" else float(ones))
        assert_close(each, array, want, EXACT)


@pytest.mark.clause("MEMFUN-8")
def test_a_start_has_the_deviations_of_public_code() -> None:
    start = initial(README, 512, 512, seed=0)
    for name in matrices(README):
        assert abs(np.std(start[name]) / 0.02 - 1.0) < 0.02, name
    mlp = initial(MemoryFunction(kind="mlp"), 64, 64, seed=0)
    for W in (mlp["W_1"], mlp["W_2"]):
        bound = np.sqrt(6.0 / (64 + 256))
        assert 0.99 * bound < np.abs(W).max() <= bound
        assert abs(np.std(W) * np.sqrt(3.0) / bound - 1.0) < 0.02


@pytest.mark.clause("MEMFUN-8")
def test_a_setting_that_adds_a_tensor_changes_no_other() -> None:
    function = MemoryFunction(kind="polynomial", key_width=3)
    start = initial(function, 4, 4, seed=1)
    gated = initial(function.replaced(gated=True), 4, 4, seed=1)
    assert gated.keys() - start.keys() == {"W_value"}
    for name, array in start.items():
        assert_close(name, gated[name], array, EXACT)
    assert_differs("W_value", gated["W_value"], gated["W_in"], 1.0)
    assert_differs("seed", initial(function, 4, 4, seed=2)["W_in"], start["W_in"], 1.0)
    scaled = initial(function.replaced(scale=0.5), 4, 4, seed=1, dtype=np.float32)
    assert scaled["read_scale"] == 0.5
    for name, array in scaled.items():
        assert array.dtype == np.float32, name
        assert array.shape == start[name].shape, name


@pytest.mark.clause("MEMFUN-8")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": -1}, "seed: -1, expected a whole number that is not negative"),
        ({"seed": 1.0}, "seed: 1.0, expected a whole number"),
        ({"seed": True}, "seed: True, expected a whole number"),
        ({"seed": 0, "dtype": np.int64}, "dtype: a floating or complex dtype is needed"),
    ],
)
def test_a_start_refuses_what_it_cannot_draw(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        initial(MemoryFunction(kind="linear"), 3, 3, **settings)


# -- refusals --------------------------------------------------------------------------------------


def changed(**arrays: Any) -> dict[str, Any]:
    """A gated memory's start with some tensors replaced, left out where None."""
    start = initial(FUNCTIONS["geglu compress"], 4, 4, seed=0)
    after = start | {name.replace("__", "/"): array for name, array in arrays.items()}
    return {name: array for name, array in after.items() if array is not None}


@pytest.mark.clause("MEMFUN-9")
@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"W_4": np.ones((2, 2))},
            "memory/W_4: unknown, kind polynomial has W_down, feature_norm/gain,",
        ),
        ({"W_value": None}, "memory/W_value: missing, shape (12, 4) is needed"),
        ({"read_scale": None}, "memory/read_scale: missing, shape () is needed"),
        (
            {"W_down": np.ones((4, 3))},
            "memory/W_down: shape (4, 3), expected (3, 4) or leading axes in front of it",
        ),
        ({"W_down": np.ones(4)}, "memory/W_down: shape (4,), expected (3, 4)"),
        (
            {"feature_norm__bias": np.ones((9, 1))},
            "memory/feature_norm/bias: shape (9, 1), expected (9,) or leading axes",
        ),
        (
            {"W_in": np.ones((12, 4), int)},
            "memory/W_in: a floating or complex dtype is needed, found int64",
        ),
        ({"W_in": [[1.0] * 4] * 12}, "memory/W_in: an array is needed, found list"),
        (
            {"W_in": np.ones((2, 3, 12, 4)), "W_out": np.ones((2, 2, 3, 12))},
            "memory/W_out: leading axes (2, 2) do not broadcast with those of the tensors before "
            "it, W_in (2, 3)",
        ),
        (
            {"W_in": np.ones((2, 12, 4)), "read_scale": np.ones(3)},
            "memory/read_scale: leading axes (3,) do not broadcast with those of the tensors "
            "before it, W_in (2,)",
        ),
    ],
)
def test_tensors_that_contradict_the_settings_are_refused_by_name(
    arrays: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        check(FUNCTIONS["geglu compress"], changed(**arrays), 4, 4)


@pytest.mark.clause("MEMFUN-9")
def test_leading_axes_that_broadcast_are_taken_and_the_name_is_the_callers() -> None:
    function = FUNCTIONS["geglu compress"]
    for leading in ("shared", "fast", "mixed", "mixed otherwise"):
        check(function, drawn(function, leading).params, 4, 4)
    with pytest.raises(ValueError, match=r"^levels\[1\]/W_value: missing"):
        check(function, changed(W_value=None), 4, 4, name="levels[1]")


# -- special cases, eps, cost ----------------------------------------------------------------------


@pytest.mark.clause("MEMFUN-10")
def test_an_mlp_of_one_matrix_is_linear() -> None:
    function = FUNCTIONS["mlp 1 plain"]
    params, x, gy = drawn(function, "mixed")
    linear, of_linear = MemoryFunction(kind="linear"), {"W": params["W_1"]}
    assert_close(
        "y",
        memory_functions.apply(function, params, x),
        memory_functions.apply(linear, of_linear, x),
        EXACT,
    )
    got, want = (
        memory_functions.gradient(f, p, x, gy) for f, p in ((function, params), (linear, of_linear))
    )
    assert_close("W", got[0]["W_1"], want[0]["W"], EXACT)
    assert_close("x", got[1], want[1], EXACT)
    deeper = FUNCTIONS["mlp 3 silu"]
    other = memory_functions.apply(deeper, drawn(deeper, "mixed").params, x)
    assert_differs("twin", other, memory_functions.apply(function, params, x), 0.1)


@pytest.mark.clause("MEMFUN-10")
def test_a_gate_of_one_is_no_gate() -> None:
    gated = FUNCTIONS["geglu"]
    params, x, _ = drawn(gated)
    params["feature_norm/gain"][0], params["feature_norm/bias"][0] = 0.0, 1.0  # u_0 = 1
    params["W_value"] = np.zeros_like(params["W_value"])
    params["W_value"][:, 0] = 1.0
    plain = {name: array for name, array in params.items() if name != "W_value"}
    want = memory_functions.apply(gated.replaced(gated=False), plain, x)
    assert_close("y", memory_functions.apply(gated, params, x), want, ANALYTIC)
    params["W_value"][:, 1] = 3.0
    assert_differs("twin", memory_functions.apply(gated, params, x), want, 1e-4)


@pytest.mark.clause("MEMFUN-10")
def test_compressing_to_the_first_features_reads_no_other() -> None:
    function = FUNCTIONS["geglu compress"]
    params, x, _ = drawn(function)
    params["W_compress"] = np.eye(4, 9)
    wide = {name: array for name, array in params.items() if name != "W_compress"}
    for name in ("W_in", "W_value"):
        wide[name] = np.concatenate([params[name], np.zeros((12, 5))], axis=-1)
    want = memory_functions.apply(function.replaced(compress=None), wide, x)
    assert_close("y", memory_functions.apply(function, params, x), want, ANALYTIC)
    wide["W_in"][:, 5] = 0.1
    other = memory_functions.apply(function.replaced(compress=None), wide, x)
    assert_differs("twin", other, want, 1e-3)


@pytest.mark.clause("MEMFUN-10")
def test_a_norm_of_one_feature_leaves_nothing_of_the_argument() -> None:
    function = MemoryFunction(kind="polynomial", key_width=1, degree=1)
    params, x, gy = drawn(function)
    y = memory_functions.apply(function, params, x)
    assert_close("y", y, np.broadcast_to(y[0, 0, 0], y.shape), EXACT)
    _, gx = memory_functions.gradient(function, params, x, gy)
    assert not gx.any()
    wider = function.replaced(degree=2)
    y = memory_functions.apply(wider, drawn(wider).params, x)
    assert_differs("twin", y, np.broadcast_to(y[0, 0, 0], y.shape), 1e-2)


@pytest.mark.clause("MEMFUN-4")
def test_at_the_start_the_eps_of_the_norms_is_not_negligible() -> None:
    function = MemoryFunction(kind="polynomial", key_width=16)
    params, x = initial(function, 64, 64, seed=0), np.random.default_rng(0).standard_normal((9, 64))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    pieces = memory_functions.pieces(function, params, x)
    assert 2e-5 < np.mean(np.var(pieces["features"], axis=-1)) < 8e-5
    assert 1e-6 < np.mean(np.var(pieces["e"], axis=-1)) < 4e-6
    ten = memory_functions.apply(function, params, 10.0 * x)
    assert_differs("M(10 x)", ten, pieces["y"], 0.4)


@pytest.mark.clause("MEMFUN-5")
def test_the_forms_of_gelu_differ_by_up_to_5e_4() -> None:
    a = np.linspace(-6.0, 6.0, 12001)
    gap = np.abs(a * (share("gelu", a) - share("gelu_tanh", a)))
    assert 4.7e-4 < gap.max() < 4.8e-4
    assert abs(abs(a[gap.argmax()]) - 2.70) < 0.01


@pytest.mark.clause("MEMFUN-5")
def test_recorded_memories_are_those_of_the_error_function_alone() -> None:
    for name in names("mag_memory_"):
        file = recorded(name)
        params, x = file.roles("in/param/"), file.tensors["in/x"]
        function = polynomial(file.config).replaced(activation="gelu_tanh")
        y = memory_functions.apply(function, params, x)
        assert_differs(name, y, file.tensors["out/y"], 1e-7)


@pytest.mark.host("counts products of NumPy")
@pytest.mark.clause("MEMFUN-11")
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "one entry"])
def test_a_result_costs_an_entry_of_each_matrix_and_a_gradient_twice_that(name: str) -> None:
    function = FUNCTIONS[name]
    given = drawn(function, n=5)
    params = {each: counted(array) for each, array in given.params.items()}
    x, tokens = counted(given.x), given.x.size // 4
    sizes = [int(np.prod(shape)) for shape in tensors(function, 4, 4).values() if len(shape) == 2]
    entries = tokens * sum(sizes)
    assert multiply_adds(lambda: memory_functions.apply(function, params, x)) == entries
    of_pairs = tokens * (function.key_width or 0) ** 2 if function.degree == 2 else 0
    ends_in_norm = function.kind == "polynomial" or function.residual_norm
    inside = entries if ends_in_norm else entries - tokens * sizes[-1]
    both = multiply_adds(lambda: memory_functions.gradient(function, params, x, given.gy))
    assert both == 2 * entries + inside + of_pairs
    value = memory_functions.forward(function, params, x)
    shared = multiply_adds(
        lambda: memory_functions.gradient(function, params, x, given.gy, of=value)
    )
    assert shared == 2 * entries + of_pairs
