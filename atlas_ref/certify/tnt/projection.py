"""Queries that keys move, on balls (CERT-19).

Written from TNT-7 to TNT-9. Only products and divisions are needed, and for kind orthogonal a
comparison of lengths, which makes P unknown where balls cannot decide it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flint import arb

from atlas_ref.certify.functions import inverse
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, filled, number, scaled, total, unknown, zeros
from atlas_ref.certify.tnt.settings import Memory


@dataclass
class Keys:
    """The keys that P is made of, between two tokens (TNT-11).

    Attributes:
        P: the sum of outer products of keys in range, or the projector onto their span.
        size: sum of their squared norms.
        rows: the last keys of the document, under range window.
    """

    P: Matrix
    size: Matrix
    rows: list[Matrix] = field(default_factory=list)


class Projection:
    """The matrix P of one memory.

    Args:
        d: axes of keys and queries.
        learned: the matrix of kind learned.
    """

    def __init__(self, m: Memory, d: int, learned: Matrix | None) -> None:
        self.m, self.d, self.learned = m, d, learned

    def nothing(self) -> Keys:
        """No key (TNT-8)."""
        return Keys(zeros(self.d, self.d), number(arb(0)))

    def left(self, inputs: Inputs, index: tuple[int, ...]) -> Keys:
        """The keys that a call before has left (TNT-11)."""
        keys = self.nothing()
        if self.summed:
            keys.P = inputs.get("in/P", *index)
            keys.size = inputs.optional("in/P_size", *index) or keys.size
        elif self.windowed:
            count = inputs.shape("in/P_keys")[-2]
            keys.rows = [inputs.get("in/P_keys", *index, i) for i in range(count)]
        return keys

    @property
    def windowed(self) -> bool:
        return self.m.kind == "sum_outer" and self.m.range == "window"

    @property
    def summed(self) -> bool:
        return self.m.kind in ("sum_outer", "orthogonal") and not self.windowed

    @property
    def sized(self) -> bool:
        """Whether P is over the sum of squared norms (TNT-9)."""
        return self.m.kind == "sum_outer" and self.m.norm == "sum_of_norms"

    def query(self, keys: Keys, at: int, key: Matrix, query: Matrix) -> Matrix:
        """P q of a token, whose key enters `keys` before or after it (TNT-8).

        Args:
            at: number of the token in its document.
        """
        if self.m.kind == "none":
            return query
        if self.learned is not None:
            return self.learned @ query
        if not self.windowed and self._empties(at):
            keys.P, keys.size, keys.rows = zeros(self.d, self.d), number(arb(0)), []
        if self.m.own == "exclusive":
            moved = self._moved(keys, query)
            self._enter(keys, key)
            return moved
        self._enter(keys, key)
        return self._moved(keys, query)

    def _empties(self, at: int) -> bool:
        """Whether the range of a token starts with it."""
        places = {"chunk": self.m.place(at), "shard": self.m.in_shard(at), "sequence": at}
        return places[self.m.range] == 0

    def _enter(self, keys: Keys, key: Matrix) -> None:
        if self.windowed:
            keys.rows = [*keys.rows, key][-(self.m.window or 1) :]
            return
        if self.m.kind == "orthogonal":
            keys.P = keys.P + self._rest(keys.P, key)
            return
        keys.P = keys.P + self._outer(key)
        keys.size = keys.size + key.T @ key

    def _outer(self, key: Matrix) -> Matrix:
        """k k^T, over its squared norm under per_key; 0 for a key of zeros (TNT-9)."""
        outer = key @ key.T
        return over(outer, key.T @ key) if self.m.norm == "per_key" else outer

    def _rest(self, P: Matrix, key: Matrix) -> Matrix:
        """u u^T of the rest u of a key freed twice of the keys in P (TNT-7).

        It is 0 for a rest below `dependent` of its key.
        """
        rest = key - P @ key
        rest = rest - P @ rest
        square, least = (x.T @ x for x in (rest, key))
        length, limit = square.value[0, 0], least.value[0, 0] * arb(self.m.dependent) ** 2
        if length <= limit:
            return zeros(self.d, self.d)
        outer = rest @ rest.T
        return over(outer, square) if length > limit else unknown(outer)

    def _moved(self, keys: Keys, query: Matrix) -> Matrix:
        """P q from the sum, or from the last keys."""
        P, size = keys.P, keys.size
        if self.windowed:
            P = total([self._outer(key) for key in keys.rows], self.d, self.d)
            size = total([key.T @ key for key in keys.rows], 1, 1)
        moved = P @ query
        return over(moved, size) if self.sized else moved

    def state(self, keys: Keys) -> dict[str, Matrix]:
        """The keys that the next call finds, by name (TNTCASE-4)."""
        if self.windowed:
            reach = (self.m.window or 1) - (self.m.own == "inclusive")
            last = keys.rows[max(0, len(keys.rows) - reach) :]
            entries = [x for key in last for x in key.value.entries()]
            return {"P_keys": Matrix(filled(len(last), self.d, entries))}
        if not self.summed:
            return {}
        return {"P": keys.P, **({"P_size": keys.size} if self.sized else {})}


def over(x: Matrix, size: Matrix) -> Matrix:
    """x / size, and 0 for a size that is not above 0 (TNT-9)."""
    if size.value[0, 0] > 0:
        return scaled(inverse(size), x)
    return zeros(x.rows, x.columns) if size.value[0, 0] <= 0 else unknown(x)
