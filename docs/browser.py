"""Check every page of the built site in Chromium, wide and narrow, light and dark.

    python -m docs.browser [build/site] [--out build/docs-test] [--only TEXT] [--jobs N]

Checked: errors on the console, failed requests and requests to anywhere else, equations that are
not rendered, pages wider than the window, clauses that are not beside their code (below it on a
narrow screen), text that does not stand out from its page, copy buttons, the search, and the way
from a clause to its proofs. Screenshots of every page but those of source are kept under --out.
CHROMIUM names the browser.

A page is loaded once and checked four times: a reader makes the window narrow and presses the
switch of the theme. The site remembers that theme, so half of the pages are loaded light and half
dark. Transitions and animations are switched off. Pages of source code and of recorded cases are
the majority and come from one template each: every twentieth of a kind is read, in one theme each, and
`docs.check_links` reads them all. Several readers share the pages among them. The search is checked
on the start page, and only that page gets the entries of the index.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from docs.reader import CASES, SOURCE, THEMES, WIDTHS, Reader
from docs.site_server import served

#: Of the pages of source code, and of those of recorded cases, every twentieth is read.
EVERY = 20
STILL = """addEventListener("DOMContentLoaded", () => {
  const style = document.createElement("style");
  style.textContent = "*, ::before, ::after { transition: none !important; animation: none !important; scroll-behavior: auto !important }";
  document.head.append(style);
})"""


def pages(folder: Path) -> list[str]:
    """Addresses of all pages below the site's."""
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*.html")]
    return sorted(each.removesuffix("index.html") for each in paths if each != "404.html")


def chosen(addresses: Iterable[str]) -> list[str]:
    """The pages that are read: of source code and of recorded cases every twentieth."""
    found, seen = [], dict.fromkeys((SOURCE, CASES), 0)
    for address in addresses:
        kind = next((each for each in seen if address.startswith(each)), None)
        if kind is not None:
            seen[kind] += 1
        if kind is None or seen[kind] % EVERY == 1:
            found.append(address)
    return found


def browser_path() -> str:
    """The path of Debian's Chromium, or of the browser that CHROMIUM names."""
    path = shutil.which(os.environ.get("CHROMIUM") or "chromium") or shutil.which(
        "chromium-browser"
    )
    if not path:
        raise LookupError("no Chromium: apt-get install chromium, or name one in CHROMIUM")
    return path


async def read(base: str, addresses: list[str], out: Path, jobs: int) -> list[str]:
    """Complaints of all readers, who share the pages among them.

    A reader takes the next page when it is done with one. The search is checked in each theme.
    """
    from playwright.async_api import async_playwright

    queue = iter(addresses)

    async def reads(reader: Reader, searches: bool) -> list[str]:
        if searches:
            await reader.tried(reader.search())
            await reader.tried(reader.follow())
        for address in queue:
            await reader.tried(reader.look(address))
        return reader.wrong

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox"]
        )
        readers = []
        for number in range(max(jobs, len(THEMES))):
            theme = list(THEMES)[number % len(THEMES)]  # what the system of this reader prefers
            context = await browser.new_context(color_scheme=theme, reduced_motion="reduce")
            await context.add_init_script(STILL)
            readers.append(
                reads(Reader(await context.new_page(), base, theme, out), number < len(THEMES))
            )
        complaints = await asyncio.gather(*readers)
        await browser.close()
    return sorted(wrong for each in complaints for wrong in each)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m docs.browser", description="Open every page of the site in Chromium."
    )
    parser.add_argument("site", nargs="?", type=Path, default=Path("build/site"))
    parser.add_argument(
        "--out", type=Path, default=Path("build/docs-test"), help="where screenshots go"
    )
    parser.add_argument("--only", default="", help="pages whose address holds this")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="readers at a time, two at least: one in each theme",
    )
    options = parser.parse_args()
    started = time.monotonic()
    addresses = [each for each in chosen(pages(options.site)) if options.only in each]
    if not addresses:
        parser.error(
            f"{options.site}: no page"
            + (
                f" whose address holds {options.only!r}"
                if options.only
                else "; make docs builds them"
            )
        )
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        with served(options.site) as base:
            wrong = asyncio.run(read(base, addresses, options.out, options.jobs))
    except (ImportError, LookupError) as error:
        parser.error(str(error))
    print("\n".join(wrong[:100]))
    print(
        f"{len(addresses)} of {len(pages(options.site))} pages, {len(WIDTHS)} widths, {len(THEMES)} themes in "
        f"{time.monotonic() - started:.0f} s: "
        f"{len(wrong)} complaints; screenshots in {options.out}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
