"""The commands vectors: make, list, verify and compare sets of vectors, and print the mutants that
each vector rejects.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import options, output

if TYPE_CHECKING:
    from atlas_ref.vectors.sets.manifest import Manifest
    from atlas_ref.vectors.sets.matrix import Matrix
    from atlas_ref.vectors.sets.verify import Verified

SET = typer.Argument(metavar="SET", help="A shipped set, as v1, or a folder that holds one.")
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Jobs = Annotated[int, typer.Option(min=1, help="processes")]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="a Dask scheduler, in place of --jobs")
]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="LOG", help="Keep a log there; where it exists, go on from it."),
]

vectors = typer.Typer(
    help="Small searched cases with certified results: make, list, verify, kill-matrix, diff.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(vectors, name="vectors")


@vectors.command()
def make(
    name: Annotated[
        str, typer.Argument(metavar="PLAN", help="A plan, as v1, or a file that holds one.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="A new folder, or a set, which is replaced."
        ),
    ],
    jobs: Jobs = 1,
    scheduler: Scheduler = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="Keep a log there; where it exists, what it holds must be what is computed.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Make a set from its plan, the same bytes on every machine; needs the extra `certify`."""
    from atlas_ref.vectors.sets.build import build

    with output.progress(
        {"certify": "certifying vectors", "large": "certifying larger cases"}
    ) as progress:
        files = build(name, out, jobs=jobs, scheduler=scheduler, resume=resume, progress=progress)
    if as_json:
        output.emit_json(
            {"exit": 0, "folder": str(out), "files": files, "bytes": sum(files.values())}
        )
    else:
        output.say(f"wrote {out}: {len(files)} files, {sum(files.values())} bytes")
    return 0


@vectors.command("list")
def list_(
    name: Annotated[str | None, SET] = None,
    rule: Annotated[
        str | None, typer.Option(metavar="RULE", help="Vectors of this rule alone.")
    ] = None,
    as_json: Json = False,
) -> int:
    """The sets that came with the package; with SET, what is in it."""
    from atlas_ref.vectors.sets import cases, locate, manifest

    if name is None:
        sets = {each: str(folder) for each, folder in locate.shipped().items()}
        tokens = {each: cases.longest(cases.paths(each)) for each in sets}
        if as_json:
            output.emit_json({"sets": sets, "tokens": tokens})
        else:
            rows = [(each, tokens[each], folder) for each, folder in sets.items()]
            output.emit_rich(output.table("sets", ("set", "tokens, at most", "folder"), rows))
        return 0
    folder = locate.folder(name)
    listing = manifest.load(folder)
    listing = listing.replaced(
        vectors=[each for each in listing.vectors if rule in (None, each.rule)]
    )
    most = cases.longest(folder / each.file for each in listing.vectors)
    if as_json:
        plain = listing.plain()
        keys = ("set", "version", "vectors", "negative", "large")
        output.emit_json(
            {"folder": str(folder), "tokens": most, **{key: plain[key] for key in keys}}
        )
    else:
        _emit_set(listing, most, whole=rule is None)
    return 0


def _emit_set(listing: Manifest, most: int, *, whole: bool) -> None:
    """Write vectors, and of a whole set the other files.

    Args:
        most: tokens of the longest vector.
    """
    length = f", at most {most} tokens" if most else ""
    tables = [
        output.table(
            f"{listing.set} {listing.version}{length}",
            ("vector", "gradients", "float32", "bfloat16", "what it can show"),
            [
                (v.name, "yes" if v.grad else "", *_counts(v.kills), ", ".join(v.properties))
                for v in listing.vectors
            ],
        )
    ]
    if whole and listing.negative:
        rows = [(n.name, n.code, n.about) for n in listing.negative]
        tables.append(output.table("must be refused", ("file", "code", "about"), rows))
    if whole and listing.large:
        large = [(each.name, each.rule) for each in listing.large]
        tables.append(output.table("made from a seed", ("case", "rule"), large))
    output.emit_rich(*tables)


