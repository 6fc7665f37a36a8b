"""Members of rule recurrence: the only list of them (RECUR-5)."""

from __future__ import annotations

from atlas_ref.oracle.recurrences import gsa, hgrn, log_linear, mesa, short_conv, ttt_linear
from atlas_ref.oracle.recurrences.member import Member

#: Name of a member -> what it declares.
MEMBERS: dict[str, Member] = {
    "gsa": gsa.MEMBER,
    "hgrn": hgrn.MEMBER,
    "mesa": mesa.MEMBER,
    "ttt_linear": ttt_linear.MEMBER,
    "log_linear": log_linear.MEMBER,
    "short_conv": short_conv.MEMBER,
}

#: Names of states of some member.
STATES = tuple(sorted({name for member in MEMBERS.values() for name in member.program.states}))
