"""A case as a sequence of tokens before its loop starts: projections, gates, features, windows and
the first state.

Specified in specs/replay.md (REPLAY-1 to REPLAY-6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay import steps
from atlas_ref.oracle.subjects.memory import (
    GATE_NAMES,
    initial_state,
    sequence_of,
    surrogate_of,
)
from atlas_ref.oracle.subjects.subject import phi_of
from atlas_ref.parts import gates, window
from atlas_ref.parts.norms import keys_normalised
from atlas_ref.rules import FAMILY, Rule, rule_of
from atlas_ref.rules import sequence as rule_sequence
from atlas_ref.types import Array
from tape import ops, plain

#: The hook at every op: (op, token or None for all tokens at once, function that computes it, its
#: arguments, counts=which entries have an influence) -> the value with which the loop continues.
Take = Callable[..., Array]

#: The ops that level token computes from in/x, in this order.
PROJECTED = ("k", "v", "q", "retain", "momentum", "step_size", "window_weights", "window_gate")


class Sequence(NamedTuple):
    """A case ready to run token by token.

    It is projected and mapped, its gates are columns, and the state before the first token is
    there.
    """

    case: Case
    config: Any
    tokens: rule_sequence.Tokens
    state: Any
    fresh: Any
    phi_k: Array
    queries: Callable[[], Array]
    retain: list[Any]
    momentum: list[Any]
    rates: list[tuple[Any, Any]]
    weights: list[Any]
    exists: np.ndarray[Any, Any]
    active: np.ndarray[Any, Any]
    reset: np.ndarray[Any, Any]

    @property
    def rule(self) -> Rule:
        return FAMILY[self.case.header.rule]

    @property
    def window(self) -> int:
        return int(self.case.header.window)

    @property
    def momentum_first(self) -> bool:
        return self.rule.averages_momenta(self.config)

    @property
    def spans(self) -> bool:
        """Whether a residual or a read uses the memory of the start of a span."""
        convention = self.config.convention
        return bool(convention.frozen_reference or convention.read == "chunk_start")

    def starts_span(self, position: int) -> bool:
        """Whether a token at this position takes a new reference."""
        return position == 0 and rule_sequence.refreshes(self.config.convention)

    def position_after(self, position: int) -> int:
        """The next token's position in its span, or in the call if the reference stays."""
        return (
            int((position + 1) % self.config.span)
            if rule_sequence.refreshes(self.config.convention)
            else position + 1
        )


def leading(case: Case) -> int:
    """The number of leading axes of a case's tensors."""
    if case.header.rule in FAMILY:
        return 2 if case.header.level == "token" else int(case.inputs["in/k"].ndim) - 2
    subject = SUBJECTS[case.header.rule]
    if subject.traced is not None:
        return int(case.inputs[subject.traced.along(case)].ndim) - 2
    own = subject.tensors[subject.argument].axes.split()[1:]  # after "..."
    return int(case.inputs[subject.argument].ndim) - len(own)


def prepare(case: Case, inputs: Mapping[str, Array], take: Take, way: Arithmetic) -> Sequence:
    """Compute projections, gates, features and the first state of a case."""
    rule = FAMILY[case.header.rule]
    config, tokens = sequence_of(rule, inputs, case)
    if case.header.level == "token":
        tokens = _project(case, inputs, config, tokens, take, way)
    if tokens.surrogate is not None:
        learned = take("surrogate", None, surrogate_of, config, inputs, tokens.k, tokens.v, way)
        tokens = tokens.replaced(surrogate=learned)
    state = initial_state(rule, config, inputs, case, tokens)
    T = tokens.k.shape[-2]
    active = np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active)
    reset = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    phi = phi_of(inputs)

    def queries() -> Array:
        scale = (
            None if config.convention.query_scale == 1.0 else 1.0 / math.sqrt(tokens.q.shape[-1])
        )
        return take(
            "phi_q", None, _features, config, phi, tokens.q, config.convention.q_norm, scale
        )

    retain = gates.bounded(tokens.retain, config.convention.retain_bounds)  # CONV-66
    retain = None if retain is None else gates.multiplier(retain, config.convention.gate)
    step_size = gates.bounded(tokens.step_size, config.convention.step_bounds)
    r, m, h, h_memory = (
        _columns(tokens, each)
        for each in (retain, tokens.momentum, step_size, tokens.step_size_memory)
    )
    return Sequence(
        case=case,
        config=config,
        tokens=tokens,
        state=state,
        fresh=rule.anew(config, tokens, state) if reset.any() else None,
        phi_k=take("phi_k", None, _features, config, phi, tokens.k, config.convention.k_norm),
        queries=queries,
        retain=r,
        momentum=m,
        rates=[steps.rates(config, *each) for each in zip(h, h_memory, strict=True)],
        weights=_weights(config, tokens, state),
        exists=rule_sequence.exists(tokens, state, case.header.window)
        if rule.has_window
        else np.ones((T, 1), bool),
        active=active,
        reset=reset,
    )


