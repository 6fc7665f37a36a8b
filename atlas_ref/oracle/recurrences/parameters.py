"""The key `parameters` of a case of rule recurrence, and the keys beside it (RECUR-5)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from atlas_ref.oracle.parameters import check_keys, check_names, validate
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.recurrences.member import Layout
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.types import Count, Frozen

#: Names of members.
Name: Any = Literal[tuple(MEMBERS)]

#: Keys of a header of this rule.
KEYS = ("schema", "rule", "level", "form", "parameters", "note", "trace")


class Parameters(Frozen):
    """Settings of a case of rule recurrence (RECUR-5).

    Attributes:
        member: name of the recurrence.
        query_scale: what a query is multiplied by.
        state_layout: axes of the matrices of the first and the last state.
        mini_batch, norm_eps: of ttt_linear (RECUR-11).
        groups, position: of log_linear (RECUR-12): heads that share a key, tokens before the first.
        activation, columns, reset_to: of short_conv (SHORT-1 to SHORT-3).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    member: Name
    query_scale: Literal[1, "1/sqrt(d_in)"] = "1/sqrt(d_in)"
    state_layout: Layout = "(d_out, d_in)"
    mini_batch: Count = 16
    norm_eps: Annotated[float, Field(ge=1e-15, allow_inf_nan=False)] = 1e-6
    groups: Count = 1
    position: Annotated[int, Field(ge=0)] = 0
    activation: Literal["none", "silu"] = "none"
    columns: Literal["W-1", "W"] = "W-1"
    reset_to: Literal["zero", "first"] = "zero"

    @property
    def program(self) -> Program:
        """The program of the member."""
        return MEMBERS[self.member].program


def check_header(header: Any) -> None:
    """Refuse keys of other rules, and settings that the member does not have (RECUR-5).

    Raises:
        ValueError: names the key or the parameter, what was found and what is needed.
    """
    check_keys(header, KEYS)
    settings = parse(header)
    names = [each.name for each in settings.program.settings]
    for name in header.parameters:
        if name not in ("member", *names):
            raise ValueError(f"parameters.{name}: the member {settings.member} has none")


def parse(header: Any) -> Parameters:
    """The parameters of a case, validated one by one (RECUR-5).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    given = check_names(header, Parameters.model_fields)
    if "member" not in given:
        raise ValueError(f"parameters.member: missing; members are {', '.join(MEMBERS)}")
    parameters: Parameters = validate(Parameters, given)
    return parameters
