"""The run of the global memory, and of a local one shard by shard.

Each is an ordinary run of a rule in one of its forms; TNT decides where it starts anew, which
tokens it sees and what it is asked. Specified in specs/tnt.md (TNT-3 to TNT-6).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref import backend, forms
from atlas_ref.forms.tnt import pieces
from atlas_ref.forms.tnt.config import Global, Local, form_of
from atlas_ref.forms.tnt.gates import Gates
from atlas_ref.forms.tnt.projection import gated, projected
from atlas_ref.forms.tnt.state import Initial, Keys, Place, chunk_place, fresh
from atlas_ref.rules.sequence import Tokens, features
from atlas_ref.types import Array
from tape import ops


def global_run(
    memory: Global, initial: Initial, tokens: Tokens, place: Place, position: int, gates: Gates
) -> tuple[Place, Array | None]:
    """The global memory over the tokens of a document (TNT-3).

        V_(n+1)C = V_nC - sum_t eta_t grad L(f(V_nC, k_t), v_t),     y_t = f(V at t's chunk start, q_t)

    Args:
        position: number of the first token in its document.
        gates: of these tokens.

    Returns:
        the memory after the last token, y (..., T, d_out) or None where nothing reads it.
    """
    keys, tokens = _asked(memory, initial, tokens, place, position, gates)
    if memory.sum == "exclusive":
        state, y = _run(memory, initial, tokens, place.memory)
    else:
        _without_momentum(tokens, "sum inclusive")
        number = position + np.arange(tokens.k.shape[-2])
        times = 1 + ((number % memory.span == 0) & (number > 0))
        twice = pieces.picked(tokens, np.repeat(np.arange(len(number)), times))
        state, y = _run(memory, initial, twice, place.memory)
        y = y[..., np.cumsum(times) - 1, :]
    return Place.trusted(memory=state, keys=keys), None if memory.read == "none" else y


def local_run(
    local: Local, initial: Initial, tokens: Tokens, place: Place, position: int, gates: Gates
) -> tuple[Place, Array]:
    """A local memory over the tokens of a document: shards, each from W_init (TNT-4 to TNT-6).

    The rest of the shard in progress comes first, whole shards side by side, a begun one last.

    Args:
        position: number of the first token in its document.
        gates: of these tokens.

    Returns:
        the memory after the last token, y (..., T, d_out).
    """
    keys, tokens = _asked(local, initial, tokens, place, position, gates)
    tokens = _counted(local, tokens, position)
    T, S = tokens.k.shape[-2], local.shard
    done = min(T, -position % S)
    state, reads = place.memory, []
    if done:
        rest = pieces.cut(tokens, 0, done)
        state, y = _run(local, initial, rest, state, position % S)
        reads.append(y)
    whole = (T - done) // S
    if whole > 1 and local.independent and local.rule.in_family:
        part = pieces.cut(tokens, done, done + whole * S)
        state, y = _side_by_side(local, initial, part, whole)
        reads.append(y)
        done += whole * S
    while done < T:
        part = pieces.cut(tokens, done, min(done + S, T))
        state, y = _shard(local, initial, part, _anew(local, initial, part, state))
        reads.append(y)
        done += part.k.shape[-2]
    if local.read == "call_end":
        idle = tokens.replaced(active=np.zeros(T, bool))
        reads = [_ordinary(local, initial, idle, state)[1]]
    return Place.trusted(memory=state, keys=keys), pieces.joined(reads)


def _asked(
    memory: Global | Local,
    initial: Initial,
    tokens: Tokens,
    place: Place,
    position: int,
    gates: Gates,
) -> tuple[Keys, Tokens]:
    """What the projection then remembers, and the tokens with the queries of the memory."""
    keys, moved = projected(memory, initial, tokens.k, tokens.q, place.keys, position)
    return keys, tokens.replaced(q=gated(memory, tokens.q, moved, gates.query))


def _side_by_side(local: Local, initial: Initial, tokens: Tokens, count: int) -> tuple[Any, Array]:
    """So many whole shards, which know nothing of each other, as one axis of a single run (TNT-4)."""
    axis = len(tokens.k.shape) - 2
    part = pieces.folded(tokens, count)
    initial = initial.replaced(M=_beside_shards(initial.M), S=_beside_shards(initial.S))
    state = fresh(local, initial, part.k.shape[:-2], part.k)
    state, y = _shard(local, initial, part, state)
    return pieces.last_of(state, axis), pieces.unfolded(y)


def _beside_shards(value: Array) -> Array:
    """W_init with the axis of shards, where it has leading axes of its own."""
    if value is None or len(value.shape) == 2:
        return value
    return ops.expand_dims(value, -3)


def _anew(local: Local, initial: Initial, tokens: Tokens, before: Any) -> Any:
    """The state at the first token of a shard (TNT-4)."""
    state = fresh(local, initial, tokens.k.shape[:-2], tokens.k)
    if local.reset_momentum == "carry":
        momentum = local.rule.memories[1]
        state = state.replaced(**{momentum: getattr(before, momentum)})
    if local.chunk_origin == "document":
        state = state.replaced(reference=before.reference, position=before.position)
    return state


def _shard(local: Local, initial: Initial, tokens: Tokens, state: Any) -> tuple[Any, Array]:
    """The first tokens of a shard, from its state at the reset (TNT-5)."""
    if local.reset == "before_write" or local.base == "previous":
        return _run(local, initial, tokens, state)
    if local.base == "running" or local.span == 1:  # the write is lost
        active = np.arange(tokens.k.shape[-2]) > 0
        return _run(local, initial, tokens.replaced(active=active), state)
    after, y = _run(local, initial, tokens, state)
    if local.read != "after":
        return after, y
    config = local.run_config
    _, queries = features(config, tokens, initial.phi)
    first = ops.expand_dims(local.rule.read(config, state, queries[..., 0, :]), -2)
    return after, ops.concatenate([first, y[..., 1:, :]], axis=-2)


def _counted(local: Local, tokens: Tokens, position: int) -> Tokens:
    """Tokens whose gates make Eq 6 as printed: momentum 1 inside a chunk, 0 at its start (TNT-5).

    Where the reset takes the place of a write, that token's gradient waits in the momentum.
    """
    if local.base != "previous":
        return tokens
    _without_momentum(tokens, "base previous")
    number = position + np.arange(tokens.k.shape[-2])
    inside = chunk_place(local, number) > 0
    writes = number % local.shard > 0

    def gate(mask: Any) -> Array:
        kind = np.real(np.empty(0, tokens.k.dtype)).dtype
        return backend.of(tokens.k).from_host(
            np.broadcast_to(mask, tokens.k.shape[:-1]).astype(kind)
        )

    after_reset = gate(writes) if local.reset == "instead_of_write" else None
    return tokens.replaced(momentum=gate(inside), step_size_memory=after_reset)


def _without_momentum(tokens: Tokens, why: str) -> None:
    if tokens.momentum is not None:
        raise ValueError(f"momentum: given, but {why} is defined without one")


def _run(
    memory: Global | Local, initial: Initial, tokens: Tokens, state: Any, place: int = 0
) -> tuple[Any, Array]:
    """A run of the memory's rule, in one piece; chunk by chunk where reads wait for a chunk's end.

    Args:
        place: of the first token in its shard.

    Source: TNT-25.
    """
    if memory.read != "chunk_end":
        return _ordinary(memory, initial, tokens, state)
    T, first, reads = tokens.k.shape[-2], 0, []
    while first < T:
        last = min(T, first + memory.span - (place + first) % memory.span)
        state, y = _ordinary(memory, initial, pieces.cut(tokens, first, last), state)
        reads.append(y)
        first = last
    return state, pieces.joined(reads)


def _ordinary(
    memory: Global | Local, initial: Initial, tokens: Tokens, state: Any
) -> tuple[Any, Array]:
    """An ordinary run of the memory's rule in its form (TNT-13)."""
    if not memory.writes:
        tokens = tokens.replaced(active=np.zeros(tokens.k.shape[-2], bool))
    found: tuple[Any, Array] = forms.run(
        memory.rule,
        memory.run_config,
        tokens,
        state,
        form=form_of(memory),
        chunk=memory.chunk,
        phi=initial.phi,
    )
    return found
