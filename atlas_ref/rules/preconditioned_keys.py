"""Keys under a diagonal preconditioner, which shrinks channels that keys have used much.

    A_t = w_t A_{t-1} + step_size_t k_t^2
    r_t = log(A_t + 1e-6) + 0.2
    p_t = k_t 1.5^(-r_t / (1 + |r_t|))

Each factor lies between 1/1.5 and 1.5. The rule `dplr` writes along p_t and lets its erase read k_t;
p is made of keys alone, before the rule runs. Specified in specs/dplr.md (DPLR-20).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.parts import rows
from atlas_ref.rules.checks import check_log, check_one_precision, check_shapes, check_state_shape
from atlas_ref.types import Array, Dims, Frozen
from tape import ops

#: What is added to A, the log of A at which a key stays as it is, and the largest factor.
EPS, CENTRE, MOST = 1e-6, -0.2, 1.5


class Tokens(Frozen):
    """T keys with any leading axes L, and how the preconditioner moves at each (DPLR-20).

    Attributes:
        k (L, T, d_in): keys.
        log_retain (L, T): natural log of w, at most 0, -inf for a gate of 0.
        step_size (L, T): weight of the squares of a key, at least 0.
        active: (T,) or, of each row of a batch, L without its last axis and T (CONV-68): False where
            A stays; None for all True.
        reset: alike, True where A returns to that of the start; None for nowhere.
    """

    k: Annotated[Array, Dims("... T d_in")]
    log_retain: Any
    step_size: Annotated[Array, Dims("... T", 0.0)]
    active: Any = None
    reset: Any = None

    @model_validator(mode="after")
    def _have_one_shape(self) -> Self:
        check_log("log_retain", self.log_retain)
        *lead, T, _ = self.k.shape
        masks = dict.fromkeys(rows.MASKS, rows.mask_shapes(tuple(lead), T))
        check_shapes(self, dict.fromkeys(("log_retain", "step_size"), ((*lead, T),)) | masks)
        return self


class State(Frozen):
    """Everything that a split between two tokens must carry (DPLR-20).

    Attributes:
        A (..., d_in): running sum of squares of keys, at least 0.
    """

    A: Annotated[Array, Dims("... d_in", 0.0)]


class Keys(NamedTuple):
    """Preconditioned keys (L, T, d_in), and the state after the last of them."""

    p: Array
    state: State


def run(tokens: Tokens, state: State) -> Keys:
    """Precondition every key by the squares of the keys up to it (DPLR-20).

    Raises:
        ValueError: a state of another shape or precision than that of the keys.

    Source: fla-core 0.6.0, ops/precond_kda/naive.py; DPLR-20.
    """
    *lead, T, d_in = tokens.k.shape
    check_state_shape("A", state.A, (*lead, d_in))
    named = {name: getattr(tokens, name) for name in ("k", "log_retain", "step_size")}
    check_one_precision(named | {"state.A": state.A})
    if parts := rows.of_tokens(tokens):
        return Keys(*reversed(rows.run(parts, lambda *own: run(*own)[::-1], tokens, state)))
    active = np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active)
    reset = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    retain, A, keys = ops.exp(tokens.log_retain), state.A, []
    for t in range(T):
        A, k = state.A if reset[t] else A, tokens.k[..., t, :]
        if active[t]:
            A = retain[..., t, None] * A + tokens.step_size[..., t, None] * k * k
        keys.append(k * factor(A))
    return Keys(ops.stack(keys, axis=-2), State.trusted(A=A))


def factor(A: Array) -> Array:
    """1.5^(-r / (1 + |r|)) with r = log(A + 1e-6) + 0.2 (DPLR-20)."""
    r = ops.log(A + EPS) - CENTRE
    return ops.exp(-math.log(MOST) * r / (1.0 + ops.absolute(r)))
