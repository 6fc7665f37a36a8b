"""One write of a deep memory: gradient, clip, momentum, direction, weights.

    g = d/dW sum_i w_i |M(k_i; W_ref) - v_i|^2      S = momentum S + a g      W = retain W - b U(S)

Specified in specs/deep_memory.md (DEEP-7 to DEEP-13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from atlas_ref.parts import biases, memory_functions, retentions
from atlas_ref.parts.newton_schulz import newton_schulz
from atlas_ref.rules.deep_memory import deep_momentum
from atlas_ref.rules.deep_memory.carry import carry
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.rules.deep_memory.state import Tensors, of_leading
from atlas_ref.types import Array
from tape import ops

#: Guard of the norm in a hard clip and in S / (|S| + 1e-8).
GUARD = 1e-8


class Rows(NamedTuple):
    """The tokens that a write looks at: keys (..., n, d_in), values (..., n, d_out), their weights
    (..., n), the tensors of the memory that no write moves, and thresholds (..., n) of bias huber
    or None (DEEP-36).
    """

    keys: Array
    values: Array
    weights: Array
    slow: Tensors
    thresholds: Array = None


class Rates(NamedTuple):
    """Gates of a write, each (...,) or None; momentum of several orders (..., m)."""

    retain: Array
    momentum: Array
    step_size: Array
    step_size_memory: Array


class Update(NamedTuple):
    """The values of one write in order."""

    predicted: Array
    residual: Array
    gradient: dict[str, Array]
    momentum: dict[str, Array]
    direction: dict[str, Array]
    weights: dict[str, Array]


def update(
    config: Config,
    weights: Tensors,
    momentum: Tensors,
    reference: Tensors,
    rows: Rows,
    rates: Rates,
    *,
    first: bool = True,
) -> Update:
    """W and S after one write, with the values on the way (DEEP-7 to DEEP-13).

    Args:
        weights, momentum: W and S before it; an empty momentum is zero.
        reference: weights at which the loss is differentiated.
        first: whether the write is the first of its span (DEEP-39).
    """
    c, ranks = config.convention, {name: len(shape) for name, shape in config.fast_shapes.items()}
    if config.outer_gradient != "full":
        rows, momentum, reference = (constant(each) for each in (rows, momentum, reference))
    if c.decay == "before_error":
        reference = {name: scaled(rates.retain, reference[name], ranks[name]) for name in ranks}
    predicted, residual, g = gradient(config, mapped(config, reference), rows)
    a, b = _steps(config, g, rates)
    g = clipped(config, g)
    minus = c.momentum_sign == "minus"
    adds = minus != (c.direction == "ascent")
    S, ahead = _moved(config, rates.momentum, momentum, a, g)
    U, W = {}, {}
    for name, rank in ranks.items():
        own = ahead[name]
        if c.argument == "nesterov":
            own = _carried(rates.momentum, S[name], g[name], rank, minus=minus)
        U[name] = direction(config, own, rank)
        U[name] = _through(config, U[name])
        change = scaled(b, U[name], rank)
        W[name] = retained(
            config, rates.retain, weights[name], change, rank, minus=not adds, first=first
        )
    return Update(predicted, residual, g, S, U, W)


def gradient(
    config: Config, reference: Tensors, rows: Rows
) -> tuple[Array, Array, dict[str, Array]]:
    """Predictions, residuals and g = dloss/dW at the reference (DEEP-7, DEEP-8).

    gy_i = s w_i slope(e_i) / n, with n = 1 for sum and the number of tokens and shared rows for
    mean; slope is half the derivative of the attentional bias, e of l2 (DEEP-26).
    """
    c, params = config.convention, {**rows.slow, **reference}
    value = memory_functions.forward(config.memory, params, rows.keys)
    predicted = value.y
    values = rows.values if c.value_sign == "minus" else -rows.values
    residual = biases.residual(config.bias, predicted, values)
    s = 2.0 / config.d_out if isinstance(c.gradient_scale, str) else c.gradient_scale
    shared = config.coupling == "batch_shared" and len(residual.shape) > 2
    if config.reduction == "mean":
        s = s / (residual.shape[-2] * (residual.shape[0] if shared else 1))
    slope = biases.half_slope(config.bias, residual, rows.thresholds)
    gy = (s * ops.expand_dims(rows.weights, -1)) * slope
    names = tuple(config.fast_shapes)
    g, _ = memory_functions.gradient(
        config.memory, params, rows.keys, gy, names=names, needs_input=False, of=value
    )
    if shared:
        g = {name: ops.sum(each, axis=0, keepdims=True) for name, each in g.items()}
    return predicted, residual, {name: g[name] for name in names}


def clipped(config: Config, g: dict[str, Array]) -> dict[str, Array]:
    """g within its bound (DEEP-9).

    hard: g min(1, bound / (|g| + 1e-8)), |g| over all tensors. soft: each tensor to the norm
    (bound / 2) (1 + tanh(2 |g| / bound)), a zero gradient as it is.
    """
    if config.clip == "none":
        return g
    bound, ranks = config.clip_norm, config.fast_shapes
    if config.clip == "hard":
        factor = ops.minimum(1.0, bound / (norm(config, g) + GUARD))
        return {name: scaled(factor, each, len(ranks[name])) for name, each in g.items()}
    return {name: _soft(each, bound, len(ranks[name])) for name, each in g.items()}


def _soft(g: Array, bound: float, rank: int) -> Array:
    size = _root(_square(g, rank))
    none = ops.equal(size, 0.0)
    length = (bound / 2.0) * (1.0 + ops.tanh((2.0 / bound) * size))
    return scaled(length / ops.where(none, 1.0, size), g, rank)


def norm(config: Config, g: Tensors) -> Array:
    """|g| of a memory (...,): over all its fast tensors (DEEP-9, DEEP-10)."""
    squares = [_square(g[name], len(shape)) for name, shape in config.fast_shapes.items()]
    return _root(sum(squares[1:], squares[0]))


def _square(x: Array, rank: int) -> Array:
    return ops.sum(x * x, axis=tuple(range(-rank, 0))) if rank else x * x


def _root(total: Array) -> Array:
    """sqrt with a gradient of 0 at 0."""
    none = ops.equal(total, 0.0)
    return ops.where(none, 0.0, ops.sqrt(ops.where(none, 1.0, total)))


def _steps(config: Config, g: Tensors, rates: Rates) -> tuple[Any, Any]:
    """(a, b), the factors of g in S and of U in W; None is 1 (DEEP-10, DEEP-11)."""
    h, h_memory, rate = rates.step_size, rates.step_size_memory, config.convention.rate
    if config.adaptive and h is not None:
        shrink = 1.0 + _through(config, norm(config, g))
        h, h_memory = h / shrink, None if h_memory is None else h_memory / shrink
    a = h if rate in ("momentum", "both", "split") else None
    b = h_memory if rate == "split" else h if rate in ("memory", "both") else None
    return a, b


def _carried(momentum: Any, S: Any, step: Array, rank: int, *, minus: bool = False) -> Array:
    """momentum S + step, or momentum S - step (DEEP-11)."""
    if momentum is None or S is None:
        return -step if minus else step
    return carry(momentum, S, step, rank, minus=minus)


def _moved(
    config: Config, momentum: Any, before: Tensors, a: Any, g: Tensors
) -> tuple[dict[str, Array], dict[str, Array]]:
    """S after a write, and what moves each fast tensor (DEEP-11, DEEP-37)."""
    if config.deep_momentum is not None:
        pair = deep_momentum.step(config, momentum, before, a, g)
        S, ahead = ({name: _through(config, x) for name, x in each.items()} for each in pair)
        return S, ahead
    S, ahead = {}, {}
    for name, shape in config.fast_shapes.items():
        rank = len(shape)
        orders = _momenta(config, momentum, before.get(name), scaled(a, g[name], rank), rank)
        S[name], ahead[name] = (_through(config, each) for each in orders)
    return S, ahead


def _momenta(config: Config, momentum: Any, S: Any, step: Array, rank: int) -> tuple[Array, Array]:
    """S after a write, and what moves W: S of the last order, which carries that before it (DEEP-11)."""
    minus = config.convention.momentum_sign == "minus"
    if config.momentum_order == 1:
        S = _carried(momentum, S, step, rank, minus=minus)
        return S, S
    orders = []
    for order in range(config.momentum_order):
        own = None if S is None else S[(..., order, *(slice(None),) * rank)]
        rate = None if momentum is None else momentum[..., order]
        step = _carried(rate, own, step, rank, minus=minus and order == 0)
        orders.append(step)
    return ops.stack(orders, axis=-rank - 1), step


def direction(config: Config, S: Array, rank: int) -> Array:
    """U: Newton-Schulz of a matrix; S of a vector, or its direction (DEEP-12)."""
    c = config.convention
    if rank == 2:
        return newton_schulz(S, c.newton_schulz_settings) if c.has_newton_schulz else S
    if config.vectors == "unit":
        return scaled(1.0 / (_root(_square(S, rank)) + GUARD), S, rank)
    return S


def retained(
    config: Config, retain: Any, W: Array, change: Array, rank: int, *, minus: bool, first: bool
) -> Array:
    """W after a write: retain W - change, and of a matrix what its retention makes of it (DEEP-13,
    DEEP-30, DEEP-39).
    """
    linear = config.retention.lag and not first
    if rank != 2 or config.retention.kind == "l2" or linear:
        return carry(retain, W, change, rank, minus=minus)
    own = config.retention
    moved = carry(retain, retentions.decaying(own, W), change, rank, minus=minus)
    return retentions.kept(own, W, moved)


def mapped(config: Config, weights: Tensors) -> Tensors:
    """The fast tensors with which the memory function computes (DEEP-33)."""
    if not config.retention.maps:
        return weights
    shapes = config.fast_shapes
    return {
        name: retentions.mapped(config.retention, x) if len(shapes[name]) == 2 else x
        for name, x in weights.items()
    }


def constant(x: Any) -> Any:
    """A nest of arrays without a derivative."""
    if isinstance(x, Rows):
        return Rows(*map(constant, x))
    if isinstance(x, Mapping):
        return {name: constant(each) for name, each in x.items()}
    return None if x is None else ops.stop_gradient(x)


def _through(config: Config, x: Array) -> Array:
    """A part of a write for the outer gradient: a constant where that goes through none (DEEP-18,
    DEEP-19)."""
    return x if config.outer_gradient == "full" else ops.stop_gradient(x)


def scaled(factor: Any, x: Array, rank: int) -> Array:
    """factor x, one number for each memory (...,), of a tensor with `rank` axes of its own."""
    return x if factor is None else of_leading(factor, rank) * x
