"""Names of the axes of every input of a case, read off the shapes that a program wants (PROG-6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.drawing import UNNAMED, Shape
from atlas_ref.oracle.program.derive.tensors import shapes
from atlas_ref.oracle.program.program import Program

#: Sizes that no two axes share: of leading axes, and of those behind them.
LEADING, BEHIND = 211, 101


def groups_of(program: Program, settings: Any) -> tuple[str, int]:
    """The setting that counts value heads of a key head with its value; "" and 1 without one."""
    return next(
        ((each.name, getattr(settings, each.name)) for each in program.settings if each.heads),
        ("", 1),
    )


def axes(program: Program, settings: Any, inputs: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Input -> names of its axes.

    B0, B1 are those of a batch, V value heads, H key heads; then come the words of the tensor.
    """
    first, tensor = next(iter(program.tensors.items()))
    rank = len(inputs[first].shape) - len(tensor.axes.split()[1:])
    _, groups = groups_of(program, settings)
    lead = tuple(f"B{i}" for i in range(rank - 1)) + (("V",) if rank else ())
    sizes = {name: LEADING + i for i, name in enumerate(lead)}
    sizes |= {"H": BEHIND, "V": BEHIND * groups} if rank else {}
    for each in program.tensors.values():
        for word in each.axes.replace(", or", "").split():
            if word not in ("...", "heads"):
                sizes.setdefault(word, BEHIND + 2 * len(sizes) + 2)
    wanted = {
        name: Shape(tuple(sizes[word] for word in _words(each.axes, lead, inputs[name].ndim)))
        for name, each in program.tensors.items()
        if each.need == "yes"
    }
    labels = {size: name for name, size in sizes.items()}
    labels |= {sizes["V"]: "V"} if rank else {}  # where each head has a key of its own
    found = shapes(program, settings, wanted)
    return {name: tuple(labels.get(size, UNNAMED) for size in found[name]) for name in inputs}


def _words(text: str, lead: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """Axes of a tensor in words: of those that it may have, as many as it has."""
    for words in (each.split() for each in text.split(", or ")):
        if words[0] == "...":
            return (*lead, *words[1:])
        if len(words) == rank:
            return tuple("V" if word == "heads" else word for word in words)
    return (*lead[len(lead) + 1 - rank :], text.split()[-1])
