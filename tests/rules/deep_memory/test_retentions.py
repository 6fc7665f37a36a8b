"""Retentions of a deep memory against loops, and the complex step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.parts.retentions import Retention, decaying, kept, mapped
from atlas_ref.rules import deep_memory, sequence
from tape import grad, ops
from tests.rules.deep_memory.test_against_loops import amplified
from tests.rules.deep_memory.test_properties import tokens_of
from tests.support import deep_memories as deep
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.truth import deep_memory_loops as loops
from tests.truth import retention_loops

pytestmark = pytest.mark.host("plain loops of the tests")

#: Every kind with every reading that the paper leaves open, by a name.
RETENTIONS: dict[str, dict[str, Any]] = {
    "l2": {"kind": "l2"},
    "elastic net": {"kind": "elastic_net", "threshold": 0.05},
    "kl of the matrix": {"kind": "kl", "size": 3.0},
    "kl of rows": {"kind": "kl", "over": "row"},
    "kl of columns": {"kind": "kl", "over": "column", "size": 2.0},
    "sphere": {"kind": "sphere", "size": 2.0},
    "sphere of rows": {"kind": "sphere", "over": "row"},
    "sphere of columns": {"kind": "sphere", "over": "column"},
    "ftrl": {"kind": "ftrl", "threshold": 0.05},
    "lq printed": {"kind": "lq"},
    "lq dual": {"kind": "lq", "link": "dual"},
    "lq mirror": {"kind": "lq", "link": "mirror"},
    "lq mirror of 1.5": {"kind": "lq", "link": "mirror", "power": 1.5},
}
OTHERS = [each for each in RETENTIONS if each != "l2"]
STEP = 1e-40


def drawn() -> tuple[Any, Any, float]:
    """Positive weights, a step, and a retain gate."""
    rng = np.random.default_rng(6)
    return rng.uniform(0.1, 1.0, (3, 4)), 0.5 * rng.standard_normal((3, 4)), 0.9


def written(own: dict[str, Any], W: Any, step: Any, retain: Any) -> Any:
    retention = Retention(**own)
    return kept(retention, W, retain * decaying(retention, W) - step)


@pytest.mark.clause("DEEP-30", "DEEP-31", "DEEP-32", "DEEP-33")
@pytest.mark.parametrize("own", RETENTIONS.values(), ids=RETENTIONS)
def test_weights_after_a_write_and_behind_the_map_are_those_of_loops(own: dict[str, Any]) -> None:
    W, step, retain = drawn()
    want = retention_loops.written(W, retain, step, **own)
    assert_close("W", written(own, W, step, retain), want, reordered(16))
    A = W - 0.5
    assert_close("m(A)", mapped(Retention(**own), A), retention_loops.seen(A, **own), reordered(16))


@pytest.mark.clause("DEEP-30", "DEEP-31", "DEEP-32", "DEEP-33")
@pytest.mark.parametrize("own", RETENTIONS.values(), ids=RETENTIONS)
def test_derivatives_are_complex_steps_of_loops(own: dict[str, Any]) -> None:
    """Away from thresholds and zeros, where every piece is analytic."""
    W, step, retain = drawn()
    bar = np.random.default_rng(4).standard_normal(W.shape)
    at = {"W": W, "step": step, "A": W - 0.5}

    def loss(at: Any) -> Any:
        after = written(own, at["W"], at["step"], retain)
        return ops.sum(bar * after) + ops.sum(bar * mapped(Retention(**own), at["A"]))

    got = grad(loss)(at)
    for name, x in at.items():
        way = np.random.default_rng(5).standard_normal(x.shape)
        moved = {each: a + 0j for each, a in at.items()} | {name: x + STEP * 1j * way}
        after = retention_loops.written(moved["W"], retain, moved["step"], **own)
        total = np.sum(bar * after) + np.sum(bar * retention_loops.seen(moved["A"], **own))
        size = np.sum(np.abs(got[name] * way))
        assert abs(np.sum(got[name] * way) - np.imag(total) / STEP) <= 1e-12 * size, name


@pytest.mark.clause("DEEP-31", "DEEP-32", "DEEP-33")
@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-12, 1.0, 1e100], ids=str)
@pytest.mark.parametrize("own", RETENTIONS.values(), ids=RETENTIONS)
def test_weights_and_derivatives_are_finite_at_the_edges(own: dict[str, Any], size: float) -> None:
    """Zeros among the weights, weights that are all zero, and exponents far beyond exp."""
    if own["kind"] == "lq" and own.get("link") != "mirror" and size not in (0.0, 1e-12, 1.0):
        size = 1e-60 if size < 1.0 else 1e60  # m(A) itself is of another power of A
    W, step = size * np.array([[1.0, 0.0, 2.0]]), np.array([[1.0, -3.0, 2.0]])
    for scale in (0.0, 1.0, 1e4):

        def both(at: Any, scale: float = scale) -> Any:
            after = written(own, at, scale * step, 0.9)
            return ops.sum(after) + ops.sum(mapped(Retention(**own), at))

        assert np.isfinite(both(W))
        assert np.isfinite(grad(both)(W)).all()


@pytest.mark.clause("DEEP-32")
@pytest.mark.parametrize("over", ["matrix", "row", "column"])
def test_weights_add_up_to_the_size_and_zeros_stay_zeros(over: str) -> None:
    W, step, retain = drawn()
    W[1, 2] = 0.0
    axes = {"matrix": (0, 1), "row": 1, "column": 0}[over]
    after = written({"kind": "kl", "over": over, "size": 2.0}, W, 300.0 * step, retain)
    total = np.sum(after, axis=axes)
    assert_close("sum", total, np.full_like(total, 2.0), reordered(8))
    assert after[1, 2] == 0.0
    nothing = written({"kind": "kl", "over": over}, 0.0 * W, step, retain)
    assert not nothing.any()


@pytest.mark.clause("DEEP-31")
@pytest.mark.parametrize("over", ["matrix", "row", "column"])
def test_weights_lie_on_the_sphere(over: str) -> None:
    W, step, retain = drawn()
    axes = {"matrix": (0, 1), "row": 1, "column": 0}[over]
    after = written({"kind": "sphere", "over": over, "size": 2.0}, W, step, retain)
    length = np.sqrt(np.sum(after**2, axis=axes))
    assert_close("length", length, np.full_like(length, 2.0), reordered(8))


@pytest.mark.clause("DEEP-33")
def test_a_power_of_2_is_l2_and_the_mirror_is_the_gradient_of_half_the_squared_norm() -> None:
    W, _, _ = drawn()
    A = W - 0.5
    for each in ("printed", "dual", "mirror"):
        of_two = mapped(Retention(kind="lq", power=2.0, link=each), A)
        assert_close(each, of_two, A, reordered(8))
    for q in (1.5, 3.0, 4.0):
        p = q / (q - 1.0)

        def half(A: Any, p: float = p) -> Any:
            return 0.5 * ops.sum(ops.absolute(A) ** p) ** (2.0 / p)

        got = mapped(Retention(kind="lq", power=q, link="mirror"), A)
        assert_close("mirror", got, grad(half)(A), reordered(64))


def positive(given: deep.Inputs, own: dict[str, Any]) -> deep.Inputs:
    """Inputs whose matrices have logarithms, where the retention takes them."""
    if own["kind"] != "kl":
        return given
    tensors = {n: np.exp(x) if np.ndim(x) == 2 else x for n, x in given.tensors.items()}
    return given._replace(tensors=tensors)


@pytest.mark.clause("DEEP-30", "DEEP-33")
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("name", OTHERS)
def test_reads_and_states_are_those_of_plain_loops(name: str, number: int) -> None:
    choice, own = deep.drawn(900 + number), RETENTIONS[name]
    given = positive(deep.inputs(choice, seed=number), own)
    tolerance = amplified(choice, given, retention=own)
    state, y = deep.run(deep.config(choice, retention=own), given)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    rows = (given.tensors, given.k, given.v, given.q, deep.kept(choice, given))
    settings = deep.of_loops(choice, retention=own)
    want, after = loops.run(settings, *rows, reset=reset, calls=given.calls)
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


@pytest.mark.clause("DEEP-18", "DEEP-19", "DEEP-30", "DEEP-33")
@pytest.mark.parametrize("kind", ["full", "first_order"])
@pytest.mark.parametrize("memory", ["linear", "mlp"])
@pytest.mark.parametrize("name", OTHERS)
def test_outer_gradients_are_complex_steps_of_plain_loops(
    name: str, memory: str, kind: str
) -> None:
    own, choice = RETENTIONS[name], plain(memory, chunk=1, window=3, read="after")
    given = positive(deep.inputs(choice, tokens=6), own)
    config = deep.config(choice, retention=own, outer_gradient=kind)
    bar = np.random.default_rng(2).standard_normal(given.v.shape)

    def loss(at: Any) -> Any:
        gates = given.gates | {"retain": at["retain"], "step_size": at["step_size"]}
        moved = given._replace(k=at["k"], gates=gates, tensors=at["tensors"])
        return ops.sum(bar * deep.run(config, moved)[1])

    gates = deep.kept(choice, given)
    own_gates = {name: given.gates[name] for name in ("retain", "step_size")}
    got = grad(loss)({"k": given.k, "tensors": given.tensors, **own_gates})
    sign = {"retain": -1.0} if choice["gate"] == "forget" else {}
    rng = np.random.default_rng(7)
    settings = deep.of_loops(choice, retention=own)
    rows = (given.tensors, given.k, given.v, given.q, gates)
    log = loops.driven(settings, *rows).log if kind == "first_order" else None
    for label, x in {**{n: x for n, x in got.items() if n != "tensors"}, **got["tensors"]}.items():
        way = rng.standard_normal(x.shape)
        want = loops.along(settings, *rows, {"y": bar}, {label: way}, constant=log)
        size = np.linalg.norm(x) * np.linalg.norm(way)
        assert abs(sign.get(label, 1.0) * np.sum(x * way) - want) <= 1e-11 * max(size, 1e-9), label


@pytest.mark.clause("DEEP-30")
def test_each_retention_moves_the_memory_its_own_way() -> None:
    choice = plain(chunk=1, window=2, read="after")
    given = positive(deep.inputs(choice), {"kind": "kl"})
    given.gates["step_size"] *= 0.1
    reads = {n: deep.run(deep.config(choice, retention=b), given)[1] for n, b in RETENTIONS.items()}
    for name, y in reads.items():
        for other, z in reads.items():
            if name < other:
                assert_differs(f"{name}, {other}", y, z, 1e-6)


@pytest.mark.clause("DEEP-30")
@pytest.mark.parametrize("name", RETENTIONS)
def test_vectors_decay_as_under_l2(name: str) -> None:
    own, choice = RETENTIONS[name], plain("mlp_residual", fast="all", chunk=1, read="after")
    given = positive(deep.inputs(choice, tokens=3), own)
    given.gates["step_size"][:] = 0.0
    want = given.tensors["norm/gain"] * np.prod(deep.kept(choice, given)["retain"][0])
    choice["rate"] = "memory"
    state, _ = deep.run(deep.config(choice, retention=own), given)
    assert_close("gain", state.weights["norm/gain"][0], want, reordered(8))


@pytest.mark.clause("DEEP-33")
def test_a_state_carries_what_is_behind_the_map() -> None:
    """So that calls cut anywhere give the same numbers."""
    choice = plain(chunk=2, window=3, read="after", unfinished="wait", memory_reset="sequence")
    choice["momentum_reset"] = "sequence"
    for name in OTHERS:
        own = RETENTIONS[name]
        given, config = positive(deep.inputs(choice), own), deep.config(choice, retention=own)
        whole, y = deep.run(config, given)
        cut, z = deep.run(config, given._replace(calls=[3, 1, 9]))
        assert_close(f"y, {name}", y, z, reordered(64))
        assert_close(f"W, {name}", whole.weights["W_1"], cut.weights["W_1"], EXACT)


@pytest.mark.clause("DEEP-24", "DEEP-32")
def test_weights_below_0_have_no_logarithm() -> None:
    choice = plain("linear", chunk=1, read="after")
    given, config = deep.inputs(choice), deep.config(choice, retention={"kind": "kl"})
    with pytest.raises(ValueError, match="memory/W: has an entry below 0, retention kl"):
        deep.run(config, given)
    good = positive(given, {"kind": "kl"})
    state, _ = deep.run(config, good)
    bad = state.replaced(weights={"W": -state.weights["W"]})
    with pytest.raises(ValueError, match=r"state\.weights\.W: has an entry below 0"):
        sequence.run(deep_memory.RULE, config, tokens_of(good), bad, phi=good.tensors)


@pytest.mark.clause("DEEP-30")
@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"kind": "l2", "threshold": 2.0}, "threshold: 2.0 belongs to kind elastic_net or ftrl"),
        ({"kind": "lq", "over": "row"}, "over: 'row' belongs to kind kl or sphere, found kind lq"),
        ({"kind": "kl", "link": "dual"}, "link: 'dual' belongs to kind lq, found kind kl"),
        ({"kind": "lq", "power": 1.0}, "greater than 1"),
        ({"kind": "kl", "size": 0.0}, "greater than 0"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(own: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        deep_memory.Config(d_in=3, d_out=3, retention=own)
