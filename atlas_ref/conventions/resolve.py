"""A convention from a preset's name or from axes with values, for a rule (CONV-2)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from atlas_ref.conventions.axes import LEAST_EPS, NEWTON_SCHULZ_KEYS, Convention, OpenGate
from atlas_ref.conventions.presets import DEFAULTS, PRESETS
from atlas_ref.messages import first_problem, no_such, shown
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Frozen


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
        return _possible(value, rule)
    preset, changes = axes_of(value, Convention, PRESETS, default="spec", what="convention")
    if null := [axis for axis, setting in changes.items() if setting is None]:
        raise ValueError(f"convention: {null[0]}: null is not a value")
    stated = preset.get("newton_schulz"), changes.get("newton_schulz")
    settings = _newton_schulz(*stated, rule)
    chosen = {**DEFAULTS.get(rule, {}), **preset, **changes, "newton_schulz": settings}
    chosen.setdefault("rate", "both" if rule == "omega" and settings != "none" else "momentum")
    forget = rule not in ("omega", "deep_memory") and level == "token"
    chosen.setdefault("gate", "forget" if forget else "retain")
    return _possible(_validated(chosen), rule)


def _possible(convention: Convention, rule: str) -> Convention:
    """The convention, unless an axis is undefined there (CONV-64, CONV-66, CONV-67, CONV-70)."""
    if rule == "deep_memory":
        for axis in (*_BOUNDS, "memory_ceiling"):
            if getattr(convention, axis) != "none":
                raise ValueError(f"convention: {axis} is not defined for deep_memory")
    kind = convention.momentum_kind
    if kind != "sum":
        if rule == "deep_memory":
            raise ValueError(f"convention: momentum_kind {kind} is not defined for deep_memory")
        if convention.argument == "nesterov":
            raise ValueError(
                f"convention: momentum_kind {kind} is not defined for newton_schulz.argument "
                "nesterov"
            )
    return convention


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


#: Axes that take a number, perhaps as well as a word: what is legal, and which numbers are.
_NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "gradient_scale": ('a finite number or "2/d_out"', lambda x: True),
    "query_scale": ('1 or "1/sqrt(d_in)"', lambda x: x == 1),
    "memory_ceiling": ('a finite number above 0 or "none"', lambda x: x > 0),
    "norm_eps": (f"a finite number from {LEAST_EPS:g}", lambda x: x >= LEAST_EPS),
}


#: Axes that take a least and a greatest value: the greatest one that is legal.
_BOUNDS: dict[str, float] = {"retain_bounds": 1.0, "step_bounds": sys.float_info.max}


def _check_bounds(chosen: Mapping[str, Any]) -> None:
    """Refuse bounds that are no range of their gate (CONV-66)."""
    for axis, most in _BOUNDS.items():
        pair = chosen.get(axis, "none")
        if isinstance(pair, str) and pair == "none":
            continue
        numbers = isinstance(pair, list | tuple) and all(
            isinstance(x, int | float) and not isinstance(x, bool) for x in pair
        )
        if not (numbers and len(pair) == 2 and 0 <= pair[0] <= pair[1] <= most):
            legal = "0 <= least <= greatest" + (f" <= {most:g}" if most == 1 else "")
            raise ValueError(
                f'convention: {axis} must be "none" or [least, greatest] with {legal}, '
                f"found {shown(pair)}"
            )


def _validated(chosen: dict[str, Any]) -> Convention:
    _check_bounds(chosen)
    for axis, (legal, accepts) in _NUMBERS.items():
        if axis not in chosen or chosen[axis] in legal.split('"')[1::2]:
            continue
        value = chosen[axis]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and abs(value) <= sys.float_info.max and accepts(value)):
            raise ValueError(f"convention: {axis} must be {legal}, found {shown(value)}")
    try:
        return Convention.model_validate_json(json.dumps(chosen))
    except ValidationError as error:
        raise ValueError(f"convention: {first_problem(error)}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"convention: {error}") from None
