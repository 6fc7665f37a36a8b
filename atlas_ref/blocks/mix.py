"""Mix of two branches of a block: attention a and memory m of the same tokens.

    attention_times_gate    a sigmoid(m)
    gate_mix                g a + (1 - g) m,    g = sigmoid(W norm(x) + b)
    product                 norm_a(a) norm_m(m)
    sum                     a + g m

Specified in specs/blocks.md (BLOCKS-3).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.engine.layers import mix as engine
from atlas_ref.layers import checks, norm
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.layers.feed_forward import check_norm
from atlas_ref.layers.norm import Params as NormParams
from atlas_ref.layers.projection import linear, plain_linear
from atlas_ref.types import Array, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Settings of a mix (BLOCKS-3).

    Attributes:
        kind: attention_times_gate, gate_mix, product or sum.
        gate_norm: of the gate's input; kind none for the token itself.
        branch_norm: of each branch, under product.
    """

    kind: Literal["attention_times_gate", "gate_mix", "product", "sum"]
    gate_norm: norm.Config
    branch_norm: norm.Config

    @model_validator(mode="after")
    def _same_tokens(self) -> Self:
        check_norm(self.branch_norm, self.gate_norm.d)
        return self

    @property
    def d_model(self) -> int:
        return self.gate_norm.d

    @property
    def has_gate(self) -> bool:
        return self.kind in ("gate_mix", "sum")


class Params(Frozen):
    """Parameters of a mix, which the outer loop learns (BLOCKS-3).

    Attributes:
        W (d_model, d_model), b (d_model,): of the gate, None without one.
        norm: of the gate's input.
        attention_norm, memory_norm: of the branches, None but for product.
    """

    W: Annotated[Array | None, Dims("rows d_model", optional=True)] = None
    b: Annotated[Array | None, Dims("rows", optional=True)] = None
    norm: NormParams | None
    attention_norm: NormParams | None = None
    memory_norm: NormParams | None = None


def configured(convention: LayerConvention, d_model: int) -> Config:
    """The mix of a convention (LAYERS-3)."""
    c = convention
    of_gate = "rms" if c.mag_gate_input == "norm" and c.mag in ("gate_mix", "sum") else "none"
    return Config(
        kind=c.mag,
        gate_norm=norm.configured(of_gate, d_model, c.norm_eps),
        branch_norm=norm.configured("rms" if c.mag == "product" else "none", d_model, c.norm_eps),
    )


def init(config: Config, draw: np.random.Generator) -> Params:
    """Gate from uniform(-r, r), r = 1/sqrt(d_model); norms 1 (BLOCKS-8)."""
    D = config.d_model
    bound = 1.0 / np.sqrt(D)
    of_branches = norm.init(config.branch_norm) if config.kind == "product" else None
    return Params(
        W=draw.uniform(-bound, bound, (D, D)) if config.has_gate else None,
        b=draw.uniform(-bound, bound, D) if config.has_gate else None,
        norm=norm.init(config.gate_norm) if config.has_gate else None,
        attention_norm=of_branches,
        memory_norm=of_branches,
    )


def mixed(config: Config, params: Params, x: Array, a: Array, m: Array) -> Array:
    """The mix of attention a and memory m, from tokens x, all (B, T, d_model) (BLOCKS-3)."""
    if config.kind == "attention_times_gate":
        return a * ops.sigmoid(m)
    if config.kind == "product":
        assert params.attention_norm is not None
        assert params.memory_norm is not None
        a = norm.normed(config.branch_norm, params.attention_norm, a)
        return a * norm.normed(config.branch_norm, params.memory_norm, m)
    assert params.norm is not None
    n = norm.normed(config.gate_norm, params.norm, x)
    if config.kind == "gate_mix":
        return _gate_mix(n, a, m, params.W, params.b)
    return a + ops.sigmoid(linear(n, params.W, params.b)) * m


def plain_gate_mix(n: Array, a: Array, m: Array, W: Array, b: Array) -> Array:
    """g a + (1 - g) m with g = sigmoid(W n + b), in tape ops."""
    g = ops.sigmoid(plain_linear(n, W, b))
    return g * a + (1.0 - g) * m


_gate_mix = engine.block(plain_gate_mix)


def check_params(config: Config, params: Params, x: Array) -> None:
    """Refuse parameters that contradict the settings (NORM-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    D, but = config.d_model, f"the mix is {config.kind}"
    for name, shape in (("W", (D, D)), ("b", (D,))):
        array = getattr(params, name)
        checks.check_presence(f"params.mix.{name}", array, config.has_gate, but)
        if array is not None:
            axes = ", ".join(["d_model"] * len(shape))
            checks.check_shape(f"params.mix.{name}", array, shape, axes)
            checks.check_precision(x, {f"params.mix.{name}": array})
    product = config.kind == "product"
    for name, settings, needed in (
        ("norm", config.gate_norm, config.has_gate),
        ("attention_norm", config.branch_norm, product),
        ("memory_norm", config.branch_norm, product),
    ):
        of = getattr(params, name)
        checks.check_presence(f"params.mix.{name}", of, needed, but)
        if of is not None:
            norm.check_params(settings, of, x, f"params.mix.{name}")
