"""The axes on which a deep memory is identified, with the values that are tried (DEEPCASE-14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

from atlas_ref.conventions import Convention
from atlas_ref.oracle.deep.readings.knobs import biases, momenta, retentions
from atlas_ref.oracle.deep.readings.reading import Axis, Seen
from atlas_ref.oracle.deep.settings import Settings, rank
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
    values: Callable[[Seen], Sequence[Any]],
    *,
    of: str = "",
    said: Callable[[Any], Any] = lambda value: value,
) -> Axis:
    """A field of the settings.

    Args:
        of: its name there, where it is another.
        said: a value as a case states it.
    """
    field = of or name
    return Axis(
        f"parameters.{name}",
        values,
        lambda s: getattr(s, field),
        lambda s, value: s._replace(**{field: value}),
        lambda value: (f"parameters.{name}", said(value)),
    )


def _some(*values: Any) -> Callable[[Seen], Sequence[Any]]:
    return lambda at: values


def _memory(name: str, values: Callable[[Seen], Sequence[Any]], *, without: str = "") -> Axis:
    """A setting of the memory function.

    Args:
        without: a tensor that it has no more.
    """

    def put(s: Settings, value: Any) -> Settings:
        names = tuple(each for each in s.names if each != without)
        return s._replace(function=s.function.replaced(**{name: value}), names=names)

    return Axis(f"parameters.memory.{name}", values, lambda s: getattr(s.function, name), put)


def _convention(axis: str, values: Callable[[Seen], Sequence[Any]] | None = None) -> Axis:
    listed = values or _some(*get_args(Convention.model_fields[axis].annotation))
    return Axis(axis, listed, lambda s: getattr(s.c, axis), lambda s, value: _put(s, axis, value))


def _put(s: Settings, axis: str, value: Any) -> Settings:
    """Another value of an axis, with a span of one chunk where that needs one and none is stated."""
    span = s.span or (s.chunk if value == "chunk_start" else 0)
    return s._replace(c=s.c.replaced(**{axis: value}), span=span)


def _of_newton_schulz(key: str) -> Axis:
    def get(s: Settings) -> Any:
        return getattr(s.c.newton_schulz, key, None)

    def put(s: Settings, value: Any) -> Settings:
        settings = s.c.newton_schulz_settings.replaced(**{key: value})
        return s._replace(c=s.c.replaced(newton_schulz=settings))

    def values(at: Seen) -> Sequence[Any]:
        return NEWTON_SCHULZ[key] if at.s.c.has_newton_schulz else ()

    return Axis(f"newton_schulz.{key}", values, get, put)


def _chunks(at: Seen) -> Sequence[int]:
    return sorted({*(each for each in CHUNKS if each <= at.tokens), at.tokens, at.s.chunk})


def _windows(at: Seen) -> Sequence[int]:
    s, T = at.s, at.tokens + at.held
    near = {s.window - 1, s.window, s.window + 1, s.chunk, 2 * s.chunk, T}
    most = s.window if "in/window_weights" in at.inputs else T
    return sorted(each for each in {*CHUNKS, *near} if 1 <= each <= most)


def _spans(at: Seen) -> Sequence[int]:
    if "chunk_start" not in (at.s.c.reference, at.s.c.read):
        return ()
    return [each * at.s.chunk for each in (1, 2, 3, 4)]


def _kinds(at: Seen) -> Sequence[Any]:
    if "in/window_weights" in at.inputs or at.s.window == 1:
        return ()
    return (Ones(), Uniform(), *(Decay(base=base) for base in BASES))


def _rates(at: Seen) -> Sequence[str]:
    if "in/step_size" not in at.inputs:
        return ("none",)
    both = ("momentum", "memory", "both", "none")
    return (*both, "split") if "in/step_size_memory" in at.inputs else both


def _couplings(at: Seen) -> Sequence[str]:
    k = at.inputs["in/k"]
    fresh = not any(name.startswith("in/state/") for name in at.inputs)
    return ("per_sample", "batch_shared") if k.ndim > 2 and len(k) > 1 and fresh else ()


def _where(condition: Callable[[Seen], bool], *values: Any) -> Callable[[Seen], Sequence[Any]]:
    return lambda at: values if condition(at) else ()


def _has_norms(at: Seen) -> bool:
    return any(name.endswith(("gain", "bias")) for name in at.s.names)


def _norms_keys(at: Seen) -> bool:
    return (at.s.c.q_norm, at.s.c.k_norm) != ("none", "none")


def _has_vectors(at: Seen) -> bool:
    return any(rank(name) < 2 for name in at.s.names)


def _activates(at: Seen) -> bool:
    f = at.s.function
    return f.kind == "polynomial" or (f.kind == "mlp" and f.depth > 1)


def _same_widths(at: Seen) -> bool:
    return bool(at.inputs["in/k"].shape[-1] == at.inputs["in/v"].shape[-1])


def _graded(at: Seen) -> bool:
    return "in/y_bar" in at.inputs


def _as_json(value: Any) -> Any:
    """Settings as an object of JSON; numbers that another reading has put there as a list."""
    if isinstance(value, tuple):
        return [float(each) for each in value]
    return value.model_dump(mode="json", exclude_defaults=False)


def _chosen(value: Any) -> Any:
    """Settings that are not their defaults, and the kind, as an object of JSON."""
    return {"kind": value.kind, **value.model_dump(mode="json", exclude_defaults=True)}


def _whole(value: Any) -> Any:
    """A network in the place of the momentum as an object of JSON."""
    return {"function": _chosen(value.function), "objective": value.objective}


def _newton_schulz(at: Seen) -> Sequence[Any]:
    return ("none", at.s.c.newton_schulz if at.s.c.has_newton_schulz else NewtonSchulz())


#: Every axis, those of the convention first.
AXES: tuple[Axis, ...] = (
    _convention("gate", _where(lambda at: "in/retain" in at.inputs, "retain", "forget", "none")),
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
    Axis(
        "newton_schulz",
        _newton_schulz,
        lambda s: s.c.newton_schulz,
        lambda s, value: _put(s, "newton_schulz", value),
        lambda value: ("newton_schulz", value if value == "none" else {}),
    ),
    *map(_of_newton_schulz, NEWTON_SCHULZ),
    _field("chunk", _chunks),
    _field("window", _windows),
    _field("span", _spans),
    _field("bias", biases, said=_chosen),
    _field("retention", retentions, said=_chosen),
    _field("deep_momentum", momenta, said=_whole),
    _field("window_weights", _kinds, of="kind", said=_as_json),
    _field("reduction", _some("sum", "mean")),
    _field("coupling", _couplings),
    _field("fast", _some("matrices", "all", "mlp"), of="which"),
    _field("vectors", _where(_has_vectors, "frozen", "raw", "unit")),
    _field("clip", _some("none", "hard", "soft")),
    _field("clip_norm", _where(lambda at: at.s.clip != "none", *BOUNDS)),
    _field("adaptive", _where(lambda at: "in/step_size" in at.inputs, False, True)),
    _field("outer_gradient", _where(_graded, "full", "first_order", "straight_through", "none")),
    _field("unfinished", _some(False, True), of="flush", said={False: "wait", True: "flush"}.get),
    _field("memory_reset", _some("sequence", "batch", "never")),
    _field("momentum_reset", _some("sequence", "batch", "never")),
    _field("phase", _some(True, False), of="writes", said={False: "off", True: "both"}.get),
    _memory("activation", _where(_activates, "gelu", "gelu_tanh", "silu")),
    _memory("gated", _where(lambda at: at.s.function.gated, True, False), without="W_value"),
    _memory(
        "residual_norm",
        _where(lambda at: at.s.function.residual_norm, True, False),
        without="norm/gain",
    ),
    _memory("with_input", _where(_same_widths, False, True)),
    _memory("norm_eps", _where(_has_norms, *EPS)),
)
