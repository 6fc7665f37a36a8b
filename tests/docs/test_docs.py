"""Refusals of the docs build, where a reader would stumble over a page.

The site itself is judged by `make docs` and `make docs-test`.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from docs import (
    benchmark_page,
    browser,
    check_links,
    links,
    vector_pages,
)
from docs.generated import copied, specs
from docs.site_server import served
from docs.source_pages import files

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/pages"


def site(folder: Path, **pages: str) -> list[str]:
    """The check of links on a site with these pages."""
    for name, body in pages.items():
        path = (
            folder / name.replace("__", "/") / "index.html"
            if name != "start"
            else folder / "index.html"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<html><body>{body}</body></html>")
    return list(check_links.problems(folder))


def test_links_that_lead_somewhere_are_no_problem(tmp_path: Path) -> None:
    start = (
        '<a href="a/#here">a</a><a href="https://example.org/x">out</a><a href="a/b/">b</a><a '
        'href="#top">up</a><p id="top"></p>'
    )
    assert (
        site(
            tmp_path,
            start=start,
            a='<p id="here"></p><a href="..">back</a>',
            a__b='<a href="../../a/">a</a>',
        )
        == []
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('<a href="nowhere/">x</a>', "there is no nowhere"),
        ('<a href="a/#lost">x</a>', "a/index.html has no anchor lost"),
        ('<a href="#lost">x</a>', "index.html has no anchor lost"),
        ('<img src="missing.png">', "there is no missing.png"),
        ('<script src="https://cdn.example.org/x.js"></script>', "is loaded from elsewhere"),
        ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "is loaded from elsewhere"),
    ],
)
def test_a_broken_link_and_a_file_from_elsewhere_are_found(
    body: str, says: str, tmp_path: Path
) -> None:
    (problem,) = site(tmp_path, start=body, a="<p></p>")
    assert problem.startswith("index.html:1: ")
    assert says in problem


def test_where_no_site_is_there_is_nothing_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_links.main(str(tmp_path / "nowhere")) == 2
    assert check_links.main(str(tmp_path), "another") == 2
    assert (
        capsys.readouterr().err.count(
            "one folder is needed, with a site in it; make docs builds one\n"
        )
        == 2
    )
    assert site(tmp_path, start="<p></p>") == []
    assert check_links.main(str(tmp_path)) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "error: nowhere: no page; make docs builds them"),
        ([".", "--only", "zoo"], "error: .: no page whose address holds 'zoo'"),
        ([".", "--jobs", "many"], "error: argument --jobs: invalid int value: 'many'"),
        (["."], "no Chromium: apt-get install chromium, or name one in CHROMIUM"),
    ],
)
def test_the_browser_says_in_one_line_what_it_lacks(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    if len(arguments) == 1 and arguments[0] == ".":
        pytest.importorskip("playwright", reason="playwright comes with the extra docs")
    site(tmp_path, start="<p></p>")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CHROMIUM": "no-such-browser", "PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "docs.browser", *arguments],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip().endswith(said)
    assert "Traceback" not in done.stderr


def test_the_start_page_alone_gets_the_entries_of_the_search(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    (tmp_path / "search/search_index.json").write_text(
        '{"config": {"lang": ["en"]}, "docs": [{"location": ""}]}'
    )
    site(tmp_path, start="<p>start</p>", a="<p>a</p>")
    with served(tmp_path) as base:

        def index(page: str) -> Any:
            asked = urllib.request.Request(
                f"{base}/search/search_index.json", headers={"Referer": f"{base}{page}"}
            )
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert answer.headers["Cache-Control"] == "no-store"
                return json.load(answer)

        assert index("/") == {"config": {"lang": ["en"]}, "docs": [{"location": ""}]}
        assert index("/a/") == {"config": {"lang": ["en"]}, "docs": []}
        with urllib.request.urlopen(f"{base}/a/", timeout=30) as answer:
            assert b"<p>a</p>" in answer.read()
    assert browser.pages(tmp_path) == ["", "a/"]


def test_links_of_the_repository_become_links_of_the_site() -> None:
    text = (
        "[a](../tape/core.py), [b](omega.md#omega-5), [c](https://example.org), [d](#here), "
        "[e](../examples/adapters)"
    )
    assert links.moved(text, "specs/x.md", "specs/x.md") == (
        "[a](../source/tape/core.py.html), [b](omega.md#omega-5), [c](https://example.org), "
        "[d](#here), [e](../examples/adapters/README.md)"
    )
    assert links.moved("[a](specs/omega.md)", "README.md", "index.md") == "[a](specs/omega.md)"
    assert (
        links.moved("[a](docs/pages/tutorial/index.md)", "README.md", "index.md")
        == "[a](tutorial/index.md)"
    )
    assert (
        links.moved("[NS-1](newton_schulz.md)", "specs/x.md", "specs/x.md")
        == "[NS-1](newton_schulz.md#ns-1)"
    )


def test_every_link_of_a_page_leads_to_a_page_of_the_site() -> None:
    """What only `make docs` would find otherwise, an hour later."""
    made = {links.page_of(path) for path in [*files(ROOT), *copied(ROOT), *specs(ROOT)]}
    made |= {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*") if path.is_file()}
    made |= {"reference/cli.md", "tables/benchmarks.md"}
    made |= {
        each
        for group in vector_pages.nav(ROOT)
        for each in re.findall(r"[\w/.-]+\.md", repr(group))
    }
    lost = []
    for path in [*copied(ROOT), *specs(ROOT)]:
        page = links.page_of(path)
        text = links.moved(vector_pages.without_targets(ROOT, path), path, page)
        for _, target in links.LINK.findall(text):
            file = posixpath.normpath(
                posixpath.join(posixpath.dirname(page), target.partition("#")[0])
            )
            if ":" not in target and target.partition("#")[0] and file not in made:
                lost.append(f"{path}: {target}")
    assert lost == []


def test_ids_become_links_but_not_in_code_equations_headings_and_links() -> None:
    text = "### NS-1 A\nNS-1 and `NS-1`, $NS-1$, [NS-1](x.md), no other.\n\n    NS-1\n"
    found = links.linked(text, lambda name: "y.md" if name == "NS-1" else None)
    assert (
        found
        == "### NS-1 A\n[NS-1](y.md) and `NS-1`, $NS-1$, [NS-1](x.md), no other.\n\n    NS-1\n"
    )


def test_the_page_of_benchmarks_shows_what_the_last_run_left_and_else_how_to_make_one(
    tmp_path: Path,
) -> None:
    assert "`make bench` writes its figures" in benchmark_page.page(tmp_path)
    folder = tmp_path / "build/bench"
    folder.mkdir(parents=True)
    (folder / "scaling.png").write_bytes(b"")
    spread, nothing = (
        {"low": 1.0, "median": 1.25, "high": 2.0},
        {"low": None, "median": None, "high": None},
    )
    row = {
        "name": "a < b",
        "unit": "s",
        "ours": spread,
        "reference": "the loop",
        "theirs": nothing,
        "ratio": spread,
        "error": 1e-9,
    }
    rows = [{**row, "meaning": "times", "note": ""}]
    (folder / "bench.json").write_text(
        json.dumps({"machine": {"processors": 2, "product_rate": spread}, "rows": rows})
    )
    page = benchmark_page.page(tmp_path)
    assert "![scaling](../bench/scaling.png)" in page
    assert "\nprocessors 2\n" in page
    assert "| a &lt; b | 1.25 s | the loop |  | 1.25 times (1 to 2) | 1e-09 |  |" in page


def test_every_markdown_page_and_source_file_is_there_once() -> None:
    found = files(ROOT)
    assert len(found) == len(set(found)) > 200
    assert {"atlas_ref/rules/omega.py", "tests/rules/test_omega.py", "LICENSE"} <= set(found)
    assert {
        "CONTRIBUTING.md",
        "examples/adapters/README.md",
        "benchmarks/gpu/README.md",
    } <= set(copied(ROOT))


@pytest.mark.slow
def test_pictures_are_the_same_bytes_each_time_and_take_the_colour_of_the_text() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    from docs.pictures import PICTURES

    for name in PICTURES:
        svg = PICTURES[name]()
        assert svg == PICTURES[name]()
        assert svg.startswith("<svg")
        assert "currentColor" in svg
        assert f'id="{name}-' in svg


def test_levels_move_where_the_conductor_says_so_and_nowhere_else() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    from docs.pictures import levels

    found = levels.driven()
    assert found.active.shape == (levels.T, len(levels.PERIODS))
    assert (found.active == (found.moved > 0)).all()
    for column, period in enumerate(levels.PERIODS):
        assert list(found.active[:, column].nonzero()[0]) == list(range(0, levels.T, period))


def test_no_edge_of_the_tape_passes_a_box() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    from docs.pictures import tape_graph

    found = tape_graph.entries()
    rows, ways = tape_graph.arranged(found)
    row = {node: place for place, nodes in enumerate(rows) for node in nodes}
    assert sorted(node for nodes in rows for node in nodes if node < len(found)) == list(
        range(len(found))
    )
    assert sorted((way[0], way[-1]) for way in ways) == sorted(
        (parent, i) for i, each in enumerate(found) for parent in each.parents
    )
    for way in ways:
        assert [row[node] for node in way] == list(range(row[way[0]], row[way[-1]] + 1))
        assert all(node >= len(found) for node in way[1:-1])


def test_names_that_a_docstring_describes_together_stay_together() -> None:
    text = (
        "Attributes:\n    d_in, d_out: lengths.\n    k (T, d_in): keys.\n    retain, momentum "
        "(T,): gates.\n    one: a, b: c.\n"
    )
    kept = text.replace("d_in, d_out: ", "d_in,\N{NO-BREAK SPACE}d_out: ").replace(
        "retain, m", "retain,\N{NO-BREAK SPACE}m"
    )
    pytest.importorskip("griffe", reason="griffe comes with the extra docs")
    from docs import docstrings

    assert docstrings.joined(text) == kept
