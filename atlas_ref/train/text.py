"""Text as documents: files and folders in a stated order, and what is held out of training.

Specified in specs/train.md (TRAIN-1 to TRAIN-3).
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from atlas_ref.rules.checks import generator
from atlas_ref.storage import files

#: Ending of files that are decompressed.
PACKED = ".gz"


class File(NamedTuple):
    """A file of text.

    Attributes:
        name: its path below the folder that was named, with that folder's name before it.
        path: where it lies, without links.
        named: whether it was named itself, and not found in a folder.
    """

    name: str
    path: str
    named: bool


class Document(NamedTuple):
    """A text without what comes before and after it."""

    name: str
    text: bytes


class Divided(NamedTuple):
    """Documents to learn from, and those that are held out."""

    train: tuple[Document, ...]
    held: tuple[Document, ...]


def files_of(
    paths: Sequence[str], *, only: Sequence[str] = ("*",), skip: Sequence[str] = ()
) -> tuple[File, ...]:
    """The files of paths: those of a folder sorted by name, each file once (TRAIN-1).

    Args:
        paths: files and folders, in this order. In a folder, what begins with a dot is left out.
        only: patterns; a file of a folder is taken where one matches its name.
        skip: patterns; a file or folder in a folder is left out where one matches its name.

    Raises:
        ValueError: names the path that does not exist or cannot be read.
    """
    found: dict[str, File] = {}
    for path in paths:
        place = Path(path)
        try:
            if not path:
                raise ValueError("a path is empty, a file or folder of text is needed")
            inside = place.is_dir()
            new = list(_inside(place, only, skip)) if inside else [_itself(place)]
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
        if not new:
            raise ValueError(f"{path}: no file in this folder matches {', '.join(only)}")
        for each in new:
            found.setdefault(each.path, each)
    return tuple(found.values())


def _itself(place: Path) -> File:
    if not place.exists():
        raise ValueError(f"{place}: no such file or folder")
    return File(place.name, os.path.realpath(place), True)


def _inside(folder: Path, only: Sequence[str], skip: Sequence[str]) -> Iterable[File]:
    """Regular files below a folder, by their paths as text."""
    top = Path(os.path.realpath(folder)).name
    places = []
    for at, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [each for each in folders if not _matches(each, (".*", *skip))]
        places += [
            Path(at, name)
            for name in names
            if _matches(name, only) and not _matches(name, (".*", *skip))
        ]
    named = {place.relative_to(folder).as_posix(): place for place in places if place.is_file()}
    for name in sorted(named):
        yield File(f"{top}/{name}", os.path.realpath(named[name]), False)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


def _refuse(error: OSError) -> None:
    raise error


def documents(found: Iterable[File], *, limit: int | None = None) -> tuple[Document, ...]:
    """The texts of files; one that is empty is left out where a folder has it (TRAIN-1).

    Args:
        limit: bytes after which nothing is read.

    Raises:
        ValueError: names the file that cannot be read, or was named and is empty.
    """
    texts, left = [], limit
    for file in found:
        if left is not None and left <= 0:
            break
        text = _text(file)
        if not text and file.named:
            raise ValueError(f"{file.path}: is empty")
        text = text if left is None else text[:left]
        left = None if left is None else left - len(text)
        if text:
            texts.append(Document(file.name, text))
    return tuple(texts)


def _text(file: File) -> bytes:
    try:
        data = files.read_bytes(file.path)
        return gzip.decompress(data) if file.path.endswith(PACKED) else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file.path}: not a whole gzip file: {error}") from None
    except ValueError as error:
        raise ValueError(f"{file.path}: {error}") from None


def without(found: Iterable[File], others: Iterable[File]) -> tuple[File, ...]:
    """Files that are none of the others, under any of their names (TRAIN-2)."""
    taken = {each.path for each in others}
    return tuple(each for each in found if each.path not in taken)


def divided(texts: Sequence[Document], *, share: float, seed: int) -> Divided:
    """Hold out whole documents, drawn by a seed, until they have their share of all bytes
    (TRAIN-2).

    Of one document the end is held out. A share of 0 holds out nothing.

    Args:
        share: of all bytes, from 0 to below 1.

    Raises:
        ValueError: no text, or so little that nothing is left to learn from.
    """
    if not texts:
        raise ValueError("no text: every file is empty")
    if not share:
        return Divided(tuple(texts), ())
    if len(texts) == 1:
        (only,) = texts
        cut = len(only.text) - max(1, round(share * len(only.text)))
        if cut < 1:
            raise ValueError(f"{only.name}: {len(only.text)} bytes, too few to hold some out")
        name, text = only
        return Divided((Document(name, text[:cut]),), (Document(f"{name} from {cut}", text[cut:]),))
    held: set[int] = set()
    goal, size = share * sum(len(each.text) for each in texts), 0
    for i in generator(seed).permutation(len(texts))[:-1]:
        if held and size >= goal:
            break
        held.add(int(i))
        size += len(texts[int(i)].text)
    return Divided(
        tuple(each for i, each in enumerate(texts) if i not in held),
        tuple(each for i, each in enumerate(texts) if i in held),
    )
