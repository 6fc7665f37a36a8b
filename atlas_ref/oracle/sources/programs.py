"""Implementations in processes of their own: a program per case, or a worker that calls one
function.

Each has a session of its own, so that all of its processes can be ended together. Specified in
specs/sources.md and in specs/case.md, CASE-24.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from atlas_ref.oracle.cases.case import Case, CaseError, load_results, save
from atlas_ref.oracle.cases.header import title
from atlas_ref.oracle.judge.answers import Answer, Source
from atlas_ref.oracle.sources.room import room

#: Seconds that an implementation has for one case by default.
TIMEOUT = 60.0

#: Seconds for the import of a function at least: libraries of kernels load and compile for long.
IMPORT = 600.0

#: Longest wait in seconds before signals are looked at, one of which another thread may have taken.
#: A longer time-out waits again.
WAIT = 0.2

#: Exit code of a program that does not support a case.
UNSUPPORTED = 3

#: Bytes at the end of a program's output that are stored.
KEPT = 4096


def program(command: str, *, timeout: float = TIMEOUT) -> Source:
    """A program, started once per case: `./mine {case} {out}` (SRC-4, SRC-5).

    The command is split as a shell would and run without one. `{case}` becomes a file with the
    inputs alone, `{out}` the file to write.

    Args:
        timeout: seconds per case, after which the program and all that it started are killed.

    Raises:
        CaseError: a command without `{case}` or `{out}`, or whose program does not exist.
    """
    words = _split(command)
    if not timeout > 0:
        raise CaseError(f"timeout: must be greater than 0, found {timeout:g}")

    def answer(case: Case) -> Answer:
        with room() as folder:
            case_file, out = folder / "case.safetensors", folder / "out.safetensors"
            save(case_file, case.header, case.inputs)
            places = {"{case}": str(case_file), "{out}": str(out)}
            failure = _run([_fill(word, places) for word in words], timeout)
            return failure or _read(out, case)

    return answer


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CaseError(f"exec: {command!r}: {error}") from None
    for place in ("{case}", "{out}"):
        if not any(place in word for word in words):
            raise CaseError(
                f"exec: {place} is needed, as in './mine {{case}} {{out}}', found {command!r}"
            )
    if shutil.which(words[0]) is None:
        raise CaseError(f"exec: {words[0]}: no such program, or it may not be executed")
    return words


def _fill(word: str, places: dict[str, str]) -> str:
    for place, path in places.items():
        word = word.replace(place, path)
    return word


def _run(words: list[str], timeout: float) -> Answer | None:
    """Run a command to its end; None for exit code 0."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Answer.no_answer(f"crash: cannot be started: {error.strerror or error}")
    try:
        output, errors = _Tail(process.stdout), _Tail(process.stderr)
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return Answer.no_answer(f"time-out: did not end within {timeout:g} s")
    finally:
        _end(process)
    if code == 0:
        return None
    if code == UNSUPPORTED:
        return Answer.no_support(output.last() or errors.last())
    # apart, since output that waited in a buffer is written after the error
    message = errors.last() or output.last()
    return Answer.no_answer(f"crash: {_ending(code)}" + (f": {message}" if message else ""))


def _end(process: subprocess.Popen[Any]) -> None:
    """Kill the process and all others of its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class _Tail:
    """The end of a process's output, read in a thread so that the process never blocks."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._kept = b""
        self._thread = threading.Thread(target=self._listen, args=(stream,), daemon=True)
        self._thread.start()

    def _listen(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), stream:
            while chunk := os.read(stream.fileno(), 65536):
                self._kept = (self._kept + chunk)[-KEPT:]

    def last(self) -> str:
        """The last line that is not blank."""
        self._thread.join(1.0)  # a process that left the session may still hold the pipe
        lines = [line for line in self._kept.decode(errors="replace").splitlines() if line.strip()]
        return " ".join(lines[-1].split())[:200] if lines else ""


def _read(out: Path, case: Case) -> Answer:
    """The answer in a program's result file.

    An error in the file is an answer too, except a name that no rule has.
    """
    if not os.path.exists(out):  # False, too, where the program has shut the folder
        return Answer.no_answer("garbage: exit code 0, and no {out} was written")
    try:
        header, tensors = load_results(out)
    except CaseError as error:
        return Answer.no_answer(f"garbage: {{out}}{str(error).removeprefix(str(out))}")
    if title(header) != case.title:
        return Answer.no_answer(
            f"garbage: {{out}}: rule: the case has {case.title}, found {title(header)}"
        )
    return Answer({name: value for name, value in tensors.items() if not name.startswith("in/")})


