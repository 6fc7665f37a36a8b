"""Cases whose rules are settings of the family, which traces, tolerances and identify compute."""

from __future__ import annotations

from atlas_ref.oracle.cases.case import Case, Unsupported
from atlas_ref.rules import RULES


def require_family(case: Case, what: str, *, own: object = None) -> None:
    """Refuse a case with a rule that is no setting of the family (CONV-4 to CONV-25).

    Args:
        what: asked for, such as "a trace".
        own: what the subject has in place of the family's function; None for nothing.

    Raises:
        Unsupported: names the case and the rule.
    """
    if own is not None:
        return
    for name in [case.header.rule, *(level.rule for level in case.header.levels or ())]:
        if name in RULES and not RULES[name].in_family:
            raise Unsupported(f"{case.name}: rule {name}: {what} is not yet supported")
