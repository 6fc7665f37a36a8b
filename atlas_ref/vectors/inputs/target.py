"""A target: a rule under one convention, with the topics that its vectors may have (VEC-2)."""

from __future__ import annotations

from typing import Any, NamedTuple

from atlas_ref.conventions import Convention, resolve
from atlas_ref.vectors.inputs.topics import LONG, TOPICS, Topic

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
        always: names of topics of which a vector is there in any case (VEC-24).
    """

    name: str
    request: dict[str, Any]
    listed: tuple[Topic, ...] = TOPICS
    without: tuple[str, ...] = ()
    longer: tuple[str, ...] = ("65", "130-packed")
    later: bool = False
    always: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        return str(self.request["rule"])

    @property
    def convention(self) -> Convention:
        """The convention of the rule; of a TNT that of its memories (TNTCASE-2)."""
        return resolve(
            self.request.get("convention", "spec"),
            rule=self.request.get("parameters", {}).get("rule", self.rule),
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
