"""Hebbian rule: the outer product of value and key is added, without a prediction or an error.

    M_t = retain_t M_{t-1} + v_t k_t^T
    y_t = M_t q_t

Specified in specs/hebbian.md. It is a rule of its own: no gate values turn Delta into it (errata
E-A26).

Its guarantees, cost, special cases and backward: HEBBIAN-6 to HEBBIAN-11.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from atlas_ref import backend
from atlas_ref.conventions import Convention, effective, of_config
from atlas_ref.parts.ceiling import held
from atlas_ref.parts.gates import Gates
from atlas_ref.rules import sequence
from atlas_ref.rules.checks import check_start
from atlas_ref.rules.rule import Rule, by_name
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Sizes and choices of a Hebbian memory.

    Attributes:
        d_in, d_out: length of keys and queries; of values and reads.
        d_model, heads: length of a token and number of heads, for level token.
        span: tokens between refreshes of the memory that read chunk_start reads.
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
    convention: Convention = of_config("spec", rule="hebbian")

    @field_validator("convention", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Convention:
        return effective(of_config(value, rule="hebbian"), rule="hebbian")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        sequence.require_span(self.convention, self.span)
        return self


class State(Frozen):
    """Everything that a split between two tokens must carry (HEBBIAN-1, HEBBIAN-12).

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
    """The state before the first token: M_0, zero unless given (HEBBIAN-1)."""
    check_start(Config, config, leading, dtype)
    shape = (config.d_out, config.d_in)
    M = sequence.initial(
        "M", M, (*leading, *shape), zeros=lambda: backend.current().zeros((*leading, *shape), dtype)
    )
    return restart(config, State.trusted(M=M))


def restart(config: Config, state: State) -> State:
    """The same M at the start of a call, as at the start of a packed sequence."""
    return State.trusted(M=state.M, reference=None, position=sequence.first_position(config))


def write(config: Config, state: State, k: Array, v: Array, gates: Gates) -> State:
    """Add the association of one token (HEBBIAN-2, CONV-67).

    Args:
        k (..., d_in): the key after norms.
        v (..., d_out): the value.
        gates: this token's gates; only retain is read.

    Source: MIRAS (2504.13173) Table 1, dot-product bias; HEBBIAN-2.
    """
    memory = state.M if gates.retain is None else gates.retain * state.M
    M = held(memory + ops.outer(v, k), config.convention.memory_ceiling)
    return state.replaced(M=M)


def rest(config: Config, state: State, k: Array, v: Array) -> State:
    """The state after an inactive token: M stays (HEBBIAN-4, CONV-32)."""
    return state


def read(config: Config, state: State, q: Array) -> Array:
    """y = M q (HEBBIAN-3).

    Args:
        q (..., d_in): the query after norms and scale.
    """
    return (state.M @ ops.expand_dims(q, -1))[..., 0]


RULE = Rule(
    name="hebbian",
    gates=("retain",),
    clauses=by_name(
        {
            "HEBBIAN-2": "M out/M",
            "HEBBIAN-3": "y out/y",
            "HEBBIAN-12": "out",
            "HEBBIAN-11": "grad trace_grad",
        }
    ),
    has_error=False,
    has_momentum=False,
    has_window=False,
    has_newton_schulz=False,
    bias=("dot_product",),
    in_family=True,
    Config=Config,
    State=State,
    start=start,
    restart=restart,
    write=write,
    rest=rest,
    read=read,
)
