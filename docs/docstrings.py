"""For the API reference: arguments and attributes that a docstring describes together, `d_in, d_out: ...`, keep their names together."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: Names before a colon, two at least, with a shape behind them or none. Griffe takes what follows the first blank for a type.
TOGETHER = re.compile(r"^( +)(\w+(?:, \w+)+)(?=(?: \([^\n]*?\))?: )", re.MULTILINE)


def joined(text: str) -> str:
    """The text with blanks between such names that do not part them."""
    return TOGETHER.sub(lambda match: match[1] + match[2].replace(", ", ",\N{NO-BREAK SPACE}"), text)


class Together(griffe.Extension):
    """Called by mkdocstrings for every function, class and module."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = joined(obj.docstring.value)
