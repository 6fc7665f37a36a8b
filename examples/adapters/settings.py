"""The part of a case's conventions that the re-statements of the Delta rule in this folder carry
out.

Nothing of atlas_ref: a stranger would write these lines from specs/conventions.md and
specs/delta.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: What the presets that matter here change in `spec`.
PRESETS: dict[str, dict[str, Any]] = {
    "spec": {},
    "fla-delta": {"layout": "transposed", "query_scale": "1/sqrt(d_in)"},
    "fla-gated-delta": {
        "layout": "transposed",
        "query_scale": "1/sqrt(d_in)",
        "decay": "before_error",
    },
}

#: Values that are carried out, the default first.
VALUES: dict[str, tuple[Any, ...]] = {
    "gate": ("retain", "forget", "none"),
    "decay": ("after_error", "before_error"),
    "rate": ("momentum", "memory", "both", "none"),
    "direction": ("descent", "ascent"),
    "value_sign": ("minus", "plus"),
    "read": ("after", "before"),
    "reference": ("running",),
    "q_norm": ("none",),
    "k_norm": ("none",),
    "layout": ("plain", "transposed"),
}

#: Axes that mean nothing for the Delta rule.
VOID = (
    "preset",
    "momentum_sign",
    "span_origin",
    "window_at_boundary",
    "window_edge",
    "order",
    "newton_schulz",
    "norm_place",
)


class Settings(NamedTuple):
    """Every axis that a Delta kernel has to know."""

    gate: str
    decay: str
    rate: str
    direction: str
    value_sign: str
    read: str
    transposed: bool
    gradient_scale: float
    query_scale: float


def read(case: Mapping[str, Any], inputs: Mapping[str, Any]) -> Settings:
    """The settings of a case.

    Raises:
        NotImplementedError: another rule, level, or a value that is not carried out here.
    """
    if case["rule"] != "delta" or case.get("level", "projected") != "projected":
        raise NotImplementedError(
            f"rule {case['rule']}, level {case.get('level', 'projected')}: only delta, projected"
        )
    convention = case.get("convention", "spec")
    convention = {"preset": convention} if isinstance(convention, str) else dict(convention)
    if convention.get("preset", "spec") not in PRESETS:
        raise NotImplementedError(f"preset {convention['preset']}")
    axes = (
        {axis: values[0] for axis, values in VALUES.items()}
        | PRESETS[convention.get("preset", "spec")]
        | convention
    )
    for axis, value in axes.items():
        if axis in VALUES and value not in VALUES[axis]:
            raise NotImplementedError(f"{axis} {value}")
        if axis not in VALUES and axis not in (*VOID, "gradient_scale", "query_scale"):
            raise NotImplementedError(f"axis {axis}")
    d_in, d_out = inputs["k"].shape[-1], inputs["v"].shape[-1]
    scale, query = axes.get("gradient_scale", 1), axes.get("query_scale", 1)
    return Settings(
        *(axes[name] for name in ("gate", "decay", "rate", "direction", "value_sign", "read")),
        transposed=axes["layout"] == "transposed",
        gradient_scale=2.0 / d_out if scale == "2/d_out" else float(scale),
        query_scale=d_in**-0.5 if query == "1/sqrt(d_in)" else float(query),
    )
