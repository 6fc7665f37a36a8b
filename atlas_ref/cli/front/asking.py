"""What a function answers to the cases of its name, and what would make it right.

Specified in specs/sources.md.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atlas_ref.cli.front import trials
from atlas_ref.cli.front.trials import TRIALS, Trial

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case
    from atlas_ref.oracle.judge.compare import Checked
    from atlas_ref.oracle.report.failures import Failure
    from atlas_ref.oracle.report.report import Report
    from atlas_ref.oracle.sources.programs import Isolated

#: Options of layout -> what they say; where a first case fails, all of them are tried.
LAYOUTS: dict[str, dict[str, Any]] = {
    "--heads-first": {"head_axis": 1},
    "--state-vk": {"state": "(d_out, d_in)"},
}

#: Seconds for a case, where no option says them.
TIMEOUT = 60.0


class Support(NamedTuple):
    """Whether a kernel has a feature.

    Attributes:
        feature: of a `Trial`, in words.
        verdict: the gravest of its case; "not asked" without one.
        why: in words, where it is not PASS.
    """

    feature: str
    verdict: str
    why: str = ""


class Asked(NamedTuple):
    """A function under a name, and how it is called.

    Attributes:
        name, function: as they were typed, the name without aliases.
        taken: what of the function is taken (`front.description`).
        how: fields of `Kernel` that options state.
        dtype: what it works in, or None for float64.
        grad: whether gradients are asked.
        grouped: whether fewer heads of keys than of values are meant to be right.
        folder: where cases are kept, where any are.
    """

    name: str
    function: str
    taken: dict[str, Any]
    how: dict[str, Any]
    dtype: str | None
    timeout: float
    seed: int
    grad: bool
    grouped: bool
    nearest: bool
    folder: Path


class Outcome(NamedTuple):
    """All verdicts, and the cases that were asked.

    Attributes:
        hint: under which options the first case would be right, in words.
        has_state: whether a final state came back, or nothing did.
    """

    report: Report
    supports: list[Support]
    cases: list[Case]
    hint: str
    has_state: bool


def ask(asked: Asked, progress: Callable[[str, int, int], None]) -> Outcome:
    """Ask every case by the machinery of `check --impl` (SRC-30)."""
    from atlas_ref.oracle.report import report as reports
    from atlas_ref.oracle.sources.room import room

    run = reports.Run(command=_repeated(asked), nearest=asked.nearest, progress=progress)
    supports: list[Support] = []
    cases: list[Case] = []
    judged: dict[str, Checked] = {}
    with room() as folder, contextlib.ExitStack() as stack:
        _write(asked, asked.how, folder)
        kernels = {}
        for number, trial in enumerate(TRIALS):
            progress("cases", number, len(TRIALS))
            if why := _unasked(trial, asked, judged):
                supports.append(Support(trial.feature, "not asked", why))
                continue
            case = _case(trial, asked, judged)
            if trial.kernel not in kernels:
                kernels[trial.kernel] = stack.enter_context(_source(asked, folder, trial.kernel))
            checked = _check(asked, case, kernels[trial.kernel])
            lacks = _lacks(trial, checked, asked.grouped)
            supports.append(_support(trial, checked, lacks))
            if lacks:
                continue
            judged[trial.name] = checked
            cases.append(case)
            run.add(checked)
        report = _repeating(asked, run.report())  # which may ask again
    hint = _hint(asked, judged) if report.exit == 1 else ""
    answers = [each.answer.tensors for each in judged.values() if each.answer.tensors]
    has_state = not answers or any("out/M" in each for each in answers)
    return Outcome(report, supports, cases, hint, has_state)


def keep(asked: Asked, outcome: Outcome) -> None:
    """Save the cases and the adapter, so that check, sweep and pytest can go on from there.

    Raises:
        CaseError: the folder cannot be written.
    """
    from atlas_ref.oracle.cases.case import CaseError, save

    try:
        asked.folder.mkdir(parents=True, exist_ok=True)
        _write(asked, asked.how, asked.folder)
    except OSError as error:
        raise CaseError(f"--keep {asked.folder}: cannot be written: {error.strerror}") from None
    for trial in TRIALS:  # of another run
        (asked.folder / f"{trial.name}.safetensors").unlink(missing_ok=True)
    for case in outcome.cases:
        save(case.name, case.header.plain(), case.inputs)


def _repeated(asked: Asked) -> list[str]:
    """The words behind a case that repeat its check."""
    words = ["--impl", f"{module(asked.folder)}:mine"]
    words += [] if asked.dtype is None else ["--dtype", asked.dtype]
    return [*words, "--timeout", f"{asked.timeout:g}"] if asked.timeout != TIMEOUT else words


def module(folder: Path) -> str:
    """The adapter in a folder, as `--impl` names it from here."""
    parts = Path(os.path.relpath(folder)).parts if _inside(folder) else ()
    return ".".join([*parts, trials.ADAPTER])


def _inside(folder: Path) -> bool:
    """Whether a folder can be imported from as a package from here."""
    return all(part.isidentifier() for part in Path(os.path.relpath(folder)).parts)


def _write(asked: Asked, how: dict[str, Any], folder: Path) -> None:
    text = trials.adapter(asked.name, asked.function, asked.taken, how, folder)
    (folder / f"{trials.ADAPTER}.py").write_text(text, encoding="utf-8")


def _unasked(trial: Trial, asked: Asked, judged: dict[str, Checked]) -> str:
    """Why a case is not asked; empty where it is."""
    if trial.lacked and any(map(_fails, judged.values())):
        return "what comes first is not right yet"
    if trial.needs and trial.needs not in asked.taken["arguments"].values():
        return f"{asked.function.rpartition(':')[2]} has no argument for it"
    if trial.name != trials.GRADIENTS:
        return ""
    if not asked.grad:
        return "--no-grad"
    return "NumPy has no backward" if asked.taken["arrays"] == "numpy" else ""


def _case(trial: Trial, asked: Asked, judged: dict[str, Checked]) -> Case:
    """The case of a trial; its cotangents are of what came back before."""
    before = [each.answer.tensors or {} for each in judged.values()]
    state = any("out/M" in each for each in before)
    lacks_first = "first_state" in judged and _fails(judged["first_state"])
    if trial.name == trials.GRADIENTS and lacks_first:  # they are asked of what it has
        trial = trial._replace(request={**trial.request, "state": False})
    name = str(asked.folder / f"{trial.name}.safetensors")
    return trials.draw(trial, asked.taken, name, state=state, seed=asked.seed)


def _source(asked: Asked, folder: Path, kernel: str) -> Isolated:
    """The process of a kernel of the adapter in a folder, which is started by `with`."""
    from atlas_ref.oracle.sources.programs import Isolated

    before = os.environ.get("PYTHONPATH", "")
    path = [str(folder), *([before] if before else [])]
    return Isolated(f"{trials.ADAPTER}:{kernel}", timeout=asked.timeout, path=path)


def _check(asked: Asked, case: Case, source: Isolated) -> Checked:
    from atlas_ref.oracle.judge.compare import checked

    return checked(case, source=source, dtype=asked.dtype)


def _support(trial: Trial, found: Checked, lacks: bool) -> Support:
    """The verdict on a feature, the gravest of its tensors."""
    order = ("PASS", "NOT SUPPORTED", "MARGINAL", "UNDECIDABLE", "MISSING", "WRONG", "FAILED")
    row = max(found.rows, key=lambda each: order.index(each.verdict))
    if lacks:
        why = (
            row.why
            if row.verdict == "FAILED"
            else "wrong there; --grouped, if it is meant to be right"
        )
        return Support(trial.feature, "NOT SUPPORTED", why)
    if row.verdict != "PASS":
        wrong = [each.tensor for each in found.rows if each.verdict not in ("PASS", "-")]
        return Support(trial.feature, row.verdict, row.why or ", ".join(wrong))
    names = [each.tensor for each in found.rows if not each.tensor.startswith("grad/")]
    gradients = len(found.rows) - len(names)
    names += [f"{gradients} gradients"] if gradients else []
    return Support(trial.feature, row.verdict, ", ".join(names))


def _lacks(trial: Trial, found: Checked, grouped: bool) -> bool:
    """Whether a function has no feature that no argument tells of, and that nobody claims."""
    failed = {row.verdict for row in found.rows} - {"PASS", "NOT SUPPORTED"}
    claimed = grouped and trial.kernel == "shared"
    return not claimed and bool(failed) and failed <= set(trial.lacked)


def _repeating(asked: Asked, report: Report) -> Report:
    """A report whose commands ask the kernel of each case, and find the adapter."""
    shared = {t.name for t in TRIALS if t.kernel == "shared"}
    before = "" if _inside(asked.folder) else f"PYTHONPATH={shlex.quote(str(asked.folder))} "
    failures = []
    for each in report.failures:
        command = each.command
        if Path(each.case).stem in shared:
            command = command.replace(":mine", ":shared")
        failures.append(each._replace(command=before + command, feature=""))
    return report._replace(failures=_first_told(failures))


def _first_told(failures: list[Failure]) -> list[Failure]:
    """Failures of which the first, the one that is shown, says what was found in any of them."""
    words = [each.nearest for each in failures]
    found = next((i for i, each in enumerate(words) if each and not _is_put_off(each)), 0)
    if not found or not _is_put_off(words[0]):
        return failures
    told = f"{words[found]} (searched in {Path(failures[found].case).stem})"
    return [failures[0]._replace(nearest=told), *failures[1:]]


def _is_put_off(words: str) -> bool:
    """Whether a case was not searched since another one was."""
    return words.startswith("not searched:")


def _hint(asked: Asked, judged: dict[str, Checked]) -> str:
    """The options under which the first case that failed would be right, in words (SRC-31)."""
    from atlas_ref.oracle.sources.room import room

    def is_given(option: str, how: dict[str, Any]) -> bool:
        return LAYOUTS[option].items() <= how.items()

    first = next((t for t in TRIALS if t.name in judged and _fails(judged[t.name])), None)
    if first is None or first.kernel != "mine":
        return ""
    case = judged[first.name].case
    for count in range(len(LAYOUTS) + 1):
        for options in itertools.combinations(LAYOUTS, count):
            how = {key: value for each in options for key, value in LAYOUTS[each].items()}
            if how == asked.how:
                continue
            with room() as folder:
                _write(asked, how, folder)
                with _source(asked, folder, first.kernel) as source:
                    rows = _check(asked, case, source).rows
            if all(row.verdict == "PASS" for row in rows):
                more = [each for each in options if not is_given(each, asked.how)]
                less = [
                    each for each in LAYOUTS if is_given(each, asked.how) and each not in options
                ]
                words = [f"with {' '.join(more)}"] if more else []
                words += [f"without {' '.join(less)}"] if less else []
                return f"{' and '.join(words)} it would be right there"
    return ""


def _fails(found: Checked) -> bool:
    return any(row.verdict not in ("PASS", "NOT SUPPORTED") for row in found.rows)
