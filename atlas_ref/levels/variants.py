"""How blocks with levels stand in a stack: basic, sequential, independent, hybrid.

Only their configurations are here; layers that run them come later. Specified in specs/cms.md
(CMS-13).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from atlas_ref.levels.block import Config
from atlas_ref.levels.pulse import Conductor
from atlas_ref.types import Frozen

Variant = Literal["basic", "sequential", "independent", "hybrid"]


class Stack(Frozen):
    """Blocks from the first to the deepest, and how their levels relate (CMS-13).

    Attributes:
        variant: basic: one block. sequential: the number of levels does not decrease with depth.
            independent: each block has periods of its own. hybrid: blocks with and without levels.
        blocks: None for a block without levels.
    """

    variant: Variant
    blocks: Annotated[tuple[Config | None, ...], Field(min_length=1)]

    @field_validator("variant", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if value == "nested":
            raise ValueError("nested puts levels into the optimiser, which is not yet supported")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len({block.levels[0].config.d_model for block in self.with_levels}) > 1:
            raise ValueError("blocks: d_model must be the same in all of them")
        problem = {
            "basic": self._basic,
            "sequential": self._sequential,
            "independent": self._independent,
            "hybrid": self._hybrid,
        }[self.variant]()
        if problem is not None:
            raise ValueError(f"blocks: {self.variant} {problem}")
        return self

    @property
    def with_levels(self) -> tuple[Config, ...]:
        """The blocks that have levels."""
        return tuple(block for block in self.blocks if block is not None)

    def conductors(self) -> tuple[Conductor | None, ...]:
        """For each block the conductor of its levels; all count the same steps."""
        return tuple(None if block is None else block.conductor() for block in self.blocks)

    def _basic(self) -> str | None:
        if len(self.blocks) != 1 or self.blocks[0] is None:
            return (
                f"is one block with levels, found {len(self.blocks)}, {len(self.with_levels)} of "
                "them with levels"
            )
        return None

    def _sequential(self) -> str | None:
        if None in self.blocks:
            return f"has levels in every block, found none in block {self.blocks.index(None)}"
        for i, (above, below) in enumerate(
            zip(self.with_levels, self.with_levels[1:], strict=False)
        ):
            if len(below.levels) < len(above.levels):
                return (
                    f"never has fewer levels further down, found {len(above.levels)} in block {i} "
                    f"and {len(below.levels)} in block {i + 1}"
                )
        return self._one_clock()

    def _independent(self) -> str | None:
        if None in self.blocks:
            return f"has levels in every block, found none in block {self.blocks.index(None)}"
        return self._one_clock()

    def _hybrid(self) -> str | None:
        if not self.with_levels or None not in self.blocks:
            return (
                f"has blocks with levels and blocks without, found {len(self.with_levels)} with "
                f"levels among {len(self.blocks)}"
            )
        return self._one_clock()

    def _one_clock(self) -> str | None:
        """All blocks of a stack see the same tokens, so a step must be the same for all."""
        for name in ("first_step", "per", "call_tokens"):
            values = [getattr(block, name) for block in self.with_levels]
            if len(set(values)) > 1:
                return (
                    f"counts the same steps in every block, found {name} "
                    f"{', '.join(map(str, values))}"
                )
        return None
