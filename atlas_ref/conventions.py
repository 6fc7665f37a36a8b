"""Conventions: every point on which the papers and the public implementations disagree, as data.

One frozen model names each point and its legal values; presets hold the values of a source or of an
implementation. Specified, with the equations behind every value, in specs/conventions.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from atlas_ref.messages import first_problem, no_such, shown
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Frozen

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Convention(Frozen):
    """One choice on every axis; the defaults are the preset `spec` of a rule at level projected
    (CONV-1).

    What depends on the rule - newton_schulz, rate, gate - is set by `resolve`.
    """

    gate: Literal["retain", "forget", "none"] = Field(
        "retain",
        description="what the retain gate's value is: the share of M kept, the share forgotten, or no "
        "gate (r = 1)",
    )
    decay: Literal["after_error", "before_error"] = Field(
        "after_error", description="whether the error uses M_ref or r_t M_ref"
    )
    gradient_scale: Finite | Literal["2/d_out"] = Field(
        1.0,
        description="factor s of the gradient: 1 for the loss |e|^2 / 2, 2 for |e|^2, 2/d_out for its "
        "mean; any number",
    )
    rate: Literal["momentum", "memory", "both", "split", "none"] = Field(
        "momentum",
        description="where the learning rate enters: (a, b) = (h, 1), (1, h), (h, h), (h, h'), (1, 1)",
    )
    momentum_sign: Literal["plus", "minus"] = Field(
        "plus", description="S holds +gradient and M subtracts, or S holds the negative and M adds"
    )
    direction: Literal["descent", "ascent"] = Field(
        "descent",
        description="ascent moves M the other way: an error of print, kept so that it can be named",
    )
    value_sign: Literal["minus", "plus"] = Field(
        "minus", description="residual M phi - v, or M phi + v: an error of print, kept likewise"
    )
    read: Literal["after", "before", "chunk_start", "call_end"] = Field(
        "after",
        description="the memory that y_t reads: M_t, M_(t-1), that of the span's start, or the last one "
        "(not causal)",
    )
    reference: Literal["running", "chunk_start", "call_start", "zero"] = Field(
        "running",
        description="the memory in the error: M_(t-1), that of the span's start, that of the call's "
        "start, or zero",
    )
    span_origin: Literal["first", "multiple"] = Field(
        "first",
        description="spans start at the first token, or at multiples of the span counted from 1",
    )
    window_at_boundary: Literal["recompute", "carry", "cut"] = Field(
        "recompute",
        description="older window tokens after a span's start: new reference, residual of their own span, "
        "or dropped",
    )
    window_edge: Literal["truncate", "renormalise"] = Field(
        "truncate",
        description="before the window is full: weights stay, or grow so that their sum stays",
    )
    order: Literal["window_then_momentum", "momentum_then_window"] = Field(
        "window_then_momentum", description="which of the two sums is the inner one"
    )
    newton_schulz: NewtonSchulz | Literal["none"] = Field(
        "none",
        description="settings of Newton-Schulz (Omega's default is an object with all defaults), or none",
    )
    query_scale: Finite | Literal["1/sqrt(d_in)"] = Field(
        1.0, description="factor of phi(q): 1 or 1/sqrt(d_in)"
    )
    q_norm: Literal["none", "l2", "rms"] = Field("none", description="norm of the query")
    k_norm: Literal["none", "l2", "rms"] = Field("none", description="norm of the key")
    norm_place: Literal["before_phi", "after_phi"] = Field(
        "before_phi", description="whether norms come before or after the feature map"
    )
    layout: Literal["plain", "transposed"] = Field(
        "plain", description="memory in files as d_out x d_phi, or as its transpose"
    )

    @property
    def has_newton_schulz(self) -> bool:
        return isinstance(self.newton_schulz, NewtonSchulz)

    @property
    def newton_schulz_settings(self) -> NewtonSchulz:
        """The settings, where there is Newton-Schulz."""
        if not isinstance(self.newton_schulz, NewtonSchulz):
            raise ValueError("convention: newton_schulz is none")
        return self.newton_schulz

    @property
    def argument(self) -> str:
        """The argument of Newton-Schulz; "S" without Newton-Schulz."""
        return self.newton_schulz.argument if isinstance(self.newton_schulz, NewtonSchulz) else "S"

    @property
    def frozen_reference(self) -> bool:
        return self.reference in ("chunk_start", "call_start")


class OpenGate(Convention):
    """A convention whose gate nobody stated, of a rule whose default depends on the level.

    Computed gates take the one that stands here, that of level token; given gates are refused
    (CONV-4).
    """

    def replaced(self, **changes: Any) -> Any:
        """A copy with some axes changed; one whose gate is among them is no longer open."""
        kind = Convention if "gate" in changes else OpenGate
        return kind.trusted(**{**self.__dict__, **changes})


AXES: tuple[str, ...] = tuple(Convention.model_fields)
NEWTON_SCHULZ_KEYS: tuple[str, ...] = tuple(NewtonSchulz.model_fields)

#: Their code multiplies M by the gate, for computed gates too (CONV-26).
_FLA = {
    "gate": "retain",
    "newton_schulz": "none",
    "layout": "transposed",
    "query_scale": "1/sqrt(d_in)",
}

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
    "nl-hecate": {"gate": "forget", "momentum_sign": "minus", "q_norm": "l2", "k_norm": "l2"},
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
    "nl-hecate": "NL_Hecate, its Titans",
}


def axes_of(
    value: Any, kind: type[Frozen], presets: Mapping[str, Any], *, default: str, what: str
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """What a preset changes, and what changes that preset.

    Args:
        value: a preset's name, or axes with values, where the key "preset" says what they change.
        kind: whose fields are the axes.

    Raises:
        ValueError: names the preset or the axis that does not exist, and those that do.
    """
    if not isinstance(value, str | Mapping):
        needed = f"a preset's name, a mapping of axes or a {kind.__name__} is needed"
        raise ValueError(f"{what}: {needed}, found {value!r}")
    changes: dict[str, Any] = {"preset": value} if isinstance(value, str) else dict(value)
    preset = changes.pop("preset", default)
    for word, names, known in (("preset", [preset], presets), ("axis", changes, kind.model_fields)):
        for name in names:
            if not isinstance(name, str) or name not in known:
                raise ValueError(f"{what}: {no_such(word, name, known)}")
    return presets[preset], changes


def resolve(
    value: str | Mapping[str, Any] | Convention, *, rule: str, level: str = "projected"
) -> Convention:
    """The convention of a preset's name or of a mapping of changes, for a rule (CONV-2).

    Args:
        value: a preset's name, or axes with values, where the key "preset" (default spec) says what
            they change. A complete `Convention` is returned as it is.
        rule: of `rules.RULES`, or newton_schulz or feature_map.
        level: at level token, the gate of titans_lmm, delta and hebbian is forget unless stated.

    Raises:
        ValueError: names the axis, what was found and its legal values.
    """
    if isinstance(value, Convention):
        _newton_schulz(None, value.newton_schulz, rule)
        return value
    preset, changes = axes_of(value, Convention, PRESETS, default="spec", what="convention")
    if null := [axis for axis, setting in changes.items() if setting is None]:
        raise ValueError(f"convention: {null[0]}: null is not a value")
    stated = preset.get("newton_schulz"), changes.get("newton_schulz")
    settings = _newton_schulz(*stated, rule)
    chosen = {**DEFAULTS.get(rule, {}), **preset, **changes, "newton_schulz": settings}
    chosen.setdefault("rate", "both" if rule == "omega" and settings != "none" else "momentum")
    forget = rule not in ("omega", "deep_memory") and level == "token"
    chosen.setdefault("gate", "forget" if forget else "retain")
    return _validated(chosen)


def of_config(value: str | Mapping[str, Any] | Convention, *, rule: str) -> Convention:
    """The convention of a configuration, by which given gates and computed ones may be run (CONV-4).

    Args:
        value: as for `resolve`; a complete `Convention` has stated its gate.

    Returns:
        that of level token, an `OpenGate` where level projected has another gate.
    """
    convention = resolve(value, rule=rule, level="token")
    if convention.gate == resolve(value, rule=rule).gate:
        return convention
    return OpenGate.trusted(**convention.__dict__)


def _newton_schulz(preset: Any, request: Any, rule: str) -> Any:
    """The settings in force: the rule's default, changed by the preset, changed by the request."""
    if rule not in ("omega", "deep_memory", "newton_schulz"):
        if request not in (None, "none"):
            raise ValueError(
                f"convention: newton_schulz is not part of {rule}; only none is possible"
            )
        return "none"
    if request == "none" or (request is None and preset == "none"):
        if rule == "newton_schulz":
            raise ValueError(
                "convention: newton_schulz none leaves the rule newton_schulz nothing to compute"
            )
        return "none"
    if isinstance(request, NewtonSchulz):
        return request.model_dump()
    for part in (preset, request):
        if part is not None and part != "none" and not isinstance(part, Mapping):
            raise ValueError(
                'convention: newton_schulz must be "none" or an object with keys '
                f"{', '.join(NEWTON_SCHULZ_KEYS)}, found {shown(part)}"
            )
    chosen = {**(preset if isinstance(preset, Mapping) else {}), **(request or {})}
    try:
        return NewtonSchulz.model_validate_json(json.dumps(chosen)).model_dump()
    except ValidationError as error:
        raise ValueError(f"convention: newton_schulz.{first_problem(error)}") from None