def _counts(kills: Any) -> tuple[str, str]:
    return f"{len(kills['float32'])} mutants", f"{len(kills['bfloat16'])} mutants"


@vectors.command()
def verify(
    name: Annotated[str, SET] = "v1", backend: options.Backend = None, as_json: Json = False
) -> int:
    """Check every byte, key, value and refusal of a set; needs no ball arithmetic."""
    from atlas_ref.vectors.sets import locate
    from atlas_ref.vectors.sets.verify import verify as run

    with output.progress({"verify": "verifying"}) as progress:
        verification = run(locate.folder(name), progress=progress)
    if as_json:
        worst = None if verification.worst is None else verification.worst._asdict()
        plain = {key: value for key, value in verification._asdict().items() if key != "agreements"}
        output.emit_json({"exit": verification.exit_code, **plain, "worst": worst})
    else:
        _say_verified(verification)
    return verification.exit_code


def _say_verified(verification: Verified) -> None:
    for problem in verification.problems:
        output.say(f"atlas-ref: {problem}")
    counts = ", ".join(f"{count} {kind}" for kind, count in verification.counts.items())
    worst = verification.worst
    if worst is not None:
        nearest = f"{worst.ulps:.3g} units in the last place ({worst.vector}, {worst.tensor})"
        output.emit_rich(
            f"{verification.folder} {verification.version}: {counts}; ours is within "
            f"{nearest} of the certified values"
        )
    output.emit_rich(
        "verified"
        if not verification.problems
        else f"NOT VERIFIED: {len(verification.problems)} problems"
    )


@vectors.command("kill-matrix")
def kill_matrix(
    name: Annotated[str, SET] = "v1",
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="This target alone; may be given several times."),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.md|.json", help="Write it there; may be given several times."),
    ] = None,
    jobs: Jobs = 1,
    scheduler: Scheduler = None,
    resume: Resume = None,
    as_json: Json = False,
) -> int:
    """Which vector rejects which mutant at float32 and bfloat16, and that no legal variant is
    rejected.
    """
    from atlas_ref.vectors.sets import locate
    from atlas_ref.vectors.sets.encode import json_bytes
    from atlas_ref.vectors.sets.matrix import markdown, matrix

    for path in report or ():
        if path.suffix not in (".md", ".json"):
            raise _bad(f"--report {path}: a name that ends in .md or .json is needed")
        _refuse_place(path)
    with output.progress({"score": "scoring vectors"}) as progress:
        place = locate.folder(name)
        for path in report or ():
            options.refuse_inside(path, place)
        result = matrix(
            place,
            targets=target or (),
            jobs=jobs,
            scheduler=scheduler,
            resume=resume,
            progress=progress,
        )
    for path in report or ():
        _write(
            path,
            json_bytes(result.plain()) if path.suffix == ".json" else markdown(result).encode(),
        )
    if as_json:
        output.emit_json({"exit": result.exit_code, **result.plain()})
    else:
        _emit_matrix(result)
    return result.exit_code


def _emit_matrix(matrix: Matrix) -> None:
    """Write vectors by mutants as counts, surviving mutants, alarms and kills that are none."""
    from atlas_ref.vectors.mutants.score import FORMATS

    rows: list[tuple[Any, ...]] = []
    for name, each in matrix.targets.items():
        for vector in each.vectors:
            counts = (sum(vector in by[dtype] for by in each.kills.values()) for dtype in FORMATS)
            rows.append((vector, *(f"{count} of {len(each.kills)}" for count in counts)))
        survivors = [sum(kind == dtype for _, kind in each.survivors) for dtype in FORMATS]
        rows.append(
            (
                f"{name}: together",
                *(f"{len(each.kills) - count} of {len(each.kills)}" for count in survivors),
            )
        )
    lines = [
        f"SURVIVES: {name}: {mutant} at {dtype}"
        for name, each in matrix.targets.items()
        for mutant, dtype in each.survivors
    ]
    lines += [f"ALARM: {vector} at {dtype}: {what}" for vector, dtype, what in matrix.alarms]
    lines += [f"NO KILL: {vector} at {dtype}: {mutant}" for vector, dtype, mutant in matrix.lost]
    for dtype in FORMATS:
        killed, total = matrix.counts(dtype)
        lines.append(f"{dtype}: {killed} of {total} mutants killed")
    lines.append(f"{len(matrix.alarms)} alarms on {matrix.controls} legal variants")
    output.emit_rich(
        output.table(f"{matrix.set} {matrix.version}", ("vector", *FORMATS), rows), *lines
    )