def _project(
    case: Case,
    inputs: Mapping[str, Array],
    config: Any,
    tokens: rule_sequence.Tokens,
    take: Take,
    way: Arithmetic,
) -> rule_sequence.Tokens:
    """Keys, values, queries, gates and weights from in/x at level token, each an op of its own.

    Source: CONV-28, GATES-7.
    """
    x = ops.expand_dims(inputs["in/x"], 1)  # (B, 1, T, d_model)
    fields: dict[str, Array] = {}
    for name in ("k", "v", "q"):
        fields[name] = take(
            name, None, way.matmul, x, ops.transpose(inputs[f"in/param/W_{name.upper()}"])
        )
    convention = config.convention
    gate_keys = (
        keys_normalised(fields["k"], convention.k_norm, convention)
        if convention.norm_place == "before_phi"
        else fields["k"]
    )
    kv = ops.concatenate([gate_keys, fields["v"]], axis=-1)
    for name in GATE_NAMES:
        if f"in/param/W_{name}" in inputs:
            fields[name] = take(
                name,
                None,
                _gate,
                way,
                name,
                kv,
                inputs[f"in/param/W_{name}"],
                inputs[f"in/param/b_{name}"],
            )
    for name in ("window_weights", "window_gate"):
        if getattr(tokens, name) is not None:
            fields[name] = take(name, None, getattr, tokens, name)
    return tokens.replaced(**fields)


def _gate(way: Arithmetic, name: str, kv: Array, W: Array, b: Array) -> Array:
    """A gate from key and value (GATES-7)."""
    pre = way.matmul(kv, ops.transpose(W)) + ops.expand_dims(b, -2)
    value = ops.softplus(pre) if name == "step_size" else ops.sigmoid(pre)
    return value[..., 0] if W.shape[-2] == 1 else value


def _features(
    config: Any, phi: Mapping[str, Array], x: Array, norm: str, scale: float | None = None
) -> Array:
    """Norm, feature map and scale; a row that is not finite stays that and spoils no other."""
    finite = np.isfinite(plain(x)).all(axis=-1, keepdims=True)
    features = rule_sequence.mapped(
        config, phi, x if finite.all() else ops.where(finite, x, 0.0), norm
    )
    features = features if scale is None else features * scale
    return features if finite.all() else ops.where(finite, features, np.nan)


def _columns(tokens: rule_sequence.Tokens, value: Array) -> list[Any]:
    """One column per token that scales the rows of a matrix, or None for each."""
    if value is None:
        return [None] * int(tokens.k.shape[-2])
    column = gates.as_column(value, per_dimension=value.shape != tokens.k.shape[:-1])
    return list(ops.moveaxis(column, -3, 0))


def _weights(config: Any, tokens: rule_sequence.Tokens, state: Any) -> list[Any]:
    """Per token (..., c, 1), oldest first; None for rules without a window."""
    if not rule_of(config).has_window:
        return [None] * int(tokens.k.shape[-2])
    oldest_first = ops.expand_dims(
        ops.flip(rule_sequence.weights_by_lag(config, tokens, state), -1), -1
    )
    return list(ops.moveaxis(oldest_first, -3, 0))


def windows(sequence: Sequence) -> Iterator[tuple[Array, Array]]:
    """Keys (..., c, d_phi) and values (..., c, d_out) in the window of each token.

    They are oldest first, with zero rows where there is no token.
    """
    T = len(sequence.reset)
    values = rule_sequence.targets(sequence.rule, sequence.config, sequence.tokens)
    if not sequence.rule.has_window:
        for t in range(T):
            yield sequence.phi_k[..., t : t + 1, :], values[..., t : t + 1, :]
        return
    starts = np.union1d(0, np.nonzero(sequence.reset)[0]).tolist()
    for first, last in zip(starts, [*starts[1:], T], strict=True):
        state = sequence.fresh if sequence.reset[first] else sequence.state
        keys = window.slid(state.keys, sequence.phi_k[..., first:last, :])
        yield from zip(keys, window.slid(state.values, values[..., first:last, :]), strict=True)
