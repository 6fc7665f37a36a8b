"""Every source file as a page of its own, without the theme: its lines, numbered, each an anchor.

Most pages of the site are such pages, so each holds little beside the text: a colour for keywords,
comments, strings, numbers and what is defined. A long line wraps.
"""

from __future__ import annotations

import functools
import html
import io
import keyword
import posixpath
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Number, String
from pygments.util import ClassNotFound

FOLDERS = ("atlas_ref", "tape", "tests", "examples", "benchmarks", "docs")
SINGLE = ("LICENSE", "Makefile", "pyproject.toml", "mkdocs.yml")
SUFFIXES = (".py", ".cpp", ".hpp", ".sh", ".rs", ".toml", ".css", ".js")
LARGEST = 200_000
#: The element of a piece of text by its token, a short one; a blank or a name has none.
COLOURS = (
    (Keyword, "b"),
    (Comment, "i"),
    (String, "q"),
    (Number, "u"),
    (Name.Function, "em"),
    (Name.Class, "em"),
    (Name.Decorator, "em"),
)
#: The same for Python's own tokens; where a line ends or is indented the text between says.
PYTHON = {tokenize.COMMENT: "i", tokenize.STRING: "q", tokenize.NUMBER: "u"}
BLANK = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{path}</title>
<meta name="viewport" content="width=device-width,initial-scale=1">
<link rel="icon" href="{root}assets/images/favicon.png">
<link rel="stylesheet" href="{root}stylesheets/source.css">
<script src="{root}javascripts/source.js"></script></head>
<body><nav><a href="{root}index.html">atlas-ref</a> {folders}</nav><article><h1>{name}</h1>
<ol class="lines">{lines}</ol></article></body></html>
"""


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
    lines = "".join(
        f"<li id=L-{number}>{line}\n"
        for number, line in enumerate(highlighted((root / path).read_text(), path), 1)
    )
    folder, name = posixpath.split(path)
    return PAGE.format(
        path=html.escape(path),
        root="../" * (path.count("/") + 1),
        folders=html.escape(folder.replace("/", " / ")),
        name=html.escape(name),
        lines=lines,
    )


@functools.lru_cache(maxsize=1024)
def highlighted(text: str, path: str) -> tuple[str, ...]:
    """The lines of a file as HTML."""
    try:
        lexer = get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_for_filename("a.txt", stripnl=False)
    tokens = python(text) if path.endswith(".py") else _classed(lexer.get_tokens(text))
    lines = [""]
    for colour, words in _pieces(tokens):
        first, *others = html.escape(words, quote=False).split("\n")
        lines[-1] += _coloured(colour, first)
        lines += [_coloured(colour, each) for each in others]
    return tuple(lines[:-1] if lines[-1] == "" else lines)


def _classed(tokens: Iterable[tuple[Any, str]]) -> Iterator[tuple[str, str]]:
    for token, text in tokens:
        yield next((name for kind, name in COLOURS if token in kind), ""), text


def python(text: str) -> Iterator[tuple[str, str]]:
    """(element, text) of Python by its own tokenizer, which is faster than a lexer of every language.

    Raises:
        tokenize.TokenError: text that is not Python.
    """
    lines = list(io.StringIO(text))
    row, column, defines = 1, 0, False
    for token in tokenize.generate_tokens(iter(lines).__next__):
        if token.type in BLANK or not token.string:
            continue
        (first, start), (last, end) = token.start, token.end
        if (first, start) != (row, column):
            yield "", _between(lines, row, column, first, start)
        colour = PYTHON.get(token.type, "")
        if token.type == tokenize.NAME:
            colour = "em" if defines else "b" if keyword.iskeyword(token.string) else ""
            defines = token.string in ("def", "class")
        yield colour, _between(lines, first, start, last, end)
        row, column = last, end
    yield "", _between(lines, row, column, len(lines) + 1, 0)


def _between(lines: Sequence[str], row: int, column: int, last: int, end: int) -> str:
    """The text from one place to another."""
    if row == last:
        return "".join(lines[row - 1 : row])[column:end]
    inner = "".join(lines[row : last - 1])
    return "".join(lines[row - 1 : row])[column:] + inner + "".join(lines[last - 1 : last])[:end]


def _pieces(tokens: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(element, text), neighbours of one element together."""
    before, words = "", ""
    for colour, text in tokens:
        if colour != before and text.strip():
            yield before, words
            before, words = colour, ""
        words += text
    yield before, words


def _coloured(colour: str, text: str) -> str:
    return f"<{colour}>{text}</{colour}>" if colour and text else text
