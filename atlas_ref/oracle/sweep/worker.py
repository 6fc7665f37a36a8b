"""A process of `sweep --jobs`: pickled tasks in on standard input, results out (SWEEP-10)."""

from __future__ import annotations

import os
import signal

from atlas_ref.oracle.sources.ending import in_order
from atlas_ref.oracle.sweep.modes import answers


def main() -> None:
    """Answer until standard input ends.

    Output that an implementation prints goes to standard error.
    """
    # the parent process is interrupted too, and ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    questions = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with in_order():  # so that the implementation is ended too
        answers(questions, replies)


if __name__ == "__main__":
    main()
