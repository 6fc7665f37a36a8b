"""Make cases with random inputs, in the ranges where the rules are stable.

A first case is one command away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import ml_dtypes
import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from atlas_ref.messages import no_such
from atlas_ref.oracle.cases import new_block
from atlas_ref.oracle.cases.case import Case, CaseError, make, parse_header, unsupported
from atlas_ref.oracle.cases.header import RESERVED
from atlas_ref.oracle.cases.inputs import LARGEST, WIDEST, check_dtype
from atlas_ref.oracle.drawing import rows_of_lengths
from atlas_ref.oracle.registry import PACKED, SUBJECTS
from atlas_ref.parts import feature_maps
from atlas_ref.rules import names_with
from atlas_ref.types import Array, Frozen, same_bits

DTYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}


class Request(Frozen):
    """Settings of a case that `new` makes.

    Attributes:
        tokens, d_in, d_out, heads, d_model, batch: sizes; d_model is used at level token. A batch of
            one has no axis at level projected (CASE-40).
        window, span: of the rule.
        history: initial window tokens.
        pulse: the memory writes at every pulse-th token.
        reset: a packed sequence starts at every reset-th token; 0 for nowhere.
        packed: sequences of unequal lengths start, and every token writes (CASE-40).
        padded: rows of the batch are of unequal lengths, filled up in front or behind (CASE-40).
        sequences: tokens of each sequence, which has states of its own (CASE-48).
        states: how many of the last states are results (CASE-49).
        cotangent: add in/y_bar, so that `eval --grad` works.
        state: states before the first token, and with a cotangent those of the states after the
            last (CASE-39).
        gate, log: of rule dplr: one gate a head or a channel, and its log; None for what the code
            of the member has (DPLRCASE-20).
        groups: of rules dplr and recurrence: parameters.groups.
        draw: version of the draw: 2 since states and the gate of a member belong to it; published
            cases are made by 1.
        per_dimension_gates: one gate per output dimension.
        window_gate: one weight per token instead of one per token and lag.
        features: d_phi of maps that leave it open.
        periods, schedule_level, first_step: the memory writes by the schedule of a frequency level;
            of rule cms those of all levels.
        levels, combine, nested: of rule cms: names of rules, or what a case says of each level.
        learned: of rule cms: gates decide who writes.
        regime: what a sweep moves inputs to (SWEEP-4), as edges or trained; "" for none.
        parameters: of rules deep_memory, tnt, dplr and recurrence, as a case has them.
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
    packed: bool = False
    padded: Literal["left", "right"] | None = None
    sequences: tuple[int, ...] = ()
    states: NonNegativeInt = 0
    cotangent: bool = False
    state: bool = True
    gate: Literal["head", "channel"] | None = None
    log: bool | None = None
    groups: PositiveInt = 1
    draw: Literal[1, 2] = 2
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
    nested: bool = False
    learned: bool = False
    regime: str = ""
    parameters: dict[str, Any] = {}


