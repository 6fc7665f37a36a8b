"""Hypothesis strategies: whole cases by rule, level, shape, convention, regime and seed - never raw
floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from atlas_ref.forms.support import refusal
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.new import Request, new

#: Every axis with all its values; Newton-Schulz has its own table.
AXES: dict[str, list[Any]] = {
    "gate": ["retain", "forget", "none"],
    "decay": ["after_error", "before_error"],
    "gradient_scale": [1, 2, "2/d_out", 0.7],
    "rate": ["momentum", "memory", "both", "split", "none"],
    "momentum_sign": ["plus", "minus"],
    "direction": ["descent", "ascent"],
    "value_sign": ["minus", "plus"],
    "read": ["after", "before", "chunk_start", "call_end"],
    "reference": ["running", "chunk_start", "call_start", "zero"],
    "span_origin": ["first", "multiple"],
    "window_at_boundary": ["recompute", "carry", "cut"],
    "window_edge": ["truncate", "renormalise"],
    "order": ["window_then_momentum", "momentum_then_window"],
    "query_scale": [1, "1/sqrt(d_in)"],
    "q_norm": ["none", "l2", "rms"],
    "k_norm": ["none", "l2", "rms"],
    "norm_place": ["before_phi", "after_phi"],
    "layout": ["plain", "transposed"],
}

NEWTON_SCHULZ: dict[str, list[Any]] = {
    "coefficients": ["muon", "cubic", "polar_express", [[1.5, -0.5, 0], [2, -1.5, 0.5]]],
    "steps": [1, 3, 5],
    "eps": [1e-7, 1e-2],
    "norm_factor": [1, 1.2],
    "guard": ["add", "clamp", "return"],
    "transpose": ["tall", "never"],
    "scale": ["1", "sqrt", "norm"],
    "argument": ["S", "nesterov", "written_back", "accumulated"],
}

FEATURE_MAPS: list[dict[str, Any]] = [
    {"kind": "identity"},
    {"kind": "linear"},
    {"kind": "random_fourier"},
    {"kind": "elu"},
    {"kind": "residual_mlp"},
    {"kind": "residual_mlp", "activation": "gelu"},
    {"kind": "polynomial", "degree": 3},
    {"kind": "polynomial", "degree": 2, "coefficients": [0.5, 1.0, 0.25]},
    {"kind": "monomials"},
    {"kind": "elementwise", "degree": 3},
    {"kind": "sketch"},
]

WINDOW_WEIGHTS: list[dict[str, Any]] = [
    {"kind": "uniform"},
    {"kind": "ones"},
    {"kind": "decay", "base": 0.9},
    {"kind": "softmax"},
    {"kind": "gate"},
    {"kind": "product", "of": [{"kind": "decay", "base": 0.8}, {"kind": "gate"}]},
    {"kind": "product", "of": [{"kind": "softmax"}, {"kind": "ones"}]},
]

PRESETS = [
    "spec",
    "atlas-paper",
    "atlas-table1",
    "atlas-eq40",
    "atlas-eq57",
    "titans-paper",
    "ttl",
    "atlas-mag",
    "atlas-rnn",
]
PRESETS += ["fla-delta", "fla-gated-delta", "fla-momentum-delta", "nl-hecate"]

#: The same examples on every machine; no deadline, since a first call compiles and allocates.
repeatable = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)


def conventions(rule: str, *, newton_schulz: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Any preset with any axes changed; about a third of the axes move at once."""
    axes = st.fixed_dictionaries(
        {}, optional={axis: st.sampled_from(values) for axis, values in AXES.items()}
    )
    preset = st.fixed_dictionaries({}, optional={"preset": st.sampled_from(PRESETS)})
    if rule != "omega":
        return st.builds(lambda p, a: p | a, preset, axes)
    settings_ = st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(values) for key, values in NEWTON_SCHULZ.items()}
    )
    chosen = st.one_of(st.just("none"), settings_) if newton_schulz else st.just("none")
    return st.builds(lambda p, a, n: p | a | {"newton_schulz": n}, preset, axes, chosen)


