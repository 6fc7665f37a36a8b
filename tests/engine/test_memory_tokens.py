"""The loop over single tokens of an MLP memory against the rule chunk by chunk, its plain twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.engine import memory_tokens
from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.deep_memory import tokens as by_tokens
from atlas_ref.rules.sequence import Tokens
from tape import grad, ops
from tests.support import deep_memories as deep
from tests.support.close import EXACT, assert_close, reordered

pytestmark = pytest.mark.host("a loop over arrays of NumPy")
CLOSE = reordered(64, amplification=100.0)
#: What the loop computes, whatever the other axes say.
PLAIN: dict[str, Any] = {
    "chunk": 1,
    "window": None,
    "window_decay": 1.0,
    "span": "chunk",
    "coupling": "per_sample",
    "clip": "none",
    "adaptive": False,
    "newton_schulz": 0,
    "phase": "both",
    "fast": "all",
}
MLP = ["mlp", "mlp_residual", "mlp_erf"]


def choice_of(number: int, **more: Any) -> dict[str, Any]:
    own = {"memory": MLP[number % 3], "vectors": ("raw", "frozen")[number % 2]}
    own["read"] = ("after", "before")[number // 2 % 2]
    return deep.drawn(number, **PLAIN | own | more)


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a choice by the plain twin."""

    def run(settings: Any, given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(by_tokens, "settings_fit", lambda config: False)
            return deep.run(settings, given)

    return run


def same(got: tuple[Any, Any], want: tuple[Any, Any], within: Any = CLOSE) -> None:
    assert_close("y", got[1], want[1], within)
    for kind in ("weights", "momentum"):
        one, two = getattr(got[0], kind), getattr(want[0], kind)
        assert list(one) == list(two)
        for name, x in two.items():
            assert_close(f"{kind}.{name}", one[name], x, within)


@pytest.mark.clause("DEEP-7", "DEEP-11", "DEEP-13", "DEEP-15")
@pytest.mark.parametrize("number", range(24))
def test_the_loop_computes_what_chunks_of_one_token_compute(
    number: int, plainly: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice, calls = choice_of(number), []
    given, settings = deep.inputs(choice), deep.config(choice)
    want = plainly(settings, given)
    run = memory_tokens.run
    monkeypatch.setattr(memory_tokens, "run", lambda *args: calls.append(1) or run(*args))
    same(deep.run(settings, given), want)
    assert len(calls) >= len(given.calls)


@pytest.mark.clause("DEEP-11", "DEEP-13")
@pytest.mark.parametrize("axes", [
    {"momentum_sign": "minus"},
    {"direction": "ascent"},
    {"momentum_sign": "minus", "direction": "ascent"},
    {"rate": "split"},
    {"rate": "none"},
    {"gradient_scale": "2/d_out"},
    {"gradient_scale": 0.5},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("momentum", [True, False])
def test_signs_and_rates_are_those_of_the_rule(
    axes: dict[str, Any], momentum: bool, plainly: Any
) -> None:
    choice = choice_of(1, vectors="raw", momentum=momentum, gate="retain", rate="memory")
    given, settings = deep.inputs(choice), deep.config(choice)
    settings = settings.replaced(convention=settings.convention.replaced(**axes))
    gates = dict(given.gates)
    if axes.get("rate") == "split":
        gates["step_size_memory"] = 0.5 * gates["step_size"] + 0.1
    if axes.get("rate") == "none":
        del gates["step_size"]
    shapes = settings.fast_shapes
    draw = np.random.default_rng(3)
    start = {
        kind: {name: 0.3 * draw.standard_normal((2, *shape)) for name, shape in shapes.items()}
        for kind in ("weights", "momentum")
    }
    tokens = Tokens(k=given.k, v=given.v, q=given.q, **gates)

    def run() -> Any:
        state = deep_memory.start(settings, (2,), **start if momentum else {})
        return sequence.run(deep_memory.RULE, settings, tokens, state, phi=given.tensors)

    want = plainly_run(run)
    same(run(), want)


def plainly_run(run: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_tokens, "settings_fit", lambda config: False)
        return run()


@pytest.mark.clause("DEEP-23")
def test_calls_rows_and_documents_are_their_own() -> None:
    choice = choice_of(4, memory="mlp_residual", documents=True, calls=False, read="after")
    choice |= {"memory_reset": "sequence", "momentum_reset": "sequence"}
    given, settings = deep.inputs(choice), deep.config(choice)
    whole = deep.run(settings, given)
    same(deep.run(settings, given._replace(calls=[1] * 13)), whole, EXACT)
    moved = given._replace(k=given.k.copy())
    moved.k[1, 6] += 1.0
    _, y = deep.run(settings, moved)
    assert_close("row", y[0], whole[1][0], EXACT)
    assert_close("before", y[1, :6], whole[1][1, :6], EXACT)
    assert not np.array_equal(y[1, 6], whole[1][1, 6])


@pytest.mark.clause("DEEP-13")
def test_arrays_that_are_given_stay_as_they_are() -> None:
    choice = choice_of(0, vectors="raw", momentum=True)
    given, settings = deep.inputs(choice), deep.config(choice)
    before = {name: x.copy() for name, x in given.tensors.items()}
    state, _ = deep.run(settings, given)
    kept = {name: x.copy() for name, x in state.weights.items()}
    tokens = Tokens(k=given.k, v=given.v, q=given.q, **given.gates)
    sequence.run(deep_memory.RULE, settings, tokens, state, phi=given.tensors)
    for name, x in before.items():
        assert_close(name, given.tensors[name], x, EXACT)
    for name, x in kept.items():
        assert_close(name, state.weights[name], x, EXACT)


@pytest.mark.clause("DEEP-18")
def test_a_recorded_document_goes_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choice_of(0)
    given, settings = deep.inputs(choice), deep.config(choice)
    monkeypatch.setattr(memory_tokens, "run", None)
    gradient = grad(lambda k: ops.sum(deep.run(settings, given._replace(k=k))[1]))(given.k)
    assert np.isfinite(gradient).all()


@pytest.mark.clause("DEEP-14")
@pytest.mark.parametrize("change", [
    {"chunk": 2, "window": 2},
    {"window": 2},
    {"clip": "hard"},
    {"adaptive": True},
    {"coupling": "batch_shared"},
    {"newton_schulz": 3},
    {"span": "once"},
    {"read": "call_end"},
    {"vectors": "unit", "memory": "mlp_residual"},
    {"memory": "linear"},
    {"phase": "off"},
], ids=str)  # fmt: skip
def test_other_settings_go_chunk_by_chunk(change: dict[str, Any]) -> None:
    assert by_tokens.settings_fit(deep.config(choice_of(0)))
    assert not by_tokens.settings_fit(deep.config(choice_of(0, **change)))
