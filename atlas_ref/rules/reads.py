"""Reads of a sequence in the order of tokens; queries of one memory read it at once."""

from __future__ import annotations

from typing import Any

from atlas_ref.rules.rule import Rule
from atlas_ref.types import Array
from tape import ops


class Reads:
    """Reads in the order of tokens; queries of one memory read it at once, with the same bits
    (CMS-5).
    """

    def __init__(self, rule: Rule, config: Any) -> None:
        self.rule, self.config = rule, config
        self.state: Any = None
        self.queries: list[Array] = []
        self.pieces: list[Array] = []  # (..., n, d_out)

    def add(self, state: Any, *queries: Array) -> None:
        if self.queries and state.M is not self.state.M:
            self._read()
        self.state = state
        self.queries += queries

    def close(self, memory: Array) -> None:
        """Read what waits, unless the next query reads `memory` and waits for the same one.

        Reads are thus recorded before the next write, as they would be one by one.
        """
        if self.queries and self.state.M is not memory:
            self._read()

    def _read(self) -> None:
        if len(self.queries) == 1:
            y = ops.expand_dims(self.rule.read(self.config, self.state, self.queries[0]), -2)
        else:
            y = ops.moveaxis(
                self.rule.read(self.config, self.state, ops.stack(self.queries, axis=0)), 0, -2
            )
        self.pieces.append(y)
        self.queries = []

    def all(self) -> Array:
        """Every read (..., T, d_out)."""
        if self.queries:
            self._read()
        return self.pieces[0] if len(self.pieces) == 1 else ops.concatenate(self.pieces, axis=-2)