def new(request: Request, *, name: str = "new") -> Case:
    """A case with random inputs; the same request gives the same bytes.

    Keys have length about 1 and step sizes keep step_size * (sum of weights) below 1, where no rule
    grows.

    Raises:
        CaseError: the request asks for what the rule does not have.
    """
    if request.sequences:
        case: Case = PACKED["draw"].draw(request, new, name=name)
        return case
    if request.states:
        with_states: Case = PACKED["snapshots"].draw(request, new, name=name)
        return with_states
    if request.rule in RESERVED:
        raise CaseError(f"{name}: {unsupported(f'rule {request.rule}')}")
    if request.rule in SUBJECTS:
        _check_draw(request, name)
    _check_request(request, name)
    if request.groups > 1:
        own = {**request.parameters, "groups": request.groups}
        request = request.replaced(parameters=own, groups=1)
    request, without = _of_preset(request, name)
    check_dtype(name, request.dtype, DTYPES)
    if request.window_gate and (
        (request.rule not in names_with("has_window") and not _has_parameters(request.rule))
        or request.level != "projected"
    ):
        rules = " and ".join(names_with("has_window"))
        raise CaseError(f"{name}: window_gate: belongs to rule {rules} at level projected")
    for key, value in request:
        if (
            isinstance(value, int)
            and key not in ("seed", "span", "schedule_level", "first_step", "draw")
            and value > LARGEST
        ):
            raise CaseError(f"{name}: an array would have more than {LARGEST} numbers")
    if request.window > WIDEST:
        raise CaseError(f"{name}: window: must be at most {WIDEST}, found {request.window}")
    kind = DTYPES[request.dtype]
    if request.rule in SUBJECTS and SUBJECTS[request.rule].has_levels:
        _check_size(request, request.d_in, name)
        fields, tensors = new_block.block(request, new, name=name)
        return make(fields, _store(tensors, kind), name=name)
    fields = {**_header(request), **new_block.schedule(request, name=name)}
    header = parse_header(fields, name=name)
    draw = np.random.Generator(np.random.Philox(request.seed))
    parameters = feature_maps.init(
        header.feature_map, request.d_in, request.seed, features=request.features
    )
    d_phi = feature_maps.d_phi(header.feature_map, request.d_in, parameters)
    _check_size(request, d_phi, name)
    tensors = {
        "in/proj" if key == "proj" else f"in/phi/{key}": value for key, value in parameters.items()
    }
    subject = SUBJECTS[request.rule]
    assert subject.draw is not None  # a block was returned above
    try:
        inputs, shape = subject.draw(request, header, draw, d_phi)
    except ValueError as error:
        raise CaseError(f"{name}: {error}") from None
    tensors |= {key: value for key, value in inputs.items() if key not in without}
    if request.padded is not None:
        tensors |= rows_of_lengths(request, tensors)
    tensors = {**_states(request, header, tensors), **tensors}
    if request.cotangent:
        tensors[subject.cotangent] = draw.standard_normal(shape)
    if request.regime:
        tensors = _in_regime(request, tensors, name)
    return make(fields, _store(tensors, kind), name=name)


def _in_regime(request: Request, tensors: dict[str, Any], name: str) -> dict[str, Any]:
    """Inputs moved to a regime of sweeps, by numbers of its own (SWEEP-4).

    Raises:
        CaseError: a regime that the rule does not have, or that changes no input of this case.
    """
    drawing = SUBJECTS[request.rule].drawing
    known = {} if drawing is None else {**drawing.regimes, **drawing.named}
    if request.regime not in known:
        has = ", ".join(known) or "none"
        raise CaseError(f"{name}: regime {request.regime!r}: rule {request.rule} has {has}")
    moved = dict(tensors)
    known[request.regime](
        moved, np.random.Generator(np.random.Philox(key=(1 << 64) | request.seed))
    )
    same = moved.keys() == tensors.keys() and all(moved[n] is tensors[n] for n in tensors)
    if same and request.regime != next(iter(known)):
        raise CaseError(f"{name}: regime {request.regime}: changes no input of this case")
    return moved


