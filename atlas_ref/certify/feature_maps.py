"""Feature maps on balls (PHI-2 to PHI-10, PHI-18)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flint import arb

from atlas_ref.certify.functions import activated, cosines, shifted_elu
from atlas_ref.certify.matrix import Matrix, filled, hadamard, number, pick, scaled, stacked, total

Parameters = Mapping[str, Matrix]


def mapped(settings: Any, parameters: Parameters, x: Matrix) -> Matrix:
    """phi(x) of one column.

    Args:
        settings: the `feature_map` object of the case.
        parameters: its tensors, named as in the case: W, b, W1, W2, c, H1, H2, H3, proj.
        x (d_in x 1).

    Returns:
        (d_phi x 1).
    """
    return _MAPS[settings.kind](settings, parameters, x)


def _fourier(settings: Any, p: Parameters, x: Matrix) -> Matrix:
    return cosines(p["W"] @ x + p["b"]).times((arb(2) / p["b"].rows).sqrt())


def _residual(settings: Any, p: Parameters, x: Matrix) -> Matrix:
    return x + p["W2"] @ activated(p["W1"] @ x, settings.activation)


def _polynomial(settings: Any, p: Parameters, x: Matrix) -> Matrix:
    """Monomials by degree and then in lexicographic order, each times sqrt(a_n multinomial).

    Source: PHI-7.
    """
    coefficients = settings.coefficients
    parts = []
    for n in range(settings.degree + 1):
        a = (
            arb(coefficients[n])
            if coefficients is not None
            else (arb(1) / math.factorial(n) if n else arb(0))
        )
        if n == 0 and a.is_zero():
            continue
        tuples = list(itertools.combinations_with_replacement(range(x.rows), n))
        parts.append(
            hadamard(
                _constants([(a * _multinomial(each)).sqrt() for each in tuples]),
                _monomials(x, tuples),
            )
        )
    return stacked(parts)


def _multinomial(indices: Sequence[int]) -> int:
    """n! / (m_1! ... m_d!) with m_r the number of indices equal to r."""
    return math.factorial(len(indices)) // math.prod(
        math.factorial(len(list(same))) for _, same in itertools.groupby(indices)
    )


def _constants(values: Sequence[arb]) -> Matrix:
    return Matrix(filled(len(values), 1, values))


def _monomials(x: Matrix, tuples: Sequence[tuple[int, ...]]) -> Matrix:
    """x_i1 ... x_in for every tuple of one length, as a column."""
    product = _constants([arb(1)] * len(tuples))
    for place in range(len(tuples[0])):
        product = hadamard(product, pick(x, [each[place] for each in tuples]))
    return product


def _weightless(settings: Any, p: Parameters, x: Matrix) -> Matrix:
    return stacked(
        [x, _monomials(x, list(itertools.combinations_with_replacement(range(x.rows), 2)))]
    )


def _elementwise(settings: Any, p: Parameters, x: Matrix) -> Matrix:
    powers = list(itertools.accumulate([x] * settings.degree, hadamard))
    return total(powers, x.rows, 1)


def _sketch(settings: Any, p: Parameters, x: Matrix) -> Matrix:
    return p["proj"].T @ stacked(
        [x, _monomials(x, list(itertools.product(range(x.rows), repeat=2)))]
    )


def _tensor_sketch(settings: Any, p: Parameters, x: Matrix) -> Matrix:
    """Sums over all tuples of buckets whose numbers add up to that of the entry, modulo them.

    Source: PHI-18.
    """
    sketches = [p[f"H{n + 1}"] @ x for n in range(settings.degree)]
    blocks, product = [number(arb(1)), x], sketches[0]
    for sketch in sketches[1:]:
        m = sketch.rows
        terms = [
            hadamard(pick(product, [s] * m), pick(sketch, [(r - s) % m for r in range(m)]))
            for s in range(m)
        ]
        product = total(terms, m, 1)
        blocks.append(product)
    weighted = [scaled(pick(p["c"], [n]), block) for n, block in enumerate(blocks)]
    return p["proj"].T @ stacked(weighted)


_MAPS: dict[str, Callable[[Any, Parameters, Matrix], Matrix]] = {
    "identity": lambda settings, p, x: x,
    "linear": lambda settings, p, x: p["W"] @ x,
    "random_fourier": _fourier,
    "elu": lambda settings, p, x: shifted_elu(x),
    "residual_mlp": _residual,
    "polynomial": _polynomial,
    "monomials": _weightless,
    "elementwise": _elementwise,
    "sketch": _sketch,
    "tensor_sketch": _tensor_sketch,
}
