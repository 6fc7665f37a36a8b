"""Modules of Atlas-RNN: its constructor arguments as settings of ours, its state_dict as parameters.

Every tensor of a state_dict is a field of our parameters in another shape, row by row the same
numbers. Specified in specs/layer_cases.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from atlas_ref.layers import attention, feed_forward, norm
from atlas_ref.models import atlas_rnn_names, import_atlas_rnn, shapes
from atlas_ref.models.import_atlas_rnn import Settings
from atlas_ref.models.public import names
from atlas_ref.models.public.names import Name, Table
from atlas_ref.types import Array, Count, Frozen

#: Constants of a state_dict, which nothing trains, by name: arrays of the host.
Constants = Mapping[str, Array]


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
    names: Callable[[Any], Table]
    config: Callable[[Any, float, Constants], Any]


def _lengths(calls: Any) -> Any:
    whole = isinstance(calls, list) and all(type(each) is int and each > 0 for each in calls)
    if calls is not None and not (whole and calls):
        found = json.dumps(calls)[:60]
        raise ValueError(f"must be a list of whole numbers from 1, found {found}")
    return calls


#: Tokens of each call of a case, no argument of the constructor (LAYER-7).
Calls = Annotated[list[int] | None, BeforeValidator(_lengths)]


class Called(Frozen):
    """Arguments of a layer whose tokens a case may cut into calls, in a field `calls` (LAYER-7)."""


class RmsNorm(Frozen):
    """Arguments of RMSNorm (LAYER-4).

    Attributes:
        dim: length of a row.
        eps: a number, or the epsilon of the dtype.
    """

    dim: Count
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["finfo(dtype).eps"] = (
        "finfo(dtype).eps"
    )


class MultiheadRmsNorm(Frozen):
    """Arguments of MultiheadRMSNorm (LAYER-4).

    Attributes:
        dim: length of a row of a head.
        heads: number of heads.
    """

    dim: Count
    heads: Count


class FeedForward(Frozen):
    """Arguments of FeedForward (LAYER-5).

    Attributes:
        dim: length of a token.
        mult: the hidden layer has dim mult 2 / 3 entries, cut to a whole number.
    """

    dim: Count
    mult: Annotated[float, Field(gt=0, allow_inf_nan=False, le=2**20)] = 4

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.inner < 1:
            raise ValueError(f"mult: {self.mult:g} leaves the hidden layer of dim {self.dim} empty")
        return self

    @property
    def inner(self) -> int:
        return feed_forward.inner(self.dim, self.mult)


class SlidingWindowAttention(Called):
    """Arguments of SlidingWindowAttention (LAYER-6).

    Attributes:
        dim, heads, dim_head: sizes; dim_head is even.
        window_size: keys that are kept.
        num_persist_mem_tokens: persistent rows of each head.
        rotary_base: of frequencies, where a state_dict does not hold them.
        calls: tokens of each call.
    """

    dim: Count
    heads: Count
    dim_head: Annotated[int, Field(ge=2, multiple_of=2)]
    window_size: Count
    num_persist_mem_tokens: Annotated[int, Field(ge=0)] = 0
    rotary_base: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10000.0
    calls: Calls = None


#: Arguments that turn on every tensor, for tables of names.
EVERYTHING = Settings(
    dim=1,
    omega_window=2,
    use_omega_gate=True,
    poly_mode="tensor",
    poly_degree=2,
    ff_mult=4.0,
    num_persist_mem_tokens=1,
    vocab=1,
    depth=1,
)


def general(settings: Any, **more: Any) -> Settings:
    """The arguments that concern a module's shape; of no settings those of every tensor."""
    if settings is None:
        return EVERYTHING.replaced(**more)
    own = {name: value for name, value in settings if name in Settings.model_fields}
    return Settings(**own | more)


def sizes(settings: Any, **more: Any) -> dict[str, int]:
    """The length of each axis of a tensor, by the word for it."""
    return atlas_rnn_names.sizes(general(settings, **more))


def _rms_norm(settings: RmsNorm, eps: float, constants: Constants) -> norm.Config:
    own = eps if isinstance(settings.eps, str) else settings.eps
    return norm.Config(**norm.PRESETS["atlas-rnn"] | {"eps": own}, d=settings.dim)


def _multihead(settings: MultiheadRmsNorm, eps: float, constants: Constants) -> norm.Config:
    return norm.Config(**norm.PRESETS["atlas-rnn head"], d=settings.dim, heads=settings.heads)


def _feed_forward(settings: FeedForward, eps: float, constants: Constants) -> feed_forward.Config:
    own = general(settings, ff_mult=settings.mult, norm_eps=eps)
    return import_atlas_rnn.feed_forward_config(own)


def _attention(
    settings: SlidingWindowAttention, eps: float, constants: Constants
) -> attention.Config:
    """Attention as the code has it: the last keys of the call, positions from 0 in every call."""
    own, frequencies = general(settings, norm_eps=eps), constants.get("rotary_emb.freqs")
    return import_atlas_rnn.attention_config(own, frequencies)


def causal(config: attention.Config) -> attention.Config:
    """The causal reading of the same attention: a band, positions carried from call to call."""
    positions = None if config.rotary is None else config.rotary.replaced(position="carried")
    return config.replaced(**attention.PRESETS["atlas-rnn causal"], rotary=positions)


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
        sizes=lambda settings: sizes(settings, ff_mult=settings.mult),
        names=lambda settings: atlas_rnn_names.FEED_FORWARD,
        config=_feed_forward,
    ),
    "sliding_window_attention": Module(
        attention,
        SlidingWindowAttention,
        sizes=sizes,
        names=lambda settings: atlas_rnn_names.attention(general(settings)),
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
    template = shapes.template(module.layer, config)
    return names.parameters(template, module.names(settings), tensors)


def state_dict(module: Module, settings: Any, params: Any) -> dict[str, Array]:
    """The state_dict of our parameters, without its constants: the inverse of `parameters`."""
    return names.tensors_of(params, module.names(settings), module.sizes(settings))
