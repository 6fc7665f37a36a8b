"""Places of the repository's files on the site.

Specs and other Markdown files are pages. Every source file is a page with its lines.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from docs.clauses.specs import ID, Clause

ROOT = Path(__file__).absolute().parents[1]
LINK = re.compile(r"(?<!\!)\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\(([^)\s]+)\)")
#: Text where no clause ids are linked: code, equations, links, headings, tags.
PROTECTED = re.compile(
    r"(```.*?```|^    .*?$|`[^`]*`|\$\$.*?\$\$|\$[^$\n]+(?:\n[^$\n]+)?\$|\[[^\]]*\]\([^)]*\)|^#+ .*?$|<[^>]+>)",
    re.DOTALL | re.MULTILINE,
)
COPIED = ("CONTRIBUTING.md", "CHANGELOG.md", "docs/contents.md")


def page_of(path: str) -> str:
    """The page (as a source file of mkdocs) that shows a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/pages/") and path.endswith(".md"):
        return path.removeprefix("docs/pages/")
    if (
        path.startswith("specs/")
        or path in COPIED
        or (path.endswith(".md") and path.startswith(("examples/", "benchmarks/", "vectors/")))
    ):
        return path
    return f"source/{path}.html"


def relative(target: str, page: str) -> str:
    """A link from one page to another, as Markdown wants it."""
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def line_link(path: str, line: int, page: str) -> str:
    """Link to a line of a source file."""
    return f"{relative(page_of(path), page)}#L-{line}"


def clause_link(clause: Clause, page: str) -> str:
    target = page_of(clause.path)
    return ("" if target == page else relative(target, page)) + f"#{clause.id.lower()}"


def moved(text: str, path: str, page: str) -> str:
    """The text of a file of the repository with its relative links leading to pages of the site."""

    def replace(match: re.Match[str]) -> str:
        words, (target, _, fragment) = match[1], match[2].partition("#")
        if ":" in target or not target:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        # a clause, by the name of its page alone
        if not fragment and file.startswith("specs/") and ID.fullmatch(words):
            fragment = words.lower()
        if (ROOT / file).is_dir():
            file = posixpath.join(file, "README.md")
        where = relative(page_of(file), page) + (f"#{fragment}" if fragment else "")
        return f"[{words}]({where})"

    return LINK.sub(replace, text)


def linked(text: str, link: Callable[[str], str | None]) -> str:
    """The text with every clause id outside code, equations and links made a link."""

    def one(match: re.Match[str]) -> str:
        target = link(match[1])
        return f"[{match[1]}]({target})" if target else match[1]

    parts = PROTECTED.split(text)
    return "".join(part if i % 2 else ID.sub(one, part) for i, part in enumerate(parts))
