"""The command trace-spec: every clause with its code, its tests and what they executed.

A gap fails.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import output

if TYPE_CHECKING:
    from docs.clauses.trace import Trace


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("trace-spec")(trace_spec)


def trace_spec(
    clauses: Annotated[
        list[str] | None,
        typer.Argument(metavar="CLAUSE...", help="Tell all about these; none: one line a spec."),
    ] = None,
    root: Annotated[
        Path, typer.Option(metavar="FOLDER", help="A clone of the repository.")
    ] = Path(),
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What the tests executed; without it build/trace/run.json, which make trace "
            "writes.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Clause, code, test, vector, mutant: what stands for each clause of the specs; fails on a
    gap.
    """
    from atlas_ref.oracle.cases.case import CaseError

    try:
        from docs.clauses import record as records
        from docs.clauses.reading import ReadingError
        from docs.clauses.trace import trace
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "docs":
            raise
        raise CaseError(
            "trace-spec: reads specs and tests, which an installation does not hold; run "
            "python -m atlas_ref.cli trace-spec in a clone of the repository"
        ) from None

    if not os.path.isdir(root / "specs"):
        raise CaseError(f"--root {root}: holds no specs; it takes a clone of the repository")
    try:
        result = trace(root, records.read(root, record))
    except (records.RecordError, ReadingError) as error:
        raise CaseError(str(error)) from error
    unknown = [each for each in clauses or [] if each not in result.clauses]
    if unknown:
        raise CaseError(f"CLAUSE: no spec has {', '.join(unknown)}")
    code = 1 if result.gaps else 0
    if as_json:
        output.emit_json(
            {
                "exit": code,
                "gaps": [gap._asdict() for gap in result.gaps],
                "clauses": _described(result, clauses or list(result.clauses)),
            }
        )
    elif clauses:
        _tell(result, clauses)
    else:
        _summary(result)
    return code


def _described(trace: Trace, ids: list[str]) -> list[dict[str, Any]]:
    """The evidence of clauses in plain types."""
    return [
        {
            "clause": name,
            "title": trace.clauses[name].title,
            "spec": f"{trace.clauses[name].path}:{trace.clauses[name].line}",
            "no_code": trace.clauses[name].no_code or None,
            "code": [f"{each.where} {each.name}".rstrip() for each in trace.evidence[name].places],
            "tests": [each.id for each in trace.evidence[name].tests],
            "executed": [[test.id, place.where] for test, place in trace.evidence[name].proved],
            "errata": list(trace.evidence[name].errata),
            "vectors": list(trace.evidence[name].vectors),
            "mutants": [each.name for each in trace.evidence[name].mutants],
        }
        for name in ids
    ]


def _tell(trace: Trace, ids: list[str]) -> None:
    """Write all the evidence of some clauses (TRACE-10)."""
    for each in _described(trace, ids):
        _line(f"{each['clause']} {each['title']} ({each['spec']})")
        if each["no_code"]:
            _line(f"  no code: {each['no_code']}")
        executed = {test for test, _ in each["executed"]}
        for kind in ("code", "errata", "vectors", "mutants"):
            for item in each[kind]:
                _line(f"  {kind:8} {item}")
        for test in each["tests"]:
            _line(
                f"  test     {test}"
                + ("" if test in executed or each["no_code"] else " (executed none of the code)")
            )
    _gaps([gap for gap in trace.gaps if any(gap.what.startswith(f"{name} ") for name in ids)])


def _summary(trace: Trace) -> None:
    """Write one line a spec, then every gap (TRACE-10)."""
    rows = []
    specs = list(dict.fromkeys(each.path for each in trace.clauses.values()))
    for spec in specs:
        names = [name for name, each in trace.clauses.items() if each.path == spec]
        evidence = [trace.evidence[name] for name in names]
        tests = {test.id for each in evidence for test in each.tests}
        counts = (
            sum(bool(each.places) for each in evidence),
            len(tests),
            sum(bool(each.vectors) for each in evidence),
        )
        dead = {mutant.name for each in evidence for mutant in each.mutants}
        rows.append((output.printable(spec), len(names), *counts, len(dead)))
    output.emit_rich(
        output.table("", ("spec", "clauses", "with code", "tests", "in a vector", "mutants"), rows)
    )
    _gaps(list(trace.gaps))


def _line(text: str) -> None:
    output.emit(output.printable(text) + "\n")


def _gaps(gaps: list[Any]) -> None:
    for gap in gaps:
        _line(str(gap))
    _line(f"{len(gaps)} gap{'s' * (len(gaps) != 1)}" if gaps else "no gap")
