"""Links from the reference to the lines of the source that define each name."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from docs import links

HEADING = re.compile(
    r'(<h\d id="((?:atlas_ref|tape)[\w.]*)" class="doc doc-heading">.*?)(</h\d>)', re.DOTALL
)


def filled(content: str, page: str, root: Path) -> str:
    """The page with a link to its source in the heading of each module, class and function."""

    def replace(match: re.Match[str]) -> str:
        place = where(match[2], root)
        if place is None:
            return match[0]
        target = links.relative(links.page_of(place[0]), page.removesuffix(".md") + "/index.html")
        return (
            f'{match[1]} <a class="source-link" href="{target}#L-{place[1]}">source</a>{match[3]}'
        )

    return HEADING.sub(replace, content)


def where(name: str, root: Path) -> tuple[str, int] | None:
    """File and line of what a dotted name means; nothing where it is a value or a field."""
    found = _found(name)
    if inspect.ismodule(found):
        return Path(found.__file__ or "").relative_to(root).as_posix(), 1
    found = inspect.unwrap(found) if callable(found) else found
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return None
    path = Path(inspect.getfile(found))
    if not path.is_relative_to(root):
        return None
    return path.relative_to(root).as_posix(), inspect.getsourcelines(found)[1] or 1


def _found(name: str) -> Any:
    """The object of a dotted name, or nothing."""
    parts = name.split(".")
    for number in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:number]))
        except ModuleNotFoundError:
            continue
        for part in parts[number:]:
            found = inspect.getattr_static(found, part, None)
            found = getattr(found, "fget", getattr(found, "__func__", found))
        return found
    return None
