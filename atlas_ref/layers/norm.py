"""Norms of tokens and of heads: RMSNorm, LayerNorm, the norm of each head, with a stated eps.

    rms      y = x / sqrt(mean x^2 + eps) * weight
    layer    y = (x - mean x) / sqrt(var x + eps) * weight + bias
    l2       y = x / sqrt(sum x^2 + eps) * weight

Specified in specs/norm.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.engine.layers import rms_norm
from atlas_ref.engine.layers.support import takes
from atlas_ref.layers import checks
from atlas_ref.layers.projection import cast
from atlas_ref.parts.norms import normalised, squares_fit
from atlas_ref.rules.checks import check_count, precision, require_floating
from atlas_ref.types import Array, Count, Dims, Frozen, check_array
from tape import ops, plain

Eps = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["machine"]


class Config(Frozen):
    """Settings of a norm (NORM-1).

    Attributes:
        kind: rms, layer, l2, or none, which changes nothing.
        d: length of the axis that is normed, the last.
        heads: number of heads with a weight each; None for tokens.
        eps: a number, or machine, the epsilon of the dtype of x; needed unless kind is none.
        guard: add (to the mean or sum of squares, inside the root), clamp (max of the root and
            eps).
        weighted: whether a weight multiplies the result, and under layer a bias is added.
    """

    kind: Literal["rms", "layer", "l2", "none"]
    d: Count
    heads: Count | None = None
    eps: Eps | None = None
    guard: Literal["add", "clamp"] = "add"
    weighted: bool = True

    @model_validator(mode="after")
    def _stated(self) -> Self:
        if (self.eps is None) != (self.kind == "none"):
            raise ValueError(
                f"eps: a number or machine is needed for kind {self.kind}"
                if self.eps is None
                else f"eps: kind none has none, found {self.eps}"
            )
        if self.guard == "clamp" and self.kind not in ("rms", "l2"):
            raise ValueError(f"guard: clamp belongs to kind rms or l2, found kind {self.kind}")
        return self

    @property
    def has_weight(self) -> bool:
        return self.weighted and self.kind != "none"


class Params(Frozen):
    """Parameters of a norm, which the outer loop learns (NORM-1).

    Attributes:
        weight (d,), for heads (H, d): factor of each entry.
        bias: the same shape, under kind layer.
    """

    weight: Annotated[Array | None, Dims("... d", optional=True)] = None
    bias: Annotated[Array | None, Dims("... d", optional=True)] = None


class State(Frozen):
    """Nothing: a norm sees one token alone (NORM-3)."""


#: Norms of public code and of papers, by name: settings of `Config` (NORM-8).
PRESETS: dict[str, dict[str, Any]] = {
    "atlas-rnn": {"kind": "rms", "eps": "machine"},
    "atlas-rnn head": {"kind": "rms", "eps": 1e-8, "guard": "clamp"},
    "atlas-rnn model": {"kind": "layer", "eps": 1e-5},
    "atlas-mag": {"kind": "rms", "eps": 1e-6},
    "titans head": {"kind": "l2", "eps": 1e-6, "weighted": False},
}


def configured(kind: str, d: int, eps: Any, *, heads: int | None = None) -> Config:
    """A norm of one kind with an eps, which kind none drops."""
    fields: dict[str, Any] = {"kind": kind, "d": d, "heads": heads}
    return Config(**fields if kind == "none" else fields | {"eps": eps})


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Parameters at their start: weight 1, bias 0 (NORM-1)."""
    check_count("seed", seed)
    require_floating(dtype)
    if not config.has_weight:
        return Params()
    shape = (config.d,) if config.heads is None else (config.heads, config.d)
    bias = np.zeros(shape) if config.kind == "layer" else None
    return cast(Params(weight=np.ones(shape), bias=bias), dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64) -> State:
    """The state before the first token: nothing (NORM-3)."""
    check_count("batch", batch)
    require_floating(dtype)
    return State()


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Norm each row of x (NORM-1, NORM-4).

    Args:
        x (..., T, d), for heads (..., H, T, d): tokens.
        reset (T,): starts of documents, which change nothing here.

    Returns:
        state, y: of the shape of x.

    Raises:
        ValueError: parameters or tokens that contradict the settings.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    check_array("x", x, Dims("..."))
    check_params(config, params, x)
    axes = (config.d,) if config.heads is None else (config.heads, config.d)
    if len(x.shape) < len(axes) + 1 or (x.shape[-1], *x.shape[-3:-2])[: len(axes)] != axes[::-1]:
        last = f"T, {config.d}" if config.heads is None else f"{config.heads}, T, {config.d}"
        raise ValueError(f"x: shape {x.shape}, expected (..., {last})")
    checks.check_reset(reset, x.shape[-2])
    return state, normed(config, params, x)


