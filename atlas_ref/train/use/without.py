"""Models whose memory does less: one that never writes, and one without memory.

Specified in specs/evaluate.md (EVAL-4).
"""

from __future__ import annotations

from typing import Any

from atlas_ref import blocks as blocks_of
from atlas_ref.layers import memory_tnt
from atlas_ref.messages import in_one_line
from atlas_ref.models import language_model

#: Steps between two writes of a memory that never writes: more than any text has tokens.
NEVER = 2**62


def writes(
    config: language_model.Config, params: language_model.Params
) -> tuple[language_model.Config, language_model.Params]:
    """The model whose memories stay what they are at a start, and are read (EVAL-4).

    Raises:
        ValueError: a model without memory, or one whose reads need a write.
    """
    _require_memory(config)
    found = []
    for block in config.blocks:
        own = block.memory
        if own is None:
            found.append(block)
            continue
        still = _still_tnt if isinstance(own.levels, memory_tnt.Config) else _still
        found.append(block.replaced(memory=own.replaced(levels=still(own.levels))))
    return config.replaced(blocks=tuple(found)), params


def _still(levels: Any) -> Any:
    if levels.combine == "masked":
        raise ValueError("reads of combine masked are those of levels that write")
    never = tuple(each.replaced(period=NEVER) for each in levels.levels)
    return levels.replaced(levels=never, first_step=1)


def _still_tnt(levels: memory_tnt.Config) -> memory_tnt.Config:
    of_global = levels.tnt.global_memory
    return levels.replaced(
        tnt=levels.tnt.replaced(
            global_memory=None if of_global is None else of_global.replaced(writes=False),
            local_memories=tuple(each.replaced(writes=False) for each in levels.tnt.local_memories),
        )
    )


def memory(
    config: language_model.Config, params: language_model.Params
) -> tuple[language_model.Config, language_model.Params]:
    """The model whose blocks have no memory: what attention and feed-forward do alone (EVAL-4).

    Raises:
        ValueError: a model without memory, or blocks that cannot do without.
    """
    _require_memory(config)
    with in_one_line():
        blocks = blocks_of.with_memory(config.blocks, ())
    left = []
    for own in params.blocks:
        names = {"memory", "mix"} & set(type(own).model_fields)
        left.append(own.replaced(**dict.fromkeys(names)))
    return config.replaced(blocks=blocks), params.replaced(blocks=tuple(left))


def _require_memory(config: Any) -> None:
    if all(block.memory is None for block in config.blocks):
        raise ValueError("the model has no memory")


#: What a model may do without -> the function that makes it.
WITHOUT = {"writes": writes, "memory": memory}
