"""Feature maps by definition, vector by vector, without the package under test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Array = Any

#: Every kind with every setting, as a user writes them.
MAPS: dict[str, dict[str, Any]] = {
    "identity": {"kind": "identity"},
    "linear": {"kind": "linear"},
    "random_fourier": {"kind": "random_fourier"},
    "elu": {"kind": "elu"},
    "residual_mlp silu": {"kind": "residual_mlp"},
    "residual_mlp gelu": {"kind": "residual_mlp", "activation": "gelu"},
    "polynomial 1": {"kind": "polynomial", "degree": 1},
    "polynomial 2": {"kind": "polynomial"},
    "polynomial 3": {"kind": "polynomial", "degree": 3},
    "polynomial 4": {"kind": "polynomial", "degree": 4},
    "polynomial with a constant": {
        "kind": "polynomial",
        "degree": 2,
        "coefficients": [0.5, 1.0, 0.25],
    },
    "polynomial with zeros": {
        "kind": "polynomial",
        "degree": 4,
        "coefficients": [0.0, 0.7, 0.0, 0.0, 2.0],
    },
    "monomials": {"kind": "monomials"},
    "elementwise 1": {"kind": "elementwise", "degree": 1},
    "elementwise 2": {"kind": "elementwise"},
    "elementwise 4": {"kind": "elementwise", "degree": 4},
    "sketch": {"kind": "sketch"},
    "tensor_sketch 2": {"kind": "tensor_sketch"},
    "tensor_sketch 3": {"kind": "tensor_sketch", "degree": 3},
}


def tensors(
    settings: Mapping[str, Any], d: int, seed: int = 0, features: int = 7, hidden: int = 6
) -> dict[str, Array]:
    """Random tensors of a kind for d inputs."""
    random = np.random.default_rng(seed)
    degree = settings.get("degree", 2)
    shapes = {
        "linear": {"W": (features, d)},
        "random_fourier": {"W": (features, d), "b": (features,)},
        "residual_mlp": {"W1": (hidden, d), "W2": (d, hidden)},
        "sketch": {"proj": (d + d * d, features)},
        "tensor_sketch": {
            "c": (degree + 1,),
            "H": (degree, features, d),
            "proj": (1 + d + (degree - 1) * features, features),
        },
    }
    return {
        name: random.standard_normal(shape)
        for name, shape in shapes.get(settings["kind"], {}).items()
    }


def coefficients(settings: Mapping[str, Any]) -> list[float]:
    """a_0 .. a_p of a polynomial."""
    degree = settings.get("degree", 2)
    return list(
        settings.get("coefficients")
        or [0.0] + [1 / math.factorial(n) for n in range(1, degree + 1)]
    )


def monomials(settings: Mapping[str, Any], d: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Index tuple and weight of every column of polynomial or monomials; a multinomial is counted,
    not computed.
    """
    plain = settings["kind"] == "monomials"
    for n, a in enumerate([0.0, 1.0, 1.0] if plain else coefficients(settings)):
        if n == 0 and a == 0:
            continue
        arrangements: dict[tuple[int, ...], int] = {}
        for ordered in itertools.product(range(d), repeat=n):
            key = tuple(sorted(ordered))
            arrangements[key] = arrangements.get(key, 0) + 1
        for key in sorted(arrangements):
            yield key, 1.0 if plain else math.sqrt(a * arrangements[key])


def act(settings: Mapping[str, Any], z: Array) -> Array:
    """silu, or the tanh form of gelu."""
    if settings.get("activation", "silu") == "gelu":
        return z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return z / (1 + np.exp(-z))


def around(a: Array, b: Array) -> Array:
    """The circular convolution, product by product into the bucket of its sum."""
    m = len(a)
    total = np.zeros(m, np.result_type(a, b))
    for i in range(m):
        for j in range(m):
            total[(i + j) % m] += a[i] * b[j]
    return total


def spread(a: Array, z: Array) -> Array:
    """The transpose of b -> around(a, b), at z."""
    m = len(a)
    total = np.zeros(m)
    for i in range(m):
        for j in range(m):
            total[j] += a[i] * z[(i + j) % m]
    return total


