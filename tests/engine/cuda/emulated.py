"""The kernels on the host: the same sources through g++ and `emulator.h`, as a device that takes
NumPy arrays.

Every array is copied to where its end, or its start, meets a page that cannot be touched; results
begin full of NaN.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16
import numpy as np

from atlas_ref.engine.cuda import launch
from atlas_ref.engine.cuda.launch import Argument, Size, Struct, View
from atlas_ref.engine.cuda.sequential import SPLITS

HERE = Path(__file__).parent
PAGE = mmap.PAGESIZE
FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-U_FORTIFY_SOURCE")
FLAGS += ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
FORWARDS, BACKWARDS, SHUFFLED = 0, 1, 2


class Broken(AssertionError):
    """A fault of a kernel: memory that is not its own, or threads that did not meet."""


def compiler() -> str | None:
    return shutil.which("g++")


@functools.cache
def library(text: str, names: tuple[str, ...]) -> ctypes.CDLL:
    """A source with some of its instantiations, compiled once for all processes."""
    taken = (
        "const unsigned* grid, const unsigned* block, size_t bytes, void** arguments, int count, "
        "unsigned order"
    )
    calls = "\n".join(
        (
            f'extern "C" const char* run_{i}({taken}) {{ return emulator::launch({name}, grid, '
            f"block, bytes, arguments, count, order); }}"
        )
        for i, name in enumerate(names)
    )
    whole = f"{(HERE / 'emulator.h').read_text().replace('#pragma once', '')}\n{text}\n{calls}\n"
    folder = Path(tempfile.gettempdir()) / f"atlas-ref-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    name = hashlib.sha256(f"{whole} {FLAGS}".encode()).hexdigest()[:24]
    made = folder / f"{name}.so"
    with (
        (folder / f"{name}.lock").open("w") as lock,
        tempfile.TemporaryDirectory(dir=folder) as work,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process compiles, the others wait for what it makes
        if not made.exists():
            source = Path(work) / "kernels.cpp"
            source.write_text(whole)
            found = subprocess.run(
                ["g++", *FLAGS, source, "-o", Path(work) / "made.so"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert found.returncode == 0, found.stderr
            os.replace(Path(work) / "made.so", made)
    return ctypes.CDLL(str(made))


class Guarded:
    """Bytes between inaccessible pages, flush with the one behind them or with the one before."""

    def __init__(self, size: int, *, at_end: bool) -> None:
        self.room = -(-max(size, 1) // PAGE) * PAGE
        self.base = LIBC.mmap(
            None,
            self.room + 2 * PAGE,
            mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            -1,
            0,
        )
        assert self.base not in (None, ctypes.c_void_p(-1).value)
        LIBC.mprotect(self.base, PAGE, 0)
        LIBC.mprotect(self.base + PAGE + self.room, PAGE, 0)
        self.address = self.base + PAGE + (self.room - size if at_end else 0)

    def free(self) -> None:
        LIBC.munmap(self.base, self.room + 2 * PAGE)


class Emulated:
    """A device that runs each kernel on the host, thread after thread, in a source changed by
    `planted`.

    Attributes:
        order: FORWARDS, BACKWARDS, or a seed from SHUFFLED on.
        planted: what to replace in the source, by what.
        launches: names of the kernels that ran.
    """

    xp: Any

    def __init__(
        self, order: int = FORWARDS, planted: dict[str, str] | None = None, limit: int = 227 * 1024
    ) -> None:
        self.xp = _Poisoned()
        self.order, self.planted, self.limit = order, planted or {}, limit
        self.launches: list[str] = []

    def shared_limit(self) -> int:
        return self.limit

    def launch(
        self,
        source: str,
        name: str,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Sequence[Argument],
    ) -> None:
        text, names = launch.source_text(source), tuple(INSTANCES[source])
        assert self.planted or name in names, (
            f"{name}: not in INSTANCES, so not compiled for a GPU by any test"
        )
        for old, new in self.planted.items():
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
            text = text.replace(old, new)
        names = (name,) if self.planted else names
        call = getattr(library(text, names), f"run_{names.index(name)}")
        call.restype = ctypes.c_char_p
        self.launches.append(name)
        passed = _Passed(arguments, at_end=self.order != BACKWARDS)
        wide = [(ctypes.c_uint * 3)(*(*size, 1, 1)[:3]) for size in (grid, block)]
        problem = call(
            *wide,
            ctypes.c_size_t(shared),
            passed.pointers,
            len(arguments),
            ctypes.c_uint(self.order),
        )
        passed.hand_back()
        if problem:
            raise Broken(f"{name}: {problem.decode()}")


class _Poisoned:
    """NumPy with uninitialised arrays full of NaN."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        return np.full(shape, np.nan, dtype)


