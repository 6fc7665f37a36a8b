"""Members of rule recurrence: the only list of them (RECUR-5)."""

from __future__ import annotations

from atlas_ref.oracle.recurrences import gsa, hgrn
from atlas_ref.oracle.recurrences.member import Member

#: Name of a member -> what it declares.
MEMBERS: dict[str, Member] = {"gsa": gsa.MEMBER, "hgrn": hgrn.MEMBER}

#: Names of states of some member.
STATES = tuple(sorted({name for member in MEMBERS.values() for name in member.states}))
