"""Tables within a width, in which no number and no name is cut.

A line breaks at blanks alone. A table that is too wide so loses its borders, and one that still is
becomes a list of records.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from rich.cells import cell_len
from rich.table import Table

#: Columns that borders and blanks take: beside each cell, and of the whole.
BORDERED, OPEN = (3, 1), (2, -2)


class Widths(NamedTuple):
    """Widths of a column: of its longest line, and of its longest word."""

    line: int
    word: int


def fitted(table: Table, width: int) -> Table | str:
    """The table in at most so many columns, or the text of its records (CASE-35)."""
    widths = [_widths([str(column.header), *map(str, column.cells)]) for column in table.columns]
    for beside, whole in (BORDERED, OPEN):
        room = width - beside * len(widths) - whole
        if sum(each.word for each in widths) <= room:
            for column, chosen in zip(table.columns, _shared(widths, room), strict=True):
                column.width = chosen
            if (beside, whole) == OPEN:
                table.box, table.padding, table.pad_edge = None, (0, 2, 0, 0), False
            return table
    return _records(table, width)


def _widths(cells: list[str]) -> Widths:
    return Widths(
        max(map(cell_len, cells)),
        max((cell_len(word) for cell in cells for word in cell.split()), default=0),
    )


def _shared(widths: list[Widths], room: int) -> list[int]:
    """Widths that fit: the longest lines give way first, no line below its longest word."""
    cap = max(each.line for each in widths)
    while sum(max(each.word, min(each.line, cap)) for each in widths) > room:
        cap -= 1
    return [max(each.word, min(each.line, cap)) for each in widths]


def _records(table: Table, width: int) -> str:
    """Every row as lines of a name and its value, without the empty ones."""
    names = [str(column.header) for column in table.columns]
    cells = [list(map(str, column.cells)) for column in table.columns]
    indent = max(map(cell_len, names)) + 2
    if indent + max(_widths(column).word for column in cells) > width:
        indent = 2  # a name has a line of its own
    blocks = [[str(table.title)]] if table.title else []
    blocks += [
        [
            line
            for name, cell in zip(names, row, strict=True)
            if cell
            for line in _field(name, cell, indent, width)
        ]
        for row in zip(*cells, strict=True)
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _field(name: str, value: str, indent: int, width: int) -> list[str]:
    lines = textwrap.wrap(value, width - indent, break_long_words=False, break_on_hyphens=False)
    indented = [" " * indent + line for line in lines]
    if cell_len(name) < indent:
        return [name + indented[0][len(name) :], *indented[1:]]
    return [name, *indented]
