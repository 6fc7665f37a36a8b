"""Lines of a source file within a page, where it asks for them with `<!-- lines: PATH 3 9 -->`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from docs import source_pages
from docs.clauses.places import Place

PLACE = re.compile(r"<!-- lines: (\S+) (\d+) (\d+) -->")


def wanted(place: Place) -> str:
    """What asks for the lines of a place."""
    return f"<!-- lines: {place.path} {place.first} {place.last} -->"


def filled(content: str, root: Path) -> str:
    """The page with all lines that it asks for."""
    return PLACE.sub(lambda match: lines(root, match[1], int(match[2]), int(match[3])), content)


def lines(root: Path, path: str, first: int, last: int) -> str:
    """Lines as a block of code that wraps, with their numbers in the file, without common indent."""
    text = (root / path).read_text().split("\n")[first - 1 : last]
    own = source_pages.highlighted(textwrap.dedent("\n".join(text)), path)
    body = "".join(f"<span>{line}\n</span>" for line in own)
    return (
        f'<div class="highlight lined"><pre><code style="counter-reset: line {first - 1}">'
        f"{body}</code></pre></div>"
    )
