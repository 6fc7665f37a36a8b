"""Cotangents of a group of chunks as data; plain twin: the gradient of
`atlas_ref.forms.chunked_plain`.

Cotangents of outputs, sums of cotangents, and the arrays of the results. Specified in
specs/chunkwise.md (CHUNK-16).
"""

from __future__ import annotations

from typing import NamedTuple

from atlas_ref.types import Array


class Cotangents(NamedTuple):
    """Cotangents of the outputs of a group; None where nothing depends on one."""

    y: Array = None
    M: Array = None
    S: Array = None
    reference: Array = None
    residuals: Array = None

    def of(self, memories: slice) -> Cotangents:
        """Those of some memories, as views."""
        return Cotangents(*(None if x is None else x[memories] for x in self))


class RowCotangents(NamedTuple):
    """Cotangents of D, of the last row of X, and of retain beside D (before_error)."""

    D: Array
    X_last: Array
    retain: Array

    def of(self, memories: slice) -> RowCotangents:
        """Those of some memories, as views."""
        X_last = None if self.X_last is None else self.X_last[memories]
        return RowCotangents(
            self.D[:, memories], X_last, None if self.retain is None else self.retain[:, memories]
        )


class Into(NamedTuple):
    """Cotangents of tokens.

    Those of keys and values (B, h + n, x) are added to, those of queries (B, n, d) overwritten.
    """

    keys: Array
    values: Array
    queries: Array

    def of(self, memories: slice) -> Into:
        """Those of some memories, as views."""
        return Into(*(x[memories] for x in self))


class CotangentSums(NamedTuple):
    """Sums of cotangents inside a group.

    They are those of D and of the last row of X, of the columns, the queries, residuals, states at
    the start of each chunk (from the reads alone) and of the references that are read.
    """

    D: Array
    X_last: Array
    phi: Array
    queries: Array
    E: Array
    states: Array
    references: Array
