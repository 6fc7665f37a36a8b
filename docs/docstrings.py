"""Extension of the API reference: names described together, `d_in, d_out: ...`, stay together."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: Names before a colon, two at least, with a shape behind them or none. Griffe takes what follows
#: the first blank for a type.
TOGETHER = re.compile(r"^( +)(\w+(?:, \w+)+)(?=(?: \([^\n]*?\))?: )", re.MULTILINE)


def joined(text: str) -> str:
    """The text with no-break spaces between such names."""
    return TOGETHER.sub(
        lambda match: match[1] + match[2].replace(", ", ",\N{NO-BREAK SPACE}"), text
    )


class Together(griffe.Extension):
    """Extension that mkdocstrings calls for every function, class and module."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = joined(obj.docstring.value)
