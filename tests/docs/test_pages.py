"""Pages that the docs build makes: clauses beside their code, vectors, reference, search."""

from __future__ import annotations

import ast
import html
import re
import textwrap
from pathlib import Path

import pytest

from docs import lined_code, search_worker, spec_pages, vector_pages

ROOT = Path(__file__).parents[2]


def part_of(page: str, clause: str) -> str:
    """A clause on the page of its spec."""
    start = page.index(f"### {clause} ")
    return page[start : page.index("### ", start + 4)]


def test_beside_a_clause_stands_first_the_code_of_the_rule_itself() -> None:
    from docs.clauses.trace import trace

    found = trace(ROOT, None)
    page = spec_pages.page(found, ROOT, "specs/omega.md")
    part = part_of(page, "OMEGA-4")
    code = (ROOT / "atlas_ref/rules/omega.py").read_text().split("\n")
    line = next(i for i, each in enumerate(code, 1) if each.startswith("def _residual("))
    wanted = part.index(f"<!-- lines: atlas_ref/rules/omega.py {line} ")
    assert part.index('class="contract"') < part.index('class="beside"') < wanted
    folded = part.index('<details class="proof place" markdown="1">')
    assert wanted < folded < part.index("oracle/family/steps")
    assert part.count("<!-- lines: ") == 1
    assert part.index('<details class="proof test" markdown="1">') > folded
    assert (
        "[the gradient is the weighted sum of residual times "
        "feature](../source/tests/rules/test_omega.py.html#L-"
    ) in part_of(page, "OMEGA-5")
    assert "(errata.md#e-a05)" in part_of(page, "OMEGA-5")
    # a short function that delegates stands beside the one that carries the clause out
    delta = part_of(spec_pages.page(found, ROOT, "specs/delta.md"), "DELTA-2")
    assert delta.count("<!-- lines: atlas_ref/rules/delta.py ") == 2


def test_a_clause_without_code_takes_the_whole_width_and_names_none() -> None:
    from docs.clauses.trace import trace

    found = trace(ROOT, None)
    for clause, coded in (("NOTATION-1", False), ("E-A01", False), ("OMEGA-4", True)):
        part = part_of(spec_pages.page(found, ROOT, found.clauses[clause].path), clause)
        assert ('<div class="clause whole" markdown="1">' in part) != coded
        assert ('<div class="clause" markdown="1">' in part) == coded
        assert "Code:" not in part
        assert "<summary>Proved by: " in part


def test_lines_of_code_stand_with_their_numbers_and_keep_their_text() -> None:
    path = "atlas_ref/rules/rule.py"
    code = (ROOT / path).read_text().split("\n")
    tree = ast.parse("\n".join(code))
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    method = next(each for one in classes for each in one.body if isinstance(each, ast.FunctionDef))
    first, last = method.lineno, method.end_lineno or 0
    block = lined_code.filled(f"<p>a</p><!-- lines: {path} {first} {last} -->", ROOT)
    assert f"counter-reset: line {first - 1}" in block
    text = html.unescape(re.sub("<[^>]+>", "", block.removeprefix("<p>a</p>")))
    assert text == textwrap.dedent("\n".join(code[first - 1 : last])) + "\n"


def test_a_clause_leads_to_the_recorded_cases_that_exercise_it() -> None:
    known = vector_pages.places(ROOT)
    assert known["vectors/v1/cases/delta-rows.safetensors"] == (
        "vectors/v1/delta.md",
        "delta-rows",
        "delta",
    )
    assert known["tests/data/peers/fla_delta_11.safetensors"] == (
        "vectors/peers.md",
        "fla_delta_11",
        "other implementations",
    )
    own = [path for path, place in known.items() if place[0] == "vectors/v1/delta.md"]
    assert len(own) == 5
    assert vector_pages.listed_by_target(own, known, "specs/delta.md") == [
        "[delta](../vectors/v1/delta.md): all 5"
    ]
    assert vector_pages.listed_by_target(own[1:2], known, "specs/delta.md") == [
        "[delta](../vectors/v1/delta.md): [pulsed](../vectors/v1/delta.md#delta-pulsed)"
    ]


