"""Optimisers that are the same function, each with twins in which one condition is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from atlas_ref.optim import adamuon, adamw, groups, m3, muon, sgd
from atlas_ref.parts.newton_schulz import NewtonSchulz
from tests.support.close import Tolerance, assert_close, assert_differs, relative_error
from tests.support.optimised import FALLS, MATRICES, SHAPES, drawn, run

RATE: dict[str, Any] = {"rate": 0.05, "schedule": FALLS}
#: Relative, of what a step changed; Newton-Schulz multiplies the rounding of its argument.
SAME, DIFFERENT = Tolerance("SAME", 2e-11), 1e-4

Side = Callable[[dict[str, Any], list[dict[str, Any]]], dict[str, Any]]


def of(config: Any) -> Side:
    """One side of a row: an optimiser run over all gradients."""
    return lambda params, grads: run(config, params, grads)[0]


def grouped(period: int = 1, clip: float | None = None, **more: Any) -> Side:
    """AdamW in a group."""

    def side(params: Any, grads: Any) -> Any:
        rule = adamw.Config(**RATE, **more)
        only = groups.Group(name="all", optimiser=rule, period=period)
        limit = None if clip is None else groups.Clip(limit=clip)
        config = groups.Config(groups=(only,), clip=limit)
        state = groups.init(config, params)
        for step, g in enumerate(grads):
            params, state = groups.update(config, state, params, g, step)
        return params

    return side


def steps_of(direction: Callable[[Any], Any]) -> Side:
    """p - rate direction(g), by hand."""

    def side(params: Any, grads: Any) -> Any:
        for step, g in enumerate(grads):
            rate = 0.05 * FALLS.factor(step)
            params = {name: p - rate * direction(g[name]) for name, p in params.items()}
        return params

    return side


class Row(NamedTuple):
    """A reduction: two sides that agree, and twins of the left side that must not.

    Attributes:
        twins: which condition is broken -> the left side without it, or with gradients of another
            kind.
        signs: whether the gradients are 1 and -1.
    """

    statement: str
    left: Side
    right: Side
    twins: dict[str, Side | str]
    names: tuple[str, ...] = MATRICES
    signs: bool = False


ALL = tuple(SHAPES)
NO_NS: dict[str, Any] = {"newton_schulz": None}
EXACT_NS = NewtonSchulz(eps=0.0)
ONE: dict[str, Any] = {"second": None, "newton_schulz": NewtonSchulz()}


def one_scale(**changes: Any) -> tuple[m3.Scale, ...]:
    return (m3.Scale(**{"keep": 0.9, "take": 1.0 - 0.9, **changes}),)


ROWS: dict[str, Row] = {
    "sgd_without_momentum": Row(
        "gradient descent with momentum 0 is p - rate g",
        of(sgd.Config(**RATE)),
        steps_of(lambda g: g),
        {
            "a momentum": of(sgd.Config(**RATE, momentum=0.5)),
            "a decay": of(sgd.Config(**RATE, decay=0.1)),
        },
        ALL,
    ),
    "sgd_average_without_momentum": Row(
        "without momentum an average is a sum",
        of(sgd.Config(**RATE, average="ema")),
        of(sgd.Config(**RATE, average="sum")),
        {"a momentum": of(sgd.Config(**RATE, average="ema", momentum=0.5))},
        ALL,
    ),
    "sgd_decays": Row(
        "without momentum the two decays are one",
        of(sgd.Config(**RATE, decay=0.2, decoupled=True)),
        of(sgd.Config(**RATE, decay=0.2)),
        {"another decay": of(sgd.Config(**RATE, decay=0.3, decoupled=True))},
        ALL,
    ),
    "adamw_without_memory": Row(
        "AdamW that remembers nothing moves by the sign of the gradient",
        of(adamw.Config(**RATE, b1=0.0, b2=0.0, eps=0.0)),
        steps_of(np.sign),
        {
            "a first moment": of(adamw.Config(**RATE, b1=0.5, b2=0.0, eps=0.0)),
            "a second moment": of(adamw.Config(**RATE, b1=0.0, b2=0.5, eps=0.0)),
            "an eps": of(adamw.Config(**RATE, b1=0.0, b2=0.0, eps=1e-2)),
            "a decay": of(adamw.Config(**RATE, b1=0.0, b2=0.0, eps=0.0, decay=0.1)),
        },
        ALL,
    ),
    "adamw_decays": Row(
        "without decay AdamW is Adam",
        of(adamw.Config(**RATE, decoupled=False)),
        of(adamw.Config(**RATE)),
        {"a decay": of(adamw.Config(**RATE, decoupled=False, decay=0.1))},
        ALL,
    ),
    "muon_without_newton_schulz": Row(
        "Muon without Newton-Schulz is gradient descent with its momentum",
        of(muon.Config(**RATE, **NO_NS, average="sum", nesterov=True, decay=0.1)),
        of(sgd.Config(**RATE, momentum=0.95, nesterov=True, decay=0.1, decoupled=True)),
        {
            "another average": of(muon.Config(**RATE, **NO_NS, nesterov=True, decay=0.1)),
            "no Nesterov": of(muon.Config(**RATE, **NO_NS, average="sum", decay=0.1)),
            "Newton-Schulz": of(muon.Config(**RATE, average="sum", nesterov=True, decay=0.1)),
            "no steps, with the division by the norm": of(
                muon.Config(
                    **RATE,
                    average="sum",
                    nesterov=True,
                    decay=0.1,
                    newton_schulz=NewtonSchulz(coefficients=((1.0, 0.0, 0.0),), steps=1),
                )
            ),
        },
    ),
    "muon_averages": Row(
        "Muon of an average is Muon of a sum",
        of(muon.Config(**RATE, nesterov=True, newton_schulz=EXACT_NS)),
        of(muon.Config(**RATE, nesterov=True, average="sum", newton_schulz=EXACT_NS)),
        {
            "an eps": of(muon.Config(**RATE, nesterov=True, newton_schulz=NewtonSchulz(eps=1e-2))),
            "scale norm": of(
                muon.Config(**RATE, nesterov=True, newton_schulz=NewtonSchulz(eps=0, scale="norm"))
            ),
            "divisors": of(
                muon.Config(**RATE, nesterov=True, correct=True, newton_schulz=EXACT_NS)
            ),
        },
    ),
    "muon_divisors": Row(
        "without Nesterov divisors change no direction",
        of(muon.Config(**RATE, correct=True, newton_schulz=EXACT_NS)),
        of(muon.Config(**RATE, newton_schulz=EXACT_NS)),
        {
            "an eps": of(muon.Config(**RATE, correct=True, newton_schulz=NewtonSchulz(eps=1e-2))),
            "Nesterov": of(
                muon.Config(**RATE, correct=True, nesterov=True, newton_schulz=EXACT_NS)
            ),
        },
    ),
    "adamuon_without_newton_schulz": Row(
        "AdaMuon without Newton-Schulz is AdamW",
        of(adamuon.Config(**RATE, **NO_NS)),
        of(adamw.Config(**RATE, b1=0.95, decay=0.1)),
        {
            "Newton-Schulz": of(adamuon.Config(**RATE)),
            "no steps, with the division by the norm": of(
                adamuon.Config(
                    **RATE, newton_schulz=NewtonSchulz(coefficients=((1.0, 0.0, 0.0),), steps=1)
                )
            ),
            "squares of the update": of(adamuon.Config(**RATE, **NO_NS, second="update")),
            "another b1": of(adamuon.Config(**RATE, **NO_NS, b1=0.9)),
        },
    ),
    "adamuon_of_signs": Row(
        "AdaMuon of gradients 1 and -1 is Muon",
        of(adamuon.Config(**RATE, decay=0.0, eps=0.0)),
        of(
            muon.Config(
                **RATE,
                correct=True,
                newton_schulz=NewtonSchulz(coefficients="cubic", guard="clamp"),
            )
        ),
        {
            "gradients of any size": "drawn",
            "no divisors": of(adamuon.Config(**RATE, decay=0.0, eps=0.0, correct=False)),
            "an eps": of(adamuon.Config(**RATE, decay=0.0, eps=1e-2)),
        },
        signs=True,
    ),
    "adamuon_without_memory": Row(
        "AdaMuon that remembers no square divides Muon's update by |g|",
        of(adamuon.Config(**RATE, decay=0.0, eps=0.0, b1=0.0, b2=0.0)),
        steps_of(lambda g: _cubic(g) / np.abs(g)),
        {
            "a second moment": of(adamuon.Config(**RATE, decay=0.0, eps=0.0, b1=0.0, b2=0.5)),
            "a decay": of(adamuon.Config(**RATE, decay=0.1, eps=0.0, b1=0.0, b2=0.0)),
        },
    ),
    "m3_of_one_scale": Row(
        "M3 with one scale is Muon",
        of(m3.Config(**RATE, **ONE, scales=one_scale())),
        of(muon.Config(**RATE, momentum=0.9)),
        {
            "a period": of(m3.Config(**RATE, **ONE, scales=one_scale(period=2))),
            "a weight": of(m3.Config(**RATE, **ONE, scales=one_scale(weight=0.5))),
            "another share": of(m3.Config(**RATE, **ONE, scales=one_scale(keep=0.5))),
            "scale norm": of(m3.Config(**RATE, second=None, scales=one_scale())),
            "a second moment": of(
                m3.Config(
                    **RATE,
                    newton_schulz=NewtonSchulz(),
                    scales=one_scale(),
                    second=m3.Second(keep=0.999, take=0.001),
                )
            ),
        },
    ),
    "m3_without_the_slow": Row(
        "M3 whose slow scale has weight 0 is M3 without it",
        of(
            m3.Config(
                **RATE, scales=(*one_scale(), m3.Scale(keep=0.99, take=0.5, period=2, weight=0.0))
            )
        ),
        of(m3.Config(**RATE, scales=one_scale())),
        {
            "a weight": of(
                m3.Config(
                    **RATE,
                    scales=(*one_scale(), m3.Scale(keep=0.99, take=0.5, period=2, weight=0.1)),
                )
            ),
        },
        ALL,
    ),
    "a_group_of_period_1": Row(
        "a group that moves at every step is its optimiser alone",
        grouped(),
        of(adamw.Config(**RATE)),
        {"a period": grouped(period=2), "clipping": grouped(clip=0.1, eps=0.1)},
        ALL,
    ),
}


def _cubic(g: Any) -> Any:
    """Five cubic steps of each matrix by its singular values."""
    u, s, v = np.linalg.svd(g, full_matrices=False)
    s = s / np.sqrt(np.sum(s**2, axis=-1, keepdims=True))
    for _ in range(5):
        s = 1.5 * s - 0.5 * s**3
    return (u * s[..., None, :]) @ v


def inputs(row: Row, *, signs: bool) -> tuple[Any, Any]:
    params, grads = drawn(row.names)
    if signs:
        grads = [{name: np.sign(g) for name, g in each.items()} for each in grads]
    return params, grads


def moved(side: Side, params: Any, grads: Any) -> Any:
    """What a run changed, as one vector."""
    after = side(params, grads)
    return np.concatenate([np.reshape(after[name] - p, -1) for name, p in params.items()])


@pytest.mark.clause("OPTIM-34")
@pytest.mark.parametrize("name", ROWS)
def test_two_sides_are_one_function(name: str, record_property: Any) -> None:
    row = ROWS[name]
    at = inputs(row, signs=row.signs)
    left, right = moved(row.left, *at), moved(row.right, *at)
    assert_close(name, left, right, SAME)
    record = {
        "id": name,
        "place": str(1000 + list(ROWS).index(name)),
        "statement": row.statement,
        "agrees": relative_error(left, right),
    }
    record_property("reductions", json.dumps(record))


@pytest.mark.clause("OPTIM-34")
@pytest.mark.parametrize(
    ("name", "broken"), [(name, broken) for name, row in ROWS.items() for broken in row.twins]
)
def test_without_one_condition_they_differ(name: str, broken: str, record_property: Any) -> None:
    row = ROWS[name]
    twin = row.twins[broken]
    at = inputs(row, signs=row.signs and twin != "drawn")
    left = moved(row.left if isinstance(twin, str) else twin, *at)
    right = moved(row.right, *at)
    assert_differs(f"{name}: {broken}", left, right, DIFFERENT)
    record = {
        "id": name,
        "place": str(1000 + list(ROWS).index(name)),
        "broken": broken,
        "differs": relative_error(left, right),
    }
    record_property("reductions", json.dumps(record))
