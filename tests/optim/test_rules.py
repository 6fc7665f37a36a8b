"""Each optimiser is its definition in loops, with every setting, over several steps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atlas_ref.optim import adamuon, adamw, m3, muon, sgd
from atlas_ref.parts.newton_schulz import NewtonSchulz
from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.optimised import FALLS, MATRICES, drawn, rates, run
from tests.truth import optim_loops

RATE = {"rate": 0.05, "schedule": FALLS}


class Bound:
    """A definition in loops with its settings, which takes vectors or matrices."""

    def __init__(self, loop: Any, **settings: Any) -> None:
        self.loop, self.settings = loop, settings

    def __call__(self, p: Any, grads: Any, *, rates: Any) -> Any:
        if p and not isinstance(p[0], list) and self.loop is optim_loops.m3:
            settings = {**self.settings, "matrix": False}
            return self.loop([p], [[g] for g in grads], rates=rates, **settings)[0]
        return self.loop(p, grads, rates=rates, **self.settings)


def compare(config: Any, names: Any, by_hand: Bound) -> None:
    """Every parameter after seven steps, each matrix of a batch alone."""
    params, grads = drawn(names)
    found, state = run(config, params, grads)
    assert state.count == 7
    for name, p in params.items():
        taken = [g[name] for g in grads]
        shape = p.shape
        if p.ndim < 2 or by_hand.loop in (optim_loops.sgd, optim_loops.adamw):
            want: Any = _entries(by_hand, p, taken, config)
        else:
            want = np.empty(shape)
            for i in np.ndindex(shape[:-2]):
                want[i] = by_hand(
                    p[i].tolist(), [g[i].tolist() for g in taken], rates=rates(config, 7)
                )
        assert_close(name, found[name], np.reshape(want, shape), ANALYTIC)
        assert_differs(name, found[name], p, 1e-3)


def _entries(by_hand: Any, p: Any, grads: list[Any], config: Any) -> Any:
    flat = [g.reshape(-1).tolist() for g in grads]
    return by_hand(p.reshape(-1).tolist(), flat, rates=rates(config, 7))


@pytest.mark.clause("OPTIM-1", "OPTIM-8", "OPTIM-9")
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(
    ("momentum", "average", "nesterov"),
    [(0.0, "sum", False), *itertools.product([0.9], ["sum", "ema"], [False, True])],
)
def test_gradient_descent_is_its_definition_in_loops(
    momentum: float, average: Any, nesterov: bool, decay: float, decoupled: bool
) -> None:
    settings: dict[str, Any] = {
        "momentum": momentum,
        "average": average,
        "nesterov": nesterov,
        "decay": decay,
        "decoupled": decoupled,
    }
    compare(
        sgd.Config(**RATE, **settings), ("wide", "heads", "b"), Bound(optim_loops.sgd, **settings)
    )


@pytest.mark.clause("OPTIM-1", "OPTIM-10", "OPTIM-11")
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.999, 1e-8), (0.9, 0.95, 1e-3), (0.0, 0.99, 1e-8)])
def test_adamw_is_its_definition_in_loops(betas: Any, correct: bool, decoupled: bool) -> None:
    b1, b2, eps = betas
    settings = {"b1": b1, "b2": b2, "eps": eps, "correct": correct, "decoupled": decoupled}
    settings["decay"] = 0.2
    compare(
        adamw.Config(**RATE, **settings),
        ("wide", "heads", "b"),
        Bound(optim_loops.adamw, **settings),
    )


SCHULZ: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    (
        {"coefficients": "cubic", "guard": "clamp"},
        {"abc": (1.5, -0.5, 0.0), "guard": "clamp"},
    ),
    ({"scale": "norm", "steps": 3}, {"scale": "norm", "steps": 3}),
    ({"scale": "sqrt", "eps": 1e-3}, {"scale": "sqrt", "eps": 1e-3}),
)


@pytest.mark.clause("OPTIM-12", "OPTIM-13", "OPTIM-15", "OPTIM-16")
@pytest.mark.parametrize("schulz", SCHULZ, ids=lambda each: "-".join(map(str, each[0])) or "plain")
@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("average", ["ema", "sum"])
def test_muon_is_its_definition_in_loops(
    average: Any, nesterov: bool, correct: bool, schulz: Any
) -> None:
    settings: dict[str, Any] = {"average": average, "nesterov": nesterov, "correct": correct}
    settings |= {"decay": 0.1, "rms": 0.2 if correct else None, "momentum": 0.8}
    config = muon.Config(**RATE, **settings, newton_schulz=NewtonSchulz(**schulz[0]))
    compare(config, MATRICES, Bound(optim_loops.muon, **settings, **schulz[1]))


@pytest.mark.clause("OPTIM-18", "OPTIM-19")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"b1": 0.8, "b2": 0.9, "eps": 1e-3, "decay": 0.0},
        {"average": "sum"},
        {"correct": False},
        {"second": "update"},
        {"sign": True},
        {"align": 0.2},
    ],
    ids=str,
)
def test_adamuon_is_its_definition_in_loops(settings: dict[str, Any]) -> None:
    by_hand = Bound(optim_loops.adamuon, **settings, abc=(1.5, -0.5, 0.0), guard="clamp")
    compare(adamuon.Config(**RATE, **settings), MATRICES, by_hand)


@pytest.mark.clause("OPTIM-19")
def test_the_paper_s_adamuon_is_its_definition_in_loops() -> None:
    settings = {
        "average": "sum",
        "correct": False,
        "second": "update",
        "b2": 0.95,
        "sign": True,
        "align": 0.2,
    }
    config = adamuon.Config(**RATE, **adamuon.PRESETS["paper"])
    compare(config, MATRICES, Bound(optim_loops.adamuon, **settings))


@pytest.mark.clause("OPTIM-20", "OPTIM-22")
@pytest.mark.parametrize("takes", ["sum", "last"])
@pytest.mark.parametrize("second", [None, "all", "vectors"])
def test_m3_is_its_definition_in_loops(takes: Any, second: Any) -> None:
    scales = [(0.9, 0.1, 1, 1.0), (0.99, 0.5, 3, 0.7), (1.0, 0.2, 2, -0.3)]
    config = m3.Config(
        **RATE,
        decay=0.1,
        takes=takes,
        scales=tuple(
            m3.Scale(keep=keep, take=take, period=period, weight=weight)
            for keep, take, period, weight in scales
        ),
        second=None if second is None else m3.Second(keep=0.9, take=0.2, of=second, eps=1e-4),
    )
    settings = {"scales": scales, "takes": takes, "decay": 0.1, "scale": "norm"}
    divided = (0.9, 0.2, 1e-4)
    of_matrices = divided if second == "all" else None
    compare(config, MATRICES, Bound(optim_loops.m3, **settings, second=of_matrices))
    of_vectors = None if second is None else divided
    compare(config, ("b",), Bound(optim_loops.m3, **settings, second=of_vectors))


@pytest.mark.clause("OPTIM-21")
def test_m3_as_printed_forgets_nothing() -> None:
    config = m3.paper(rate=0.05, take=(0.3, 0.2), period=3, weight=0.5, second=0.1)
    by_hand = Bound(
        optim_loops.m3,
        scales=[(1.0, 0.3, 1, 1.0), (1.0, 0.2, 3, 0.5)],
        second=(1.0, 0.1, 1e-8),
    )
    compare(config, (*MATRICES, "b"), by_hand)


@pytest.mark.clause("OPTIM-12")
@pytest.mark.parametrize(("axes", "shape"), [("rows", (6, 4)), ("columns", (2, 12))])
@pytest.mark.parametrize("rule", ["muon", "adamuon", "m3"])
def test_heads_may_be_one_matrix(rule: str, axes: Any, shape: tuple[int, int]) -> None:
    """Axes of heads are a reshape around the rule; each head alone is another function."""
    settings: dict[str, Any] = {"rate": 0.1, "newton_schulz": NewtonSchulz(scale="sqrt")}
    settings |= {"muon": {"rms": 0.3}, "adamuon": {"align": 0.2}, "m3": {}}[rule]
    config_class: Any = {"muon": muon, "adamuon": adamuon, "m3": m3}[rule].Config
    params, grads = drawn(("heads",))
    found, _ = run(config_class(**settings, axes=axes), params, grads)
    as_matrix = lambda nest: {"heads": nest["heads"].reshape(shape)}  # noqa: E731
    want, _ = run(config_class(**settings), as_matrix(params), [as_matrix(g) for g in grads])
    assert_close(axes, found["heads"], want["heads"].reshape(2, 3, 4), ANALYTIC)
    each, _ = run(config_class(**settings), params, grads)
    assert_differs(axes, found["heads"], each["heads"], 1e-3)


@pytest.mark.clause("OPTIM-13")
def test_rms_gives_updates_of_orthogonal_matrices_that_size() -> None:
    """A quarter turn has singular values 1, and the cubic leaves them there."""
    exact = NewtonSchulz(coefficients="cubic", steps=30, eps=0.0)
    config = muon.Config(rate=1.0, rms=0.2, newton_schulz=exact)
    for shape in ((8, 3), (3, 8), (5, 5)):
        G = np.random.default_rng(1).standard_normal(shape)
        p, _ = run(config, {"W": np.zeros(shape)}, [{"W": G}])
        assert abs(np.sqrt(np.mean(p["W"] ** 2)) - 0.2) < 1e-12


@pytest.mark.clause("OPTIM-18")
def test_adamuon_doubles_where_gradients_are_halved() -> None:
    params, grads = drawn(MATRICES)
    config = adamuon.Config(rate=0.1, decay=0.0, eps=0.0)
    whole, _ = run(config, params, grads)
    half, _ = run(config, params, [{name: g / 2 for name, g in each.items()} for each in grads])
    for name, p in params.items():
        assert_close(name, half[name] - p, 2 * (whole[name] - p), ANALYTIC)
