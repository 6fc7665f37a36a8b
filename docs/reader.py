"""A reader of the site: a browser window that visits its pages and says what is wrong with them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

WIDTHS = {"wide": (1280, 900), "narrow": (390, 844)}
Theme = Literal["light", "dark"]
THEMES: dict[Theme, str] = {"light": "default", "dark": "slate"}

#: A query, and the address and anchor of its result.
SEARCHES = (
    ("OMEGA-5", "specs/omega/", "#omega-5"),
    ("Gradient over the window", "specs/omega/", "#omega-5"),
    ("Without python-flint", "specs/certify/", "#cert-14"),
)
RESULT = ".md-search-result__link"
#: Words that specs or the tutorial explain, and code names: their results come first.
EXPLAINED, EXPLAINING = ("residual", "window", "check kernel"), ("specs/", "tutorial/")
#: A clause from which a reader follows the links to its proofs.
CLAUSE = ("specs/omega/", "#omega-5")
#: Pages of source code, and of recorded cases.
SOURCE, CASES = "source/", "vectors/"

#: Milliseconds for one step of a reader, on a machine that has other work.
PATIENCE = 120_000
TRIES = 3  # of a screenshot

#: The failure of a request that was cut off, such as that for the icon.
LEFT = "net::ERR_ABORTED"

#: A page's check of itself, which returns one line for each fault.
CHECK = Path(__file__).with_name("browser_check.js").read_text().partition("\n")[2]
SHOWN = """async () => {
  if (!location.hash) return true;
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  await new Promise(requestAnimationFrame);
  const box = found && found.getBoundingClientRect();
  return Boolean(box && box.top >= 0 && box.top < innerHeight);
}"""
SWITCH = "() => document.querySelector('[data-md-component=palette] label:not([hidden])').click()"


#: Words of titles that the search does not find, by the worker that the page itself asks. It drops
#: some words from every text.
LOST = """async () => {
  const { base, search } = JSON.parse(document.getElementById("__config").textContent);
  const { config, docs } = await (await fetch(`${base}/search/search_index.json`)).json();
  const worker = new Worker(new URL(search, location));
  const answer = (type, data, wanted) => new Promise(done => {
    worker.onmessage = event => event.data.type === wanted && done(event.data.data);
    worker.postMessage({ type, data });
  });
  await answer(0, { config, docs, options: { suggest: true } }, 1);
  const dropped = ["cannot", "least", "must", "than"], lost = [];
  const words = new Set(docs.flatMap(each => each.title.toLowerCase().split(/[\\s-]+/)));
  for (const word of words) {
    if (!/^[a-z]{3,}$/.test(word) || dropped.includes(word)) continue;
    if (!(await answer(2, word, 3)).items.length) lost.push(word);
  }
  worker.terminate();
  return [words.size, lost.join(" ")];
}"""


class Reader:
    """A browser window that visits page after page and collects complaints.

    They come from the console, from requests and from the page's own check.
    """

    def __init__(self, page: Any, base: str, theme: Theme, out: Path) -> None:
        self.page, self.base, self.theme, self.out = page, base, theme, out
        self.place, self.wrong = "", list[str]()
        page.set_default_timeout(PATIENCE)
        page.on(
            "console",
            lambda message: (
                self.say(f"console: {message.text}")
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: self.say(f"script: {error}"))
        page.on(
            "requestfailed",
            lambda request: (
                self.say(f"request failed: {request.url}") if request.failure != LEFT else None
            ),
        )
        page.on(
            "request",
            lambda request: (
                self.say(f"outside request: {request.url}") if self.outside(request.url) else None
            ),
        )
        page.on(
            "response",
            lambda response: (
                self.say(f"status {response.status}: {response.url}")
                if response.status >= 400
                else None
            ),
        )

    def outside(self, url: str) -> bool:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https", "ws", "wss")
            and f"{parts.scheme}://{parts.netloc}" != self.base
        )

    def say(self, what: str) -> None:
        self.wrong.append(f"{self.place}: {what}")

    async def tried(self, work: Awaitable[None]) -> None:
        """Await a visit; an exception becomes a complaint, and the reader goes on."""
        try:
            await work
        except Exception as error:
            self.say(f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}")

    async def open(self, address: str) -> None:
        await self.page.goto(f"{self.base}/{address}", wait_until="load")

    async def look(self, address: str) -> None:
        """Check one page in every size and theme, or one of source code or cases in one theme."""
        self.place = address or "start"
        await self.open(address)
        for width in WIDTHS:
            await self.check(address, width)
        if address.startswith((SOURCE, CASES)):
            return
        await self.switch()
        for width in reversed(WIDTHS):
            await self.check(address, width)

    async def check(self, address: str, width: str) -> None:
        """Run the page's own check at this size, and take a screenshot."""
        self.place = f"{address or 'start'} ({width}, {self.theme})"
        await self.page.set_viewport_size(_size(width))
        for wrong in await self.page.evaluate(CHECK, [width, THEMES[self.theme]]):
            self.say(wrong)
        # a picture in each size and in each theme, of the four states two
        if not address.startswith(SOURCE) and (width == "wide") == (self.theme == "light"):
            name = (address.strip("/") or "start").replace("/", "_")
            await self.picture(self.out / f"{name}_{width}_{self.theme}.png")

    async def picture(self, path: Path) -> None:
        """Take a screenshot, again where headless Chromium never draws the frame."""
        from playwright.async_api import TimeoutError as TooLong

        for _ in range(TRIES - 1):
            with contextlib.suppress(TooLong):
                await self.page.screenshot(path=path, timeout=PATIENCE / 4)
                return
        await self.page.screenshot(path=path, timeout=PATIENCE)

    async def switch(self) -> None:
        """Press the switch of the theme."""
        await self.page.evaluate(SWITCH)
        self.theme = "dark" if self.theme == "light" else "light"

    async def search(self) -> None:
        """Check that the search finds a clause by its id, and every word of a title."""
        self.place = "search for all words"
        await self.open("")
        words, lost = await self.page.evaluate(LOST)
        if not words or lost:
            self.say(f"of {words} words it does not find: {lost}")
        for query, target, anchor in SEARCHES:
            await self.ask(query)
            link = f'{RESULT}[href*="{target}"][href$="{anchor}"]'
            try:
                await self.page.wait_for_selector(link, timeout=PATIENCE / 2, state="attached")
            except Exception:
                self.say(f"does not find {target}{anchor}")
        for query in EXPLAINED:
            await self.ask(query)
            await self.page.wait_for_selector(RESULT, timeout=PATIENCE / 2, state="attached")
            first = await self.page.locator(RESULT).first.get_attribute("href") or ""
            if not urlsplit(first).path.lstrip("/").startswith(EXPLAINING):
                self.say(f"finds {first} first")

    async def ask(self, query: str) -> None:
        """Type a query on the start page."""
        self.place = f"search for {query!r}"
        await self.open("")
        await self.page.click("[data-md-component=search-query]")
        await self.page.type("[data-md-component=search-query]", query)

    async def follow(self) -> None:
        """Follow a clause to its test, its erratum and its recorded cases, as a reader clicks."""
        page, anchor = CLAUSE
        for kind in ("test", "erratum", "vector"):
            self.place = f"from {page}{anchor} to its {kind}"
            await self.open(f"{page}{anchor}")
            proof = self.page.locator(f"h3{anchor} + .clause details.{kind}")
            if not await proof.count():
                self.say("there is none")
                continue
            if await proof.get_attribute("open") is None:
                await proof.locator("summary").click()
            link = proof.locator("a").first
            target = urljoin(self.page.url, await link.get_attribute("href"))
            await link.click()
            await self.page.wait_for_url(target)
            if not await self.page.evaluate(SHOWN):
                self.say(f"{target} is not on the screen")


def _size(width: str) -> Any:
    return dict(zip(("width", "height"), WIDTHS[width], strict=True))
