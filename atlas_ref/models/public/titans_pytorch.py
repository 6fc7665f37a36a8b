"""NeuralMemory of titans-pytorch: its constructor arguments as settings of ours, its state_dict.

Matrices of its memory are (in, out), ours (out, in); its momentum holds -S. Specified in
specs/neural_memory.md (NEURAL-10) and specs/layer_cases.md (LAYER-18).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.layers import neural_memory
from atlas_ref.models.atlas_rnn import Constants, Module
from atlas_ref.models.public.names import Name, Table
from atlas_ref.types import Array, Count, Frozen
from tape import ops

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Matrices of a memory, and tokens of a chunk or of all between two refreshes: what keeps tables of
#: names and of tokens, made before any tensor is read, small.
Depth = Annotated[int, Field(ge=1, le=1000)]
Tokens = Annotated[int, Field(ge=1, le=2**31)]


class NeuralMemory(Frozen):
    """Arguments of NeuralMemory, and of the MemoryMLP inside (LAYER-18).

    Attributes:
        dim, heads, dim_head: sizes; dim_head is dim unless given, and must be for one head.
        chunk_size: tokens of a write.
        batch_size: tokens after which gradients are taken at the memory of then.
        depth, expansion_factor: of the memory's MLP.
        mem_model_norm_add_residual: whether its result is normed and its argument added.
        max_lr: largest learning rate of a token, default_step_transform_max_lr.
        momentum, momentum_order: whether it has one, and how many follow each other.
        max_grad_norm: bound of the soft clamp of gradients.
        spectral_norm_surprises: whether Newton-Schulz changes the updates of matrices.
        memory_names: names of the memory's tensors, in the order of memory_model_parameters.
        calls: tokens of each call of a case; None for one call.
    """

    dim: Count
    heads: Count = 1
    dim_head: Count | None = None
    chunk_size: Tokens = 1
    batch_size: Tokens | None = None
    depth: Depth = 2
    expansion_factor: Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)] = 4.0
    mem_model_norm_add_residual: bool = True
    max_lr: Positive = 1.0
    momentum: bool = True
    momentum_order: Annotated[int, Field(ge=1, le=1000)] = 1
    max_grad_norm: Positive | None = None
    spectral_norm_surprises: bool = False
    memory_names: list[str] | None = None
    calls: Annotated[list[Tokens], Field(min_length=1, max_length=1000)] | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.heads == 1 and self.inner != self.dim:
            raise ValueError(f"dim_head: must be dim = {self.dim} for one head, found {self.inner}")
        if self.batch_size is not None and self.batch_size % self.chunk_size:
            raise ValueError(
                f"batch_size: {self.batch_size} is no multiple of chunk_size = {self.chunk_size}"
            )
        if self.depth > 1 and self.hidden < 1:
            raise ValueError(f"expansion_factor: {self.expansion_factor:g} leaves no hidden entry")
        names = list(memory_names(self))
        if self.memory_names is not None and self.memory_names != names:
            raise ValueError(f"memory_names: must be {', '.join(names)}")
        return self

    @property
    def inner(self) -> int:
        """Length of a head."""
        return self.dim if self.dim_head is None else self.dim_head

    @property
    def orders(self) -> int:
        """Orders of momentum; none without it."""
        return self.momentum_order if self.momentum else 0

    @property
    def hidden(self) -> int:
        """Hidden entries of the memory's MLP."""
        return int(self.inner * self.expansion_factor)


def memory_names(settings: NeuralMemory) -> dict[str, str]:
    """Names of the memory's tensors in the order of the code, and ours."""
    within = "model." if settings.mem_model_norm_add_residual else ""
    names = {f"{within}weights.{i}": f"W_{i + 1}" for i in range(settings.depth)}
    return ({"norm.gamma": "norm/gain"} if within else {}) | names


#: Arguments that turn on every tensor, for tables of names.
EVERYTHING = NeuralMemory(dim=1, heads=2, depth=1)


def axes_of(settings: NeuralMemory) -> dict[str, str]:
    """Axes of each tensor of the memory, matrices (in, out), by the code's names."""
    last, axes = settings.depth - 1, {}
    for name in memory_names(settings):
        if name == "norm.gamma":
            axes[name] = "dim_head"
        else:
            i = int(name.rpartition(".")[2])
            axes[name] = f"{'hidden' if i else 'dim_head'} {'dim_head' if i == last else 'hidden'}"
    return axes


def sizes(settings: NeuralMemory) -> dict[str, int]:
    """Length of each axis, by the word for it."""
    heads, d = settings.heads, settings.inner
    return {
        "dim": settings.dim,
        "heads": heads,
        "dim_head": d,
        "heads*dim_head": heads * d,
        "hidden": settings.hidden,
        "heads*momentum_order": heads * settings.orders,
    }


