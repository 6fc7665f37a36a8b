"""Clause -> code -> test -> vector -> mutant, and the gaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from docs.clauses import marks, places, quotes, specs
from docs.clauses.gap import Gap
from docs.clauses.marks import Proof
from docs.clauses.places import Place
from docs.clauses.record import Mutant, Ran, Record
from docs.clauses.specs import Clause

#: Rooms whose code runs a rule or restates it, and is not the rule itself.
APART = {"oracle", "engine", "compiled", "certify", "vectors", "cli", "docs"}


class Evidence(NamedTuple):
    """The evidence for one clause.

    Attributes:
        places: the code that names it, the narrowest first.
        tests: marked with it.
        proved: pairs of a test of the clause and a place of it that the test executed; empty
            without a record.
        errata: that it names.
        vectors: recorded cases whose evaluation executed its code.
        mutants: of its code, or rejected by a test of it.
    """

    places: tuple[Place, ...]
    tests: tuple[Proof, ...]
    proved: tuple[tuple[Proof, Place], ...]
    errata: tuple[str, ...]
    vectors: tuple[str, ...]
    mutants: tuple[Mutant, ...]


class Trace(NamedTuple):
    """Every clause with its evidence, and every gap."""

    clauses: Mapping[str, Clause]
    evidence: Mapping[str, Evidence]
    gaps: tuple[Gap, ...]
    recorded: bool


def trace(root: Path, record: Record | None, read: Record | None = None) -> Trace:
    """Read specs, code and tests below `root`.

    Args:
        record: of a run of the tests; without one the trace does not say which code they executed.
        read: cases and mutants that take the place of the record's where there is none.
    """
    known = specs.read(root)
    families = specs.families(known)
    code = places.read(root, families)
    tests = _with_run(marks.read(root), record)
    facts = record or read or Record({})
    named: dict[str, list[Place]] = defaultdict(list)
    proving: dict[str, list[Proof]] = defaultdict(list)
    for place in code:
        for name in place.ids:
            named[name].append(place)
    for test in tests.values():
        for name in dict.fromkeys(test.clauses):
            proving[name].append(test)
    evidence = {
        name: _evidence(each, known, named[name], tuple(proving[name]), facts)
        for name, each in known.items()
    }
    gaps = [
        *_twice(root, known),
        *_unknown(known, code, tests.values()),
        *quotes.changed(root, known),
    ]
    gaps += [
        gap for each in known.values() for gap in _gaps(each, evidence[each.id], record is not None)
    ]
    return Trace(known, evidence, tuple(sorted(gaps)), record is not None)


def _with_run(proofs: dict[str, Proof], record: Record | None) -> dict[str, Proof]:
    """Tests with the clauses of the record added.

    Marks on parameters are not in the text of a function, so only a run has them.
    """
    if record is None:
        return proofs
    more = {name: ran.clauses for name, ran in record.tests.items()}
    return {
        name: each._replace(clauses=tuple(dict.fromkeys([*each.clauses, *more.get(name, ())])))
        for name, each in proofs.items()
    }


def _evidence(
    clause: Clause,
    known: Mapping[str, Clause],
    named: list[Place],
    proofs: tuple[Proof, ...],
    facts: Record,
) -> Evidence:
    own = sorted(named, key=lambda each: _order(clause, each))
    counted = deciding(own)
    proved = [
        (test, place)
        for test in proofs
        for place in counted
        if executed(facts.tests.get(test.id), place)
    ]
    vectors = [
        name
        for name, each in facts.vectors.items()
        if any(place.body & each.get(place.path, frozenset()) for place in counted)
    ]
    ids = {each.id for each in proofs}
    dead = [
        each
        for each in facts.mutants
        if ids & set(each.tests) or any(changes(each, place) for place in counted)
    ]
    return Evidence(
        tuple(own),
        proofs,
        tuple(proved),
        tuple(e for e in clause.errata if e in known and e != clause.id),
        tuple(vectors),
        tuple(dead),
    )


def deciding(own: Iterable[Place]) -> list[Place]:
    """The places that a test must execute: a module stands for a clause only where nothing smaller
    does.
    """
    places = list(own)
    return [each for each in places if each.kind != "module"] or places


def executed(ran: Ran | None, place: Place) -> bool:
    """Whether a test that passed executed a line of the place (TRACE-5).

    A place whose file holds no function counts as read on import.
    """
    if ran is None or not ran.passed:
        return False
    return bool(place.body & ran.lines.get(place.path, frozenset())) or (
        not place.body and place.kind != "function"
    )


def changes(mutant: Mutant, place: Place) -> bool:
    """Whether a mutant changes this piece of code (TRACE-8)."""
    return (
        place.kind != "module"
        and mutant.path == place.path
        and place.first <= mutant.line <= place.last
    )


def _order(clause: Clause, place: Place) -> tuple[bool, int, int, str, int]:
    """Sort key of a place: the rule itself first, of it what names few clauses, modules last."""
    return place.kind == "module", rank(clause, place), len(place.ids), place.path, place.first


def rank(clause: Clause, place: Place) -> int:
    """0 for the rule in the module of the spec's name, 1 for other code of that name (TRACE-11).

    Then other rules, then what runs, times or restates them.
    """
    parts = place.path.removesuffix(".py").split("/")
    ruling = not APART & set(parts)
    if Path(clause.path).stem in parts:
        return 0 if ruling else 1
    return 2 if ruling else 3


def _twice(root: Path, known: Mapping[str, Clause]) -> list[Gap]:
    """Clauses with the id of an earlier one (TRACE-1, TRACE-9)."""
    again = [each for each in specs.every(root) if each != known[each.id]]
    return [
        Gap(
            each.path,
            each.line,
            f"{each.id} {each.title}: {known[each.id].path}:{known[each.id].line} has this id too",
        )
        for each in again
    ]


def _unknown(known: Mapping[str, Clause], code: list[Place], tests: Iterable[Proof]) -> list[Gap]:
    """Code and marks that name a clause which no spec defines (TRACE-9)."""
    gaps = [
        Gap(each.path, line, f"{name}: no spec has this clause")
        for each in code
        for name, line in each.names
        if name not in known
    ]
    for test in tests:
        gaps += [
            Gap(
                test.path,
                test.line,
                f"{name}: {test.name} is marked with a clause that no spec has",
            )
            for name in test.clauses
            if name not in known
        ]
    return gaps


def _gaps(clause: Clause, evidence: Evidence, recorded: bool) -> list[Gap]:
    """Missing evidence of one clause (TRACE-6, TRACE-9).

    An erratum is about the sources, so it needs a proof and no code.
    """

    def gap(what: str) -> Gap:
        return Gap(clause.path, clause.line, f"{clause.id} {clause.title}: {what}")

    gaps = []
    codeless = clause.erratum or bool(clause.no_code)
    if not evidence.places and not codeless:
        gaps.append(gap("no code names it, and it does not say why (**No code.** reason)"))
    if (
        clause.no_code
        and deciding(evidence.places)
        and any(each.kind != "module" for each in evidence.places)
    ):
        gaps.append(gap(f"says that it has no code, and {evidence.places[0].where} names it"))
    if not evidence.tests:
        gaps.append(gap("no test is marked with it"))
    elif recorded and evidence.places and not codeless and not evidence.proved:
        gaps.append(
            gap(
                f"none of its {len(evidence.tests)} tests executed its code "
                f"({evidence.places[0].where} ...)"
            )
        )
    return gaps
