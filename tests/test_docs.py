"""What makes the docs site refuses what a reader would stumble over; the site itself is judged by `make docs` and `make docs-test`."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import check_links, links, spec_pages
from docs.generated import copied
from docs.source_pages import files

ROOT = Path(__file__).parents[1]


def site(folder: Path, **pages: str) -> list[str]:
    """What the check of links says of a site with these pages."""
    for name, body in pages.items():
        path = folder / name.replace("__", "/") / "index.html" if name != "start" else folder / "index.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<html><body>{body}</body></html>")
    return list(check_links.problems(folder))


def test_links_that_lead_somewhere_are_no_problem(tmp_path: Path) -> None:
    start = '<a href="a/#here">a</a><a href="https://example.org/x">out</a><a href="a/b/">b</a><a href="#top">up</a><p id="top"></p>'
    assert site(tmp_path, start=start, a='<p id="here"></p><a href="..">back</a>', a__b='<a href="../../a/">a</a>') == []


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
def test_a_broken_link_and_a_file_from_elsewhere_are_found(body: str, says: str, tmp_path: Path) -> None:
    (problem,) = site(tmp_path, start=body, a="<p></p>")
    assert problem.startswith("index.html:1: ")
    assert says in problem


def test_links_of_the_repository_become_links_of_the_site() -> None:
    text = "[a](../tape/core.py), [b](omega.md#omega-5), [c](https://example.org), [d](#here), [e](../examples/adapters)"
    assert links.moved(text, "specs/x.md", "specs/x.md") == (
        "[a](../source/tape/core.py.md), [b](omega.md#omega-5), [c](https://example.org), [d](#here), [e](../examples/adapters/README.md)"
    )
    assert links.moved("[a](specs/omega.md)", "README.md", "index.md") == "[a](specs/omega.md)"
    assert links.moved("[NS-1](newton_schulz.md)", "specs/x.md", "specs/x.md") == "[NS-1](newton_schulz.md#ns-1)"


def test_ids_become_links_but_not_in_code_equations_headings_and_links() -> None:
    text = "### NS-1 A\nNS-1 and `NS-1`, $NS-1$, [NS-1](x.md), no other.\n\n    NS-1\n"
    found = links.linked(text, lambda name: "y.md" if name == "NS-1" else None)
    assert found == "### NS-1 A\n[NS-1](y.md) and `NS-1`, $NS-1$, [NS-1](x.md), no other.\n\n    NS-1\n"


def test_a_clause_stands_beside_its_code_with_the_numbers_of_its_lines() -> None:
    from atlas_ref.clauses.trace import trace

    page = spec_pages.page(trace(ROOT, None), ROOT, "specs/omega.md")
    part = page[page.index("### OMEGA-5 ") : page.index("### OMEGA-6 ")]
    code = (ROOT / "atlas_ref/rules/omega.py").read_text().split("\n")
    line = next(i for i, each in enumerate(code, 1) if each.startswith("def _update("))
    assert f'```python linenums="{line}"\n{code[line - 1]}\n' in part
    assert part.index('class="contract"') < part.index('class="beside"')
    assert "[the gradient is the weighted sum of residual times feature](../source/tests/rules/test_omega.py.md#L-" in part
    assert "(errata.md#e-a05)" in part


def test_every_markdown_page_and_source_file_is_there_once() -> None:
    found = files(ROOT)
    assert len(found) == len(set(found)) > 200
    assert {"atlas_ref/rules/omega.py", "tests/rules/test_omega.py", "LICENSE"} <= set(found)
    assert {"README.md", "CONTRIBUTING.md", "examples/adapters/README.md"} <= set(copied(ROOT))


def test_equations_become_mathml_and_one_that_does_not_is_refused() -> None:
    pytest.importorskip("latex2mathml", reason="latex2mathml comes with the extra docs")
    from docs import mathml

    found = mathml.rendered('<p><span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\\[\\sum_i x_i\\]</div>', "x.md")
    assert found.count("<math ") == 2
    assert "arithmatex" not in found
    assert 'display="block"' in found
    assert mathml.without_tags("a < b and $c<d$") == "a < b and $c\\lt d$"
    with pytest.raises(mathml.EquationError, match=r"x\.md: '\\\\nonsense'"):
        mathml.rendered('<span class="arithmatex">\\(\\nonsense\\)</span>', "x.md")


def test_pictures_are_the_same_bytes_each_time_and_take_the_colour_of_the_text() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    from docs.pictures import PICTURES

    for name in ("tape", "levels"):
        svg = PICTURES[name]()
        assert svg == PICTURES[name]()
        assert svg.startswith("<svg")
        assert "currentColor" in svg
        assert f'id="{name}-' in svg
