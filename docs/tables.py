"""Tables made from the data that the code itself reads.

A page asks for one with a line `<!-- table: NAME -->`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from atlas_ref.conventions import (
    AXES,
    NEWTON_SCHULZ_KEYS,
    PRESETS,
    SOURCES,
    Convention,
    resolve,
)
from atlas_ref.forms.support import CONDITIONS, FORMS, SUPPORT
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import RULES
from docs import bibliography, claims, links, run_tables, statements
from docs.cells import table
from docs.clauses import marks
from docs.clauses.trace import Evidence, Trace

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"^<!-- table: (\w+) -->$", re.MULTILINE)
EQUIVALENCES = range(40, 63)
PROOF = re.compile(r"\*\*Proof\.\*\*\s+(.*?)(?=\*\*[A-Z][a-z]+\.\*\*|\Z)", re.DOTALL)
MEANINGS = {
    "exact": "the form computes the rule itself",
    "frozen": "the form computes the rule whose residuals are taken under a frozen or a zero reference",
    "not defined": "the rule has no such form",
    "apart": "several memories, with a function of their own; asking for it as a form is refused",
}


def filled(text: str, trace: Trace, page: str) -> str:
    """The page with every table it asks for."""
    return PLACE.sub(lambda match: TABLES[match[1]](trace, page), text)


def code(value: Any) -> str:
    """A value as code in a cell."""
    return f"<code>{html.escape(_plain(value))}</code>"


def to_clauses(ids: Iterable[str], trace: Trace, page: str) -> str:
    """Clause ids as links."""
    return ", ".join(
        f"[{each}]({links.clause_link(trace.clauses[each], page)}){{ .id }}"
        for each in ids
        if each in trace.clauses
    )


def words_of(test: str) -> str:
    """The statement that a test is named after."""
    return re.sub(r"^test_(e_[a-z]\d\d[a-z]?_)?", "", test).replace("_", " ")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _without_links(text: str) -> str:
    return links.LINK.sub(lambda match: match[1], text)


def _anchored(name: str) -> str:
    return f'<span id="{name}"></span>{code(name)}'


def reductions(trace: Trace, page: str) -> str:
    from tests.reductions.table import ROWS

    return _reductions(ROWS, trace, page)


def limits(trace: Trace, page: str) -> str:
    from tests.reductions.table import LIMITS

    return _reductions(LIMITS, trace, page)


def _reductions(rows: Iterable[Any], trace: Trace, page: str) -> str:
    """Rows of the reduction table, with the conditions that their twins break."""

    def row(each: Any) -> tuple[str, ...]:
        broken = "<br>".join(html.escape(words) for words in each.twins)
        return (
            _anchored(each.id),
            html.escape(each.statement),
            to_clauses(each.clauses, trace, page),
            broken,
        )

    return table(("row", "the two sides agree", "clauses", "and differ with"), map(row, rows))


def support(trace: Trace, page: str) -> str:
    """Form by rule."""
    rows = [(code(form), *(SUPPORT[form][rule] for rule in RULES)) for form in FORMS]
    used = {status for form in FORMS for status in SUPPORT[form].values()}
    meanings = [(word, meaning) for word, meaning in MEANINGS.items() if word in used]
    return table(("form", *map(code, RULES)), rows) + "\n" + table(("word", "meaning"), meanings)


def knobs(trace: Trace, page: str) -> str:
    """The four knobs of MIRAS by rule."""
    names = ("structure", "bias", "retention", "algorithm")
    rows = [
        (code(rule.name), *(", ".join(map(code, getattr(rule, name))) for name in names))
        for rule in RULES.values()
    ]
    return table(("rule", *names), rows)


def refused(trace: Trace, page: str) -> str:
    """Conditions that each form refuses."""
    return table(
        ("form", "where"),
        [(code(form), each.reason) for form in FORMS for each in CONDITIONS if form in each.forms],
    )


def axes(trace: Trace, page: str) -> str:
    """Axes with their values and the clauses that speak of them."""
    about = [each for each in trace.clauses.values() if each.path == "specs/conventions.md"]

    def row(axis: str) -> tuple[str, ...]:
        named = [
            each.id for each in about if re.search(rf"`{re.escape(axis)}\b", each.title + each.text)
        ]
        return (
            code(axis),
            _values(Convention, axis),
            Convention.model_fields[axis].description or "",
            to_clauses(named, trace, page),
        )

    return table(("axis", "values, the default first", "meaning", "clauses"), map(row, AXES))


def newton_schulz(trace: Trace, page: str) -> str:
    """The keys of Newton-Schulz."""
    fields = NewtonSchulz.model_fields
    rows = [
        (code(key), _values(NewtonSchulz, key), fields[key].description or "")
        for key in NEWTON_SCHULZ_KEYS
    ]
    return table(("key", "values, the default first", "meaning"), rows)


def _values(model: Any, name: str) -> str:
    """The values of a field as its schema lists them, the default first."""
    schema = model.model_json_schema()["properties"][name]
    values: list[str] = []
    for each in schema.get("anyOf", [schema]):
        values += [
            code(value) for value in each.get("enum", [each["const"]] if "const" in each else [])
        ]
        values += {
            "number": ["a number"],
            "integer": ["a whole number"],
            "array": ["numbers"],
            "boolean": ["true, false"],
        }.get(each.get("type"), [])
        values += ["settings"] if "$ref" in each else []
    default = schema.get("default")
    first = [] if default is None or isinstance(default, dict) else [code(default)]
    return ", ".join(dict.fromkeys([*first, *values]))


def presets(trace: Trace, page: str) -> str:
    """Changes that each preset makes."""

    def row(name: str) -> tuple[str, ...]:
        changes = "<br>".join(
            code(f"{axis}: {_plain(value)}") for axis, value in PRESETS[name].items()
        )
        return code(name), SOURCES[name], changes or "nothing"

    return table(("preset", "source", "changes in spec"), map(row, PRESETS))


def in_force(trace: Trace, page: str) -> str:
    """Every axis of a preset by rule, where the rules differ."""

    def cell(name: str, axis: str) -> str:
        values = {
            rule: _plain(resolve(name, rule=rule).model_dump(mode="json")[axis]) for rule in RULES
        }
        by_value: dict[str, list[str]] = {}
        for rule, value in values.items():
            by_value.setdefault("settings" if value.startswith("{") else value, []).append(rule)
        return (
            code(next(iter(by_value)))
            if len(by_value) == 1
            else "<br>".join(f"{code(v)} {', '.join(r)}" for v, r in by_value.items())
        )

    columns = ("gate", "rate", "newton_schulz")
    return table(
        ("preset", *map(code, columns)),
        [(code(name), *(cell(name, axis) for axis in columns)) for name in PRESETS],
    )


def equivalences(trace: Trace, page: str) -> str:
    """The equivalence classes: the statement in italics at the start of each clause."""
    rows = []
    for each in (
        trace.clauses[name] for name in (f"CONV-{n}" for n in EQUIVALENCES) if name in trace.clauses
    ):
        match = re.match(r"\*(.+?)\*(?!\*)", each.text, re.DOTALL)
        if match:
            rows.append((to_clauses([each.id], trace, page), each.title, _without_links(match[1])))
    return table(("clause", "what", "statement"), rows)


def errata(trace: Trace, page: str) -> str:
    """The ledger: every erratum with its test and the numbers of its proof."""

    def row(name: str) -> tuple[str, ...]:
        clause, proof = trace.clauses[name], PROOF.search(trace.clauses[name].text)
        tests = [
            f"[{words_of(each.name)}]({links.line_link(each.path, each.line, page)})"
            for each in trace.evidence[name].tests
        ]
        named = [
            each.id for each in trace.clauses.values() if name in each.errata and not each.erratum
        ]
        words = _without_links(proof[1]) if proof else ""
        return (
            to_clauses([name], trace, page),
            clause.title,
            words,
            to_clauses(named, trace, page),
            ", ".join(tests),
        )

    rows = [row(name) for name, each in trace.clauses.items() if each.erratum]
    return table(("erratum", "what", "proof", "clauses", "test"), rows)


def mutants(trace: Trace, page: str) -> str:
    """Planted mistakes with the tests that must reject them."""
    from tests.mutants.mutants import MUTANTS

    known: dict[str, list[str]] = {}
    for name, evidence in trace.evidence.items():
        for each in evidence.mutants:
            known.setdefault(each.name, []).append(name)
    proofs = marks.read(links.ROOT)

    def to_test(test: str) -> str:
        plain, _, parameter = test.partition("[")
        proof = proofs[plain]
        words = words_of(proof.name) + (f" [{parameter}" if parameter else "")
        return f"[{html.escape(words).replace('[', '&#91;').replace(']', '&#93;')}]({links.line_link(proof.path, proof.line, page)})"

    def row(mutant: Any) -> tuple[str, ...]:
        tests = "<br>".join(map(to_test, mutant.tests))
        return (
            _anchored(mutant.name),
            html.escape(mutant.what),
            code(mutant.place).replace(":", ":<wbr>"),
            to_clauses(known.get(mutant.name, []), trace, page),
            tests,
        )

    return table(
        ("mutant", "the mistake", "what it changes", "clauses", "rejected by"), map(row, MUTANTS)
    )


def clauses(trace: Trace, page: str) -> str:
    """The report of trace-spec."""
    said = (
        "Of these very sources a run of the tests is recorded."
        if trace.recorded
        else "No run of the tests is recorded of these sources."
    )
    hint = (
        ""
        if trace.recorded
        else " So nothing is said here about what the tests executed; `make trace` records it."
    )
    parts = [f"{said}{hint} {len(trace.clauses)} clauses, {len(trace.gaps)} gaps.\n"]
    parts += ["\n".join(f"- {html.escape(str(gap))}" for gap in trace.gaps) + "\n"]
    for spec in dict.fromkeys(each.path for each in trace.clauses.values()):
        rows = [
            _row(trace, name, page) for name, each in trace.clauses.items() if each.path == spec
        ]
        head = (
            "clause",
            "title",
            "places in code",
            "tests",
            "tests that executed it",
            "recorded cases",
            "mutants",
        )
        parts.append(f"## {Path(spec).stem}\n\n" + table(head, rows))
    return "\n".join(parts)


def _row(trace: Trace, name: str, page: str) -> tuple[str, ...]:
    clause, evidence = trace.clauses[name], trace.evidence[name]
    places = (
        f"none: {_without_links(clause.no_code)}"
        if clause.no_code
        else str(len(evidence.places) or "")
    )
    counts = (
        len(evidence.tests),
        _executed(evidence),
        len(evidence.vectors),
        len(evidence.mutants),
    )
    return (
        to_clauses([name], trace, page),
        clause.title,
        places,
        *(str(each or "") for each in counts),
    )


def _executed(evidence: Evidence) -> int:
    """The number of tests of the clause that executed code of it."""
    return len({test.id for test, _ in evidence.proved})


TABLES: dict[str, Callable[[Trace, str], str]] = {
    each.__name__: each
    for each in (
        reductions,
        limits,
        support,
        knobs,
        refused,
        axes,
        newton_schulz,
        presets,
        in_force,
        equivalences,
        errata,
        mutants,
        clauses,
        *bibliography.TABLES,
        *claims.TABLES,
        *statements.TABLES,
        *run_tables.TABLES,
    )
}
