"""Outer gradients of a deep memory in their four readings, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tape import check, grad, ops
from tests.support import deep_memories as deep
from tests.support.close import ANALYTIC, assert_close, relative_error, reordered
from tests.truth import deep_memory_loops as loops

DRAWN = range(24)
NAMES = ("k", "v", "q")


def choice_of(number: int, **fixed: Any) -> dict[str, Any]:
    """A drawn choice that writes."""
    return deep.drawn(number, **({"phase": "both"} | fixed))


def cotangents(state: Any, y: Any, rows: int) -> dict[str, Any]:
    """Of the reads, and of W and S of each row."""
    rng = np.random.default_rng(3)
    names: dict[str, Any] = {"y": y.shape}
    for kind, tensors in (("memory", state.weights), ("momentum", state.momentum)):
        names |= {f"{kind}/{name}": (rows, *x.shape[1:]) for name, x in tensors.items()}
    return {name: rng.standard_normal(shape) for name, shape in names.items()}


def gradients(settings: Any, given: deep.Inputs, bars: dict[str, Any]) -> dict[str, Any]:
    """Gradients of the contraction with the cotangents, by the tape."""

    def loss(at: dict[str, Any]) -> Any:
        moved = given._replace(
            **{name: at[name] for name in NAMES},
            gates={name: at[f"gate/{name}"] for name in given.gates},
            tensors={name: at[f"tensor/{name}"] for name in given.tensors},
        )
        state, y = deep.run(settings, moved)
        total = ops.sum(y * bars["y"])
        for kind, tensors in (("memory", state.weights), ("momentum", state.momentum)):
            for name, x in tensors.items():
                total = total + ops.sum(x * bars[f"{kind}/{name}"])
        return total

    inputs = {name: getattr(given, name) for name in NAMES}
    inputs |= {f"gate/{name}": x for name, x in given.gates.items()}
    inputs |= {f"tensor/{name}": x for name, x in given.tensors.items()}
    result: dict[str, Any] = grad(loss)(inputs)
    return result


def nudged(settings: Any, given: deep.Inputs, bars: dict[str, Any]) -> dict[str, float]:
    """Relative change of each gradient by a relative change of 1e-8 of the keys."""
    noise = np.random.default_rng(5).standard_normal(given.k.shape)
    a = gradients(settings, given, bars)
    b = gradients(settings, given._replace(k=given.k * (1.0 + 1e-8 * noise)), bars)
    return {name: relative_error(b[name], a[name]) / 1e-8 for name in a}


def compared(number: int, reading: str, **fixed: Any) -> None:
    choice = choice_of(number, **fixed)
    given = deep.inputs(choice, tokens=8, seed=number)
    settings = deep.config(choice, outer_gradient=reading)
    state, y = deep.run(settings, given)
    bars = cotangents(state, y, len(given.k))
    found = gradients(settings, given, bars)
    amplified = nudged(settings, given, bars)
    gates = deep.kept(choice, given)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    how = {"reset": reset, "calls": given.calls}
    own = deep.of_loops(choice)
    plain = (given.tensors, given.k, given.v, given.q, gates)
    if reading in ("straight_through", "none"):
        want = loops.outer(own | {"outer_gradient": reading}, *plain, bars, **how)
        for name, g in found.items():
            other = want.get(name.removeprefix("tensor/"))
            assert other is not None or name.startswith("gate/")
            if name.startswith("gate/"):
                assert not np.any(g), name
            else:
                assert_close(
                    name, g, other, reordered(64, amplification=max(10.0, amplified[name]))
                )
        return
    log = loops.driven(own, *plain, **how).log if reading == "first_order" else None
    rng = np.random.default_rng(9)
    for name, g in found.items():
        kind, short = ("gate" if name.startswith("gate/") else "", name.split("/", 1)[-1])
        way = rng.standard_normal(g.shape)
        if kind == "gate" and choice["coupling"] == "batch_shared" and short != "window_gate":
            way = np.broadcast_to(way[:1], way.shape)  # of the rows that share it
        step = -way if short == "retain" and choice["gate"] == "forget" else way
        if gates.get(short) is not None and kind == "gate" and gates[short].ndim == 1:
            step = step[0]
        slope = loops.along(own, *plain, bars, {short: step}, **how, constant=log)
        along = float(np.sum(g * way))
        size = float(np.linalg.norm(g) * np.linalg.norm(way)) or 1.0
        bound = reordered(64, amplification=max(100.0, amplified[name])).bound
        assert bound is not None
        assert abs(along - slope) <= bound * size, f"{name}: {along} against {slope}"


@pytest.mark.sample(30)
@pytest.mark.host("plain loops of the tests")
@pytest.mark.clause("DEEP-18", "DEEP-19", "DEEP-20", "DEEP-21")
@pytest.mark.parametrize("reading", ["full", "first_order", "straight_through", "none"])
@pytest.mark.parametrize("number", DRAWN)
def test_outer_gradients_are_those_of_plain_loops(number: int, reading: str) -> None:
    compared(number, reading)


@pytest.mark.clause("DEEP-18")
@pytest.mark.parametrize("memory", ["linear", "mlp", "mlp_residual", "polynomial", "geglu"])
def test_full_gradients_pass_the_complex_step(memory: str) -> None:
    choice = choice_of(
        1, memory=memory, chunk=2, window=3, newton_schulz=3, fast="all", clip="none"
    )
    choice |= {
        "vectors": "unit",
        "read": "after",
        "calls": False,
        "span": "chunk",
        "adaptive": True,
    }
    given = deep.inputs(choice, batch=1, tokens=5)
    settings = deep.config(choice)

    def loss(at: dict[str, Any]) -> Any:
        _, y = deep.run(settings, given._replace(k=at["k"], tensors=at["tensors"]))
        return ops.sum(y * y)

    check.check_gradient(loss, {"k": given.k, "tensors": given.tensors})


@pytest.mark.clause("DEEP-18")
def test_full_gradients_of_the_error_function_pass_differences() -> None:
    choice = choice_of(1, memory="mlp_erf", chunk=2, window=3, newton_schulz=3, fast="all")
    choice |= {"vectors": "raw", "read": "after", "clip": "none", "calls": False}
    given = deep.inputs(choice, batch=1, tokens=5)
    settings = deep.config(choice)

    def loss(k: Any) -> Any:
        return ops.sum(deep.run(settings, given._replace(k=k))[1] ** 2)

    got = grad(loss)(given.k)
    want = check.central_difference(loss, given.k)
    assert relative_error(got, want) < 1e-6


@pytest.mark.clause("DEEP-19", "DEEP-20")
def test_the_readings_differ() -> None:
    choice = choice_of(1, memory="mlp", chunk=2, window=3, calls=False, coupling="per_sample")
    given = deep.inputs(choice)
    found = {}
    for reading in ("full", "first_order", "straight_through", "none"):
        settings = deep.config(choice, outer_gradient=reading)
        state, y = deep.run(settings, given)
        found[reading] = gradients(settings, given, cotangents(state, y, len(given.k)))
    first = "tensor/W_1"
    kinds = list(found)
    for i, a in enumerate(kinds):
        for b in kinds[i + 1 :]:
            assert relative_error(found[a][first], found[b][first]) > 1e-3, (a, b)
    assert not np.any(found["none"][first])


@pytest.mark.clause("DEEP-18")
def test_no_reading_changes_a_number() -> None:
    choice = choice_of(1)
    given = deep.inputs(choice)
    want = deep.run(deep.config(choice), given)[1]
    for reading in ("first_order", "straight_through", "none"):
        y = deep.run(deep.config(choice, outer_gradient=reading), given)[1]
        assert_close(reading, y, want, ANALYTIC)
        assert np.array_equal(y, want)
