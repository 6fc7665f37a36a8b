"""The check of the site in Chromium: complaints where a reader would stumble, and nowhere else.

It needs the extra docs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from docs import browser, equations
from docs.reader import TRIES, Reader
from docs.site_server import served

pytest.importorskip("playwright", reason="playwright comes with the extra docs")
from playwright.async_api import TimeoutError as TooLong

try:
    browser.browser_path()
except LookupError as missing:
    pytest.skip(str(missing), allow_module_level=True)

PAGES = Path(__file__).parents[2] / "docs/pages"
STYLE = """<style>
body { margin: 0; background: #fff; color: #000 } body[data-md-color-scheme=slate] { background: #222; color: #eee }
.clause { display: grid; grid-template-columns: minmax(0, 1fr) } @media (min-width: 60em) { .clause { grid-template-columns: 1fr 1fr } }
</style>"""
#: As much of the theme as the check asks for: a switch whose choice is remembered.
THEME = """<form data-md-component="palette"><label>switch</label></form><script>
const wanted = () => localStorage.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "slate" : "default");
document.body.setAttribute("data-md-color-scheme", wanted());
document.querySelector("label").onclick = () => {
  localStorage.theme = wanted() === "slate" ? "default" : "slate";
  document.body.setAttribute("data-md-color-scheme", wanted());
};
</script>"""
GOOD = (
    '<div class="clause"><div class="contract">what</div><div class="beside"><p>how</p></div></div>'
)


#: An equation as KaTeX leaves it.
DRAWN = '<span class="arithmatex"><span class="katex-html">x</span></span>'


def complaints(folder: Path, body: str, theme: str = THEME) -> list[str]:
    """Complaints of one reader about a page, without the place.

    The place stays where it differs between sizes.
    """
    page = (
        '<!doctype html><link rel="icon" '
        f'href="data:,"><head>{STYLE}</head><body>{theme}<article>{body}</article></body>'
    )
    (folder / "a").mkdir()
    (folder / "a/index.html").write_text(page)

    async def look() -> list[str]:
        from playwright.async_api import async_playwright

        with served(folder) as base:
            async with async_playwright() as playwright:
                started = await playwright.chromium.launch(
                    executable_path=browser.browser_path(), args=["--no-sandbox"]
                )
                reader = Reader(await started.new_page(), base, "light", folder)
                await reader.tried(reader.look("a/"))
                await started.close()
        return reader.wrong

    return asyncio.run(look())


def test_a_good_page_is_looked_at_four_times_and_has_no_complaint(tmp_path: Path) -> None:
    assert complaints(tmp_path, f"{GOOD}<p>{DRAWN}</p>") == []
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "a_narrow_dark.png",
        "a_wide_light.png",
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("body", "said", "places"),
    [
        ('<script>console.error("no")</script>', "console: no", 1),
        ("<script>throw Error('lost')</script>", "script: lost", 1),
        ('<img src="https://cdn.invalid/x.png">', "outside request: https://cdn.invalid/x.png", 1),
        ('<img src="missing.png">', "status 404: ", 1),
        ("<p>\\(x_1\\)</p>", "equation not rendered: \\(x_1\\)", 4),
        ("<p>step\\_size</p>", "equation not rendered: step\\_size", 4),
        ('<span class="arithmatex">x</span>', "equation not rendered: x", 4),
        (DRAWN.replace("x<", '<i class="katex-error">y</i><'), "equation not rendered: y", 4),
        (
            '<pre><code style="display: block; overflow: auto">' + "x" * 100 + "</code></pre>",
            "code is cut: xxx",
            2,
        ),
        ('<div style="width: 600px">wide</div>', "600 wide in a window of 390", 2),
        (
            '<div class="clause"><div class="contract">alone</div></div>',
            "a clause without its two sides: alone",
            4,
        ),
        (
            GOOD.replace('class="clause"', 'class="clause" style="display: block"'),
            "not beside: what",
            2,
        ),
        (
            GOOD.replace('class="clause"', 'class="clause" style="grid-template-columns: 1fr 1fr"'),
            "not below: what",
            2,
        ),
        (GOOD.replace('class="clause"', 'class="clause whole"'), "not below: what", 2),
        (f'<h3 id="x-1">X-1</h3>{GOOD}', "not in the navigation: x-1", 4),
        (
            "<style>article { color: #333 }</style>",
            "text (51) does not stand out from the page (34)",
            2,
        ),
        ('<div class="highlight"><pre><code>x</code></pre></div>', "no copy button", 4),
    ],
)
def test_what_is_wrong_with_a_page_is_said(
    body: str, said: str, places: int, tmp_path: Path
) -> None:
    found = [each for each in complaints(tmp_path, body) if said in each]
    assert len(found) == places
    assert all(each.startswith("a/") for each in found)


def test_a_theme_that_is_not_switched_is_said(tmp_path: Path) -> None:
    still = THEME.replace("document.querySelector", "document.createElement").replace(
        '("label")', '("i")'
    )
    found = complaints(tmp_path, GOOD, still)
    assert found == [
        f"a/ ({width}, dark): the theme is default, not slate" for width in ("narrow", "wide")
    ]


def test_what_stops_a_reader_is_a_complaint(tmp_path: Path) -> None:
    *before, last = complaints(tmp_path, GOOD, theme="")
    assert before == [
        f"a/ ({width}, light): the theme is null, not default" for width in ("wide", "narrow")
    ]
    assert last.startswith(
        "a/ (narrow, light): Error: Page.evaluate: TypeError: Cannot read properties of null"
    )


@pytest.mark.parametrize(("stalls", "drawn"), [(0, True), (TRIES - 1, True), (TRIES, False)])
def test_a_picture_that_is_not_drawn_is_asked_for_again(
    stalls: int, drawn: bool, tmp_path: Path
) -> None:
    asked = []

    class Page:
        """A page whose first frames are never drawn."""

        def set_default_timeout(self, patience: float) -> None: ...

        def on(self, event: str, answer: object) -> None: ...

        async def screenshot(self, path: Path, timeout: float) -> None:
            asked.append(timeout)
            if len(asked) <= stalls:
                raise TooLong("no frame")
            path.write_bytes(b"picture")

    reader = Reader(Page(), "http://127.0.0.1", "light", tmp_path)
    asyncio.run(reader.tried(reader.picture(tmp_path / "page.png")))
    assert len(asked) == min(stalls + 1, TRIES)
    assert (tmp_path / "page.png").exists() == drawn
    assert bool(reader.wrong) != drawn


#: A brace over two lines, conditions, names with an underscore, and more than a line holds.
EQUATIONS = (
    '<div class="arithmatex">\\[R_t = \\begin{cases} M_t & \\text{after\\_error}\\\\ '
    "\\mathrm{retain}_t\\,M_t & \\text{before\\_error} \\end{cases} \\qquad "
    "a_t = b_t + c_t + d_t + e_t \\qquad f_t = g_t + h_t + i_t + j_t\\]</div>"
)


def drawn(folder: Path, scripts: bool) -> dict[str, Any]:
    """A narrow page with equations: its words, heights and widths."""
    from playwright.sync_api import sync_playwright

    marked, _ = equations.marked(EQUATIONS, "x.md")
    for name, content in equations.assets():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = content.read_bytes() if isinstance(content, Path) else content.encode()
        (folder / name).write_bytes(data)
    for name in ("javascripts/equations.js", "stylesheets/site.css"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((PAGES / name).read_bytes())
    style = '<link rel="stylesheet" href="stylesheets/site.css">'
    (folder / "index.html").write_text(
        f"<!doctype html><body>{style}{equations.loading('.')}<article>{marked}</article></body>"
    )
    with served(folder) as base, sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=browser.browser_path(), args=["--no-sandbox"]
        )
        context = started.new_context(
            java_script_enabled=scripts, viewport={"width": 390, "height": 800}
        )
        page = context.new_page()
        page.goto(base, wait_until="load")
        boxes = [each.bounding_box() for each in page.locator(".equation > span").all()]
        large = page.locator(".delimsizing.size3, .delimsizing.size4, .delimsizing.mult")
        found = {
            "words": page.locator("article").inner_text(),
            "boxes": boxes,
            "braces": large.count(),
            "shown": [each.inner_text() for each in page.locator(".katex-html").all()],
        }
        started.close()
    return found


def test_equations_are_drawn_with_their_braces_and_words_and_wrap_where_a_line_is_full(
    tmp_path: Path,
) -> None:
    if not equations.KATEX.is_dir():
        pytest.skip("make docs installs KaTeX")
    found = drawn(tmp_path, scripts=True)
    shown = "".join(found["shown"]).replace("\N{NO-BREAK SPACE}", " ")
    assert "after_error" in shown
    assert "\\" not in shown
    assert found["braces"] == 1  # of the size for two lines
    assert len(found["boxes"]) == 3
    first, second, third = found["boxes"]
    assert first["height"] > 2 * second["height"]
    assert third["y"] >= second["y"] + second["height"]  # below one another in 390 pixels
    assert all(each["x"] + each["width"] <= 390 for each in found["boxes"])


def test_without_scripts_an_equation_is_its_source(tmp_path: Path) -> None:
    if not equations.KATEX.is_dir():
        pytest.skip("make docs installs KaTeX")
    assert "\\[a_t = b_t + c_t + d_t + e_t\\]" in drawn(tmp_path, scripts=False)["words"]
