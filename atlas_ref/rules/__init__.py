"""Rules of memories that learn at test time, one module each.

`RULES` is the only list of them, with their facts; `FAMILY` those of one linear recurrence.
"""

from __future__ import annotations

import itertools
from typing import Any

from atlas_ref.on_demand import OnDemand
from atlas_ref.rules.rule import Rule

#: Rules with one matrix of a linear residual, by name, and their modules.
_LINEAR = {name: f"atlas_ref.rules.{name}" for name in ("omega", "titans_lmm", "delta", "hebbian")}


def _rule(module: Any, name: str) -> Rule:
    rule: Rule = module.RULE
    return rule


#: Name -> rule, in the order in which tables list them; one is imported when it is asked for.
RULES: OnDemand[Rule] = OnDemand({**_LINEAR, "deep_memory": "atlas_ref.rules.deep_memory"}, _rule)

#: Those with one matrix of a linear residual, which forms, traces and tolerances compute.
FAMILY: OnDemand[Rule] = OnDemand(_LINEAR, _rule)


def rule_of(config: Any) -> Rule:
    """The rule that a configuration belongs to.

    Raises:
        ValueError: the configuration of no rule.
    """
    known = itertools.chain(tuple(RULES.loaded.values()), RULES.values())
    rule = next((rule for rule in known if rule.Config is type(config)), None)
    if rule is None:
        raise ValueError(
            "config: the Config of a rule is needed, found "
            f"{type(config).__module__}.{type(config).__qualname__}"
        )
    return rule


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
