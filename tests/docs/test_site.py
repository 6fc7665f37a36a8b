"""What a reader of the site meets: the rule's own code first, cases and mutants without a recorded
run, kill matrices by target, the start page with the verdict, the weights of the search.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from atlas_ref.rules import FAMILY
from docs import (
    browser,
    console,
    generated,
    search_weights,
    source_pages,
    spec_pages,
    vector_pages,
)
from docs.clauses import cases, planted
from docs.clauses.record import Record
from docs.clauses.trace import Trace, rank, trace

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> Trace:
    return trace(ROOT, None)


@pytest.mark.clause("TRACE-11")
@pytest.mark.parametrize("rule", FAMILY)
def test_the_rule_itself_stands_before_what_restates_it(found: Trace, rule: str) -> None:
    own = f"atlas_ref/rules/{rule}.py"
    seen = 0
    for clause in (each for each in found.clauses.values() if each.path == f"specs/{rule}.md"):
        places = [each for each in found.evidence[clause.id].places if each.kind != "module"]
        if any(each.path == own for each in places):
            assert places[0].path == own, clause.id
            seen += 1
    assert seen > 4


@pytest.mark.clause("TRACE-11")
def test_the_equations_of_a_part_stand_before_its_compiled_loops(found: Trace) -> None:
    places = found.evidence["NS-1"].places
    assert places[0].path == "atlas_ref/parts/newton_schulz/__init__.py"
    assert any("/compiled/" in each.path for each in places[1:])


@pytest.mark.clause("TRACE-11")
def test_the_residual_is_the_code_of_its_clause_and_the_others_fold(found: Trace) -> None:
    clause = found.clauses["OMEGA-4"]
    full = spec_pages.shown(clause, found.evidence["OMEGA-4"].places)
    assert (full[0].path, full[0].name) == ("atlas_ref/rules/omega.py", "_residual")
    assert len({rank(clause, each) for each in full}) == 1
    page = spec_pages.page(found, ROOT, "specs/omega.md")
    part = page[page.index("### OMEGA-4 ") : page.index("### OMEGA-5 ")]
    assert part.count("<!-- lines: ") == len(full)
    assert "<summary>Also in: " in part


@pytest.mark.clause("TRACE-8")
def test_cases_and_mutants_need_no_recorded_run(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "vectors/v1/cases/delta-rows.safetensors"
    monkeypatch.setattr(cases, "PATTERNS", (name,))
    executed = cases.executed(ROOT, jobs=1)
    assert list(executed) == [name]
    assert executed[name]["atlas_ref/rules/delta.py"]
    assert all(path.startswith(("atlas_ref/", "tape/")) for path in executed[name])
    read = trace(ROOT, None, Record({}, executed, planted.read(ROOT)))
    assert read.evidence["DELTA-2"].vectors == (name,)
    assert read.evidence["OMEGA-4"].vectors == ()
    assert read.evidence["DELTA-2"].mutants
    assert not read.recorded


def test_each_target_has_its_own_kill_matrix(found: Trace) -> None:
    pages = dict(vector_pages.pages(ROOT, found))
    for folder in vector_pages.sets(ROOT):
        matrix = pages[f"{folder}/delta.md"].partition("## Kill matrix")[2].partition("\n## ")[0]
        assert "| mutant | [" in matrix
        assert matrix.count("\n| ") > 5
        whole = vector_pages.without_targets(ROOT, f"{folder}-kill-matrix.md")
        assert f"[delta]({Path(folder).name}/delta.md#kill-matrix)" in whole
        assert "\n## " not in whole


def test_every_page_of_a_set_is_in_the_navigation(found: Trace) -> None:
    def listed(entries: Any) -> list[str]:
        if isinstance(entries, str):
            return [entries]
        values = entries.values() if isinstance(entries, dict) else entries
        return [path for each in values for path in listed(each)]

    there = {name for name, _ in vector_pages.pages(ROOT, found)}
    matrices = {path for path in generated.copied(ROOT) if path.endswith("-kill-matrix.md")}
    assert set(listed(vector_pages.nav(ROOT))) == there | matrices
    *sections, peers = vector_pages.nav(ROOT)
    assert listed(peers) == [vector_pages.PEERS_PAGE]
    for section in sections:  # each set folds on its own
        assert (
            len({Path(path).parts[1].removesuffix("-kill-matrix.md") for path in listed(section)})
            == 1
        )


def test_the_start_page_shows_the_verdict_on_the_kernel_of_the_readme() -> None:
    start = (ROOT / "docs/pages/index.md").read_text()
    assert console.KERNEL in start
    assert "M = retain" in console.with_kernel(start)
    shown = console.filled(console.CONSOLE)
    assert '<span class="red bold">WRONG' in shown
    for words in ("first wrong", "DELTA-2", "decay=before_error", "repeat with"):
        assert words in shown
    assert "\x1b" not in shown


def test_a_readme_without_a_kernel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"no block with the title kernel\.py"):
        console.kernel(tmp_path)


def test_specs_and_tutorial_stand_above_code_in_the_search() -> None:
    weights = [
        search_weights.weight(path)
        for path in ("specs/omega.md", "tutorial/index.md", "tables/index.md", "reference/cli.md")
    ]
    assert weights[:2] == [4.0, 4.0]
    assert weights == sorted(weights, reverse=True)


def test_a_page_of_source_holds_every_line_of_its_file_as_it_is() -> None:
    for path in ("atlas_ref/rules/omega.py", "docs/browser_check.js", "LICENSE"):
        page = source_pages.page(ROOT, path)
        body = page.partition('<ol class="lines">')[2].partition("</ol>")[0]
        lines = re.findall(r"<li id=L-(\d+)>(.*)\n", body)
        text = [html.unescape(re.sub(r"</?(?:b|i|q|u|em)>", "", line)) for _, line in lines]
        assert [int(number) for number, _ in lines] == [*range(1, len(lines) + 1)]
        assert text == (ROOT / path).read_text().split("\n")[: len(lines)]
        assert (ROOT / path).read_text().count("\n") == len(lines)
    assert "<b>def" in source_pages.page(ROOT, "atlas_ref/rules/omega.py")


def test_the_browser_opens_every_page_and_one_in_twenty_of_those_from_one_template(
    tmp_path: Path,
) -> None:
    for name in ("index.html", "specs/omega/index.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "source").mkdir()
    for number in range(41):
        (tmp_path / f"source/{number:02}.py.html").write_text("")
    for number in range(12):
        (tmp_path / f"vectors/v1/{number:02}").mkdir(parents=True)
        (tmp_path / f"vectors/v1/{number:02}/index.html").write_text("")
    assert browser.chosen(browser.pages(tmp_path)) == [
        "",
        "source/00.py.html",
        "source/20.py.html",
        "source/40.py.html",
        "specs/omega/",
        "vectors/v1/00/",
    ]
