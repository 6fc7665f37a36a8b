"""The input of every parallel form: one packed sequence after all conventions of single tokens.

    e[t,i] = M_ref phi_i - v_i
    S_t    = momentum_t S_{t-1} + rate_in_t sum_j weights[t,j] e[t,t-j] phi_{t-j}^T
    M_t    = retain_t M_{t-1} - rate_out_t S_t                                        (or its Newton-Schulz)

Norms, feature map, query scale, gate, rate, signs, gradient scale, edges of the window and inactive
tokens are applied here, once for the whole sequence, so that a form takes numbers and no convention
but reference, decay, order, read and Newton-Schulz. Specified in specs/chunkwise.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.parts import gates
from atlas_ref.rules import Rule
from atlas_ref.rules import sequence as run
from atlas_ref.types import Array
from tape import ops


class Recurrence(NamedTuple):
    """One packed sequence of T tokens, after a history of h = c - 1 window tokens (CHUNK-1,
    CHUNK-2).

    Gates are (..., T, 1), or (..., T, d_out) for one per output dimension; an inactive token has
    retain and momentum 1 and both rates 0.

    Attributes:
        keys (..., h + T, d_phi): features, those of the history first, zero rows where it is
        missing. values (..., h + T, d_out): targets, of the sign that makes a residual M phi - v.
        queries (..., T, d_phi): features, scaled.
        retain, rate_in, rate_out: r, a and b.
        momentum: m; None for a rule without momentum.
        weights (..., T, c) or (T, c): by lag, 0 where there is no token or a boundary cuts it off;
            times the gradient scale s, except under momentum_then_window, where they weigh momenta.
        scale: the factor s that is not in the weights: 1 except under momentum_then_window.
        active (T,): False where memory and momentum stay.
        position (T,): place of each token in its span.
        refresh (T,): where the reference becomes the memory before the token.
        reference: the memory of the residuals: "running", "frozen" or "zero".
        before_error: whether that memory decays first.
        earlier_keys, earlier_values (..., h, d_phi or d_out): the history, where it is apart from
            keys and values (..., T, ...), so that a form that takes a few tokens at a time does not
            copy the sequence.
    """

    keys: Array
    values: Array
    queries: Array
    retain: Array
    momentum: Array
    rate_in: Array
    rate_out: Array
    weights: Array
    scale: float
    active: np.ndarray[Any, Any]
    position: np.ndarray[Any, Any]
    refresh: np.ndarray[Any, Any]
    reference: str
    before_error: bool
    earlier_keys: Array = None
    earlier_values: Array = None

    def whole(self) -> Recurrence:
        """The sequence with keys and values behind their history, in one array."""
        if self.earlier_keys is None:
            return self
        keys, values = (
            ops.concatenate(pair, axis=-2)
            for pair in ((self.earlier_keys, self.keys), (self.earlier_values, self.values))
        )
        return self._replace(keys=keys, values=values, earlier_keys=None, earlier_values=None)

    @property
    def window(self) -> int:
        return int(self.weights.shape[-1])

    @property
    def length(self) -> int:
        return int(self.queries.shape[-2])


class Memory(NamedTuple):
    """The state between two segments of tokens, with S holding the sum of +gradients.

    Attributes:
        M, S (..., d_out, d_phi): memory and momentum; S None for a rule without momentum.
        reference (..., d_out, d_phi): memory of the residuals or reads of the span; None where they
            have none.
        residuals (..., h, d_out): under carry, the residual of each window token when it arrived.
        momenta (..., h, d_out, d_phi): under momentum_then_window, the momenta of the last tokens,
            oldest first.
    """

    M: Array
    S: Array = None
    reference: Array = None
    residuals: Array = None
    momenta: Array = None


def packed(
    rule: Rule, config: Any, tokens: run.Tokens, state: Any, phi: Mapping[str, Array] | None
) -> Iterator[tuple[bool, Recurrence]]:
    """The packed sequences of a call, each with whether it starts from the state of the call.

    Source: CHUNK-3, SURROGATE-6.
    """
    keys, queries = run.features(config, tokens, phi or {})
    values = run.targets(rule, config, tokens)
    values = values if _subtracts(rule, config) else -values
    per_token = {"keys": keys, "values": values, "queries": queries, **_gates(rule, config, tokens)}
    scale = _scale(rule, config)
    averages_momenta = rule.averages_momenta(config)
    weights = _weights(rule, config, tokens, state, 1.0 if averages_momenta else scale)
    active = np.ones(keys.shape[-2], bool) if tokens.active is None else np.asarray(tokens.active)
    reset = np.zeros(keys.shape[-2], bool) if tokens.reset is None else np.asarray(tokens.reset)
    starts = np.union1d(0, np.nonzero(reset)[0]).tolist()
    for first, last in itertools.pairwise([*starts, len(reset)]):
        anew = bool(reset[first])
        before = rule.anew(config, tokens, state) if anew else state
        cut = {name: _tokens(value, first, last) for name, value in per_token.items()}
        one = _one(rule, config, before, cut, _tokens(weights, first, last))
        yield (
            anew,
            one._replace(scale=scale if averages_momenta else 1.0, active=active[first:last]),
        )


def _tokens(value: Array, first: int, last: int) -> Array:
    """Tokens first to last; all of them without an index, whose backward copies."""
    return value if value is None or last - first == value.shape[-2] else value[..., first:last, :]


def _one(
    rule: Rule, config: Any, before: Any, per_token: dict[str, Array], weights: Array
) -> Recurrence:
    convention: Convention = config.convention
    T, c = weights.shape[-2:]
    if c > 1:
        held = before.values[..., 1:, :]
        held = held if _subtracts(rule, config) else -held
        per_token |= {"earlier_keys": before.keys[..., 1:, :], "earlier_values": held}
    position = before.position + np.arange(T)
    spans = convention.frozen_reference or convention.read == "chunk_start"
    if spans and convention.reference != "call_start":
        position = position % config.span
    refresh = (position == 0) & spans & run.refreshes(convention)
    refresh[0] |= spans and before.reference is None
    if (
        convention.window_at_boundary == "cut"
        and convention.frozen_reference
        and convention.order == "window_then_momentum"
    ):
        weights = ops.where(np.arange(c) <= position[:, None], weights, 0.0)
    kind = (
        "zero"
        if rule.reads_nothing(config)
        else "frozen"
        if convention.frozen_reference
        else "running"
    )
    decays = convention.decay == "before_error" and kind != "zero"
    return Recurrence(
        **per_token,
        weights=weights,
        scale=1.0,
        active=np.ones(T, bool),
        position=position,
        refresh=refresh,
        reference=kind,
        before_error=decays,
    )


def _subtracts(rule: Rule, config: Any) -> bool:
    """Whether the residual is M phi - v; the Hebbian rule has no other sign (HEBBIAN-2)."""
    return config.convention.value_sign == "minus" or not rule.has_error


def _gates(rule: Rule, config: Any, tokens: run.Tokens) -> dict[str, Array]:
    convention: Convention = config.convention
    shape = (*tokens.k.shape[:-1], 1)
    one = ops.ones_like(tokens.k, shape=shape)

    def column(value: Array) -> Array:
        return ops.expand_dims(value, -1) if value.shape == shape[:-1] else value

    learns = rule.has_error
    step_size = gates.bounded(tokens.step_size, convention.step_bounds)  # CONV-66
    h = one if not learns or step_size is None else column(step_size)
    rate = convention.rate if learns else "none"
    rate_in = h if rate in ("momentum", "both", "split") else one
    rate_out = (
        h
        if rate in ("memory", "both")
        else column(tokens.step_size_memory)
        if rate == "split"
        else one
    )
    if learns and convention.direction == "ascent":
        rate_out = -rate_out
    retain = gates.bounded(tokens.retain, convention.retain_bounds)
    retain = one if retain is None else column(gates.multiplier(retain, convention.gate))
    momentum = None
    if rule.has_momentum:
        momentum = ops.zeros_like(one) if tokens.momentum is None else column(tokens.momentum)
        if convention.momentum_kind == "average":
            rate_in = (1.0 - momentum) * rate_in  # CONV-64
    if tokens.active is not None and not np.all(tokens.active):
        active = np.asarray(tokens.active)[:, None]
        retain, rate_in, rate_out = (
            ops.where(active, value, silent)
            for value, silent in ((retain, 1.0), (rate_in, 0.0), (rate_out, 0.0))
        )
        momentum = None if momentum is None else ops.where(active, momentum, 1.0)
    return {"retain": retain, "momentum": momentum, "rate_in": rate_in, "rate_out": rate_out}


def _scale(rule: Rule, config: Any) -> float:
    """s of the gradient; the Hebbian rule has none."""
    if not rule.has_error:
        return 1.0
    scale = config.convention.gradient_scale
    return float(2.0 / config.d_out if isinstance(scale, str) else scale)


def _weights(rule: Rule, config: Any, tokens: run.Tokens, state: Any, s: float) -> Array:
    """Window weights times s, 0 where no token exists; one lag of weight 1 without a window."""
    if not rule.has_window:
        return s * ops.ones_like(tokens.k, shape=(tokens.k.shape[-2], 1))
    weights = run.weights_by_lag(config, tokens, state)
    # weights that `gate_by_lag` made are 0 already where no token exists
    cleared = tokens.window_gate is not None and state.token_gates is None and tokens.reset is None
    if config.convention.order == "window_then_momentum" and not cleared:
        exists = run.exists(tokens, state, config.window)
        weights = weights if exists.all() else ops.where(exists, weights, 0.0)
    return weights if s == 1.0 else s * weights


# -- states of a rule, as forms hold them ----------------------------------------------------------


def memory(rule: Rule, config: Any, state: Any) -> Memory:
    """The memory at the start of a form, from the rule's state."""
    h = rule.window(config) - 1
    residuals, momenta = (state.residuals, state.momenta) if rule.has_window else (None, None)
    return Memory(
        M=state.M,
        S=_signed(config, state.S) if rule.has_momentum else None,
        reference=state.reference,
        residuals=None if residuals is None else residuals[..., 1:, :],
        momenta=None
        if momenta is None
        else _signed(config, momenta[..., momenta.shape[-3] - h :, :, :]),
    )


