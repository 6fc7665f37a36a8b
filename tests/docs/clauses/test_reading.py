"""What counts as a clause, as its code and as its test; this repository names every clause."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.clauses import cases, marks, places, quotes, specs
from docs.clauses.record import Record, RecordError, numbers, read, spans, write
from docs.clauses.trace import trace

ROOT = Path(__file__).parents[3]

SPEC = """# Toy

Before any clause.

### TOY-1 First

Text of it, see [E-A01](errata.md#e-a01).
**Errata.** E-A02.

### TOY-2 Second

**No code.** A list
of names.

## Section

### TOY-3 Third
"""

CODE = '''"""A module of TOY-1 to TOY-3."""

#: A table of TOY-4.
TABLE = {"a": 1}


class Empty:
    """TOY-5."""

    field: int = 1


class Full:
    """TOY-6."""

    def method(self):
        """TOY-7."""
        return 1  # TOY-8


# TOY-9 above a function
# and its second line
@decorated
def function():
    def inner():
        """TOY-10."""

    return inner
'''
FAMILIES = frozenset({"TOY", "E"})


@pytest.mark.clause("TRACE-1", "TRACE-6")
def test_a_clause_is_a_heading_with_all_text_up_to_the_next() -> None:
    found = {each.id: each for each in specs.clauses(SPEC, "specs/toy.md")}
    assert list(found) == ["TOY-1", "TOY-2", "TOY-3"]
    assert (found["TOY-1"].title, found["TOY-1"].line, found["TOY-1"].last) == ("First", 5, 9)
    assert found["TOY-1"].errata == ("E-A01", "E-A02")
    assert (found["TOY-1"].no_code, found["TOY-2"].no_code) == ("", "A list of names.")
    assert found["TOY-3"].text == ""


@pytest.mark.clause("TRACE-2")
def test_a_mention_belongs_to_the_innermost_function_class_or_statement() -> None:
    found = {
        each: (place.name, place.kind)
        for place in places.places(CODE, "toy.py", FAMILIES)
        for each in place.ids
    }
    assert found == {
        **dict.fromkeys(("TOY-1", "TOY-2", "TOY-3"), ("", "module")),
        "TOY-4": ("TABLE", "data"),
        "TOY-5": ("Empty", "data"),
        "TOY-6": ("Full", "class"),
        "TOY-7": ("Full.method", "function"),
        "TOY-8": ("Full.method", "function"),
        "TOY-9": ("function", "function"),
        "TOY-10": ("function.inner", "function"),
    }


@pytest.mark.clause("TRACE-2", "TRACE-5")
def test_lines_of_a_place_are_those_that_run_when_it_is_called() -> None:
    body = {place.name: sorted(place.body) for place in places.places(CODE, "toy.py", FAMILIES)}
    assert body["Full.method"] == [18]
    assert body["Full"] == [18]
    # all functions of the file
    assert body["TABLE"] == body["Empty"] == body[""] == [18, 25, 26, 28]
    assert body["function.inner"] == []


def test_other_words_are_no_ids() -> None:
    assert specs.named("ISO-8601, TOY-1a, TOYS-1, NOTOY-1, E-A01b and TOY-2.", FAMILIES) == [
        "E-A01b",
        "TOY-2",
    ]


@pytest.mark.clause("TRACE-3")
def test_marks_of_functions_files_and_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_toy.py").write_text(
        'pytestmark = [pytest.mark.clause("TOY-1"), pytest.mark.slow]\n\n\n'
        '@pytest.mark.parametrize("x", [1])\n@pytest.mark.clause("TOY-2", '
        '"TOY-3")\n@pytest.mark.clause("TOY-2")\ndef test_a(x): ...\n\n\n'
        "def test_e_a03_something(): ...\n\n\ndef helper(): ...\n"
    )
    found = marks.read(tmp_path)
    assert {name: each.clauses for name, each in found.items()} == {
        "tests/test_toy.py::test_a": ("TOY-1", "TOY-2", "TOY-3"),
        "tests/test_toy.py::test_e_a03_something": ("TOY-1", "E-A03"),
    }
    assert (found["tests/test_toy.py::test_a"].line, found["tests/test_toy.py::test_a"].last) == (
        4,
        7,
    )


@pytest.mark.clause("TRACE-7")
def test_a_quote_is_an_id_a_colon_and_words_over_any_lines() -> None:
    text = (
        'x = 1\n    # {}-1: "words that go on\n    # in a comment"\n"""{}-2: “in round quotes”; '
        '{}-3: no quote, {}-4 "nor this one"."""\n'
    )
    text = text.format(*4 * ["TOY"])  # here it would be a quote
    found = [(each.line, each.clause, each.text) for each in quotes.quotes(text, "a.py")]
    assert found == [(2, "TOY-1", "words that go on in a comment"), (4, "TOY-2", "in round quotes")]


@pytest.mark.clause("TRACE-4")
def test_a_record_comes_back_as_it_was_and_is_refused_for_other_sources(tmp_path: Path) -> None:
    assert spans({7, 1, 2, 3}) == "1-3,7"
    assert numbers("1-3,7") == {1, 2, 3, 7}
    assert numbers(spans(())) == frozenset()
    with pytest.raises(
        RecordError, match="no run of the tests is recorded; `make trace` records one"
    ):
        read(tmp_path)
    out = write(tmp_path, Record({}, {"case": {"tape/a.py": frozenset({1, 2, 9})}}))
    assert read(tmp_path) == Record({}, {"case": {"tape/a.py": frozenset({1, 2, 9})}})
    (tmp_path / "tape").mkdir()
    (tmp_path / "tape/a.py").write_text("")
    with pytest.raises(RecordError, match="recorded of other sources than these"):
        read(tmp_path)
    out.write_text("[]")
    with pytest.raises(RecordError, match="not a record of a run"):
        read(tmp_path)


def test_the_functions_that_a_call_reaches_are_seen_and_no_others() -> None:
    def inner() -> None: ...

    def outer() -> None:
        inner()

    assert {each.co_name for each in cases.called(outer)} == {"outer", "inner"}
    assert "outer" not in {each.co_name for each in cases.called(inner)}


@pytest.mark.clause("TRACE-9")
def test_every_clause_of_this_repository_has_code_and_a_test_and_every_id_a_clause() -> None:
    found = trace(ROOT, None)
    assert [str(gap) for gap in found.gaps] == []
    assert len(found.clauses) > 500
