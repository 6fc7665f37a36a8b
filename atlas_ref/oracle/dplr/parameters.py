"""The key `parameters` of a case of rule dplr, and the keys beside it (DPLRCASE-2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from atlas_ref.oracle.dplr import formulas, members
from atlas_ref.oracle.parameters import check_keys, check_names, validate
from atlas_ref.types import Array, Count, Frozen

#: The order of decay and erase.
Order = Literal["after_error", "before_error"]

#: Names of members.
Name: Any = Literal[tuple(members.MEMBERS)]

Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]

#: Keys of a header of this rule.
KEYS = ("schema", "rule", "level", "form", "chunk", "parameters", "trace", "note")


class Parameters(Frozen):
    """Settings of a case of rule dplr; what is left out is the member's (DPLRCASE-2).

    Attributes:
        member: name of DPLRCASE-3 whose tensors the case has; None for those of the rule.
        steps, groups, decay, query_scale: of DPLR-1.
        query_groups: queries of a token that read one memory (DPLRCASE-29).
        masked_read: what a token that is not active reads (DPLRCASE-28).
        group_order: which value heads share a key head: neighbours, or every H-th (DPLRCASE-26).
        q_norm, k_norm: x / sqrt(sum x^2 + norm_eps) of queries and keys.
        state_layout: axes of the first and the last memory.
        state_dtype, state_every: format that a program keeps its state in, and the tokens between
            two roundings to it (DPLRCASE-14).
        log_chunk: tokens over which a program cumulates logs of gates (DPLRCASE-15).
        gate_formula, beta_formula: what makes gates and step sizes of raw numbers (DPLRCASE-16,
            DPLRCASE-17).
        gate_threshold, gate_lower_bound, gate_normalizer, gate_least: of the formula of gates.
        gate_softplus, gate_dtype: how a program takes softplus, and the format that it rounds log
            gates to (DPLRCASE-19).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    member: Name | None = None
    steps: Count = 1
    groups: Count = 1
    query_groups: Count = 1
    masked_read: Literal["memory", "written", "zero"] = "memory"
    group_order: Literal["blocks", "round_robin"] = "blocks"
    decay: Order | None = None
    query_scale: Literal[1, "1/sqrt(d_in)"] | None = None
    q_norm: Literal["none", "l2"] | None = None
    k_norm: Literal["none", "l2"] | None = None
    norm_eps: Annotated[float, Field(ge=1e-15)] = 1e-6
    state_layout: Literal["(d_out, d_in)", "(d_in, d_out)"] = "(d_out, d_in)"
    state_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    state_every: Count = 1
    log_chunk: Count | None = None
    gate_formula: formulas.GateFormula | None = None
    gate_threshold: Finite | None = None
    gate_lower_bound: Annotated[Finite, Field(lt=0)] | None = None
    gate_normalizer: Annotated[Finite, Field(ge=1e-6)] | None = None
    gate_least: Annotated[Finite, Field(le=0)] | None = None
    gate_softplus: Literal["log1p", "log(1+exp)"] | None = None
    gate_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    beta_formula: formulas.BetaFormula | None = None

    @model_validator(mode="after")
    def _formulas_fit(self) -> Self:
        gated, rated = self.of.gated is True, self.of.erase in ("error", "momentum")
        who = "rule dplr" if self.member is None else f"member {self.member}"
        formulas.check(self, gated=gated, rated=rated, who=who)
        return self

    @property
    def of(self) -> members.Member:
        return members.of(self.member)

    @property
    def order(self) -> Order:
        """The decay in force."""
        return self.decay or self.of.decay

    @property
    def scale(self) -> Any:
        return self.of.query_scale if self.query_scale is None else self.query_scale

    def norm(self, name: str) -> str:
        """The norm in force of in/q or in/k."""
        own = self.q_norm if name == "in/q" else self.k_norm
        return own or self.of.norm

    def key_heads(self, heads: int) -> Array:
        """The key head of each of so many value heads (DPLR-6, DPLRCASE-26)."""
        each: Array = np.arange(heads)
        return (
            each // self.groups if self.group_order == "blocks" else each % (heads // self.groups)
        )

    def has_order(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the order of heads in groups matters: there are several groups of several."""
        keys = self.groups > 1 and inputs["in/k"].shape[-3] > 1
        return bool(keys or (self.query_groups > 1 and inputs["in/v"].shape[-3] > 1))

    def states(self, queries: int) -> Array:
        """The value head that each of so many query heads reads (DPLRCASE-29)."""
        each: Array = np.arange(queries)
        blocks, heads = self.group_order == "blocks", queries // self.query_groups
        return each // self.query_groups if blocks else each % heads

    def rounds(self, t: int, first: int, tokens: int) -> bool:
        """Whether the state is rounded after token t (DPLRCASE-14).

        Args:
            first: first token of its packed sequence.
            tokens: of the call.
        """
        return (t + 1 - first) % self.state_every == 0 or t + 1 == tokens


def check_header(header: Any) -> None:
    """Refuse keys of other rules, and settings that do not exist (DPLRCASE-2).

    Raises:
        ValueError: names the key or the parameter, what was found and what is needed.
    """
    check_keys(header, KEYS)
    parse(header)


def parse(header: Any) -> Parameters:
    """The parameters of a case, validated one by one (DPLRCASE-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    given = check_names(header, Parameters.model_fields)
    parameters: Parameters = validate(Parameters, given)
    return parameters
