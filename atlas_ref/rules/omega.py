"""Omega: a memory that learns from a window of recent tokens, with Newton-Schulz on its momentum.

    e[t,i] = M_ref phi(k_i) - v_i                                  i = t-c+1 .. t
    g_t    = s sum_j gamma[t,j] e[t,t-j] phi(k_{t-j})^T
    S_t    = momentum_t S_{t-1} + a_t g_t
    U_t    = NewtonSchulz(S_t)
    M_t    = retain_t M_{t-1} - b_t U_t
    y_t    = M_t phi(q_t)

Specified in specs/omega.md. Source: Atlas (2505.23735) Eqs 9, 10, 32, 33.

Its guarantees, cost, special cases and backward: OMEGA-14 to OMEGA-26; its noise: OMEGA-31. Settings
that make it the same function: CONV-39 to CONV-62.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from atlas_ref import backend
from atlas_ref.conventions import Convention, resolve
from atlas_ref.parts import ceiling, feature_maps, window
from atlas_ref.parts.feature_maps import IDENTITY, FeatureMap
from atlas_ref.parts.gates import Gates
from atlas_ref.parts.momentum import accumulated
from atlas_ref.parts.newton_schulz import newton_schulz
from atlas_ref.parts.window import Uniform, WindowWeights
from atlas_ref.rules import boundaries, matrices, sequence
from atlas_ref.rules.checks import check_start, stores_residuals
from atlas_ref.rules.rule import Rule, by_name
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Sizes and choices of an Omega memory.

    Attributes:
        d_in, d_out: length of keys and queries; of values and reads.
        d_model, heads: length of a token and number of heads, for level token.
        window: c, tokens that the gradient looks at.
        span: tokens between refreshes of a frozen reference, or of the memory that read chunk_start
            reads.
        feature_map, features: phi, and its d_phi where the kind leaves it open.
        window_weights: kind of the weights of window tokens at level token.
        per_dimension_gates: one gate per output dimension instead of one per head.
        convention: a preset's name, a mapping of axes, or a `Convention`.
    """

    d_in: Count
    d_out: Count
    d_model: Count | None = None
    heads: Count = 1
    window: Count = 8
    span: Count | None = None
    feature_map: FeatureMap = IDENTITY
    features: Count | None = None
    window_weights: WindowWeights = Uniform()
    per_dimension_gates: bool = False
    convention: Convention = resolve("spec", rule="omega")

    @field_validator("convention", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Convention:
        return resolve(value, rule="omega", level="token")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        c = self.convention
        sequence.require_span(c, self.span)
        if c.order == "momentum_then_window" and c.argument == "written_back":
            raise ValueError(
                "newton_schulz.argument: written_back is not defined for order momentum_then_window"
            )
        return self

    @property
    def d_phi(self) -> int:
        if self.feature_map.kind in feature_maps.OF_ANY_WIDTH:
            return self.features or self.d_in
        return feature_maps.d_phi(self.feature_map, self.d_in)


class State(Frozen):
    """Everything that a split between two tokens must carry (OMEGA-1, OMEGA-28).

    Attributes:
        M (..., d_out, d_phi): memory.
        S (..., d_out, d_phi): momentum; under momentum_then_window the momentum before the window
            sum.
        keys (..., c, d_phi), values (..., c, d_out): the window, oldest first, zero rows where
            missing.
        filled: tokens in the window.
        reference (..., d_out, d_phi): memory at the start of the span or call; None before the
            first token.
        position: place of the next token in its span.
        residuals (..., c, d_out): under carry, the residual of each window token when it arrived.
        momenta (..., c, d_out, d_phi): under momentum_then_window, the momentum of each window
            token.
        token_gates (..., c): the weight that each window token brought, where tokens bring one.
        gradients (..., c, d_out, d_phi): window tokens that came as matrices (OMEGA-29).
    """

    M: Annotated[Array, Dims("... d_out d_phi")]
    S: Annotated[Array, Dims("... d_out d_phi")]
    keys: Annotated[Array, Dims("... c d_phi")]
    values: Annotated[Array, Dims("... c d_out")]
    filled: Annotated[int, Field(ge=0)] = 0
    reference: Annotated[Array, Dims("... d_out d_phi", optional=True)] = None
    position: Annotated[int, Field(ge=0)] = 0
    residuals: Annotated[Array, Dims("... c d_out", optional=True)] = None
    momenta: Annotated[Array, Dims("... c d_out d_phi", optional=True)] = None
    token_gates: Annotated[Array, Dims("... c", optional=True)] = None
    gradients: Annotated[Array, Dims("... c d_out d_phi", optional=True)] = None


def start(
    config: Config,
    leading: tuple[int, ...] = (),
    *,
    dtype: Any = np.float64,
    M: Array = None,
    S: Array = None,
) -> State:
    """The state before the first token: M_0 and S_0, zero by default, empty window (OMEGA-1)."""
    check_start(Config, config, leading, dtype)
    shape = (config.d_out, config.d_phi)
    M = sequence.initial(
        "M", M, (*leading, *shape), zeros=lambda: backend.current().zeros((*leading, *shape), dtype)
    )
    S = sequence.initial("S", S, M.shape, zeros=lambda: ops.zeros_like(M), exact=True)
    return restart(config, State.trusted(M=M, S=S))


def restart(config: Config, state: State) -> State:
    """The same M and S with an empty window, at the start of a packed sequence (WINDOW-16)."""
    M, c = state.M, config.window
    lead = M.shape[:-2]
    keys = ops.zeros_like(M, shape=(*lead, c, M.shape[-1]))
    values = ops.zeros_like(M, shape=(*lead, c, M.shape[-2]))
    return State.trusted(
        M=M,
        S=state.S,
        keys=keys,
        values=values,
        filled=0,
        reference=None,
        position=sequence.first_position(config),
        residuals=values if stores_residuals(config) else None,
        momenta=ops.zeros_like(M, shape=(*lead, c, *M.shape[-2:]))
        if config.convention.order == "momentum_then_window"
        else None,
        token_gates=None,
        gradients=None,
    )


class Update(NamedTuple):
    """The values of one write in order, and the state after it."""

    residual: Array
    gradient: Array
    S: Array
    U: Array
    M: Array
    state: State


def write(config: Config, state: State, k: Array, v: Array, gates: Gates) -> State:
    """Push one token into the window and move the memory (OMEGA-2 to OMEGA-11).

    Args:
        k (..., d_phi): the key after norms and feature map.
        v (..., d_out): the value.
        gates: this token's gates; window_weights (..., c, 1), oldest first.

    Reduces to: titans_lmm for c = 1, gamma = 1, no feature map, no Newton-Schulz; delta when
    momentum is also 0.

    Source: Atlas Eqs 9, 10, 32, 33; OMEGA-2 to OMEGA-11.
    """
    return update(config, state, k, v, gates).state


def update(config: Config, state: State, k: Array, v: Array, gates: Gates) -> Update:
    """`write` with its intermediate values (OMEGA-2 to OMEGA-11)."""
    return _update(config, state, ops.slide(state.keys, k), ops.slide(state.values, v), gates)


def rest(config: Config, state: State, k: Array, v: Array) -> State:
    """The state after an inactive token, which only enters the window (OMEGA-13, WINDOW-17)."""
    return _rest(config, state, ops.slide(state.keys, k), ops.slide(state.values, v))


def read(config: Config, state: State, q: Array) -> Array:
    """y = M phi(q) (OMEGA-12), or NS(M) phi(q) under argument accumulated (OMEGA-9).

    Args:
        q (..., d_phi): the query after norms, feature map and scale.
    """
    M = state.M
    if config.convention.argument == "accumulated":
        M = newton_schulz(M, config.convention.newton_schulz_settings)
    return (M @ q[..., None])[..., 0]


# -- the parts of one write, from the window that already holds the token --------------------------


def _enter(
    config: Config, state: State, keys: Array, values: Array
) -> Iterable[tuple[Array, Array]]:
    """The window after each token has entered it (OMEGA-3, WINDOW-1)."""
    return zip(window.slid(state.keys, keys), window.slid(state.values, values), strict=True)


def _write(config: Config, state: State, keys: Array, values: Array, gates: Gates) -> State:
    return _update(config, state, keys, values, gates).state


def _update(config: Config, state: State, keys: Array, values: Array, gates: Gates) -> Update:
    """One write in order: residual, gradient, momentum, direction, memory (OMEGA-2, OMEGA-5)."""
    if config.convention.order == "momentum_then_window":
        return _update_momentum_first(config, state, keys, values, gates)
    residual, residuals = _residual(config, state, keys, values, gates.retain)  # (..., c, d_out)
    weights = _weights(config, state, gates.window_weights)  # (..., c, 1)
    gradient = (weights * residual).swapaxes(-1, -2) @ keys  # (..., d_out, d_phi)
    gradients = matrices.slid(state.gradients)
    gradient = matrices.summed(gradient, gradients, gates.window_weights)

    a, b = _rates(config.convention.rate, gates)
    S = _momentum(config, state.S, gradient, a, gates)
    U = _orthogonalised(config, S, gradient, gates)
    M = _moved(config, state.M, _times(b, U), gates)
    S_next = U if config.convention.argument == "written_back" else S
    after = state.replaced(M=M, S=S_next, keys=keys, values=values, residuals=residuals)
    after = after.replaced(filled=_filled(config, state), gradients=gradients)
    return Update(residual, gradient, S, U, M, after)


def _update_momentum_first(
    config: Config, state: State, keys: Array, values: Array, gates: Gates
) -> Update:
    """One write under order momentum_then_window (OMEGA-11, CONV-16).

    Z_t = momentum_t Z_{t-1} + a_t s e_t phi_t^T,    S_t = sum_j gamma[t,j] Z_{t-j}
    """
    residual, _ = _residual(config, state, keys, values, gates.retain)
    gradient = matrices.scale(config) * ops.outer(residual[..., -1, :], keys[..., -1, :])
    a, b = _rates(config.convention.rate, gates)
    Z = _momentum(config, state.S, gradient, a, gates)
    momenta = matrices.slid(state.momenta, Z)
    S = ops.sum(ops.expand_dims(gates.window_weights, -1) * momenta, axis=-3)
    U = _orthogonalised(config, S, gradient, gates)
    M = _moved(config, state.M, _times(b, U), gates)
    after = state.replaced(
        M=M, S=Z, keys=keys, values=values, filled=_filled(config, state), momenta=momenta
    )
    return Update(residual, gradient, S, U, M, after)


def _rest(config: Config, state: State, keys: Array, values: Array) -> State:
    """The state after an inactive token's pair has entered; M and S stay (OMEGA-13, CONV-32)."""
    gradients = matrices.slid(state.gradients)
    filled = _filled(config, state)
    after = state.replaced(keys=keys, values=values, filled=filled, gradients=gradients)
    if state.momenta is not None:
        return after.replaced(momenta=matrices.slid(state.momenta, state.S))
    if state.residuals is not None:
        return after.replaced(residuals=_residual(config, state, keys, values, None)[1])
    return after


def _filled(config: Config, state: State) -> int:
    return min(state.filled + 1, config.window)


def _residual(
    config: Config, state: State, keys: Array, values: Array, retain: Array
) -> tuple[Array, Array]:
    """Residuals of the window tokens, and under carry also those stored at arrival.

    OMEGA-4, WINDOW-11, WINDOW-13, CONV-5, CONV-10, CONV-31.
    """
    convention = config.convention
    if convention.reference == "running":
        M_ref = state.M
    elif convention.reference in ("zero", "surrogate"):
        M_ref = ops.zeros_like(state.M)
    else:
        M_ref = state.reference
    if convention.decay == "before_error":
        M_ref = _times(retain, M_ref)
    predicted = keys @ M_ref.swapaxes(-1, -2)  # (..., c, d_out)
    residual = predicted - values if convention.value_sign == "minus" else predicted + values
    return boundaries.carried(config, state, residual)


def _weights(config: Config, state: State, weights: Array) -> Array:
    """Weights times s; 0 for rows of an older span under cut (OMEGA-5, WINDOW-12, CONV-14)."""
    s = matrices.scale(config)
    weights = boundaries.cut(config, state, weights)
    return weights if s == 1.0 else s * weights


def _rates(rate: str, gates: Gates) -> tuple[Array, Array]:
    """(a, b), the factors of the gradient in S and of the update in M; None is 1 (OMEGA-7)."""
    a = gates.step_size if rate in ("momentum", "both", "split") else None
    if rate == "split":
        return a, gates.step_size_memory
    return a, gates.step_size if rate in ("memory", "both") else None


def _momentum(config: Config, S: Array, gradient: Array, a: Array, gates: Gates) -> Array:
    """S_t from S_{t-1} and a_t g_t, with the sign of momentum_sign (OMEGA-6, CONV-8, CONV-70)."""
    kind, sign = config.convention.momentum_kind, config.convention.momentum_sign
    return accumulated(S, gradient, _times(a, gradient), gates.momentum, kind=kind, sign=sign)


def _times(factor: Array, x: Array) -> Array:
    return x if factor is None else factor * x


def _orthogonalised(config: Config, S: Array, gradient: Array, gates: Gates) -> Array:
    """U from S: Newton-Schulz of the chosen argument (OMEGA-8, CONV-17, CONV-22)."""
    convention = config.convention
    if not convention.has_newton_schulz or convention.argument == "accumulated":
        return S
    if convention.argument == "nesterov":
        g = gradient if convention.momentum_sign == "plus" else -gradient
        S = g if gates.momentum is None else g + gates.momentum * S
    return newton_schulz(S, convention.newton_schulz_settings)


def _moved(config: Config, M: Array, change: Array, gates: Gates) -> Array:
    """M_t from M_{t-1} and b_t U_t, signed, below its ceiling (OMEGA-10, CONV-9, CONV-67)."""
    convention = config.convention
    memory = _times(gates.retain, M)
    adds = (convention.momentum_sign == "minus") != (convention.direction == "ascent")
    return ceiling.held(memory + change if adds else memory - change, convention.memory_ceiling)


RULE = Rule(
    name="omega",
    gates=("retain", "momentum", "step_size"),
    clauses=by_name(
        {
            "OMEGA-4": "residual",
            "OMEGA-5": "gradient",
            "OMEGA-6": "S out/S",
            "OMEGA-11": "P",
            "OMEGA-8": "U",
            "OMEGA-10": "M out/M",
            "OMEGA-12": "y out/y",
            "CONV-31": "out/M_ref",
            "OMEGA-28": "out",
            "OMEGA-23": (
                "grad/q grad/M0 grad/retain grad/log_retain trace_grad/M trace_grad/U "
                "trace_grad/phi_q trace_grad/retain"
            ),
            "OMEGA-24": (
                "grad/step_size grad/step_size_memory grad/momentum grad/log_momentum "
                "grad/S0 trace_grad/S trace_grad/P trace_grad/gradient "
                "trace_grad/momentum trace_grad/step_size"
            ),
            "OMEGA-25": (
                "grad/k grad/v grad/window_weights grad/window_gate grad/window_k "
                "grad/window_v grad/window_gate_before grad/window_residual trace_grad"
            ),
            "OMEGA-26": "grad/M_ref grad/window_momentum",
            "PHI-16": "grad/phi",
            "OMEGA-27": "grad trace_grad/k trace_grad/v trace_grad/q",
            "CASE-14": "trace_grad/y",
        }
    ),
    has_error=True,
    has_momentum=True,
    has_window=True,
    has_newton_schulz=True,
    in_family=True,
    memories=("M", "S"),
    Config=Config,
    State=State,
    start=start,
    restart=restart,
    write=_write,
    rest=_rest,
    read=read,
    enter=_enter,
    tensors=lambda c: feature_maps.shapes(c.feature_map, c.d_in, features=c.features),
    draw=lambda c, seed: feature_maps.init(c.feature_map, c.d_in, seed, features=c.features),
)
