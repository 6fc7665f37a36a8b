"""TNT over a sequence: the sum of the reads of N + 1 ordinary runs.

Specified in specs/tnt.md (TNT-1, TNT-13). That it is a sum of ordinary runs, which
value reaches which read, its limits, causality and cost: TNT-14 to TNT-19.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from atlas_ref.forms.tnt import pieces
from atlas_ref.forms.tnt.config import Config, Global
from atlas_ref.forms.tnt.gates import Gates, cut, given, weighed
from atlas_ref.forms.tnt.memories import global_run, local_run
from atlas_ref.forms.tnt.state import Params, State, check_keys, check_params, start_like
from atlas_ref.rules import sequence
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array
from tape import ops


def run(
    config: Config,
    params: Params,
    tokens: Tokens | tuple[Tokens, ...],
    state: State,
    gates: Gates | tuple[Gates, ...] | None = None,
) -> tuple[State, Array]:
    """Drive a global and N local memories over a sequence, and add what they read (TNT-1).

        y_t = f(V at the start of t's chunk, q_t) + sum_i f(W_i after t, P_i,t q_t)

    Args:
        tokens: of all memories, or one each, the global memory's first. A reset starts a document:
            V_0, W_init, no key, the first position.
        state: from `start`, or from an earlier call, which this one then continues: calls of any
            length together give what one call gives, unless reads wait for the end of one (TNT-25).
        gates: of all memories, or one each; None where the settings ask for none (TNT-24).

    Returns:
        state after the last token, y (..., T, d_out).

    Raises:
        ValueError: parameters, tokens or a state that contradict the configuration or each other.

    Source: TNT (2511.07343) Eqs 5-7, 13-15; TNT-1.
    """
    each = parted(config, params, tokens, state)
    own_gates = given(config, gates, each[0].k.shape[:-1])
    reset = each[0].reset
    T = each[0].k.shape[-2]
    leading = each[0].k.shape[:-2]
    reads = []
    starts = [] if reset is None else [int(t) for t in np.nonzero(reset)[0] if t > 0]
    for first, last in itertools.pairwise([0, *starts, T]):
        if reset is not None and reset[first]:
            state = start_like(config, params, leading, each[0].k)
        part = tuple(pieces.cut(own, first, last) for own in each)
        state, y = _document(
            config, params, part, state, tuple(cut(own, first, last) for own in own_gates)
        )
        reads.append(y)
    return pieces.settled(state), pieces.joined(reads)


def parted(
    config: Config, params: Params, tokens: Tokens | tuple[Tokens, ...], state: State
) -> tuple[Tokens, ...]:
    """Tokens of each memory, which agree in number and resets (TNT-13).

    Raises:
        ValueError: parameters, tokens or a state that contradict the configuration or each other.
    """
    check_params(config, params)
    count = len(config.memories)
    each = tokens if isinstance(tokens, tuple) else (tokens,) * count
    if len(each) != count:
        raise ValueError(f"tokens: {len(each)}, expected one of each of {count} memories")
    if not isinstance(state, State) or len(state.places) != count:
        found = len(state.places) if isinstance(state, State) else type(state).__name__
        raise ValueError(f"state: {found}, expected one of each of {count} memories (see start)")
    for own in each:
        sequence.check_tokens(own)
        if own.active is not None and not np.all(own.active):
            raise ValueError("active: every token of a TNT writes, found one that does not")
        if own.k.shape != each[0].k.shape or not np.array_equal(own.reset, each[0].reset):
            raise ValueError("tokens: keys of one shape and the same resets are needed in all")
    for i, (memory, place) in enumerate(zip(config.memories, state.places, strict=True)):
        check_keys(f"state.places[{i}].keys", memory, place.keys, each[0].k.shape[:-2])
    return each


def _document(
    config: Config,
    params: Params,
    tokens: tuple[Tokens, ...],
    state: State,
    gates: tuple[Gates, ...],
) -> tuple[State, Array]:
    """Tokens of one document: every memory's run, the reads added (TNT-1)."""
    places, reads = [], []
    for memory, initial, own, place, gate in zip(
        config.memories, params.memories, tokens, state.places, gates, strict=True
    ):
        of_kind: Any = global_run if isinstance(memory, Global) else local_run
        after, y = of_kind(memory, initial, own, place, state.position, gate)
        places.append(after)
        reads += [] if y is None else [weighed(y, gate)]
    T = tokens[0].k.shape[-2]
    total = sum(reads[1:], reads[0]) if reads else ops.zeros_like(tokens[0].v)
    return State.trusted(position=state.position + T, places=tuple(places)), total
