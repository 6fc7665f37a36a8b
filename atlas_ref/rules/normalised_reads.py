"""Reads divided by what their query finds in the sum of keys: normalised linear attention.

    z_t = z_{t-1} + k_t
    y_t = query_scale M_t q_t / (query_scale z_t . q_t + eps)

The sum is one more row of the memory of `dplr`, whose value is 1 at every token. So each form of
that rule computes it, and gates and erases act on it as on the other rows. Specified in
specs/dplr.md (DPLR-19).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np

from atlas_ref.rules import dplr, sequence
from atlas_ref.rules.checks import check_one_precision
from atlas_ref.types import Array, Dims, Frozen
from tape import ops

#: What the reference adds to every divisor.
EPS = 1e-10

#: The rule dplr in one of its forms: (configuration, tokens, state) -> (state, y).
Run = Callable[[dplr.Config, dplr.Tokens, dplr.State], tuple[dplr.State, Array]]


class State(Frozen):
    """Everything that a split between two tokens must carry (DPLR-19).

    Attributes:
        M (..., d_out, d_in): memory.
        z (..., d_in): sum of keys.
    """

    M: Annotated[Array, Dims("... d_out d_in")]
    z: Annotated[Array, Dims("... d_in")]


def start(
    config: dplr.Config,
    leading: tuple[int, ...] = (),
    *,
    dtype: Any = np.float64,
    M: Array = None,
    z: Array = None,
) -> State:
    """The state before the first token: M_0 and z_0, zero unless given (DPLR-19)."""
    memory = dplr.start(config, leading, dtype=dtype, M=M).M
    shape = (*memory.shape[:-2], config.d_in)
    zeros = partial(ops.zeros_like, memory, shape=shape)
    z = sequence.initial("z", z, shape, zeros=zeros, exact=True)
    return State.trusted(M=memory, z=z)


def run(
    config: dplr.Config, tokens: dplr.Tokens, state: State, *, eps: float = EPS, run: Run = dplr.run
) -> tuple[State, Array]:
    """Drive the rule over a sequence, each read divided by its normaliser (DPLR-19).

    Args:
        config, tokens: as in `rules.dplr.run`; keys and queries of positive features keep the
            divisor away from 0.
        eps: added to the divisor.
        run: the rule, or one of its forms.

    Returns:
        state after the last token, y (L, T, d_out).

    Raises:
        ValueError: factors of the rows of an erase, of which the sum of keys has none, or what the
            rule refuses.

    Source: fla-core 0.6.0, ops/linear_attn/naive.py, with normalize; DPLR-19.
    """
    if tokens.erase_scale is not None:
        raise ValueError("erase_scale: the row of the sum of keys has no factor; leave it out")
    dplr.check_call(config, tokens, dplr.State.trusted(M=state.M))
    check_one_precision({"k": tokens.k, "state.z": state.z})
    v, row = tokens.v, ops.expand_dims(state.z, -2)
    ones = ops.ones_like(v, shape=(*v.shape[:-1], 1))
    wide = tokens.replaced(v=ops.concatenate([v, ones], axis=-1))
    memory = dplr.State.trusted(M=ops.concatenate([state.M, row], axis=-2))
    after, reads = run(config.replaced(d_out=config.d_out + 1), wide, memory)
    M, z = after.M[..., :-1, :], after.M[..., -1, :]
    return State.trusted(M=M, z=z), reads[..., :-1] / (reads[..., -1:] + eps)
