"""Every source file as a page: highlighted, each line with an anchor, left out of the search."""

from __future__ import annotations

import html
import re
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

FOLDERS = ("atlas_ref", "tape", "tests", "examples", "benchmarks", "docs")
SINGLE = ("LICENSE", "Makefile", "pyproject.toml", "mkdocs.yml")
SUFFIXES = (".py", ".cpp", ".hpp", ".sh", ".rs", ".toml", ".css", ".js")
LARGEST = 200_000
#: Names and blanks have no colour of their own; without their elements a browser has half the work.
PLAIN = re.compile(r'<span class="(?:n|w)">([^<]*)</span>')


def files(root: Path) -> list[str]:
    """Paths of the files that get a page."""
    paths = [
        path
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    ]
    names = [path.relative_to(root) for path in paths if path.stat().st_size < LARGEST]
    return sorted(path.as_posix() for path in names if "__pycache__" not in path.parts) + list(
        SINGLE
    )


def page(root: Path, path: str) -> str:
    """The page of one file."""
    try:
        lexer = get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_for_filename("a.txt", stripnl=False)
    code = PLAIN.sub(r"\1", highlight((root / path).read_text(), lexer, HtmlFormatter(nowrap=True)))
    lines = "\n".join(
        f'<span class="line" id="L-{n}">{line}</span>'
        for n, line in enumerate(code.rstrip("\n").split("\n"), 1)
    )
    head = f"---\nsearch:\n  exclude: true\nhide: [toc, navigation]\ntitle: {path}\n---\n\n"
    return (
        f'{head}# <code>{html.escape(path)}</code>\n\n<div class="highlight '
        f'source"><pre><code>{lines}\n</code></pre></div>\n'
    )
