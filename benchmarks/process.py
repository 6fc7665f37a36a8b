"""PyTorch or JAX in a process of its own, which times and weighs itself.

Its threads and those of our BLAS wait in a loop after each product; within one process, or without
a pause, each would slow the other. So the two take turns, and what still spins when the other
begins is outlasted by its lead of untimed runs, or by a pause.
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from benchmarks import public
from benchmarks.measure import lead_in, timer

PAUSE = 0.02  # seconds until the threads of PyTorch sleep


class Weighed(NamedTuple):
    """One run that met memory for the first time.

    Attributes:
        grows: megabytes by which the process grew at its peak; nan where the system does not say.
        seconds: that it took.
        reads: of kind "forward", as a plain array in our layout; else None.
    """

    grows: float
    seconds: float
    reads: Any


class Process:
    """A process that holds one public implementation at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ours.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()

    def load(self, name: str, arrays: dict[str, Any], bar: Any, **options: Any) -> None:
        """Prepare an implementation with its inputs.

        Raises:
            Missing: it is not installed.
        """
        self._ask("load", name, arrays, bar, options)

    def reads(self) -> Any:
        """Reads as a plain array, in our layout."""
        return self._ask("reads")

    def gradients(self) -> dict[str, Any]:
        """Gradients as plain arrays, in our layout."""
        result: dict[str, Any] = self._ask("gradients")
        return result

    def seconds(self, kind: str, times: int = 1, lead: float = 0.0) -> float:
        """Wall time of one run of kind "forward" or "both".

        It is the mean of some runs in a row after a lead of untimed ones.
        """
        return float(self._ask("seconds", kind, times, lead))

    def cpu_seconds(self, kind: str) -> float:
        """CPU time of one run of kind "forward" or "both", for what runs on one thread."""
        return float(self._ask("cpu_seconds", kind))

    def weighed(self, kind: str) -> Weighed:
        """One run, with the memory that it takes."""
        return Weighed(*self._ask("weighed", kind))

    def _ask(self, *question: Any) -> Any:
        try:
            self._ours.send(question)
            kind, answer = self._ours.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise public.Missing("its process ended: too little memory?") from None
        if kind == "missing":
            raise public.Missing(answer)
        if kind == "error":
            raise RuntimeError(f"the process of a public implementation failed:\n{answer}")
        return answer


def _serve(connection: Connection) -> None:
    """Answer questions until the other side closes."""
    call: public.Call | None = None
    while True:
        try:
            kind, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if kind == "load":
                call = None  # frees the previous one first
                call = public.call(*arguments)
                answer: Any = None
            elif call is None:
                raise RuntimeError("nothing is loaded")
            else:
                answer = QUESTIONS[kind](call, *arguments)
            connection.send(("answer", answer))
        except public.Missing as missing:
            connection.send(("missing", str(missing)))
        except Exception:  # the other side raises it
            connection.send(("error", traceback.format_exc()))


def _reads(call: public.Call) -> Any:
    return call.plain(np.asarray(call.forward()))


def _gradients(call: public.Call) -> dict[str, Any]:
    return call.gradients({name: np.asarray(each) for name, each in call.both()[1].items()})


def _seconds(call: public.Call, kind: str, times: int, lead: float) -> float:
    run = call.forward if kind == "forward" else call.both
    lead_in(run, lead)
    start = time.perf_counter()
    for _ in range(times):
        run()
    spent = (time.perf_counter() - start) / times
    time.sleep(PAUSE)
    return spent


def _cpu_seconds(call: public.Call, kind: str) -> float:
    return timer(call.forward if kind == "forward" else call.both, time.process_time)()


def _weighed(call: public.Call, kind: str) -> Weighed:
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    gc.collect()
    try:
        # what is free goes back to the system, so that using it again counts
        ctypes.CDLL(None).malloc_trim(0)
        clear.write_text("5")  # the peak starts anew
        before = _megabytes(status, "VmRSS")
    except (AttributeError, OSError):
        before = float("nan")
    start = time.perf_counter()
    result: Any = call.forward() if kind == "forward" else call.both()
    seconds = time.perf_counter() - start
    grows = before if math.isnan(before) else _megabytes(status, "VmHWM") - before
    return Weighed(grows, seconds, call.plain(np.asarray(result)) if kind == "forward" else None)


def _megabytes(status: Path, field: str) -> float:
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024 / 1e6


QUESTIONS: dict[str, Callable[..., Any]] = {
    "reads": _reads,
    "gradients": _gradients,
    "seconds": _seconds,
    "cpu_seconds": _cpu_seconds,
    "weighed": _weighed,
}
