"""The commands identify and tolerance: the convention behind results under test, and their allowed
distance from ours.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atlas_ref.cli import options, output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from atlas_ref.oracle.identify.answer import Fit, Identification
    from atlas_ref.oracle.judge.tolerance import Tolerance
    from atlas_ref.oracle.norms import Norms

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Dtype = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="float64, float32, bfloat16 or float16.")
]

#: What `--decide` asks for.
DECIDING = "the search for a case that decides"

#: Values that could not be tried and are listed one by one.
LISTED = 12

COLUMNS = ("", "max", "rms", "99th percentile")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(identify)
    app.command()(tolerance)


def identify(
    file: Annotated[Path, typer.Argument(metavar="CASE")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--against",
            metavar="MINE",
            help="Your results: out/y, out/M, grad/k, ..., any of them; else those in the case.",
            rich_help_panel=options.SOURCES,
        ),
    ] = None,
    impl: options.Impl = None,
    command: options.Program = None,
    timeout: options.Timeout = 60.0,
    depth: Annotated[
        int, typer.Option(min=0, max=2, help="Changes from a preset that are searched.")
    ] = 2,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE", help="What your code works in; else the dtype of your results."
        ),
    ] = None,
    decide: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where several settings fit, write the smallest case that decides."
        ),
    ] = None,
    backend: options.Backend = None,
    as_json: Json = False,
) -> int:
    """Search the convention behind your results: the match, the runner-up, and what this case
    cannot tell apart.
    """
    with output.importing():
        from atlas_ref.oracle.cases.case import load, save
        from atlas_ref.oracle.cases.inputs import round_inputs
        from atlas_ref.oracle.identify.deciding import deciding_case
        from atlas_ref.oracle.identify.identify import identify as search
        from atlas_ref.oracle.identify.identify import require_searched
        from atlas_ref.oracle.identify.report import absent, plain, results_of
        from atlas_ref.storage import faults

    file = options.case_file(file)
    case = load(file)
    if decide is not None:
        case.require_one_call("--decide")
        options.refuse_same(decide, file)
        if out is not None:
            options.refuse_same(decide, out, what="file of results")
    require_searched(case, dtype)
    if dtype is not None and (impl is not None or command is not None):
        case = round_inputs(case, dtype)
    with contextlib.ExitStack() as stack:
        source = options.source(stack, out, impl, command, timeout, 1)
        mine = results_of(case, source)
    with output.progress(options.SEARCH) as progress:
        answer = (
            absent(case, mine)
            if mine.tensors is None
            else search(case, mine.tensors, depth=depth, dtype=dtype, progress=progress)
        )
    decided = ""
    if decide is not None and answer.verdict == "UNDECIDABLE":
        deciding = faults.told(
            DECIDING, lambda: deciding_case(case, answer.fits, dtype=answer.dtype), str
        )
        decided = "none of the cases tried decides"
        if isinstance(deciding, str):  # the answer stands (CASE-38)
            decided = deciding
        elif deciding is not None:
            save(decide, deciding.header, deciding.inputs)
            decided = str(decide)
    if as_json:
        given = next((str(each) for each in (out, impl, command) if each is not None), str(file))
        output.emit_json(plain(answer, given, decided))
        return answer.exit_code
    output.emit_rich(*identification(answer))
    if decide is not None:
        output.say(about_deciding(answer, decided))
    return answer.exit_code


def tolerance(
    what: Annotated[
        str, typer.Argument(metavar="CASE:TENSOR", help="Such as case.safetensors:y, or :grad/k.")
    ],
    dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE", help="What results are in: float64, float32, bfloat16, float16."
        ),
    ] = "float32",
    state_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="What M and S are kept in.")
    ] = None,
    backend: options.Backend = None,
    as_json: Json = False,
) -> int:
    """Where the tolerance of a result comes from: every member of the ensemble, the floor and the
    amplification.
    """
    with output.importing():
        from atlas_ref.oracle.cases.case import CaseError, load
        from atlas_ref.oracle.judge.compare import chosen
        from atlas_ref.oracle.judge.tolerance import plain, tolerances

    path, colon, name = what.rpartition(":")
    if not colon or not path or not name:
        raise CaseError(f"{what}: CASE:TENSOR is needed, such as case.safetensors:y")
    (full,) = chosen([name])
    case = load(options.case_file(Path(path)))
    bound = tolerances(case, dtype=dtype, state_dtype=state_dtype, states=True, only=[full])[full]
    if as_json:
        output.emit_json(plain(bound, path))
    else:
        output.emit_rich(*derivation(bound, path))
    return 0


def identification(answer: Identification) -> list[RenderableType]:
    """Print form of an identification (IDENT-9)."""
    from atlas_ref.oracle.identify.stated import setting, show_value

    lines: list[RenderableType] = [
        f"{output.one_line(answer.case)}: {answer.verdict}"
        + (f": {answer.why}" if answer.why else "")
    ]
    if answer.match is not None:
        lines.append(
            f"{'nearest' if answer.verdict == 'NO MATCH' else 'match'}: "
            f"{setting(answer.match.convention)}{_how(answer.match)}"
        )
        if answer.own:
            lines.append("that is the case's own convention")
        if answer.preset is not None and answer.verdict != "NO MATCH":
            lines.append(f"preset: {answer.preset}")
        if answer.from_own:
            lines.append(f"from the case's own: {setting(answer.from_own)}")
    lines += [
        f"or {each.phrase} (distance {each.distance:.3g}, {each.ratio:.3g} tolerances, in "
        f"{each.tensor})"
        for each in answer.departures
    ]
    if answer.runner_up is not None:
        lines.append(
            "runner-up: "
            f"{setting(answer.runner_up.convention)}{_how(answer.runner_up)}{_worse(answer)}"
        )
    if answer.undecided:
        lines.append("not decided by this case:")
        rows = [
            (axis, ", ".join(map(show_value, values))) for axis, values in answer.undecided.items()
        ]
        lines.append(output.table("", ("axis", "values that fit, the match's first"), rows))
    if answer.twins:
        twins = [(setting(twin.changes), twin.reason) for twin in answer.twins]
        lines.append(output.table("", ("cannot be told from the match", "because"), twins))
    lines += [f"void: {axis}: {why}" for axis, why in sorted(answer.void.items())]
    lines += [f"not tried: {value}: {why}" for value, why in list(answer.untried.items())[:LISTED]]
    lines += [f"not used: {name}: no convention changes it" for name in answer.unused]
    lines += list(answer.failed)
    return [*lines, f"{answer.searched} conventions compared"] if answer.searched else lines


def _how(fit: Fit) -> str:
    if fit.ratio is None:
        return f" (distance {fit.distance:.3g} in {fit.tensor})"
    return f" (distance {fit.distance:.3g}, {fit.ratio:.3g} tolerances, in {fit.tensor})"


def _worse(answer: Identification) -> str:
    if answer.times_worse is None:
        return ""
    return (
        ", infinitely worse"
        if answer.times_worse == float("inf")
        else f", {answer.times_worse:.3g} times worse"
    )


def about_deciding(answer: Identification, decided: str) -> str:
    """Message about the case that --decide asks for."""
    if answer.verdict != "UNDECIDABLE":
        return "no case is needed to decide"
    if decided.startswith(("none", DECIDING)):
        return decided
    return f"wrote {decided}: run your code on it, and identify that"


def derivation(bound: Tolerance, case: str) -> list[RenderableType]:
    """Print form of a tolerance: every member, the floor, the sum, the limits of verdicts.

    Source: TOL-10.
    """
    from atlas_ref.oracle.judge.tolerance import FLOOR, MARGINAL, PASS
    from atlas_ref.oracle.norms import Norms

    rows = [(member, *_row(error)) for member, error in bound.ensemble.items()]
    worst = Norms(*(max(column) for column in zip(*bound.ensemble.values(), strict=True)))
    factor = (
        f", times {bound.amplification:.3g} that Newton-Schulz amplifies"
        if bound.amplification > 1.0
        else ""
    )
    rows += [
        ("largest error", *_row(worst)),
        (f"floor: {FLOOR} units in the last place{factor}", *_row(bound.floor)),
        ("tolerance: their sum", *_row(bound.norms)),
        (f"PASS up to {PASS:g} times", *_row(Norms(*(PASS * each for each in bound.norms)))),
        (
            f"MARGINAL up to {MARGINAL:g} times",
            *_row(Norms(*(MARGINAL * each for each in bound.norms))),
        ),
    ]
    lines: list[RenderableType] = [
        (
            f"{output.one_line(case)}: {bound.name} in {bound.dtype}: error of each member of the "
            "ensemble, in three norms"
        ),
        output.table("", COLUMNS, rows),
    ]
    return [*lines, *([bound.note] if bound.note else [])]


def _row(each: Norms) -> tuple[str, ...]:
    return tuple(output.number(value) for value in each)
