"""Every paper that is cited stands in the bibliography, and every equation in its index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import bibliography
from docs.bibliography import PAPERS, index, numbers
from docs.clauses.specs import read

ROOT = Path(__file__).absolute().parents[2]
NUMBER = re.compile(r"(?<![\d.])[12]\d{3}\.\d{4,5}(?!\d)")


def cited() -> set[str]:
    """Numbers at arXiv in specs, pages and code."""
    files = [*(ROOT / "specs").glob("*.md"), *(ROOT / "docs/pages").rglob("*.md")]
    files += (ROOT / "atlas_ref").rglob("*.py")
    return {each for path in files for each in NUMBER.findall(path.read_text())}


def test_the_bibliography_holds_what_is_cited_and_nothing_else() -> None:
    listed = [paper.arxiv for paper in PAPERS]
    assert sorted(listed) == sorted(cited())
    assert len({paper.name for paper in PAPERS}) == len(PAPERS)


@pytest.mark.parametrize(
    ("words", "equations"),
    [
        ("9", [9]),
        ("32-34", [32, 33, 34]),
        ("9, 10, 56", [9, 10, 56]),
        ("21 to 23", [21, 22, 23]),
        ("26 and 29", [26, 29]),
        ("15, 32-33", [15, 32, 33]),
    ],
)
def test_lists_of_equations_are_read(words: str, equations: list[int]) -> None:
    assert list(numbers(words)) == equations


def test_the_index_has_the_equations_of_the_rules() -> None:
    found = index(read(ROOT))
    for equation in (9, 10, 11, 15, 32, 33, 34, 56):
        assert found["Atlas", equation]
    for equation in (12, 13, 14, 15, 32, 33, 34):
        assert found["Titans", equation]
    assert "OMEGA-5" in found["Atlas", 9]
    assert found["Titans", 34] == ["DELTA-3"]
    assert "TITANS-5" in found["Titans", 32]  # cited as Appendix C, Eqs 32-33
    assert "TNT-6" in found["TNT", 7]  # whose spec leaves the name out


def test_every_paper_with_an_index_is_a_paper_or_a_name_in_the_specs() -> None:
    names = {paper for paper, _ in index(read(ROOT))}
    assert names - {"HOPE"} <= {paper.name for paper in PAPERS}


def test_the_tables_have_a_row_each() -> None:
    lines = bibliography.papers(None, "").splitlines()  # type: ignore[arg-type]
    assert len(lines) == len(PAPERS) + 2
