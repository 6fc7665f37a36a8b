"""Hypothesis strategies: whole cases by rule, level, shape, convention, regime and seed - never raw
floats.
"""

from __future__ import annotations

import functools
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
    "momentum_kind": ["sum", "average", "delta_momentum"],
    "retain_bounds": ["none", [0.4, 0.7]],
    "step_bounds": ["none", [0.1, 0.2]],
    "memory_ceiling": ["none", 0.8],
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
    "norm_eps": [1e-6, 1e-8, 0.3],
    "norm_guard": ["root", "add", "clamp"],
    "layout": ["plain", "transposed"],
}

#: Axes that have cases of their own: tests/rules/test_momentum_kind.py, test_gate_bounds.py and
#: test_memory_ceiling.py.
APART = ("momentum_kind", "retain_bounds", "step_bounds", "memory_ceiling")

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
    {"kind": "tensor_sketch", "degree": 3},
    {"kind": "random_fourier", "learned": False},
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
PRESETS += ["fla-delta", "fla-gated-delta", "fla-momentum-delta", "nl-hecate", "nl-hecate-clamp"]

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


#: A strategy is built once: Hypothesis would check each anew for every example.
RULES = st.sampled_from(["omega", "omega", "titans_lmm", "delta", "hebbian"])
LEVELS = st.sampled_from(["projected", "token"])
WINDOWS = st.sampled_from([1, 2, 3, 5])
SIZES: dict[str, st.SearchStrategy[Any]] = {
    "tokens": st.sampled_from([1, 2, 5, 8]),
    "d_in": st.sampled_from([2, 4]),
    "d_out": st.sampled_from([2, 3, 5]),
    "heads": st.sampled_from([1, 2]),
    "span": st.sampled_from([1, 2, 3, 20]),
    "seed": st.integers(0, 10_000),
    "pulse": st.sampled_from([1, 3]),
    "reset": st.sampled_from([0, 4]),
    "per_dimension_gates": st.booleans(),
}
OF_OMEGA: dict[str, st.SearchStrategy[Any]] = {
    "feature_map": st.sampled_from(FEATURE_MAPS),
    "features": st.sampled_from([None, 3]),
}
WEIGHTS = st.sampled_from(WINDOW_WEIGHTS)
FLAG = st.booleans()


def _some_of(table: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Any keys of a table, each with one of its values."""
    return st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(values) for key, values in table.items()}
    )


@functools.cache
def conventions(rule: str, *, newton_schulz: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Any preset with any axes changed; about a third of the axes move at once."""
    axes = _some_of({axis: values for axis, values in AXES.items() if axis not in APART})
    preset = _some_of({"preset": PRESETS})
    if rule != "omega":
        return st.builds(lambda p, a: p | a, preset, axes)
    none = st.just("none")
    chosen = st.one_of(none, _some_of(NEWTON_SCHULZ)) if newton_schulz else none
    return st.builds(lambda p, a, n: p | a | {"newton_schulz": n}, preset, axes, chosen)


@st.composite
def cases(
    draw: st.DrawFn, rule: str | None = None, *, newton_schulz: bool = True, **fixed: Any
) -> Case:
    """A valid case; cases that a rule or convention refuses are drawn again."""
    rule = rule or draw(RULES)
    return _case(draw, rule, {"convention": conventions(rule, newton_schulz=newton_schulz)}, fixed)


def _case(
    draw: st.DrawFn,
    rule: str,
    drawn: dict[str, st.SearchStrategy[Any]],
    fixed: dict[str, Any],
) -> Case:
    level = fixed.get("level") or draw(LEVELS)
    omega = rule == "omega"
    window = draw(WINDOWS) if omega else 1
    own = OF_OMEGA if omega else {}
    request: dict[str, Any] = {
        "rule": rule,
        "level": level,
        "window": window,
        "history": (window - 1) * draw(FLAG),
        "cotangent": True,
        **{name: draw(each) for name, each in (SIZES | own | drawn).items() if name not in fixed},
    }
    if omega and level == "projected":
        request["window_gate"] = draw(FLAG)
    elif omega:
        request["window_weights"] = draw(WEIGHTS)
    try:
        return new(Request(**(request | fixed)))
    except CaseError:
        return draw(st.nothing())


#: What a form needs of a convention, beyond what is drawn.
NEEDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "chunkwise": {"reference": st.sampled_from(["chunk_start", "call_start", "zero"])},
    "atlas_parallel": {"reference": st.sampled_from(["chunk_start", "call_start", "zero"])},
    "exact": {
        "reference": st.sampled_from(["running"]),
        "newton_schulz": st.sampled_from(["none"]),
    },
    "scan": {
        "reference": st.sampled_from(["running"]),
        "newton_schulz": st.sampled_from(["none"]),
        "order": st.sampled_from(["window_then_momentum"]),
    },
    "kernel": {},
}

EXTREMES = st.integers(0, 3)


@st.composite
def form_cases(
    draw: st.DrawFn, form: str, rule: str | None = None, *, newton_schulz: bool = True, **fixed: Any
) -> Case:
    """A case that a form computes, with some gates at exactly 0 and 1."""
    rule = rule or draw(RULES)
    convention = draw(conventions(rule, newton_schulz=newton_schulz))
    for axis, values in NEEDS[form].items():
        if axis != "newton_schulz" or rule == "omega":
            convention = convention | {axis: draw(values)}
    case = _case(draw, rule, {}, {"convention": convention, **fixed})
    if refusal(rule, case.convention, form) is not None:
        return draw(st.nothing())
    return with_extreme_gates(case, draw(EXTREMES))


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
