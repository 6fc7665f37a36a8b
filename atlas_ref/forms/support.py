"""Forms and the rules that they compute, as data for `run`, the command line, tests and docs.

Specified in specs/chunkwise.md (CHUNK-20 and the clauses after it).

Refusals, chunks and the test of the table: CHUNK-21 to CHUNK-23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from atlas_ref.conventions import Convention
from atlas_ref.rules import FAMILY, RULES, Rule

Status = Literal["exact", "frozen", "not defined", "apart"]


def _family(status: Callable[[Rule], Status]) -> dict[str, Status]:
    """The status of each rule of the family; of other rules a parallel form knows nothing."""
    return {
        name: status(RULES[name]) if name in FAMILY and RULES[name].in_family else "not defined"
        for name in RULES
    }


#: exact: the rule itself. frozen: exact for the rule whose residuals are taken under a frozen
#: reference, or a zero one. A rule without an error has no reference, so every form of it is exact.
_EXACT = _family(lambda rule: "exact")
_FROZEN = _family(lambda rule: "frozen" if rule.has_error else "exact")
SUPPORT: dict[str, dict[str, Status]] = {
    "sequential": dict.fromkeys(RULES, "exact"),
    "chunkwise": _FROZEN,
    "exact": _EXACT,
    "scan": _EXACT,
    "atlas_parallel": _FROZEN,
    "kernel": _EXACT,
    "tnt": dict.fromkeys(RULES, "apart"),
}
FORMS = tuple(SUPPORT)


class Condition(NamedTuple):
    """A convention that a form cannot compute.

    Attributes:
        forms: those that cannot compute it.
        breaks: whether a rule under a convention meets the condition.
        reason: why, and the form to use instead.
    """

    forms: tuple[str, ...]
    breaks: Callable[[str, Convention], bool]
    reason: str


def _running(rule: str, c: Convention) -> bool:
    return RULES[rule].has_error and c.reference == "running"


def _frozen(rule: str, c: Convention) -> bool:
    return RULES[rule].has_error and c.reference != "running"


CONDITIONS = (
    Condition(
        ("chunkwise", "atlas_parallel"),
        _running,
        (
            "the reference is running; use form exact or scan, or freeze it (reference "
            "chunk_start with a span, call_start, zero)"
        ),
    ),
    Condition(
        ("exact", "scan"),
        _frozen,
        "the reference is not running; use form chunkwise or atlas_parallel",
    ),
    Condition(
        ("exact", "scan"),
        lambda rule, c: c.has_newton_schulz,
        (
            "Newton-Schulz is not affine in the memory; use form sequential or kernel, or "
            "newton_schulz none"
        ),
    ),
    Condition(
        ("chunkwise", "exact", "scan", "atlas_parallel", "kernel"),
        lambda rule, c: RULES[rule].has_momentum and c.momentum_kind == "delta_momentum",
        "momentum_kind delta_momentum is known only with each gradient; use form sequential",
    ),
    Condition(
        ("chunkwise", "atlas_parallel"),
        lambda rule, c: c.argument in ("written_back", "accumulated"),
        (
            "newton_schulz.argument written_back and accumulated are not linear between steps; "
            "use form sequential or kernel"
        ),
    ),
    Condition(
        ("scan",),
        lambda rule, c: c.order == "momentum_then_window" and RULES[rule].has_window,
        "momentum_then_window keeps one momentum per window token; use form exact",
    ),
    Condition(
        ("chunkwise", "exact", "scan", "atlas_parallel", "kernel"),
        lambda rule, c: c.memory_ceiling != "none",
        "a memory under memory_ceiling is not affine in the one before; use form sequential",
    ),
)


def refusal(rule: str, convention: Convention, form: str) -> str | None:
    """The reason why a form cannot compute a rule under a convention; None where it can
    (CHUNK-21).
    """
    if form not in FORMS:
        return f"form: {form!r} is not one of {', '.join(FORMS)}"
    status = SUPPORT[form][rule]
    if status == "not defined":
        return f"form {form}: not defined for rule {rule}"
    if status == "apart":
        return f"form {form}: several memories and no form of one; use atlas_ref.forms.{form}.run"
    for condition in CONDITIONS:
        if form in condition.forms and condition.breaks(rule, convention):
            return f"form {form}: {condition.reason}"
    return None


def require(rule: str, convention: Convention, form: str, chunk: Any) -> None:
    """Refuse a form that cannot compute the rule, or a chunk that is no number of tokens (CHUNK-21,
    CHUNK-22).

    Raises:
        ValueError: one line that names the form, the reason, and the form to use instead.
    """
    reason = refusal(rule, convention, form)
    if reason is not None:
        raise ValueError(reason)
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"chunk: {chunk!r}, expected a whole number of tokens, at least 1")