@st.composite
def cases(
    draw: st.DrawFn, rule: str | None = None, *, newton_schulz: bool = True, **fixed: Any
) -> Case:
    """A valid case; cases that a rule or convention refuses are drawn again."""
    rule = rule or draw(st.sampled_from(["omega", "omega", "titans_lmm", "delta", "hebbian"]))
    level = fixed.pop("level", None) or draw(st.sampled_from(["projected", "token"]))
    window = draw(st.sampled_from([1, 2, 3, 5])) if rule == "omega" else 1
    request: dict[str, Any] = {
        "rule": rule,
        "level": level,
        "tokens": draw(st.sampled_from([1, 2, 5, 8])),
        "d_in": draw(st.sampled_from([2, 4])),
        "d_out": draw(st.sampled_from([2, 3, 5])),
        "heads": draw(st.sampled_from([1, 2])),
        "window": window,
        "span": draw(st.sampled_from([1, 2, 3, 20])),
        "seed": draw(st.integers(0, 10_000)),
        "history": draw(st.sampled_from([0, window - 1])),
        "pulse": draw(st.sampled_from([1, 3])),
        "reset": draw(st.sampled_from([0, 4])),
        "per_dimension_gates": draw(st.booleans()),
        "window_gate": rule == "omega" and level == "projected" and draw(st.booleans()),
        "cotangent": True,
        "convention": draw(conventions(rule, newton_schulz=newton_schulz)),
    }
    if rule == "omega":
        request["feature_map"] = draw(st.sampled_from(FEATURE_MAPS))
        request["features"] = draw(st.sampled_from([None, 3]))
        if level == "token":
            request["window_weights"] = draw(st.sampled_from(WINDOW_WEIGHTS))
    try:
        return new(Request(**(request | fixed)))
    except CaseError:
        return draw(st.nothing())


#: What a form needs of a convention, beyond what is drawn.
NEEDS: dict[str, dict[str, list[Any]]] = {
    "chunkwise": {"reference": ["chunk_start", "call_start", "zero"]},
    "atlas_parallel": {"reference": ["chunk_start", "call_start", "zero"]},
    "exact": {"reference": ["running"], "newton_schulz": ["none"]},
    "scan": {
        "reference": ["running"],
        "newton_schulz": ["none"],
        "order": ["window_then_momentum"],
    },
    "kernel": {},
}


@st.composite
def form_cases(
    draw: st.DrawFn, form: str, rule: str | None = None, *, newton_schulz: bool = True, **fixed: Any
) -> Case:
    """A case that a form computes, with some gates at exactly 0 and 1."""
    rule = rule or draw(st.sampled_from(["omega", "omega", "titans_lmm", "delta", "hebbian"]))
    convention = draw(conventions(rule, newton_schulz=newton_schulz))
    for axis, values in NEEDS[form].items():
        if axis != "newton_schulz" or rule == "omega":
            convention = convention | {axis: draw(st.sampled_from(values))}
    case = draw(cases(rule, newton_schulz=newton_schulz, convention=convention, **fixed))
    if refusal(rule, case.convention, form) is not None:
        return draw(st.nothing())
    return with_extreme_gates(case, draw(st.integers(0, 3)))


def with_extreme_gates(case: Case, seed: int) -> Case:
    """The case with extreme gates: a third of retain and momentum exactly 0 or 1, some steps 0.

    Seed 0 returns the case unchanged.
    """
    if seed == 0:
        return case
    random = np.random.default_rng(seed)
    inputs = dict(case.inputs)
    for name in ("in/retain", "in/momentum", "in/step_size"):
        if name in inputs:
            extreme = random.integers(
                0,
                1 if name == "in/step_size" else 2,
                inputs[name].shape,
                endpoint=name != "in/step_size",
            )
            inputs[name] = np.where(
                random.uniform(size=inputs[name].shape) < 0.3, np.clip(extreme, 0, 1), inputs[name]
            )
    return make(case.header.plain(), inputs, name=case.name)


def header_of(case: Case) -> dict[str, Any]:
    """The case's header as JSON, as a file would hold it."""
    return case.header.model_dump(mode="json", by_alias=True, exclude_unset=True)
