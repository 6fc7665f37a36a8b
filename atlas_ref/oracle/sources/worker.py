"""The process of a function for `check --impl`: one line of JSON in per case, one out (SRC-9)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import TextIO

from atlas_ref.oracle.cases.case import CaseError, load, save
from atlas_ref.oracle.sources.sources import Function, import_function, respond


def main(name: str, descriptor: int) -> None:
    """Import the function, then answer until standard input ends.

    Replies go where no print of the function goes.
    """
    # the parent process is interrupted too, and ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    replies = os.fdopen(descriptor, "w", buffering=1)
    questions = os.fdopen(os.dup(0), "r")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the function has no questions to read

    def reply(status: str, message: str | None = None) -> None:
        replies.write(json.dumps({"status": status, "message": message}) + "\n")

    try:
        _serve(name, questions, reply)
    except BaseException as error:
        # the function has closed or replaced a stream; the parent process sees the exit
        print(
            f"atlas-ref: the function's process cannot go on: {type(error).__name__}: {error}",
            file=sys.__stderr__,
        )
        os._exit(1)


def _serve(name: str, questions: TextIO, reply: Callable[..., None]) -> None:
    try:
        call = import_function(name)
    except CaseError as error:
        return reply("bad", str(error))
    reply("ready")
    for line in questions:
        reply(*_answer(call, **json.loads(line)))


def _answer(call: Function, case: str, out: str) -> tuple[str, str | None]:
    """Status and message of one case, whose results are written to `out`."""
    try:
        problem = load(case)
        answer = respond(call, problem)
    except CaseError as error:
        return "bad", str(error).removeprefix(f"{case}: ")
    except KeyboardInterrupt:  # this process ignores the signal, so the function raised it
        return "failed", "crash: KeyboardInterrupt"
    if answer.tensors is None:
        return ("unsupported" if answer.verdict == "NOT SUPPORTED" else "failed"), answer.failure
    try:
        save(out, problem.header, answer.tensors)
    except CaseError as error:
        return "failed", f"garbage: {str(error).removeprefix(f'{out}: ')}"
    return "done", None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
