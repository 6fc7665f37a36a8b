"""The list of statements: each stands where it says, and each axiom on its page."""

from __future__ import annotations

import ast
from pathlib import Path

from docs import statements
from docs.clauses.specs import read

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


def test_statements_name_clauses_and_tests_that_exist() -> None:
    for each in EVERY:
        assert each.state in statements.STATES, each
        assert each.statement, each
        unknown = [clause for clause in each.clauses if clause not in CLAUSES]
        assert unknown == [], each.row
        for test in each.tests:
            path, _, name = test.partition("::")
            assert path.startswith("tests/"), each.row
            assert (ROOT / path).is_file(), test
            assert not name or name in functions(ROOT / path), test


def test_every_state_has_what_it_needs() -> None:
    for each in EVERY:
        assert bool(each.where) == (each.state in ("holds", "corrected", "part")), each.row
        assert each.note or each.state not in ("part", "lacks", "outside"), each.row
        if each.state == "holds":  # a clause without code proves nothing
            coded = any(not CLAUSES[clause].no_code for clause in each.clauses)
            assert each.tests or coded, each.row


def test_the_page_of_axioms_names_every_axiom() -> None:
    text = (ROOT / "docs/pages/tables/axioms.md").read_text()
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("|")]
    named = {each.strip() for row in rows for each in row.split(",")}
    omega = {"NL IS #2", "NL IS #4", "NL IS #6", "NL IS #7", "NL IS NOT #1", "MIRAS IS #1"}
    delta = {*(f"NL IS #{n}" for n in (2, 4, 6, 7)), *(f"NL IS NOT #{n}" for n in (1, 3, 4))}
    assert omega | delta <= named
    for knob in ("structure", "bias", "retention", "algorithm"):
        assert knob in text
