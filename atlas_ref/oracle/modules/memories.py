"""The memories of a recorded layer: one rule for each level, with its readings and its period.

Specified in specs/modules.md (MODULES-19).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from atlas_ref import conventions
from atlas_ref.conventions import Convention
from atlas_ref.layers import memory
from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.parts.feature_maps import IDENTITY, FeatureMap
from atlas_ref.parts.window import Ones, WindowWeights, uses_gate
from atlas_ref.rules import FAMILY, RULES
from atlas_ref.types import Array, Count, Frozen

if TYPE_CHECKING:
    from typing import TypeAlias

    RuleName: TypeAlias = str
else:
    RuleName = Literal[tuple(FAMILY)]

#: The most levels that a recording may have.
MOST = 64


class LevelHeader(Frozen):
    """One level in the header of a recording (MODULES-19)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rule: RuleName
    period: Count = 1
    window: Count = 1
    window_weights: WindowWeights = Ones()
    span: Count | None = None
    feature_map: FeatureMap = IDENTITY
    convention: str | dict[str, Any] = "spec"


class Combined(Frozen):
    """How the reads of levels are combined, and the number of the first step (CMS-6, PULSE-3)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    combine: Literal["softmax", "masked"] = "softmax"
    first_step: Annotated[int, Field(ge=0, le=1)] = 0


class Memory(NamedTuple):
    """One level of a memory layer: a rule, its convention, and when it writes.

    Attributes:
        settings: of the rule's Config beside its sizes: window, span, feature map.
    """

    rule: str
    convention: Convention
    period: int = 1
    settings: dict[str, Any] = {}

    @property
    def window(self) -> int:
        return int(self.settings.get("window", 1))

    def config(self, **sizes: int) -> Any:
        """The settings of the rule.

        Args:
            sizes: d_in, d_out, d_model, heads.
        """
        return RULES[self.rule].Config(convention=self.convention, **sizes, **self.settings)

    def change(self, axes: dict[str, Any]) -> Memory:
        """The level under other axes of its rule, or with another window."""
        of_rule = {axis: value for axis, value in axes.items() if axis != "window"}
        own = self.settings | {axis: axes[axis] for axis in axes if axis == "window"}
        convention = Convention(**{**self.convention.__dict__, **of_rule})
        return self._replace(convention=convention, settings=own)


def parse(levels: Any, name: str) -> tuple[Memory, ...]:
    """The levels of a header (MODULES-19).

    Raises:
        CaseError: names the level and the key, what was found and what is needed.
    """
    if not isinstance(levels, list) or not 0 < len(levels) <= MOST:
        raise CaseError(f"{name}: levels: a list of 1 to {MOST} objects is needed")
    return tuple(_memory(each, f"{name}: levels[{i}]") for i, each in enumerate(levels))


def _memory(level: Any, name: str) -> Memory:
    try:
        own = TypeAdapter(LevelHeader).validate_json(json.dumps(level))
        convention = conventions.resolve(own.convention, rule=own.rule, level="token")
    except ValidationError as error:
        raise CaseError(f"{name}: {first_problem(error)}") from None
    except (ValueError, TypeError) as error:
        raise CaseError(f"{name}: {error}") from None
    settings: dict[str, Any] = {} if own.span is None else {"span": own.span}
    windowed = {
        "window": own.window,
        "feature_map": own.feature_map,
        "window_weights": own.window_weights,
    }
    if RULES[own.rule].has_window:
        if uses_gate(own.window_weights):
            raise CaseError(f"{name}: window_weights: kind gate has no module to record")
        settings |= windowed
    else:
        for key in windowed:
            if key in own.model_fields_set:
                raise CaseError(f"{name}: {key}: rule {own.rule} has none")
    return Memory(own.rule, convention, own.period, settings)


def levels_of(memories: tuple[Memory, ...], combined: Combined, **sizes: int) -> Any:
    """The levels as a memory layer takes them."""
    return memory.levels_of(
        [each.config(**sizes) for each in memories],
        [each.period for each in memories],
        combine=combined.combine,
        first_step=combined.first_step,
    )


def active(config: Any, number: int, tokens: int) -> Array:
    """The tokens (T,) at which a level writes, of all calls together (PULSE-2)."""
    steps = config.levels.first_step + np.arange(tokens)
    return np.asarray(steps % config.levels.levels[number].period == 0)


def combining(config: Any, logits: Array, tokens: int) -> Array:
    """Weights (k, T) of the reads of all levels (CMS-6, CMS-7)."""
    count = len(config.levels.levels)
    counting = np.ones((count, tokens), bool)
    if config.levels.combine == "masked":
        counting = np.stack([active(config, i, tokens) for i in range(count)])
    e = np.exp(logits - np.max(logits))[:, None] * counting
    weights: Array = e / np.sum(e, axis=0)
    return weights
