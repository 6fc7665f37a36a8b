"""The axes on which a TNT is identified, with the values that are tried (TNTCASE-12)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from atlas_ref.conventions import Convention
from atlas_ref.forms import tnt
from atlas_ref.forms.tnt.config import LATE
from atlas_ref.oracle.deep.readings.axes import NEWTON_SCHULZ
from atlas_ref.oracle.tnt.readings.reading import Axis, Reading, Seen, of_value, together
from atlas_ref.oracle.tnt.settings import Memory, Settings
from atlas_ref.rules import FAMILY

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)

#: Words of a setting of a memory, in the order in which they are tried.
GLOBAL = ("read", "sum")
LOCAL = ("base", "read", "reset", "reset_momentum", "chunk_origin")
OF_PROJECTION = ("kind", "range", "own", "norm")

Values = Callable[[Seen], Sequence[Any]]


def settings(at: Seen) -> Iterator[Reading]:
    """Every other value of every axis, one at a time, and of all local memories at once."""
    for axis in (*_of_convention(), _origin()):
        yield from _readings(at, axis)
    by_local = []
    for m in at.s.memories:
        axes = _of_memory(m)
        for axis in axes:
            yield from _readings(at, axis)
        by_local += [] if m.is_global else [axes]
    yield from _of_all(at, by_local)
    for m in at.locals:
        yield from _windows(at, m)


def _readings(at: Seen, axis: Axis) -> list[Reading]:
    own = axis.get(at.s)
    made = [of_value(axis, value, own) for value in axis.values(at) if value != own]
    return [each for each in made if possible(at, each)]


def _of_all(at: Seen, by_local: Sequence[Sequence[Axis]]) -> Iterator[Reading]:
    """The same value in every local memory, where there are several."""
    if len(by_local) < 2:
        return
    for same in zip(*by_local, strict=True):
        for value in dict.fromkeys(v for axis in same for v in axis.values(at)):
            own = [axis for axis in same if axis.get(at.s) != value]
            if len(own) < 2:
                continue  # a change of one memory is a reading already
            name = f"{same[0].name.replace('.0.', '.')}={value}"
            every = together(name, [of_value(axis, value, axis.get(at.s)) for axis in own])
            if possible(at, every):
                yield every


def possible(at: Seen, each: Reading) -> bool:
    """Whether settings are defined together, and the case has their tensors (TNT-3 to TNT-9)."""
    s, _ = each.applied(at.s, {})
    return all(_defined(s, m, at) for m in s.memories)


def _defined(s: Settings, m: Memory, at: Seen) -> bool:
    counted = m.base == "previous" or m.sum == "inclusive"
    gates = s.c.gate != "none" or at.holds("momentum")
    rule = FAMILY[s.rule]
    if counted and (gates or (s.window > 1 and m.is_global)):
        return False
    if m.sum == "inclusive" and m.read != "chunk_start":
        return False
    if m.base == "previous":
        averages = s.window > 1 and s.c.order == "momentum_then_window"
        other = s.c.rate != "momentum" or s.c.has_newton_schulz or averages or at.resumes
        if not rule.has_momentum or other or m.chunk_origin != "shard":
            return False
    if m.reset_momentum != "zero" and not rule.has_momentum:
        return False
    if m.reset_momentum == "learned" and f"in/{m.name}/S0" not in at.inputs:
        return False
    p = m.projection
    if (p.range == "window") != (p.window is not None):
        return False
    if p.kind == "orthogonal" and p.range == "window":
        return False
    return p.kind != "learned" or f"in/{m.name}/W_QK" in at.inputs


def of_preset(at: Seen, name: str) -> list[Reading] | None:
    """What a case changes to be a reading of the paper; None where that is not defined (TNT-12)."""
    changes, found = tnt.PRESETS[name], []
    for m in at.s.memories:
        form: Any = tnt.Global if m.is_global else tnt.Local
        wanted = {
            each: form.model_fields[each].default for each in (GLOBAL if m.is_global else LOCAL)
        }
        wanted |= changes.get("global" if m.is_global else "local", {})
        moved = {each: getattr(tnt.Projection(), each) for each in OF_PROJECTION}
        moved |= changes.get("projection", {})
        wanted |= {} if m.is_global else {f"projection.{k}": v for k, v in moved.items()}
        for axis in _of_memory(m):
            value = wanted.get(axis.name.removeprefix(f"{_where(m)}."), own := axis.get(at.s))
            found += [] if value == own else [of_value(axis, value, own)]
    return found if possible(at, together(name, found)) else None


# -- a memory --------------------------------------------------------------------------------------


def _where(m: Memory) -> str:
    return "parameters.global" if m.is_global else f"parameters.locals.{m.name[5:]}"


def _field(m: Memory, name: str, values: Values) -> Axis:
    """A setting of one memory."""
    return Axis(
        f"{_where(m)}.{name}",
        values,
        lambda s: getattr(_named(s, m.name), name),
        lambda s, value: changed(s, m.name, **{name: value}),
    )


def _named(s: Settings, name: str) -> Memory:
    return next(m for m in s.memories if m.name == name)


def changed(s: Settings, name: str, **fields: Any) -> Settings:
    """Settings in which one memory has other ones."""
    return s._replace(
        memories=tuple(m._replace(**fields) if m.name == name else m for m in s.memories)
    )


def _of_memory(m: Memory) -> list[Axis]:
    form: Any = tnt.Global if m.is_global else tnt.Local
    axes = [_field(m, "span", _counts("span", m))]
    if not m.is_global:
        axes.append(_field(m, "shard", _counts("shard", m)))
    words = GLOBAL if m.is_global else LOCAL
    axes += [_field(m, name, _words(form, name)) for name in words]
    axes.append(_field(m, "writes", lambda at: (True, False)))
    return axes if m.is_global else [*axes, *(_of_projection(m, name) for name in OF_PROJECTION)]


def _counts(name: str, m: Memory) -> Values:
    def values(at: Seen) -> Sequence[int]:
        own = getattr(m, name)
        if own is None:  # beside a reading that leaves it out
            return ()
        near = {own - 1, own, own + 1, 2 * own, at.tokens, *COUNTS}
        near |= {size for other in at.s.memories for size in (other.span, other.shard) if size}
        return sorted(each for each in near if 1 <= each <= max(at.tokens, own))

    return values


def _words(form: Any, name: str) -> Values:
    words = get_args(form.model_fields[name].annotation)
    return lambda at: [word for word in words if word not in LATE]


def _of_projection(m: Memory, name: str) -> Axis:
    def put(s: Settings, value: Any) -> Settings:
        projection = _named(s, m.name).projection._replace(**{name: value})
        if name == "range" and value != "window":
            projection = projection._replace(window=None)
        return changed(s, m.name, projection=projection)

    return Axis(
        f"{_where(m)}.projection.{name}",
        _words(tnt.Projection, name),
        lambda s: getattr(_named(s, m.name).projection, name),
        put,
    )


def _windows(at: Seen, m: Memory) -> Iterator[Reading]:
    """The last keys of the document, by their number, which comes with the range."""
    where, own = f"{_where(m)}.projection", m.projection
    for window in _counts("span", m)(at):
        if (own.range, own.window) == ("window", window):
            continue
        moved = own._replace(range="window", window=window)
        every = Reading(
            name=f"{where}.window={window}",
            change={f"{where}.range": "window", f"{where}.window": window},
            before={f"{where}.range": own.range, f"{where}.window": own.window},
            settings=functools.partial(changed, name=m.name, projection=moved),
        )
        if own.kind == "sum_outer" and possible(at, every):
            yield every


# -- all memories ----------------------------------------------------------------------------------


def _origin() -> Axis:
    return Axis(
        "parameters.origin",
        lambda at: () if at.resumes else (0, 1),
        lambda s: s.origin,
        lambda s, value: s._replace(origin=value),
    )


def _of_convention() -> list[Axis]:
    words = (
        *("decay", "momentum_sign", "direction", "value_sign"),
        *("window_edge", "window_at_boundary", "order", "q_norm", "k_norm"),
    )
    return [
        _convention("gate", _gates),
        _convention("rate", _rates),
        *(_convention(axis, _legal(axis)) for axis in words),
        _convention("gradient_scale", lambda at: (0.5, 1.0, 2.0, "2/d_out")),
        _convention("query_scale", lambda at: (1.0, "1/sqrt(d_in)")),
        *(_of_newton_schulz(key) for key in NEWTON_SCHULZ),
    ]


def _convention(axis: str, values: Values) -> Axis:
    return Axis(
        axis,
        values,
        lambda s: getattr(s.c, axis),
        lambda s, value: s._replace(c=s.c.replaced(**{axis: value})),
    )


def _legal(axis: str) -> Values:
    of_error = axis in ("decay", "momentum_sign", "direction", "value_sign")
    of_window = axis in ("window_edge", "window_at_boundary", "order")

    def values(at: Seen) -> Sequence[Any]:
        rule = FAMILY[at.s.rule]
        if (of_error and not rule.has_error) or (of_window and at.s.window == 1):
            return ()
        if axis == "decay" and at.s.c.gate == "none":
            return ()
        return get_args(Convention.model_fields[axis].annotation)

    return values


def _gates(at: Seen) -> Sequence[str]:
    return get_args(Convention.model_fields["gate"].annotation) if at.holds("retain") else ()


def _rates(at: Seen) -> Sequence[str]:
    if not FAMILY[at.s.rule].has_error:
        return ()
    some = ("momentum", "memory", "both") if at.holds("step_size") else ()
    return (*some, *(("split",) if at.holds("step_size_memory") else ()), "none")


def _of_newton_schulz(key: str) -> Axis:
    def put(s: Settings, value: Any) -> Settings:
        changed = s.c.newton_schulz_settings.replaced(**{key: value})
        return s._replace(c=s.c.replaced(newton_schulz=changed))

    return Axis(
        f"newton_schulz.{key}",
        lambda at: NEWTON_SCHULZ[key] if at.s.c.has_newton_schulz else (),
        lambda s: getattr(s.c.newton_schulz, key, None),
        put,
    )