class _Passed:
    """Arguments in guarded memory, and the copy back of the arrays that a kernel writes."""

    def __init__(self, arguments: Sequence[Argument], *, at_end: bool) -> None:
        self.kept: list[Any] = []
        self.held: list[tuple[Any, Guarded, Any]] = []
        self.at_end = at_end
        self.pointers = (ctypes.c_void_p * len(arguments))(*(self._address(x) for x in arguments))

    def _address(self, x: Argument) -> int:
        """The address of an argument's value."""
        if isinstance(x, View | Struct):
            packed = launch.packed(
                x,
                lambda array, by_strides: self._view(array) if by_strides else self._copied(array),
            )
            self.kept.append(packed)
            return int(packed.ctypes.data)
        value = (
            ctypes.c_int64(x or 0)
            if x is None or isinstance(x, int)
            else ctypes.c_void_p(self._copied(x))
        )
        self.kept.append(value)
        return ctypes.addressof(value)

    def _copied(self, x: Any) -> int:
        guarded = Guarded(x.nbytes, at_end=self.at_end)
        ctypes.memmove(guarded.address, x.ctypes.data, x.nbytes)
        copied = (
            np.frombuffer((ctypes.c_char * x.nbytes).from_address(guarded.address), np.uint8)
            .view(x.dtype)
            .reshape(x.shape)
        )
        self.held.append((x, guarded, copied))
        return guarded.address

    def _view(self, x: Any) -> int:
        """All memory that a view spans, gaps filled with NaN; the address of its first entry."""
        reach = [(n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)]
        low, size = sum(min(r, 0) for r in reach), sum(abs(r) for r in reach) + x.itemsize
        guarded = Guarded(size, at_end=self.at_end)
        spanned = np.frombuffer((ctypes.c_char * size).from_address(guarded.address), x.dtype)
        spanned[...] = np.nan
        copied = np.ndarray(x.shape, x.dtype, spanned.data, -low, x.strides)
        copied[...] = x
        self.held.append((x, guarded, copied))
        return guarded.address - low

    def hand_back(self) -> None:
        for x, guarded, copied in self.held:
            if x.flags.writeable:
                x[...] = copied
            guarded.free()


def instances(form: str, *choices: Sequence[Any]) -> list[str]:
    """Names of a kernel for every choice of its template arguments."""
    found = [()]
    for each in choices:
        found = [(*before, one) for before in found for one in each]
    return [form.format(*each) for each in found]


#: Every instantiation that the package can ask for, by source.
INSTANCES: dict[str, list[str]] = {
    "coefficients": [
        *instances("coefficient_rows<{}, {}>", ("float", "double"), ("false", "true")),
        *instances("coefficient_rows_backward<{}, {}>", ("float", "double"), ("false", "true")),
    ],
    "exact": [
        *instances("exact_walk{}<{}, {}>", ("", "_backward"), ("float", "double"), (1, 2)),
    ],
    "triangular": instances("inverse_unit_lower<{}>", ("float", "double")),
    "pieces": [
        *instances(
            "{}<{}, {}>",
            ("carried", "carried_backward"),
            ("float", "double"),
            (1, 2),
        ),
    ],
    "sequential": [
        f"sequential<{stored}, {kind}, {part}, {lanes}>"
        for stored, kind in (
            ("float", "float"),
            ("double", "double"),
            ("bf16", "float"),
            ("f16", "float"),
        )
        for part, lanes in SPLITS
    ],
}
