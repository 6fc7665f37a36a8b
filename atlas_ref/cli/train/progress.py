"""The bar of a run on standard error: loss, bits per byte, tokens a second, time left."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Told = Callable[[Mapping[str, Any]], None]


def words(line: Mapping[str, Any], held: float | None) -> str:
    """A step in words, with the last loss of held-out text where there is one."""
    text = f"loss {line['loss']:.3f}  {line['bits_per_byte']:.3f} bits/byte"
    text += "" if held is None else f" (held out {held:.3f})"
    return f"{text}  {line['tokens_per_second']:,.0f} tokens/s"


@contextmanager
def bar(steps: int, first: int) -> Iterator[Told]:
    """A function that takes lines of the log; where standard error is no terminal it shows
    evaluations alone, a line each.
    """
    from atlas_ref.cli import output

    held: list[float] = []
    if not sys.stderr.isatty():

        def tell(line: Mapping[str, Any]) -> None:
            if "held_out" in line:
                found = line["held_out"]
                output.say(
                    f"step {line['step']} of {steps}: held out {found['loss']:.4f} nats, "
                    f"{found['bits_per_byte']:.4f} bits/byte"
                )

        yield tell
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