def check_params(config: Config, params: Params, x: Array, name: str = "params") -> None:
    """Refuse parameters that contradict the settings, or the precision of tokens x (NORM-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    shape = (config.d,) if config.heads is None else (config.heads, config.d)
    required = {"weight": config.has_weight, "bias": config.has_weight and config.kind == "layer"}
    for field, needed in required.items():
        array = getattr(params, field)
        verb = "needs it" if needed else "has none"
        but = f"kind {config.kind}, weighted {config.weighted} {verb}"
        checks.check_presence(f"{name}.{field}", array, needed, but)
        if needed:
            axes = "d" if config.heads is None else "heads, d"
            checks.check_shape(f"{name}.{field}", array, shape, axes)
            checks.check_precision(x, {f"{name}.{field}": array})


def normed(config: Config, params: Params, x: Array) -> Array:
    """The norm itself, on tokens that were checked (NORM-4 to NORM-7)."""
    if config.kind == "none":
        return x
    bias = [] if params.bias is None else [params.bias]
    if config.heads is None and params.weight is not None and _fits(config, x):
        return _block(config.kind, _eps(config, x), config.guard, False)(x, params.weight, *bias)
    weights = [each for each in (params.weight, *bias) if each is not None]
    if config.heads is not None:
        weights = [ops.expand_dims(each, -2) for each in weights]
    return plain_norm(config.kind, _eps(config, x), config.guard, x, *weights)


def normed_heads(config: Config, params: Params, x: Array) -> Array:
    """Heads beside each other, x (B, T, H, d), normed and one after the other, (B, H, T, d)."""
    if config.kind != "layer" and params.weight is not None and _fits(config, x):
        return _block(config.kind, _eps(config, x), config.guard, True)(x, params.weight)
    return normed(config, params, ops.swapaxes(x, 1, 2))


def plain_norm(kind: str, eps: float, guard: Any, x: Array, *weights: Array) -> Array:
    """The norm of rows in tape ops, with its weight and bias."""
    if kind == "layer":
        x = x - ops.mean(x, axis=-1, keepdims=True)
    place = "clamp" if guard == "clamp" else "root"  # NORM-5 adds inside the root
    y = normalised(x, "rms" if kind == "layer" else kind, eps=eps, guard=place)
    if weights:
        y = y * weights[0]
    return y + weights[1] if len(weights) > 1 else y


def _eps(config: Config, x: Array) -> float:
    eps = config.eps
    return float(np.finfo(precision(x)).eps) if isinstance(eps, str) else float(eps or 0.0)


def _fits(config: Config, x: Array) -> bool:
    """Whether the block computes x: squares neither overflow nor need a reduction."""
    return takes(x) and squares_fit(plain(x), 0.5 if config.kind == "layer" else 1.0)


@functools.lru_cache(maxsize=64)
def _block(kind: str, eps: float, guard: Any, heads_first: bool) -> Callable[..., Array]:
    def norm(x: Array, *weights: Array) -> Array:
        if heads_first:
            x = ops.swapaxes(x, 1, 2)
            weights = tuple(ops.expand_dims(each, -2) for each in weights)
        return plain_norm(kind, eps, guard, x, *weights)

    return rms_norm.block(norm, kind, eps, guard, heads_first)