def state_after(rule: Rule, config: Any, before: Any, sequence: Recurrence, made: Memory) -> Any:
    """The rule's state after a sequence that began in the state `before`."""
    convention: Convention = config.convention
    changes: dict[str, Any] = {"M": made.M}
    if rule.has_momentum:
        changes["S"] = _signed(config, made.S)
    if convention.frozen_reference or convention.read == "chunk_start":
        changes["reference"] = made.reference
        after = int(sequence.position[-1]) + 1
        changes["position"] = after if convention.reference == "call_start" else after % config.span
    if rule.has_window:
        changes |= _window_after(rule, config, before, sequence, made)
    return before.replaced(**{name: _owned(value) for name, value in changes.items()})


def _owned(value: Any) -> Any:
    """A copy of a view, since a state must not keep a whole sequence alive."""
    return value.copy() if getattr(value, "base", None) is not None else value


def _window_after(
    rule: Rule, config: Any, before: Any, sequence: Recurrence, made: Memory
) -> dict[str, Any]:
    c, T = sequence.window, sequence.length
    sequence = sequence if c <= T else sequence.whole()
    values = sequence.values[..., -c:, :]
    found: dict[str, Any] = {
        "keys": sequence.keys[..., -c:, :],
        "values": values if _subtracts(rule, config) else -values,
        "filled": min(before.filled + T, c),
    }
    if made.residuals is not None:
        found["residuals"] = _padded(made.residuals, c, axis=-2)
    if made.momenta is not None:
        found["momenta"] = _padded(_signed(config, made.momenta), c, axis=-3)
    return found


def _padded(rows: Array, count: int, axis: int) -> Array:
    """The last `count` rows, after zeros where there are fewer."""
    have = rows.shape[axis]
    if have >= count:
        return rows[(..., slice(have - count, None), *[slice(None)] * (-axis - 1))]
    shape = list(rows.shape)
    shape[axis] = count - have
    return ops.concatenate([ops.zeros_like(rows, shape=tuple(shape)), rows], axis=axis)


def _signed(config: Any, S: Array) -> Array:
    """Momentum converted to or from the sign in which the convention stores it."""
    return S if config.convention.momentum_sign == "plus" else -S
