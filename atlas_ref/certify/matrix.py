"""Matrices of balls with their parents: values enclosed, and derivatives by reverse accumulation.

Every number is a ball (midpoint and radius) that contains the real number it stands for, at the
precision of `flint.ctx`. A matrix made from another one that is `live` keeps, per parent, the
pullback of a cotangent; `cotangents` runs them from the last to the first. Nothing here knows
`tape`. Specified in specs/certify.md, CERT-2 and CERT-9.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from flint import arb, arb_mat

Pull = Callable[[arb_mat], arb_mat]

_count = itertools.count()


def mark() -> int:
    """A place in the sequence of all matrices, behind those that exist."""
    return next(_count)


class Matrix:
    """One matrix of balls; a vector is a column, a number 1 x 1.

    Attributes:
        value: the balls.
        live: whether derivatives by this matrix, or by an ancestor of it, are computed.
        parents: its live arguments, each with the pullback of a cotangent of this matrix.
        order: place in the sequence of all matrices, so that later ones are visited first.
    """

    __slots__ = ("live", "order", "parents", "value")

    def __init__(self, value: arb_mat, *parents: tuple[Matrix, Pull], live: bool = False) -> None:
        self.value = value
        self.parents: tuple[tuple[Matrix, Pull], ...] = tuple(
            each for each in parents if each[0].live
        )
        self.live: bool = live or bool(self.parents)
        self.order = next(_count)

    @property
    def rows(self) -> int:
        return self.value.nrows()

    @property
    def columns(self) -> int:
        return self.value.ncols()

    @property
    def T(self) -> Matrix:
        return Matrix(self.value.transpose(), (self, lambda g: g.transpose()))

    def __add__(self, other: Matrix) -> Matrix:
        return Matrix(self.value + other.value, (self, _same), (other, _same))

    def __sub__(self, other: Matrix) -> Matrix:
        return Matrix(self.value - other.value, (self, _same), (other, lambda g: -g))

    def __neg__(self) -> Matrix:
        return Matrix(-self.value, (self, lambda g: -g))

    def __matmul__(self, other: Matrix) -> Matrix:
        a, b = self.value, other.value
        return Matrix(
            a * b, (self, lambda g: g * b.transpose()), (other, lambda g: a.transpose() * g)
        )

    def times(self, number: arb) -> Matrix:
        """The matrix times a constant."""
        return Matrix(self.value * number, (self, lambda g: g * number))

    def plus(self, number: arb) -> Matrix:
        """A constant added to every entry."""
        return Matrix(
            filled(self.rows, self.columns, [x + number for x in self.value.entries()]),
            (self, _same),
        )


def _same(g: arb_mat) -> arb_mat:
    return g


# -- making matrices -------------------------------------------------------------------------------


def filled(rows: int, columns: int, entries: Sequence[arb]) -> arb_mat:
    """A matrix from its entries, row by row."""
    return arb_mat(rows, columns, list(entries))


def number(value: arb) -> Matrix:
    """A constant, 1 x 1."""
    return Matrix(arb_mat(1, 1, [value]))


def zeros(rows: int, columns: int) -> Matrix:
    """Exact zeros."""
    return Matrix(arb_mat(rows, columns))


def unknown(matrix: Matrix) -> Matrix:
    """A matrix of the shape of another, of which neither the value nor the derivative is known."""

    def nothing(_: arb_mat) -> arb_mat:
        return filled(matrix.rows, matrix.columns, [arb.nan()] * (matrix.rows * matrix.columns))

    return Matrix(nothing(matrix.value), (matrix, nothing))


def sane(matrix: Matrix) -> Matrix:
    """The matrix, or `unknown` where a radius exceeds both 1 and every midpoint.

    Further steps would raise such radii to powers.
    """
    entries = matrix.value.entries()
    if not all(x.is_finite() for x in entries):
        return unknown(matrix)
    wide = [x.rad() for x in entries if x.rad() > 1]
    if any(all(abs(x.mid()) < radius for x in entries) for radius in wide):
        return unknown(matrix)
    return matrix


# -- operations ------------------------------------------------------------------------------------


def scaled(gate: Matrix, matrix: Matrix) -> Matrix:
    """gate * matrix for a number, diag(gate) matrix for a column."""
    g, m = gate.value, matrix.value
    if gate.rows == 1:
        factor = g[0, 0]
        return Matrix(
            m * factor,
            (gate, lambda c: arb_mat(1, 1, [_dot(c, m)])),
            (matrix, lambda c: c * factor),
        )
    return Matrix(
        _row_scaled(g, m), (gate, lambda c: _row_dots(c, m)), (matrix, lambda c: _row_scaled(g, c))
    )


def hadamard(a: Matrix, b: Matrix) -> Matrix:
    """The product entry by entry."""
    return Matrix(
        _products(a.value, b.value),
        (a, lambda g: _products(g, b.value)),
        (b, lambda g: _products(g, a.value)),
    )


def each(matrix: Matrix, function: Callable[[arb], arb], slope: Callable[[arb], arb]) -> Matrix:
    """A function of every entry; `slope` is its derivative."""
    value = matrix.value
    result = filled(matrix.rows, matrix.columns, [function(x) for x in value.entries()])

    def pull(g: arb_mat) -> arb_mat:
        return _products(
            g, filled(value.nrows(), value.ncols(), [slope(x) for x in value.entries()])
        )

    return Matrix(result, (matrix, pull))


def solved(A: Matrix, b: Matrix) -> Matrix:
    """A^-1 b; unknown where the balls of A hold a matrix that has no inverse."""
    a = A.value
    try:
        x = a.solve(b.value)
    except ZeroDivisionError:
        return unknown(b)

    def back(g: arb_mat) -> arb_mat:
        return a.transpose().solve(g)

    return Matrix(x, (A, lambda g: -(back(g) * x.transpose())), (b, back))


def pick(column: Matrix, rows: Sequence[int]) -> Matrix:
    """The entries of a column at `rows`, in which a row may stand several times."""
    n = column.rows

    def pull(g: arb_mat) -> arb_mat:
        back = [arb(0)] * n
        for i, row in enumerate(rows):
            back[row] = back[row] + g[i, 0]
        return filled(n, 1, back)

    return Matrix(filled(len(rows), 1, [column.value[row, 0] for row in rows]), (column, pull))


def stacked(columns: Sequence[Matrix]) -> Matrix:
    """Columns below each other."""
    entries = [x for column in columns for x in column.value.entries()]
    ends = list(itertools.accumulate(column.rows for column in columns))

    def part(first: int, last: int) -> Pull:
        return lambda g: filled(last - first, 1, g.entries()[first:last])

    pulls = [
        (column, part(end - column.rows, end)) for column, end in zip(columns, ends, strict=True)
    ]
    return Matrix(filled(len(entries), 1, entries), *pulls)


def total(terms: Sequence[Matrix], rows: int, columns: int) -> Matrix:
    """The sum of matrices of one shape; exact zeros where there is none."""
    result = zeros(rows, columns) if not terms else terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def norm(matrix: Matrix) -> Matrix:
    """The Frobenius norm, 1 x 1 (NS-21).

    Its derivative is the matrix over the norm, 0 where the matrix is exactly 0. Where the ball of
    the norm reaches 0, every entry of the quotient is enclosed by [-1, 1], which holds for each
    matrix in it.
    """
    value = matrix.value
    squares = _dot(value, value).nonnegative_part()
    length = squares.sqrt()

    def pull(g: arb_mat) -> arb_mat:
        if length.is_zero():
            return arb_mat(value.nrows(), value.ncols())
        if length > 0:
            return value * (g[0, 0] / length)
        return filled(value.nrows(), value.ncols(), [g[0, 0] * arb(0, 1)] * len(value.entries()))

    return Matrix(arb_mat(1, 1, [length]), (matrix, pull))


def _dot(a: arb_mat, b: arb_mat) -> arb:
    n = a.nrows() * a.ncols()
    return (arb_mat(1, n, a.entries()) * arb_mat(n, 1, b.entries()))[0, 0]


def _row_dots(a: arb_mat, b: arb_mat) -> arb_mat:
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    return filled(a.nrows(), 1, [_dot(arb_mat([left]), arb_mat([right])) for left, right in pairs])


def _row_scaled(gate: arb_mat, matrix: arb_mat) -> arb_mat:
    n = matrix.ncols()
    return filled(matrix.nrows(), n, [x * gate[i // n, 0] for i, x in enumerate(matrix.entries())])


def _products(a: arb_mat, b: arb_mat) -> arb_mat:
    return filled(
        a.nrows(), a.ncols(), [x * y for x, y in zip(a.entries(), b.entries(), strict=True)]
    )


# -- derivatives -----------------------------------------------------------------------------------


def cotangents(
    seeds: Sequence[tuple[Matrix, arb_mat]],
    leaves: Sequence[Matrix],
    visit: Callable[[int], None] = lambda order: None,
) -> list[arb_mat | None]:
    """The derivative of the sum of <matrix, seed> by each leaf, None where it has none (CERT-9).

    Args:
        visit: called with the order of each matrix, from the last to the first.
    """
    nodes: dict[int, Matrix] = {}
    waiting: dict[int, arb_mat] = {}
    queue: list[int] = []
    orders = {each.order for each in leaves}
    results: dict[int, arb_mat] = {}

    def arrives(matrix: Matrix, g: arb_mat) -> None:
        if matrix.order in waiting:
            waiting[matrix.order] = waiting[matrix.order] + g
            return
        nodes[matrix.order] = matrix
        waiting[matrix.order] = g
        heapq.heappush(queue, -matrix.order)

    for matrix, seed in seeds:
        if matrix.live:
            arrives(matrix, seed)
    while queue:
        order = -heapq.heappop(queue)
        visit(order)
        matrix, g = nodes.pop(order), waiting.pop(order)
        if order in orders:
            results[order] = g
        for parent, pull in matrix.parents:
            arrives(parent, pull(g))
    return [results.get(each.order) for each in leaves]
