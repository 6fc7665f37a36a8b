"""The facts of a case that decide which axes of a convention matter in it, and which can be tried.

Specified in specs/identify.md (IDENT-4, IDENT-5).
"""

from __future__ import annotations

from typing import NamedTuple

from atlas_ref.conventions import Convention, effective, void_axes
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.base.facts import has_gates, history, tokens
from atlas_ref.rules import FAMILY


class Facts(NamedTuple):
    """The shapes, settings and names of tensors that decide which axes matter in a case."""

    rule: str
    level: str
    feature_map: str
    window: int
    span: int | None
    phase: int | None
    tokens: int
    history: int
    resets: bool
    gated: bool
    d_out: int
    d_phi: int
    layout: str
    names: frozenset[str]

    @property
    def matrices(self) -> bool:
        """Whether the file holds a matrix whose layout must fit."""
        return bool(self.names & {"in/M0", "in/S0", "in/M_ref", "in/window_momentum"})


def facts(case: Case) -> Facts:
    """The facts of a case."""
    h, inputs = case.header, case.inputs
    d_out, d_phi = SUBJECTS[h.rule].shape(h, inputs)
    return Facts(
        rule=h.rule,
        level=h.level,
        feature_map=h.feature_map.kind,
        window=h.window,
        span=h.span,
        phase=h.phase,
        tokens=tokens(inputs),
        history=history(inputs),
        resets="in/reset" in inputs,
        gated=has_gates(h, inputs),
        d_out=d_out,
        d_phi=d_phi,
        layout=case.convention.layout,
        names=frozenset(inputs),
    )


def void_in(of: Facts, c: Convention) -> dict[str, str]:
    """Axes that no input of these shapes can make matter, each with the reason (CONV-3)."""
    return void_axes(
        c,
        rule=of.rule,
        window=of.window,
        span=of.span,
        phase=of.phase,
        tokens=of.tokens,
        history=of.history,
        resets=of.resets,
        gated=of.gated,
        shape=(of.d_out, of.d_phi),
    )


def always_the_same(of: Facts, c: Convention) -> set[str]:
    """Axes that are not void and still show in no case of this rule and level.

    Each follows from a clause (CONV-7, CONV-31, CONV-50, CONV-58, CONV-62, NS-19).
    """
    axes = {"newton_schulz.transpose"} if c.has_newton_schulz else set()
    if c.has_newton_schulz and c.newton_schulz_settings.eps == 0.0:
        axes.add("newton_schulz.guard")
    if SUBJECTS[of.rule].needs_newton_schulz:
        axes.add("newton_schulz.argument")
    if c.has_newton_schulz and of.d_out <= of.d_phi and c.newton_schulz_settings.scale == "sqrt":
        axes.add("newton_schulz.scale")
    if of.feature_map == "identity" and of.level == "projected":
        axes.add("norm_place")
    rule = SUBJECTS[of.rule].rule
    momentum_free = rule is not None and rule.has_error and not rule.has_momentum
    if momentum_free and c.rate == "memory":
        axes.add("rate")
    if (
        momentum_free
        and c.reference == "zero"
        and (c.direction, c.value_sign) == ("ascent", "plus")
    ):
        axes |= {"direction", "value_sign"}
    if (
        rule is not None
        and not rule.has_error
        and c.read == "chunk_start"
        and c.reference != "call_start"
    ):
        axes.add("reference")
    return axes


def refusal(of: Facts, c: Convention) -> str | None:
    """Why a convention cannot be evaluated on a case, or None (IDENT-5)."""
    names = of.names
    if not SUBJECTS[of.rule].has_tokens:
        return None
    c = effective(c, rule=of.rule)
    if of.span is None and "chunk_start" in (c.reference, c.read):
        return "the case states no span"
    if c.gate != "none" and not names & {"in/retain", "in/log_retain", "in/param/W_retain"}:
        return "the case has no retain gate"
    if FAMILY[of.rule].has_error:
        if c.rate != "none" and not names & {"in/step_size", "in/param/W_step_size"}:
            return "the case has no step size"
        if c.reference == "surrogate" and "in/param/W_surrogate" not in names:
            return "the case has no in/param/W_surrogate"
        if c.rate == "split" and "in/step_size_memory" not in names:
            return "the case has no in/step_size_memory"
    if c.layout != of.layout and of.d_out != of.d_phi and of.matrices:
        return "the case's matrices do not fit"
    first = c.order == "window_then_momentum"
    if c.momentum_kind != "sum" and c.argument == "nesterov":
        return f"momentum_kind {c.momentum_kind} is not defined for nesterov"
    if not first and c.argument == "written_back":
        return "written_back is not defined for momentum_then_window"
    carried = c.window_at_boundary == "carry" and c.frozen_reference and of.window > 1 and first
    if carried and of.history and "in/window_residual" not in names:
        return "the case has no in/window_residual"
    return None
