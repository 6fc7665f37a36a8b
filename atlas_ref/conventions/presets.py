"""Presets of conventions: what a source or an implementation does, by the axes that it changes.

Specified in specs/conventions.md (CONV-26).
"""

from __future__ import annotations

from typing import Any

#: Their code multiplies M by the gate, for computed gates too (CONV-26).
_FLA = {
    "gate": "retain",
    "newton_schulz": "none",
    "layout": "transposed",
    "query_scale": "1/sqrt(d_in)",
}

#: The eps of its norms is the default, with which vectors were published under this name (CONV-26).
_NL_HECATE = {"gate": "forget", "momentum_sign": "minus", "q_norm": "l2", "k_norm": "l2"}

#: What each preset changes in `spec` (CONV-26), with its source.
PRESETS: dict[str, dict[str, Any]] = {
    "spec": {},
    "atlas-paper": {"rate": "memory"},
    "atlas-table1": {"rate": "memory", "direction": "ascent"},
    "atlas-eq40": {
        "rate": "momentum",
        "momentum_sign": "minus",
        "gate": "none",
        "reference": "chunk_start",
    },
    "atlas-eq57": {"rate": "none", "momentum_sign": "minus"},
    "titans-paper": {"gate": "forget", "momentum_sign": "minus", "gradient_scale": 2.0},
    "ttl": {"rate": "memory", "gradient_scale": 2.0, "reference": "call_start", "read": "call_end"},
    "atlas-mag": {
        "rate": "memory",
        "gradient_scale": 2.0,
        "reference": "call_start",
        "read": "call_end",
        "newton_schulz": {"guard": "return", "transpose": "never"},
    },
    "atlas-rnn": {
        "gate": "retain",
        "rate": "memory",
        "read": "before",
        "reference": "call_start",
        "window_at_boundary": "carry",
        "newton_schulz": "none",
    },
    "fla-delta": _FLA,
    "fla-gated-delta": {**_FLA, "decay": "before_error"},
    "fla-momentum-delta": {**_FLA, "rate": "split"},
    "nl-hecate": _NL_HECATE,
    "nl-hecate-clamp": {**_NL_HECATE, "norm_eps": 1e-8, "norm_guard": "clamp"},
}

#: What a rule changes in `spec`: a deep memory descends |e|^2 with its rate in W (DEEP-4).
DEFAULTS = {"deep_memory": {"rate": "memory", "gradient_scale": 2.0}}

SOURCES: dict[str, str] = {
    "spec": "the seed specifications' pseudo-code, per rule",
    "atlas-paper": "Atlas (2505.23735) Eqs 32-33",
    "atlas-table1": "Atlas Table 1 as printed",
    "atlas-eq40": "Atlas Eqs 40-41",
    "atlas-eq57": "Atlas Eqs 57-58",
    "titans-paper": "Titans (2501.00663) Eqs 13-15",
    "ttl": "the test-time-learning design document",
    "atlas-mag": "Atlas-MAG_OmegaRule",
    "atlas-rnn": "atlas-rnn",
    "fla-delta": "flash-linear-attention, delta_rule",
    "fla-gated-delta": "flash-linear-attention, gated_delta_rule",
    "fla-momentum-delta": "flash-linear-attention, momentum_delta_rule",
    "nl-hecate": "NL_Hecate, its Titans, but for the eps of its norms",
    "nl-hecate-clamp": "NL_Hecate, its Titans",
}
