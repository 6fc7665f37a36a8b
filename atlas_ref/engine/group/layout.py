"""A group of chunks as data: its layout, arguments, arrays and end; plain twin:
`atlas_ref.forms.chunked_plain`.

Specified in specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

from typing import NamedTuple

from atlas_ref.engine.group.coefficients import GateRows
from atlas_ref.types import Array


class Layout(NamedTuple):
    """Layout of a group of chunks of equal length.

    Attributes:
        chunk: C, tokens of each chunk.
        window: c, lags of the weights.
        refresh: per chunk, whether the reference becomes the memory before it.
        reference: "running", "frozen" or "zero".
        before_error: whether that reference decays first.
        read: "after" or "before" the write of the token; "reference" for the memory at the last
            refresh; "none".
        carry: whether window tokens of older spans keep the residual of their arrival.
        position: place of the first token in its span; under carry it says which tokens of the
            history are of this span.
    """

    chunk: int
    window: int
    refresh: tuple[bool, ...]
    reference: str
    before_error: bool
    read: str
    carry: bool
    position: int

    @property
    def running(self) -> bool:
        return self.reference == "running"

    @property
    def stride(self) -> int:
        """Columns between neighbouring windows, which share none under a running reference."""
        return self.window if self.running else 1

    @property
    def columns(self) -> int:
        return self.chunk * self.window if self.running else self.chunk + self.window - 1

    def older(self, first: int) -> int:
        """Number of window tokens before a chunk where the reference may change that belong to older
        spans (WINDOW-13).
        """
        h = self.window - 1
        return h - min(h, self.position if first == 0 else 0)

    @property
    def keeps_reference(self) -> bool:
        return self.reference == "frozen" or self.read == "reference"


class Arrays(NamedTuple):
    """The arguments of a group: n tokens after a history of h = c - 1, leading axes joined.

    keys (B, h + n, d), values (B, h + n, o), queries (B, n, d), gates (B, n, G), weights (B or 1,
    n, c), M, S and reference (B, o, d), residuals (B, h, o) of the history under carry. Those that
    the layout does not use are None.

    A segment of groups may have the history apart: earlier_keys (B, h, d), earlier_values (B, h,
    o), with keys and values (B, n, x). A group has it in front.
    """

    keys: Array
    values: Array
    queries: Array
    retain: Array
    momentum: Array
    rate_in: Array
    rate_out: Array
    weights: Array
    M: Array
    S: Array
    reference: Array
    residuals: Array
    earlier_keys: Array = None
    earlier_values: Array = None

    def of(self, memories: slice) -> Arrays:
        """The arguments of some memories, as views; weights of all memories stay as they are."""
        return Arrays(*(x if x is None or x.shape[0] == 1 else x[memories] for x in self))


class End(NamedTuple):
    """End of a group, start of the next: M, S, the reference, the last c residuals.

    S is there with momentum, the residuals under carry.
    """

    M: Array
    S: Array = None
    reference: Array = None
    residuals: Array = None


class Group(NamedTuple):
    """The arrays of a masked group; matrices are transposed, [M^T | S^T] side by side (d, bases o).

    Attributes:
        gates: of all tokens, by position in the chunk.
        D, X (C + 1, B, g, G, bases + K): coefficient rows.
        phi (B, g, K, d): features of the columns.
        queries (B, g, C, d).
        scores (B, g, C, K): Psi Phi^T. A (B, g, G, C, K). Both None where reads do not need them.
        keyed (B, g, K, K): Phi Phi^T. inverse (B, g, G, K, K). Both None unless the reference is
            running.
        E (B, g, K, o): residuals. scaled (B, g, K, bases o): [-D_C E | X_C E].
        asked, answered (B, g, C or K, bases o): products of the queries with the states, and, under
            the running reference, of the keys.
        states (B, g + 1, d, bases o): at the start of each chunk and after the last. references (B,
        g, d, o). last_reference (B, d, o), arrivals (B, h + n, o).
    """

    gates: GateRows
    D: Array
    X: Array
    phi: Array
    queries: Array
    scores: Array
    A: Array
    keyed: Array
    inverse: Array
    E: Array
    scaled: Array
    asked: Array
    answered: Array
    states: Array
    references: Array
    last_reference: Array
    arrivals: Array
