"""What a case of one memory, of Newton-Schulz or of a feature map says of itself.

Its sizes, the settings that cannot matter in it, its features, and the clauses about its results.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from atlas_ref.conventions import Convention, effective, resolve, void_axes
from atlas_ref.oracle.cases.gate_axis import wide
from atlas_ref.oracle.cases.tensor_spec import bare, phi_of
from atlas_ref.parts import feature_maps
from atlas_ref.parts.window import uses_gate

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case


def tokens(inputs: Mapping[str, Any]) -> int:
    """Number of tokens of a case; of rows without tokens it counts for nothing.

    Rows of a feature map may have no leading axes (CASE-11).
    """
    x = inputs.get("in/k", inputs.get("in/x"))
    return 0 if x is None or x.ndim < 2 else int(x.shape[-2])


def history(inputs: Mapping[str, Any]) -> int:
    """Number of tokens that the window holds before the first of the call."""
    return int(inputs["in/window_k"].shape[-2]) if "in/window_k" in inputs else 0


def has_gates(header: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether tokens bring a weight of their own to the window."""
    weights = header.window_weights
    return "in/window_gate" in inputs or (weights is not None and uses_gate(weights))


def numbers(header: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of the largest array of an evaluation, its window's or its features'."""
    rows, features = _rows(header, inputs)
    sequences = rows // max(tokens(inputs), 1)
    return int(max(rows * header.window, rows * features, sequences * header.window * features))


def needs(case: Case) -> str:
    """The settings that an array follows from, in words with their verb."""
    rows, features = _rows(case.header, case.inputs)
    return f"window {case.header.window} and {features} features of {rows} tokens need"


def _rows(header: Any, inputs: Mapping[str, Any]) -> tuple[int, int]:
    """Rows of all heads, and the features of each."""
    x = inputs["in/k"] if "in/k" in inputs else inputs["in/x"]
    heads, d_in = inputs["in/param/W_K"].shape[:2] if header.level == "token" else (1, x.shape[-1])
    rows = heads * (x.size // x.shape[-1])
    return rows, feature_maps.d_phi(header.feature_map, d_in, phi_of(inputs))


def void(case: Case, shape: tuple[int, int]) -> dict[str, str]:
    """Settings that were chosen but cannot matter, each with the reason (CASE-18).

    Args:
        shape: rows and columns of the memory, or of the argument of Newton-Schulz.
    """
    h = case.header
    reasons = void_axes(
        case.convention,
        rule=h.rule,
        window=h.window,
        span=h.span,
        phase=h.phase,
        tokens=tokens(case.inputs),
        history=history(case.inputs),
        resets="in/reset" in case.inputs,
        gated=has_gates(h, case.inputs),
        shape=shape,
    )
    default = resolve("spec", rule=h.rule, level=h.level)
    settings = {
        axis: why
        for axis, why in reasons.items()
        if attrgetter(axis)(case.convention) != attrgetter(axis)(default)
    }
    if h.span is not None and not spans(h, case.convention):
        settings["span"] = "nothing is refreshed by spans"
    if h.gate_axis is not None and not wide(case.inputs):
        settings["gate_axis"] = "every gate is one number per token"
    if h.phase is not None and not (
        spans(h, case.convention) or effective(case.convention, rule=h.rule).frozen_reference
    ):
        settings["phase"] = "no reference is frozen and no read needs the start of a span"
    return settings


def spans(header: Any, convention: Convention) -> bool:
    """Whether positions wrap at the span, so that span and phase matter together (CONV-30)."""
    in_force = effective(convention, rule=header.rule)
    return in_force.reference != "call_start" and "chunk_start" in (
        in_force.reference,
        in_force.read,
    )


def clause(clauses: Mapping[str, str], tensor: str) -> str:
    """The clause about a result.

    Args:
        clauses: of the rule, by name or by "out" and "grad".
    """
    tensor = bare(tensor)
    if tensor in clauses:
        return clauses[tensor]
    kind, _, name = tensor.partition("/")
    if name.startswith(("param/W_", "param/b_")) and name.removeprefix("param/")[2:] in (
        "retain",
        "momentum",
        "step_size",
    ):
        return "GATES-12"
    if name.startswith("phi/") or name == "proj":
        return "PHI-16"
    return clauses.get(kind, "")
