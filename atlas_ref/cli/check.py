"""The command check: sources of results, expected failures, and reports."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import options, output
from atlas_ref.storage import last_failed as noted

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case
    from atlas_ref.oracle.judge.answers import Source
    from atlas_ref.oracle.judge.compare import Checked
    from atlas_ref.oracle.report.report import Report

REPORTS = "What is written"

#: The name of its runs, by which those that failed are noted.
RUN = ("check",)

#: Failure messages that the screen shows, and rows of which it shows those that do not fail too.
SHOWN, ROWS = 5, 20


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(check)


def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CASE...", help="Cases, folders of them, or ids such as v1:delta-rows."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SET",
            help="Vectors: a shipped set, as v1, or a folder that holds one.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help="With --set, vectors of this target alone, as delta; may be repeated.",
        ),
    ] = None,
    larger: Annotated[
        bool, typer.Option("--large", help="With --set, its larger cases too; they need a source.")
    ] = False,
    against: options.Against = None,
    impl: options.Impl = None,
    command: options.Program = None,
    timeout: options.Timeout = 60.0,
    only: Annotated[
        str | None, typer.Option(metavar="y,M,grad/k", help="Compare these results alone.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="What your code works in: float64, float32, bfloat16, float16. Inputs are rounded "
            "to it.",
        ),
    ] = None,
    state_dtype: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="What your code keeps M and S in; else float32."),
    ] = None,
    convention: Annotated[
        list[str] | None,
        options.convention("A preset, or one axis; may be given several times."),
    ] = None,
    without: options.Without = None,
    form: Annotated[
        str, typer.Option(metavar="FORM", help="Compute in this form: see atlas-ref forms.")
    ] = "sequential",
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that the form takes at once; never changes results."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS|serving",
            help="Call your code as a server does, its own states handed on: "
            "prefill:17,decode:8,draft:4/2,snapshot@20,restore@20.",
        ),
    ] = None,
    exactly: Annotated[
        bool,
        typer.Option(
            "--exactly", help="With --schedule: your code claims the same bits whatever the calls."
        ),
    ] = False,
    xfail: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What is expected to fail, why and until when: .toml or .json."
        ),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json|.xml|.html",
            help="Write a report; may be given several times.",
            rich_help_panel=REPORTS,
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Save what your code answered, which --against and identify read; for several "
            "cases a folder.",
            rich_help_panel=REPORTS,
        ),
    ] = None,
    stop: options.Stop = False,
    last_failed: options.LastFailed = False,
    reasons: Annotated[
        str | None,
        typer.Option(
            "--reasons",
            "-r",
            metavar="sxa",
            help="Say why, above "
            f"{ROWS} rows too: of cases without a verdict (s), expected failures (x), both (a).",
            rich_help_panel=REPORTS,
        ),
    ] = None,
    nearest: Annotated[
        bool,
        typer.Option(
            help="Search for the nearest convention where a case fails.", rich_help_panel=REPORTS
        ),
    ] = True,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help=f"Show every row and message; else, above {ROWS} rows, those that fail.",
            rich_help_panel=REPORTS,
        ),
    ] = False,
    backend: options.Backend = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object on standard output.", rich_help_panel=REPORTS),
    ] = False,
) -> int:
    """Compare results with ours: a verdict per tensor. Without a source, those recorded in the
    cases.
    """
    with output.importing():
        from atlas_ref.oracle.cases.case import CaseError
        from atlas_ref.oracle.judge.compare import checked
        from atlas_ref.oracle.judge.xfail import load as expected
        from atlas_ref.oracle.report import report as reports
        from atlas_ref.oracle.sources import answer_files
        from atlas_ref.vectors.sets.cases import about_members, identity, length, load, reach
        from atlas_ref.vectors.sets.locate import folder

    result_names = options.names("--only", only)
    changes = options.convention_changes(convention)
    absent = options.without(without)
    places = [reports.place(path) for path in report or ()]
    entries = expected(xfail) if xfail else []
    chosen_sets = [
        (option, name)
        for option, names in (("--set", sets), ("--target", target))
        for name in names or ()
    ]
    selection = [
        *map(str, files or ()),
        *(word for pair in chosen_sets for word in pair),
        *(["--large"] if larger else []),
    ]
    if not selection:
        raise CaseError("check: a case, a folder of cases or --set is needed")
    repeated = _repeated(locals())
    vectors = options.set_files(sets, larger=larger, targets=target)
    paths, most = [*options.case_files(files or ()), *vectors], 0
    names = None if result_names is None else _named(result_names, paths)
    ids = {str(path): name for path in paths if (name := identity(path))}
    asked = impl is not None or command is not None
    if schedule is not None or exactly:
        _check_schedule(locals(), asked=asked)
    told = _told(reasons)
    places_of = {path: str(path.absolute()) for path in paths}
    words = ""
    if last_failed:
        called = {places_of[path]: ids.get(str(path), path.stem) for path in paths}
        passed_before, words = noted.passed_last(RUN, called)
        paths = [path for path in paths if places_of[path] not in passed_before]
    answers = answer_files.place(keep, paths, asked=asked)
    with contextlib.ExitStack() as stack:
        written = [] if answers is None else [answers.file(str(path)) for path in paths]
        for path in (*(report or ()), *written):
            _refuse_read(path, paths, against, xfail)
            for name in sets or ():
                options.refuse_inside(path, folder(name))
        for path in written:
            answer_files.check_free(path)
        source = options.source(stack, against, impl, command, timeout, len(paths))
        progress = stack.enter_context(output.progress({"cases": "checking"} | options.SEARCH))
        run = reports.Run(
            command=repeated,
            cases=selection,
            ids=ids,
            entries=entries,
            only=names,
            nearest=nearest,
            progress=progress,
        )
        failed, tried = list[str](), list[Path]()
        for path in output.counted(paths, "cases", progress):
            tried.append(path)
            try:
                case = load(path)
                most = max(most, length(case))
                settings: dict[str, Any] = {
                    "dtype": dtype,
                    "state_dtype": state_dtype,
                    "form": form,
                    "chunk": chunk,
                    "without": absent,
                }
                verdicts = (
                    checked(case, source=source, only=result_names, convention=changes, **settings)
                    if schedule is None
                    else _scheduled(case, source, changes, locals())
                )
                passed = run.add(verdicts, case.void if case.supported else {})
                if answers is not None:
                    answers.write(verdicts)
            except CaseError as error:
                passed = False
                run.refuse(str(path), str(error))
            failed += [] if passed else [places_of[path]]
            if stop and failed:
                break
        run.leave(str(path) for path in places_of if path not in tried)
        outcome = run.report()  # which may ask the source again
    if words:
        output.say(f"--last-failed: {words}")
    noted.note(RUN, asked={places_of[path] for path in tried}, failed=failed)
    for place in places:
        place.write(outcome)
    notes = [reach(most, sets, target or ()), about_members(sets, target or ())] if sets else []
    if len(tried) < len(paths):
        output.say(f"ended at the first case that fails; {len(paths) - len(tried)} not asked")
    _print(outcome, as_json, verbose, told, "; ".join(note for note in notes if note))
    return outcome.exit


def _told(letters: str | None) -> set[str]:
    """The letters of --reasons, "a" as all of them.

    Raises:
        CaseError: another letter.
    """
    from atlas_ref.oracle.cases.case import CaseError

    if letters is None:
        return set()
    if not letters or set(letters) - {"s", "x", "a"}:
        raise CaseError(f"--reasons: of the letters s, x, a are needed, found {letters!r}")
    return {"s", "x"} if "a" in letters else set(letters)


def _check_schedule(given: dict[str, Any], *, asked: bool) -> None:
    """Refuse what a schedule does not go with.

    Raises:
        CaseError: no code that could be called, or an option that changes nothing there.
    """
    from atlas_ref.oracle.cases.case import CaseError

    if given["schedule"] is None:
        raise CaseError("--exactly: says what --schedule claims; it needs --schedule")
    if not asked:
        raise CaseError("--schedule: calls your code again and again; it needs --impl or --exec")
    plain = {"against": None, "only": None, "form": "sequential", "chunk": None, "keep": None}
    for name, value in plain.items():
        if given[name] != value:
            raise CaseError(
                f"--{name}: not with --schedule, which compares reads and states of calls"
            )


def _scheduled(case: Case, source: Source | None, changes: Any, given: dict[str, Any]) -> Checked:
    """The verdicts under a schedule."""
    from atlas_ref.oracle.schedules.judge import check_schedule

    assert source is not None
    stated = {name: given[name] for name in ("dtype", "state_dtype", "exactly")}
    absent = given["absent"]
    return check_schedule(
        case, source, given["schedule"], convention=changes, without=absent, **stated
    )


def _named(only: list[str], paths: list[Path]) -> set[str]:
    """Full names of results, of which a wrong one is told with those of a case that is alone."""
    from atlas_ref.oracle.cases.case import CaseError
    from atlas_ref.oracle.judge.compare import chosen
    from atlas_ref.vectors.sets.cases import load

    try:
        return chosen(only)
    except CaseError:
        return chosen(only, load(paths[0]) if len(paths) == 1 else None)


def _refuse_read(report: Path, cases: list[Path], against: Path | None, xfail: Path | None) -> None:
    """Refuse a report that would overwrite a file that the run reads."""
    for case in cases:
        options.refuse_same(report, case)
    if against is not None:
        options.refuse_same(report, against, what="file of results")
    if xfail is not None:
        options.refuse_same(report, xfail, what="list of expected failures")


def _repeated(settings: dict[str, Any]) -> list[str]:
    """The options of this run that decide a verdict, to repeat it for one case."""
    words: list[str] = []
    for name, option in (("against", "--against"), ("impl", "--impl"), ("command", "--exec")):
        words += [] if settings[name] is None else [option, str(settings[name])]
    if settings["timeout"] != 60.0:
        words += ["--timeout", f"{settings['timeout']:g}"]
    for name in ("only", "dtype", "state_dtype", "without", "chunk", "schedule"):
        words += (
            [] if settings[name] is None else [f"--{name.replace('_', '-')}", str(settings[name])]
        )
    words += [] if settings["form"] == "sequential" else ["--form", settings["form"]]
    words += ["--exactly"] if settings["exactly"] else []
    for each in settings["convention"] or ():
        words += ["--convention", each]
    return [shlex.quote(word) for word in words]


def _print(report: Report, as_json: bool, verbose: bool, told: set[str], note: str) -> None:
    """Write a report.

    Args:
        told: kinds of cases whose reasons are said: s without a verdict, x expected to fail.
        note: about all cases, behind the counts of the last line.
    """
    from atlas_ref.oracle.report.failures import failing
    from atlas_ref.vectors.sets.cases import identity

    for name, axes in report.void.items() if not as_json else ():
        for axis, why in axes.items():
            output.say(f"{identity(Path(name)) or name}: void: {axis}: {why}")
    for line in (*report.bad_input, *report.problems):
        output.say(f"atlas-ref: {line}")
    if as_json:
        output.emit_json(report.plain())
    elif report.rows:
        messages = [failure.text() for failure in report.failures[: None if verbose else SHOWN]]
        if len(report.failures) > len(messages):
            messages.append(
                f"and {len(report.failures) - SHOWN} more failing cases, told in full by -v, "
                "--json and --report"
            )
        all_rows = verbose or len(report.rows) <= ROWS
        shown = report.rows if all_rows else failing(report.rows)
        if report.skipped:
            messages.append(output.skipped(report.skipped))
        messages += _reasons(report, told)
        output.emit_comparisons(report.rows, messages, shown=shown, note=note)
    elif not report.bad_input:
        output.say("nothing could be compared")


def _reasons(report: Report, told: set[str]) -> list[str]:
    """Lines with the reasons of results without a verdict, and of expected failures (SRC-32)."""
    kinds = {
        "s": ("not supported", [row.why for row in report.rows if row.verdict == "NOT SUPPORTED"]),
        "x": ("expected to fail", [row.xfail for row in report.rows if row.xfail]),
    }
    return [
        f"{count} {words}: {why}"
        for kind, (words, reasons) in kinds.items()
        if kind in told
        for why, count in Counter(reasons).most_common()
    ]
