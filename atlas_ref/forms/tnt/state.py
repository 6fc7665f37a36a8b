"""Parameters and state of TNT: where memories start, and all that a cut between two tokens carries.

Specified in specs/tnt.md (TNT-2, TNT-11).
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from atlas_ref import backend
from atlas_ref.forms.tnt.config import Config, Global, Local
from atlas_ref.rules.checks import require_floating
from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops


class Initial(Frozen):
    """Where a memory starts, and the tensors that it takes (TNT-2).

    Attributes:
        M (..., d_out, d_phi): V_0 of the global memory, W_init of a local one; None for zero.
        S (..., d_out, d_phi): its first momentum, of the sign of the convention; None for zero.
        phi: tensors of the feature map, or of a deep memory (its first weights among them).
        W_QK (..., d_in, d_in): of the learned projection.
    """

    M: Annotated[Array, Dims("... d_out d_phi", optional=True)] = None
    S: Annotated[Array, Dims("... d_out d_phi", optional=True)] = None
    phi: dict[str, Any] = {}
    W_QK: Annotated[Array, Dims("... d_in d_in", optional=True)] = None

    @field_validator("phi")
    @classmethod
    def _arrays(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, array in value.items():
            check_array(name, array, Dims("..."))
        return value


class Params(Frozen):
    """Parameters of the outer loop: `Initial` of the global memory, if any, and of each local one."""

    memories: tuple[Initial, ...]


class Keys(Frozen):
    """What the projection of a memory remembers of earlier keys (TNT-11).

    Attributes:
        total (..., d, d): sum of their outer products, or the projector onto their span.
        size (...,): sum of their squared norms, under norm sum_of_norms.
        rows (..., n, d): the last keys, under range window.
    """

    total: Annotated[Array, Dims("... d d", optional=True)] = None
    size: Annotated[Array, Dims("...", optional=True)] = None
    rows: Annotated[Array, Dims("... n d", optional=True)] = None


class Place(Frozen):
    """One memory between two calls: the state of its rule, and of its projection."""

    memory: Any
    keys: Keys = Keys()


class State(Frozen):
    """Everything that a split between two tokens must carry (TNT-11).

    Attributes:
        position: number of the next token of the document, counted from `Config.origin`.
        places: of the global memory, if any, and of each local one.
    """

    position: Annotated[int, Field(ge=0)]
    places: tuple[Place, ...]


def start(
    config: Config, params: Params, leading: tuple[int, ...] = (), *, dtype: Any = np.float64
) -> State:
    """The state before the first token of a document: V_0, W_init and no key (TNT-2).

    Args:
        leading: axes of the tokens in front, such as (batch, heads).

    Raises:
        ValueError: parameters that do not fit the configuration.
    """
    check_params(config, params)
    require_floating(dtype)
    return start_like(config, params, leading, backend.current().zeros((), dtype))


def start_like(config: Config, params: Params, leading: tuple[int, ...], like: Array) -> State:
    """The same on the backend and in the precision of an array, for parameters that were checked."""
    places = tuple(
        Place(
            memory=_at_origin(config, memory, fresh(memory, initial, leading, like)),
            keys=_no_keys(memory, leading, like),
        )
        for memory, initial in zip(config.memories, params.memories, strict=True)
    )
    return State.trusted(position=config.origin, places=places)


def check_params(config: Config, params: Params) -> None:
    """Refuse parameters that do not fit the configuration.

    Raises:
        ValueError: names the memory and the tensor.
    """
    if not isinstance(params, Params) or len(params.memories) != len(config.memories):
        found = len(params.memories) if isinstance(params, Params) else type(params).__name__
        raise ValueError(
            f"params: {found}, expected one of each of {len(config.memories)} memories"
        )
    for i, (memory, own) in enumerate(zip(config.memories, params.memories, strict=True)):
        learned = memory.projection.kind == "learned"
        momentum = isinstance(memory, Global) or memory.reset_momentum != "zero"
        expected = {
            "M": None if memory.rule.in_family else False,
            "S": (
                False
                if not momentum or not (memory.rule.in_family and memory.rule.has_momentum)
                else True
                if isinstance(memory, Local) and memory.reset_momentum == "learned"
                else None
            ),
            "W_QK": learned,
        }
        for name, needed in expected.items():
            if needed is not None and needed != (getattr(own, name) is not None):
                raise ValueError(
                    f"params.memories[{i}].{name}: {'missing' if needed else 'given'}, but "
                    f"{_what(memory)} {'needs it' if needed else 'takes none'}"
                )


def _what(memory: Global | Local) -> str:
    if isinstance(memory, Global):
        return f"the global {memory.rule.name} with projection {memory.projection.kind}"
    return (
        f"a local {memory.rule.name} with reset_momentum {memory.reset_momentum}, projection "
        f"{memory.projection.kind}"
    )


def fresh(memory: Global | Local, initial: Initial, leading: tuple[int, ...], like: Array) -> Any:
    """The state of a memory's rule at W_init (or V_0), with an empty window (TNT-4).

    Args:
        like: an array of its precision and backend.
    """
    config = memory.run_config
    shape = (config.d_out, memory.rule.d_phi(config)) if memory.rule.in_family else ()
    given = {
        name: _spread(name, value, (*leading, *shape))
        for name, value in (("M", initial.M), ("S", initial.S))
        if value is not None
    }
    if memory.rule.in_family and "M" not in given:
        given["M"] = ops.zeros_like(like, shape=(*leading, *shape))
    return memory.rule.start(config, leading, dtype=like.dtype, **given)


def _spread(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    """A first memory for each leading index; one of fewer leading axes is shared (TNT-2).

    Raises:
        ValueError: names the tensor, its shape and the one needed.
    """
    fits = value.shape[-2:] == shape[-2:] and len(value.shape) <= len(shape)
    leading = zip(value.shape[-3::-1], shape[-3::-1], strict=False)
    if not fits or any(own not in (1, size) for own, size in leading):
        raise ValueError(
            f"{name}: shape {value.shape}, expected {shape[-2:]}, after leading axes that "
            f"broadcast against {shape[:-2]}"
        )
    return ops.broadcast_to(value, shape)


def _at_origin(config: Config, memory: Global | Local, state: Any) -> Any:
    """The state whose first token stands at the origin in its chunk (TNT-13)."""
    if config.origin == 0:
        return state
    span = memory.run_config.span
    place = config.origin if isinstance(memory, Global) else chunk_place(memory, config.origin)
    return state.replaced(position=place % span)


def chunk_place(local: Local, position: Any) -> Any:
    """Place of a token, or of each, in its chunk: distance from the chunk's first one (TNT-5)."""
    from_start = position % local.shard if local.chunk_origin == "shard" else position
    return from_start % local.span


