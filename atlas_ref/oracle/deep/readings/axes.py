"""The axes on which a deep memory is identified, with the values that are tried (DEEPCASE-14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

from atlas_ref.conventions import Convention
from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.readings.knobs import biases, momenta, retentions
from atlas_ref.oracle.deep.settings import Settings, rank
from atlas_ref.oracle.program.program import Setting
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.parts.window import Decay, Ones, Uniform

EPS = (2.0**-52, 1e-12, 1e-10, 1e-8, 1e-7, 2.0**-23, 1e-6, 1e-5, 1e-4, 1e-3)
CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)
BASES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
BOUNDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)

#: Values of the settings of Newton-Schulz.
NEWTON_SCHULZ: dict[str, tuple[Any, ...]] = {
    "coefficients": ("muon", "cubic", "polar_express"),
    "steps": tuple(range(1, 11)),
    "eps": (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3),
    "norm_factor": (1.0, 1.01, 1.02, 1.05, 1.1, 1.2),
    "guard": ("add", "clamp", "return"),
    "scale": ("1", "sqrt", "norm"),
    "argument": ("S", "nesterov"),
}


def _field(
    name: str,
    values: Callable[[DeepContext], Sequence[Any]],
    *,
    of: str = "",
    said: Callable[[Any], Any] = lambda value: value,
) -> Setting:
    """A field of the settings.

    Args:
        of: its name there, where it is another.
        said: a value as a case states it.
    """
    field = of or name
    return Setting(
        name,
        values,
        get=lambda s: getattr(s, field),
        put=lambda s, value: s.replaced(**{field: value}),
        said=said,
    )


def _some(*values: Any) -> Callable[[DeepContext], Sequence[Any]]:
    return lambda context: values


def _memory(
    name: str, values: Callable[[DeepContext], Sequence[Any]], *, without: str = ""
) -> Setting:
    """A setting of the memory function.

    Args:
        without: a tensor that it has no more.
    """

    def put(s: Settings, value: Any) -> Settings:
        names = tuple(each for each in s.names if each != without)
        return s.replaced(function=s.function.replaced(**{name: value}), names=names)

    return Setting(f"memory.{name}", values, get=lambda s: getattr(s.function, name), put=put)


def _convention(axis: str, values: Callable[[DeepContext], Sequence[Any]] | None = None) -> Setting:
    listed = values or _some(*get_args(Convention.model_fields[axis].annotation))
    return Setting(
        axis,
        listed,
        stated=axis,
        get=lambda s: getattr(s.c, axis),
        put=lambda s, value: _put(s, axis, value),
    )


def _put(s: Settings, axis: str, value: Any) -> Settings:
    """Another value of an axis, with a span of one chunk where that needs one and none is stated."""
    span = s.span or (s.chunk if value == "chunk_start" else 0)
    return s.replaced(c=s.c.replaced(**{axis: value}), span=span)


def _of_newton_schulz(key: str) -> Setting:
    def get(s: Settings) -> Any:
        return getattr(s.c.newton_schulz, key, None)

    def put(s: Settings, value: Any) -> Settings:
        settings = s.c.newton_schulz_settings.replaced(**{key: value})
        return s.replaced(c=s.c.replaced(newton_schulz=settings))

    def values(context: DeepContext) -> Sequence[Any]:
        return NEWTON_SCHULZ[key] if context.settings.c.has_newton_schulz else ()

    name = f"newton_schulz.{key}"
    return Setting(name, values, stated=name, get=get, put=put)


def _chunks(context: DeepContext) -> Sequence[int]:
    return sorted(
        {
            *(each for each in CHUNKS if each <= context.tokens),
            context.tokens,
            context.settings.chunk,
        }
    )


def _windows(context: DeepContext) -> Sequence[int]:
    s, T = context.settings, context.tokens + context.before
    near = {s.window - 1, s.window, s.window + 1, s.chunk, 2 * s.chunk, T}
    most = s.window if "in/window_weights" in context.inputs else T
    return sorted(each for each in {*CHUNKS, *near} if 1 <= each <= most)


def _spans(context: DeepContext) -> Sequence[int]:
    if "chunk_start" not in (context.settings.c.reference, context.settings.c.read):
        return ()
    return [each * context.settings.chunk for each in (1, 2, 3, 4)]


def _kinds(context: DeepContext) -> Sequence[Any]:
    if "in/window_weights" in context.inputs or context.settings.window == 1:
        return ()
    return (Ones(), Uniform(), *(Decay(base=base) for base in BASES))


def _rates(context: DeepContext) -> Sequence[str]:
    if "in/step_size" not in context.inputs:
        return ("none",)
    both = ("momentum", "memory", "both", "none")
    return (*both, "split") if "in/step_size_memory" in context.inputs else both


def _couplings(context: DeepContext) -> Sequence[str]:
    k = context.inputs["in/k"]
    fresh = not context.begins("in/state/")
    return ("per_sample", "batch_shared") if k.ndim > 2 and len(k) > 1 and fresh else ()


def _where(
    condition: Callable[[DeepContext], bool], *values: Any
) -> Callable[[DeepContext], Sequence[Any]]:
    return lambda context: values if condition(context) else ()


def _has_norms(context: DeepContext) -> bool:
    return any(name.endswith(("gain", "bias")) for name in context.settings.names)


def _norms_keys(context: DeepContext) -> bool:
    return (context.settings.c.q_norm, context.settings.c.k_norm) != ("none", "none")


def _has_vectors(context: DeepContext) -> bool:
    return any(rank(name) < 2 for name in context.settings.names)


def _activates(context: DeepContext) -> bool:
    f = context.settings.function
    return bool(f.kind == "polynomial" or (f.kind == "mlp" and f.depth > 1))


def _same_widths(context: DeepContext) -> bool:
    return bool(context.inputs["in/k"].shape[-1] == context.inputs["in/v"].shape[-1])


def _has_cotangent(context: DeepContext) -> bool:
    return "in/y_bar" in context.inputs


def _as_json(value: Any) -> Any:
    """Settings as an object of JSON."""
    return value.model_dump(mode="json", exclude_defaults=False)


def _without_defaults(value: Any) -> Any:
    """Settings that are not their defaults, and the kind, as an object of JSON."""
    return {"kind": value.kind, **value.model_dump(mode="json", exclude_defaults=True)}


def _whole(value: Any) -> Any:
    """A network in the place of the momentum as an object of JSON."""
    return {"function": _without_defaults(value.function), "objective": value.objective}


def _newton_schulz(context: DeepContext) -> Sequence[Any]:
    return (
        "none",
        context.settings.c.newton_schulz
        if context.settings.c.has_newton_schulz
        else NewtonSchulz(),
    )


#: Every axis, those of the convention first.
AXES: tuple[Setting, ...] = (
    _convention(
        "gate", _where(lambda context: "in/retain" in context.inputs, "retain", "forget", "none")
    ),
    _convention("decay"),
    _convention("gradient_scale", _some(1.0, 2.0, 0.5, "2/d_out")),
    _convention("rate", _rates),
    _convention("momentum_sign"),
    _convention("direction"),
    _convention("value_sign"),
    _convention("read"),
    _convention("reference", _some("running", "chunk_start", "call_start")),
    _convention("window_edge"),
    _convention("query_scale", _some(1.0, "1/sqrt(d_in)")),
    _convention("q_norm"),
    _convention("k_norm"),
    _convention("norm_eps", _where(_norms_keys, *(each for each in EPS if each >= 1e-15))),
    _convention("norm_guard", _where(_norms_keys, "root", "add", "clamp")),
    Setting(
        "newton_schulz",
        _newton_schulz,
        stated="newton_schulz",
        get=lambda s: s.c.newton_schulz,
        put=lambda s, value: _put(s, "newton_schulz", value),
        said=lambda value: value if value == "none" else {},
    ),
    *map(_of_newton_schulz, NEWTON_SCHULZ),
    _field("chunk", _chunks),
    _field("window", _windows),
    _field("span", _spans),
    _field("bias", biases, said=_without_defaults),
    _field("retention", retentions, said=_without_defaults),
    _field("deep_momentum", momenta, said=_whole),
    _field("window_weights", _kinds, of="kind", said=_as_json),
    _field("reduction", _some("sum", "mean")),
    _field("coupling", _couplings),
    _field("fast", _some("matrices", "all", "mlp"), of="which"),
    _field("vectors", _where(_has_vectors, "frozen", "raw", "unit")),
    _field("clip", _some("none", "hard", "soft")),
    _field("clip_norm", _where(lambda context: context.settings.clip != "none", *BOUNDS)),
    _field("adaptive", _where(lambda context: "in/step_size" in context.inputs, False, True)),
    _field(
        "outer_gradient", _where(_has_cotangent, "full", "first_order", "straight_through", "none")
    ),
    _field("unfinished", _some(False, True), of="flush", said={False: "wait", True: "flush"}.get),
    _field("memory_reset", _some("sequence", "batch", "never")),
    _field("momentum_reset", _some("sequence", "batch", "never")),
    _field("phase", _some(True, False), of="writes", said={False: "off", True: "both"}.get),
    _memory("activation", _where(_activates, "gelu", "gelu_tanh", "silu")),
    _memory(
        "gated",
        _where(lambda context: context.settings.function.gated, True, False),
        without="W_value",
    ),
    _memory(
        "residual_norm",
        _where(lambda context: context.settings.function.residual_norm, True, False),
        without="norm/gain",
    ),
    _memory("with_input", _where(_same_widths, False, True)),
    _memory("norm_eps", _where(_has_norms, *EPS)),
)
