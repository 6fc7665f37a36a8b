"""The command certify: results in ball arithmetic, rounded once, and our distance from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import options, output

if TYPE_CHECKING:
    from atlas_ref.certify.results import Certified
    from atlas_ref.certify.ulps import Row
    from atlas_ref.messages import Progress
    from atlas_ref.oracle.cases.case import Case

#: Unresolved entries and contradictions that the screen shows.
SHOWN = 5


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(certify)


def certify(
    files: Annotated[
        list[Path], typer.Argument(metavar="CASE...", help="Cases, or folders of them.")
    ],
    grad: Annotated[
        bool, typer.Option("--grad", help="Gradients too, of cases that have a cotangent.")
    ] = False,
    differences: Annotated[
        bool,
        typer.Option(
            "--differences",
            help="With --grad: prove each gradient again by differences of values, to 30 digits.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="OUT", help="Write the case with the certified results."
        ),
    ] = None,
    max_bits: Annotated[
        int, typer.Option(min=2, metavar="BITS", help="Precision at which to stop.")
    ] = 16384,
    backend: options.Backend = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Results to the last bit: each is the float64 nearest to the exact value, proved in ball
    arithmetic.
    """
    from atlas_ref.certify import certify as certified
    from atlas_ref.certify import require_flint
    from atlas_ref.certify.ulps import rows
    from atlas_ref.oracle.cases.case import CaseError, load, unsupported
    from atlas_ref.oracle.cases.header import reserved_words
    from atlas_ref.oracle.evaluate import evaluate

    require_flint()
    paths = list(options.case_files(files))
    if out is not None:
        if len(paths) != 1:
            raise CaseError(f"--out {out}: holds one case, {len(paths)} were given")
        options.refuse_same(out, paths[0])
    if differences and not grad:
        raise CaseError("--differences: proves gradients, --grad is needed")
    table: list[Row] = []
    problems: list[dict[str, Any]] = []
    skipped: list[str] = []
    with output.progress({"cases": "certifying"}) as progress:
        for path in output.counted(paths, "cases", progress):
            case = load(path)
            if not case.supported:
                skipped.append(f"{path}: {unsupported(reserved_words(case.header))}")
                continue
            with_grad = grad and (len(paths) == 1 or _has_cotangent(case))
            certificate = certified(case, grad=with_grad, max_bits=max_bits, progress=progress)
            ours = evaluate(case, grad=with_grad).tensors
            table += rows(str(path), certificate, ours)
            problems += _unresolved(str(path), certificate) + _far(str(path), certificate, ours)
            if differences and with_grad:
                problems += _contradictions(case, certificate, progress)
            if out is not None:
                _write(out, case, certificate)
    _print(table, problems, skipped, as_json)
    return _exit_code(table, problems)


def _exit_code(table: list[Row], problems: list[dict[str, Any]]) -> int:
    """1 where an entry is unresolved or contradicted or ours is far off, 3 where nothing could be
    certified.

    Source: CERT-13.
    """
    return 1 if problems else 0 if table else 3


def _has_cotangent(case: Case) -> bool:
    return any(name in case.inputs for name in ("in/y_bar", "in/X_bar", "in/phi_bar"))


def _unresolved(name: str, certificate: Certified) -> list[dict[str, Any]]:
    return [
        {
            "case": name,
            "tensor": tensor,
            "index": list(each.index),
            "low": each.low,
            "high": each.high,
            "what": "unresolved",
        }
        for tensor, entries in certificate.unresolved.items()
        for each in entries
    ]


def _far(name: str, certificate: Certified, ours: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tensors of ours beyond the tolerance of float64, against which `check` judges others
    (CASE-20).
    """
    import numpy as np

    from atlas_ref.oracle.judge.arrays import TOLERANCE, relative_error

    problems = []
    for tensor, value in certificate.values.items():
        same = np.isnan(value) | (np.isinf(value) & (ours[tensor] == value))
        got, want = (np.where(same, 0.0, each) for each in (ours[tensor], value))
        with np.errstate(all="ignore"):
            error = relative_error(got, want)
            gap = np.abs(got - want)
        if not error <= TOLERANCE:  # nan too
            place = np.unravel_index(np.argmax(np.where(np.isnan(gap), np.inf, gap)), gap.shape)
            index = [int(i) for i in place]
            found = {"index": index, "got": float(got[place]), "want": float(want[place])}
            problems.append(
                {"case": name, "tensor": tensor, **found, "error": error, "what": "ours is off"}
            )
    return problems


def _said(problem: dict[str, Any]) -> str:
    """A problem in one line."""
    start = f"{problem['tensor']} {problem['index']}: {problem['what']}"
    if "error" not in problem:
        return f"{start}: {problem['low']!r} or {problem['high']!r}"
    from atlas_ref.oracle.judge.arrays import TOLERANCE

    return (
        f"{start} by {problem['error']:.3g} of the tensor, at most {TOLERANCE:g} is expected: "
        f"{problem['got']!r}, certified {problem['want']!r}; judge this case by the certified "
        "results (--out)"
    )


def _contradictions(case: Case, certificate: Certified, progress: Progress) -> list[dict[str, Any]]:
    """Gradients that differences of values do not confirm."""
    from atlas_ref.certify.differences import differences

    return [
        {
            "case": case.name,
            "tensor": each.name,
            "index": list(each.place),
            "low": each.low,
            "high": each.high,
            "what": "contradicted",
        }
        for each in differences(case, certificate, progress=progress)
        if not each.agrees
    ]


def _write(out: Path, case: Case, certificate: Certified) -> None:
    """Write the case with every tensor that is certified in full, and without those with an
    unresolved entry.
    """
    from atlas_ref.oracle.cases.case import save

    whole = {
        name: value
        for name, value in certificate.values.items()
        if name not in certificate.unresolved
    }
    save(out, case.header, {**case.inputs, **whole})
    note = (
        f"; left out, since entries are unresolved: {', '.join(certificate.unresolved)}"
        if certificate.unresolved
        else ""
    )
    output.say(f"wrote {out}: {', '.join(whole)}{note}")


def _print(
    table: list[Row], problems: list[dict[str, Any]], skipped: list[str], as_json: bool
) -> None:
    for line in skipped:
        output.say(line)
    if as_json:
        output.emit_json(
            {
                "exit": _exit_code(table, problems),
                "tensors": [row._asdict() for row in table],
                "problems": problems,
            }
        )
        return
    if not table:
        output.say("nothing could be certified")
        return
    lines, previous = [], ""
    for row in table:
        name = "" if row.case == previous else Path(row.case).stem
        previous = row.case
        lines.append(
            (
                name,
                row.tensor,
                row.entries,
                row.bits,
                row.unresolved,
                *map(output.number, (row.worst, row.median, row.scale)),
            )
        )
    columns = (
        "case",
        "tensor",
        "entries",
        "bits",
        "unresolved",
        "error, ulp: worst",
        "median",
        "worst, ulp of the largest entry",
    )
    entries, lost = sum(row.entries for row in table), sum(row.unresolved for row in table)
    messages = [_said(each) for each in problems[:SHOWN]]
    messages += (
        [f"and {len(problems) - SHOWN} more, told in full by --json"]
        if len(problems) > SHOWN
        else []
    )
    output.emit_rich(
        output.table("", columns, lines),
        *messages,
        f"{entries - lost} of {entries} entries certified",
    )
