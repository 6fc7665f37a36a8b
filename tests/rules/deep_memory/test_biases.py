"""Attentional biases of a deep memory against loops, their losses, and the complex step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.deep.biases import plainly
from atlas_ref.oracle.deep.biases import slope as plain_slope
from atlas_ref.parts.biases import Bias, half_slope, residual
from atlas_ref.rules import deep_memory
from tape import grad, ops
from tests.rules.deep_memory.test_against_loops import amplified
from tests.support import deep_memories as deep
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.truth import bias_loops
from tests.truth import deep_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

#: Every kind with every reading that the paper leaves open, by a name.
BIASES: dict[str, dict[str, Any]] = {
    "l2": {"kind": "l2"},
    "l1 tanh": {"kind": "l1"},
    "l1 root": {"kind": "l1", "smoothing": "root", "eps": 1e-2},
    "l1 sign": {"kind": "l1", "smoothing": "none"},
    "lp tanh": {"kind": "lp", "sharpness": 3.0},
    "lp root": {"kind": "lp", "power": 1.5, "smoothing": "root", "eps": 1e-3},
    "lp exact": {"kind": "lp", "power": 4.0, "smoothing": "none"},
    "lp of 2": {"kind": "lp", "power": 2.0, "smoothing": "none"},
    "lp of 1.5": {"kind": "lp", "power": 1.5, "smoothing": "none"},
    "huber coordinate": {"kind": "huber", "form": "coordinate", "smoothing": "none"},
    "huber coordinate tanh": {"kind": "huber", "form": "coordinate", "threshold": 0.5},
    "huber norm": {"kind": "huber", "form": "norm"},
    "huber norm whole": {"kind": "huber", "form": "norm", "quadratic": "whole"},
    "huber mixture": {"kind": "huber"},
    "huber mixture whole": {"kind": "huber", "quadratic": "whole", "smoothing": "none"},
    "huber mixture root": {"kind": "huber", "threshold": 2.0, "smoothing": "root"},
    "kl": {"kind": "kl"},
    "kl given": {"kind": "kl", "targets": "given"},
}

#: Those whose gradient is that of one loss, without a step in it.
WITH_LOSS = (
    *("l1 root", "l1 sign", "lp root", "lp exact", "lp of 2", "lp of 1.5"),
    *("huber coordinate", "huber norm", "kl", "kl given"),
)


def drawn(count: int = 12, d: int = 3) -> tuple[Any, Any]:
    """Predictions and values: small and large errors, values above 0."""
    rng = np.random.default_rng(3)
    return rng.standard_normal((count, d)), rng.uniform(0.1, 2.0, (count, d))


def slope(bias: dict[str, Any], y: Any, v: Any) -> Any:
    own = Bias(**bias)
    return 2.0 * half_slope(own, residual(own, y, v))


@pytest.mark.clause("DEEP-26", "DEEP-27", "DEEP-28", "DEEP-29")
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_the_slope_is_that_of_loops_over_entries(bias: dict[str, Any]) -> None:
    y, v = drawn()
    want = np.array([bias_loops.slope(a, b, **bias) for a, b in zip(y, v, strict=True)])
    assert_close("slope", slope(bias, y, v), want, reordered(8))


@pytest.mark.clause("DEEP-27", "DEEP-28", "DEEP-29")
@pytest.mark.parametrize("name", WITH_LOSS)
def test_the_slope_is_the_complex_step_of_the_loss(name: str) -> None:
    bias, (y, v) = BIASES[name], drawn()
    for a, b, got in zip(y, v, slope(bias, y, v), strict=True):
        ways = 1e-40j * np.eye(len(a))
        want = [np.imag(bias_loops.loss(a + way, b, **bias)) / 1e-40 for way in ways]
        assert_close("slope", got, np.array(want), ANALYTIC)


@pytest.mark.clause("DEEP-27", "DEEP-28", "DEEP-29")
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_the_derivative_of_the_slope_is_its_complex_step(bias: dict[str, Any]) -> None:
    """Away from thresholds and zeros, where every piece is analytic."""
    y, v = drawn()
    bar = np.random.default_rng(4).standard_normal(y.shape)
    got = grad(lambda at: ops.sum(bar * slope(bias, at["y"], at["v"])))({"y": y, "v": v})
    for name, x in (("y", y), ("v", v)):
        way = np.random.default_rng(5).standard_normal(x.shape)
        moved = {"y": y, "v": v} | {name: x + 1e-40j * way}
        rows = zip(moved["y"], moved["v"], bar, strict=True)
        total = sum(np.sum(w * bias_loops.slope(a, b, **bias)) for a, b, w in rows)
        want = np.imag(total) / 1e-40
        assert abs(np.sum(got[name] * way) - want) <= 1e-12 * np.sum(np.abs(got[name] * way))


@pytest.mark.clause("DEEP-27", "DEEP-28", "DEEP-29")
@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-12, 1e60], ids=str)
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_slopes_and_their_derivatives_are_finite_at_the_edges(
    bias: dict[str, Any], size: float
) -> None:
    y, v = size * np.array([[1.0, -1.0, 0.0]]), np.zeros((1, 3))
    value = slope(bias, y, v)
    by_y = grad(lambda at: ops.sum(slope(bias, at, v)))(y)
    assert np.isfinite(value).all()
    assert np.isfinite(by_y).all()
    if size == 0.0 and bias["kind"] != "kl":
        assert not value.any()


#: The slope of an error (x, -2 x, 0) far beyond every eps and threshold, for x above 0.
FAR: dict[str, Any] = {
    "l1 root": lambda x: np.array([1.0, -1.0, 0.0]),
    "lp root": lambda x: 1.5 * np.sqrt(x) * np.array([1.0, -np.sqrt(2.0), 0.0]),
    "lp of 1.5 tanh": lambda x: 1.5 * np.sqrt(x) * np.array([1.0, -np.sqrt(2.0), 0.0]),
    "lp of 1.5": lambda x: 1.5 * np.sqrt(x) * np.array([1.0, -np.sqrt(2.0), 0.0]),
    "huber norm": lambda x: np.array([1.0, -2.0, 0.0]) / np.sqrt(5.0),
    "huber mixture root": lambda x: np.array([2.0, -2.0, 0.0]),
}
MORE = {"lp of 1.5 tanh": {"kind": "lp", "power": 1.5}}


@pytest.mark.clause("DEEP-27", "DEEP-28")
@pytest.mark.parametrize(("dtype", "size"), [("float64", 1e170), ("float32", 1e25)])
@pytest.mark.parametrize("name", FAR)
def test_errors_whose_squares_overflow_have_the_slope_of_the_clause(
    name: str, dtype: str, size: float
) -> None:
    """It was 0 where a square was infinite: a token with a huge error wrote nothing."""
    bias = (BIASES | MORE)[name]
    e = np.array([[size, -2.0 * size, 0.0]], dtype)
    want, unit = FAR[name](np.float64(size))[None], np.finfo(dtype).eps
    v = np.zeros_like(e)
    for got in (slope(bias, e, v), 2.0 * plain_slope(Bias(**bias), lambda x: x, e, None, plainly)):
        assert got.dtype == dtype
        assert (np.abs(got - want) <= 8 * unit * np.abs(want)).all()
    assert np.isfinite(grad(lambda at: ops.sum(slope(bias, at, v)))(e)).all()


@pytest.mark.clause("DEEP-27")
@pytest.mark.parametrize(("dtype", "size"), [("float64", 1e-210), ("float32", 1e-30)])
def test_a_power_without_smoothing_has_its_derivative_at_tiny_errors(
    dtype: str, size: float
) -> None:
    e = np.array([[size, -size]], dtype)
    bias = {"kind": "lp", "power": 1.5, "smoothing": "none"}
    got = grad(lambda at: ops.sum(slope(bias, at, np.zeros_like(e))))(e)
    want = 0.75 / np.sqrt(np.float64(size))
    assert (np.abs(got - want) <= 8 * np.finfo(dtype).eps * want).all()


@pytest.mark.clause("DEEP-27")
def test_a_power_of_2_is_l2_and_a_power_of_1_is_l1_also_in_its_slope_at_no_error() -> None:
    y, v = drawn()
    y[0] = v[0]
    for power, smoothing, other in (
        (2.0, "none", {"kind": "l2"}),
        (1.0, "tanh", {"kind": "l1"}),
        (1.0, "none", {"kind": "l1", "smoothing": "none"}),
    ):
        bias = {"kind": "lp", "power": power, "smoothing": smoothing}
        assert_close("slope", slope(bias, y, v), slope(other, y, v), reordered(4))
        one, two = (grad(lambda at, b=b: ops.sum(slope(b, at, v)))(y) for b in (bias, other))
        assert_close("its slope", one, two, reordered(4))


@pytest.mark.clause("DEEP-28")
@pytest.mark.parametrize("form", ["coordinate", "norm", "mixture"])
def test_the_threshold_itself_belongs_to_the_parabola(form: str) -> None:
    e, v = np.array([[0.5, 0.0]]), np.zeros((1, 2))
    for quadratic, factor in (("half", 1.0), ("whole", 2.0)):
        bias = {"kind": "huber", "form": form, "threshold": 0.5, "quadratic": quadratic}
        assert_close("at it", slope(bias, e, v), factor * e, EXACT)
        beyond = slope(bias, e * (1.0 + 1e-12), v)
        near = 0.5 if form == "norm" else 0.5 * np.tanh(5.0)
        assert_close("beyond", beyond[:, :1], np.array([[near]]), reordered(64))


@pytest.mark.clause("DEEP-28")
def test_forms_agree_on_one_entry_and_differ_on_several() -> None:
    one, many = drawn(8, 1), drawn(8, 3)
    forms = [{"kind": "huber", "form": "norm"}]
    forms += [{"kind": "huber", "form": f, "smoothing": "none"} for f in ("coordinate", "mixture")]
    for other in forms[1:]:
        assert_close("one", slope(other, *one), slope(forms[0], *one), reordered(4))
        assert_differs("many", slope(other, *many), slope(forms[0], *many), 1e-2)
    assert_differs("two", slope(forms[1], *many), slope(forms[2], *many), 1e-2)


@pytest.mark.clause("DEEP-26")
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("name", [each for each in BIASES if each != "l2"])
def test_reads_and_states_are_those_of_plain_loops(name: str, number: int) -> None:
    choice = deep.drawn(800 + number)
    given, bias = deep.inputs(choice, seed=number), BIASES[name]
    tolerance = amplified(choice, given, bias=bias)
    state, y = deep.run(deep.config(choice, bias=bias), given)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    rows = (given.tensors, given.k, given.v, given.q, deep.kept(choice, given))
    want, after = loops.run(deep.of_loops(choice, bias=bias), *rows, reset=reset, calls=given.calls)
    assert_close("y", y, want, tolerance)
    for kind, tensors in (("memory", state.weights), ("momentum", state.momentum)):
        for each, tensor in tensors.items():
            full = np.broadcast_to(tensor, after[f"{kind}/{each}"].shape)
            assert_close(f"{kind}/{each}", full, after[f"{kind}/{each}"], tolerance)


def plain(memory: str = "mlp", **more: Any) -> dict[str, Any]:
    """A choice without what amplifies roundings."""
    fixed = {"phase": "both", "calls": False, "documents": False, "newton_schulz": 0}
    fixed |= {"clip": "none", "adaptive": False, "vectors": "raw", "momentum": True}
    return deep.drawn(3, memory=memory, coupling="per_sample", **(fixed | more))


@pytest.mark.clause("DEEP-18", "DEEP-26")
@pytest.mark.parametrize("memory", ["linear", "mlp"])
@pytest.mark.parametrize("name", [each for each in BIASES if each != "l2"])
def test_outer_gradients_are_complex_steps_of_plain_loops(name: str, memory: str) -> None:
    """Of pieces that are analytic: no error of these tokens is at a threshold or zero."""
    bias, choice = BIASES[name], plain(memory, chunk=1, window=3, read="after")
    given = deep.inputs(choice, tokens=6)
    config, gates = deep.config(choice, bias=bias), deep.kept(choice, given)
    bar = np.random.default_rng(2).standard_normal(given.v.shape)

    def loss(at: Any) -> Any:
        moved = given._replace(k=at["k"], v=at["v"], tensors=at["tensors"])
        return ops.sum(bar * deep.run(config, moved)[1])

    got = grad(loss)({"k": given.k, "v": given.v, "tensors": given.tensors})
    rng = np.random.default_rng(7)
    for label, x in {"k": got["k"], "v": got["v"], **got["tensors"]}.items():
        way = rng.standard_normal(x.shape)
        rows = (given.tensors, given.k, given.v, given.q, gates, {"y": bar})
        want = loops.along(deep.of_loops(choice, bias=bias), *rows, {label: way})
        size = np.linalg.norm(x) * np.linalg.norm(way)
        assert abs(np.sum(x * way) - want) <= 1e-11 * size, label


@pytest.mark.clause("DEEP-26")
def test_each_bias_moves_the_memory_its_own_way() -> None:
    choice = plain(chunk=1, window=2, read="after")
    given = deep.inputs(choice)
    given.gates["step_size"] *= 0.1  # a fourth power of large errors runs away
    given = given._replace(v=0.5 * given.v)  # some norms are below the thresholds
    reads = {n: deep.run(deep.config(choice, bias=b), given)[1] for n, b in BIASES.items()}
    for name, y in reads.items():
        for other, z in reads.items():
            if name < other and {name, other} != {"l2", "lp of 2"}:
                assert_differs(f"{name}, {other}", y, z, 1e-9)


@pytest.mark.clause("DEEP-26", "DEEP-29")
@pytest.mark.parametrize(
    ("bias", "words"),
    [
        ({"kind": "l1", "power": 2.0}, "power: 2.0 belongs to kind lp, found kind l1"),
        (
            {"kind": "l2", "smoothing": "root"},
            "smoothing: 'root' belongs to kind l1 or lp or huber",
        ),
        ({"kind": "kl", "threshold": 2.0}, "threshold: 2.0 belongs to kind huber, found kind kl"),
        ({"kind": "l1", "eps": 1e-3}, "eps: 0.001, but nothing is smoothed by it here"),
        (
            {"kind": "l1", "smoothing": "none", "sharpness": 2.0},
            "sharpness: 2.0, but nothing is smoothed by it here",
        ),
        (
            {"kind": "huber", "form": "norm", "smoothing": "root"},
            "smoothing: 'root', but form norm has no sign",
        ),
        ({"kind": "lp", "power": 0.5}, "greater than or equal to 1"),
        ({"kind": "huber", "threshold": 0.0}, "greater than 0"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(bias: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        deep_memory.Config(d_in=3, d_out=3, bias=bias)


@pytest.mark.clause("DEEP-29")
def test_a_distribution_has_no_opposite() -> None:
    with pytest.raises(ValueError, match="bias: kl compares two distributions"):
        deep_memory.Config(d_in=3, d_out=3, bias={"kind": "kl"}, convention={"value_sign": "plus"})