def _states(request: Request, header: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    """States of before the call and cotangents of those after it, by numbers of their own (CASE-39).

    All other tensors are the same with and without them.
    """
    subject = SUBJECTS[request.rule]
    if subject.draw_states is None or not request.state or request.draw == 1:
        return {}
    draw = np.random.Generator(np.random.Philox(np.random.SeedSequence((request.seed, 1))))
    found = subject.draw_states(request, header, inputs, draw)
    return {name: x for name, x in found.items() if request.cotangent or "_bar" not in name}


#: Settings that some rule has nothing for; all others are refused where they do not belong.
NOT_OF_ALL = (
    *("level", "tokens", "d_out", "d_model", "batch", "history", "pulse", "reset", "packed"),
    *("per_dimension_gates", "window_gate", "features", "state"),
)


def without_effect(request: Request, case: Case) -> list[str]:
    """Settings of a request that were given and change nothing of the case that it makes."""
    return [key for key in NOT_OF_ALL if _changes_nothing(request, key, case)]


def _changes_nothing(request: Request, key: str, case: Case) -> bool:
    default, stated = Request.model_fields[key].default, getattr(request, key)
    if stated == default or stated == getattr(case.header, key, None):
        return False  # a case that can have no other level may be asked for it
    try:
        other = new(request.replaced(**{key: default}))
    except CaseError:
        return False
    return (
        other.header == case.header
        and other.inputs.keys() == case.inputs.keys()
        and all(same_bits(x, case.inputs[name]) for name, x in other.inputs.items())
    )


def _has_parameters(rule: str) -> bool:
    """Whether the settings of a rule are parameters of its cases (DEEPCASE-2)."""
    return rule in SUBJECTS and SUBJECTS[rule].has_parameters and SUBJECTS[rule].draw is not None


def _of_preset(request: Request, name: str) -> tuple[Request, tuple[str, ...]]:
    """The request with what a preset of its rule states, and inputs it has not (DEEPCASE-10).

    A stated parameter or axis stands in the place of the preset's; an object without a kind changes
    some settings of the preset's object.
    """
    presets = SUBJECTS[request.rule].presets if request.rule in SUBJECTS else {}
    if not presets or "preset" not in request.parameters:
        return request, ()
    stated = dict(request.parameters)
    wanted = str(stated.pop("preset"))
    if wanted not in presets:
        raise CaseError(f"{name}: parameters.{no_such('preset', wanted, presets)}")
    preset = presets[wanted]
    parameters = dict(preset.parameters)
    for key, value in stated.items():
        below = parameters.get(key)
        beside = isinstance(below, Mapping) and isinstance(value, Mapping) and "kind" not in value
        parameters[key] = {**below, **value} if beside and below is not None else value
    own_axes = request.convention
    if isinstance(own_axes, str):
        own_axes = {} if own_axes == "spec" else {"preset": own_axes}
    axes = {**preset.convention, **own_axes} or request.convention
    return request.replaced(parameters=parameters, convention=axes), preset.without(stated)


def _check_draw(request: Request, name: str) -> None:
    """Refuse a rule of which no case is drawn, and parameters of one that has none."""
    subject = SUBJECTS[request.rule]
    if subject.draw is None and not subject.has_levels:
        raise CaseError(f"{name}: rule {request.rule}: its cases are recorded, none is drawn")
    if request.parameters and not _has_parameters(request.rule):
        raise CaseError(f"{name}: parameters: the rule {request.rule} has none")
    if request.per_dimension_gates and _has_parameters(request.rule):
        raise CaseError(f"{name}: per_dimension_gates: the rule {request.rule} has none")


def _check_request(request: Request, name: str) -> None:
    """Refuse what is said twice, and what other rules have (CASE-40, DPLRCASE-20)."""
    if request.packed:
        for key, plain in (("reset", 0), ("pulse", 1)):
            if getattr(request, key) != plain:
                words = "both say where sequences start" if key == "reset" else "no token is silent"
                raise CaseError(f"{name}: packed and {key}: {words}; one of them is needed")
        if request.tokens < 3:
            raise CaseError(f"{name}: packed: at least 3 tokens are needed, found {request.tokens}")
    if request.groups > 1:
        if not _has_parameters(request.rule):
            raise CaseError(f"{name}: groups: the rule {request.rule} has none")
        if "groups" in request.parameters:
            raise CaseError(f"{name}: groups and parameters.groups are one; one of them is needed")
    if request.padded is not None:
        if min(request.batch, request.tokens) < 2:
            found = f"found {request.batch} and {request.tokens}"
            raise CaseError(f"{name}: padded: a batch of 2 rows and 2 tokens are needed, {found}")
        if request.pulse > 1 or request.periods:
            raise CaseError(f"{name}: padded and pulse: both say which tokens are silent")
    for key in ("gate", "log", "padded"):
        if getattr(request, key) is None:
            continue
        if request.rule not in SUBJECTS or key not in SUBJECTS[request.rule].drawn:
            rules = [each for each, it in SUBJECTS.items() if key in it.drawn]
            raise CaseError(f"{name}: {key}: belongs to {_rules(rules)}")


def _rules(names: list[str]) -> str:
    return f"rules {', '.join(names)}" if len(names) > 1 else f"rule {names[0]}"


def _store(tensors: dict[str, Array], kind: Any) -> dict[str, Array]:
    return {
        key: value if value.dtype.kind in "biu" else value.astype(kind)
        for key, value in tensors.items()
    }


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
    for key in ("span", "feature_map", "window_weights", "parameters"):
        if getattr(request, key):
            fields[key] = getattr(request, key)
    subject = SUBJECTS.get(request.rule)
    if subject is not None and subject.sample:
        open_ = {} if set(subject.sample) & set(request.parameters) else subject.sample
        fields["parameters"] = {**open_, **request.parameters}
    if request.convention != "spec":
        fields["convention"] = request.convention
    stated = subject is not None and subject.has_gate_axis and request.level == "projected"
    if request.per_dimension_gates and stated:
        fields["gate_axis"] = "d_out"
    return fields
