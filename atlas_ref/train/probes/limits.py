"""What theory says of the capacity of a memory: exact limits, and expectations for random pairs.

    limit of exact recall = rank of the features, or parameters / d_v
    expected reads of pair i:  y_i = a_i v_i + noise,    E |noise|^2 = n_i

Specified in specs/probes.md (PROBE-8 to PROBE-13). What is measured:
`atlas_ref.train.probes.capacity`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, roots_jacobi

from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import FeatureMap
from atlas_ref.train.probes.capacity import LEAST_SQUARES, Settings
from atlas_ref.types import Array

#: Nodes of the quadrature over a cosine (PROBE-13).
NODES = 60


def limit(settings: Settings) -> int:
    """Most pairs with arbitrary values that the memory can read back exactly (PROBE-8 to PROBE-10).

    The rank of the features for one matrix; for another function its fast parameters over d_v.
    """
    if settings.memory == LEAST_SQUARES or settings.rule.in_family:
        return rank(
            settings.feature_map,
            settings.d_k,
            features=settings.features,
            unit=settings.keys == "unit",
        )
    shapes = settings.config(1).fast_shapes.values()
    return int(sum(math.prod(shape) for shape in shapes)) // settings.d_v


def rank(
    feature_map: FeatureMap, d_k: int, *, features: int | None = None, unit: bool = True
) -> int:
    """Dimension of the space that phi of all keys spans (PROBE-8, PROBE-9).

    For polynomial and monomials with n the degrees that have a column of their own:

        unit keys: sum of C(d_k + n - 1, n) over the largest even and the largest odd n
        free keys: sum of C(d_k + n - 1, n) over all n

    Args:
        d_k: length of a key.
        features: columns of linear, random_fourier and sketch; d_k when not given.
        unit: whether all keys have length 1.
    """
    columns = features or d_k
    match feature_map.kind:
        case "polynomial":
            degrees = [n for n, a in enumerate(feature_map.weights()) if a > 0]
        case "monomials":
            degrees = [1, 2]
        case "linear":
            return min(columns, d_k)
        case "random_fourier":
            return columns
        case "tensor_sketch":
            raise ValueError(
                "feature_map tensor_sketch: no rank is stated, it depends on the drawn hashes"
            )
        case "sketch":
            return min(columns, rank(feature_maps.Monomials(), d_k))
        case _:
            return d_k
    if unit:
        degrees = [max(same) for odd in (0, 1) if (same := [n for n in degrees if n % 2 == odd])]
    return sum(math.comb(d_k + n - 1, n) for n in degrees)


class Moments(NamedTuple):
    """Expectations of the read of each pair, over random pairs (PROBE-11).

    Attributes:
        signal (N,): a_i = E <y_i, v_i>.
        noise (N,): n_i = E |y_i|^2 - E |y_i|^2 of the part a_i v_i.
    """

    signal: Array
    noise: Array

    @property
    def error(self) -> Array:
        """E |y_i - v_i|^2 = (1 - a_i)^2 + n_i (N,)."""
        return (1.0 - self.signal) ** 2 + self.noise


def moments(settings: Settings, count: int) -> Moments | None:
    """What random pairs of unit length lead to; None where no formula is known (PROBE-11, PROBE-12).

    Least squares with any map; the Hebbian sum of some passes, and one pass of the Delta rule, with
    any retain gate of 1, of keys that no map has lifted.
    """
    if settings.keys != "unit" or settings.feature_map.kind == "tensor_sketch":
        return None
    if settings.memory == LEAST_SQUARES:
        return _least_squares(limit(settings), count)
    if not _isotropic(settings):
        return None
    config = settings.config(count)
    if not settings.rule.has_error:
        return _hebbian(settings.d_k, count, settings.passes)
    if settings.passes > 1 or not _is_delta(settings, config):
        return None
    convention = config.convention
    step = 1.0 if settings.step_size is None else _step(settings.step_size, convention, settings)
    return _delta(settings.d_k, count, step)


def _isotropic(settings: Settings) -> bool:
    """Whether keys of a matrix memory are uniform, every token writes and nothing fades."""
    return (
        settings.rule.in_family
        and settings.feature_map.kind == "identity"
        and settings.period == 1
        and settings.retain == 1.0
        and settings.chosen_convention.query_scale == 1.0
        and settings.chosen_convention.read != "chunk_start"
    )


def _is_delta(settings: Settings, config: Any) -> bool:
    """Whether the rule is the Delta rule under these settings."""
    c = config.convention
    return (
        settings.rule.window(config) == 1
        and settings.momentum == 0.0
        and c.reference == "running"
        and not c.has_newton_schulz
        and (c.direction, c.value_sign) == ("descent", "minus")
    )


def _step(gate: float, convention: Any, settings: Settings) -> float:
    """s a b of one gate (OMEGA-7)."""
    scale = convention.gradient_scale
    s = 2.0 / settings.d_v if isinstance(scale, str) else float(scale)
    return s * (gate**2 if convention.rate == "both" else gate)


def _hebbian(d: int, count: int, passes: int) -> Moments:
    """a = n, noise = n^2 (N - 1) / d after n passes (PROBE-11)."""
    signal = np.full(count, float(passes))
    return Moments(signal, signal**2 * (count - 1) / d)


def _least_squares(rank_of: int, count: int) -> Moments:
    """a = r / N, noise = a (1 - a), with r the smaller of rank and N (PROBE-11)."""
    share = np.full(count, min(rank_of, count) / count)
    return Moments(share, share * (1.0 - share))


def _delta(d: int, count: int, step: float) -> Moments:
    """One pass of the Delta rule with a step b on unit keys (PROBE-12).

    With F the expected square of the memory's norm, and A = a_i and E = E |y_i|^2 of a pair that
    was written before, at each later token

        F <- F (1 - (2 b - b^2) / d) + b^2
        E <- E (1 - 2 b / d + 2 b^2 / (d (d + 2))) + b^2 (F / (d (d + 2)) + 1 / d)
        A <- A (1 - b / d)

    and at its own A = b, E = (1 - b)^2 F / d + b^2.
    """
    b, later = step, np.arange(count)[::-1]  # tokens after that of pair i
    kept = 1.0 - (2.0 * b - b**2) / d
    with np.errstate(over="ignore", invalid="ignore"):  # a step above 2 grows without end
        F = np.empty(count)  # before each token
        total = 0.0
        for t in range(count):
            F[t], total = total, total * kept + b**2
        ratio = 1.0 - 2.0 * b / d + 2.0 * b**2 / (d * (d + 2))
        grown = b**2 * (F / (d * (d + 2)) + 1.0 / d) * ratio**later  # as it stands at the end
        after = np.append(np.cumsum(grown[:0:-1])[::-1], 0.0)
        square = ((1.0 - b) ** 2 * F / d + b**2) * ratio**later + after
        signal = b * (1.0 - b / d) ** later
    return Moments(signal, square - signal**2)


def by_angle(found: Moments, d_v: int) -> float | None:
    """Expected number of pairs recalled by angle (PROBE-13); None for values of one entry.

    sum_i E_u [E_w Phi(k (a_i + sqrt(n) u) / sqrt(k^2 n' + n (1 - u^2) / (d_v - 1)))]^(N - 1),
    k = sqrt((1 - w) / (1 + w)),    n' = n_i / (N - 1),    n = n_i - n'

    with u and w cosines between independent directions.

    Args:
        found: moments of N pairs.
        d_v: length of a value.
    """
    if d_v == 1:
        return None
    N = len(found.signal)
    if N == 1:
        return float(found.signal[0] > 0)
    rows = np.stack([found.signal, np.maximum(found.noise, 0.0)], axis=1)
    rows, times = np.unique(rows, axis=0, return_counts=True)
    u, weights = _cosines(d_v)
    k = np.sqrt((1.0 - u) / (1.0 + u))
    total = 0.0
    for (a, n_i), count in zip(rows, times, strict=True):
        of_one = n_i / (N - 1)
        n = n_i - of_one
        own = a + np.sqrt(n) * u[:, None]  # (NODES, 1): the score of the pair's own value
        spread = np.sqrt(k**2 * of_one + n * (1.0 - u[:, None] ** 2) / (d_v - 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            higher = ndtr(np.where(own == 0, 0.0, k * own / spread)) @ weights
        total += float(count * (higher ** (N - 1) @ weights))
    return total


def _cosines(d: int) -> tuple[Array, Array]:
    """Nodes and weights of the cosine between two independent directions in d >= 2 dimensions."""
    u, weights = roots_jacobi(NODES, (d - 3) / 2, (d - 3) / 2)
    return u, weights / weights.sum()
