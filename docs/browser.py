"""Open every page of the built site in Chromium, wide and narrow, light and dark, and fail on what a reader would stumble over.

    python -m docs.browser [build/site] [--out build/docs-test] [--only TEXT]

Checked: errors on the console, failed requests and requests to anywhere else, equations that are not rendered, pages wider than
the window, clauses that are not beside their code (below it on a narrow screen), text that does not stand out from its page,
copy buttons, and the search. Screenshots of every page but those of source are kept under --out. CHROMIUM names the browser.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

WIDTHS = {"wide": (1440, 1000), "narrow": (390, 844)}
Theme = Literal["light", "dark"]
THEMES: dict[Theme, str] = {"light": "default", "dark": "slate"}

#: What a reader asks, and the address and anchor that the answer holds.
SEARCHES = (
    ("OMEGA-5", "specs/omega/", "#omega-5"),
    ("Gradient over the window", "specs/omega/", "#omega-5"),
    ("Without python-flint", "specs/certify/", "#cert-14"),
)

#: What a page says about itself, as lines of what is wrong.
CHECK = Path(__file__).with_name("browser_check.js").read_text().partition("\n")[2]


class Site(SimpleHTTPRequestHandler):
    """The files of the site, without a word on the terminal."""

    def log_message(self, *words: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


def pages(folder: Path) -> list[str]:
    """Addresses of all pages below the site's."""
    found = [path.parent.relative_to(folder).as_posix() for path in folder.rglob("index.html")]
    return sorted("" if each == "." else f"{each}/" for each in found)


class Watch:
    """Complaints of the page that is open: console, requests, what its own check says."""

    def __init__(self, page: Any, base: str) -> None:
        self.page, self.base, self.wrong = page, base, list[str]()
        self.place = ""
        page.on("console", lambda message: self.say(f"console: {message.text}") if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.say(f"script: {error}"))
        page.on("requestfailed", lambda request: self.say(f"request failed: {request.url}"))
        page.on("request", lambda request: self.say(f"outside request: {request.url}") if self.outside(request.url) else None)
        page.on("response", lambda response: self.say(f"status {response.status}: {response.url}") if response.status >= 400 else None)

    def outside(self, url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https", "ws", "wss") and f"{parts.scheme}://{parts.netloc}" != self.base

    def say(self, what: str) -> None:
        self.wrong.append(f"{self.place}: {what}")


def look(watch: Watch, address: str, theme: Theme, out: Path) -> None:
    """One page in every size."""
    watch.page.set_viewport_size(_size("wide"))
    watch.page.goto(f"{watch.base}/{address}", wait_until="load")
    for width in WIDTHS:
        watch.place = f"{address or 'start'} ({width}, {theme})"
        watch.page.set_viewport_size(_size(width))
        for wrong in watch.page.evaluate(CHECK, [width, THEMES[theme]]):
            watch.say(wrong)
        if not address.startswith("source/"):
            name = (address.strip("/") or "start").replace("/", "_")
            watch.page.screenshot(path=out / f"{name}_{width}_{theme}.png")


def search(watch: Watch) -> None:
    """The search finds a clause by its id and by its words, and leads to it."""
    watch.page.set_viewport_size(_size("wide"))
    for query, target, anchor in SEARCHES:
        watch.place = f"search for {query!r}"
        watch.page.goto(f"{watch.base}/", wait_until="load")
        watch.page.click("[data-md-component=search-query]")
        watch.page.type("[data-md-component=search-query]", query)
        link = f'.md-search-result__link[href*="{target}"][href$="{anchor}"]'
        try:
            watch.page.wait_for_selector(link, timeout=15000, state="attached")
        except Exception:
            watch.say(f"does not find {target}{anchor}")


def _size(width: str) -> dict[str, int]:
    return dict(zip(("width", "height"), WIDTHS[width], strict=True))


def browser_path() -> str:
    """Debian's Chromium, or what CHROMIUM names."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        raise SystemExit("docs-test: no Chromium: apt-get install chromium, or name one in CHROMIUM")
    return found


def main() -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m docs.browser", description="Open every page of the site in Chromium.")
    parser.add_argument("site", nargs="?", type=Path, default=Path("build/site"))
    parser.add_argument("--out", type=Path, default=Path("build/docs-test"), help="where screenshots go")
    parser.add_argument("--only", default="", help="pages whose address holds this")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    chosen = [each for each in pages(given.site) if given.only in each]
    with served(given.site) as base, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        wrong: list[str] = []
        for theme in THEMES:  # a reader of its own, since the site remembers the theme
            watch = Watch(browser.new_context(color_scheme=theme).new_page(), base)
            for address in chosen:
                look(watch, address, theme, given.out)
            search(watch)
            wrong += watch.wrong
        browser.close()
    print("\n".join(wrong[:100]))
    print(f"{len(chosen)} pages, {len(WIDTHS)} widths, {len(THEMES)} themes: {len(wrong)} complaints; screenshots in {given.out}")
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
