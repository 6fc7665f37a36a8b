"""TNT inside a memory layer: which projections its memories have, and where they start.

    reads = f(V at the start of t's chunk, q_t) + sum_i f(W_i after t, P_i,t q_t)

Specified in specs/memory.md (MEMORY-13 to MEMORY-15); TNT itself in specs/tnt.md.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from atlas_ref import backend
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt.state import start_like
from atlas_ref.layers import checks
from atlas_ref.layers.projection import of_computed
from atlas_ref.levels.level import Level
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Frozen
from tape import ops
from tape.nested import flatten


class Config(Frozen):
    """A TNT whose tokens a layer projects (MEMORY-13).

    Attributes:
        tnt: its memories; their rules have d_model and heads.
        params: shared, one set of projections and gates for all memories; per_memory, one each,
            the global memory's first.
    """

    tnt: tnt.Config
    params: Literal["shared", "per_memory"] = "shared"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.tnt.combine == "gated" or any(
            memory.projection.gate != "none" for memory in self.tnt.memories
        ):
            raise ValueError(
                "tnt: a layer makes no gates of queries and reads (TNT-24); combine sum and gate "
                "none are needed"
            )
        for memory in self.tnt.memories:
            Level(config=memory.config)  # which refuses rules that no layer drives
        for name in ("d_model", "heads"):
            values = [getattr(memory.config, name) for memory in self.tnt.memories]
            if len(set(values)) > 1:
                raise ValueError(
                    f"tnt: {name} must be the same in all memories, found "
                    f"{', '.join(map(str, values))}"
                )
        if self.params == "shared":
            self._shareable()
        return self

    def _shareable(self) -> None:
        first, *others = self.tnt.memories
        settings = [(each.rule.name, each.config.model_dump()) for each in self.tnt.memories]
        if any(each != settings[0] for each in settings):
            raise ValueError("params: shared needs one rule with the same settings in all memories")
        if others and not first.rule.in_family:
            raise ValueError(
                f"params: shared would share the first weights of each {first.rule.name}; "
                "per_memory gives each its own"
            )

    @property
    def levels(self) -> tuple[Level, ...]:
        """Rules by which the layer projects tokens: one, or one for each memory."""
        memories = self.tnt.memories[:1] if self.params == "shared" else self.tnt.memories
        return tuple(Level(config=memory.config) for memory in memories)

    @property
    def heads(self) -> int:
        return int(self.tnt.memories[0].config.heads)

    @property
    def bare(self) -> bool:
        """Whether a memory is defined without a momentum gate alone (TNT-3, TNT-5)."""
        of_global = self.tnt.global_memory
        return (of_global is not None and of_global.sum == "inclusive") or any(
            local.base == "previous" for local in self.tnt.local_memories
        )


#: Settings of the layer that a TNT has not, and their values without them (MEMORY-13).
WITHOUT: dict[str, Any] = {"reference_at_call": "carried", "state_clamp": None}


def check_layer(layer: Any) -> None:
    """Refuse settings of a layer that a TNT has not (MEMORY-13).

    Raises:
        ValueError: names the setting.
    """
    for name, value in WITHOUT.items():
        if getattr(layer, name) != value:
            raise ValueError(f"{name}: {getattr(layer, name)}, but a TNT has none")
    gated = layer.momentum and any("momentum" in own.rule.gates for own in layer.levels.levels)
    if layer.levels.bare and gated:
        raise ValueError("momentum: base previous and sum inclusive are defined without a gate")


def shapes(config: Config) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Shapes of where each memory starts, and of its learned projection, by name (MEMORY-14)."""
    found = []
    for memory in config.tnt.memories:
        rule = memory.config
        own: dict[str, tuple[int, ...]] = {}
        if memory.rule.in_family:
            own["M"] = (rule.heads, rule.d_out, memory.rule.d_phi(rule))
        if isinstance(memory, tnt.Local) and memory.reset_momentum == "learned":
            own["S"] = own["M"]
        if memory.projection.kind == "learned":
            own["W_QK"] = (rule.heads, rule.d_in, rule.d_in)
        found.append(own)
    return tuple(found)


def init(config: Config) -> tuple[tnt.Initial, ...]:
    """V_0, W_init and their momenta at zero, W_QK the unit matrix (MEMORY-14)."""

    def first(name: str, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape) + (np.eye(shape[-1]) if name == "W_QK" else 0.0)

    return tuple(
        tnt.Initial(**{name: first(name, shape) for name, shape in own.items()})
        for own in shapes(config)
    )