@vectors.command(
    help="What changed from set A to set B: cases, tensors and by how much, metadata. Exit code 1 "
    "if anything did."
)
def diff(
    old: Annotated[
        str, typer.Argument(metavar="A", help="A shipped set, or a folder that holds one.")
    ],
    new: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    as_json: Json = False,
) -> int:
    """Write the differences of two sets; the exit code is 1 if there are any."""
    from atlas_ref.vectors.sets import locate
    from atlas_ref.vectors.sets.diff import diff as run
    from atlas_ref.vectors.sets.diff import told

    changes = run(locate.folder(old), locate.folder(new))
    if as_json:
        output.emit_json(
            {"exit": int(bool(changes)), "changes": [each._asdict() for each in changes]}
        )
    else:
        counts = ", ".join(
            f"{sum(each.what == what for each in changes)} {what}"
            for what in ("added", "removed", "changed")
        )
        output.emit_rich(*told(changes), counts if changes else "no difference")
    return int(bool(changes))


@vectors.command()
def search(
    name: Annotated[str, typer.Argument(metavar="SET", help="What the set will be called.")],
    version: Annotated[str, typer.Argument(help="MAJOR.MINOR.PATCH")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="PLAN.json", help="File for the plan, which `make` takes."
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="drawn at most per topic")] = 12,
    long: Annotated[
        bool, typer.Option("--long", help="Of long topics, with mistakes at chunk boundaries.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC", help="Of this topic alone, a draw for each target; repeatable."
        ),
    ] = None,
    jobs: Jobs = 1,
    scheduler: Scheduler = None,
    resume: Resume = None,
    as_json: Json = False,
) -> int:
    """Search the vectors of a new set: the fewest that reject every mutant and no legal variant.
    Takes minutes.
    """
    from atlas_ref.vectors.sets.encode import json_bytes
    from atlas_ref.vectors.sets.search import search as run

    _refuse_place(out)
    with output.progress({"score": "scoring draws"}) as progress:
        plan, survivors = run(
            name,
            version,
            seeds=seeds,
            long=long,
            only=topic or (),
            jobs=jobs,
            scheduler=scheduler,
            resume=resume,
            progress=progress,
        )
    _write(out, json_bytes(plan.model_dump(mode="json")))
    if as_json:
        output.emit_json(
            {
                "exit": int(bool(survivors)),
                "plan": str(out),
                "vectors": len(plan.vectors),
                "survivors": survivors,
            }
        )
    else:
        for target, mutants in survivors.items():
            output.say(f"SURVIVES: {target}: {', '.join(mutants)}")
        output.say(f"wrote {out}: {len(plan.vectors)} vectors")
    return int(bool(survivors))


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        CaseError: the place cannot be written.
    """
    from atlas_ref.storage.files import write_bytes

    try:
        write_bytes(path, data)
    except ValueError as error:
        raise _bad(f"{path}: {error}") from None


def _refuse_place(path: Path) -> None:
    """Refuse a place that no file can have, before minutes of work and not after them.

    Raises:
        CaseError: no file can be written there.
    """
    from atlas_ref.storage.files import writable

    try:
        writable(path)
    except ValueError as error:
        raise _bad(f"{path}: {error}") from None


def _bad(message: str) -> Exception:
    from atlas_ref.oracle.cases.case import CaseError

    return CaseError(message)
