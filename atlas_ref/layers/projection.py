"""Projections: keys, values, queries and gates of a rule from tokens, and the rule driven by them.

    k = W_K x,    v = W_V x,    q = W_Q x,    gates from [k; v]

The parameters are the same for every rule, which none of them knows. Specified in
specs/conventions.md (CONV-28) and specs/gates.md (GATES-6 to GATES-8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import field_validator

from atlas_ref import backend
from atlas_ref.conventions import Convention, OpenGate
from atlas_ref.engine.layers import projection as engine
from atlas_ref.parts import gates, surrogate, window
from atlas_ref.parts.gates import GateSet
from atlas_ref.parts.norms import key_of_gates
from atlas_ref.rules import Rule, rule_of, sequence
from atlas_ref.rules.checks import check_rule, generator, precision, require_floating
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Dims, Frozen, Pulse, check_array, check_kind, read_only
from tape import ops
from tape.nested import flatten

ParamsT = TypeVar("ParamsT", bound=Frozen)


class Params(Frozen):
    """Parameters of a memory at level token, which the outer loop learns (OMEGA-27, GATES-7).

    Attributes:
        W_K (H, d_in, d_model), W_V (H, d_out, d_model), W_Q (H, d_in, d_model): projections.
        gates: of the gates that the rule has under its convention.
        phi: tensors of the memory: of its feature map, or its first weights, by name.
        window: tensors of the window weights, by name.
        surrogate: under reference surrogate W (H, d_out, d_in + d_out), and for a pair of its own
            W_K and W_V as above (SURROGATE-2).
    """

    W_K: Annotated[Array, Dims("H d_in d_model")]
    W_V: Annotated[Array, Dims("H d_out d_model")]
    W_Q: Annotated[Array, Dims("H d_in d_model")]
    gates: GateSet
    phi: dict[str, Any] = {}
    window: dict[str, Any] = {}
    surrogate: dict[str, Any] = {}

    @field_validator("phi", "window", "surrogate")
    @classmethod
    def _arrays(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, array in value.items():
            check_array(name, array, Dims("..."))
        return value


def init(config: Any, seed: int, *, dtype: Any = np.float64) -> Params:
    """Parameters drawn from the counter-based generator Philox with `seed`; gates start at their
    biases (GATES-8).

    Args:
        config: of a rule, with d_model.

    Raises:
        ValueError: the configuration of no rule, or one without d_model.
    """
    rule = rule_of(config)
    if config.d_model is None:
        raise ValueError("init: config.d_model is needed for parameters")
    draw = generator(seed)
    require_floating(dtype)
    H, d_model = config.heads, config.d_model

    def projection(rows: int) -> Array:
        return draw.standard_normal((H, rows, d_model)) / np.sqrt(d_model)

    params = Params(
        W_K=projection(config.d_in),
        W_V=projection(config.d_out),
        W_Q=projection(config.d_in),
        gates=gates.init(
            gate_names(rule.gates, config.convention),
            heads=H,
            d_in=config.d_in,
            d_out=config.d_out,
            per_dimension=config.per_dimension_gates,
            forget=config.convention.gate == "forget",
            draw=draw,
        ),
    )
    params = params.replaced(phi=rule.draw(config, seed))
    if rule.has_window:
        weights = window.init(
            config.window_weights, heads=H, window=config.window, d_model=d_model, draw=draw
        )
        params = params.replaced(window=weights)
    if rule.learns_residual(config):
        learned = surrogate.init(H, config.d_in, config.d_out, draw)
        params = params.replaced(surrogate=learned)
    return cast(params, dtype)


def cast(params: ParamsT, dtype: Any) -> ParamsT:
    """Parameters of the host in another precision, moved to the backend in use (BACKEND-1,
    BACKEND-9).
    """
    leaves, _, build = flatten(params, "params")
    result: ParamsT = build(
        [read_only(backend.current().from_host(leaf.astype(dtype))) for leaf in leaves]
    )
    return result


def gate_names(names: tuple[str, ...], convention: Convention) -> tuple[str, ...]:
    """The gates that a rule computes under a convention."""
    without = {"retain": convention.gate == "none", "step_size": convention.rate == "none"}
    return tuple(name for name in names if not without.get(name, False))


def of_computed(config: Any) -> Any:
    """The configuration for gates computed from tokens: an open gate is that of level token (CONV-4)."""
    convention = config.convention
    if not isinstance(convention, OpenGate):
        return config
    return config.replaced(convention=convention.replaced(gate=convention.gate))


def project(config: Any, params: Any, x: Array) -> dict[str, Array]:
    """Keys, values, queries, gates and window weights of tokens x (B, T, d_model) (CONV-28).

    k = W_K x, v = W_V x, q = W_Q x per head; gates from [k; v] with k after a norm that precedes
    phi.
    """
    each = ops.expand_dims(x, 1)  # (B, 1, T, d_model)
    k, v, q = (each @ ops.transpose(W) for W in (params.W_K, params.W_V, params.W_Q))
    convention: Convention = config.convention
    gated_key = key_of_gates(k, convention)
    rule, gate_set = rule_of(config), params.gates
    if not rule.has_momentum:  # parameters of a rule that has one may be shared (CONTRACT-8)
        gate_set = gate_set.replaced(momentum=None)
    inputs: dict[str, Array] = {"k": k, "v": v, "q": q, **gates.compute(gate_set, gated_key, v)}
    if rule.learns_residual(config):
        inputs["surrogate"] = surrogate.of_tokens(params.surrogate, gated_key, v, each)
    if rule.has_window:
        weights = config.window_weights
        static = window.by_lag(
            weights, params.window, window=config.window, heads=config.heads, like=k
        )
        inputs["window_gate"] = window.by_token(weights, params.window, x)
        inputs["window_weights"] = (
            static if static is None else static + ops.zeros_like(k, shape=(*k.shape[:-1], 1))
        )
    return inputs


def linear(x: Array, W: Array, b: Array | None = None) -> Array:
    """x W^T + b of rows x (..., d), with W (n, d) and b (n,) or None."""
    return _linear(x, W) if b is None else _linear(x, W, b)


def plain_linear(x: Array, W: Array, *b: Array) -> Array:
    """x W^T + b in tape ops."""
    y = x @ ops.transpose(W)
    return y + b[0] if b else y


_linear = engine.block(plain_linear)


def gates_of_tokens(
    params: GateSet, x: Array, step_size: Callable[[Array], Array]
) -> dict[str, Array]:
    """What `gates.from_tokens` computes of tokens x (B, T, d), by one projection for all heads."""
    used = {name: gate for name, gate in params.__dict__.items() if gate is not None}
    if not used:
        return {}
    B, T, D = x.shape
    W = ops.concatenate([ops.reshape(gate.W, (-1, D)) for gate in used.values()], axis=0)
    b = ops.concatenate([ops.reshape(gate.b, (-1,)) for gate in used.values()], axis=0)
    z, fields, first = linear(x, W, b), {}, 0
    values = ops.sigmoid(z)
    for name, gate in used.items():
        H, rows, _ = gate.W.shape
        place = slice(first, first + H * rows)
        other = name == "step_size" and step_size is not ops.sigmoid
        own = step_size(z[..., place]) if other else values[..., place]
        own = ops.swapaxes(ops.reshape(own, (B, T, H, rows)), 1, 2)  # (B, H, T, rows)
        fields[name] = own[..., 0] if rows == 1 else own
        first += H * rows
    return fields


def hidden_gate(params: gates.HiddenGateParams, x: Array) -> Array:
    """Gates of tokens through a hidden layer (GATES-14).

        sigmoid(W_out silu(W_in x))

    Args:
        x (B, T, d_model): tokens.

    Returns:
        (B, H, T), one for each head of W_out.
    """
    z = linear(ops.silu(linear(x, params.W_in)), params.W_out)
    return ops.swapaxes(ops.sigmoid(z), 1, 2)


def _check_surrogate(rule: Rule, config: Any, params: Params) -> None:
    """Check the tensors of a learned residual against the axis reference (SURROGATE-2)."""
    if not rule.learns_residual(config):
        if params.surrogate:
            raise ValueError(f"params: surrogate: reference {config.convention.reference} has none")
        return
    sizes = {"H": config.heads, "d_in": config.d_in, "d_out": config.d_out}
    sizes |= {"d_kv": config.d_in + config.d_out, "d_model": params.W_K.shape[-1]}
    surrogate.check(params.surrogate, sizes)
    if len(params.surrogate) > 1 and rule.window(config) > 1:
        raise ValueError("params: a surrogate with a pair of its own looks at one token")


def check_params(config: Any, params: Any, x: Array) -> None:
    """Check parameters and tokens against a rule's configuration; a momentum gate may be absent
    (GATES-4), and a rule without a momentum does not read it (CONTRACT-8).

    Raises:
        ValueError: names what is wrong, and what the rule needs.
    """
    if not isinstance(params, Params):
        raise ValueError(f"params: {type(params).__name__}, expected layers.projection.Params")
    if config.convention.rate == "split":
        raise ValueError("convention: rate split has no second rate at level token")
    rule = rule_of(config)
    _check_surrogate(rule, config, params)
    extra = [
        name
        for name, gate in params.gates.__dict__.items()
        if gate is not None and name not in (*rule.gates, "momentum")
    ]
    extra += [name for name in ("phi", "window") if getattr(params, name) and not rule.has_window]
    if extra:
        raise ValueError(f"params: {extra[0]}: the rule {rule.name} has none")
    for name in gate_names(rule.gates, config.convention):
        if name != "momentum" and getattr(params.gates, name) is None:
            raise ValueError(f"params: gates.{name}: missing, the rule {rule.name} needs it")
    H, d_in, d_model = params.W_K.shape
    sizes = {"heads": H, "d_in": d_in, "d_model": d_model, "d_out": params.W_V.shape[-2]}
    for name, size in sizes.items():
        if getattr(config, name) != size:
            raise ValueError(
                f"params: {name} is {size}, but {getattr(config, name)} in the configuration"
            )
    check_array("x", x, Dims("..."))
    if len(x.shape) != 3 or x.shape[-1] != d_model:
        raise ValueError(f"x: shape {x.shape}, expected (batch, tokens, {d_model})")
    if precision(x) != precision(params.W_K):
        raise ValueError(
            f"x: {precision(x)}, but params are {precision(params.W_K)}; cast them to one precision "
            "(init takes dtype)"
        )


def run_tokens(
    rule: Rule,
    config: Any,
    params: Any,
    x: Array,
    state: Any,
    *,
    active: Array | None = None,
    reset: Array | None = None,
) -> tuple[Any, Array]:
    """Drive a rule over tokens: `project`, then `run`.

    Args:
        x (B, T, d_model): tokens.
        state: leading axes (B, H).

    Returns:
        state, y (B, H, T, d_out).

    Raises:
        ValueError: parameters or tokens that contradict the configuration, or rate split, which has
            no second gate.
    """
    check_rule(rule, config)
    check_params(config, params, x)
    tokens = Tokens(**project(config, params, x), active=active, reset=reset)
    return sequence.run(rule, of_computed(config), tokens, state, phi=params.phi)


def step(
    config: Any, params: Params, state: Any, x: Array, pulse: Pulse, *, level: int = 0
) -> tuple[Any, Array]:
    """Run one token: project, gate, write if the pulse is active, read (OMEGA-2, CONTRACT-4).

    Args:
        x (B, d_model): tokens.
        state: leading axes (B, H).
        level: that the memory is among those of the pulse, counted from 0.

    Returns:
        state, y (B, H, d_out).

    Raises:
        ValueError: tokens of another shape, no pulse, a level that it does not have, or what
            `run_tokens` refuses.
    """
    _check_step(x, pulse)
    state, y = run_tokens(
        rule_of(config),
        config,
        params,
        ops.expand_dims(x, -2),
        state,
        active=np.array([pulse.is_active(level)]),
    )
    return state, y[..., 0, :]


def _check_step(x: Any, pulse: Any) -> None:
    """Refuse what is no token of each sequence, and no pulse (CONTRACT-4, CONTRACT-5)."""
    found = check_kind("x", x).shape
    if len(found) != 2:
        raise ValueError(f"x: shape {found}, expected (batch, d_model)")
    if not isinstance(pulse, Pulse):
        raise ValueError(f"pulse: a Pulse is needed, found {type(pulse).__name__}")