def test_every_recorded_case_has_a_place_with_its_file_and_the_clauses_that_it_exercises() -> None:
    from docs.clauses.trace import trace

    found = trace(ROOT, None)
    path = "vectors/v1/cases/delta-rows.safetensors"
    evidence = {**found.evidence, "DELTA-3": found.evidence["DELTA-3"]._replace(vectors=(path,))}
    pages = dict(vector_pages.pages(ROOT, found._replace(evidence=evidence)))
    for page, anchor, _ in vector_pages.places(ROOT).values():
        assert f"{{ #{anchor.lower()} }}" in pages[page]
    for name, file in vector_pages.files(ROOT):
        assert file.is_file()
        below = re.sub(r"^vectors/(v\d+/)?", "", name)
        assert f"({below})" in "".join(pages.values())
    part = pages["vectors/v1/delta.md"].partition("## delta-rows")[2].partition("\n## ")[0]
    assert '"rule": "delta"' in part
    assert "[DELTA-3](../../specs/delta.md#delta-3)" in part
    matrix = pages["vectors/v1/delta.md"].partition("{ #kill-matrix }")[2].partition("\n## ")[0]
    assert "| mutant | [rows](#delta-rows) | [pulsed](#delta-pulsed) |" in matrix
    assert "| `decay=before_error` | f b |" in matrix
    assert "](#kill-matrix)" in part
    assert "SURVIVES" not in vector_pages.without_targets(ROOT, "vectors/v1-kill-matrix.md")
    index = vector_pages.without_targets(ROOT, "vectors/v1-kill-matrix.md")
    assert "[delta](v1/delta.md#kill-matrix)" in index
    assert "`decay=before_error`" not in index


def test_the_search_leaves_out_what_stands_beside_a_clause() -> None:
    plugin = pytest.importorskip(
        "material.plugins.search.plugin", reason="mkdocs-material comes with the extra docs"
    )
    import markdown

    from docs.clauses.trace import trace

    text = spec_pages.page(trace(ROOT, None), ROOT, "specs/delta.md")
    text = text[text.index("### DELTA-2") : text.index("### DELTA-3")]
    page = markdown.markdown(text, extensions=["md_in_html", "attr_list"])
    parser = plugin.Parser()
    parser.feed(lined_code.filled(page, ROOT))
    found = "".join(each for section in parser.data for each in section.text)
    assert "half the squared error" in found
    assert page.count("<!-- lines: ") == 2
    assert "def update(" not in found
    assert "Proved by" not in found


def test_names_of_the_reference_lead_to_their_lines() -> None:
    from docs import reference_links

    code = (ROOT / "atlas_ref/rules/omega.py").read_text().split("\n")
    line = next(i for i, each in enumerate(code, 1) if each.startswith("def write("))
    assert reference_links.where("atlas_ref.rules.omega.write", ROOT) == (
        "atlas_ref/rules/omega.py",
        line,
    )
    assert reference_links.where("atlas_ref.rules.omega", ROOT) == ("atlas_ref/rules/omega.py", 1)
    assert reference_links.where("atlas_ref.rules.RULES", ROOT) is None
    heading = '<h2 id="atlas_ref.rules.omega.write" class="doc doc-heading">w</h2>'
    assert (
        f'href="../../source/atlas_ref/rules/omega.py.html#L-{line}">source</a></h2>'
        in reference_links.filled(heading, "reference/rules.md", ROOT)
    )


def test_the_search_names_nodes_apart_and_another_worker_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "assets/javascripts/workers/search.1.min.js"
    path.parent.mkdir(parents=True)
    path.write_text(f"a{search_worker.NAME}b")
    search_worker.mend(tmp_path)
    assert path.read_text() == 'ae=e+s+o.id+","}return e}b'
    with pytest.raises(ValueError, match="not one worker"):
        search_worker.mend(tmp_path)