def names(settings: NeuralMemory | None) -> Table:
    """Tensors of the state_dict; None as settings for every name that there can be."""
    own = EVERYTHING if settings is None else settings
    table = {
        "store_norm.weight": Name("dim", ".store_norm.weight"),
        "retrieve_norm.weight": Name("dim", ".retrieve_norm.weight"),
        "to_queries.weight": Name("heads*dim_head dim", ".W_Q"),
        "to_keys.weight": Name("heads*dim_head dim", ".W_K"),
        "to_values.weight": Name("heads*dim_head dim", ".W_V"),
    }
    gates = {"to_adaptive_step": "step_size", "to_decay_factor": "retain"}
    gates |= {"to_momentum": "momentum"} if own.momentum else {}
    for name, gate in gates.items():
        rows = "heads*momentum_order" if gate == "momentum" else "heads"
        table[f"{name}.0.weight"] = Name(f"{rows} dim", f".gates.{gate}.W")
        table[f"{name}.0.bias"] = Name(rows, f".gates.{gate}.b")
    if own.heads > 1:
        table["retrieve_gate.0.weight"] = Name("heads dim", ".W_gate")
        table["combine_heads.weight"] = Name("dim heads*dim_head", ".W_out")
    axes = axes_of(own)
    for i, (name, ours) in enumerate(memory_names(own).items()):
        order = (0, 2, 1) if " " in axes[name] else ()
        place = f".memory[{ours!r}]"
        table[f"memory_model_parameters.{i}"] = Name(f"heads {axes[name]}", place, order=order)
        table[f"memory_model.{name}"] = Name(axes[name], unread=True)
    if settings is not None:
        return table
    return {_any_number(name): each for name, each in table.items()} | {
        "memory_model.weights.N": Name("dim_head hidden", unread=True)
    }


def _any_number(name: str) -> str:
    start, _, end = name.rpartition(".")
    return f"{start}.N" if end.isdigit() else name


def config(settings: NeuralMemory, eps: float, constants: Constants) -> neural_memory.Config:
    """The layer of the code's arguments."""
    own = neural_memory.configured(
        settings.dim,
        heads=settings.heads,
        d_head=settings.inner,
        chunk=settings.chunk_size,
        refresh=settings.batch_size,
        depth=settings.depth,
        expansion=settings.expansion_factor,
        residual_norm=settings.mem_model_norm_add_residual,
        momentum=settings.momentum,
        momentum_order=max(1, settings.orders),
        max_step=settings.max_lr,
        clip=settings.max_grad_norm,
        newton_schulz=settings.spectral_norm_surprises,
    )
    return own.replaced(norm=own.norm.replaced(eps=eps))


# -- states ----------------------------------------------------------------------------------------


def prefixes(settings: NeuralMemory) -> dict[str, int | None]:
    """What stands before names of each call, and its tokens; nothing before those of one call."""
    calls = settings.calls or []
    if len(calls) < 2:
        return {"": calls[0] if calls else None}
    return {f"call{number}/": tokens for number, tokens in enumerate(calls)}


Memories = Mapping[str, Array]


def first_weights(config: neural_memory.Config, params: Any, batch: int) -> dict[str, Array]:
    """Weights of the memories of all rows before the first write, (B, H, ...)."""
    return {
        name: ops.broadcast_to(params.memory[name], (batch, config.heads, *shape))
        for name, shape in config.rule.fast_shapes.items()
    }


def last_weights(
    config: neural_memory.Config, params: Any, state: neural_memory.State, batch: int
) -> dict[str, Array]:
    """W of a state, (B, H, ...): first weights where none was written."""
    return dict(state.memory.weights) or first_weights(config, params, batch)


def reference(
    config: neural_memory.Config, params: Any, state: neural_memory.State, batch: int
) -> dict[str, Array]:
    """Weights at which the next gradient is taken, (B, H, ...): W where a span ends here."""
    span, at = config.rule.span, state.memory.position
    if span is not None and at % span == 0:
        return last_weights(config, params, state, batch)
    return dict(state.memory.reference) or first_weights(config, params, batch)


def state_of(
    settings: NeuralMemory,
    config: neural_memory.Config,
    params: Any,
    state: neural_memory.State,
    memories: Sequence[Memories],
) -> dict[str, Array]:
    """A state by the names of the code: (B H, ...), matrices (in, out) (LAYER-18).

    Args:
        memories: W before the call and after each of its writes.
    """
    memory, B, names = state.memory, state.tokens.shape[0], memory_names(settings)
    matrices = {ours for ours in names.values() if ours.startswith("W_")}

    def theirs(ours: str, value: Array, axes: int = 0) -> Array:
        """Rows and heads as one axis, behind them `axes` others, and the tensor's own."""
        value = ops.reshape(value, (-1, *value.shape[2:]))
        return ops.swapaxes(value, -1, -2) if ours in matrices else value

    stored = memory.position - memory.position % config.chunk
    found: dict[str, Array] = {"seq_index": np.array(stored, np.int64)}
    kinds = {
        "last_update": last_weights(config, params, state, B),
        "weights": reference(config, params, state, B),
    }
    for kind, tensors in kinds.items():
        found |= {f"{kind}/{name}": theirs(ours, tensors[ours]) for name, ours in names.items()}
    for name, ours in names.items():
        every = ops.stack([each[ours] for each in memories], axis=2)
        found[f"updates/{name}"] = theirs(ours, every)
        if settings.momentum:
            S = _orders(settings, config, ours, memory.momentum.get(ours), every)
            found[f"last_momentum/{name}"] = ops.moveaxis(theirs(ours, S), 1, 0)
    return found


def _orders(
    settings: NeuralMemory, config: neural_memory.Config, name: str, S: Any, like: Array
) -> Array:
    """S of a tensor with its orders, (B, H, m, ...); zero before the first write."""
    shape = (*like.shape[:2], settings.orders, *config.rule.fast_shapes[name])
    return ops.zeros_like(like, shape=shape) if S is None else ops.reshape(S, shape)


MODULE = Module(neural_memory, NeuralMemory, sizes, names, config)
