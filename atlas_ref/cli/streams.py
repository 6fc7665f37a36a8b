"""The standard streams, which whoever starts a command may have closed, or filled the disk of."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def complete() -> None:
    """Open the standard streams that are closed, so that no file of ours takes their place.

    Nothing can be written to a standard output that was closed, and nothing is lost in silence;
    what goes to a standard error that was closed is lost, since there is no place to say so.
    """
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, flags)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def discard(stream: TextIO) -> None:
    """Send the rest of a stream nowhere, so that the interpreter's last flush works."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
