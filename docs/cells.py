"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a line break or a bar in a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join(
            "| "
            + " | ".join(" ".join(str(cell).split()).replace("|", "&#124;") for cell in row)
            + " |"
            for row in lines
        )
        + "\n"
    )
