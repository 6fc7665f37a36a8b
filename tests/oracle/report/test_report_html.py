"""The page of a report: whole, without loads, with words for all that it shows, drawn by a
browser.
"""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import atlas_ref
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.report import style as report_style
from atlas_ref.oracle.report.report import Run, place
from tests.support.casefiles import some
from tests.support.reported import reported, write_cases


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cases(tmp_path / "cases")
    return tmp_path


class Page(HTMLParser):
    """Tags that stay open, and all attributes."""

    VOID = ("meta", "rect")

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.clause("SRC-19")
def test_the_page_is_whole_and_loads_nothing(cli, folder):
    _, text = reported(cli, ".html")
    page = Page()
    page.feed(text)
    assert page.open == []
    names = {name for _, name, _ in page.attributes}
    assert names.isdisjoint({"src", "srcset", "onclick", "onload", "action", "style"})
    assert all(value.startswith("#case-") for _, name, value in page.attributes if name == "href")
    assert "<script" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    labels = [value for _, name, value in page.attributes if name in ("aria-labelledby",)]
    assert set(labels) <= set(ids)
    assert "prefers-color-scheme: dark" in text
    assert "void <b>&" in page.words
    assert "<b>" not in text


@pytest.mark.clause("SRC-13", "SRC-19")
def test_each_strip_of_the_heat_map_says_what_it_shows(cli, folder):
    _, text = reported(cli, ".html")
    labels = re.findall(r'<svg class="strip" role="img" aria-label="([^"]*)"', text)
    assert "out/y: WRONG, beyond its tolerance in 4 of 6 cells, first at token 2" in labels
    assert labels.count("out/y: PASS, within tolerance throughout") == 3
    (strip,) = re.findall(r'aria-label="out/y: WRONG, .*?</svg>', text)
    assert len(re.findall("<g>", strip)) == 6
    assert len(re.findall('class="bar"', strip)) == 4
    assert re.findall(r"<title>out/y, token (\d)", strip) == list("012345")
    assert all(f'class="swatch l{i}"' in text for i in range(len(report_style.STEPS)))


@pytest.mark.clause("SRC-19")
def test_failing_cases_come_first_and_stand_open(cli, folder):
    _, text = reported(cli, ".html")
    names = re.findall(r'<h2 id="name-\d+">([^<]*)</h2>(<div class="failure">|<details>)', text)
    assert names == [
        ("hole", '<div class="failure">'),
        ("late", '<div class="failure">'),
        ("reserved", "<details>"),
        ("right", "<details>"),
        ("void &lt;b&gt;&amp;", "<details>"),
    ]


def contrast(one, two):
    """The contrast ratio of WCAG."""

    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((light(one), light(two)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.clause("SRC-19")
@pytest.mark.parametrize("theme", [report_style.LIGHT, report_style.DARK], ids=["light", "dark"])
def test_words_and_bars_can_be_told_from_their_ground(theme):
    for word in ("ink", "soft", "link", "good", "bad", "warn"):
        for ground in ("ground", "card"):
            assert contrast(theme[word], theme[ground]) >= 4.5, (word, ground)
    cells = [theme[f"l{i}"] for i in range(len(report_style.STEPS))]
    assert len(set(cells)) == len(cells)


@pytest.mark.clause("SRC-19")
def test_the_steps_are_ordered_and_1_is_allowed():
    assert [report_style.level(x) for x in (0.0, 0.01, 0.02, 1.0, 1.0001, 1e3, 1e7)] == [
        0,
        0,
        1,
        2,
        3,
        4,
        6,
    ]
    assert report_style.level(float("nan")) == report_style.level(float("inf")) == 6
    assert [step.beyond for step in report_style.STEPS] == [False] * 3 + [True] * 4


def test_a_long_sequence_stays_a_short_page():
    header, tensors = some("hebbian", tokens=3000, d_in=2, d_out=2, heads=1, cotangent=False)
    case = atlas_ref.make(header, tensors)
    answer = Answer({"out/y": atlas_ref.evaluate(case).tensors["out/y"] + 1.0})
    run = Run(nearest=False)
    run.add(checked(case, source=lambda _: answer))
    profile = run.report().rows[0].profile
    assert (len(profile.ratios), profile.width) == (125, 24)
    assert len(place(Path("a.html")).form(run.report())) < 60_000


def test_the_page_is_drawn_by_a_browser(cli, folder):
    """The page in a narrow window of a browser, where there is one."""
    import shutil

    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on this machine")
    reported(cli, ".html")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    flags += ["--disable-component-update", "--disable-sync", "--disable-quic"]
    ended = subprocess.run(
        [browser, *flags, "--window-size=500,900", f"--user-data-dir={folder / 'profile'}", "--screenshot=page.png", f"file://{folder}/out.html"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0
    assert Path("page.png").stat().st_size > 10_000
