"""Settings of a deep memory that make it another rule, and settings that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.rules import RULES, deep_memory, sequence
from atlas_ref.rules.sequence import Tokens
from tape import grad, ops
from tests.support import deep_memories as deep
from tests.support.close import assert_close, assert_differs, reordered

B, T, D = 2, 12, 3
CLOSE = reordered(64, amplification=100.0)

#: Axes that a linear deep memory shares with each rule, by the rule's name.
CONVENTIONS: dict[str, dict[str, Any]] = {
    "defaults": {"newton_schulz": "none", "rate": "momentum"},
    "both": {"newton_schulz": {"steps": 3}, "rate": "both"},
    "memory": {"newton_schulz": {"steps": 3}, "rate": "memory", "read": "before"},
    "split": {"newton_schulz": "none", "rate": "split"},
    "no rate": {"newton_schulz": "none", "rate": "none"},
    "forget": {"newton_schulz": "none", "rate": "momentum", "gate": "forget"},
    "no gate": {"newton_schulz": "none", "rate": "momentum", "gate": "none"},
    "before error": {"newton_schulz": "none", "rate": "memory", "decay": "before_error"},
    "minus": {"newton_schulz": "none", "rate": "momentum", "momentum_sign": "minus"},
    "prints": {"newton_schulz": "none", "direction": "ascent", "value_sign": "plus"},
    "frozen": {"newton_schulz": "none", "reference": "chunk_start"},
    "call": {"newton_schulz": "none", "reference": "call_start", "read": "call_end"},
    "span read": {"newton_schulz": "none", "read": "chunk_start"},
    "norms": {
        "newton_schulz": "none",
        "q_norm": "l2",
        "k_norm": "rms",
        "query_scale": "1/sqrt(d_in)",
    },
    "edge": {"newton_schulz": "none", "window_edge": "renormalise"},
    "nesterov": {"newton_schulz": {"steps": 3, "argument": "nesterov"}, "rate": "momentum"},
    "scale": {"newton_schulz": "none", "gradient_scale": "2/d_out"},
}
ACTIVE = {
    "always": None,
    "pulse": np.arange(T) % 3 == 2,
}


def tokens_of(
    rule: Any, convention: Any, window: int, seed: int = 0, active: Any = None
) -> dict[str, Any]:
    """Fields of tokens that the rule takes under the convention."""
    rng = np.random.default_rng(seed)
    k, v, q = rng.standard_normal((3, B, T, D))
    fields: dict[str, Any] = {"k": k, "v": v, "q": q, "active": active}
    if convention.gate != "none":
        low, high = (0.8, 1.0) if convention.gate == "retain" else (0.0, 0.2)
        fields["retain"] = rng.uniform(low, high, (B, T))
    if "momentum" in rule.gates:
        fields["momentum"] = rng.uniform(0.2, 0.9, (B, T))
    if convention.rate != "none":
        fields["step_size"] = rng.uniform(0.05, 0.2, (B, T))
    if convention.rate == "split":
        fields["step_size_memory"] = rng.uniform(0.5, 1.0, (B, T))
    if rule.has_window:
        fields["window_weights"] = rng.uniform(0.3, 1.0, (B, T, window))
        fields["window_gate"] = rng.uniform(0.3, 1.0, (B, T))
    return fields


def pair(name: str, axes: dict[str, Any], window: int, **more: Any) -> tuple[Any, Any, Any]:
    """A rule and its settings, and those of the linear deep memory beside it."""
    rule = RULES[name]
    own = {} if rule.has_newton_schulz else {"newton_schulz": "none"}
    span = 4 if "chunk_start" in (axes.get("reference"), axes.get("read")) else None
    axes = {"gradient_scale": 1.0, "gate": "retain", "rate": "momentum"} | axes | own
    sizes = {"d_in": D, "d_out": D, "span": span, "convention": axes}
    windows = {"window": window} if rule.has_window else {}
    config = rule.Config(**sizes, **windows)
    twin = deep_memory.Config(**sizes, window=window, memory={"kind": "linear"}, **more)
    return rule, config, twin


def compared(
    rule: Any, config: Any, twin: Any, fields: dict[str, Any], own: dict[str, Any]
) -> tuple[Any, Any]:
    """Reads of the rule and of the deep memory, with gradients of all that both take."""
    rng = np.random.default_rng(4)
    M0, S0 = rng.standard_normal((2, B, D, D))
    bar = rng.standard_normal((B, T, D))
    masks = {name: fields[name] for name in ("active",)}
    arrays = {name: x for name, x in fields.items() if name not in masks} | {"M0": M0}
    if rule.has_momentum:
        arrays["S0"] = S0

    def of_rule(at: dict[str, Any]) -> Any:
        given = {name: x for name, x in at.items() if name not in ("M0", "S0")}
        start = rule.start(config, (B,), M=at["M0"], **({"S": at["S0"]} if "S0" in at else {}))
        state, y = sequence.run(rule, config, Tokens(**given, **masks), start)
        return y, state.M

    def of_deep(at: dict[str, Any]) -> Any:
        given = {name: x for name, x in at.items() if name not in ("M0", "S0")} | own
        start = deep_memory.start(
            twin, (B,), weights={"W": at["M0"]}, momentum={"W": at["S0"]} if "S0" in at else None
        )
        state, y = sequence.run(
            deep_memory.RULE,
            twin,
            Tokens(**given, **(masks | own)),
            start,
            phi={"W": np.zeros((D, D))},
        )
        return y, state.weights["W"]

    results = []
    for run in (of_rule, of_deep):
        y, M = run(arrays)

        def loss(at: dict[str, Any], run: Any = run) -> Any:
            y, M = run(at)
            return ops.sum(y * bar) + ops.sum(M * M)

        results.append({"y": y, "M": M} | {f"grad/{n}": g for n, g in grad(loss)(arrays).items()})
    return results[0], results[1]


@pytest.mark.clause("DEEP-4", "DEEP-22")
@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("name", CONVENTIONS)
def test_a_linear_deep_memory_is_omega(name: str, active: str) -> None:
    rule, config, twin = pair("omega", CONVENTIONS[name], 3)
    fields = tokens_of(rule, config.convention, 3, active=ACTIVE[active])
    want, got = compared(rule, config, twin, fields, {})
    for result, value in want.items():
        assert_close(result, got[result], value, CLOSE)


@pytest.mark.clause("DEEP-22")
@pytest.mark.parametrize("rule", ["titans_lmm", "delta"])
@pytest.mark.parametrize(
    "name",
    [
        each
        for each, axes in CONVENTIONS.items()
        if axes["newton_schulz"] == "none" and each != "edge"
    ],
)
def test_a_linear_deep_memory_of_one_token_is_titans_and_delta(name: str, rule: str) -> None:
    of, config, twin = pair(rule, CONVENTIONS[name], 1)
    want, got = compared(of, config, twin, tokens_of(of, config.convention, 1), {})
    for result, value in want.items():
        assert_close(result, got[result], value, CLOSE)


@pytest.mark.clause("DEEP-14", "DEEP-22")
@pytest.mark.parametrize("chunk", [2, 3, 4])
@pytest.mark.parametrize("name", ["defaults", "both", "memory", "forget", "before error"])
def test_chunks_are_a_pulse_at_their_last_tokens(name: str, chunk: int) -> None:
    rule, config, twin = pair("omega", CONVENTIONS[name], 4, chunk=chunk)
    pulse = np.arange(T) % chunk == chunk - 1
    fields = tokens_of(rule, config.convention, 4, active=pulse)
    want, got = compared(rule, config, twin, fields, {})
    for result, value in want.items():
        assert_close(result, got[result], value, CLOSE)


@pytest.mark.clause("DEEP-14")
@pytest.mark.parametrize("memory", deep.FUNCTIONS)
def test_chunks_of_any_function_are_a_pulse(memory: str) -> None:
    choice = deep.drawn(3, memory=memory, chunk=4, window=6, span="chunk", phase="both")
    choice |= {"documents": False, "calls": False, "unfinished": "wait", "read": "after"}
    choice |= {"clip": "none", "newton_schulz": 0}
    given = deep.inputs(choice)
    want, y = deep.run(deep.config(choice), given)
    alone = deep.config(choice | {"chunk": 1})
    tokens = Tokens(k=given.k, v=given.v, q=given.q, **given.gates, active=np.arange(13) % 4 == 3)
    state, other = sequence.run(
        deep_memory.RULE, alone, tokens, deep_memory.start(alone, (2,)), phi=given.tensors
    )
    assert_close("y", other, y, CLOSE)
    for name, weights in want.weights.items():
        assert_close(name, state.weights[name], weights, CLOSE)


@pytest.mark.clause("DEEP-22")
@pytest.mark.parametrize(
    "change",
    [
        {"chunk": 2},
        {"reduction": "mean"},
        {"clip": "hard", "clip_norm": 0.1},
        {"adaptive": True},
        {"coupling": "batch_shared"},
        {"phase": "off"},
    ],
    ids=str,
)
def test_what_omega_has_not_is_not_omega(change: dict[str, Any]) -> None:
    rule, config, twin = pair("omega", CONVENTIONS["defaults"], 3, **change)
    fields = tokens_of(rule, config.convention, 3)
    start = rule.start(config, (B,))
    _, want = sequence.run(rule, config, Tokens(**fields), start)
    _, y = sequence.run(
        deep_memory.RULE,
        twin,
        Tokens(**fields),
        deep_memory.start(twin, (B,)),
        phi={"W": np.zeros((D, D))},
    )
    assert_differs("y", y, want, 1e-3)
