"""How blocks with levels stand in a stack: basic, nested, sequential, independent, hybrid.

A nested stack has levels in its optimiser too. Specified in specs/cms.md (CMS-13, CMS-19).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from atlas_ref.levels import outer
from atlas_ref.levels.block import Config
from atlas_ref.levels.pulse import Conductor
from atlas_ref.optim.groups import Optimiser
from atlas_ref.optim.m3 import Config as M3
from atlas_ref.types import Frozen

Variant = Literal["basic", "nested", "sequential", "independent", "hybrid"]


class Stack(Frozen):
    """Blocks from the first to the deepest, and how their levels relate (CMS-13).

    Attributes:
        variant: basic: one block. nested: each block with levels has an M3. sequential: the number
            of levels does not decrease with depth. independent: each block has periods of its own.
            hybrid: blocks with and without levels.
        blocks: None for a block without levels.
        optimisers: of a nested stack, the M3 of each block with levels; None for the others.
    """

    variant: Variant
    blocks: Annotated[tuple[Config | None, ...], Field(min_length=1)]
    optimisers: tuple[M3 | None, ...] = ()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len({block.levels[0].config.d_model for block in self.with_levels}) > 1:
            raise ValueError("blocks: d_model must be the same in all of them")
        problem = {
            "basic": self._basic,
            "nested": self._nested,
            "sequential": self._sequential,
            "independent": self._independent,
            "hybrid": self._hybrid,
        }[self.variant]()
        if problem is not None:
            raise ValueError(f"blocks: {self.variant} {problem}")
        if self.optimisers and self.variant != "nested":
            raise ValueError(f"optimisers: belong to nested, this stack is {self.variant}")
        return self

    @property
    def with_levels(self) -> tuple[Config, ...]:
        """The blocks that have levels."""
        return tuple(block for block in self.blocks if block is not None)

    def conductors(self) -> tuple[Conductor | None, ...]:
        """For each block the conductor of its levels; all count the same steps."""
        return tuple(None if block is None else block.conductor() for block in self.blocks)

    def outer_loops(
        self, *, logits: Optimiser | None = None, **settings: Any
    ) -> tuple[outer.Config | None, ...]:
        """For each block of a nested stack the outer loop that moves it (CMS-19).

        Level l moves at its own period by the block's M3, whose scale i takes a gradient at every
        f_i-th of these moves: once in p_l f_i outer steps.

        Args:
            logits: the optimiser of the logits; None where they stay.
            settings: threshold and clip of the buffers (CMS-12).

        Raises:
            ValueError: a stack that is not nested, whose optimiser has no levels of its own.
        """
        if self.variant != "nested":
            raise ValueError(f"variant: {self.variant}, nested alone has levels in its optimiser")
        return tuple(
            None
            if block is None or own is None
            else outer.configured(block, own, logits=logits, **settings)
            for block, own in zip(self.blocks, self.optimisers, strict=True)
        )

    def _basic(self) -> str | None:
        if len(self.blocks) != 1 or self.blocks[0] is None:
            return (
                f"is one block with levels, found {len(self.blocks)}, {len(self.with_levels)} of "
                "them with levels"
            )
        return None

    def _nested(self) -> str | None:
        if len(self.optimisers) != len(self.blocks):
            return (
                f"has an optimiser, or None, for each of {len(self.blocks)} blocks, found "
                f"{len(self.optimisers)}"
            )
        for i, (block, own) in enumerate(zip(self.blocks, self.optimisers, strict=True)):
            if (block is None) != (own is None):
                return (
                    f"has an M3 where it has levels and nowhere else, found otherwise in block {i}"
                )
        return self._one_clock() if self.with_levels else "has levels in some block, found none"

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
