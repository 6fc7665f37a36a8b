"""Pictures where a page asks for one with `<!-- picture: NAME -->`, each with the command that
draws it.
"""

from __future__ import annotations

import re

from docs.pictures import PICTURES

PLACE = re.compile(r"<!-- picture: (\w+) -->")


def filled(content: str) -> str:
    """The page with its pictures inside, where they take the colour of its text."""
    return PLACE.sub(lambda match: _figure(match[1]), content)


def _figure(name: str) -> str:
    caption = f"<figcaption><code>python -m docs.pictures {name}</code></figcaption>"
    return f'<figure class="picture">{PICTURES[name]()}{caption}</figure>'