#: Axes that take a number as well as a word, with their legal values.
_NUMBERS = {"gradient_scale": 'a finite number or "2/d_out"', "query_scale": '1 or "1/sqrt(d_in)"'}


def _validated(chosen: dict[str, Any]) -> Convention:
    for axis, legal in _NUMBERS.items():
        value = chosen.get(axis, 1.0)
        number = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) <= sys.float_info.max
        )
        if not (
            value == legal.split('"')[1] or (number and (axis == "gradient_scale" or value == 1))
        ):
            raise ValueError(f"convention: {axis} must be {legal}, found {shown(value)}")
    try:
        return Convention.model_validate_json(json.dumps(chosen))
    except ValidationError as error:
        raise ValueError(f"convention: {first_problem(error)}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"convention: {error}") from None


def effective(convention: Convention, *, rule: str) -> Convention:
    """The convention without a reference that nothing reads (HEBBIAN-5).

    hebbian has no error, so that only read chunk_start needs a reference.
    """
    if rule == "hebbian" and convention.read != "chunk_start":
        return convention.replaced(reference="running")
    return convention


def void_axes(
    convention: Convention,
    *,
    rule: str,
    window: int = 1,
    span: int | None = None,
    phase: int | None = None,
    tokens: int = 0,
    history: int = 0,
    resets: bool = False,
    gated: bool = False,
    shape: tuple[int, int] = (0, 0),
) -> dict[str, str]:
    """Axes whose value cannot matter in this case, each with the reason (CONV-3); also
    "newton_schulz.KEY".

    Args:
        history: initial window tokens, before whose end there is a boundary.
        resets: whether packed sequences may start inside the call, which take their positions from
            span_origin.
        gated: whether tokens bring their own window weight.
        shape: (d_out, d_phi).
    """
    c = convention
    void: dict[str, str] = {}
    if c.has_newton_schulz:
        if c.newton_schulz_settings.coefficients != "polar_express":
            void["newton_schulz.lower_bound"] = "only polar_express reads it"
        if shape[0] <= shape[1]:
            void["newton_schulz.transpose"] = "the matrix is not tall"
    if rule in ("newton_schulz", "feature_map"):
        steps = {
            axis: f"the rule {rule} has no such step"
            for axis in AXES
            if axis != "newton_schulz" or rule == "feature_map"
        }
        return steps | void
    if rule == "hebbian":
        no_error = ["decay", "gradient_scale", "rate", "momentum_sign", "direction", "value_sign"]
        void |= dict.fromkeys(no_error, "hebbian has no error and no rate")
        if c.read != "chunk_start":
            void["reference"] = "hebbian has no error, and no read needs a span"
        c = effective(c, rule=rule)
    if rule == "delta":
        void["momentum_sign"] = "delta has no momentum"
    if c.reference == "zero":
        void["decay"] = "the reference is zero"
    if c.gate == "none":
        void["decay"] = "nothing decays"
    if c.reference != "chunk_start" and c.read != "chunk_start":
        void["span_origin"] = "nothing is refreshed by spans"
    elif c.reference == "call_start":
        void["span_origin"] = "the reference lasts the whole call"
    elif span == 1:
        void["span_origin"] = "every token starts a span"
    elif phase is not None and not resets:
        void["span_origin"] = "phase says where the first token stands in its span"
    if c.q_norm == "none" and c.k_norm == "none":
        void["norm_place"] = "there is no norm"
    if window == 1:
        void |= dict.fromkeys(["window_at_boundary", "window_edge"], "the window is one token")
        if rule != "omega":
            void["order"] = "the window is one token of weight one"
    elif c.order == "momentum_then_window":
        void |= dict.fromkeys(["window_at_boundary", "window_edge"], "the window sums momenta")
    else:
        if gated:
            void["window_edge"] = "a missing token's weight is 0"
        elif history == window - 1 and not resets:
            void["window_edge"] = "the window is full from the first token on"
        if not c.frozen_reference:
            void["window_at_boundary"] = "the reference is not frozen"
        elif history == 0 and (
            c.reference == "call_start" or _first_span_covers(c, span, phase, tokens, resets)
        ):
            void["window_at_boundary"] = "the first span covers the call"
    return void


def _first_span_covers(
    c: Convention, span: int | None, phase: int | None, tokens: int, resets: bool
) -> bool:
    """Whether no span ends within a call of chunk_start, nor within a packed sequence of it
    (CONV-47).
    """
    if span is None:
        return False
    starts = [] if phase is None else [phase]
    if phase is None or resets:
        starts.append(1 % span if c.span_origin == "multiple" else 0)
    return max(starts) + tokens <= span
