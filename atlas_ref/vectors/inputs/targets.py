"""Targets, each a rule under one convention, and topics, each a shape and a regime (VEC-2,
VEC-3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from atlas_ref.conventions import Convention, resolve
from atlas_ref.oracle.cases.case import CaseError

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
    """

    name: str
    request: dict[str, Any]
    regimes: tuple[str, ...] = ()
    grad: bool = False
    needs: tuple[str, ...] = ()


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

#: Tokens of a span in long topics: no chunk is a multiple of it.
SPAN = 48


class Target(NamedTuple):
    """A rule under one convention: the thing that is implemented, and for which a set must be
    adequate.

    Attributes:
        name: of the target; its vectors are called NAME-TOPIC.
        request: fields of `Request` in common.
        listed: topics that it may have.
        without: names of topics that it has not.
        longer: names of its long topics.
        later: whether its listed topics belong to the set of long vectors (VEC-22).
    """

    name: str
    request: dict[str, Any]
    listed: tuple[Topic, ...] = TOPICS
    without: tuple[str, ...] = ()
    longer: tuple[str, ...] = ("65", "130-packed")
    later: bool = False

    @property
    def rule(self) -> str:
        return str(self.request["rule"])

    @property
    def convention(self) -> Convention:
        return resolve(
            self.request.get("convention", "spec"),
            rule=self.rule,
            level=self.request.get("level", "projected"),
        )

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The listed topics that the target has."""
        has = {"newton_schulz"} if self.convention.has_newton_schulz else set()
        return tuple(
            topic
            for topic in self.listed
            if topic.name not in self.without and set(topic.needs) <= has
        )

    @property
    def long(self) -> tuple[Topic, ...]:
        """Its long topics, whose spans are longer too."""
        span = {"span": SPAN} if "span" in self.request else {}
        return tuple(
            topic._replace(request=topic.request | span)
            for topic in LONG
            if topic.name in self.longer
        )


EVERY = tuple(topic.name for topic in LONG)
LINEAR = {"newton_schulz": "none"}
FROZEN = {"reference": "chunk_start"}

#: Feature maps that have vectors of their own.
MAPS = (
    "linear",
    "random_fourier",
    "elu",
    "residual_mlp",
    "polynomial",
    "monomials",
    "elementwise",
    "sketch",
)

TARGETS = (
    Target("hebbian", {"rule": "hebbian"}, longer=EVERY),
    Target("delta", {"rule": "delta"}, longer=EVERY),
    Target("delta-fla-gated", {"rule": "delta", "convention": "fla-gated-delta"}),
    Target("delta-frozen", {"rule": "delta", "span": 3, "convention": FROZEN}),
    Target("titans_lmm", {"rule": "titans_lmm"}, longer=EVERY),
    Target("titans_lmm-paper", {"rule": "titans_lmm", "convention": "titans-paper"}),
    Target("titans_lmm-fla-momentum", {"rule": "titans_lmm", "convention": "fla-momentum-delta"}),
    Target("titans_lmm-nl-hecate", {"rule": "titans_lmm", "convention": "nl-hecate"}),
    Target("titans_lmm-frozen", {"rule": "titans_lmm", "span": 3, "convention": FROZEN}),
    Target("omega", {"rule": "omega", "window": 3}, longer=EVERY),
    Target("omega-linear", {"rule": "omega", "window": 3, "convention": LINEAR}, longer=EVERY),
    Target("omega-atlas-paper", {"rule": "omega", "window": 3, "convention": "atlas-paper"}),
    Target(
        "omega-atlas-eq40", {"rule": "omega", "window": 3, "span": 3, "convention": "atlas-eq40"}
    ),
    Target(
        "omega-frozen", {"rule": "omega", "window": 3, "span": 3, "convention": LINEAR | FROZEN}
    ),
    Target(
        "omega-carry",
        {
            "rule": "omega",
            "window": 3,
            "span": 3,
            "convention": LINEAR | FROZEN | {"window_at_boundary": "carry"},
        },
    ),
    Target("omega-ttl", {"rule": "omega", "window": 3, "convention": "ttl"}, longer=()),
    Target("omega-atlas-rnn", {"rule": "omega", "window": 3, "convention": "atlas-rnn"}),
    Target(
        "omega-momenta",
        {"rule": "omega", "window": 3, "convention": LINEAR | {"order": "momentum_then_window"}},
        longer=("130-packed",),
    ),
    Target(
        "omega-gated-window",
        {"rule": "omega", "window": 3, "window_gate": True, "convention": LINEAR},
    ),
    Target(
        "omega-polynomial",
        {"rule": "omega", "window": 2, "feature_map": {"kind": "polynomial"}, "convention": LINEAR},
    ),
    Target(
        "delta-token",
        {"rule": "delta", "level": "token", "d_model": 3},
        TOKENS,
        longer=("65", "130"),
    ),
    Target(
        "titans_lmm-token",
        {"rule": "titans_lmm", "level": "token", "d_model": 3},
        TOKENS,
        longer=("65", "130"),
    ),
    Target(
        "omega-token",
        {
            "rule": "omega",
            "level": "token",
            "d_model": 3,
            "window": 3,
            "window_weights": {"kind": "softmax"},
            "convention": LINEAR,
        },
        TOKENS,
        longer=("65", "130"),
    ),
    Target("newton_schulz", {"rule": "newton_schulz"}, MATRICES, longer=()),
    *(
        Target(
            f"feature_map-{kind}",
            {"rule": "feature_map", "feature_map": {"kind": kind}},
            ROWS,
            longer=(),
        )
        for kind in MAPS
    ),
)


def _deep(
    name: str, parameters: dict[str, Any], convention: dict[str, Any], *without: str, **request: Any
) -> Target:
    """A target of the rule deep_memory."""
    fields = {"rule": "deep_memory", "parameters": {"chunk": 2, "window": 3} | parameters}
    fields |= {"convention": convention} | request
    return Target(f"deep_memory{name}", fields, DEEP_TOPICS, without, longer=(), later=True)


#: Atlas-MAG's memory: matrices of two entries between, GEGLU.
GATED = {"kind": "polynomial", "key_width": 2, "expansion": 1.5, "gated": True}

#: Deep memories: the default, a matrix, and the memories of public code (VEC-22).
DEEP = (
    _deep("", {"memory": {"kind": "mlp", "expansion": 1.5}}, {}),
    _deep("-linear", {"memory": {"kind": "linear"}}, {"newton_schulz": "none"}),
    _deep(
        "-polynomial",
        {
            "memory": GATED | {"compress": 4},
            "window_weights": {"kind": "decay", "base": 0.75},
            "fast": "all",
            "vectors": "unit",
            "clip": "hard",
            "clip_norm": 8.0,
            "adaptive": True,
        },
        {},
        "tall",
        "wide",
        "packed",
        "gradient",
        "gradient-resumed",
        "gradient-packed",
        window_gate=True,
    ),
    _deep(
        "-titans-pytorch",
        {
            "memory": {"kind": "mlp", "expansion": 1.0, "residual_norm": True},
            "window": 2,
            "fast": "all",
            "vectors": "raw",
            "clip": "soft",
        },
        {"newton_schulz": "none", "gradient_scale": "2/d_out", "rate": "momentum"},
        "tall",
        "wide",
        window_gate=True,
    ),
    _deep(
        "-atlas-mag",
        {
            "memory": GATED,
            "chunk": 8,
            "window": 6,
            "reduction": "mean",
            "coupling": "batch_shared",
            "fast": "all",
            "vectors": "unit",
            "unfinished": "flush",
            "outer_gradient": "straight_through",
        },
        {"read": "call_end"},
        "wide",
        "gradient-packed",
        window_gate=True,
    ),
    _deep(
        "-frozen",
        {"memory": {"kind": "mlp", "expansion": 1.0, "activation": "silu", "depth": 3}, "span": 4},
        {"reference": "chunk_start", "read": "before", "newton_schulz": {"steps": 3}},
        "wide",
        "gradient-packed",
    ),
)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=_Named)


def by_name(kind: str, name: str, items: Iterable[Item]) -> Item:
    """The item of that name.

    Raises:
        CaseError: there is none, with those that there are.
    """
    listed = {item.name: item for item in items}
    if name not in listed:
        raise CaseError(f"{kind} {name!r} does not exist; there are {', '.join(listed)}")
    return listed[name]


def target_named(name: str) -> Target:
    """A target by its name."""
    return by_name("target", name, (*TARGETS, *DEEP))


def topic_named(target: Target, name: str) -> Topic:
    """A topic of a target by its name."""
    return by_name(f"topic of {target.name}", name, (*target.topics, *target.long))