class Isolated:
    """`pkg.module:function` in a process of its own, which restarts after a crash or a time-out
    (SRC-9).

    Use it in a `with` statement, which starts it, or call `close`.

    Args:
        timeout: seconds per case, and for the import where they are more than its own.
        importing: seconds that the import may take at least.
        python: the interpreter of the process, where it is not this one; it has to import atlas_ref.
        path: folders that it imports from, before those of its environment.

    Raises:
        CaseError: when it is started, by `with` or the first case, and the function cannot be
            imported.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: float = TIMEOUT,
        importing: float = IMPORT,
        python: str | os.PathLike[str] = sys.executable,
        path: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        if not timeout > 0:
            raise CaseError(f"timeout: must be greater than 0, found {timeout:g}")
        self._name, self._timeout, self._importing = name, timeout, importing
        self._python, self._path = os.fspath(python), [os.fspath(each) for each in path]
        self._process: subprocess.Popen[Any] | None = None
        self._replies: IO[bytes] | None = None

    def __enter__(self) -> Self:
        with _closing_after_interruption(self):
            self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker and all that it started."""
        if self._process is not None:
            _end(self._process)
            for stream in (self._process.stdin, self._replies):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()
        self._process = self._replies = None

    def __call__(self, case: Case) -> Answer:
        with _closing_after_interruption(self):
            return self._ask(case)

    def _ask(self, case: Case) -> Answer:
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        with room() as folder:
            case_file, out = folder / "case.safetensors", folder / "out.safetensors"
            save(case_file, case.header, case.inputs)
            with contextlib.suppress(OSError):  # it has ended; the missing reply says so
                self._process.stdin.write(
                    json.dumps({"case": str(case_file), "out": str(out)}).encode() + b"\n"
                )
                self._process.stdin.flush()
            reply = self._reply(self._timeout)
            if isinstance(reply, Answer):
                self.close()
                return reply
            return self._answer(reply, out, case)

    def _answer(self, reply: dict[str, Any], out: Path, case: Case) -> Answer:
        if reply["status"] == "bad":
            raise CaseError(f"{case.name}: {reply['message']}")
        if reply["status"] == "done":
            return _read(out, case)
        return (
            Answer.no_support(reply["message"])
            if reply["status"] == "unsupported"
            else Answer.no_answer(reply["message"])
        )

    def _start(self) -> None:
        """Start the worker and wait until it has imported the function."""
        reading, writing = os.pipe()
        # -P: the current folder is not the first to be imported from, where any file may lie
        module = "atlas_ref.oracle.sources.worker"
        words = [self._python, "-P", "-m", module, self._name, str(writing)]
        variables = {"PYTHONPATH": os.pathsep.join(self._path)} if self._path else {}
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=2,
            pass_fds=(writing,),
            start_new_session=True,
            env={**os.environ, **variables},
        )
        os.close(writing)
        self._replies = os.fdopen(reading, "rb", buffering=0)
        reply = self._reply(max(self._timeout, self._importing))
        if isinstance(reply, Answer):
            self.close()
            raise CaseError(f"impl {self._name}: while it was imported: {reply.failure}")
        if reply["status"] == "bad":
            self.close()
            raise CaseError(str(reply["message"]))

    def _reply(self, timeout: float) -> dict[str, Any] | Answer:
        """One line of JSON, or an answer where none comes in time."""
        assert self._process is not None
        assert self._replies is not None
        until, text = time.monotonic() + timeout, b""
        while not text.endswith(b"\n"):
            seconds = until - time.monotonic()
            ready, _, _ = select.select([self._replies], [], [], min(max(0.0, seconds), WAIT))
            if not ready:
                if seconds > WAIT:
                    continue
                return Answer.no_answer(f"time-out: did not end within {timeout:g} s")
            chunk = os.read(self._replies.fileno(), 65536)
            if not chunk:
                return Answer.no_answer(f"crash: {_ending(self._process.wait())}")
            text += chunk
        return _parse_reply(text)


def _parse_reply(text: bytes) -> dict[str, Any] | Answer:
    """The reply of the worker, or an answer where other output came instead."""
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError):
        reply = None
    if isinstance(reply, dict) and set(reply) == {"status", "message"}:
        status, message = reply["status"], reply["message"]
        if isinstance(status, str) and (message is None or isinstance(message, str)):
            return reply
    return Answer.no_answer(f"garbage: something wrote {text[:40]!r} where results are announced")


@contextlib.contextmanager
def _closing_after_interruption(worker: Isolated) -> Iterator[None]:
    try:
        yield
    except BaseException:
        worker.close()
        raise
