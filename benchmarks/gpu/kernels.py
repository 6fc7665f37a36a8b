"""Each CUDA kernel beside the array operations that it stands in for, on a GPU.

    python -m benchmarks.gpu.kernels [--only SUBJECT] [--size HEADS,D,TOKENS] [--out DIR]

A kernel is timed twice: its step alone, on the arguments of the first call of a form, and the whole
form, forward and backward, with it and without it. What is kept wins by `WINS` in its step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine import cuda
from atlas_ref.engine.cuda import hook, sequential
from atlas_ref.types import Array
from benchmarks import memories
from benchmarks.gpu import running
from benchmarks.gpu.devices import Device, Unavailable, open_device
from benchmarks.gpu.plan import SUBJECTS, Group, Subject
from benchmarks.measure import Spread, Work

SIZES = ((8, 64, 8192), (64, 64, 8192), (8, 128, 8192))
ROUNDS = 7
WINS = 1.5
FEW_TOKENS = 1024
TITLES = (
    "memory",
    "heads",
    "d",
    "T",
    "kernel",
    "calls",
    "step",
    "twin",
    "ratio",
    "form",
    "without",
    "ratio",
)


class Row(NamedTuple):
    """A kernel in a form: seconds of its step and of the whole form, with it and without it."""

    memory: str
    heads: int
    d: int
    tokens: int
    kernel: str
    calls: int
    step: float
    twin: float
    form: float
    without: float


def rows(subject: Subject, size: tuple[int, int, int], device: Device) -> list[Row]:
    """A row for each kernel that the subject's own form launches at a size."""
    group = Group(subject, *size, subject.candidates[:1])
    arrays, bar = running.inputs(group, device)

    def both() -> None:
        memories.both(group.memory, arrays, bar)

    first, calls = recorded(both)
    works: dict[str, Work] = {"": both}
    works |= {name: left_out(both, name) for name in first}
    forms = alternated(works, device)
    found = []
    for name, step in first.items():
        alone = alternated(
            {"kernel": called(step.fused, step), "twin": called(step.plain, step)}, device
        )
        times = (alone["kernel"], alone["twin"], forms[""], forms[name])
        found.append(Row(subject.name, *size, name, calls[name], *times))
    return found


def sequential_row(size: tuple[int, int, int], device: Device) -> Row:
    """The row of the kernel that takes all tokens in one launch, beside its plain loop.

    It is a form of its own, so step and form are one. At most `FEW_TOKENS` are taken: its twin
    launches some twenty operations for each.
    """
    heads, d, tokens = size[0], size[1], min(size[2], FEW_TOKENS)
    random = np.random.default_rng(0)

    def gate() -> Array:
        return device.ours(random.uniform(0.2, 0.9, (heads, tokens, 1)).astype(np.float32))

    def rows_of(*shape: int) -> Array:
        drawn = random.standard_normal((heads, *shape)) / np.sqrt(d)
        return device.ours(drawn.astype(np.float32))

    weights = device.ours(np.ones((1, tokens, 1), np.float32))
    tensors = [rows_of(tokens, d) for _ in range(3)]
    given = (*tensors, *(gate() for _ in range(4)), weights, rows_of(d, d), rows_of(d, d))
    times = alternated(
        {
            "kernel": lambda: sequential.steps(*given, device=cuda.chosen()),
            "twin": lambda: sequential.plain_steps(*given),
        },
        device,
    )
    step, twin = times["kernel"], times["twin"]
    return Row("any without Newton-Schulz", heads, d, tokens, "steps", 1, step, twin, step, twin)


def recorded(work: Work) -> tuple[dict[str, hook.Step], dict[str, int]]:
    """The first call of each kernel in a run, and how many there are."""
    first: dict[str, hook.Step] = {}
    calls: dict[str, int] = {}

    def note(step: hook.Step) -> bool:
        first.setdefault(step.name, step)
        calls[step.name] = calls.get(step.name, 0) + 1
        return True

    with hook.choosing(note):
        work()
    return first, calls


