"""A rule over a sequence: the part that all rules share.

The axes gate, read, reference, layout, query_scale and norms live here, together with pulses,
resets of packed sequences, spans and initial window contents. Specified in specs/conventions.md.

A call may be split anywhere: CONV-38.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import model_validator

from atlas_ref.backend.buffers import short_buffers
from atlas_ref.conventions import Convention
from atlas_ref.parts import feature_maps, gates, rows, window
from atlas_ref.parts.gates import Gates
from atlas_ref.parts.norms import keys_normalised
from atlas_ref.rules.checks import KEY_CHANNEL, check_call
from atlas_ref.rules.reads import Reads
from atlas_ref.rules.rule import Rule
from atlas_ref.types import Array, Dims, Frozen, check_array, check_kind, read_only
from tape import ops

ParamsT = TypeVar("ParamsT", bound=Frozen)


class Tokens(Frozen):
    """A projected sequence of T tokens, with any leading axes: keys, values, queries and gates
    (CONV-27, CONV-28).

    Attributes:
        k (..., T, d_in), v (..., T, d_out), q (..., T, d_in): before norms and feature map.
        retain, momentum, step_size, step_size_memory: (..., T), or (..., T, d_out) for one per
            output dimension; momentum (..., T, m) where a rule has m orders of it; None where the
            rule or the convention has none.
        window_weights (..., T, c): weight at t of token t - j.
        window_gate (..., T): the weight that a token has at every lag; with both, their product
            counts.
        active: (T,) or, of each row of a batch, the leading axes without the last and T (CONV-68):
            False where M and S stay; None for all True.
        reset: alike, True where a packed sequence starts; None for nowhere.
        surrogate (..., T, d_out): under reference surrogate the learned residual (SURROGATE-1).
        threshold (..., T): of a deep memory with bias huber, one for each token (DEEP-36).
    """

    k: Annotated[Array, Dims("... T d_in")]
    v: Annotated[Array, Dims("... T d_out")]
    q: Annotated[Array, Dims("... T d_in")]
    retain: Any = None
    momentum: Any = None
    step_size: Any = None
    step_size_memory: Any = None
    window_weights: Annotated[Array, Dims("... T c", optional=True)] = None
    window_gate: Annotated[Array, Dims("... T", optional=True)] = None
    active: Any = None
    reset: Any = None
    surrogate: Annotated[Array, Dims("... T d_out", optional=True)] = None
    threshold: Annotated[Array, Dims("... T", low=0.0, optional=True)] = None

    @model_validator(mode="after")
    def _check_gates(self) -> Self:
        if self.k.shape[-2] == 0:
            raise ValueError(f"k: shape {self.k.shape} has no token, at least one is needed")
        scalar, per_dimension = self.k.shape[:-1], self.v.shape
        for name, high in (
            ("retain", 1.0),
            ("momentum", 1.0),
            ("step_size", None),
            ("step_size_memory", None),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            check_array(name, value, Dims("...", low=0.0, high=high))
            if name == "momentum" and value.shape[:-1] == scalar:
                continue  # the rule says how many orders
            if value.shape not in (scalar, per_dimension):
                about = f" is {KEY_CHANNEL};" if value.shape == self.k.shape else ","
                raise ValueError(
                    f"{name}: shape {value.shape}{about} expected {scalar} or, one per output "
                    f"dimension, {per_dimension}"
                )
        rows.check_masks(self, self.k.shape[:-2], self.k.shape[-2])
        return self


def run(
    rule: Rule, config: Any, tokens: Tokens, state: Any, *, phi: Mapping[str, Array] | None = None
) -> tuple[Any, Array]:
    """Drive a rule over a sequence (CONV-29).

    At each token, in this order: a reset; the start of a span; the write, or for an inactive token
    the entry into the window alone; the read.

    Args:
        state: from the rule's `start`, or from an earlier call, which this one then continues
            (CONV-38).
        phi: tensors of the feature map, by name.

    Returns:
        state after the last token, y (..., T, d_out).

    Raises:
        ValueError: what is no rule, or a configuration, tokens or a state that contradict the rule,
            its convention or each other.
    """
    if parts := groups(rule, tokens):
        check_call(rule, config, tokens, state)
        own = partial(run, rule, config, phi=phi)
        state, y = rows.run(parts, own, tokens, state)
        return read_only_state(state), y
    check_tokens(tokens)
    if isinstance(rule, Rule) and rule.run is not None:
        return rule.run(rule, config, tokens, state, phi=phi)
    check_call(rule, config, tokens, state)
    T = tokens.k.shape[-2]
    keys, queries = features(config, tokens, phi or {})
    per_token = gates_by_token(config, tokens, state)
    active = np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active)
    reset = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    fresh = rule.anew(config, tokens, state) if reset.any() else None
    entering = _entering(rule, config, keys, targets(rule, config, tokens), state, fresh, reset)
    per_query = ops.moveaxis(queries, -2, 0)
    with short_buffers():
        state, y = _each_token(
            rule,
            config,
            state,
            fresh,
            zip(active, reset, entering, per_query, per_token, strict=True),
        )
    return read_only_state(with_token_gates(config, tokens, state)), y


def groups(rule: Any, tokens: Any) -> list[rows.Group]:
    """Rows by the masks that they share; none of a rule that takes one for all (CONV-68)."""
    if not isinstance(tokens, Tokens) or not isinstance(rule, Rule) or rule.run is not None:
        return []
    return rows.of_tokens(tokens)


def check_tokens(tokens: Any) -> None:
    """Refuse an object that is no `Tokens`, and masks by row, which are taken apart before.

    Raises:
        ValueError: what was found.
    """
    if not isinstance(tokens, Tokens):
        raise ValueError(f"tokens: a Tokens is needed, found {type(tokens).__name__}")
    rows.require_one(tokens, tokens.k.shape[-2])


def read_only_state(state: Any) -> Any:
    """The state of the last token with its arrays read-only, as at every boundary, without a
    copy.
    """
    for array in state.__dict__.values():
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return state


def _each_token(
    rule: Rule, config: Any, state: Any, fresh: Any, tokens: Iterable[Any]
) -> tuple[Any, Array]:
    """The state after the last token and the read of each token (CONV-31, CONV-32)."""
    convention: Convention = config.convention
    spans = convention.frozen_reference or convention.read == "chunk_start"
    reads = Reads(rule, config)
    waiting: list[Array] = []  # queries that read the last memory of their packed sequence

    for active, reset, (k, v), q, gate in tokens:
        if reset:
            reads.add(state, *waiting)
            waiting, state = [], fresh
        if spans and (state.reference is None or (state.position == 0 and refreshes(convention))):
            state = state.replaced(reference=state.M)
        before = state
        if active:
            reads.close({"before": state.M, "chunk_start": state.reference}.get(convention.read))
        state = rule.write(config, state, k, v, gate) if active else rule.rest(config, state, k, v)
        if convention.read == "after":
            reads.add(state, q)
        elif convention.read == "before":
            reads.add(before, q)
        elif convention.read == "chunk_start":
            reads.add(before.replaced(M=before.reference), q)
        else:
            waiting.append(q)
        if spans:
            state = state.replaced(position=_next_position(config, state.position))
    reads.add(state, *waiting)
    return state, reads.all()


def _entering(
    rule: Rule, config: Any, keys: Array, values: Array, state: Any, fresh: Any, reset: Array
) -> Iterable[tuple[Array, Array]]:
    """The pairs of every token; after a reset they enter a fresh state (CONV-33)."""
    starts = sorted({0, *np.nonzero(reset)[0].tolist()})
    for first, last in itertools.pairwise([*starts, len(reset)]):
        yield from rule.enter(
            config,
            fresh if reset[first] else state,
            keys[..., first:last, :],
            values[..., first:last, :],
        )


def require_span(convention: Convention, span: int | None) -> None:
    """Refuse a reference or a read at the start of spans without their length (CONV-11, CONV-12).

    Raises:
        ValueError: names the axis.
    """
    for axis in ("reference", "read"):
        if getattr(convention, axis) == "chunk_start" and span is None:
            raise ValueError(f"span: missing, {axis} chunk_start needs one")


def initial(
    name: str,
    value: Array | None,
    shape: tuple[int, ...],
    *,
    zeros: Callable[[], Array],
    exact: bool = False,
) -> Array:
    """An initial memory or momentum, checked and read-only; zeros for None.

    Args:
        shape: of its last axes, or if `exact`, of all.
        zeros: makes a new array, which becomes read-only itself.

    Raises:
        ValueError: names the array, its shape and the one needed.
    """
    if value is None:
        array = check_kind(name, zeros())
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
        return array
    check_array(name, value, Dims("..."))
    if value.shape[-len(shape) :] != shape or (exact and value.shape != shape):
        raise ValueError(
            f"{name}: shape {value.shape}, expected {shape}"
            + ("" if exact else ", after any leading axes")
        )
    return read_only(value)


# -- spans -----------------------------------------------------------------------------------------


def first_position(config: Any) -> int:
    """Place of the first token in its span.

    0, or 1 where spans start at multiples counted from 1 (CONV-13, CONV-30).
    """
    counted_from_one = (
        config.convention.span_origin == "multiple" and config.convention.reference != "call_start"
    )
    return 1 % config.span if counted_from_one and config.span is not None else 0


def refreshes(convention: Convention) -> bool:
    return convention.reference != "call_start"


def _next_position(config: Any, position: int) -> int:
    if config.convention.reference == "call_start":
        return position + 1
    return int((position + 1) % config.span)


# -- keys, queries and gates of the whole sequence -------------------------------------------------


def features(config: Any, tokens: Tokens, phi: Mapping[str, Array]) -> tuple[Array, Array]:
    """Keys and queries of a sequence after norm, feature map and query scale (CONV-23, CONV-35)."""
    convention: Convention = config.convention
    queries = mapped(config, phi, tokens.q, convention.q_norm)
    if convention.query_scale != 1.0:
        queries = queries * (1.0 / math.sqrt(tokens.q.shape[-1]))
    return mapped(config, phi, tokens.k, convention.k_norm), queries


def mapped(config: Any, phi: Mapping[str, Array], x: Array, norm: str) -> Array:
    """Keys or queries after norm and feature map, in the order of norm_place (CONV-35, CONV-58)."""
    feature_map = getattr(config, "feature_map", feature_maps.IDENTITY)
    convention: Convention = config.convention
    if convention.norm_place == "before_phi":
        x = keys_normalised(x, norm, convention)
        return feature_maps.of_checked(feature_map, phi, x)
    return keys_normalised(feature_maps.of_checked(feature_map, phi, x), norm, convention)


def targets(rule: Rule, config: Any, tokens: Tokens) -> Array:
    """What keys are to be answered with: values, or what makes the learned residual (SURROGATE-3)."""
    if not rule.learns_residual(config):
        return tokens.v
    return target_of(config, tokens.surrogate)


def target_of(config: Any, residual: Array) -> Array:
    """The target whose residual against no memory is the learned one (SURROGATE-3, SURROGATE-5)."""
    return residual if config.convention.value_sign == "plus" else -residual


def gates_by_token(config: Any, tokens: Tokens, state: Any) -> list[Gates]:
    """One `Gates` per token, each gate a column that scales rows (CONV-66)."""
    T = tokens.k.shape[-2]
    scalar = tokens.k.shape[:-1]

    def columns(value: Array) -> Any:
        if value is None:
            return [None] * T
        return ops.moveaxis(gates.as_column(value, per_dimension=value.shape != scalar), -3, 0)

    c: Convention = config.convention
    retain = gates.bounded(tokens.retain, c.retain_bounds)
    retain = None if retain is None else gates.multiplier(retain, c.gate)
    step_size = gates.bounded(tokens.step_size, c.step_bounds)
    weights = _window_weights(config, tokens, state)
    given = (retain, tokens.momentum, step_size, tokens.step_size_memory)
    parts = [columns(each) for each in given]
    names = ("retain", "momentum", "step_size", "step_size_memory", "window_weights")
    return [
        Gates.trusted(**dict(zip(names, each, strict=True)))
        for each in zip(*parts, weights, strict=True)
    ]


def _window_weights(config: Any, tokens: Tokens, state: Any) -> Any:
    """Per token (..., c, 1), oldest first; None for rules without a window."""
    if getattr(config, "window", None) is None:
        return [None] * tokens.k.shape[-2]
    # (..., T, c, 1)
    oldest_first = ops.expand_dims(ops.flip(weights_by_lag(config, tokens, state), -1), -1)
    return ops.moveaxis(oldest_first, -3, 0)


def weights_by_lag(config: Any, tokens: Tokens, state: Any) -> Array:
    """Window weights (..., T, c) with gates and edges applied (WINDOW-2 to WINDOW-9, CONV-15).

    1/c each where the tokens state none.
    """
    T, c = tokens.k.shape[-2], config.window
    weights = tokens.window_weights
    if tokens.window_gate is not None:
        before = None if state.token_gates is None else state.token_gates[..., 1:]
        gate = window.gate_by_lag(tokens.window_gate, window=c, before=before)
        if tokens.reset is not None:
            # a token before the reset brings nothing
            gate = ops.where(exists(tokens, state, c), gate, 0.0)
        weights = gate if weights is None else weights * gate
    if weights is None:
        weights = ops.ones_like(tokens.k, shape=(T, c)) * (1.0 / c)
    if (
        config.convention.window_edge == "renormalise"
        and c > 1
        and config.convention.order == "window_then_momentum"
    ):
        weights = window.renormalised(weights, exists(tokens, state, c))
    return weights


def exists(tokens: Tokens, state: Any, c: int) -> Array:
    """Plain booleans (T, c): whether the token at each lag exists in its packed sequence."""
    T = tokens.k.shape[-2]
    fresh = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    token = np.arange(T)
    # where its sequence began, or would have
    start = np.maximum.accumulate(np.where(fresh, token, -min(state.filled, c)))
    counts = token - start
    return np.arange(c)[None, :] <= counts[:, None]


def with_token_gates(config: Any, tokens: Tokens, state: Any) -> Any:
    """The state with the gates of its window tokens, where tokens bring one."""
    if tokens.window_gate is None:
        return state
    c, gate = config.window, tokens.window_gate
    held = (
        state.token_gates
        if state.token_gates is not None
        else ops.zeros_like(gate, shape=(*gate.shape[:-1], c))
    )
    if tokens.reset is not None and np.any(tokens.reset):
        first = int(np.nonzero(tokens.reset)[0][-1])
        held, gate = ops.zeros_like(held), gate[..., first:]
    return state.replaced(token_gates=ops.concatenate([held, gate], axis=-1)[..., -c:])
