"""Targets of the rule tnt: readings of the paper and of public code (VEC-23)."""

from __future__ import annotations

from typing import Any

from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import SMALL, SQUARE, TALL, WIDE, Topic

#: Tokens of the document before a call that goes on; a shard of 5 ends there.
BEFORE = 5

#: The same where neither a chunk nor a shard ends, and the first document of two, in a shard.
WITHIN, DOCUMENT = 7, 4

#: Topics of a TNT. Shards have 3 and 5 tokens, so that the last one of 7 or 8 tokens is short.
TOPICS = (
    Topic("tall", TALL),
    Topic("wide", WIDE),
    Topic("square", SQUARE),
    Topic("own", {**SQUARE, "heads": 1}, ("own tokens",)),
    Topic("packed", {**SQUARE, "tokens": 8, "reset": 5}),
    Topic("resumed", {**SQUARE, "history": BEFORE}),
    Topic("edges", {**SQUARE, "heads": 1}, ("edges",)),
    Topic("strong", {**SMALL, "tokens": 6}, ("strong",)),
    Topic("gradient", {**SQUARE, "tokens": 7, "heads": 1}, grad=True),
    Topic("gradient-resumed", {**SQUARE, "tokens": 5, "heads": 1, "history": BEFORE}, grad=True),
    Topic("gradient-packed", {**SQUARE, "tokens": 8, "heads": 1, "reset": 5}, grad=True),
    Topic("packed-within", {**SQUARE, "tokens": 8, "reset": DOCUMENT}),
    Topic("resumed-within", {**SQUARE, "history": WITHIN}),
    Topic(
        "gradient-resumed-within",
        {**SQUARE, "tokens": 5, "heads": 1, "history": WITHIN},
        grad=True,
    ),
)

#: Topics whose state no numbers drawn one by one make: of gradients counted again, of a projector.
GOING_ON = ("resumed", "gradient-resumed", "resumed-within", "gradient-resumed-within")

#: Settings of a global memory and of local ones of different spans.
GLOBAL = {"span": 4}
FIRST, SECOND = {"span": 2, "shard": 3}, {"span": 3, "shard": 5}


def _target(
    name: str, parameters: dict[str, Any], convention: Any, *without: str, **request: Any
) -> Target:
    fields = {"rule": "tnt", "parameters": parameters, "convention": convention} | request
    return Target(f"tnt{name}", fields, TOPICS, without, longer=(), later=True)


def _moved(memory: dict[str, int], **projection: Any) -> dict[str, Any]:
    """A local memory whose queries are moved otherwise than the paper does."""
    return {**memory, "projection": projection}


TNT = (
    _target("", {"rule": "titans_lmm", "global": GLOBAL, "locals": [FIRST, SECOND]}, {}),
    _target(
        "-paper-literal",
        {
            "rule": "titans_lmm",
            "preset": "paper-literal",
            "global": {"span": 3},
            "locals": [{"span": 3, "shard": 5}],
        },
        {"gate": "none"},
        *GOING_ON,
    ),
    _target(
        "-inclusive",
        {
            "rule": "titans_lmm",
            "global": {"span": 3, "sum": "inclusive"},
            "locals": [{"span": 4, "shard": 5}],
        },
        {"gate": "none"},
    ),
    _target(
        "-paper-app-c",
        {"rule": "delta", "preset": "paper-app-c", "global": GLOBAL, "locals": [FIRST]},
        {"gate": "none"},
    ),
    _target(
        "-nl-hecate",
        {
            "rule": "titans_lmm",
            "global": {**GLOBAL, "read": "none"},
            "locals": [
                {**_moved(SECOND, kind="learned"), "base": "running"},
                {**_moved(FIRST, kind="none"), "base": "running"},
            ],
        },
        "nl-hecate",
    ),
    _target(
        "-atlas",
        {
            "rule": "omega",
            "window": 2,
            "global": {**GLOBAL, "read": "after"},
            "locals": [
                _moved(SECOND, range="window", window=2, own="exclusive", norm="sum_of_norms")
            ],
        },
        {"newton_schulz": "none"},
        window_gate=True,
    ),
    _target(
        "-sequence",
        {
            "rule": "delta",
            "global": {"span": 3, "writes": True},
            "locals": [
                _moved(SECOND, range="sequence", norm="sum_of_norms"),
                {
                    **_moved(FIRST, range="shard", own="exclusive"),
                    "chunk_origin": "document",
                    "read": "before",
                },
            ],
        },
        {"k_norm": "l2"},
    ),
    _target(
        "-orthogonal",
        {
            "rule": "titans_lmm",
            "global": None,
            "locals": [{**_moved(SECOND, kind="orthogonal"), "reset_momentum": "learned"}],
        },
        {},
        *GOING_ON,
    ),
)
