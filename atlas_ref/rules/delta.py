"""Delta rule: gradient descent on one token's error, without momentum.

    e_t = M_ref k_t - v_t
    M_t = retain_t M_{t-1} - step_size_t e_t k_t^T
    y_t = M_t q_t

Specified in specs/delta.md. Source: Titans (2501.00663) Eq 34; MIRAS (2504.13173) Table 1.

Its guarantees, cost, special cases and backward: DELTA-6 to DELTA-14.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from atlas_ref import backend
from atlas_ref.conventions import Convention, of_config
from atlas_ref.parts.ceiling import held
from atlas_ref.parts.gates import Gates
from atlas_ref.rules import sequence
from atlas_ref.rules.checks import check_start
from atlas_ref.rules.rule import Rule, by_name
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Sizes and choices of a Delta memory.

    Attributes:
        d_in, d_out: length of keys and queries; of values and reads.
        d_model, heads: length of a token and number of heads, for level token.
        span: tokens between refreshes of a frozen reference, or of the memory that read chunk_start
            reads.
        per_dimension_gates: one gate per output dimension instead of one per head.
        convention: a preset's name, a mapping of axes, or a `Convention`; with given gates it has
            to state the axis gate.
    """

    d_in: Count
    d_out: Count
    d_model: Count | None = None
    heads: Count = 1
    span: Count | None = None
    per_dimension_gates: bool = False
    convention: Convention = of_config("spec", rule="delta")

    @field_validator("convention", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Convention:
        return of_config(value, rule="delta")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        sequence.require_span(self.convention, self.span)
        return self


class State(Frozen):
    """Everything that a split between two tokens must carry (DELTA-1, DELTA-15).

    Attributes:
        M (..., d_out, d_in): memory.
        reference (..., d_out, d_in): memory at the start of the span or call; None before the first
            token.
        position: place of the next token in its span.
    """

    M: Annotated[Array, Dims("... d_out d_in")]
    reference: Annotated[Array, Dims("... d_out d_in", optional=True)] = None
    position: Annotated[int, Field(ge=0)] = 0


def start(
    config: Config, leading: tuple[int, ...] = (), *, dtype: Any = np.float64, M: Array = None
) -> State:
    """The state before the first token: M_0, zero unless given (DELTA-1)."""
    check_start(Config, config, leading, dtype)
    shape = (config.d_out, config.d_in)
    M = sequence.initial(
        "M", M, (*leading, *shape), zeros=lambda: backend.current().zeros((*leading, *shape), dtype)
    )
    return restart(config, State.trusted(M=M))


def restart(config: Config, state: State) -> State:
    """The same M at the start of a call, as at the start of a packed sequence."""
    return State.trusted(M=state.M, reference=None, position=sequence.first_position(config))


class Update(NamedTuple):
    """The values of one write in order, and the state after it."""

    residual: Array
    gradient: Array
    M: Array
    state: State


def write(config: Config, state: State, k: Array, v: Array, gates: Gates) -> State:
    """Move the memory by one token's error (DELTA-2, DELTA-3).

    Args:
        k (..., d_in): the key after norms.
        v (..., d_out): the value.
        gates: this token's gates.

    Reduces to: hebbian in the limit step_size -> 0 with v / step_size in place of v.

    Source: Titans Eq 34; gated form with decay before_error; DELTA-2, DELTA-3.
    """
    return update(config, state, k, v, gates).state


def update(config: Config, state: State, k: Array, v: Array, gates: Gates) -> Update:
    """`write` with its intermediate values (DELTA-2, DELTA-3, CONV-5, CONV-6, CONV-9, CONV-10,
    CONV-67).
    """
    convention = config.convention
    M_ref = state.reference if convention.frozen_reference else state.M
    if convention.reference in ("zero", "surrogate"):
        M_ref = ops.zeros_like(state.M)
    if convention.decay == "before_error" and gates.retain is not None:
        M_ref = gates.retain * M_ref
    target = v if convention.value_sign == "minus" else -v
    residual = (M_ref @ ops.expand_dims(k, -1))[..., 0] - target  # (..., d_out)
    s = (
        2.0 / config.d_out
        if isinstance(convention.gradient_scale, str)
        else convention.gradient_scale
    )
    gradient = ops.outer(residual if s == 1.0 else s * residual, k)  # (..., d_out, d_in)

    if convention.rate == "both":
        change = gates.step_size * (gates.step_size * gradient)
    elif convention.rate == "split":
        change = gates.step_size_memory * (gates.step_size * gradient)
    else:
        change = gradient if convention.rate == "none" else gates.step_size * gradient
    memory = state.M if gates.retain is None else gates.retain * state.M
    M = memory + change if convention.direction == "ascent" else memory - change
    M = held(M, convention.memory_ceiling)
    return Update(residual, gradient, M, state.replaced(M=M))


def rest(config: Config, state: State, k: Array, v: Array) -> State:
    """The state after an inactive token: M stays (DELTA-5, CONV-32)."""
    return state


def read(config: Config, state: State, q: Array) -> Array:
    """y = M q (DELTA-4).

    Args:
        q (..., d_in): the query after norms and scale.
    """
    return (state.M @ ops.expand_dims(q, -1))[..., 0]


RULE = Rule(
    name="delta",
    gates=("retain", "step_size"),
    clauses=by_name(
        {
            "DELTA-2": "residual gradient",
            "DELTA-3": "M out/M",
            "DELTA-4": "y out/y",
            "DELTA-15": "out",
            "DELTA-14": "grad trace_grad",
        }
    ),
    has_error=True,
    has_momentum=False,
    has_window=False,
    has_newton_schulz=False,
    in_family=True,
    Config=Config,
    State=State,
    start=start,
    restart=restart,
    write=write,
    rest=rest,
    read=read,
)
