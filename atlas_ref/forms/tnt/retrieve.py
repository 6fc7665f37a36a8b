"""Reads of a TNT as it stands, by tokens that write nothing.

Specified in specs/tnt.md (TNT-23).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref import forms
from atlas_ref.forms.tnt.config import Config, Global, Local
from atlas_ref.forms.tnt.gates import Gates, given, weighed
from atlas_ref.forms.tnt.projection import gated, recalled
from atlas_ref.forms.tnt.run import parted
from atlas_ref.forms.tnt.state import Initial, Params, Place, State
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array
from tape import ops


def retrieve(
    config: Config,
    params: Params,
    tokens: Tokens | tuple[Tokens, ...],
    state: State,
    gates: Gates | tuple[Gates, ...] | None = None,
) -> Array:
    """Read every memory with each token's query, and write nothing (TNT-23).

        y_t = f(V, q_t) + sum_i f(W_i, P_i q_t)

    Args:
        tokens: of all memories, or one each, as for `run`; of keys and values nothing remains.
        state: whose memories and keys are those after its last token.
        gates: of these tokens, as for `run`.

    Returns:
        y (..., T, d_out).

    Raises:
        ValueError: as for `run`.
    """
    each = parted(config, params, tokens, state)
    own_gates = given(config, gates, each[0].k.shape[:-1])
    starts = each[0].reset
    if starts is not None and np.any(starts):
        raise ValueError("reset: a document that starts has nothing to be read; cut the call there")
    reads = [
        weighed(_read(memory, initial, own, place, gate), gate)
        for memory, initial, own, place, gate in zip(
            config.memories, params.memories, each, state.places, own_gates, strict=True
        )
        if not isinstance(memory, Global) or memory.read != "none"
    ]
    return sum(reads[1:], reads[0]) if reads else ops.zeros_like(each[0].v)


def _read(
    memory: Global | Local, initial: Initial, tokens: Tokens, place: Place, gates: Gates
) -> Array:
    """What one memory answers."""
    moved = recalled(memory, initial, tokens.q, place.keys)
    q = gated(memory, tokens.q, moved, gates.query)
    made: Any = memory.run_config
    after = made.replaced(convention=made.convention.replaced(read="after"))
    idle = tokens.replaced(q=q, active=np.zeros(q.shape[-2], bool), reset=None)
    found: tuple[Any, Array] = forms.run(
        memory.rule, after, idle, place.memory, form="sequential", phi=initial.phi
    )
    return found[1]
