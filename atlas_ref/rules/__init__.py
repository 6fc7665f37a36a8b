"""Rules of memories that learn at test time, one module each.

`RULES` is the only list of them, with their facts; `FAMILY` those of one linear recurrence.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.rules import deep_memory, delta, hebbian, omega, titans_lmm
from atlas_ref.rules.rule import Rule

#: Name -> rule, in the order in which tables list them.
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (omega.RULE, titans_lmm.RULE, delta.RULE, hebbian.RULE, deep_memory.RULE)
}

#: Those with one matrix of a linear residual, which forms, traces and tolerances compute.
FAMILY: dict[str, Rule] = {name: rule for name, rule in RULES.items() if rule.in_family}

_OF_CONFIG = {rule.Config: rule for rule in RULES.values()}


def rule_of(config: Any) -> Rule:
    """The rule that a configuration belongs to.

    Raises:
        ValueError: the configuration of no rule.
    """
    if type(config) not in _OF_CONFIG:
        raise ValueError(
            "config: the Config of a rule is needed, found "
            f"{type(config).__module__}.{type(config).__qualname__}"
        )
    return _OF_CONFIG[type(config)]


def names_with(fact: str) -> tuple[str, ...]:
    """Names of the rules of the family that have a fact, such as "has_window", or a gate, such as "momentum".

    Raises:
        KeyError: neither a fact nor a gate of any rule.
    """
    if fact in Rule._fields:
        return tuple(name for name, rule in FAMILY.items() if getattr(rule, fact))
    named = tuple(name for name, rule in FAMILY.items() if fact in rule.gates)
    if not named:
        raise KeyError(fact)
    return named


__all__ = ["FAMILY", "RULES", "Rule", "names_with", "rule_of"]
