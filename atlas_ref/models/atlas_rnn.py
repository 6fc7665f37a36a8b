"""Modules of Atlas-RNN: its constructor arguments as settings of ours, its state_dict as parameters.

Every tensor of a state_dict is a field of our parameters in another shape, row by row the same
numbers. Specified in specs/layer_cases.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.layers import attention, feed_forward, norm, rotary
from atlas_ref.types import Array, Frozen
from tape import ops
from tape.nested import flatten

Size = Annotated[int, Field(ge=1)]

#: Constants of a state_dict, which nothing trains, by name: arrays of the host.
Constants = Mapping[str, Array]


class Name(NamedTuple):
    """One tensor of a state_dict.

    Attributes:
        axes: its axes, in words of `Module.sizes`.
        field: its place in our parameters, with a dot before each name; "" for a constant. Names of
            one field hold its rows, one after another.
        low: least value; None for any finite one.
        trained: False for a buffer, which is a parameter here and has no gradient there.
        order: its axes in the order in which our numbers run, (1, 0) for a transpose; () as it is.
        idle: whether it is a parameter that the code reads nowhere, so that its gradient is 0.
    """

    axes: str
    field: str = ""
    low: float | None = None
    trained: bool = True
    order: tuple[int, ...] = ()
    idle: bool = False


class Module(NamedTuple):
    """A module of the public code.

    Attributes:
        layer: our module, with Config, Params, State, init, start and apply.
        settings: constructor arguments.
        sizes: (settings) -> length of each axis, by the word for it.
        names: (settings) -> tensors of its state_dict; None as settings for every name that there
            can be.
        config: (settings, eps, constants) -> our settings, with eps of RMSNorm without one.
    """

    layer: Any
    settings: type[Frozen]
    sizes: Callable[[Any], dict[str, int]]
    names: Callable[[Any], dict[str, Name]]
    config: Callable[[Any, float, Constants], Any]


class RmsNorm(Frozen):
    """Arguments of RMSNorm (LAYER-4).

    Attributes:
        dim: length of a row.
        eps: a number, or the epsilon of the dtype.
    """

    dim: Size
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["finfo(dtype).eps"] = (
        "finfo(dtype).eps"
    )


class MultiheadRmsNorm(Frozen):
    """Arguments of MultiheadRMSNorm (LAYER-4).

    Attributes:
        dim: length of a row of a head.
        heads: number of heads.
    """

    dim: Size
    heads: Size


class FeedForward(Frozen):
    """Arguments of FeedForward (LAYER-5).

    Attributes:
        dim: length of a token.
        mult: the hidden layer has dim mult 2 / 3 entries, cut to a whole number.
    """

    dim: Size
    mult: Annotated[float, Field(gt=0, allow_inf_nan=False, le=2**20)] = 4

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.inner < 1:
            raise ValueError(f"mult: {self.mult:g} leaves the hidden layer of dim {self.dim} empty")
        return self

    @property
    def inner(self) -> int:
        return feed_forward.inner(self.dim, self.mult)


class SlidingWindowAttention(Frozen):
    """Arguments of SlidingWindowAttention (LAYER-6).

    Attributes:
        dim, heads, dim_head: sizes; dim_head is even.
        window_size: keys that are kept.
        num_persist_mem_tokens: persistent rows of each head.
        rotary_base: of frequencies, where a state_dict does not hold them.
    """

    dim: Size
    heads: Size
    dim_head: Annotated[int, Field(ge=2, multiple_of=2)]
    window_size: Size
    num_persist_mem_tokens: Annotated[int, Field(ge=0)] = 0
    rotary_base: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10000.0


def rms(d: int, eps: float) -> norm.Config:
    """RMSNorm of tokens, with the epsilon of the model's dtype."""
    return norm.Config(**norm.PRESETS["atlas-rnn"] | {"eps": eps}, d=d)


def _rms_norm(settings: RmsNorm, eps: float, constants: Constants) -> norm.Config:
    return rms(settings.dim, eps if isinstance(settings.eps, str) else settings.eps)


def _multihead(settings: MultiheadRmsNorm, eps: float, constants: Constants) -> norm.Config:
    return norm.Config(**norm.PRESETS["atlas-rnn head"], d=settings.dim, heads=settings.heads)


def _feed_forward(settings: FeedForward, eps: float, constants: Constants) -> feed_forward.Config:
    return feed_forward.Config(
        d_model=settings.dim,
        d_inner=settings.inner,
        norm=rms(settings.dim, eps),
        **feed_forward.PRESETS["atlas-rnn"],
    )


def _attention(
    settings: SlidingWindowAttention, eps: float, constants: Constants
) -> attention.Config:
    """Attention as the code has it: the last keys of the call, positions from 0 in every call."""
    frequencies: Any = "float32"
    if "rotary_emb.freqs" in constants:
        frequencies = tuple(map(float, np.asarray(constants["rotary_emb.freqs"], np.float64)))
    return attention.Config(
        d_model=settings.dim,
        heads=settings.heads,
        d_head=settings.dim_head,
        window=settings.window_size,
        persistent=settings.num_persist_mem_tokens,
        norm=rms(settings.dim, eps),
        rotary=rotary.Config(
            **rotary.PRESETS["atlas-rnn"] | {"frequencies": frequencies},
            d=settings.dim_head,
            base=settings.rotary_base,
        ),
        **attention.PRESETS["atlas-rnn"],
    )