def left_out(work: Work, name: str) -> Work:
    """The same work with array operations in place of one kernel."""

    def without() -> None:
        with hook.choosing(lambda step: step.name != name):
            work()

    return without


def called(function: Callable[..., Any], step: hook.Step) -> Work:
    """A call of a step by its kernel or its twin, on the arguments of the first call."""

    def once() -> None:
        with scratch.frame():
            function(*step.args, **step.kwargs)

    return once


def alternated(works: dict[str, Work], device: Device) -> dict[str, float]:
    """Medians of seconds, in rounds of one run each, after one run that compiles."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(device.seconds(work))
    return {name: Spread.of(each).median for name, each in times.items()}


def table(found: list[Row]) -> Table:
    """Milliseconds and ratios, twin over kernel and without over with."""
    made = Table(*TITLES, title="forward and backward, milliseconds")
    for row in found:
        made.add_row(
            row.memory,
            *map(str, (row.heads, row.d, row.tokens)),
            row.kernel,
            str(row.calls),
            *_pair(row.step, row.twin),
            *_pair(row.form, row.without),
        )
    return made


def _pair(kernel: float, twin: float) -> tuple[str, str, str]:
    return f"{1e3 * kernel:.3f}", f"{1e3 * twin:.3f}", f"{twin / kernel:.2f}"


def verdicts(found: list[Row]) -> list[str]:
    """For each kernel, the least and the largest ratio of its step, and whether it wins."""
    lines = []
    for name in dict.fromkeys(row.kernel for row in found):
        ratios = [row.twin / row.step for row in found if row.kernel == name]
        word = "wins" if np.median(ratios) >= WINS else "does not win"
        lines.append(f"{name}: {min(ratios):.2f} to {max(ratios):.2f} times its twin: {word}")
    return lines


def saved(found: list[Row], device: Device, out: Path) -> None:
    """The rows so far, so that a run that is cut off leaves them."""
    plain = {"machine": device.describe(), "rows": [row._asdict() for row in found]}
    (out / "kernels.json").write_text(json.dumps(plain, indent=2) + "\n")


def parsed_size(text: str) -> tuple[int, int, int]:
    """Heads, d and tokens of `8,64,8192`."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"HEADS,D,TOKENS are three counts of at least 1, not {text}")
    heads, d, tokens = map(int, parts)
    return heads, d, tokens


def chosen_subjects(names: list[str]) -> tuple[Subject, ...]:
    """The subjects of these names, all without one."""
    known = [subject.name for subject in SUBJECTS]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name} is none of {', '.join(known)}")
    return tuple(subject for subject in SUBJECTS if not names or subject.name in names)


def main(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="SUBJECT", help="This memory; repeatable."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="HEADS,D,TOKENS", help="This size; repeatable."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where kernels.json goes.")
    ] = Path("build/bench-gpu"),
) -> None:
    """Each CUDA kernel beside the array operations that it stands in for."""
    console = Console(width=180)
    subjects, sizes = chosen_subjects(only or []), tuple(map(parsed_size, size or [])) or SIZES
    try:
        device = open_device("cuda", tf32=False)
    except Unavailable as why:
        console.print(f"benchmarks.gpu.kernels: {why}", highlight=False, markup=False)
        raise typer.Exit(2) from None
    out.mkdir(parents=True, exist_ok=True)
    found: list[Row] = []
    for each in sizes:
        found.append(sequential_row(each, device))
        for subject in subjects:
            begun = time.perf_counter()
            word = "done"
            try:
                found += rows(subject, each, device)
            except Exception as failed:  # any failure of a form: the others go on
                word = running.reason(failed, device)
            device.release()
            saved(found, device, out)
            spent = time.perf_counter() - begun
            console.print(
                f"{subject.name}, {each}: {word}, {spent:.0f} s", highlight=False, markup=False
            )
    console.print(table(found))
    for line in verdicts(found):
        console.print(line, highlight=False, markup=False)


if __name__ == "__main__":
    typer.run(main)
