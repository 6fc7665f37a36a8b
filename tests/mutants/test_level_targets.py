"""Small tests for mutants of frequency levels, one feature at a time, against
tests/support/blocks.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
import tape
from atlas_ref.levels import block as cms
from atlas_ref.levels.buffers import add, buffers
from atlas_ref.levels.pulse import Conductor
from atlas_ref.oracle.cases.new import Request, new
from tape.check import complex_step
from tests.support.blocks import block, countdown, drawn, in_loops
from tests.support.close import ANALYTIC, assert_close

NONE = {"newton_schulz": "none"}
FAST = {"rule": "titans_lmm", "period": 1, "d_in": 3}
BLOCKS: dict[str, tuple[dict[str, Any], ...]] = {
    "after": (FAST, {"rule": "delta", "period": 3, "d_in": 2}),
    "before": ({"rule": "titans_lmm", "period": 3, "d_in": 2, "convention": {"read": "before"}},),
    "window": (FAST, {"rule": "omega", "period": 3, "d_in": 2, "window": 3, "convention": NONE}),
    "spans": (
        {
            "rule": "titans_lmm",
            "period": 3,
            "d_in": 2,
            "span": 4,
            "convention": {"read": "chunk_start"},
        },
    ),
}
LONG = (
    FAST,
    {
        "rule": "omega",
        "period": 4,
        "d_in": 2,
        "window": 5,
        "convention": {**NONE, "window_edge": "renormalise"},
    },
)


def parts(
    config: cms.Config,
    params: cms.Params,
    x: Any,
    context: cms.Context,
    cuts: list[int],
    reset: Any = None,
) -> Any:
    reads = []
    for piece in np.split(np.arange(x.shape[1]), cuts):
        context, y = cms.run(
            config, params, x[:, piece], context, reset=None if reset is None else reset[piece]
        )
        reads.append(y)
    return np.concatenate(reads, axis=2)


def test_schedule() -> None:
    for first in (0, 1):
        assert (
            Conductor(periods=(1, 3, 4), first_step=first).schedule(20).tolist()
            == countdown((1, 3, 4), first, 20).tolist()
        )


@pytest.mark.parametrize("name", BLOCKS)
def test_block(name: str) -> None:
    config = block(BLOCKS[name])
    params, x, context = drawn(config, tokens=11, batch=1)
    _, y = cms.run(config, params, x, context)
    assert_close("y", y, in_loops(BLOCKS[name], params, x, context)[0], ANALYTIC)


def test_first_step() -> None:
    config = block(BLOCKS["after"], first_step=1)
    params, x, _ = drawn(config, tokens=11, batch=1)
    context = cms.start(config)
    _, y = cms.run(config, params, x, context)
    assert context.conductor.step == 1
    assert_close("y", y, in_loops(BLOCKS["after"], params, x, context, first=1)[0], ANALYTIC)


def test_calls() -> None:
    config = block(BLOCKS["window"])
    params, x, context = drawn(config, tokens=14, batch=1)
    reset = np.arange(14) == 7
    want, _ = in_loops(BLOCKS["window"], params, x, context, reset=reset)
    assert_close("y", parts(config, params, x, context, [5, 11], reset), want, ANALYTIC)


def test_calls_renormalised() -> None:
    config = block(LONG)
    params, x, context = drawn(config, tokens=9, batch=1)
    assert_close(
        "y", parts(config, params, x, context, [3]), in_loops(LONG, params, x, context)[0], ANALYTIC
    )


def test_documents() -> None:
    config = block(BLOCKS["window"])
    params, x, context = drawn(config, tokens=11, batch=1)
    reset = np.isin(np.arange(11), [4, 8])
    _, y = cms.run(config, params, x, context, reset=reset)
    assert_close("y", y, in_loops(BLOCKS["window"], params, x, context, reset=reset)[0], ANALYTIC)


def test_step_at_a_boundary() -> None:
    config = block(BLOCKS["after"])
    params, x, context = drawn(config, tokens=7, batch=1)
    after, _ = cms.run(
        config,
        params,
        x,
        context.replaced(conductor=context.conductor.advanced(4)),
        reset=np.arange(7) == 3,
    )
    assert after.conductor.step == 11


def test_masked() -> None:
    config = block(BLOCKS["window"], combine="masked")
    params, x, context = drawn(config, tokens=11, batch=1)
    _, y = cms.run(config, params, x, context)
    assert_close("y", y, in_loops(BLOCKS["window"], params, x, context, masked=True)[0], ANALYTIC)


def test_gradient() -> None:
    config = block(BLOCKS["after"])
    params, x, context = drawn(config, tokens=5, batch=1)

    def loss(logits: Any) -> Any:
        return tape.ops.sum(cms.run(config, params.replaced(logits=logits), x, context)[1])

    assert_close(
        "logits", tape.grad(loss)(params.logits), complex_step(loss, params.logits), ANALYTIC
    )
    weights = np.exp(params.logits) / np.exp(params.logits).sum()
    own = [np.sum(each["out/y"]) for each in in_loops(BLOCKS["after"], params, x, context)[1]]
    by_hand = [w * (y - np.dot(weights, own)) for w, y in zip(weights, own, strict=True)]
    assert_close("logits by hand", tape.grad(loss)(params.logits), np.array(by_hand), ANALYTIC)


def test_biases() -> None:
    config = block([{**FAST, "period": period} for period in (8, 1)])
    retain = [float(level.gates.retain.b[0, 0]) for level in cms.init(config, 0).levels]
    assert retain == [-4.0, -3.0]


def test_buffer() -> None:
    conductor = Conductor(periods=(2,))
    (buffer,), applied = buffers(conductor), []
    for gradient in (1.0, 2.0, 4.0, 8.0, 16.0):
        buffer, found, _ = add(buffer, {"W": np.array([gradient])}, conductor.pulse, 0)
        applied.append(None if found is None else float(found["W"][0]))
        conductor = conductor.tick()
    assert applied == [1.0, None, 6.0, None, 24.0]


def test_health() -> None:
    assert [each.bound for each in buffers(Conductor(periods=(1, 64)))] == [10.0, 80.0]


def test_case_schedule() -> None:
    case = new(Request(rule="delta", tokens=9, periods=(1, 4), schedule_level=1, first_step=1))
    assert case.inputs["in/active"].tolist() == countdown((1, 4), 1, 9)[:, 1].astype(int).tolist()


def case_of_block(combine: str) -> tuple[Any, Any]:
    """Reads of a block as a case, and by the loops."""
    config = block(BLOCKS["window"], combine=combine)
    params, x, context = drawn(config, tokens=11, batch=1)
    made: dict[str, Any] = {"in/x": x, "in/logits": params.logits}
    for i, (own, state) in enumerate(zip(params.levels, context.states, strict=True)):
        made |= {f"in/level{i}/param/{name}": getattr(own, name) for name in ("W_K", "W_V", "W_Q")}
        for name, gate in own.gates.__dict__.items():
            made |= {f"in/level{i}/param/W_{name}": gate.W, f"in/level{i}/param/b_{name}": gate.b}
        made |= {f"in/level{i}/M0": state.M, f"in/level{i}/S0": state.S}
    own_keys = [
        {key: value for key, value in spec.items() if key not in ("period", "d_in")}
        for spec in BLOCKS["window"]
    ]
    header = {
        "schema": 1,
        "rule": "cms",
        "level": "token",
        "levels": own_keys,
        "combine": combine,
        "schedule": {"periods": [1, 3]},
    }
    found = atlas_ref.evaluate(atlas_ref.make(header, made)).tensors["out/y"]
    return found, in_loops(BLOCKS["window"], params, x, context, masked=combine == "masked")[0]


def test_case_block() -> None:
    assert_close("y", *case_of_block("softmax"), ANALYTIC)


def test_case_masked() -> None:
    assert_close("y", *case_of_block("masked"), ANALYTIC)