def causal(config: attention.Config) -> attention.Config:
    """The causal reading of the same attention: a band, positions carried from call to call."""
    positions = None if config.rotary is None else config.rotary.replaced(position="carried")
    return config.replaced(**attention.PRESETS["atlas-rnn causal"], rotary=positions)


def _names_of_attention(settings: SlidingWindowAttention | None) -> dict[str, Name]:
    rows = {"persist_mem": Name("heads num_persist_mem_tokens dim_head", ".persistent")}
    return {
        "norm.weight": Name("dim", ".norm.weight"),
        "to_qkv.weight": Name("3*heads*dim_head dim", ".W_qkv"),
        "to_out.weight": Name("dim heads*dim_head", ".W_out"),
        **(rows if settings is None or settings.num_persist_mem_tokens else {}),
        "rotary_emb.freqs": Name("dim_head/2", low=0.0),
    }


#: Name in this project -> module that is a part of others.
PARTS: dict[str, Module] = {
    "rms_norm": Module(
        norm,
        RmsNorm,
        sizes=lambda settings: {"dim": settings.dim},
        names=lambda settings: {"weight": Name("dim", ".weight")},
        config=_rms_norm,
    ),
    "multihead_rms_norm": Module(
        norm,
        MultiheadRmsNorm,
        sizes=lambda settings: {"dim": settings.dim, "heads": settings.heads},
        names=lambda settings: {"gamma": Name("heads 1 dim", ".weight")},
        config=_multihead,
    ),
    "feed_forward": Module(
        feed_forward,
        FeedForward,
        sizes=lambda settings: {
            "dim": settings.dim,
            "inner": settings.inner,
            "2*inner": 2 * settings.inner,
        },
        names=lambda settings: {
            "0.weight": Name("dim", ".norm.weight"),
            "1.weight": Name("2*inner dim", ".W_in"),
            "1.bias": Name("2*inner", ".b_in"),
            "3.weight": Name("dim inner", ".W_out"),
            "3.bias": Name("dim", ".b_out"),
        },
        config=_feed_forward,
    ),
    "sliding_window_attention": Module(
        attention,
        SlidingWindowAttention,
        sizes=lambda settings: {
            "dim": settings.dim,
            "heads": settings.heads,
            "dim_head": settings.dim_head,
            "dim_head/2": settings.dim_head // 2,
            "heads*dim_head": settings.heads * settings.dim_head,
            "3*heads*dim_head": 3 * settings.heads * settings.dim_head,
            "num_persist_mem_tokens": settings.num_persist_mem_tokens,
        },
        names=_names_of_attention,
        config=_attention,
    ),
}


def parameters(module: Module, settings: Any, config: Any, tensors: Mapping[str, Array]) -> Any:
    """Our parameters from a state_dict (LAYER-3).

    Args:
        config: of `Module.config`.
        tensors: by the names of `Module.names`, of those shapes; variables too.

    Raises:
        KeyError: a tensor is missing.
    """
    by_field: dict[str, list[Array]] = {}
    for name, each in module.names(settings).items():
        if each.field:
            by_field.setdefault(each.field, []).append(_ordered(tensors[name], each.order))
    leaves, places, build = flatten(module.layer.init(config), "params")
    return build(
        [
            ops.reshape(_joined(by_field[place]), leaf.shape)
            for leaf, place in zip(leaves, places, strict=True)
        ]
    )


def state_dict(module: Module, settings: Any, params: Any) -> dict[str, Array]:
    """The state_dict of our parameters, without its constants: the inverse of `parameters`."""
    leaves, places, _ = flatten(params, "params")
    by_field, sizes = dict(zip(places, leaves, strict=True)), module.sizes(settings)

    def shape(axes: str) -> tuple[int, ...]:
        return tuple(int(axis) if axis.isdigit() else sizes[axis] for axis in axes.split())

    result, first = {}, dict.fromkeys(by_field, 0)
    for name, each in module.names(settings).items():
        if each.field:
            own, start = shape(each.axes), first[each.field]
            first[each.field] = start + math.prod(own)
            flat = ops.reshape(by_field[each.field], (-1,))
            ours = tuple(own[i] for i in each.order or range(len(own)))
            numbers = ops.reshape(flat[start : first[each.field]], ours)
            result[name] = _ordered(numbers, np.argsort(each.order).tolist())
    return result


def _ordered(tensor: Array, order: Sequence[int]) -> Array:
    """A tensor with its axes in this order; as it is without one."""
    return ops.moveaxis(tensor, tuple(order), tuple(range(len(order)))) if order else tensor


def _joined(rows: list[Array]) -> Array:
    """Tensors of one field, one after another."""
    return rows[0] if len(rows) == 1 else ops.concatenate(rows, axis=0)
