"""Lag tokens: logarithms at the first write of a span alone; loops, the complex step, cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.rules import deep_memory, sequence
from atlas_ref.rules.sequence import Tokens
from tape import grad, ops
from tests.rules.deep_memory.test_against_loops import amplified
from tests.rules.deep_memory.test_biases import plain
from tests.support import deep_cases, plain_loops
from tests.support import deep_memories as deep
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.truth import deep_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

D = deep.D
LAG: dict[str, Any] = {"kind": "kl", "size": 4.0, "lag": True}
OVER = ("matrix", "row", "column")


def choice_of(memory: str = "mlp", **more: Any) -> dict[str, Any]:
    fixed = {"span": "twice", "read": "after", "gate": "retain", "rate": "memory"}
    fixed |= {"reduction": "mean", "memory_reset": "sequence", "momentum_reset": "sequence"}
    return plain(memory, **fixed | {"chunk": 2, "window": 3, "unfinished": "wait"} | more)


def inputs(choice: dict[str, Any], **how: Any) -> Any:
    """Inputs whose matrices have entries above 0 that add up to the size."""
    given = deep.inputs(choice, **how)
    tensors = {
        name: LAG["size"] * np.exp(x) / np.exp(x).sum() if x.ndim == 2 else x
        for name, x in given.tensors.items()
    }
    gates = given.gates | {"step_size": 0.2 * given.gates["step_size"]}
    return given._replace(tensors=tensors, gates=gates)


@pytest.mark.clause("DEEP-39")
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"chunk": 1},
        {"chunk": 3, "calls": True, "documents": True},
        {"unfinished": "flush", "documents": True},
        {"read": "call_end", "coupling": "batch_shared"},
        {"memory": "linear", "chunk": 1, "window": 1, "calls": True},
    ],
    ids=str,
)
def test_reads_and_states_are_those_of_plain_loops(more: dict[str, Any], over: str) -> None:
    choice = choice_of() | more
    given, retention = inputs(choice), LAG | {"over": over}
    state, y = deep.run(deep.config(choice, retention=retention), given)
    reset = None if given.reset is None else np.tile(given.reset, (len(given.k), 1))
    rows = (given.tensors, given.k, given.v, given.q, deep.kept(choice, given))
    settings = deep.of_loops(choice, retention=retention)
    want, after = loops.run(settings, *rows, reset=reset, calls=given.calls)
    tolerance = amplified(choice, given, retention=retention)
    assert_close("y", y, want, tolerance)
    kinds = {"memory": state.weights}
    if not choice["documents"]:  # the loops refresh at the end of a span, the rule at the next one
        kinds["reference"] = state.reference
    for kind, found in kinds.items():
        for name, x in found.items():
            full = np.broadcast_to(x, after[f"{kind}/{name}"].shape)
            assert_close(f"{kind}/{name}", full, after[f"{kind}/{name}"], tolerance)


@pytest.mark.clause("DEEP-39")
@pytest.mark.parametrize("memory", ["linear", "mlp"])
def test_outer_gradients_are_complex_steps_of_plain_loops(memory: str) -> None:
    choice = choice_of(memory, chunk=1, window=2)
    given = inputs(choice, tokens=6)
    config = deep.config(choice, retention=LAG)
    bar = np.random.default_rng(2).standard_normal(given.v.shape)

    def loss(at: Any) -> Any:
        gates = {name: at[name] for name in given.gates}
        tensors = {name: at[name] for name in given.tensors}
        moved = given._replace(k=at["k"], v=at["v"], q=at["q"], gates=gates, tensors=tensors)
        return ops.sum(bar * deep.run(config, moved)[1])

    got = grad(loss)({"k": given.k, "v": given.v, "q": given.q, **given.gates, **given.tensors})
    rows = (given.tensors, given.k, given.v, given.q, deep.kept(choice, given), {"y": bar})
    for label, x in got.items():
        way = np.random.default_rng(7).standard_normal(x.shape)
        want = loops.along(deep.of_loops(choice, retention=LAG), *rows, {label: way})
        size = np.linalg.norm(x) * np.linalg.norm(way)
        assert size > 0.0, label
        assert abs(np.sum(x * way) - want) <= 1e-11 * size, label


@pytest.mark.clause("DEEP-39", "DEEP-34")
def test_memora_of_a_matrix_with_lag_tokens_is_the_printed_equations() -> None:
    """Eq 30 at tokens 0, 16, ..., then W = alpha W - eta grad l_2 at the weights behind them."""
    rng = np.random.default_rng(9)
    k, v, q = rng.standard_normal((3, 40, D))
    retain, step_size = rng.uniform(0.97, 1.0, 40), rng.uniform(0.0005, 0.001, 40)
    W0 = rng.uniform(0.1, 1.0, (D, D))
    W0 = W0 / W0.sum()
    own = deep_memory.preset(
        "memora", d=D, memory={"kind": "linear"}, retention={"kind": "kl", "lag": True}
    )
    tokens = Tokens(k=k, v=v, q=q, retain=retain, step_size=step_size)
    state, y = sequence.run(deep_memory.RULE, own, tokens, deep_memory.start(own), phi={"W": W0})
    W, lagged, reads = W0, W0, []
    for t in range(40):
        if t % 16 == 0:
            powers = np.exp(
                retain[t] * np.log(W) - step_size[t] * 2.0 * np.outer(W @ k[t] - v[t], k[t])
            )
            W = lagged = powers / powers.sum()
        else:
            error = lagged @ k[t] - v[t]
            W = retain[t] * W - step_size[t] * 2.0 * np.outer(error, k[t])
        assert (W > 0.0).all()  # else the next logarithm has no value
        reads.append(W @ q[t])
    assert_close("y", y, np.array(reads), reordered(64))
    assert_close("W", state.weights["W"], W, reordered(64))
    other = own.replaced(retention=own.retention.replaced(lag=False))
    _, every = sequence.run(
        deep_memory.RULE, other, tokens, deep_memory.start(other), phi={"W": W0}
    )
    assert_differs("y", every, y, 1e-3)


@pytest.mark.clause("DEEP-39")
def test_a_span_of_one_write_is_the_retention_without_lag() -> None:
    choice = choice_of(span="chunk")
    given = inputs(choice)
    _, got = deep.run(_spans(choice, LAG), given)
    _, want = deep.run(_spans(choice, LAG | {"lag": False}), given)
    assert_close("y", got, want, EXACT)


def _spans(choice: dict[str, Any], retention: dict[str, Any]) -> Any:
    """Settings whose spans are chunks."""
    own = deep.config(choice | {"span": "twice"}, retention=retention)
    return own.replaced(span=own.chunk)


@pytest.mark.clause("DEEP-39")
def test_a_weight_below_0_is_0_behind_the_next_lag_token() -> None:
    choice = choice_of("linear", chunk=1, window=1)
    given = inputs(choice, tokens=6, batch=1)
    large = given._replace(gates={**given.gates, "step_size": np.full((1, 6), 3.0)}, calls=[3])
    config = deep.config(choice, retention=LAG)
    state, _ = deep.run(config, large)
    below = state.weights["W"] <= 0.0
    assert below.any()
    after, _ = deep.run(config, large._replace(calls=[4]))
    assert (after.weights["W"][below] != 0.0).any()  # a linear write in the middle of a span
    state, _ = deep.run(config, large._replace(calls=[4]))
    below = state.weights["W"] <= 0.0
    after, _ = deep.run(config, large._replace(calls=[5]))
    assert below.any()
    assert not after.weights["W"][below].any()


@pytest.mark.clause("DEEP-39")
@pytest.mark.parametrize(
    "convention", [{"reference": "running"}, {"reference": "chunk_start", "read": "chunk_start"}]
)
def test_lag_without_spans_of_references_is_refused(convention: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="retention: lag moves the reference behind the first"):
        deep_memory.Config(d_in=2, d_out=2, span=4, retention=LAG, convention=convention)
    with pytest.raises(ValueError, match="lag: True belongs to kind kl, found kind l2"):
        deep_memory.Config(d_in=2, d_out=2, retention={"lag": True})


# -- cases -----------------------------------------------------------------------------------------


def case_of(**more: Any) -> Any:
    choice = choice_of(chunk=1, window=2)
    given = inputs(choice, batch=1, tokens=6)
    header, tensors = deep_cases.of_choice(choice, given, retention=LAG)
    tensors["in/y_bar"] = np.random.default_rng(1).standard_normal(given.v.shape)
    return atlas_ref.make(header, tensors | more)


@pytest.mark.clause("DEEP-39", "CERT-17")
def test_the_rule_the_plain_loop_and_certified_results_agree() -> None:
    plain_loops.assert_all_agree(case_of())


@pytest.mark.clause("DEEP-39", "DEEPCASE-6")
def test_a_call_that_goes_on_within_a_span_carries_weights_below_0() -> None:
    case = case_of(**{"in/step_size": np.full((1, 6), 3.0)})
    inputs = {name: x for name, x in case.inputs.items() if name != "in/y_bar"}
    whole = evaluate(case.replaced(inputs=inputs)).tensors
    first = evaluate(case.replaced(inputs=deep_cases.cut(inputs, 0, 2))).tensors
    state = deep_cases.resumed(first)
    assert any((state[name] < 0.0).any() for name in state if "/weights/" in name)
    last = evaluate(atlas_ref.make(dict(case.header), deep_cases.cut(inputs, 2, 6) | state)).tensors
    joined = np.concatenate([first["out/y"], last["out/y"]], axis=-2)
    assert_close("y", joined, whole["out/y"], reordered(64, amplification=100.0))


@pytest.mark.clause("DEEP-39", "DEEPCASE-14")
def test_identify_tells_a_lag_token_from_logarithms_at_every_write() -> None:
    case = case_of()
    own = case.header.plain()
    settings = {**own["parameters"], "retention": {**own["parameters"]["retention"], "lag": False}}
    other = atlas_ref.make({**own, "parameters": settings}, dict(case.inputs))
    for asked, answering in ((case, other), (other, case)):
        answer = identify(asked, dict(evaluate(answering).tensors), depth=1)
        assert answer.verdict == "MATCH"
        assert set(answer.from_own) == {"parameters.retention"}
    right = trace(case, dtype="float32")
    assert first_wrong(replay(case, right, nearest=False)) is None
    first = first_wrong(replay(case, trace(other, dtype="float32"), nearest=False))
    assert first is not None
    assert first.token == 1  # whose gradient is at the weights behind the lag token
