"""Memories that a model starts from, beside its parameters: what a file of it may hold.

Public code that keeps memories in its modules saves them with the parameters. Specified in
specs/language_model.md (MODEL-16).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlas_ref.layers import shared_memory
from atlas_ref.models import language_model
from atlas_ref.models.shapes import Needed
from atlas_ref.rules import deep_memory
from atlas_ref.types import Array

#: For each block None, or the fast tensors of its memory by kind (weights, momentum) and name.
Initial = Sequence[Mapping[str, Mapping[str, Array]] | None]

#: What the names of such tensors in a file begin with, and kinds of them.
PREFIX, KINDS = "initial.", ("weights", "momentum")


def place(block: int, kind: str) -> str:
    """What the names of fast tensors of a block and kind begin with (MODEL-16)."""
    return f"{PREFIX}blocks.{block}.memory.{kind}."


def tensors_of(initial: Initial) -> dict[str, Array]:
    """Tensors of a file by their names (MODEL-16)."""
    return {
        place(i, kind) + name: array
        for i, memories in enumerate(initial)
        for kind, own in (memories or {}).items()
        for name, array in own.items()
    }


def needed_by(config: language_model.Config, names: Sequence[str]) -> dict[str, Needed]:
    """Tensors that a file must have which has some of a block and kind, with their shapes.

    Args:
        names: of the tensors of the file.
    """
    found: dict[str, Needed] = {}
    for i, block in enumerate(config.blocks):
        for kind in KINDS:
            start = place(i, kind)
            if any(name.startswith(start) for name in names):
                found |= {start + name: each for name, each in _fast(block.memory).items()}
    return found


def _fast(memory: Any) -> dict[str, Needed]:
    """Fast tensors of a memory that starts from some; none of any other memory."""
    if not isinstance(memory, shared_memory.Config):
        return {}
    rule = memory.level.config
    if not isinstance(rule, deep_memory.Config):
        return {}
    rows = 1 if rule.coupling == "batch_shared" else "batch"
    return {name: Needed((rows, rule.heads, *shape)) for name, shape in rule.fast_shapes.items()}


def of_tensors(config: language_model.Config, tensors: Mapping[str, Array]) -> tuple[Any, ...]:
    """Memories of each block from the tensors of a file; () where there are none (MODEL-16)."""
    found: list[Any] = []
    for i in range(len(config.blocks)):
        kinds = {
            kind: {
                name.removeprefix(place(i, kind)): array
                for name, array in tensors.items()
                if name.startswith(place(i, kind))
            }
            for kind in KINDS
        }
        found.append({kind: own for kind, own in kinds.items() if own} or None)
    return tuple(found) if any(found) else ()
