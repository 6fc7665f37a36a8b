"""Names, shapes and settings of atlas-rnn's modules, and ours: checkpoints in both directions.

Every parameter of the public code is one of ours in another shape, so a table of names is all.
Specified in specs/language_model.md (MODEL-9, MODEL-10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import conventions
from atlas_ref.blocks import lmm, mac, mag, mal
from atlas_ref.layers import attention, convention, feed_forward, memory
from atlas_ref.layers.convention import LayerConvention, Positive
from atlas_ref.models import language_model
from atlas_ref.parts.feature_maps import IDENTITY, Elementwise, FeatureMap, Sketch
from atlas_ref.parts.window import Ones
from atlas_ref.rules import omega
from atlas_ref.rules.matrices import window_gradients, with_gradients
from atlas_ref.types import Array, Frozen
from tape import ops
from tape.nested import flatten

Count = Annotated[int, Field(ge=1)]


class Settings(Frozen):
    """Arguments of the public constructors, by their names, with their defaults (MODEL-9).

    Attributes:
        dim, dim_head, heads: sizes; dim_head None is dim.
        qkv_conv_kernel: None or 1 for no convolution.
        conv: centred, as shipped; causal, the same code with another padding.
        scan_chunk_len: tokens after which the memory is clamped within a call.
        vocab, depth, block_type: of a model.
        norm_eps: of RMSNorm, which the public code takes from the dtype.
    """

    dim: Count
    dim_head: Count | None = None
    heads: Count = 1
    omega_window: Count = 1
    use_omega_gate: bool = False
    use_momentum: bool = True
    poly_degree: Annotated[int, Field(ge=0)] = 1
    poly_mode: Literal["off", "elementwise", "tensor"] = "off"
    qkv_conv_kernel: Count | None = 4
    conv: Literal["centred", "causal"] = "centred"
    qk_norm: bool = True
    scan_chunk_len: Count | None = None
    window_size: Count = 64
    num_persist_mem_tokens: Annotated[int, Field(ge=0)] = 0
    num_longterm_mem_tokens: Count = 4
    segment_len: Count = 16
    ff_mult: Annotated[float, Field(gt=0, allow_inf_nan=False, le=2**20)] = 4
    rotary_base: Positive = 10000
    vocab: Count | None = None
    depth: Count | None = None
    block_type: Literal["mag", "mal", "mac", "lmm"] = "mag"
    norm_eps: Positive | Literal["machine"] = "machine"

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            data = dict(data)
            for name in ("ff_mult", "rotary_base"):
                if isinstance(data.get(name), int) and not isinstance(data.get(name), bool):
                    data[name] = float(data[name])
        return data

    @model_validator(mode="after")
    def _wide_enough(self) -> Self:
        if feed_forward.inner(self.dim, self.ff_mult) < 1:
            raise ValueError(f"ff_mult: {self.ff_mult} leaves no hidden unit at dim {self.dim}")
        return self

    @property
    def d_head(self) -> int:
        return self.dim if self.dim_head is None else self.dim_head

    @property
    def d_inner(self) -> int:
        return feed_forward.inner(self.dim, self.ff_mult)

    @property
    def feature_map(self) -> FeatureMap:
        """The map in force: of degree 1 or less none, whatever the mode."""
        if self.poly_degree <= 1 or self.poly_mode == "off":
            return IDENTITY
        return Sketch() if self.poly_mode == "tensor" else Elementwise(degree=self.poly_degree)

    @property
    def readings(self) -> LayerConvention:
        changes: dict[str, Any] = {
            "conv_padding": self.conv,
            "rotary_base": self.rotary_base,
            "norm_eps": self.norm_eps,
        }
        if not self.qk_norm:
            changes["head_norm"] = "none"
        return convention.resolve({"preset": "atlas-rnn", **changes})


class Slot(NamedTuple):
    """A tensor of the public code.

    Attributes:
        path: of our parameter, as the tape names it.
        shape: in the public code.
        trained: False for a buffer, which has no gradient there.
        axes: words for the shape, of `sizes`.
    """

    path: str
    shape: tuple[int, ...]
    trained: bool = True
    axes: str = ""


Table = dict[str, Slot]


def sizes(s: Settings) -> dict[str, int]:
    """The length of each axis of a public tensor, by the word for it (MODEL-10)."""
    D, H, d, n = s.dim, s.heads, s.d_head, s.d_inner
    return {
        "dim": D,
        "heads": H,
        "dim_head": d,
        "heads*dim_head": H * d,
        "3*heads*dim_head": 3 * H * d,
        "dim_head/2": d // 2,
        "dim_head+dim_head^2": d + d * d,
        "inner": n,
        "2*inner": 2 * n,
        "kernel": s.qkv_conv_kernel or 1,
        "persistent": s.num_persist_mem_tokens,
        "vocab": s.vocab or 1,
        "omega_window-1": s.omega_window - 1,
    }


def slot(s: Settings, path: str, axes: str, *, trained: bool = True) -> Slot:
    """A tensor by words for its axes; numbers stand for themselves."""
    of = sizes(s)
    shape = tuple(int(axis) if axis.isdigit() else of[axis] for axis in axes.split())
    return Slot(path, shape, trained, axes)


# -- settings --------------------------------------------------------------------------------------


def memory_config(
    s: Settings, readings: LayerConvention | None = None, rule_convention: Any = "atlas-rnn"
) -> memory.Config:
    """The memory layer (`RNNMemory`) of settings (MODEL-9).

    Args:
        readings, rule_convention: other readings of the same sizes; those of the public code.
    """
    c = s.readings if readings is None else readings
    rule = omega.Config(
        d_in=s.d_head,
        d_out=s.d_head,
        d_model=s.dim,
        heads=s.heads,
        window=s.omega_window,
        feature_map=s.feature_map,
        window_weights=Ones(),
        convention=conventions.resolve(rule_convention, rule="omega"),
    )
    return memory.configured(
        c,
        rule,
        kernel=s.qkv_conv_kernel,
        momentum=s.use_momentum,
        window_gate=s.use_omega_gate,
        scan_chunk=None if c.state_clamp == "none" else s.scan_chunk_len,
    )


def attention_config(s: Settings, frequencies: Any = None) -> attention.Config:
    """The attention (`SlidingWindowAttention`) of settings (MODEL-9).

    Args:
        frequencies (d_head / 2,): of rotary positions, as recorded; None computes them in float32.
    """
    config = attention.configured(
        s.readings,
        d_model=s.dim,
        heads=s.heads,
        d_head=s.d_head,
        window=s.window_size,
        persistent=s.num_persist_mem_tokens,
    )
    return _with_frequencies(config, frequencies)


def _with_frequencies(config: attention.Config, frequencies: Any) -> attention.Config:
    if frequencies is None or config.rotary is None:
        return config
    numbers = tuple(float(each) for each in np.asarray(frequencies, np.float64))
    rotary = type(config.rotary)(**{**config.rotary.__dict__, "frequencies": numbers})
    return config.replaced(rotary=rotary)


def feed_forward_config(s: Settings) -> feed_forward.Config:
    """The feed-forward (`FeedForward`) of settings (MODEL-9)."""
    return feed_forward.configured(s.readings, d_model=s.dim, d_inner=s.d_inner)


def block_config(s: Settings, frequencies: Any = None) -> Any:
    """The block of settings, by its block_type (MODEL-9)."""
    sizes: dict[str, Any] = {
        "d_model": s.dim,
        "heads": s.heads,
        "d_head": s.d_head,
        "persistent": s.num_persist_mem_tokens,
        "d_inner": s.d_inner,
    }
    own, c = memory_config(s), s.readings
    if s.block_type == "lmm":
        return lmm.configured(c, own, d_model=s.dim, d_inner=s.d_inner)
    if s.block_type == "mac":
        rows = s.num_longterm_mem_tokens
        block: Any = mac.configured(c, own, segment=s.segment_len, longterm=rows, **sizes)
    else:
        module = mag if s.block_type == "mag" else mal
        block = module.configured(c, own, window=s.window_size, **sizes)
    return block.replaced(attention=_with_frequencies(block.attention, frequencies))


def model_config(
    s: Settings, frequencies: Iterable[Any] = (), *, memory_only: bool = False
) -> language_model.Config:
    """The language model of settings (MODEL-9).

    Args:
        frequencies: of each block, in order; empty computes them.
        memory_only: blocks of a memory alone, as the public training script of memories has them.

    Raises:
        ValueError: no vocab or no depth.
    """
    for name in ("vocab", "depth"):
        if getattr(s, name) is None:
            raise ValueError(f"{name}: missing, a model needs it")
    own = list(frequencies) or [None] * (s.depth or 1)
    if memory_only:
        alone = lmm.configured(s.readings, memory_config(s), d_model=s.dim, d_inner=None)
        blocks = [alone for _ in own]
    else:
        blocks = [block_config(s, each) for each in own]
    return language_model.configured(s.readings, blocks, vocabulary=s.vocab or 1)


# -- names -----------------------------------------------------------------------------------------


def memory_names(s: Settings, name: str = "cell.", path: str = "") -> Table:
    """Tensors of a memory layer (MODEL-10)."""
    own = f"{path}.levels[0]"
    table = {f"{name}pre_norm.weight": slot(s, f"{path}.norm.weight", "dim")}
    for each in "qkv":
        if s.qkv_conv_kernel is not None and s.qkv_conv_kernel > 1:
            place = f"{own}.{each}_conv.weight"
            table[f"{name}{each}_conv.weight"] = slot(s, place, "dim 1 kernel")
        place = f"{own}.projection.W_{each.upper()}"
        table[f"{name}to_{each}.weight"] = slot(s, place, "heads*dim_head dim")
        if each != "v" and s.qk_norm:
            place = f"{own}.{each}_norm.weight"
            table[f"{name}{each}_norm.gamma"] = slot(s, place, "heads 1 dim_head")
    table[f"{name}to_out.weight"] = slot(s, f"{path}.W_out", "dim heads*dim_head")
    gates = {"to_lr": "step_size", "to_decay": "retain"}
    if s.use_momentum:
        gates["to_momentum"] = "momentum"
    places = {public: f"{own}.projection.gates.{ours}" for public, ours in gates.items()}
    if s.use_omega_gate:
        places["to_omega_gate"] = f"{own}.window_gate"
    for public, place in places.items():
        table[f"{name}{public}.0.weight"] = slot(s, f"{place}.W", "heads dim")
        table[f"{name}{public}.0.bias"] = slot(s, f"{place}.b", "heads")
    if s.feature_map.kind == "sketch":
        place = f"{own}.projection.phi['proj']"
        axes = "dim_head+dim_head^2 dim_head"
        table[f"{name}phi.proj"] = slot(s, place, axes, trained=False)
    return table


def attention_names(s: Settings, name: str = "", path: str = "") -> Table:
    """Tensors of attention (MODEL-10)."""
    table = {
        f"{name}norm.weight": slot(s, f"{path}.norm.weight", "dim"),
        f"{name}to_qkv.weight": slot(s, f"{path}.W_qkv", "3*heads*dim_head dim"),
        f"{name}to_out.weight": slot(s, f"{path}.W_out", "dim heads*dim_head"),
    }
    if s.num_persist_mem_tokens:
        axes = "heads persistent dim_head"
        table[f"{name}persist_mem"] = slot(s, f"{path}.persistent", axes)
    return table


def feed_forward_names(s: Settings, name: str = "", path: str = "") -> Table:
    """Tensors of a feed-forward (MODEL-10)."""
    return {
        f"{name}0.weight": slot(s, f"{path}.norm.weight", "dim"),
        f"{name}1.weight": slot(s, f"{path}.W_in", "2*inner dim"),
        f"{name}1.bias": slot(s, f"{path}.b_in", "2*inner"),
        f"{name}3.weight": slot(s, f"{path}.W_out", "dim inner"),
        f"{name}3.bias": slot(s, f"{path}.b_out", "dim"),
    }


def block_names(s: Settings, name: str = "", path: str = "") -> Table:
    """Tensors of a block (MODEL-10)."""
    kind = s.block_type
    table = memory_names(s, f"{name}memory.", f"{path}.memory")
    if kind != "lmm":
        table |= attention_names(s, f"{name}attention.", f"{path}.attention")
    if kind == "mal":
        table |= feed_forward_names(s, f"{name}ff_pre.", f"{path}.ff_pre")
        return table | feed_forward_names(s, f"{name}ff_post.", f"{path}.ff_post")
    if kind == "mag":
        table[f"{name}gate.0.weight"] = slot(s, f"{path}.mix.W", "dim dim")
        table[f"{name}gate.0.bias"] = slot(s, f"{path}.mix.b", "dim")
    if kind == "mac":
        table[f"{name}mem_pool_norm.weight"] = slot(s, f"{path}.pool_norm.weight", "dim")
        table[f"{name}to_mem_tokens.weight"] = slot(s, f"{path}.W_pool", "dim dim")
    return table | feed_forward_names(s, f"{name}ff.", f"{path}.feed_forward")


def model_names(s: Settings, *, memory_only: bool = False) -> Table:
    """Tensors of a language model (MODEL-10)."""
    table = {
        "embed.weight": slot(s, ".embedding", "vocab dim"),
        "to_logits.weight": slot(s, ".head", "vocab dim"),
    }
    for name in ("embed_norm", "norm"):
        table[f"{name}.weight"] = slot(s, f".{name}.weight", "dim")
        table[f"{name}.bias"] = slot(s, f".{name}.bias", "dim")
    for i in range(s.depth or 1):
        if memory_only:
            table |= memory_names(s, f"layers.{i}.", f".blocks[{i}].memory")
        else:
            table |= block_names(s, f"layers.{i}.", f".blocks[{i}]")
    return table


# -- tensors ---------------------------------------------------------------------------------------


def to_params(template: Any, table: Table, tensors: Mapping[str, Array]) -> Any:
    """Our parameters from public tensors, arrays or tape variables (MODEL-10).

    Args:
        template: parameters of the same settings, whose shapes they take.

    Raises:
        ValueError: names a tensor that is missing or misshapen.
    """
    leaves, paths, build = flatten(template, "params")
    place = {path: i for i, path in enumerate(paths)}
    for name, slot in table.items():
        if name not in tensors:
            raise ValueError(f"{name}: missing, shape {slot.shape} is needed")
        tensor = tensors[name]
        if tuple(tensor.shape) != slot.shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected {slot.shape}")
        i = place[slot.path]
        leaves[i] = tensor.reshape(leaves[i].shape)
    return build(leaves)


def from_params(params: Any, table: Table) -> dict[str, Array]:
    """Public tensors of our parameters, or of their gradient (MODEL-10)."""
    leaves, paths, _ = flatten(params, "params")
    own = dict(zip(paths, leaves, strict=True))
    return {name: own[slot.path].reshape(slot.shape) for name, slot in table.items()}


# -- states ----------------------------------------------------------------------------------------


def to_state(config: memory.Config, state: memory.State, tensors: Mapping[str, Array]) -> Any:
    """The state of a memory layer from public tensors (MODEL-10, OMEGA-29).

    S is M here, Z is S, and the buffer holds gradients of the window as matrices.

    Args:
        state: of `memory.start`.
    """
    own = state.levels.states[0]
    shape = own.M.shape
    own = own.replaced(M=ops.reshape(tensors["S"], shape))
    if "Z" in tensors:
        own = own.replaced(S=ops.reshape(tensors["Z"], shape))
    if "omega_buffer" in tensors:
        buffer = tensors["omega_buffer"]
        rows = ops.reshape(buffer, (*shape[:2], *buffer.shape[1:]))
        own = with_gradients(config.levels.levels[0].config, own, rows)
    return state.replaced(levels=state.levels.replaced(states=(own,)))


def from_state(config: memory.Config, state: memory.State) -> dict[str, Array]:
    """Public tensors of the state of a memory layer (MODEL-10, OMEGA-30)."""
    own = state.levels.states[0]
    B, H, *matrix = own.M.shape
    tensors = {"S": ops.reshape(own.M, (B * H, *matrix))}
    if config.momentum:
        tensors["Z"] = ops.reshape(own.S, (B * H, *matrix))
    rule = config.levels.levels[0].config
    if rule.window > 1:
        rows = window_gradients(rule, own)
        tensors["omega_buffer"] = ops.reshape(rows, (B * H, *rows.shape[2:]))
    return tensors
