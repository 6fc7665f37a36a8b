"""The sequential loop op by op, with a hook at every op that sees what was computed and says what the loop goes on with.

A trace hands back what it was given; a replay hands back what somebody recorded, so that every op is evaluated on
recorded inputs and the loop computes only what was not recorded. Specified in specs/replay.md (REPLAY-1 to REPLAY-6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.replay import steps
from atlas_ref.oracle.subjects.memory import GATE_NAMES, initial_state, sequence_of
from atlas_ref.oracle.subjects.subject import phi_of
from atlas_ref.parts import feature_maps, gates, window
from atlas_ref.parts.newton_schulz import coefficient_table
from atlas_ref.rules import RULES, Rule, rule_of
from atlas_ref.rules import sequence as run
from atlas_ref.types import Array
from tape import ops, plain

#: (op, token or None for all tokens at once, function that computes it, its arguments, counts=which entries have an influence)
#: -> what the loop goes on with.
Take = Callable[..., Array]

#: What level token computes from in/x, in this order.
PROJECTED = ("k", "v", "q", "retain", "momentum", "step_size", "window_weights", "window_gate")


class Sequence(NamedTuple):
    """A case ready to be run token by token: projected, mapped, gates as columns, and the state before the first token."""

    case: Case
    config: Any
    tokens: run.Tokens
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
        return RULES[self.case.header.rule]

    @property
    def window(self) -> int:
        return int(self.case.header.window)

    @property
    def momentum_first(self) -> bool:
        return self.rule.averages_momenta(self.config)

    @property
    def spans(self) -> bool:
        """Whether some memory of the start of a span is looked at."""
        convention = self.config.convention
        return bool(convention.frozen_reference or convention.read == "chunk_start")


@dataclass
class Held:
    """What passes from token to token: memory, stored momentum, reference, and what the window needs beside its pairs."""

    M: Array
    S: Array
    reference: Array
    position: int
    residuals: Array
    momenta: Array


class End(NamedTuple):
    """The state after the last token, and y (..., T, d_out)."""

    M: Array
    S: Array
    y: Array


def leading(case: Case) -> int:
    """How many leading axes the tensors of a case have."""
    if case.header.rule in RULES:
        return 2 if case.header.level == "token" else int(case.inputs["in/k"].ndim) - 2
    return int(case.inputs["in/G"].ndim) - 2 if case.header.rule == "newton_schulz" else int(case.inputs["in/x"].ndim) - 1


def walk(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    *,
    way: Arithmetic = PLAIN,
    begin: Callable[[int, Held], None] | None = None,
) -> End:
    """Run a case, handing every op to `take` (CONV-29).

    Args:
        inputs: of the case, in the dtype of the arithmetic.
        take: called as take(op, t, compute, *args, counts=mask), where compute(*args) is the op; `counts` says which entries
            have an influence, None for all.
        way: how sums and products are rounded.
        begin: called before each token with the state that it finds, which it may change.
    """
    if case.header.rule == "newton_schulz":
        return _newton_schulz_alone(case, inputs, take, way)
    if case.header.rule == "feature_map":
        phi = take("phi", None, feature_maps.apply, case.header.feature_map, phi_of(inputs), inputs["in/x"])
        return End(None, None, phi)
    sequence = prepared(case, inputs, take, way)
    read, held = sequence.config.convention.read, _held(sequence.state)
    reads: list[Array] = []
    queries: Array = None
    waiting: list[int] = []  # tokens that read the last memory of their packed sequence
    for t, (keys, values) in enumerate(_windows(sequence)):
        if sequence.reset[t]:
            reads += [_read(sequence, way, held.M, queries, each, take) for each in waiting]
            waiting, held = [], _held(sequence.fresh)
        if begin is not None:
            begin(t, held)
        if sequence.spans and (held.reference is None or (held.position == 0 and run.refreshes(sequence.config.convention))):
            held.reference = held.M
        before = held.M
        _write(sequence, way, held, t, keys, values, take)
        queries = sequence.queries() if t == 0 else queries
        if read == "call_end":
            waiting.append(t)
        else:
            memory = {"after": held.M, "before": before}.get(read, held.reference)
            reads.append(_read(sequence, way, memory, queries, t, take))
        if sequence.spans:
            held.position = run._next_position(sequence.config, held.position)
    reads += [_read(sequence, way, held.M, queries, each, take) for each in waiting]
    return End(held.M, held.S, ops.stack(reads, axis=-2))


def _newton_schulz_alone(case: Case, inputs: Mapping[str, Array], take: Take, way: Arithmetic) -> End:
    """The rule newton_schulz: the iterates and the result, of matrices without tokens (CASE-10)."""
    settings = case.convention.newton_schulz_settings
    S = inputs["in/G"]
    X = _iterates(settings, way, S, None, take)
    return End(None, None, take("X", None, steps.finished, settings, way, X, S))


def _iterates(settings: Any, way: Arithmetic, S: Array, t: int | None, take: Take) -> Array:
    """X_n, every iterate handed to `take` on the way."""
    X = take("X0", t, steps.normalised, settings, way, S)
    for i in range(len(coefficient_table(settings))):
        X = take(f"X{i + 1}", t, steps.iterate, settings, way, X, i)
    return X


# -- before the first token ---------------------------------------------------------------------------


def prepared(case: Case, inputs: Mapping[str, Array], take: Take, way: Arithmetic) -> Sequence:
    """Projections, gates, features and the first state of a case."""
    rule = RULES[case.header.rule]
    config, tokens = sequence_of(rule, inputs, case)
    if case.header.level == "token":
        tokens = _projected(case, inputs, config, tokens, take, way)
    state = initial_state(rule, config, inputs, case, tokens)
    T = tokens.k.shape[-2]
    active = np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active)
    reset = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    phi = phi_of(inputs)

    def queries() -> Array:
        scale = None if config.convention.query_scale == 1.0 else 1.0 / math.sqrt(tokens.q.shape[-1])
        return take("phi_q", None, _mapped, config, phi, tokens.q, config.convention.q_norm, scale)

    retain = None if tokens.retain is None else gates.multiplier(tokens.retain, config.convention.gate)
    r, m, h, h_memory = (_columns(tokens, each) for each in (retain, tokens.momentum, tokens.step_size, tokens.step_size_memory))
    return Sequence(
        case=case,
        config=config,
        tokens=tokens,
        state=state,
        fresh=rule.restart(config, state) if reset.any() else None,
        phi_k=take("phi_k", None, _mapped, config, phi, tokens.k, config.convention.k_norm),
        queries=queries,
        retain=r,
        momentum=m,
        rates=[steps.rates(config, *each) for each in zip(h, h_memory, strict=True)],
        weights=_weights(config, tokens, state),
        exists=run.exists(tokens, state, case.header.window) if rule.has_window else np.ones((T, 1), bool),
        active=active,
        reset=reset,
    )


def _projected(case: Case, inputs: Mapping[str, Array], config: Any, tokens: run.Tokens, take: Take, way: Arithmetic) -> run.Tokens:
    """Level token: keys, values, queries, gates and weights from in/x, each an op of its own (CONV-28, GATES-7)."""
    each = ops.expand_dims(inputs["in/x"], 1)  # (B, 1, T, d_model)
    made: dict[str, Array] = {}
    for name in ("k", "v", "q"):
        made[name] = take(name, None, way.matmul, each, ops.transpose(inputs[f"in/param/W_{name.upper()}"]))
    convention = config.convention
    gated = run.normalised(made["k"], convention.k_norm) if convention.norm_place == "before_phi" else made["k"]
    kv = ops.concatenate([gated, made["v"]], axis=-1)
    for name in GATE_NAMES:
        if f"in/param/W_{name}" in inputs:
            made[name] = take(name, None, _gate, way, name, kv, inputs[f"in/param/W_{name}"], inputs[f"in/param/b_{name}"])
    for name in ("window_weights", "window_gate"):
        if getattr(tokens, name) is not None:
            made[name] = take(name, None, getattr, tokens, name)
    return tokens.replaced(**made)


def _gate(way: Arithmetic, name: str, kv: Array, W: Array, b: Array) -> Array:
    """A gate from key and value (GATES-7)."""
    pre = way.matmul(kv, ops.transpose(W)) + ops.expand_dims(b, -2)
    value = ops.softplus(pre) if name == "step_size" else ops.sigmoid(pre)
    return value[..., 0] if W.shape[-2] == 1 else value


def _mapped(config: Any, phi: Mapping[str, Array], x: Array, norm: str, scale: float | None = None) -> Array:
    """Norm, feature map and scale; a row that is not finite stays that and spoils no other."""
    good = np.isfinite(plain(x)).all(axis=-1, keepdims=True)
    found = run.mapped(config, phi, x if good.all() else ops.where(good, x, 0.0), norm)
    found = found if scale is None else found * scale
    return found if good.all() else ops.where(good, found, np.nan)


def _columns(tokens: run.Tokens, value: Array) -> list[Any]:
    """One column per token that scales the rows of a matrix, or None for each."""
    if value is None:
        return [None] * int(tokens.k.shape[-2])
    column = gates.as_column(value, per_dimension=value.shape != tokens.k.shape[:-1])
    return list(ops.moveaxis(column, -3, 0))


def _weights(config: Any, tokens: run.Tokens, state: Any) -> list[Any]:
    """Per token (..., c, 1), oldest first; None for rules without a window."""
    if not rule_of(config).has_window:
        return [None] * int(tokens.k.shape[-2])
    oldest_first = ops.expand_dims(ops.flip(run.weights_by_lag(config, tokens, state), -1), -1)
    return list(ops.moveaxis(oldest_first, -3, 0))


def _held(state: Any) -> Held:
    get = state.__dict__.get
    return Held(state.M, get("S"), state.reference, state.position, get("residuals"), get("momenta"))


def _windows(sequence: Sequence) -> Iterator[tuple[Array, Array]]:
    """Keys (..., c, d_phi) and values (..., c, d_out) of the window of each token, oldest first, zero rows where missing."""
    T = len(sequence.reset)
    if not sequence.rule.has_window:
        for t in range(T):
            yield sequence.phi_k[..., t : t + 1, :], sequence.tokens.v[..., t : t + 1, :]
        return
    starts = np.union1d(0, np.nonzero(sequence.reset)[0]).tolist()
    for first, last in zip(starts, [*starts[1:], T], strict=True):
        state = sequence.fresh if sequence.reset[first] else sequence.state
        keys = window.slid(state.keys, sequence.phi_k[..., first:last, :])
        yield from zip(keys, window.slid(state.values, sequence.tokens.v[..., first:last, :]), strict=True)


# -- one token ----------------------------------------------------------------------------------------


def _write(sequence: Sequence, way: Arithmetic, held: Held, t: int, keys: Array, values: Array, take: Take) -> None:
    """The write of token t, or at an inactive token what stays (CONV-32)."""
    if not sequence.active[t]:
        return _rest(sequence, way, held, t, keys, values, take)
    config, retain, (a, b) = sequence.config, sequence.retain[t], sequence.rates[t]
    if not (sequence.rule.has_error or sequence.rule.has_momentum):
        held.M = take("M", t, way.scaled_sum, retain, held.M, ops.outer(values[..., 0, :], keys[..., 0, :]))
        return None
    residuals = _residuals(sequence, way, held, t, keys, values, retain, take)
    g = take("gradient", t, _gradient, sequence, way, residuals, t, keys)
    if not sequence.rule.has_momentum:
        held.M = take("M", t, steps.corrected, config, way, held.M, steps.times(a, g), b, retain)
        return None
    held.S = S = take("S", t, steps.momentum, config, way, held.S, g, a, sequence.momentum[t])
    if sequence.momentum_first:
        held.momenta = ops.concatenate([held.momenta[..., 1:, :, :], ops.expand_dims(S, -3)], axis=-3)
        S = take("P", t, steps.window_sum, way, sequence.weights[t], held.momenta)
    U = _update(sequence, way, S, g, t, take) if sequence.rule.has_newton_schulz else S
    held.M = take("M", t, steps.moved, config, way, held.M, U, b, retain)
    if config.convention.argument == "written_back":
        held.S = U
    return None


def _rest(sequence: Sequence, way: Arithmetic, held: Held, t: int, keys: Array, values: Array, take: Take) -> None:
    """An inactive token: M and S repeat; what the window stores of it is made as if it did not decay (WINDOW-13, OMEGA-11)."""
    if held.residuals is not None:
        arrived = steps.residual(sequence.config, way, _reference(sequence, held), None, keys, values)[..., -1, :]
        held.residuals = ops.slide(held.residuals, arrived)
    if held.S is not None:
        held.S = take("S", t, _same, held.S)
    if held.momenta is not None:
        held.momenta = ops.concatenate([held.momenta[..., 1:, :, :], ops.expand_dims(held.S, -3)], axis=-3)
    held.M = take("M", t, _same, held.M)


def _same(x: Array) -> Array:
    return x


def _reference(sequence: Sequence, held: Held) -> Array:
    """The memory that residuals are taken under; None for the zero one, and for a rule without an error."""
    if not sequence.rule.has_error:
        return None
    reference = sequence.config.convention.reference
    return {"running": held.M, "zero": None}.get(reference, held.reference)


def _residuals(sequence: Sequence, way: Arithmetic, held: Held, t: int, keys: Array, values: Array, retain: Array, take: Take) -> Array:
    """Residuals oldest first, zero where they have no influence: no such token, cut off, or its momentum alone counts."""
    convention = sequence.config.convention
    lags = np.arange(sequence.window)[::-1]
    older = (lags > held.position)[:, None] & convention.frozen_reference
    counts = sequence.exists[t][::-1][:, None]
    if sequence.momentum_first:
        counts = counts & (lags == 0)[:, None]
    elif convention.window_at_boundary == "cut":
        counts = counts & ~older
    by_lag = take("residual", t, _by_lag, sequence, way, held, retain, keys, values, counts, older, counts=counts[::-1])
    taken = ops.where(counts, ops.flip(by_lag, -2), 0.0)
    if held.residuals is not None:
        held.residuals = ops.slide(held.residuals, taken[..., -1, :])
    return taken


def _by_lag(
    sequence: Sequence, way: Arithmetic, held: Held, retain: Array, keys: Array, values: Array, counts: Array, older: Array
) -> Array:
    """The residual of every lag, under carry that of its arrival where the token is of an older span (OMEGA-4, WINDOW-13)."""
    found = steps.residual(sequence.config, way, _reference(sequence, held), retain, keys, values)
    if held.residuals is not None:
        found = ops.where(older, ops.slide(held.residuals, found[..., -1, :]), found)
    return ops.flip(ops.where(counts, found, 0.0), -2)


def _gradient(sequence: Sequence, way: Arithmetic, residuals: Array, t: int, keys: Array) -> Array:
    if sequence.momentum_first:
        return steps.gradient(sequence.config, way, residuals[..., -1:, :], None, keys[..., -1:, :])
    return steps.gradient(sequence.config, way, residuals, sequence.weights[t], keys)


def _update(sequence: Sequence, way: Arithmetic, S: Array, g: Array, t: int, take: Take) -> Array:
    """U from S (OMEGA-8)."""
    convention = sequence.config.convention
    if not convention.has_newton_schulz or convention.argument == "accumulated":
        return take("U", t, _same, S)
    settings = convention.newton_schulz_settings
    given = steps.argument(sequence.config, way, S, g, sequence.momentum[t])
    return take("U", t, steps.finished, settings, way, _iterates(settings, way, given, t, take), given)


def _read(sequence: Sequence, way: Arithmetic, M: Array, queries: Array, t: int, take: Take) -> Array:
    """y_t from the memory that it reads, through Newton-Schulz where memories are accumulated (OMEGA-9, OMEGA-12)."""
    convention = sequence.config.convention
    if convention.argument == "accumulated":
        settings = convention.newton_schulz_settings
        M = steps.finished(settings, way, _iterates(settings, way, M, t, take), M)
    return take("y", t, steps.read, way, M, queries[..., t, :])
