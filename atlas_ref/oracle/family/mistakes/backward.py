"""Mistakes of the backward pass: values are right, and cotangents are not (VEC-16)."""

from __future__ import annotations

from collections.abc import Callable

from atlas_ref.oracle.family.mistake import Mistake, Seen
from atlas_ref.oracle.family.state import Inputs
from atlas_ref.types import Array
from tape import opaque, ops


def with_pullback(change: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The identity, whose pullback changes the cotangent."""

    def plain(x: Array) -> Array:
        return x

    return opaque(plain, lambda x: (x, None), lambda _, g: (change(g),))


_dropped = with_pullback(lambda g: 0.0 * g)
_doubled = with_pullback(lambda g: 2.0 * g)
_transposed = with_pullback(lambda g: g.swapaxes(-1, -2))


def _always(at: Seen) -> bool:
    return True


def _errors(at: Seen) -> bool:
    return at.structure.reference != "zero"


def _momentum(at: Seen) -> bool:
    return at.momentum


def _square(at: Seen) -> bool:
    return at.square


def _to(name: str, change: Callable[[Array], Array]) -> Callable[[Inputs], Inputs]:
    return lambda inputs: inputs._replace(**{name: change(getattr(inputs, name))})


def _has(name: str) -> Callable[[Seen], bool]:
    return lambda at: getattr(at.inputs, name) is not None


def _average(x: Array) -> Array:
    return with_pullback(lambda g: g / 2.0)(x)


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "dropped carry of dM",
        "dM does not pass the decay",
        _always,
        True,
        touch={"carried M": _dropped},
    ),
    Mistake(
        "dropped carry of dS",
        "dS does not pass the momentum",
        _momentum,
        True,
        touch={"carried S": _dropped},
    ),
    Mistake(
        "memory of the residual held fixed",
        "dM does not get what the residual owes",
        _errors,
        True,
        touch={"reference": _dropped},
    ),
    Mistake(
        "spurious transpose in a backward",
        "what the residual owes to the memory is transposed",
        lambda at: _errors(at) and at.square,
        True,
        touch={"reference": _transposed},
    ),
    Mistake(
        "dM transposed",
        "dM is transposed where the memory decays",
        _square,
        True,
        touch={"carried M": _transposed},
    ),
    Mistake(
        "dS transposed",
        "dS is transposed where the momentum decays",
        lambda at: at.square and at.momentum,
        True,
        touch={"carried S": _transposed},
    ),
    Mistake(
        "inner gradient held fixed",
        "nothing passes the inner gradient",
        _always,
        True,
        touch={"gradient": _dropped},
    ),
    Mistake(
        "residual held fixed",
        "nothing passes the residual",
        _always,
        True,
        touch={"residual": _dropped},
    ),
    Mistake(
        "factor 2 in the residual's backward",
        "the residual gets twice what it should",
        _always,
        True,
        touch={"residual": _doubled},
    ),
    Mistake(
        "read held fixed",
        "dM does not get what the read owes",
        _always,
        True,
        touch={"read": _dropped},
    ),
    Mistake(
        "dM0 dropped",
        "the initial memory has no gradient",
        _always,
        True,
        inputs=_to("M0", _dropped),
    ),
    Mistake(
        "dS0 dropped",
        "the initial momentum has no gradient",
        _momentum,
        True,
        inputs=_to("S0", _dropped),
    ),
    Mistake(
        "retain's gradient halved",
        "the retain gate gets half of what it should",
        _has("retain"),
        True,
        inputs=_to("retain", _average),
    ),
    Mistake(
        "momentum's gradient halved",
        "the momentum gate gets half of what it should",
        _momentum,
        True,
        inputs=_to("momentum", _average),
    ),
    Mistake(
        "weights' gradient dropped",
        "window weights have no gradient",
        lambda at: (
            at.structure.window > 1
            and bool({"in/window_weights", "in/window_gate"} & set(at.case.inputs))
        ),
        True,
        inputs=_to("weights", ops.stop_gradient),
    ),
    Mistake(
        "initial window's gradient dropped",
        "initial window tokens have no gradient",
        lambda at: at.history > 0 and at.structure.order == "window_then_momentum",
        True,
        inputs=lambda inputs: inputs._replace(
            window_keys=_dropped(inputs.window_keys), window_targets=_dropped(inputs.window_targets)
        ),
    ),
)
