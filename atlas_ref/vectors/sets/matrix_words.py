"""The kill matrix for readers: tables of Markdown (VEC-18)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atlas_ref.vectors.mutants.mutants import words
from atlas_ref.vectors.mutants.score import FORMATS
from atlas_ref.vectors.sets.matrix import Matrix, Rows

#: What a cell says of the formats in which a vector kills a mutant.
CELL = {(): "", ("float32",): "f", ("bfloat16",): "b", FORMATS: "f b"}


def markdown(result: Matrix) -> str:
    """Counts, a summary of targets, and for each target the table of mutants by vectors."""
    lines = [f"# Kill matrix of {result.set} {result.version}", ""]
    lines += ["Written by `atlas-ref vectors kill-matrix`; what it means is in [vectors](../specs/vectors.md).", ""]
    for dtype in FORMATS:
        killed, total = result.counts(dtype)
        lines.append(f"- {dtype}: {killed} of {total} mutants killed")
    lines += [f"- {len(result.alarms)} alarms on {result.controls} legal variants", ""]
    rows = [
        (f"[{name}](#{name})", len(rows.vectors), len(rows.kills), len(rows.survivors), len(rows.void))
        for name, rows in result.targets.items()
    ]
    lines += _table(("target", "vectors", "mutants", "survivors", "no mutants here"), rows)
    lines += ["", "A cell names the formats in which the vector rejects the mutant: f for float32, b for bfloat16.", ""]
    for name, each in result.targets.items():
        lines += [f"## {name}", "", *_target(name, each), ""]
    return "\n".join(lines).rstrip() + "\n"


def _target(name: str, rows: Rows) -> Iterator[str]:
    columns = [vector.removeprefix(f"{name}-") for vector in rows.vectors]
    body = []
    for mutant, by in rows.kills.items():
        cells = [CELL[tuple(dtype for dtype in FORMATS if vector in by[dtype])] for vector in rows.vectors]
        body.append((f"`{mutant}`" if "=" in mutant else f"{mutant}: {words(mutant)}", *cells))
    yield from _table(("mutant", *columns), body)
    for mutant, dtype in rows.survivors:
        yield from ("", f"SURVIVES at {dtype}: {mutant}")
    if rows.void:
        yield from ("", "No mutants here:", "")
        yield from (f"- `{change}`: {why}" for change, why in rows.void.items())


def _table(columns: Sequence[object], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(map(str, columns)) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
