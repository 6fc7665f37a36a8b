"""Make cases: random inputs in the ranges that the rules are stable in, so that a first case is one command away."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from atlas_ref import feature_maps, gates, window
from atlas_ref.conventions import Convention, resolve
from atlas_ref.oracle import new_block
from atlas_ref.oracle.case import Case, CaseError, make, parse_header
from atlas_ref.oracle.header import BLOCK, RESERVED, Header
from atlas_ref.oracle.inputs import LARGEST
from atlas_ref.types import Array, Frozen

DTYPES: dict[str, Any] = {"float64": np.float64, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


class Request(Frozen):
    """What `new` is asked for.

    Attributes:
        tokens, d_in, d_out, heads, d_model, batch: sizes; d_model and batch are used at level token.
        window, span: of the rule.
        history: initial window tokens.
        pulse: the memory writes at every pulse-th token.
        reset: a packed sequence starts at every reset-th token; 0 for nowhere.
        cotangent: add in/y_bar, so that `eval --grad` works.
        per_dimension_gates: one gate per output dimension.
        window_gate: one weight per token instead of one per token and lag.
        features: d_phi of maps that leave it open.
        periods, schedule_level, first_step: the memory writes by the schedule of a frequency level; of rule cms those of all levels.
        levels, combine: of rule cms: names of rules, or what a case says of each level.
    """

    rule: str
    level: str = "projected"
    tokens: PositiveInt = 8
    d_in: PositiveInt = 4
    d_out: PositiveInt = 3
    heads: PositiveInt = 2
    d_model: PositiveInt = 6
    batch: PositiveInt = 1
    window: PositiveInt = 1
    span: PositiveInt | None = None
    seed: NonNegativeInt = 0
    history: NonNegativeInt = 0
    pulse: PositiveInt = 1
    reset: NonNegativeInt = 0
    cotangent: bool = False
    per_dimension_gates: bool = False
    window_gate: bool = False
    features: PositiveInt | None = None
    dtype: str = "float64"
    convention: str | dict[str, Any] = "spec"
    feature_map: dict[str, Any] = {}
    window_weights: dict[str, Any] = {}
    periods: tuple[int, ...] = ()
    schedule_level: int = 0
    first_step: int = 0
    levels: tuple[str | dict[str, Any], ...] = ()
    combine: str = "softmax"


def new(request: Request, *, name: str = "new") -> Case:
    """A case with random inputs; the same request gives the same bytes.

    Keys have length about 1 and step sizes keep step_size * (sum of weights) below 1, where no rule grows.

    Raises:
        CaseError: the request asks for what the rule does not have.
    """
    if request.rule in RESERVED:
        raise CaseError(f"{name}: rule {request.rule}: not yet supported")
    if request.dtype not in DTYPES:
        raise CaseError(f"{name}: dtype {request.dtype!r} is not available; {', '.join(DTYPES)} are")
    if request.window_gate and (request.rule != "omega" or request.level != "projected"):
        raise CaseError(f"{name}: window_gate: belongs to rule omega at level projected")
    for key, value in request:
        if isinstance(value, int) and key not in ("seed", "span", "schedule_level", "first_step") and value > LARGEST:
            raise CaseError(f"{name}: an array would have more than {LARGEST} numbers")
    kind = DTYPES[request.dtype]
    if request.rule == BLOCK:
        _check_size(request, request.d_in, name)
        fields, tensors = new_block.block(request, new, name=name)
        return make(fields, _stored(tensors, kind), name=name)
    fields = {**_header(request), **new_block.schedule(request, name=name)}
    header = parse_header(fields, name=name)
    draw = np.random.Generator(np.random.Philox(request.seed))
    parameters = feature_maps.init(header.feature_map, request.d_in, request.seed, features=request.features)
    d_phi = feature_maps.d_phi(header.feature_map, request.d_in, parameters)
    _check_size(request, d_phi, name)
    tensors = {"in/proj" if key == "proj" else f"in/phi/{key}": value for key, value in parameters.items()}
    if request.rule == "newton_schulz":
        tensors["in/G"] = draw.standard_normal((request.heads, request.d_out, request.d_in))
        bar, shape = "in/X_bar", tensors["in/G"].shape
    elif request.rule == "feature_map":
        tensors["in/x"] = draw.standard_normal((request.heads, request.d_in))
        bar, shape = "in/phi_bar", (request.heads, d_phi)
    else:
        tensors |= _sequence(request, header, draw, d_phi, name)
        bar, shape = "in/y_bar", (*_leading(request), request.tokens, request.d_out)
    if request.cotangent:
        tensors[bar] = draw.standard_normal(shape)
    return make(fields, _stored(tensors, kind), name=name)


def _stored(tensors: dict[str, Array], kind: Any) -> dict[str, Array]:
    return {key: value if value.dtype == np.uint8 else value.astype(kind) for key, value in tensors.items()}


def _check_size(request: Request, d_phi: int, name: str) -> None:
    """Refuse what no machine holds before asking for the memory."""
    sequences = request.heads * request.batch
    widest = max(request.window, request.d_in, request.d_out, request.d_model, d_phi)
    if sequences * max(request.tokens * widest, request.d_out * d_phi) > LARGEST:
        raise CaseError(f"{name}: an array would have more than {LARGEST} numbers")


def _header(request: Request) -> dict[str, Any]:
    fields: dict[str, Any] = {"schema": 1, "rule": request.rule}
    if request.level != "projected":
        fields["level"] = request.level
    if request.window != 1:
        fields["window"] = request.window
    for key in ("span", "feature_map", "window_weights"):
        if getattr(request, key):
            fields[key] = getattr(request, key)
    if request.convention != "spec":
        fields["convention"] = request.convention
    return fields


def _leading(request: Request) -> tuple[int, ...]:
    return (request.batch, request.heads) if request.level == "token" else (request.heads,)


def _sequence(request: Request, header: Header, draw: Any, d_phi: int, name: str) -> dict[str, Array]:
    try:
        convention = resolve(request.convention, rule=request.rule, level=request.level)
    except ValueError as error:
        raise CaseError(f"{name}: {error}") from None
    inputs = _token if request.level == "token" else _projected
    tensors = inputs(request, header, convention, draw)
    momentum = request.rule in ("omega", "titans_lmm")
    tensors |= _states(request, convention, draw, d_phi, momentum=momentum)
    if request.history:
        tensors |= _history(request, header, convention, draw)
    steps = np.arange(request.tokens)
    if request.pulse > 1:
        tensors["in/active"] = (steps % request.pulse == 0).astype(np.uint8)
    if request.reset:
        tensors["in/reset"] = ((steps > 0) & (steps % request.reset == 0)).astype(np.uint8)
    return tensors


def _keys(request: Request, draw: Any, rows: int) -> Array:
    return draw.standard_normal((*_leading(request), rows, request.d_in)) / np.sqrt(request.d_in)


def _projected(request: Request, header: Header, convention: Convention, draw: Any) -> dict[str, Array]:
    lead, T = _leading(request), request.tokens
    gate_shape = (*lead, T, request.d_out) if request.per_dimension_gates else (*lead, T)
    tensors = {
        "in/k": _keys(request, draw, T),
        "in/v": draw.standard_normal((*lead, T, request.d_out)),
        "in/q": _keys(request, draw, T),
    }
    forgets = convention.gate == "forget"
    if convention.gate != "none":
        tensors["in/retain"] = draw.uniform(0.0, 0.2, gate_shape) if forgets else draw.uniform(0.8, 1.0, gate_shape)
    if request.rule in ("omega", "titans_lmm"):
        tensors["in/momentum"] = draw.uniform(0.2, 0.8, gate_shape)
    if request.rule != "hebbian" and convention.rate != "none":
        tensors["in/step_size"] = draw.uniform(0.05, 0.4, gate_shape)
    if request.rule != "hebbian" and convention.rate == "split":
        tensors["in/step_size_memory"] = draw.uniform(0.05, 0.4, gate_shape)
    if request.rule == "omega" and request.window_gate:
        tensors["in/window_gate"] = draw.uniform(0.2, 0.8, (*lead, T))
    elif request.rule == "omega" and request.window > 1:
        tensors["in/window_weights"] = draw.uniform(0.5, 1.5, (*lead, T, request.window)) / request.window
    return tensors


def _token(request: Request, header: Header, convention: Convention, draw: Any) -> dict[str, Array]:
    H, d_model, d_kv = request.heads, request.d_model, request.d_in + request.d_out
    n = request.d_out if request.per_dimension_gates else 1
    tensors = {"in/x": draw.standard_normal((request.batch, request.tokens, d_model))}
    for key, rows in (("W_K", request.d_in), ("W_V", request.d_out), ("W_Q", request.d_in)):
        tensors[f"in/param/{key}"] = draw.standard_normal((H, rows, d_model)) / np.sqrt(d_model * request.d_in)
    wanted = {"omega": "retain momentum step_size", "titans_lmm": "retain momentum step_size", "delta": "retain step_size"}
    for gate in wanted.get(request.rule, "retain").split():
        if (gate == "retain" and convention.gate == "none") or (gate == "step_size" and convention.rate == "none"):
            continue
        bias = gates.INITIAL_BIAS["forget" if gate == "retain" and convention.gate == "forget" else gate]
        tensors[f"in/param/W_{gate}"] = 0.5 * draw.standard_normal((H, n, d_kv))
        tensors[f"in/param/b_{gate}"] = np.full((H, n), bias) + 0.5 * draw.standard_normal((H, n))
    if header.window_weights is not None:
        made = window.init(header.window_weights, heads=H, window=request.window, d_model=d_model, draw=draw)
        tensors |= {f"in/param/{key}": value + 0.3 * draw.standard_normal(value.shape) for key, value in made.items()}
    return tensors


def _states(request: Request, convention: Convention, draw: Any, d_phi: int, *, momentum: bool) -> dict[str, Array]:
    """Initial states that are neither zero nor symmetric, since those hide mistakes."""
    shape = (d_phi, request.d_out) if convention.layout == "transposed" else (request.d_out, d_phi)
    names = ("in/M0", "in/S0") if momentum else ("in/M0",)
    return {key: 0.3 * draw.standard_normal((*_leading(request), *shape)) for key in names}


def _history(request: Request, header: Header, convention: Convention, draw: Any) -> dict[str, Array]:
    lead, n = _leading(request), request.history
    tensors = {"in/window_k": _keys(request, draw, n), "in/window_v": draw.standard_normal((*lead, n, request.d_out))}
    if request.window_gate or (header.window_weights is not None and window.uses_gate(header.window_weights)):
        tensors["in/window_gate_before"] = draw.uniform(0.2, 0.8, (*lead, n))
    if convention.window_at_boundary == "carry" and convention.frozen_reference and convention.order == "window_then_momentum":
        tensors["in/window_residual"] = draw.standard_normal((*lead, n, request.d_out))
    return tensors
