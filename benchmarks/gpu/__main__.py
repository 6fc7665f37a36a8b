"""Command line of the benchmarks on a GPU.

python -m benchmarks.gpu [--quick] [--list] [--device cuda|cpu] [--budget SECONDS] [--storage
FORMAT] [--tf32] [--out DIR]
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.console import Console

from benchmarks.gpu import batches, checks, figures, plan, speeds, table, warm
from benchmarks.gpu.devices import Device, Unavailable, open_device
from benchmarks.gpu.plan import BATCHES, SUBJECTS, Foreseen, Group
from benchmarks.gpu.results import Found
from benchmarks.gpu.running import Settings, Taken, measured

OUT = Path("build/bench-gpu")
BUDGETS = {True: 180.0, False: 440.0}  # seconds: quick, full
SETTINGS = {True: Settings(slot=0.4, longest=0.6), False: Settings(slot=1.0, longest=1.2)}
ON_CPU = Settings(slot=0.0, longest=1.0)
LISTED = 141e9  # bytes that the plan supposes where no device is asked
NOT_A_GPU = "RUN ON A CPU: no figure below says anything about a GPU; no target is decided."


def main(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Three sizes and the main forms, with a smaller budget."),
    ] = False,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="Print what would be run, and what not, and stop; needs no GPU."
        ),
    ] = False,
    device: Annotated[
        Literal["cuda", "cpu"],
        typer.Option("--device", help="cpu: tiny sizes, to see that everything runs."),
    ] = "cuda",
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="SECONDS", help="Stop beginning groups after that many."),
    ] = None,
    storage: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option("--storage", help="bfloat16: rows that store in it, too."),
    ] = "float32",
    tf32: Annotated[
        bool, typer.Option("--tf32", help="Let float32 products run in TF32, ours and PyTorch's.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where bench-gpu.json and the pictures go.")
    ] = OUT,
) -> None:
    """Speed on a GPU, forward and backward of every form, beside PyTorch on the same GPU.

    Each error stands beside its time.
    """
    console = Console()
    if not console.is_terminal:  # a file has no width of its own
        console = Console(width=200)
    sizes = plan.TINY if device == "cpu" else None
    groups = list(
        plan.groups(quick=quick, storage=tuple(dict.fromkeys(("float32", storage))), sizes=sizes)
    )
    if list_:
        for line in listed(groups):
            console.print(line, highlight=False, markup=False)
        return
    try:
        here = open_device(device, tf32=tf32)
    except Unavailable as why:
        _refused(f"{why}; --list prints the plan, --device cpu runs it in small on a CPU", console)
    if budget is not None and not budget >= 0.0:  # nan would never be spent
        _refused(f"--budget {budget:g}: expected seconds, at least 0", console)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as why:  # reported before the first group runs
        _refused(f"--out {out}: {why.strerror}", console)
    settings = ON_CPU if device == "cpu" else SETTINGS[quick]
    found = _run(
        groups, here, settings, BUDGETS[quick] if budget is None else budget, console, tf32, out
    )
    _told(found, console)
    for path in written(found, out, console):
        console.print(f"written: {path}", highlight=False, markup=False)


def _refused(why: str, console: Console) -> NoReturn:
    console.print(f"bench-gpu: {why}", highlight=False, markup=False)
    raise typer.Exit(2)


def listed(groups: list[Group]) -> Iterator[str]:
    """The plan in order, with the candidates that would not run and the reasons."""
    for number, group in enumerate(groups, 1):
        yield f"{number:>3}  {group.title}"
        for candidate in group.candidates:
            reasons = {kind: plan.refusal(candidate, group, kind, LISTED) for kind in plan.KINDS}
            yield f"       {candidate.label}{_words(reasons)}"


def _words(reasons: dict[str, str | None]) -> str:
    if all(reasons.values()) and len(set(reasons.values())) == 1:
        return f": not run, {reasons['forward']}"
    parts = [
        f"{figures.KINDS[kind]} not run, {reason}"
        for kind, reason in reasons.items()
        if reason is not None
    ]
    return "".join(f"; {part}" for part in parts)


def _run(
    groups: list[Group],
    device: Device,
    settings: Settings,
    budget: float,
    console: Console,
    tf32: bool,
    out: Path,
) -> Found:
    """Run the checks, the rates, and group after group while the budget lasts.

    The results are in the JSON file from the first group on.
    """
    begun = time.perf_counter()
    if not device.measured:
        console.print(NOT_A_GPU, style="bold red")
    found = Found({"measured": device.measured, "tf32": tf32, **device.describe()}, [], [], [], [])
    for key, value in found.machine.items():
        console.print(f"{key}: {value}", highlight=False, markup=False)
    found.checks.extend(checks.checks(SUBJECTS if device.measured else SUBJECTS[:2], device))
    for line in table.checked(found.checks):
        console.print(line, highlight=False, markup=False)
    rates = speeds.measured(device)
    console.print(rates.words(), highlight=False, markup=False)
    found.machine["speeds"] = rates.plain()
    formats = dict.fromkeys(
        each.storage for group in groups for each in group.candidates if each.ours
    )
    for count, d in BATCHES if device.measured else ((64, 16),):
        for format_ in formats:
            _add(found, batches.measured(count, d, format_, device, settings, rates), console)
    foreseen = Foreseen()
    for group in groups:
        spent = time.perf_counter() - begun
        found.machine["seconds"] = round(spent, 1)
        if spent > budget:
            found.left_out.append(f"{group.title}: the budget of {budget:g} s was spent")
            continue
        console.print(f"{spent:6.0f} s  {group.title}", highlight=False, markup=False)
        if group.has_triton and "compiled_in_advance" not in found.machine:
            warming = warm.begin(groups) if device.measured else []
            found.machine["compiled_in_advance"] = warm.wait(warming)
        _add(found, measured(group, device, settings, foreseen, rates), console)
        saved(found, out)
    return found


def _add(found: Found, more: Taken, console: Console) -> None:
    found.figures.extend(more.figures)
    found.ratios.extend(more.ratios)
    for figure in more.figures:
        if figure.skipped is None:
            console.print(
                f"            {table.briefly(figure, more.ratios)}", highlight=False, markup=False
            )


def _told(found: Found, console: Console) -> None:
    console.print(table.table(found))
    for line in (*table.skipped(found.figures), *(f"not run  {each}" for each in found.left_out)):
        console.print(line, highlight=False, markup=False)
    for verdict in found.verdicts():
        console.print(verdict.line(), highlight=False, markup=False)
    if not found.machine["measured"]:
        console.print(NOT_A_GPU, style="bold red")


def saved(found: Found, out: Path) -> Path:
    """The JSON file, whole at any time."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "bench-gpu.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found.plain(), indent=2, allow_nan=False) + "\n")
    part.replace(path)
    return path


def written(found: Found, out: Path, console: Console) -> list[Path]:
    """The JSON file, and the pictures where matplotlib is installed."""
    paths = [saved(found, out)]
    try:
        paths.extend(figures.draw(found, out))
    except ImportError as error:
        console.print(f"not drawn: {error}", highlight=False, markup=False)
    return paths


if __name__ == "__main__":
    typer.run(main)
