"""The kill matrix: which vector rejects which mutant, and that no legal variant is rejected
(VEC-18).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter

import atlas_ref
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError, load
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.facts import facts, refusal, void_in
from atlas_ref.oracle.judge.tolerance import PASS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sweep.lines import Task, holds
from atlas_ref.oracle.sweep.log import Log
from atlas_ref.oracle.sweep.modes import Result, Work
from atlas_ref.oracle.sweep.tasks import Line, Tasks
from atlas_ref.types import Frozen
from atlas_ref.vectors.mutants.mutants import SPAN, change_named, long, tried, words
from atlas_ref.vectors.mutants.score import FORMATS, score
from atlas_ref.vectors.sets import manifest

#: Why axes that are not void are the same function in every case (IDENT-4).
SAME = {
    "newton_schulz.transpose": "CONV-50: the same function",
    "newton_schulz.scale": "CONV-50: 1 for d_out <= d_phi",
    "newton_schulz.guard": "NS-6: the same for eps 0",
    "newton_schulz.argument": "CONV-22: there is no momentum",
    "norm_place": "CONV-58: the map is the identity",
    "rate": "CONV-7: delta uses the product of both rates",
    "reference": "CONV-31: span starts are the same",
    "direction": "CONV-62: one sign undoes the other",
    "value_sign": "CONV-62: one sign undoes the other",
}

#: The text of a cell, by the formats in which a vector kills a mutant.
CELL = {(): "", ("float32",): "f", ("bfloat16",): "b", FORMATS: "f b"}


class Rows(NamedTuple):
    """The matrix of one target.

    Attributes:
        vectors: names, the columns.
        kills: mutant -> dtype -> the vectors that kill it; the rows.
        survivors: (mutant, dtype) that no vector kills.
        void: settings that are no mutants here -> why.
    """

    vectors: list[str]
    kills: dict[str, dict[str, list[str]]]
    survivors: list[tuple[str, str]]
    void: dict[str, str]


class Matrix(NamedTuple):
    """The kill matrices of the targets of a set.

    Attributes:
        targets: name -> its matrix.
        alarms: legal variants that are not PASS, and results that are UNDECIDABLE: (vector, dtype,
            what).
        lost: kills that the manifest lists and that are none: (vector, dtype, mutant).
        controls: legal variants that were tried.
    """

    set: str
    version: str
    targets: dict[str, Rows]
    alarms: list[tuple[str, str, str]]
    lost: list[tuple[str, str, str]]
    controls: int

    @property
    def exit_code(self) -> int:
        """1 where a mutant survives, a legal variant does not pass, or a listed kill is none."""
        return (
            1
            if self.alarms or self.lost or any(rows.survivors for rows in self.targets.values())
            else 0
        )

    def counts(self, dtype: str) -> tuple[int, int]:
        """Mutants killed, and mutants, over all targets."""
        total = sum(len(rows.kills) for rows in self.targets.values())
        return total - sum(
            kind == dtype for rows in self.targets.values() for _, kind in rows.survivors
        ), total

    def plain(self) -> dict[str, Any]:
        """The matrix as JSON holds it."""
        counts = {
            dtype: dict(zip(("killed", "mutants"), self.counts(dtype), strict=True))
            for dtype in FORMATS
        }
        targets = {name: rows._asdict() for name, rows in self.targets.items()}
        return {
            "set": self.set,
            "version": self.version,
            "counts": counts,
            **self._asdict(),
            "targets": targets,
        }


class Kills(Frozen):
    """What a vector kills in one format, and how many legal variants were tried."""

    kills: dict[str, bool]
    alarms: list[str]
    controls: Annotated[int, Field(ge=0)]


class Logged(Task):
    """The line of a vector in a log."""

    task: Literal["score"]
    float32: Kills
    bfloat16: Kills


class Scoring(NamedTuple):
    """The plan of the tasks: task `score` N scores the vector in that file."""

    folder: str
    files: tuple[str, ...]

    def perform(self, source: Any, kind: str, number: int) -> Result:
        """Score mutants and legal variants on a vector, in every format."""
        case = load(Path(self.folder) / self.files[number])
        line: Line = {}
        for dtype in FORMATS:
            result = score(case, dtype)
            alarms = [
                f"{name}: {ratio:.3g} tolerances"
                for name, ratio in result.controls.items()
                if not ratio <= PASS
            ]
            alarms += [f"{name}: UNDECIDABLE" for name in result.hidden]
            kills = {name: not ratio <= PASS for name, ratio in result.mutants.items()}
            line[dtype] = {"kills": kills, "alarms": alarms, "controls": len(result.controls)}
        return line


def matrix(
    folder: Path,
    *,
    targets: Sequence[str] = (),
    jobs: int = 1,
    scheduler: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: Progress = unwatched,
) -> Matrix:
    """Score every vector of a set (VEC-18).

    Args:
        targets: these alone; all when empty.
        jobs, scheduler, resume: as for `sweep`.

    Raises:
        CaseError: no set, a target that it does not have, a log of another set.
    """
    listing = manifest.load(folder)
    existing = dict.fromkeys(each.target for each in listing.vectors)
    for name in targets:
        if name not in existing:
            raise CaseError(
                f"{folder}: target {name!r} does not exist; targets are {', '.join(existing)}"
            )
    vectors = [each for each in listing.vectors if not targets or each.target in targets]
    work = Work(Scoring(str(folder.resolve()), tuple(each.file for each in vectors)), None)
    described = {
        "version": atlas_ref.__version__,
        "sums": manifest.read_sums(folder),
        "targets": list(targets),
    }
    with ExitStack() as stack:
        log = (
            None
            if resume is None
            else stack.enter_context(
                Log(
                    resume,
                    described,
                    key="atlas_ref_kills",
                    what="a kill matrix",
                    holds=holds(TypeAdapter(Logged)),
                )
            )
        )
        lines = Tasks(work, lambda line: line, jobs, scheduler, log, progress).lines(
            "score", range(len(vectors))
        )
    return _summed(folder, listing, vectors, lines)


def _summed(
    folder: Path,
    listing: manifest.Manifest,
    vectors: Sequence[manifest.Vector],
    lines: Sequence[Mapping[str, Any]],
) -> Matrix:
    alarms: list[tuple[str, str, str]] = []
    lost: list[tuple[str, str, str]] = []
    for vector, line in zip(vectors, lines, strict=True):
        for dtype in FORMATS:
            alarms += [(vector.name, dtype, what) for what in line[dtype]["alarms"]]
            kills = line[dtype]["kills"]
            lost += [
                (vector.name, dtype, name) for name in vector.kills[dtype] if not kills.get(name)
            ]
    targets = {}
    for name in dict.fromkeys(vector.target for vector in vectors):
        own = [
            (vector, line)
            for vector, line in zip(vectors, lines, strict=True)
            if vector.target == name
        ]
        targets[name] = _rows(folder, own)
    controls = sum(line[dtype]["controls"] for line in lines for dtype in FORMATS)
    return Matrix(listing.set, listing.version, targets, alarms, lost, controls)


def _rows(folder: Path, own: Sequence[tuple[manifest.Vector, Mapping[str, Any]]]) -> Rows:
    names = dict.fromkeys(
        name for _, line in own for dtype in FORMATS for name in line[dtype]["kills"]
    )
    kills: dict[str, dict[str, list[str]]] = {
        name: {
            dtype: [vector.name for vector, line in own if line[dtype]["kills"].get(name)]
            for dtype in FORMATS
        }
        for name in sorted(names)
    }
    survivors: list[tuple[str, str]] = [
        (name, dtype) for name, by in kills.items() for dtype in FORMATS if not by[dtype]
    ]
    void: dict[str, str] = {}
    for vector, _ in own:
        for name, why in hidden(load(folder / vector.file)).items():
            if name not in kills:
                void.setdefault(name, why)
    return Rows([vector.name for vector, _ in own], kills, survivors, void)


def hidden(case: Case) -> dict[str, str]:
    """Conventions one change away that are no mutants of a case, and why.

    They are void, the same function, or cannot be evaluated.
    """
    subject = SUBJECTS[case.header.rule]
    if not subject.has_axes or long(case):
        return {}
    if subject.has_tokens and case.header.span is None:
        case = case.replaced(header=case.header.replaced(span=SPAN))
    of, own = facts(case), lattice.point(case.convention)
    reasons: dict[str, str] = {}
    for point in lattice.around(own, tried(case), 1):
        c = lattice.convention(point)
        changes = lattice.changes(own, point)
        if not changes:
            continue
        refused = refusal(of, c)
        if refused is not None:
            reasons[change_named(changes)] = refused
        elif lattice.fold(of, point) == lattice.fold(of, own):
            axis = next(iter(changes))
            reasons[change_named(changes)] = (
                void_in(of, c).get(axis) or void_in(of, case.convention).get(axis) or SAME[axis]
            )
    return reasons


def markdown(result: Matrix) -> str:
    """Counts, a summary of targets, and for each target the table of mutants by vectors."""
    lines = [f"# Kill matrix of {result.set} {result.version}", ""]
    lines += [
        (
            "Written by `atlas-ref vectors kill-matrix`; what it means is in "
            "[vectors](../specs/vectors.md)."
        ),
        "",
    ]
    for dtype in FORMATS:
        killed, total = result.counts(dtype)
        lines.append(f"- {dtype}: {killed} of {total} mutants killed")
    lines += [f"- {len(result.alarms)} alarms on {result.controls} legal variants", ""]
    rows = [
        (
            f"[{name}](#{name})",
            len(rows.vectors),
            len(rows.kills),
            len(rows.survivors),
            len(rows.void),
        )
        for name, rows in result.targets.items()
    ]
    lines += _table(("target", "vectors", "mutants", "survivors", "no mutants here"), rows)
    lines += [
        "",
        (
            "A cell names the formats in which the vector rejects the mutant: f for float32, b "
            "for bfloat16."
        ),
        "",
    ]
    for name, each in result.targets.items():
        lines += [f"## {name}", "", *_target(name, each), ""]
    return "\n".join(lines).rstrip() + "\n"


def _target(name: str, rows: Rows) -> Iterator[str]:
    columns = [vector.removeprefix(f"{name}-") for vector in rows.vectors]
    body = []
    for mutant, by in rows.kills.items():
        cells = [
            CELL[tuple(dtype for dtype in FORMATS if vector in by[dtype])]
            for vector in rows.vectors
        ]
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
