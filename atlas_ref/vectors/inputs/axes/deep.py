"""Targets of the rule deep_memory on axes that came after its published targets (VEC-26)."""

from __future__ import annotations

from typing import Any

from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import SQUARE, TALL, WIDE, Topic

#: Calls of one memory whose gradients are recorded.
ONE = {**SQUARE, "heads": 1}

#: Topics of an axis: shapes, documents, calls that go on, gates at their ends, gradients.
TOPICS = (
    Topic("tall", {**TALL, "heads": 1}),
    Topic("wide", {**WIDE, "tokens": 7}),
    Topic("square", SQUARE),
    Topic("packed", {**SQUARE, "tokens": 8, "pulse": 2, "reset": 5}, ("history",)),
    Topic("resumed", SQUARE, ("history",)),
    Topic("edges", SQUARE, ("edges",)),
    Topic("gradient", {**ONE, "tokens": 6}, grad=True),
    Topic("gradient-resumed", {**ONE, "tokens": 6}, ("history",), grad=True),
)

#: Topics of a preset, whose writes look at one token and have no momentum.
PRESET_TOPICS = (
    Topic("square", SQUARE, ("without momentum",)),
    Topic("packed", {**SQUARE, "tokens": 8, "reset": 5}, ("without momentum", "from before")),
    Topic("resumed", SQUARE, ("without momentum", "from before")),
    Topic("edges", SQUARE, ("without momentum", "edges")),
    Topic("gradient", {**ONE, "tokens": 6}, ("without momentum",), grad=True),
    Topic("gradient-resumed", {**ONE, "tokens": 5}, ("without momentum", "from before"), grad=True),
)

#: A matrix, whose errors and weights show an axis by themselves; a function of two of them.
MATRIX = {"kind": "linear"}
PERCEPTRON = {"kind": "mlp", "expansion": 1.0}

#: The function of MIRAS, with fewer hidden units than its four times as many.
MIRAS = {"kind": "mlp", "expansion": 1.5, "residual_norm": True}


def _target(
    name: str, parameters: dict[str, Any], convention: Any = None, *without: str, **more: Any
) -> Target:
    """A target of some axes, without Newton-Schulz, which hides the size of a gradient."""
    fields = {
        "rule": "deep_memory",
        "parameters": {"memory": MATRIX, "chunk": 2, "window": 3, **parameters},
        "convention": {"newton_schulz": "none", **(convention or {})},
        **more,
    }
    return Target(f"deep_memory-{name}", fields, TOPICS, without, longer=(), later=True)


def _preset(name: str, bias: dict[str, Any], retention: dict[str, Any]) -> Target:
    """A preset of MIRAS with shorter spans than its 16 tokens."""
    own = {"memory": MIRAS, "chunk": 1, "window": 1, "span": 3}
    target = _target(
        name, {**own, "bias": bias, "retention": retention}, {"reference": "chunk_start"}
    )
    return target._replace(listed=PRESET_TOPICS)


def _thresholds(name: str, parameters: dict[str, Any]) -> Target:
    """A target whose tokens bring thresholds."""
    target = _target(name, parameters)
    topics = (each._replace(regimes=(*each.regimes, "thresholds")) for each in target.listed)
    return target._replace(listed=tuple(topics))


#: Numbers are such that entries fall on both sides of a threshold, and other numbers show.
DEEP_AXES = (
    _preset("moneta", {"kind": "lp"}, {"kind": "lq"}),
    _preset("yaad", {"kind": "huber"}, {"kind": "l2"}),
    _preset("memora", {"kind": "l2"}, {"kind": "kl"}),
    _target("l1", {"bias": {"kind": "l1", "sharpness": 2.0}}),
    _target("lp", {"bias": {"kind": "lp", "power": 1.5, "smoothing": "root", "eps": 0.0625}}),
    _target(
        "huber-coordinate",
        {
            "bias": {
                "kind": "huber",
                "form": "coordinate",
                "threshold": 0.5,
                "smoothing": "root",
                "eps": 0.25,
            }
        },
    ),
    _target("huber-norm", {"bias": {"kind": "huber", "form": "norm", "threshold": 1.5}}),
    _target(
        "huber-mixture",
        {"bias": {"kind": "huber", "threshold": 1.5, "smoothing": "none", "quadratic": "whole"}},
    ),
    _thresholds("thresholds", {"bias": {"kind": "huber", "form": "mixture", "threshold": 0.75}}),
    _target("kullback-leibler", {"bias": {"kind": "kl"}}),
    _target("elastic-net", {"retention": {"kind": "elastic_net", "threshold": 0.25}}),
    _target("sphere", {"memory": PERCEPTRON, "retention": {"kind": "sphere", "over": "row"}}),
    _target("simplex", {"retention": {"kind": "kl", "over": "column", "size": 1.5}}),
    _target("ftrl", {"retention": {"kind": "ftrl", "threshold": 0.2265625}}),
    _target(
        "lq", {"memory": PERCEPTRON, "retention": {"kind": "lq", "power": 3.0, "link": "mirror"}}
    ),
    _target(
        "lag",
        {"memory": PERCEPTRON, "span": 4, "retention": {"kind": "kl", "over": "row", "lag": True}},
        {"reference": "chunk_start"},
    ),
    _target(
        "deep-momentum",
        {"deep_momentum": {"function": {"kind": "mlp", "activation": "silu", "expansion": 0.5}}},
        {"rate": "both"},
    ),
    _target(
        "deep-momentum-dot",
        {"deep_momentum": {"function": {"kind": "linear"}, "objective": "dot"}},
        {"momentum_sign": "minus", "rate": "momentum"},
    ),
)
