"""Targets, each a rule under one convention, in the order of sets (VEC-2, VEC-3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.vectors.inputs.axes.deep import DEEP_AXES
from atlas_ref.vectors.inputs.axes.formulas import FORMULAS
from atlas_ref.vectors.inputs.axes.maps import MAPS as YOUNGER_MAPS
from atlas_ref.vectors.inputs.axes.memories import MEMORIES
from atlas_ref.vectors.inputs.deep_targets import DEEP
from atlas_ref.vectors.inputs.dplr_targets import DPLR
from atlas_ref.vectors.inputs.recurrences import RECURRENCES
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.tnt_targets import TNT
from atlas_ref.vectors.inputs.topics import LONG, MATRICES, ROWS, TOKENS, Topic

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

#: Targets that came to the set of long vectors later, in the order in which they came.
LATER = (*DEEP, *TNT, *DPLR, *MEMORIES, *YOUNGER_MAPS, *FORMULAS, *DEEP_AXES, *RECURRENCES)


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
    return by_name("target", name, (*TARGETS, *LATER))


def topic_named(target: Target, name: str) -> Topic:
    """A topic of a target by its name."""
    return by_name(f"topic of {target.name}", name, (*target.topics, *target.long))
