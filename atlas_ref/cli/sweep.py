"""The command sweep: an implementation against seeded cases, without files (SWEEP-11)."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import options, output
from atlas_ref.storage import last_failed as noted

if TYPE_CHECKING:
    from atlas_ref.oracle.sweep.sweep import Failure, Named, Sweep

#: Commas between values: those in parentheses are of a value, as of state_layout.
BETWEEN = re.compile(r",(?![^()]*\))")

#: Reasons for which cases were not answered that are shown as text; --json has all.
REASONS = 8

Rule = Annotated[
    str,
    typer.Argument(
        metavar="RULE",
        help="omega, titans_lmm, delta, hebbian, newton_schulz, feature_map, deep_memory, tnt, dplr or "
        "recurrence",
        autocompletion=options.rules,
    ),
]
Impl = Annotated[
    str | None,
    typer.Option("--impl", metavar="PKG.MODULE:FUNCTION", help="f(case, inputs) -> results"),
]
Exec = Annotated[
    str | None,
    typer.Option("--exec", metavar="COMMAND", help="a program per case: './mine {case} {out}'"),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        "--fix",
        metavar="NAME=VALUE,...",
        help="Draw NAME from these values alone: tokens=5, dtype=float32,bfloat16, regime=edges.",
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="PKG.MODULE:ADAPTER",
        help="Draw what this adapter takes, as its sweep_settings() says: name -> values. --fix stands "
        "before it; without --impl and --exec it is what is swept.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep")(sweep)


def sweep(
    rule: Rule,
    impl: Impl = None,
    program: Exec = None,
    cases: Annotated[int, typer.Option(min=1, help="how many")] = 100,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    fix: Fix = None,
    adapter: For = None,
    convention: Annotated[
        list[str] | None,
        options.convention("This convention alone; without it conventions are drawn too."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="y,M,grad/k", help="Compare these results alone.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="The precision of the implementation: float64, float32, bfloat16, float16."
        ),
    ] = None,
    state_dtype: Annotated[
        str | None, typer.Option(help="That of its state, where it is not float32.")
    ] = None,
    without: options.Without = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="serving", help="Call it as a server does, its own states handed on."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="seconds per case")] = 60.0,
    jobs: Annotated[int, typer.Option(min=1, help="processes")] = 1,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="a Dask scheduler, in place of --jobs")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="LOG", help="Keep a log there; where it exists, go on from it."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="where failing cases are saved")
    ] = Path("sweep-failures"),
    keep: Annotated[int, typer.Option(min=0, help="how many failures to shrink and save")] = 5,
    stop: options.Stop = False,
    last_failed: options.LastFailed = False,
    all_reasons: Annotated[
        bool,
        typer.Option("--reasons", "-r", help="Every reason for which cases were not answered."),
    ] = False,
    shrink: Annotated[
        int, typer.Option(min=0, help="comparisons that shrinking one failure may take")
    ] = 400,
    backend: options.Backend = None,
    as_json: Json = False,
) -> int:
    """Compare an implementation on cases drawn from a seed, and shrink what fails."""
    from atlas_ref.oracle.sweep.sweep import sweep as run

    stated = {} if adapter is None else _stated(adapter)
    choices = {**stated, **_choices(fix, convention)}
    impl = adapter if impl is None and program is None else impl
    same = ("sweep", rule, str(seed), json.dumps(choices, sort_keys=True), schedule or "")
    numbers = list(range(cases))
    words = ""
    if last_failed:
        called = {str(number): f"case {number}" for number in numbers}
        passed, words = noted.passed_last(same, called)
        numbers = [number for number in numbers if str(number) not in passed]
    with output.progress({"judge": f"sweeping {rule}", "shrink": "shrinking failures"}) as progress:
        outcome = run(
            rule,
            _named(impl, program, timeout),
            cases=cases,
            seed=seed,
            choices=choices,
            only=options.names("--only", only),
            dtype=dtype,
            state_dtype=state_dtype,
            without=options.without(without),
            jobs=jobs,
            scheduler=scheduler,
            resume=resume,
            folder=out,
            keep=keep,
            shrink=shrink,
            schedule=schedule,
            stop=stop,
            numbers=numbers,
            progress=progress,
        )
    if words:
        output.say(f"--last-failed: {words}")
    failed = [str(failure.number) for failure in outcome.failures]
    # of those asked, the ones behind the first that fails are not known
    tried = numbers[: outcome.cases]
    noted.note(same, asked={str(number) for number in tried}, failed=failed)
    if outcome.cases < len(numbers):
        left = len(numbers) - outcome.cases
        output.say(f"ended at the first case that fails; {left} not asked")
    if as_json:
        output.emit_json(
            {
                "exit": outcome.exit_code,
                **outcome._asdict(),
                "failures": [each._asdict() for each in outcome.failures],
            }
        )
    else:
        named = ("--impl", impl) if impl is not None else ("--exec", program)
        _emit(
            outcome,
            out,
            _repeating(
                {
                    "--only": only,
                    "--dtype": dtype,
                    "--state-dtype": state_dtype,
                    "--schedule": schedule,
                }
            ),
            _repeating(dict([named])),
            None if all_reasons else REASONS,
        )
    return outcome.exit_code


def _repeating(settings: dict[str, str | None]) -> str:
    """The options that are set, as words of a command, each with a blank in front."""
    return "".join(
        f" {name} {shlex.quote(value)}" for name, value in settings.items() if value is not None
    )


def _named(impl: str | None, program: str | None, timeout: float) -> Named:
    from atlas_ref.oracle.cases.case import CaseError
    from atlas_ref.oracle.sweep.sweep import Named

    if (impl is None) == (program is None):
        raise CaseError("sweep: one of --impl and --exec is needed")
    if impl is not None:
        return Named("function", impl, timeout)
    return Named("program", str(program), timeout)


def _choices(fix: list[str] | None, convention: list[str] | None) -> dict[str, list[Any]]:
    """The values to draw each fixed name from: JSON, or words as they are, several between commas.

    Raises:
        CaseError: no name, or a name twice.
    """
    from atlas_ref.oracle.cases.case import CaseError

    choices: dict[str, list[Any]] = {}
    for option in fix or []:
        name, equals, text = option.partition("=")
        if not equals or not name or name in choices:
            raise CaseError(f"--fix: NAME=VALUE is needed, once for each name, found {option!r}")
        choices[name] = _values(text)
    changes = options.convention_changes(convention)
    if changes is not None:
        if "convention" in choices:
            raise CaseError("--fix: convention is given by --convention")
        choices["convention"] = [changes["preset"] if list(changes) == ["preset"] else changes]
    return choices


def _stated(adapter: str) -> dict[str, list[Any]]:
    """Values of the names that an adapter states (SWEEP-19)."""
    from atlas_ref.oracle.sources.sources import sweep_settings

    return {name: list(values) for name, values in sweep_settings(adapter).items()}


def _values(text: str) -> list[Any]:
    """One JSON value; or words and numbers between commas, but for commas in parentheses."""
    if text[:1] in ("{", "["):
        whole = _value(text)
        return whole if isinstance(whole, list) else [whole]
    return [_value(part) for part in BETWEEN.split(text) if part]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _emit(outcome: Sweep, folder: Path, compared: str, computed: str, reasons: int | None) -> None:
    """Write failures, the cases that they shrank to, counts, and the command that repeats each.

    Args:
        compared: options of the comparison. computed: that of the implementation, which a case
            without its results needs.
        reasons: why cases were not answered, the most frequent of these; None for all.
    """
    lines = [_row(failure, folder) for failure in outcome.failures]
    columns = ("case", "tensor", "verdict", "error", "tolerance", "drawn", "smallest that fails")
    tables = [output.table("", columns, lines)] if lines else []
    counts = ", ".join(f"{count} {verdict}" for verdict, count in outcome.counts.items())
    words = [f"sweep {outcome.rule}, seed {outcome.seed}, {outcome.cases} cases: {counts}"]
    if outcome.skipped:
        words.append(output.skipped(outcome.skipped))
    if outcome.refused:
        words += _reasons(outcome.refused, reasons)
    if outcome.exit_code == 3:
        words.append(
            f"NOTHING WAS COMPARED: none of {outcome.cases} cases was answered. Draw what your code "
            "takes with --fix or --for."
        )
    if outcome.nearest is not None:
        near = outcome.nearest
        words.append(
            f"nearest to its tolerance: case {near['case']}, {near['tensor']}, "
            f"{near['error']:.3g} of {near['tolerance']:.3g}"
        )
    for failure in outcome.failures:
        if failure.file is not None:
            # the file of a failed or missing answer holds no results, or not all; a schedule asks again
            absent = failure.verdict in ("FAILED", "MISSING") or "--schedule" in compared
            source = computed if absent else ""
            words.append(
                "repeat with: atlas-ref check "
                f"{shlex.quote(str(folder / failure.file))}{source}{compared}"
            )
    output.emit_rich(*tables, *words)


def _reasons(counts: dict[str, int], most: int | None) -> list[str]:
    """Lines about cases that were not answered: the most frequent reasons, and how many more (SWEEP-18)."""
    shown = list(counts.items())[:most]
    lines = [f"  {count} {reason}" for reason, count in shown]
    rest = sum(counts.values()) - sum(count for _, count in shown)
    others = len(counts) - len(shown)
    further = [f"  {rest} for {others} other reasons, told by -r"] if rest else []
    return ["not answered:", *lines, *further]


def _row(failure: Failure, folder: Path) -> tuple[Any, ...]:
    small = ""
    if failure.shrunk is not None:
        small = (
            f"{failure.file}: {failure.shrunk['numbers'][1]} numbers of "
            f"{failure.shrunk['numbers'][0]}"
        )
    row = failure.row
    detail = row["why"] or output.number(row["error"])
    sizes = [
        f"{key} {failure.drawn[key]}"
        for key in ("tokens", "d_in", "d_out", "window", "span", "dtype", "regime")
        if key in failure.drawn
    ]
    return (
        failure.number,
        row["tensor"],
        failure.verdict,
        detail,
        output.number(row["tolerance"]),
        ", ".join(sizes),
        small,
    )
