"""Cases of deep memories against plain loops: every result, every gradient, calls that go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.evaluate import evaluate
from tests.support import deep_cases, deep_memories
from tests.support.close import ANALYTIC, assert_close, relative_error, reordered
from tests.truth import deep_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

#: Relative change of all keys that shows how a memory amplifies a rounding.
NUDGE = 1e-8


def nudged(header: Any, tensors: dict[str, Any], *, grad: bool = False) -> dict[str, float]:
    """Relative change of each result by a relative change of the keys, over that."""
    noise = np.random.default_rng(5).standard_normal(tensors["in/k"].shape)
    moved = {**tensors, "in/k": tensors["in/k"] * (1.0 + NUDGE * noise)}
    a, b = (evaluate(atlas_ref.make(header, each), grad=grad).tensors for each in (tensors, moved))
    return {name: relative_error(b[name], a[name]) / NUDGE for name in a}


def full(x: Any, rows: int) -> Any:
    """A tensor of the state for each row, where rows share a memory."""
    return np.broadcast_to(x, (rows, *x.shape[1:]))


@pytest.mark.clause(
    "DEEPCASE-1", "DEEPCASE-2", "DEEPCASE-3", "DEEPCASE-4", "DEEPCASE-5", "DEEPCASE-6"
)
@pytest.mark.parametrize("number", range(40))
def test_results_of_a_case_and_of_calls_that_go_on_are_those_of_plain_loops(number: int) -> None:
    choice = deep_memories.drawn(number)
    given = deep_memories.inputs(choice, seed=number)
    header, tensors = deep_cases.of_choice(choice, given)
    rows, first, state, reads = len(given.k), 0, {}, []
    results: dict[str, Any] = {}
    for length in given.calls:
        part = deep_cases.cut(tensors, first, first + length)
        results = evaluate(atlas_ref.make(header, part | state)).tensors
        reads.append(results["out/y"])
        state, first = deep_cases.resumed(results), first + length
    want, after = loops.run(
        deep_memories.of_loops(choice),
        given.tensors,
        given.k,
        given.v,
        given.q,
        deep_memories.kept(choice, given),
        reset=None if given.reset is None else np.tile(given.reset, (rows, 1)),
        calls=given.calls,
    )
    grown = nudged(header, tensors)
    tolerance = reordered(64, amplification=max(10.0, *grown.values()))
    assert_close("y", np.concatenate(reads, axis=-2), want, tolerance)
    of_loops = {"weights": "memory", "momentum": "momentum", "reference": "reference"}
    for name, x in results.items():
        kind, _, tensor = name.removeprefix("out/state/").partition("/")
        refreshes = (
            kind == "reference" and int(results["out/state/position"]) % (2 * choice["chunk"]) == 0
        )  # which the loops do at once, and ours at the next token
        if kind in of_loops and tensor and not refreshes:
            assert_close(name, full(x, rows), after[f"{of_loops[kind]}/{tensor}"], tolerance)
    assert ("out/state/momentum" in " ".join(results)) == choice["momentum"]
    assert ("out/state/reference" in " ".join(results)) == (choice["span"] != "chunk")


@pytest.mark.clause("DEEPCASE-7")
@pytest.mark.sample(24)
@pytest.mark.parametrize("number", range(24))
@pytest.mark.parametrize("reading", ["full", "first_order", "straight_through", "none"])
def test_gradients_of_a_case_are_those_of_plain_loops(number: int, reading: str) -> None:
    fixed = {"phase": "both", "calls": False}
    if deep_memories.drawn(number)["memory"] in ("mlp_erf",):
        fixed["memory"] = "mlp"
    choice = deep_memories.drawn(number, **fixed)
    given = deep_memories.inputs(choice, tokens=6, seed=number)
    header, tensors = deep_cases.of_choice(choice, given, outer_gradient=reading)
    rows, rng = len(given.k), np.random.default_rng(3)
    bars = {"y": rng.standard_normal(given.v.shape)}
    tensors["in/y_bar"] = bars["y"]
    for name, x in evaluate(atlas_ref.make(header, tensors)).tensors.items():
        kind, _, tensor = name.removeprefix("out/state/").partition("/")
        if kind in ("weights", "momentum") and tensor:
            bar = rng.standard_normal((rows, *x.shape[1:]))
            own = bar if len(x) == rows else bar.sum(axis=0, keepdims=True)
            tensors[f"in/state_bar/{kind}/{tensor}"] = own
            bars[f"{'memory' if kind == 'weights' else kind}/{tensor}"] = bar
    found = evaluate(atlas_ref.make(header, tensors), grad=True).tensors
    grown = nudged(header, tensors, grad=True)
    own = deep_memories.of_loops(choice)
    plain = (given.tensors, given.k, given.v, given.q, deep_memories.kept(choice, given))
    how: dict[str, Any] = {
        "reset": None if given.reset is None else np.tile(given.reset, (rows, 1))
    }
    inputs = {"k": given.k, "v": given.v, "q": given.q} | given.tensors
    names = {n: f"grad/memory/{n}" if n in given.tensors else f"grad/{n}" for n in inputs}
    if reading in ("straight_through", "none"):
        want = loops.outer(own | {"outer_gradient": reading}, *plain, bars, **how)
        for name, grad in names.items():
            bound = reordered(64, amplification=max(10.0, grown[grad]))
            assert_close(grad, found[grad], want[name], bound)
        return
    log = loops.driven(own, *plain, **how).log if reading == "first_order" else None
    for name, x in inputs.items():
        way = rng.standard_normal(np.shape(x))
        slope = loops.along(own, *plain, bars, {name: way}, **how, constant=log)
        size = np.linalg.norm(found[names[name]]) * np.linalg.norm(way)
        got = float(np.sum(found[names[name]] * way))
        assert abs(got - slope) <= 1e-12 * max(10.0, grown[names[name]]) * max(size, 1e-12), name


@pytest.mark.clause("DEEPCASE-7")
def test_gradients_by_a_state_are_those_of_differences() -> None:
    header, tensors = deep_cases.some(**deep_cases.FULL)
    for kind in ("weights", "momentum", "reference"):
        own = {n: x for n, x in tensors.items() if n.startswith(f"in/state/{kind}/")}
        assert own
        bars = np.random.default_rng(4)
        tensors |= {
            n.replace("in/state/", "in/state_bar/"): bars.standard_normal(x.shape)
            for n, x in own.items()
        }

    def loss(moved: dict[str, Any]) -> float:
        out = evaluate(atlas_ref.make(header, moved)).tensors
        total = np.sum(out["out/y"] * tensors["in/y_bar"])
        for name, x in out.items():
            bar = name.replace("out/state/", "in/state_bar/")
            total += np.sum(x * tensors[bar]) if bar in tensors else 0.0
        return float(total)

    found = evaluate(atlas_ref.make(header, tensors), grad=True).tensors
    gradients = {name for name in found if name.startswith("grad/")}
    floating = {n for n, x in tensors.items() if x.dtype.kind == "f" and "_bar" not in n}
    assert gradients == {f"grad/{n.removeprefix('in/')}" for n in floating}
    for grad in sorted(gradients):
        name = f"in/{grad.removeprefix('grad/')}"
        way = np.random.default_rng(7).standard_normal(tensors[name].shape)
        inside = 1.0 if "retain" not in name and name[3:] != "momentum" else 0.1
        up, down = (
            loss({**tensors, name: tensors[name] + h * inside * way}) for h in (1e-6, -1e-6)
        )
        slope = (up - down) / (2e-6 * inside)
        assert np.sum(found[grad] * way) == pytest.approx(slope, rel=2e-6, abs=2e-6), grad


@pytest.mark.clause("DEEPCASE-4")
def test_leading_axes_of_the_memory_broadcast_and_their_gradients_are_sums() -> None:
    header, tensors = deep_cases.some(heads=3, parameters={"chunk": 2})
    name = "in/memory/W_1"
    rows = np.stack([tensors[name]] * 3)
    each = {**tensors, name: rows}
    one, many = (evaluate(atlas_ref.make(header, x), grad=True).tensors for x in (tensors, each))
    assert many["grad/memory/W_1"].shape == rows.shape
    total = many["grad/memory/W_1"].sum(axis=0)
    assert_close("W_1", one["grad/memory/W_1"], total, ANALYTIC)
    for result in ("out/y", "out/state/weights/W_1"):
        assert_close(result, one[result], many[result], ANALYTIC)
    single = evaluate(atlas_ref.make(header, {**tensors, name: tensors[name][None]})).tensors
    assert_close("y", single["out/y"], one["out/y"], ANALYTIC)


@pytest.mark.clause("DEEPCASE-3")
def test_weights_by_lag_and_of_tokens_multiply() -> None:
    header, tensors = deep_cases.some(window_gate=True, parameters={"chunk": 1, "window": 3})
    both = deep_cases.with_window_weights(header, tensors)
    lags = both["in/window_weights"]
    doubled = {
        **both,
        "in/window_weights": lags * 2.0,
        "in/window_gate": both["in/window_gate"] / 2,
    }
    a, b, without = (
        evaluate(atlas_ref.make(header, each)).tensors["out/y"] for each in (both, doubled, tensors)
    )
    assert_close("y", a, b, ANALYTIC)
    assert relative_error(a, without) > 1e-3


@pytest.mark.clause("DEEPCASE-2", "CASE-1")
def test_a_case_is_written_and_read_again_bit_by_bit(tmp_path: Any) -> None:
    for request in ({}, deep_cases.FULL):
        case = deep_cases.made(**request)
        results = evaluate(case, grad=True)
        file = tmp_path / "again.safetensors"
        atlas_ref.save(file, case.header, {**case.inputs, **results.tensors})
        again = atlas_ref.load(file)
        assert again.header == case.header
        assert again.convention == case.convention
        for kind, tensors in (("inputs", case.inputs), ("recorded", results.tensors)):
            read = getattr(again, kind)
            assert read.keys() == tensors.keys()
            assert all(np.array_equal(read[name], x) for name, x in tensors.items())
        assert {row.verdict for row in atlas_ref.check(again)} == {"PASS"}


@pytest.mark.clause("DEEPCASE-5", "DEEPCASE-6")
def test_a_reset_goes_back_to_the_first_weights_in_every_call() -> None:
    header, tensors = deep_cases.some(tokens=6, parameters={"chunk": 2})
    tensors["in/reset"] = np.array([0, 0, 0, 0, 1, 0], np.uint8)
    whole = evaluate(atlas_ref.make(header, tensors)).tensors
    head, tail = (deep_cases.cut(tensors, *part) for part in ((0, 3), (3, 6)))
    before = evaluate(atlas_ref.make(header, head)).tensors
    after = evaluate(atlas_ref.make(header, tail | deep_cases.resumed(before))).tensors
    assert_close("y", after["out/y"], whole["out/y"][..., 3:, :], ANALYTIC)
    assert int(after["out/state/position"]) == int(whole["out/state/position"]) == 2
