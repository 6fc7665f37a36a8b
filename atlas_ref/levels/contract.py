"""The contract that every rule fulfils: INIT, WRITE, READ, STEP, LEVEL, SUPPORTED_PARALLELIZATION.

Specified in specs/contract.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from atlas_ref.conventions import Convention
from atlas_ref.forms import support
from atlas_ref.layers import projection
from atlas_ref.messages import shown
from atlas_ref.rules import Rule

#: The four knobs of MIRAS, which a rule is a choice of (DEEP-35).
KNOBS = ("structure", "bias", "retention", "algorithm")


class Contract(NamedTuple):
    """A rule through the six names of its interface (CONTRACT-1 to CONTRACT-7).

    Attributes:
        rule: whose contract it is.
        init: (config, seed) -> outer parameters.
        start: (config, leading axes) -> inner state before the first token.
        write: (config, state, k, v, gates) -> state; None for a rule that writes whole chunks.
        read: (config, state, q) -> y; None likewise.
        step: (config, params, state, x, pulse, level=0) -> (state, y).
        knobs: name of each knob -> the choices that the rule has.
    """

    rule: Rule
    init: Callable[..., Any]
    start: Callable[..., Any]
    write: Callable[..., Any] | None
    read: Callable[..., Any] | None
    step: Callable[..., Any]
    knobs: Mapping[str, tuple[str, ...]]

    def supported_parallelization(self, convention: Convention | None = None) -> tuple[str, ...]:
        """Forms that compute the rule, under a convention or under some convention (CONTRACT-6).

        Of some convention `tnt` is the last, which takes memories of the rule and is a model of its
        own.

        Raises:
            ValueError: no Convention, which `conventions.resolve` makes of a name.
        """
        if convention is not None:
            _check("convention", convention, Convention)
            reasons = {
                form: support.refusal(self.rule.name, convention, form) for form in support.FORMS
            }
            return tuple(form for form, reason in reasons.items() if reason is None)
        known = {form: support.SUPPORT[form][self.rule.name] for form in support.FORMS}
        apart = [form for form, status in known.items() if status == "apart"]
        same = [form for form, status in known.items() if status in ("exact", "frozen")]
        return (*same, *apart)


def contract(rule: Rule) -> Contract:
    """The contract of a rule, from its facts (CONTRACT-1 to CONTRACT-7).

    Raises:
        ValueError: no Rule, which `RULES` has by its name.
    """
    _check("rule", rule, Rule)
    by_chunk = rule.run is not None
    return Contract(
        rule=rule,
        init=projection.init,
        start=rule.start,
        write=None if by_chunk else rule.write,
        read=None if by_chunk else rule.read,
        step=projection.step,
        knobs={knob: tuple(getattr(rule, knob)) for knob in KNOBS},
    )


def _check(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name}: a {kind.__name__} is needed, found {shown(value)}")
