"""Mistakes in the bias, the retention or the network of a write: each is made, and named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.deep import program
from atlas_ref.oracle.deep.program import SEARCHED
from atlas_ref.oracle.deep.readings import listed
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.program.run import exact
from atlas_ref.vectors.inputs.axes.deep import DEEP_AXES
from atlas_ref.vectors.inputs.deep_targets import DEEP
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.inputs.targets import by_name, topic_named
from tests.support import deep_cases
from tests.support.close import ANALYTIC, assert_close
from tests.support.plain_loops import PLAINLY
from tests.support.remembered import remembered
from tests.truth import deep_knob_mistakes as loops

__all__ = ["remembered"]

#: A program that adds in another order than the library.
OTHER = exact(Arithmetic("as a tree", "pairwise"))

#: Mistake -> a target and a topic whose case shows it.
SHOWN = {
    "power of the error not lowered": ("lp", "square"),
    "power left out of the slope": ("lp", "square"),
    "threshold left out of the slope": ("huber-coordinate", "square"),
    "branches of the threshold exchanged": ("huber-norm", "square"),
    "threshold of the squared norm": ("huber-norm", "square"),
    "threshold of the largest entry": ("yaad", "square"),
    "threshold ignored": ("thresholds", "square"),
    "threshold of the token before": ("thresholds", "square"),
    "threshold of the last token": ("thresholds", "square"),
    "thresholds from before ignored": ("thresholds", "resumed"),
    "prediction without its softmax": ("kullback-leibler", "square"),
    "sign of the error held fixed": ("l1", "gradient"),
    "norm of the error held fixed": ("huber-norm", "gradient"),
    "threshold held fixed": ("thresholds", "gradient"),
    "soft threshold before the decay": ("elastic-net", "square"),
    "hard threshold": ("elastic-net", "square"),
    "threshold carried by writes": ("ftrl", "square"),
    "projection at the reads alone": ("sphere", "square"),
    "projection before the step": ("sphere", "square"),
    "squared norm of the sphere": ("sphere", "square"),
    "softmax without its sum": ("memora", "square"),
    "weights without their logarithm": ("simplex", "square"),
    "weights of 0 come back": ("simplex", "square"),
    "reads without the link": ("lq", "square"),
    "gradients without the link": ("ftrl", "square"),
    "norm of the link without its root": ("moneta", "square"),
    "lag token at the end of its span": ("lag", "square"),
    "reference before the lag token": ("lag", "square"),
    "norm of the sphere held fixed": ("sphere", "gradient"),
    "norm of the link held fixed": ("lq", "gradient"),
    "network mapped before it learned": ("deep-momentum", "square"),
    "objective without its half": ("deep-momentum", "square"),
    "objective as a mean": ("deep-momentum", "square"),
    "network of unit gradients": ("deep-momentum", "square"),
    "entries column by column": ("deep-momentum", "square"),
}
EVERY = (*listed.KNOBS, *listed.MOMENTA)


def case_of(name: str, topic: str) -> Any:
    """The first draw of a topic of a target."""
    target = by_name("target", name, (*DEEP, *DEEP_AXES))
    return drawn(target, topic_named(target, topic), 0)


def case_with(mistake: str) -> Any:
    """The case that shows a mistake, in float64."""
    target, topic = SHOWN[mistake]
    case = case_of(f"deep_memory-{target}", topic)
    wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in case.inputs.items()}
    return atlas_ref.make(case.header.plain(), wide)


def test_every_mistake_has_a_case_that_shows_it() -> None:
    assert {each.name for each in EVERY} == SHOWN.keys()
    assert len({each.name for each in listed.MISTAKES}) == len(listed.MISTAKES)


@pytest.mark.clause("DEEPCASE-15", "IDENT-14")
@pytest.mark.sample(6)
@pytest.mark.parametrize("mistake", SHOWN)
def test_a_mistake_of_a_knob_is_named(mistake: str) -> None:
    case = case_with(mistake)
    (each,) = [one for one in SEARCHED.departures(case) if one.name == mistake]
    if each.grad:
        found = ensemble.evaluate(
            case,
            convert(case, "float64"),
            OTHER.way,
            grad=True,
            plain=lambda inputs, of, rounding: program.run(inputs, of, rounding, (each,)),
        )
    else:
        found = program.run(convert(case, "float64"), case, OTHER, [each])
    kept = ("out/y", "out/state/weights/", "grad/" if each.grad else "out/y")
    mine = {name: np.asarray(x) for name, x in found.items() if name.startswith(kept)}
    answer = identify(case, mine)
    assert each.words in [departed.words for departed in answer.departures], answer.why


@pytest.mark.clause("DEEPCASE-15")
@pytest.mark.parametrize(
    "name", ["weights of the window left out", "weights of the window squared"]
)
def test_weights_of_a_window_can_be_wrong_beside_thresholds(name: str) -> None:
    case = case_with("threshold ignored")
    gate = np.full(case.inputs["in/threshold"].shape, 0.5)
    case = case.replaced(inputs={**case.inputs, "in/window_gate": gate})
    (each,) = [one for one in SEARCHED.departures(case) if one.name == name]
    inputs = convert(case, "float64")
    wrong, right = (program.run(inputs, case, OTHER, chosen) for chosen in ([each], []))
    assert np.abs(wrong["out/y"] - right["out/y"]).max() > 1e-6


@pytest.mark.clause("DEEPCASE-15")
@pytest.mark.parametrize("target", DEEP_AXES, ids=lambda target: target.name)
def test_a_mistake_is_made_where_its_axis_is(target: Any) -> None:
    """Of older memories none of them can be made."""
    names = {each.name for each in listed.KNOBS}
    made = {each.name for each in SEARCHED.departures(case_of(target.name, "gradient"))} & names
    assert made or "deep_momentum" in target.request["parameters"]
    assert not names & {
        each.name for each in SEARCHED.departures(case_of("deep_memory", "gradient"))
    }


HUBER: dict[str, Any] = {"kind": "huber", "threshold": 0.5, "smoothing": "root", "eps": 0.1}
POWER: dict[str, Any] = {"kind": "lp", "power": 2.5, "smoothing": "tanh", "sharpness": 3.0}
LQ: dict[str, Any] = {"kind": "lq", "power": 3.0}
LAG: dict[str, Any] = {"kind": "kl", "over": "row", "lag": True}

#: Settings of a matrix memory, and the mistakes that a literal loop makes of them too.
LITERAL: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"bias": POWER}, ("power of the error not lowered", "power left out of the slope")),
    (
        {"bias": {**HUBER, "form": "coordinate"}},
        ("threshold left out of the slope", "branches of the threshold exchanged"),
    ),
    (
        {"bias": {"kind": "huber", "form": "norm", "threshold": 2.0, "quadratic": "whole"}},
        ("threshold left out of the slope", "threshold of the squared norm"),
    ),
    (
        {"bias": {**HUBER, "threshold": 2.0}},
        ("threshold of the largest entry", "branches of the threshold exchanged"),
    ),
    (
        {"bias": HUBER, "thresholds": True},
        ("threshold ignored", "threshold of the token before", "threshold of the last token"),
    ),
    ({"bias": {"kind": "kl"}}, ("prediction without its softmax",)),
    (
        {"retention": {"kind": "elastic_net", "threshold": 0.1}},
        ("soft threshold before the decay", "hard threshold"),
    ),
    (
        {"retention": {"kind": "sphere", "over": "row"}},
        (
            "projection at the reads alone",
            "projection before the step",
            "squared norm of the sphere",
        ),
    ),
    (
        {"retention": {"kind": "kl", "over": "column"}},
        (
            "softmax without its sum",
            "weights without their logarithm",
            "weights of 0 come back",
        ),
    ),
    (
        {"retention": {"kind": "ftrl", "threshold": 0.1}},
        (
            "threshold carried by writes",
            "hard threshold",
            "reads without the link",
            "gradients without the link",
        ),
    ),
    (
        {"retention": LQ},
        (
            "norm of the link without its root",
            "reads without the link",
            "gradients without the link",
        ),
    ),
    ({"retention": {**LQ, "link": "mirror"}}, ("norm of the link without its root",)),
    (
        {"retention": LAG, "span": 4},
        ("lag token at the end of its span", "reference before the lag token"),
    ),
)
MADE = [(n, mistake) for n, (_, each) in enumerate(LITERAL) for mistake in ("", *each)]


def matrix_case(settings: dict[str, Any]) -> Any:
    """A case of a matrix in chunks of two tokens, one row."""
    own = {key: value for key, value in settings.items() if key != "thresholds"}
    axes = {"reference": "chunk_start"} if "span" in settings else {}
    case = deep_cases.made(
        tokens=8,
        d_in=3,
        d_out=3,
        heads=1,
        cotangent=False,
        convention={"newton_schulz": "none", **axes},
        parameters={"memory": {"kind": "linear"}, "chunk": 2, "window": 3, **own},
    )
    inputs = dict(case.inputs)
    if "thresholds" in settings:
        inputs["in/threshold"] = np.random.default_rng(3).uniform(
            0.2, 1.5, inputs["in/k"].shape[:2]
        )
    if settings.get("retention", {}).get("kind") == "kl":
        inputs["in/memory/W"] = inputs["in/memory/W"].copy()
        inputs["in/memory/W"][..., 1, 0] = 0.0
    return atlas_ref.make(case.header.plain(), inputs)


def stated(case: Any) -> Any:
    """The settings of a case with every default."""
    s = program.program_and_settings(case)[1]
    return SimpleNamespace(
        chunk=s.chunk,
        window=s.window,
        span=s.span,
        bias=s.bias.model_dump(),
        retention=s.retention.model_dump(),
    )


@pytest.mark.clause("DEEPCASE-15", "DEEP-27", "DEEP-28", "DEEP-31", "DEEP-32", "DEEP-33", "DEEP-39")
@pytest.mark.parametrize(("number", "mistake"), MADE, ids=str)
def test_a_mistake_is_that_of_a_literal_loop(number: int, mistake: str) -> None:
    case = matrix_case(LITERAL[number][0])
    chosen = [each for each in SEARCHED.departures(case) if each.name == mistake]
    assert len(chosen) == bool(mistake)
    found = program.run(convert(case, "float64"), case, PLAINLY, chosen)
    rows = {name: x[0] for name, x in case.inputs.items() if name != "in/memory/W"}
    x = {name.removeprefix("in/"): value for name, value in rows.items()}
    x["W"] = np.broadcast_to(case.inputs["in/memory/W"], (1, 3, 3))[0]
    y, W = loops.run(x, stated(case), mistake)
    assert_close("y", found["out/y"][0], y, ANALYTIC)
    assert_close("W", found["out/state/weights/W"][0], W, ANALYTIC)
    if mistake:
        assert np.abs(y - loops.run(x, stated(case))[0]).max() > 1e-3
