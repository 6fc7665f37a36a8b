"""Topics of vectors: each a shape and a regime that cases have in common (VEC-3)."""

from __future__ import annotations

from typing import Any, NamedTuple

#: Shapes that every target with a sequence has; the names are those of `Request`.
TALL = {"tokens": 7, "d_in": 2, "d_out": 4, "heads": 2}
WIDE = {"tokens": 8, "d_in": 4, "d_out": 3, "heads": 1}
SQUARE = {"tokens": 7, "d_in": 3, "d_out": 3, "heads": 2}
SMALL = {"tokens": 4, "d_in": 3, "d_out": 3, "heads": 1}


class Topic(NamedTuple):
    """The shape and the regime that the cases of one kind have in common.

    Attributes:
        request: fields of `Request` that differ from the target's.
        regimes: what is done to the inputs, in order; names in `regimes.REGIMES`.
        grad: the case has cotangents and records gradients.
        needs: what the target must have: newton_schulz.
        parameters: settings of a case that differ from the target's.
    """

    name: str
    request: dict[str, Any]
    regimes: tuple[str, ...] = ()
    grad: bool = False
    needs: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}


#: Topics of every target with a sequence.
TOPICS = (
    Topic("tall", TALL),
    Topic("wide", WIDE),
    Topic("square", SQUARE),
    Topic("rows", {**SQUARE, "per_dimension_gates": True}),
    Topic("pulsed", {**WIDE, "pulse": 2, "reset": 5, "heads": 2}, ("history",)),
    Topic("resumed", SQUARE, ("history", "phase")),
    Topic("edges", TALL, ("edges",)),
    Topic("repeated", WIDE, ("repeated",)),
    Topic("strong", {**SMALL, "d_in": 2, "tokens": 5}, ("repeated", "strong")),
    Topic("zero", SMALL, ("zero gradient",)),
    Topic("short", {**TALL, "tokens": 2}),
    Topic("one", {**SQUARE, "tokens": 1}),
    Topic("cancelling", {**SMALL, "d_in": 2}, ("cancelling",)),
    Topic("cancelling-square", {**SMALL, "tokens": 2}, ("cancelling",)),
    Topic("tiny", SMALL, ("tiny",), needs=("newton_schulz",)),
    Topic("gradient", {**SQUARE, "tokens": 5, "heads": 1}, grad=True),
    Topic(
        "gradient-tall",
        {"tokens": 4, "d_in": 2, "d_out": 3, "heads": 2, "per_dimension_gates": True},
        ("history",),
        grad=True,
    ),
)

#: Topics at level token, where keys, values, queries and gates are computed.
TOKENS = (
    Topic("tall", TALL),
    Topic("wide", WIDE),
    Topic("rows", {**TALL, "per_dimension_gates": True}),
    Topic("pulsed", {**WIDE, "pulse": 2, "reset": 5, "heads": 2}, ("history",)),
    Topic("batch", {**SQUARE, "tokens": 3, "batch": 2}),
    Topic("one", {**SQUARE, "tokens": 1}),
    Topic("gradient", {"tokens": 4, "d_in": 3, "d_out": 3, "heads": 2}, grad=True),
    Topic(
        "gradient-tall",
        {"tokens": 3, "d_in": 2, "d_out": 3, "heads": 1, "per_dimension_gates": True},
        ("history",),
        grad=True,
    ),
)

#: Topics of the rule newton_schulz.
MATRICES = (
    Topic("tall", {"d_in": 2, "d_out": 4, "heads": 2}),
    Topic("wide", {"d_in": 4, "d_out": 3, "heads": 2}),
    Topic("steep", {"d_in": 2, "d_out": 3, "heads": 1}),
    Topic("equal", {"d_in": 3, "d_out": 3, "heads": 1}, ("equal",)),
    Topic("rank-one", {"d_in": 3, "d_out": 4, "heads": 1}, ("rank one",)),
    Topic("zero", {"d_in": 3, "d_out": 4, "heads": 2}, ("zero matrix",)),
    Topic("tiny", {"d_in": 3, "d_out": 4, "heads": 3}, ("tiny matrix",)),
    Topic("gradient", {"d_in": 3, "d_out": 3, "heads": 2}, grad=True),
    Topic("gradient-tall", {"d_in": 2, "d_out": 4, "heads": 1}, grad=True),
)

#: Topics of the rule feature_map.
ROWS = (
    Topic("rows", {"d_in": 3, "heads": 4}),
    Topic("gradient", {"d_in": 3, "heads": 2}, grad=True),
)

#: Topics of more tokens than the usual chunks of kernels, by one or two (VEC-21).
LONG = (
    Topic("65", {**SQUARE, "tokens": 65, "heads": 1}, ("slow",)),
    Topic("130", {**WIDE, "tokens": 130}, ("slow",)),
    Topic("257", {**TALL, "tokens": 257, "heads": 1}, ("slow",)),
    Topic(
        "130-packed",
        {**SQUARE, "tokens": 130, "heads": 1, "pulse": 2, "reset": 50},
        ("history", "slow"),
    ),
    Topic(
        "130-levels",
        {
            **SQUARE,
            "tokens": 130,
            "heads": 1,
            "periods": (1, 5),
            "schedule_level": 1,
            "first_step": 2,
        },
        ("slow",),
    ),
    Topic("130-gradient", {**TALL, "tokens": 130, "heads": 1}, ("slow",), grad=True),
)

#: Topics of a deep memory: few tokens, in the set of long vectors all the same (VEC-22).
DEEP_TOPICS = (
    Topic("tall", {**TALL, "d_out": 4, "tokens": 7}),
    Topic("wide", WIDE),
    Topic("square", SQUARE),
    Topic("packed", {**SQUARE, "tokens": 8, "pulse": 2, "reset": 5}, ("history",)),
    Topic("resumed", SQUARE, ("history",)),
    Topic("edges", SQUARE, ("edges",)),
    Topic("strong", {**SMALL, "tokens": 5, "heads": 2}, ("strong",)),
    Topic("gradient", {**SQUARE, "tokens": 5}, grad=True),
    Topic("gradient-resumed", {**SQUARE, "tokens": 6}, ("history",), grad=True),
    Topic("gradient-packed", {**SQUARE, "tokens": 8, "pulse": 2, "reset": 5}, grad=True),
)