def phi(settings: Mapping[str, Any], p: Mapping[str, Array], x: Array) -> Array:
    """phi(x) of one vector, entry by entry; x and tensors may be complex."""
    kind, d = settings["kind"], len(x)

    def times(A: Array, y: Array) -> Array:
        return np.array([sum(A[i][j] * y[j] for j in range(len(y))) for i in range(len(A))])

    if kind == "identity":
        return x.copy()
    if kind == "linear":
        return times(p["W"], x)
    if kind == "random_fourier":
        u = times(p["W"], x) + p["b"]
        return math.sqrt(2 / len(u)) * np.cos(u)
    if kind == "elu":
        return np.array([each + 1 if np.real(each) > 0 else np.exp(each) for each in x])
    if kind == "residual_mlp":
        return x + times(p["W2"], act(settings, times(p["W1"], x)))
    if kind in ("polynomial", "monomials"):
        return np.array(
            [
                weight * math.prod((x[i] for i in key), start=1.0)
                for key, weight in monomials(settings, d)
            ]
        )
    if kind == "elementwise":
        return np.array(
            [sum(each**n for n in range(1, settings.get("degree", 2) + 1)) for each in x]
        )
    if kind == "sketch":
        both = np.concatenate([x, [x[i] * x[j] for i in range(d) for j in range(d)]])
        return times(p["proj"].T, both)
    if kind == "tensor_sketch":
        u = [times(H, x) for H in p["H"]]
        blocks = [p["c"][:1], p["c"][1] * x, p["c"][2] * around(u[0], u[1])]
        if len(u) == 3:
            blocks.append(p["c"][3] * around(around(u[0], u[1]), u[2]))
        return times(p["proj"].T, np.concatenate(blocks))
    raise AssertionError(kind)


def pullback(
    settings: Mapping[str, Any], p: Mapping[str, Array], x: Array, g: Array
) -> tuple[Array, dict[str, Array]]:
    """The backward of phi for one vector, by the table of PHI-16: cotangents of x and of the
    tensors.
    """
    kind, d = settings["kind"], len(x)
    if kind == "identity":
        return g, {}
    if kind == "linear":
        return p["W"].T @ g, {"W": np.outer(g, x)}
    if kind == "random_fourier":
        u = p["W"] @ x + p["b"]
        bar = -math.sqrt(2 / len(u)) * np.sin(u) * g
        return p["W"].T @ bar, {"W": np.outer(bar, x), "b": bar}
    if kind == "elu":
        return np.minimum(1, np.exp(np.minimum(x, 0))) * g, {}
    if kind == "residual_mlp":
        u = p["W1"] @ x
        step = 1e-30
        slope = np.imag(act(settings, u + 1j * step)) / step
        bar = slope * (p["W2"].T @ g)
        return g + p["W1"].T @ bar, {"W1": np.outer(bar, x), "W2": np.outer(g, act(settings, u))}
    if kind in ("polynomial", "monomials"):
        total = np.zeros(d)
        for (key, weight), each in zip(monomials(settings, d), g, strict=True):
            for place, i in enumerate(key):  # the product rule, one factor at a time
                others = key[:place] + key[place + 1 :]
                total[i] += each * weight * math.prod((x[j] for j in others), start=1.0)
        return total, {}
    if kind == "elementwise":
        return sum(n * x ** (n - 1) for n in range(1, settings.get("degree", 2) + 1)) * g, {}
    if kind == "sketch":
        z = p["proj"] @ g
        Z = z[d:].reshape(d, d)
        return z[:d] + (Z + Z.T) @ x, {
            "proj": np.outer(np.concatenate([x, np.outer(x, x).ravel()]), g)
        }
    if kind == "tensor_sketch":
        return _pulled_sketch(p, x, g)
    raise AssertionError(kind)


def _pulled_sketch(p: Mapping[str, Array], x: Array, g: Array) -> tuple[Array, dict[str, Array]]:
    """The backward of a tensor sketch by the formulas of PHI-18."""
    c, H, d, m = p["c"], p["H"], len(x), p["H"].shape[1]
    z = p["proj"] @ g
    of_place = [
        z[:1],
        z[1 : 1 + d],
        *(z[1 + d + n * m : 1 + d + (n + 1) * m] for n in range(len(H) - 1)),
    ]
    u = [each @ x for each in H]
    terms = [np.ones(1), x, around(u[0], u[1])]
    bars = [c[2] * spread(u[1], of_place[2]), c[2] * spread(u[0], of_place[2])]
    if len(u) == 3:
        terms.append(around(terms[2], u[2]))
        for n, (a, b) in enumerate(((1, 2), (0, 2))):
            bars[n] = bars[n] + c[3] * spread(around(u[a], u[b]), of_place[3])
        bars.append(c[3] * spread(terms[2], of_place[3]))
    pulled = c[1] * of_place[1] + sum(each.T @ bar for each, bar in zip(H, bars, strict=True))
    return pulled, {
        "c": np.array([t @ each for t, each in zip(terms, of_place, strict=True)]),
        "H": np.array([np.outer(bar, x) for bar in bars]),
        "proj": np.outer(np.concatenate([k * t for k, t in zip(c, terms, strict=True)]), g),
    }
