"""Pictures of the docs, drawn from the package when the site is made; `python -m docs.pictures
NAME` writes one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.pictures import (
    capacity,
    forgetting,
    levels,
    recall,
    references,
    singular_values,
    tape_graph,
)

#: Name -> the SVG.
PICTURES: dict[str, Callable[[], str]] = {
    "singular_values": singular_values.picture,
    "recall": recall.picture,
    "references": references.picture,
    "tokens": forgetting.picture,
    "tape": tape_graph.picture,
    "levels": levels.picture,
    "capacity_rules": capacity.rules,
    "capacity_windows": capacity.windows,
    "capacity_functions": capacity.functions,
}


def write(name: str, folder: Path) -> Path:
    """Draw a picture into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{name}.svg"
    out.write_text(PICTURES[name]())
    return out
