"""Check of the built site: every link and anchor resolves, and nothing is loaded from elsewhere.

python -m docs.check_links [FOLDER]
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes by which a browser loads something on its own.
LOADING = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
    "link": "href",
}
#: Links of a page's head that a browser does not load.
NOT_LOADED = {"canonical", "prev", "next", "alternate", "edit"}


class Page(HTMLParser):
    """Links, anchors and loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[int, str]] = []
        self.loaded: list[tuple[int, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        line, _ = self.getpos()
        for key in ("id", "name"):
            if attributes.get(key) and not (key == "name" and tag != "a"):
                self.anchors.add(attributes[key] or "")
        if tag == "a" and attributes.get("href"):
            self.links.append((line, attributes["href"] or ""))
        if (
            tag in LOADING
            and attributes.get(LOADING[tag])
            and not set((attributes.get("rel") or "").split()) & NOT_LOADED
        ):
            self.loaded.append((line, attributes[LOADING[tag]] or ""))


def problems(folder: Path) -> Iterator[str]:
    """One line for each link that leads nowhere and each file that is loaded from elsewhere."""
    pages = {
        path.relative_to(folder).as_posix(): Page(path.read_text())
        for path in sorted(folder.rglob("*.html"))
    }
    for name, page in pages.items():
        if name == "404.html":  # its links are from the root of a host
            continue
        for line, link in [*page.links, *page.loaded]:
            target = _target(folder, name, link)
            if target is None:
                continue
            path, fragment = target
            if not (folder / path).is_file():
                yield f"{name}:{line}: {link}: there is no {path}"
            elif fragment and path in pages and fragment not in pages[path].anchors:
                yield f"{name}:{line}: {link}: {path} has no anchor {fragment}"
        for line, link in page.loaded:
            if urlsplit(link).netloc:
                yield f"{name}:{line}: {link} is loaded from elsewhere"


def _target(folder: Path, page: str, link: str) -> tuple[str, str] | None:
    """(file, fragment) of a link within the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = (
        page
        if not parts.path
        else posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
    )
    if (folder / path).is_dir():
        path = posixpath.normpath(posixpath.join(path, "index.html"))
    return path, unquote(parts.fragment)


def main(folder: str = "build/site", *others: str) -> int:
    if others or not any(Path(folder).rglob("*.html")):
        print(
            f"{folder}: one folder is needed, with a site in it; make docs builds one",
            file=sys.stderr,
        )
        return 2
    broken = list(problems(Path(folder)))
    print(
        "\n".join(
            [
                *broken[:50],
                f"{len(broken)} broken links" if broken else "every link leads somewhere",
            ]
        )
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
