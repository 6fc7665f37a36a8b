"""The list of statements: each stands where it says, and each axiom on its page."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from docs import statements
from docs.clauses.specs import read
from docs.statements import Statement

ROOT = Path(__file__).absolute().parents[2]
EVERY = statements.read()
CLAUSES = read(ROOT)


def functions(path: Path) -> set[str]:
    return {
        each.name
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.FunctionDef)
    }


def test_every_number_stands_once_and_in_order() -> None:
    rows = [each.row for each in EVERY]
    counts = {"A": 116, "B": 26, "C": 40, "D": 28, "E": 21, "F": 17}
    assert rows == [f"{letter}-{n}" for letter, last in counts.items() for n in range(1, last + 1)]
    assert set(counts) == set(statements.SECTIONS)


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.row)
def test_a_statement_names_clauses_and_tests_that_exist(each: Statement) -> None:
    assert each.state in statements.STATES
    assert each.statement
    for clause in each.clauses:
        assert clause in CLAUSES, clause
    for test in each.tests:
        path, _, name = test.partition("::")
        assert path.startswith("tests/"), path
        assert (ROOT / path).is_file(), path
        assert not name or name in functions(ROOT / path), test


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.row)
def test_a_state_has_what_it_needs(each: Statement) -> None:
    if each.state in ("holds", "corrected", "part"):
        assert each.where
    else:
        assert not each.where
    if each.state in ("part", "lacks", "outside"):
        assert each.note
    if each.state == "holds":
        # a clause without code proves nothing
        assert each.tests or any(not CLAUSES[clause].no_code for clause in each.clauses)


def test_the_page_of_axioms_names_every_axiom() -> None:
    text = (ROOT / "docs/pages/tables/axioms.md").read_text()
    for axiom in ("NL IS #2", "NL IS #4", "NL IS #6", "NL IS #7", "NL IS NOT #1", "MIRAS IS #1"):
        assert f"| {axiom} |" in text
    for knob in ("structure", "bias", "retention", "algorithm"):
        assert knob in text