def _no_keys(memory: Global | Local, leading: tuple[int, ...], like: Array) -> Keys:
    shapes = _key_shapes(memory, leading)
    return Keys(**{name: _zeros(shape, like) for name, shape in shapes.items()})


def _key_shapes(memory: Global | Local, leading: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of what a projection holds before the first key (TNT-11)."""
    if memory.projection.kind in ("none", "learned"):
        return {}
    d, projection = memory.config.d_in, memory.projection
    if projection.range == "window":
        return {"rows": (*leading, 0, d)}
    summed = projection.kind == "sum_outer" and projection.norm == "sum_of_norms"
    return {"total": (*leading, d, d), **({"size": leading} if summed else {})}


def check_keys(where: str, memory: Global | Local, keys: Keys, leading: tuple[int, ...]) -> None:
    """Refuse keys of a state that are those of another projection (TNT-11).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    shapes, projection = _key_shapes(memory, leading), memory.projection
    for name in Keys.model_fields:
        found, wanted = getattr(keys, name), shapes.get(name)
        if (found is None) != (wanted is None):
            raise ValueError(
                f"{where}.{name}: {'missing' if found is None else 'given'}, but projection "
                f"{projection.kind} of range {projection.range} and norm {projection.norm} "
                f"{'needs it' if found is None else 'takes none'}"
            )
        if found is None or wanted is None:
            continue
        if name == "rows":  # as many as there were
            wanted = (*wanted[:-2], found.shape[-2], wanted[-1])
        if found.shape != wanted:
            raise ValueError(f"{where}.{name}: shape {found.shape}, expected {wanted}")


def _zeros(shape: tuple[int, ...], like: Array) -> Array:
    zeros = ops.zeros_like(like, shape=shape)
    if isinstance(zeros, np.ndarray):
        zeros.flags.writeable = False
    return zeros
