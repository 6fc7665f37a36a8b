"""The settings by which a TNT is identified, with the values that are tried (TNTCASE-12)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, get_args

from atlas_ref.conventions import Convention
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt.config import LATE
from atlas_ref.oracle.deep.readings.axes import NEWTON_SCHULZ
from atlas_ref.oracle.program.program import Setting
from atlas_ref.oracle.program.reading import Reading, of_settings
from atlas_ref.oracle.tnt.context import TntContext
from atlas_ref.oracle.tnt.settings import Memory, Settings
from atlas_ref.rules import FAMILY

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)

#: Words of a setting of a memory, in the order in which they are tried.
GLOBAL = ("read", "sum")
LOCAL = ("base", "read", "reset", "reset_momentum", "chunk_origin")
OF_PROJECTION = ("kind", "range", "own", "norm")

Values = Callable[[TntContext], Sequence[Any]]


@functools.cache
def settings(names: tuple[str, ...]) -> tuple[Setting, ...]:
    """The settings of a case with memories of these names."""
    of_memories = (each for name in names for each in _of_memory(name))
    return (*_of_convention(), _setting("origin", _origins, "parameters.origin"), *of_memories)


def together(context: TntContext) -> Iterator[Reading]:
    """The same value in every local memory, where there are several, then windows of keys."""
    by_local = [_of_memory(m.name) for m in context.locals]
    for same in zip(*by_local, strict=True) if len(by_local) > 1 else ():
        every = {setting.name: setting.own(context.settings) for setting in same}
        inner = same[0].name.partition(".")[2]
        raw = (v for m in context.locals for v in _values(m.name, inner)(context))
        for value in dict.fromkeys(raw):
            own = {name: now for name, now in every.items() if now != value}
            if len(own) < 2:
                continue  # a change of one memory is a setting already
            if possible(context, changed := dict.fromkeys(own, value)):
                name = f"{same[0].stated.replace('.0.', '.')}={value}"
                stated = {each.name: each.stated for each in same}
                yield of_settings(changed, own, stated)._replace(name=name)
    for m in context.locals:
        yield from _windows(context, m)


def possible(context: TntContext, changed: Mapping[str, Any]) -> bool:
    """Whether settings are defined together, and the case has their tensors (TNT-3 to TNT-9)."""
    s = context.settings.replaced(**changed)
    return all(_is_defined(s, m, context) for m in s.memories)


def _is_defined(s: Settings, m: Memory, context: TntContext) -> bool:
    counted = m.base == "previous" or m.sum == "inclusive"
    gates = s.c.gate != "none" or context.holds("momentum")
    rule = FAMILY[s.rule]
    if counted and (gates or (s.window > 1 and m.is_global)):
        return False
    if m.sum == "inclusive" and m.read != "chunk_start":
        return False
    if m.base == "previous":
        averages = s.window > 1 and s.c.order == "momentum_then_window"
        other = s.c.rate != "momentum" or s.c.has_newton_schulz or averages or context.resumes
        if not rule.has_momentum or other or m.chunk_origin != "shard":
            return False
    if m.reset_momentum != "zero" and not rule.has_momentum:
        return False
    if m.reset_momentum == "learned" and f"in/{m.name}/S0" not in context.inputs:
        return False
    p = m.projection
    if (p.range == "window") != (p.window is not None):
        return False
    if p.kind == "orthogonal" and p.range == "window":
        return False
    return p.kind != "learned" or f"in/{m.name}/W_QK" in context.inputs


def presets(context: TntContext) -> dict[str, list[Reading]]:
    """What a case changes to be a reading of the paper, where that is defined (TNT-12)."""
    found = {}
    for name in tnt.PRESETS:
        rows = [row for m in context.settings.memories for row in _of_preset(context, name, m)]
        changed = {key: value for row in rows for key, value in row.settings.items()}
        if possible(context, changed):
            found[name] = rows
    return found


def _of_preset(context: TntContext, name: str, m: Memory) -> Iterator[Reading]:
    """What one memory changes."""
    changes, form = tnt.PRESETS[name], _form(m.name)
    wanted = {each: form.model_fields[each].default for each in (GLOBAL if m.is_global else LOCAL)}
    wanted |= changes.get("global" if m.is_global else "local", {})
    moved = {each: getattr(tnt.Projection(), each) for each in OF_PROJECTION}
    moved |= changes.get("projection", {})
    wanted |= {} if m.is_global else {f"projection.{k}": v for k, v in moved.items()}
    for setting in _of_memory(m.name):
        own = setting.own(context.settings)
        value = wanted.get(setting.name.partition(".")[2], own)
        if value != own:
            yield of_settings(
                {setting.name: value}, {setting.name: own}, {setting.name: setting.stated}
            )


def _setting(name: str, values: Values, stated: str) -> Setting:
    """A setting with those of its values that are defined."""

    def candidates(context: TntContext) -> list[Any]:
        own = context.settings.value(name)
        every = (value for value in values(context) if value != own)
        return [value for value in every if possible(context, {name: value})]

    return Setting(name, candidates, get=methodcaller("value", name), stated=stated)


# -- a memory --------------------------------------------------------------------------------------


def _where(name: str) -> str:
    return "parameters.global" if name == "global" else f"parameters.locals.{name[5:]}"


def _form(name: str) -> Any:
    return tnt.Global if name == "global" else tnt.Local


@functools.cache
def _of_memory(name: str) -> tuple[Setting, ...]:
    if name == "global":
        names = ["span", *GLOBAL, "writes"]
    else:
        of_projection = (f"projection.{each}" for each in OF_PROJECTION)
        names = ["span", "shard", *LOCAL, "writes", *of_projection]
    return tuple(
        _setting(f"{name}.{each}", _values(name, each), f"{_where(name)}.{each}") for each in names
    )


def _values(memory: str, name: str) -> Values:
    """Values of a setting of a memory, those that are not defined among them."""
    if name in ("span", "shard"):
        return _counts(f"{memory}.{name}")
    if name == "writes":
        return lambda context: (True, False)
    outer, _, inner = name.partition(".")
    return _words(tnt.Projection, inner) if inner else _words(_form(memory), outer)


def _counts(name: str) -> Values:
    def values(context: TntContext) -> Sequence[int]:
        own = context.settings.value(name)
        if own is None:  # beside a reading that leaves it out
            return ()
        near = {own - 1, own, own + 1, 2 * own, context.tokens, *COUNTS}
        every = context.settings.memories
        near |= {size for other in every for size in (other.span, other.shard) if size}
        return sorted(each for each in near if 1 <= each <= max(context.tokens, own))

    return values


def _words(form: Any, name: str) -> Values:
    words = [w for w in get_args(form.model_fields[name].annotation) if w not in LATE]
    return lambda context: words


def _windows(context: TntContext, m: Memory) -> Iterator[Reading]:
    """The last keys of the document, by their number, which comes with the range."""
    names = [f"{m.name}.projection.{each}" for each in ("range", "window")]
    stated = {name: f"{_where(m.name)}.{name.partition('.')[2]}" for name in names}
    own = {name: context.settings.value(name) for name in names}
    for window in _counts(f"{m.name}.span")(context):
        changed = dict(zip(names, ("window", window), strict=True))
        if m.projection.kind == "sum_outer" and changed != own and possible(context, changed):
            name = f"{stated[names[1]]}={window}"
            yield of_settings(changed, own, stated)._replace(name=name)


# -- all memories ----------------------------------------------------------------------------------


def _origins(context: TntContext) -> Sequence[int]:
    return () if context.resumes else (0, 1)


def _of_convention() -> Iterator[Setting]:
    words = (
        *("decay", "momentum_sign", "direction", "value_sign"),
        *("window_edge", "window_at_boundary", "order", "q_norm", "k_norm"),
    )
    of_axes: dict[str, Values] = {
        "gate": _gates,
        "rate": _rates,
        **{axis: _legal(axis) for axis in words},
        "gradient_scale": lambda context: (0.5, 1.0, 2.0, "2/d_out"),
        "query_scale": lambda context: (1.0, "1/sqrt(d_in)"),
        **{f"newton_schulz.{key}": _of_newton_schulz(key) for key in NEWTON_SCHULZ},
    }
    for axis, values in of_axes.items():
        yield _setting(f"c.{axis}", values, axis)


def _legal(axis: str) -> Values:
    of_error = axis in ("decay", "momentum_sign", "direction", "value_sign")
    of_window = axis in ("window_edge", "window_at_boundary", "order")

    def values(context: TntContext) -> Sequence[Any]:
        s = context.settings
        if (of_error and not FAMILY[s.rule].has_error) or (of_window and s.window == 1):
            return ()
        if axis == "decay" and s.c.gate == "none":
            return ()
        return get_args(Convention.model_fields[axis].annotation)

    return values


def _gates(context: TntContext) -> Sequence[str]:
    legal = get_args(Convention.model_fields["gate"].annotation)
    return legal if context.holds("retain") else ()


def _rates(context: TntContext) -> Sequence[str]:
    if not FAMILY[context.settings.rule].has_error:
        return ()
    some = ("momentum", "memory", "both") if context.holds("step_size") else ()
    return (*some, *(("split",) if context.holds("step_size_memory") else ()), "none")


def _of_newton_schulz(key: str) -> Values:
    return lambda context: NEWTON_SCHULZ[key] if context.settings.c.has_newton_schulz else ()
