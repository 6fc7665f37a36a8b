"""The bar of a run on standard error: loss, bits per byte, tokens a second, time left."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Told = Callable[[Mapping[str, Any]], None]

#: Seconds between two lines about steps where standard error is no terminal.
PAUSE = 60.0


def words(line: Mapping[str, Any], held: float | None) -> str:
    """A step in words, with the last loss of held-out text where there is one."""
    text = f"loss {line['loss']:.3f}  {line['bits_per_byte']:.3f} bits/byte"
    text += "" if held is None else f" (held out {held:.3f})"
    return f"{text}  {line['tokens_per_second']:,.0f} tokens/s"


@contextmanager
def bar(steps: int, first: int) -> Iterator[Told]:
    """A function that takes lines of the log; where standard error is no terminal it says the first
    step, evaluations, and a step a minute, a line each.
    """
    held: list[float] = []
    if not sys.stderr.isatty():
        yield _lines(steps, time.monotonic)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        own = shown.add_task("", total=steps, completed=first)

        def show(line: Mapping[str, Any]) -> None:
            if "held_out" in line:
                held[:] = [line["held_out"]["bits_per_byte"]]
                return
            text = words(line, held[0] if held else None)
            shown.update(own, completed=line["step"], description=text)

        yield show


def _lines(steps: int, clock: Callable[[], float]) -> Told:
    """A function that says lines of the log, those of steps no more often than there is news."""
    from atlas_ref.cli import output

    begun, said = clock(), list[float]()

    def tell(line: Mapping[str, Any]) -> None:
        now = clock()
        about = f"step {line['step']} of {steps}"
        if "held_out" in line:
            found = line["held_out"]
            output.say(
                f"{about}: held out {found['loss']:.4f} nats, "
                f"{found['bits_per_byte']:.4f} bits/byte"
            )
        elif not said:
            said.append(now)
            output.say(
                f"{about}: loss {line['loss']:.4f} nats, {line['bits_per_byte']:.4f} bits/byte, "
                f"after {now - begun:.1f} s"
            )
        elif now - said[-1] >= PAUSE:
            said.append(now)
            output.say(f"{about}: {words(line, None)}")

    return tell


def both(first: Told, second: Told) -> Told:
    """A function that gives each line to two."""

    def tell(line: Mapping[str, Any]) -> None:
        first(line)
        second(line)

    return tell


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether the run was asked to stop: the first signal is remembered, the second one ends it."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before: dict[int, Any] = {}
    try:
        for each in (signal.SIGINT, signal.SIGTERM):
            before[each] = signal.signal(each, ask)
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
