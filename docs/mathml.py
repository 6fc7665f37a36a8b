"""Equations as MathML, made when the site is built.

So a page needs no network and no script for them.
"""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert

SPAN = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
MATH = re.compile(r"\$\$.*?\$\$|(?<!\$)\$[^$]+\$", re.DOTALL)
BETWEEN = re.compile(r"\$\$\s+\$\$")  # arithmatex takes blocks on neighbouring lines for one
NAMESPACE = "http://www.w3.org/1998/Math/MathML"
BARS = ("\u00af", "\u2015", "\u203e")
COMMAND = re.compile(r"\\[a-zA-Z]+")

ElementTree.register_namespace("", NAMESPACE)


class EquationError(ValueError):
    """An equation that does not become MathML."""


def rendered(content: str, page: str) -> str:
    """The page with every equation that pymdownx.arithmatex marked as MathML.

    Raises:
        EquationError: the page and the equation, where a command is unknown.
    """

    def replace(match: re.Match[str]) -> str:
        block = match[2] == "["
        equations = [
            mathml(each, page, block=block) for each in BETWEEN.split(html.unescape(match[3]))
        ]
        return "".join(
            f'<div class="equation" tabindex="0">{math}</div>' if block else math
            for math in equations
        )

    return SPAN.sub(replace, content)


def mathml(latex: str, page: str, *, block: bool) -> str:
    """One equation; a block of several lines is one `math` element."""
    if "$" in latex:
        raise EquationError(f"{page}: {latex!r}: a dollar sign inside of an equation")
    try:
        markup = convert(latex.strip(), display="block" if block else "inline")
    except Exception as error:
        raise EquationError(f"{page}: {latex!r}: {type(error).__name__}: {error}") from error
    commands = COMMAND.findall(markup)
    if commands:
        raise EquationError(f"{page}: {latex!r}: {', '.join(commands)} is not known")
    return _barred(markup).replace(
        "<math ", f'<math alttext="{html.escape(latex.strip(), quote=True)}" ', 1
    )


def _barred(math: str) -> str:
    """The same markup with every bar over a symbol drawn by the style sheet.

    Fonts without a table for mathematics hide the bar in the letter.
    """
    tree = ElementTree.fromstring(math)
    for each in tree.iter(f"{{{NAMESPACE}}}mover"):
        if len(each) == 2 and (each[1].text or "") in BARS:
            each.tag = f"{{{NAMESPACE}}}mrow"
            each.set("class", "bar")
            each.remove(each[1])
    return ElementTree.tostring(tree, encoding="unicode")


def without_tags(text: str) -> str:
    """Markdown whose equations hold no sign that could begin a tag: i<c as i\\lt c."""
    return MATH.sub(lambda match: match[0].replace("<", r"\lt ").replace(">", r"\gt "), text)
