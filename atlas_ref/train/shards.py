"""Parquet shards of documents, read a row group at a time, by the extra `text`.

Specified in specs/train.md (TRAIN-5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from atlas_ref import messages
from atlas_ref.rules.checks import generator
from atlas_ref.train.sampler import Place, Row
from atlas_ref.train.text import Document, files_of
from atlas_ref.train.vocabulary import Ids, Vocabulary

#: Ending of the name of a shard, and the column of its texts.
SUFFIX, COLUMN = ".parquet", "text"


def shards_of(path: str, *, only: Sequence[str] = ("*",), skip: Sequence[str] = ()) -> list[str]:
    """The Parquet shards of a path: itself, or all files of a folder; none for text (TRAIN-5).

    Args:
        only, skip: of `text.files_of`.

    Raises:
        ValueError: names a file of text beside shards.
    """
    if not os.path.isdir(path):
        return [path] if path.endswith(SUFFIX) else []
    found = [each.path for each in files_of([path], only=only, skip=skip)]
    inside = [each for each in found if each.endswith(SUFFIX)]
    if inside and len(inside) < len(found):
        other = next(each for each in found if not each.endswith(SUFFIX))
        raise ValueError(f"{other}: text beside Parquet shards; give one kind of files")
    return inside


class Shards:
    """Documents of shards, packed end to end in an order of their row groups (TRAIN-5).

    The place is an epoch, the number of a row group in its order, a document in it and a token.

    Attributes:
        name: of the source.
        about: numbers of files, row groups and texts, in words.
        sizes: texts and bytes of each row group, which tell whether the data is other data.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        words: Vocabulary,
        *,
        share: float,
        seed: int,
        shortest: int = 1,
    ) -> None:
        """Open shards.

        Args:
            paths: of the files, in an order of their own.
            share, seed: of row groups that are held out; at least one where the share is above 0.
            shortest: characters of the shortest text that is read.

        Raises:
            ValueError: names the file and what is wrong with it, or the extra that is missing.
        """
        self.name, self.words, self.seed, self.shortest = name, words, seed, shortest
        files = [(path, _opened(path)) for path in paths]
        self.groups = [
            (path, file, i) for path, file in files for i in range(file.metadata.num_row_groups)
        ]
        count = len(self.groups)
        order = [int(each) for each in generator(seed).permutation(count)]
        kept = max(1, round(share * count)) if share else 0
        if kept >= count:
            raise ValueError(
                f"{name}: {count} row groups, of which {kept} would be held out and none learnt "
                "from; a share of 0 holds out nothing"
            )
        self.kept, self.train = order[:kept], sorted(order[kept:])
        parts = [file.metadata.row_group(i) for _, file, i in self.groups]
        self.sizes = [(each.num_rows, each.total_byte_size) for each in parts]
        texts = sum(rows for rows, _ in self.sizes)
        self.about = f"{len(files)} files, {count} row groups, {texts} texts"
        self._last: tuple[int, list[str]] = (-1, [])
        self._tokens: tuple[Any, Ids] = (None, np.zeros(0, np.uint8))

    def start(self) -> Place:
        """The place before the first document."""
        return {"epoch": 0, "group": 0, "document": 0, "token": 0}

    def row(self, place: Place, length: int, draw: np.random.Generator) -> Row:
        """The next `length` tokens; the one after them begins the next row."""
        parts: list[Ids] = []
        starts = np.zeros(length, bool)
        at, filled, empty = dict(place), 0, 0
        while filled < length:
            texts = self._texts(at)
            if at["document"] >= len(texts):
                at = self._next_group(at)
                empty = 0 if texts else empty + 1
                if empty > len(self.train):
                    raise ValueError(f"{self.name}: no text of {self.shortest} characters")
                continue
            ids = self._encoded(at, texts)
            taken = ids[at["token"] : at["token"] + length - filled]
            starts[filled] |= at["token"] == 0 and len(taken) > 0
            parts.append(taken)
            filled += len(taken)
            at["token"] += len(taken)
            if at["token"] >= len(ids):
                at |= {"document": at["document"] + 1, "token": 0}
        return Row(np.concatenate(parts), starts, at)

    def held(self, wanted: int) -> Iterator[Document]:
        """Held-out documents, until they have so many bytes."""
        return self._some(self.kept, wanted)

    def learnt(self, wanted: int) -> Iterator[Document]:
        """Documents that are learnt from, until they have so many bytes."""
        return self._some(self.train, wanted)

    def _some(self, groups: Iterable[int], wanted: int) -> Iterator[Document]:
        for group in groups:
            for i, text in enumerate(self._group(group)):
                if wanted <= 0:
                    return
                data = text.encode()
                wanted -= len(data)
                yield Document(f"{self.name} {group}:{i}", data)

    def _texts(self, at: Place) -> list[str]:
        draw = np.random.Generator(
            np.random.Philox(key=self.seed, counter=[0, 0, 1, int(at["epoch"])])
        )
        order = draw.permutation(len(self.train))
        return self._group(self.train[int(order[int(at["group"])])])

    def _next_group(self, at: Place) -> dict[str, Any]:
        last = at["group"] + 1 >= len(self.train)
        return {
            "epoch": at["epoch"] + last,
            "group": 0 if last else at["group"] + 1,
            "document": 0,
            "token": 0,
        }

    def _group(self, number: int) -> list[str]:
        if self._last[0] != number:
            path, file, own = self.groups[number]
            try:
                found = file.read_row_group(own, columns=[COLUMN]).column(0).to_pylist()
            except Exception as error:  # of the library, whatever kind
                raise ValueError(f"{path}: row group {own}: {_line(error)}") from None
            other = next((each for each in found if not isinstance(each, str | None)), None)
            if other is not None:
                raise ValueError(f"{path}: column {COLUMN!r} has {type(other).__name__}, no texts")
            texts = [each for each in found if each and len(each) >= self.shortest]
            self._last = (number, texts)
        return self._last[1]

    def _encoded(self, at: Place, texts: list[str]) -> Ids:
        key = (at["epoch"], at["group"], at["document"])
        if self._tokens[0] != key:
            self._tokens = (key, self.words.encoded(texts[at["document"]].encode()))
        return self._tokens[1]


def _opened(path: str) -> Any:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ValueError(
            f"{path}: Parquet needs the package pyarrow: {messages.install('text')}"
        ) from None
    try:
        file = parquet.ParquetFile(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or _line(error)}") from None
    except Exception as error:  # of the library, whatever kind
        raise ValueError(f"{path}: not a Parquet file: {_line(error)}") from None
    if COLUMN not in file.schema_arrow.names:
        raise ValueError(
            f"{path}: no column {COLUMN!r}, found {', '.join(file.schema_arrow.names)}"
        )
    return file


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
