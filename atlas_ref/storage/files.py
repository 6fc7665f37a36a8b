"""Safetensors files with words in their metadata, read and written whole.

Specified in specs/case.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

#: Bytes of a header that the format allows, and, fewer, bytes and tensors that are read (CASE-1).
ALLOWED_HEADER, LONGEST_HEADER, TENSORS = 100_000_000, 5_000_000, 20_000

#: What NumPy can hold, by the name in the file. Most of it is read only to be refused by name, or
#: as results under test.
DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "BOOL": np.bool_,
    "C64": np.complex64,
    **{
        f"{sign}{bits}": f"{word}{bits}"
        for sign, word in (("I", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
}
#: What the names of files that are not whole yet begin with.
TEMPORARY = ".atlas-ref-"

NAMES = {np.dtype(dtype).name: name for name, dtype in DTYPES.items()}

Arrays = Mapping[str, np.ndarray[Any, Any]]


def read(
    path: str | os.PathLike[str], folder: str = "is a folder, a file is needed"
) -> tuple[dict[str, str], dict[str, np.ndarray[Any, Any]]]:
    """The metadata and every tensor of a safetensors file.

    Args:
        folder: message about a folder.

    Raises:
        ValueError: what is wrong with the file, without its name.
    """
    data = read_bytes(path, folder, _claimed)
    try:
        # safetensors has no types
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        reason = (
            str(error)
            .removeprefix("Error while deserializing")
            .removeprefix(" header")
            .removeprefix(": ")
        )
        raise ValueError(f"not a whole safetensors file: {reason}") from None
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")], object_pairs_hook=unique)
    tensors = {
        name: _array(name, entry) for name, entry in sorted(entries, key=lambda each: each[0])
    }
    return header.get("__metadata__") or {}, tensors


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys all differ."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} stands twice")
        result[key] = value
    return result


def _claimed(stream: IO[bytes]) -> bytes:
    """Read the bytes that the header of a safetensors file claims, and one more.

    A larger file is refused without reading the rest.
    """
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if length > ALLOWED_HEADER:
        return start
    if length > LONGEST_HEADER:
        raise ValueError(f"its header has {length} bytes, at most {LONGEST_HEADER} are read")
    start += stream.read(length)
    try:
        ends = [
            entry["data_offsets"][1]
            for name, entry in json.loads(start[8:]).items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return start  # no such header, which the parser refuses
    if len(ends) > TENSORS:
        raise ValueError(f"it has {len(ends)} tensors, at most {TENSORS} are read")
    try:
        return start + stream.read(min(max([*ends, 0]) + 1, os.fstat(stream.fileno()).st_size))
    except (ValueError, TypeError):
        return start  # no such ends, which the parser refuses


def _whole(stream: IO[bytes]) -> bytes:
    return stream.read()


def read_bytes(
    path: str | os.PathLike[str],
    folder: str = "is a folder, a file is needed",
    read: Callable[[IO[bytes]], bytes] = _whole,
) -> bytes:
    """Read a regular file.

    A device or a pipe is refused, since it may have no end.

    Args:
        folder: message about a folder.
        read: reads the open file, whole or in part.

    Raises:
        ValueError: what is wrong with the file, without its name.
    """
    place = Path(path)
    try:
        if place.is_dir():
            raise ValueError(folder)
        if place.exists() and not place.is_file():
            raise ValueError("is not a regular file")
        with place.open("rb") as stream:
            return read(stream)
    except FileNotFoundError:
        raise ValueError("no such file") from None
    except (MemoryError, OverflowError):
        raise ValueError("cannot be read: it needs more memory than there is") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None


def _array(name: str, entry: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{name}: dtype {entry['dtype']}, F64, F32, BF16 or F16 is needed")
    if entry["dtype"] == "BOOL" and entry["data"].strip(b"\0\1"):
        raise ValueError(f"{name}: a byte of a BOOL tensor must be 0 or 1")
    return np.frombuffer(entry["data"], dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])


def write(
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None,
    tensors: Arrays,
    *,
    durable: bool = False,
) -> None:
    """Write under a temporary name and rename, so that no reader ever sees half a file (CASE-19).

    Args:
        durable: as for `write_bytes`.

    Raises:
        ValueError: what is wrong with the place or the tensors, without the file's name; a file that
            `read` would refuse for its size.
    """
    if len(tensors) > TENSORS:
        raise ValueError(f"{len(tensors)} tensors, at most {TENSORS} are read")
    data = safetensors.numpy.save(
        {name: storable(name, array) for name, array in tensors.items()},
        metadata=None if metadata is None else dict(metadata),
    )
    length = int.from_bytes(data[:8], "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes, at most {LONGEST_HEADER} are read")
    write_bytes(path, data, durable=durable)


def write_bytes(path: str | os.PathLike[str], data: bytes, *, durable: bool = False) -> None:
    """Write any file whole or not at all (CASE-19).

    Args:
        durable: whether the file is whole after a loss of power too, which takes longer.

    Raises:
        ValueError: what is wrong with the place, without the file's name.
    """
    try:
        _replace(writable(path), data, durable)
    except OSError as error:
        raise ValueError(f"cannot be written: {error.strerror or error}") from None


def writable(path: str | os.PathLike[str]) -> Path:
    """The path that a file will be written to, refused before any work is done for it.

    Raises:
        ValueError: what is wrong with the place, without the file's name.
    """
    try:
        target = Path(os.path.realpath(path))  # a link is followed, not replaced
        if target.is_dir():
            raise ValueError("is a folder, a file name is needed")
        if target.exists() and not target.is_file():
            raise ValueError("exists and is not a regular file")
        if not target.parent.is_dir():
            raise ValueError(f"the folder {target.parent} does not exist")
    except OSError as error:
        raise ValueError(f"cannot be written: {error.strerror or error}") from None
    return target


def storable(name: str, array: Any) -> np.ndarray[Any, Any]:
    """An array as a file holds it: contiguous, in the byte order of the machine.

    Raises:
        ValueError: a dtype that the format does not have, by the name of the tensor.
    """
    array = np.asarray(array)
    if array.dtype.name not in NAMES:
        raise ValueError(f"{name}: dtype {array.dtype} cannot be stored")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(native).reshape(array.shape)


def _replace(target: Path, data: bytes, durable: bool) -> None:
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
        if durable:
            _settle(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _settle(folder: Path) -> None:
    """Write the names of a folder to the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
