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
from atlas_ref.layers.convention import LayerConvention
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
    ff_mult: Annotated[float, Field(gt=0)] = 4
    rotary_base: Annotated[float, Field(gt=0)] = 10000
    vocab: Count | None = None
    depth: Count | None = None
    block_type: Literal["mag", "mal", "mac", "lmm"] = "mag"

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
        changes: dict[str, Any] = {"conv_padding": self.conv, "rotary_base": self.rotary_base}
        if not self.qk_norm:
            changes["head_norm"] = "none"
        return convention.resolve({"preset": "atlas-rnn", **changes})


class Slot(NamedTuple):
    """A tensor of the public code.

    Attributes:
        path: of our parameter, as the tape names it.
        shape: in the public code.
        trained: False for a buffer, which has no gradient there.
    """

    path: str
    shape: tuple[int, ...]
    trained: bool = True


Table = dict[str, Slot]


# -- settings --------------------------------------------------------------------------------------


def memory_config(s: Settings) -> memory.Config:
    """The memory layer (`RNNMemory`) of settings (MODEL-9)."""
    rule = omega.Config(
        d_in=s.d_head,
        d_out=s.d_head,
        d_model=s.dim,
        heads=s.heads,
        window=s.omega_window,
        feature_map=s.feature_map,
        window_weights=Ones(),
        convention=conventions.resolve("atlas-rnn", rule="omega"),
    )
    return memory.configured(
        s.readings,
        rule,
        kernel=s.qkv_conv_kernel,
        momentum=s.use_momentum,
        window_gate=s.use_omega_gate,
        scan_chunk=s.scan_chunk_len,
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
    D, H, d = s.dim, s.heads, s.d_head
    own = f"{path}.levels[0]"
    table = {f"{name}pre_norm.weight": Slot(f"{path}.norm.weight", (D,))}
    for each in "qkv":
        if s.qkv_conv_kernel is not None and s.qkv_conv_kernel > 1:
            kernel = (D, 1, s.qkv_conv_kernel)
            table[f"{name}{each}_conv.weight"] = Slot(f"{own}.{each}_conv.weight", kernel)
        table[f"{name}to_{each}.weight"] = Slot(f"{own}.projection.W_{each.upper()}", (H * d, D))
        if each != "v" and s.qk_norm:
            table[f"{name}{each}_norm.gamma"] = Slot(f"{own}.{each}_norm.weight", (H, 1, d))
    table[f"{name}to_out.weight"] = Slot(f"{path}.W_out", (D, H * d))
    gates = {"to_lr": "step_size", "to_decay": "retain"}
    if s.use_momentum:
        gates["to_momentum"] = "momentum"
    places = {public: f"{own}.projection.gates.{ours}" for public, ours in gates.items()}
    if s.use_omega_gate:
        places["to_omega_gate"] = f"{own}.window_gate"
    for public, place in places.items():
        table[f"{name}{public}.0.weight"] = Slot(f"{place}.W", (H, D))
        table[f"{name}{public}.0.bias"] = Slot(f"{place}.b", (H,))
    if s.feature_map.kind == "sketch":
        proj = (d + d * d, d)
        table[f"{name}phi.proj"] = Slot(f"{own}.projection.phi['proj']", proj, trained=False)
    return table


def attention_names(s: Settings, name: str = "", path: str = "") -> Table:
    """Tensors of attention (MODEL-10)."""
    D, H, d, P = s.dim, s.heads, s.d_head, s.num_persist_mem_tokens
    table = {
        f"{name}norm.weight": Slot(f"{path}.norm.weight", (D,)),
        f"{name}to_qkv.weight": Slot(f"{path}.W_qkv", (3 * H * d, D)),
        f"{name}to_out.weight": Slot(f"{path}.W_out", (D, H * d)),
    }
    if P:
        table[f"{name}persist_mem"] = Slot(f"{path}.persistent", (H, P, d))
    return table


def feed_forward_names(s: Settings, name: str = "", path: str = "") -> Table:
    """Tensors of a feed-forward (MODEL-10)."""
    D, n = s.dim, s.d_inner
    return {
        f"{name}0.weight": Slot(f"{path}.norm.weight", (D,)),
        f"{name}1.weight": Slot(f"{path}.W_in", (2 * n, D)),
        f"{name}1.bias": Slot(f"{path}.b_in", (2 * n,)),
        f"{name}3.weight": Slot(f"{path}.W_out", (D, n)),
        f"{name}3.bias": Slot(f"{path}.b_out", (D,)),
    }


def block_names(s: Settings, name: str = "", path: str = "") -> Table:
    """Tensors of a block (MODEL-10)."""
    D, kind = s.dim, s.block_type
    table = memory_names(s, f"{name}memory.", f"{path}.memory")
    if kind != "lmm":
        table |= attention_names(s, f"{name}attention.", f"{path}.attention")
    if kind == "mal":
        table |= feed_forward_names(s, f"{name}ff_pre.", f"{path}.ff_pre")
        return table | feed_forward_names(s, f"{name}ff_post.", f"{path}.ff_post")
    if kind == "mag":
        table[f"{name}gate.0.weight"] = Slot(f"{path}.mix.W", (D, D))
        table[f"{name}gate.0.bias"] = Slot(f"{path}.mix.b", (D,))
    if kind == "mac":
        table[f"{name}mem_pool_norm.weight"] = Slot(f"{path}.pool_norm.weight", (D,))
        table[f"{name}to_mem_tokens.weight"] = Slot(f"{path}.W_pool", (D, D))
    return table | feed_forward_names(s, f"{name}ff.", f"{path}.feed_forward")


def model_names(s: Settings, *, memory_only: bool = False) -> Table:
    """Tensors of a language model (MODEL-10)."""
    V, D = s.vocab or 1, s.dim
    table = {
        "embed.weight": Slot(".embedding", (V, D)),
        "to_logits.weight": Slot(".head", (V, D)),
    }
    for name in ("embed_norm", "norm"):
        table[f"{name}.weight"] = Slot(f".{name}.weight", (D,))
        table[f"{name}.bias"] = Slot(f".{name}.bias", (D,))
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


def state_names(s: Settings) -> dict[str, str]:
    """Tensors of a memory's state and their axes (MODEL-10)."""
    axes = "batch*heads dim_head dim_head"
    names = {"S": axes}
    if s.use_momentum:
        names["Z"] = axes
    if s.omega_window > 1:
        names["omega_buffer"] = "batch*heads omega_window-1 dim_head dim_head"
    return names


def to_state(config: memory.Config, state: memory.State, tensors: Mapping[str, Array]) -> Any:
    """The state of a memory layer from public tensors: S is M here, Z is S, and the buffer holds
    gradients of the window as matrices (MODEL-10, OMEGA-29).

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


def from_state(s: Settings, config: memory.Config, state: memory.State) -> dict[str, Array]:
    """Public tensors of the state of a memory layer (MODEL-10, OMEGA-30)."""
    own = state.levels.states[0]
    B, H, *matrix = own.M.shape
    tensors = {"S": ops.reshape(own.M, (B * H, *matrix))}
    if s.use_momentum:
        tensors["Z"] = ops.reshape(own.S, (B * H, *matrix))
    if s.omega_window > 1:
        rows = window_gradients(config.levels.levels[0].config, own)
        tensors["omega_buffer"] = ops.reshape(rows, (B * H, *rows.shape[2:]))
    return tensors
