"""Rows of a batch from text, each a pure function of a seed and the number of the batch.

Specified in specs/train.md (TRAIN-4 to TRAIN-6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from atlas_ref.train.text import Document
from atlas_ref.train.vocabulary import Ids, Vocabulary

#: The place in the data: numbers, lists and objects of JSON.
Place = Mapping[str, Any]


class Row(NamedTuple):
    """Tokens one after another.

    Attributes:
        ids (T + 1,): the last one is only predicted.
        starts (T + 1,): True where a document starts.
        place: behind it.
    """

    ids: Ids
    starts: Ids
    place: Place


class Rows(NamedTuple):
    """Rows of equal length (B, T + 1)."""

    ids: Ids
    starts: Ids

    @property
    def tokens(self) -> int:
        """Number of tokens that are predicted."""
        return int(self.ids.shape[0] * (self.ids.shape[1] - 1))


class Source(Protocol):
    """Text that rows are drawn from."""

    @property
    def name(self) -> str:
        """Name among the sources of a run."""

    def start(self) -> Place:
        """The place before the first row."""

    def row(self, place: Place, length: int, draw: np.random.Generator) -> Row:
        """The next row of `length` tokens."""


class Corpus(NamedTuple):
    """Documents end to end; a row begins anywhere, drawn anew each time (TRAIN-4).

    Attributes:
        name: of the source.
        ids (N,): of all documents.
        firsts (documents,): where each begins.
        size: bytes of their text.
    """

    name: str
    ids: Ids
    firsts: Ids
    size: int

    def start(self) -> Place:
        return {}

    def row(self, place: Place, length: int, draw: np.random.Generator) -> Row:
        at = int(draw.integers(len(self.ids) - length + 1))
        return Row(*self.cut(at, length), place)

    def cut(self, at: int, length: int) -> tuple[Ids, Ids]:
        """Tokens from a place on, and where documents start among them."""
        a, b = np.searchsorted(self.firsts, (at, at + length))
        starts = np.zeros(length, bool)
        starts[self.firsts[a:b] - at] = True
        return self.ids[at : at + length], starts


def corpus(name: str, texts: Iterable[Document], own: Vocabulary) -> Corpus:
    """Documents as tokens, end to end (TRAIN-3, TRAIN-4)."""
    parts, size = [], 0
    for each in texts:
        parts.append(own.encoded(each.text))
        size += len(each.text)
    lengths = [len(part) for part in parts]
    firsts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
    return Corpus(name, np.concatenate(parts) if parts else own.encoded(b""), firsts, size)


def require_long(source: Corpus, length: int) -> None:
    """Refuse a corpus that has no row (TRAIN-4).

    Raises:
        ValueError: names the source and both lengths.
    """
    if len(source.ids) < length:
        raise ValueError(
            f"{source.name}: {len(source.ids)} tokens, a row needs {length}; give more text or "
            "shorter rows"
        )


def drawn(seed: int, number: int) -> np.random.Generator:
    """The numbers of one batch: Philox with the seed as its key and the batch in its counter
    (TRAIN-4).
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, number]))


class Mixture(NamedTuple):
    """Rows of several sources by weights (TRAIN-5).

    Attributes:
        sources: their names differ.
        weights: shares of rows, which need not have the sum 1.
        rows, length: B, and T + 1.
        seed: of all draws.
    """

    sources: tuple[Source, ...]
    weights: tuple[float, ...]
    rows: int
    length: int
    seed: int

    def start(self) -> Place:
        """The place before the first batch."""
        return {"batch": 0, "places": {each.name: each.start() for each in self.sources}}

    def batch(self, place: Place) -> tuple[Rows, Place]:
        """The next batch, and the place behind it."""
        number, places = int(place["batch"]), dict(place["places"])
        draw = drawn(self.seed, number)
        shares = np.array(self.weights) / np.sum(self.weights)
        found = []
        for i in draw.choice(len(self.sources), size=self.rows, p=shares):
            source = self.sources[int(i)]
            row = source.row(places[source.name], self.length, draw)
            places[source.name] = row.place
            found.append(row)
        return stacked(found), {"batch": number + 1, "places": places}


class Streams(NamedTuple):
    """Rows that go on where those of the batch before ended (TRAIN-6).

    Row b begins at b N // B of N tokens, and goes round. Documents are not told apart: a state that
    is carried along knows one endless text.
    """

    source: Corpus
    rows: int
    length: int

    def start(self) -> Place:
        """The place before the first batch."""
        return {"batch": 0, "places": {}}

    def batch(self, place: Place) -> tuple[Rows, Place]:
        """The next batch, and the place behind it."""
        number, ids = int(place["batch"]), self.source.ids
        first = np.arange(self.rows) * len(ids) // self.rows + number * (self.length - 1)
        at = (first[:, None] + np.arange(self.length)) % len(ids)
        return Rows(ids[at], np.zeros(at.shape, bool)), {"batch": number + 1, "places": {}}


Sampler = Mixture | Streams


def stacked(rows: Sequence[Row]) -> Rows:
    """Rows as one batch."""
    return Rows(np.stack([each.ids for each in rows]), np.stack([each.starts for each in rows]))


def groups(batch: Rows) -> list[tuple[Rows, Ids | None]]:
    """Rows that run in one call, since documents start at the same tokens, and these tokens.

    The first token of a row starts a call in any case. None stands for no start.
    """
    inside = batch.starts[:, :-1].copy()
    inside[:, 0] = False
    patterns: dict[bytes, list[int]] = {}
    for i, each in enumerate(inside):
        patterns.setdefault(each.tobytes(), []).append(i)
    found = []
    for members in patterns.values():
        reset = inside[members[0]]
        found.append(
            (Rows(batch.ids[members], batch.starts[members]), reset if reset.any() else None)
        )
    return found


def spread(source: Corpus, *, rows: int, length: int, batches: int) -> list[Rows]:
    """Batches whose rows are spread evenly over a corpus, the same each time (TRAIN-11).

    There are no more rows than fit without overlapping, but one.
    """
    count = max(1, min(rows * batches, (len(source.ids) - 1) // (length - 1)))
    firsts = [i * (len(source.ids) - length) // max(1, count - 1) for i in range(count)]
    cut = [Row(*source.cut(at, length), {}) for at in firsts]
    return [stacked(cut[i : i + rows]) for i in range(0, count, rows)]