def check_initial(config: Any, initial: tuple[tnt.Initial, ...], x: Array) -> None:
    """Refuse starts of memories that contradict the settings, or starts without a TNT (NORM-2).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    needed = shapes(config) if isinstance(config, Config) else ()
    if len(initial) != len(needed):
        raise ValueError(f"params.initial: {len(initial)}, expected {len(needed)}")
    for i, (own, expected) in enumerate(zip(initial, needed, strict=True)):
        if own.phi:
            raise ValueError(f"params.initial[{i}].phi: present, but it belongs to the projections")
        for name in ("M", "S", "W_QK"):
            place, array = f"params.initial[{i}].{name}", getattr(own, name)
            word = "need it" if name in expected else "have none"
            checks.check_presence(place, array, name in expected, f"the settings {word}")
            if array is not None:
                axes = "heads, d_in, d_in" if name == "W_QK" else "heads, d_out, d_phi"
                checks.check_shape(place, array, expected[name], axes)
                checks.check_precision(x, {place: array})


def start(config: Config, batch: int, *, dtype: Any) -> tnt.State:
    """The state before the first token; the call that brings it takes V_0 and W_init from the
    parameters (MEMORY-15).
    """
    place = backend.current()
    zero = []
    for own in shapes(config):
        arrays: dict[str, Any] = {name: place.zeros(shape, dtype) for name, shape in own.items()}
        zero.append(tnt.Initial(**arrays))
    return tnt.start(
        config.tnt, tnt.Params(memories=tuple(zero)), (batch, config.heads), dtype=dtype
    )


def restarted(config: Config, state: tnt.State) -> tnt.State:
    """The state where a document starts (MEMORY-15)."""
    leaves = flatten(state, "state")[0]
    # fast tensors may have one row for all
    return start(config, max(leaf.shape[0] for leaf in leaves), dtype=leaves[0].dtype)


def run(
    config: Config, params: Any, projected: list[dict[str, Any]], state: tnt.State, starts: Any
) -> tuple[tnt.State, Array]:
    """The memories over projected tokens (MEMORY-13, MEMORY-15).

    Args:
        params: of the layer.
        projected: fields of `Tokens` for each set of projections.
        starts (T,): where documents start; None for nowhere.

    Returns:
        state, reads (B, H, T, d_out).
    """
    settings, own, tokens = _called(config, params, projected, starts)
    return tnt.run(settings, own, tokens, _begun(settings, own, tokens[0], state))


def retrieve(
    config: Config, params: Any, projected: list[dict[str, Any]], state: tnt.State, starts: Any
) -> Array:
    """Reads of the memories as they are; after the start of a document as they start (MEMORY-15).

    Args:
        as for `run`.

    Returns:
        reads (B, H, T, d_out).
    """
    settings, own, tokens = _called(config, params, projected, None)
    state, T = _begun(settings, own, tokens[0], state), tokens[0].k.shape[-2]
    begins = T if starts is None or not starts.any() else int(np.argmax(starts))
    reads = []
    for first, last in itertools.pairwise(sorted({0, begins, T})):
        if first == begins:
            state = start_like(settings, own, tokens[0].k.shape[:-2], tokens[0].k)
        parts = _called(config, params, [_cut(each, first, last) for each in projected], None)[2]
        reads.append(tnt.retrieve(settings, own, parts, state))
    return reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def _cut(projected: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    return {
        name: None if value is None else value[:, :, first:last]
        for name, value in projected.items()
    }


def _called(
    config: Config, params: Any, projected: list[dict[str, Any]], starts: Any
) -> tuple[tnt.Config, tnt.Params, tuple[Tokens, ...]]:
    """Settings, parameters and tokens as `forms.tnt` takes them."""
    count = len(config.tnt.memories)
    branches = params.levels * (count if config.params == "shared" else 1)
    own = tnt.Params.trusted(
        memories=tuple(
            initial.replaced(phi=branch.projection.phi)
            for initial, branch in zip(params.initial, branches, strict=True)
        )
    )
    tokens = [Tokens(**each, reset=starts) for each in projected]
    return _computed(config.tnt), own, tuple(tokens * (count if len(tokens) == 1 else 1))


def _computed(config: tnt.Config) -> tnt.Config:
    """The memories with the gates that a layer computes (CONV-4)."""
    of_global = config.global_memory
    return config.replaced(
        global_memory=None
        if of_global is None
        else of_global.replaced(config=of_computed(of_global.config)),
        local_memories=tuple(
            each.replaced(config=of_computed(each.config)) for each in config.local_memories
        ),
    )


def _begun(config: tnt.Config, own: tnt.Params, tokens: Tokens, state: tnt.State) -> tnt.State:
    """The state, from V_0 and W_init where no token of its document was seen (MEMORY-15)."""
    if state.position != config.origin:
        return state
    return start_like(config, own, tokens.k.shape[:-2], tokens.k)
