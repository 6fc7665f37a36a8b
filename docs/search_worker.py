"""The worker of the search, with lunr's tree of terms mended.

lunr names a node by its letters and the numbers of the nodes below, one after the other. Where a
letter is a digit two nodes may read the same, and lunr takes them for one. It then loses other words,
such as every one that begins with "window". A sign behind each number keeps the names apart.
"""

from __future__ import annotations

from pathlib import Path

WORKERS = "assets/javascripts/workers/search.*.js"
NAME, APART = "e=e+s+o.id}return e}", 'e=e+s+o.id+","}return e}'


def mend(site: Path) -> None:
    """Rewrite the worker of a site.

    Raises:
        ValueError: a theme whose worker names nodes in another way.
    """
    paths = list(site.glob(WORKERS))
    if [path.read_text().count(NAME) for path in paths] != [1]:
        raise ValueError(f"{WORKERS}: not one worker that holds {NAME!r} once")
    paths[0].write_text(paths[0].read_text().replace(NAME, APART))
