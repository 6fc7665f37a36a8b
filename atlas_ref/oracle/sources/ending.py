"""Signals that end a process in order: its children end, and temporary folders go (SRC-5)."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

#: Those that Python does not turn into an exception, as it does SIGINT.
ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Let the signals of `ENDING` end this process as an exception does.

    One that is ignored, as by nohup, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deadly = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    for each in ENDING:  # a second one does not interrupt what ends
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)
