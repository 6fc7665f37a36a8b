"""Feature maps phi of keys and queries.

The same map with the same parameters acts on keys and queries. Each kind is one settings model and
one function. Specified in specs/feature_maps.md.

Where a map has tensors, `learned` says whether they have derivatives (PHI-20). Kernels, bounds,
capacity, special cases, cost, pullbacks, stable steps: PHI-11 to PHI-17.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.parts.feature_maps import tensor_sketch
from atlas_ref.parts.feature_maps.tensor_sketch import TensorSketch
from atlas_ref.types import Array, Dims, Frozen, bind_dims, check_array
from tape import ops
from tape.constants import beside

Parameters = Mapping[str, Array]
#: 1/n! and a sum of powers lose all meaning in float64 long before the upper bound.
HIGHEST_DEGREE = 100
Degree = Annotated[int, Field(ge=1, le=HIGHEST_DEGREE)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Identity(Frozen):
    """phi(x) = x."""

    kind: Literal["identity"] = "identity"


class Linear(Frozen):
    """phi(x) = W x, with W (d_phi, d_in)."""

    kind: Literal["linear"] = "linear"
    learned: bool = True


class RandomFourier(Frozen):
    """phi(x) = sqrt(2 / d_phi) cos(W x + b).

    Rows of W are drawn from N(0, 1 / bandwidth^2), b uniformly from [0, 2 pi).
    """

    kind: Literal["random_fourier"] = "random_fourier"
    bandwidth: Positive = 1.0
    learned: bool = True


class Elu(Frozen):
    """phi(x) = elu(x) + 1, which is positive."""

    kind: Literal["elu"] = "elu"


class ResidualMlp(Frozen):
    """phi(x) = x + W2 act(W1 x), with W1 (h, d_in) and W2 (d_in, h)."""

    kind: Literal["residual_mlp"] = "residual_mlp"
    activation: Literal["silu", "gelu"] = "silu"
    learned: bool = True


class Polynomial(Frozen):
    """Each monomial up to `degree` once, weighted so that <phi(q), phi(k)> = sum_i coefficients[i]
    (q.k)^i.
    """

    kind: Literal["polynomial"] = "polynomial"
    degree: Degree = 2
    coefficients: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _tuple(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("coefficients"), list):
            return {**data, "coefficients": tuple(data["coefficients"])}
        return data

    @model_validator(mode="after")
    def _count(self) -> Polynomial:
        if self.coefficients is not None and len(self.coefficients) != self.degree + 1:
            raise ValueError(
                f"coefficients: {len(self.coefficients)} given, degree {self.degree} needs "
                f"a_0 .. a_{self.degree}"
            )
        return self

    def weights(self) -> tuple[float, ...]:
        """a_0 .. a_degree; by default a_0 = 0 and a_i = 1/i!, the Taylor terms of exp."""
        if self.coefficients is not None:
            return self.coefficients
        return (0.0, *(1 / math.factorial(i) for i in range(1, self.degree + 1)))


class Monomials(Frozen):
    """phi(x) = [x; x_i x_j for i <= j], without weights."""

    kind: Literal["monomials"] = "monomials"
    degree: Literal[2] = 2


class Elementwise(Frozen):
    """phi(x) = x + x^2 + ... + x^degree in each component: a sum, so d_phi = d_in."""

    kind: Literal["elementwise"] = "elementwise"
    degree: Degree = 2


class Sketch(Frozen):
    """phi(x) = [x; vec(x x^T)] proj, with proj (d_in + d_in^2, d_phi) and vec row by row."""

    kind: Literal["sketch"] = "sketch"
    degree: Literal[2] = 2
    learned: bool = True


FeatureMap = Annotated[
    Identity
    | Linear
    | RandomFourier
    | Elu
    | ResidualMlp
    | Polynomial
    | Monomials
    | Elementwise
    | Sketch
    | TensorSketch,
    Field(discriminator="kind"),
]

#: Tensors of each kind and their axes; in a case file in/phi/NAME, and in/proj of a sketch.
TENSORS: dict[str, dict[str, str]] = {
    "linear": {"W": "d_phi d_in"},
    "random_fourier": {"W": "d_phi d_in", "b": "d_phi"},
    "residual_mlp": {"W1": "hidden d_in", "W2": "d_in hidden"},
    "sketch": {"proj": "d_sketch d_phi"},
    "tensor_sketch": tensor_sketch.AXES,
}

#: Kinds whose columns are as many as a tensor has, so that they may be any number.
OF_ANY_WIDTH = ("linear", "random_fourier", "sketch", "tensor_sketch")

IDENTITY = Identity()


def apply(feature_map: FeatureMap, parameters: Parameters, x: Array) -> Array:
    """phi(x) on the last axis.

    Args:
        parameters: the tensors that `TENSORS` lists for the kind, by name.
        x (..., d_in): keys or queries.

    Returns:
        (..., d_phi).

    Raises:
        ValueError: x that is not an array of finite floating numbers; a tensor of the map that is
            missing or misshapen.

    Source: PHI-1 to PHI-10, PHI-18.
    """
    check_array("x", x, Dims("... d_in"))
    return of_checked(feature_map, parameters, x)


def of_checked(feature_map: FeatureMap, parameters: Parameters, x: Array) -> Array:
    """phi(x) of keys and queries that were checked at the boundary.

    It reads no value of x, which would wait for a device (BACKEND-5).

    Raises:
        ValueError: a tensor of the map that is missing, unknown or misshapen.

    Source: PHI-20.
    """
    _check_tensors(feature_map, parameters, x.shape[-1])
    if frozen(feature_map):
        parameters = {name: ops.stop_gradient(tensor) for name, tensor in parameters.items()}
    return _MAPS[feature_map.kind](feature_map, parameters, x)


def frozen(feature_map: FeatureMap) -> tuple[str, ...]:
    """Names of the tensors of a map that have no derivative: all where it is not learned, or none.

    Source: PHI-20.
    """
    learned = getattr(feature_map, "learned", True)  # a map without tensors has no such setting
    return () if learned else tuple(TENSORS[feature_map.kind])


def _check_tensors(feature_map: FeatureMap, parameters: Parameters, d_in: int) -> None:
    sizes: dict[str, Any] = {"d_in": (d_in, "the argument"), **stated_sizes(feature_map)}
    needed = TENSORS.get(feature_map.kind, {})
    for name in parameters:
        if name not in needed:
            raise ValueError(
                f"feature map {feature_map.kind}: {name}: unknown, "
                f"{', '.join(needed) or 'no tensor'} is needed"
            )
    for name, axes in needed.items():
        if name not in parameters:
            raise ValueError(
                f"feature map {feature_map.kind}: {name}: missing, axes ({axes}) are needed"
            )
        sizes |= sketched(feature_map, sizes)
        bind_dims(name, parameters[name].shape, axes, sizes)


def stated_sizes(feature_map: FeatureMap) -> dict[str, tuple[int, str]]:
    """Sizes of axes that the settings of a map state, each with what states it."""
    if feature_map.kind != "tensor_sketch":
        return {}
    return {
        "d_hashes": (feature_map.degree, "degree"),
        "d_terms": (feature_map.degree + 1, "degree + 1"),
    }


def sketched(feature_map: FeatureMap, sizes: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Rows of proj, as far as the sizes that are known tell them, with their formula."""
    if feature_map.kind == "sketch" and "d_in" in sizes:
        d = sizes["d_in"][0]
        return {"d_sketch": (d + d * d, "d_in + d_in^2")}
    if feature_map.kind == "tensor_sketch" and {"d_in", "d_buckets"} <= sizes.keys():
        buckets = "d_buckets" if feature_map.degree == 2 else "2 d_buckets"
        rows = feature_map.rows(sizes["d_in"][0], sizes["d_buckets"][0])
        return {"d_sketch": (rows, f"1 + d_in + {buckets}")}
    return {}


def _map_rows(x: Array, W: Array) -> Array:
    return x @ ops.transpose(W)


def _residual(f: ResidualMlp, p: Parameters, x: Array) -> Array:
    activation = ops.silu if f.activation == "silu" else ops.gelu
    return x + _map_rows(activation(_map_rows(x, p["W1"])), p["W2"])


def _elu(x: Array) -> Array:
    positive = ops.greater(x, 0.0)  # ops.elu(x) + 1 would round exp(x) away below -37
    return ops.where(positive, x + 1.0, ops.exp(ops.where(positive, 0.0, x)))


def _polynomial(f: Polynomial, p: Parameters, x: Array) -> Array:
    parts = []
    for indices, constants in _monomial_blocks(x.shape[-1], f.weights()):
        weights = beside(constants.astype(x.dtype), x)
        product: Array = (
            weights if len(indices) else ops.ones_like(x, shape=(*x.shape[:-1], 1)) * weights
        )
        for column in indices:
            product = ops.index(x, (..., column)) * product
        parts.append(product)
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)


@functools.lru_cache(maxsize=64)
def _monomial_blocks(d: int, coefficients: tuple[float, ...]) -> tuple[tuple[Any, Any], ...]:
    """Per degree: columns of the monomials in lexicographic order, sqrt(a_i * multinomial)."""
    blocks = []
    for degree, a in enumerate(coefficients):
        if degree == 0:
            if a > 0:
                blocks.append(((), np.array([math.sqrt(a)])))
            continue
        tuples = list(itertools.combinations_with_replacement(range(d), degree))
        counts = [
            math.factorial(degree) // math.prod(math.factorial(t.count(i)) for i in set(t))
            for t in tuples
        ]
        columns = tuple(np.array(tuples).T)
        blocks.append((columns, np.sqrt(a * np.array(counts, dtype=float))))
    return tuple(blocks)


def _monomials(f: Monomials, p: Parameters, x: Array) -> Array:
    i, j = np.triu_indices(x.shape[-1])
    return ops.concatenate([x, ops.index(x, (..., i)) * ops.index(x, (..., j))], axis=-1)


def _elementwise(f: Elementwise, p: Parameters, x: Array) -> Array:
    y = x
    for _ in range(f.degree - 1):  # x + x (x + x (x + ...))
        y = x + x * y
    return y


def _sketch(f: Sketch, p: Parameters, x: Array) -> Array:
    square = ops.reshape(ops.outer(x, x), (*x.shape[:-1], x.shape[-1] ** 2))
    return ops.concatenate([x, square], axis=-1) @ p["proj"]


_MAPS: dict[str, Callable[[Any, Parameters, Array], Array]] = {
    "identity": lambda f, p, x: x,
    "linear": lambda f, p, x: _map_rows(x, p["W"]),
    "random_fourier": lambda f, p, x: (
        math.sqrt(2.0 / p["b"].shape[-1]) * ops.cos(_map_rows(x, p["W"]) + p["b"])
    ),
    "elu": lambda f, p, x: _elu(x),
    "residual_mlp": _residual,
    "polynomial": _polynomial,
    "monomials": _monomials,
    "elementwise": _elementwise,
    "sketch": _sketch,
    "tensor_sketch": tensor_sketch.mapped,
}


def d_phi(feature_map: FeatureMap, d_in: int, parameters: Parameters | None = None) -> int:
    """Number of features of a map on d_in inputs; maps with tensors take it from them.

    Source: PHI-2 to PHI-10, PHI-18.
    """
    if feature_map.kind == "polynomial":
        return sum(
            math.comb(d_in + n - 1, n)
            for n, a in enumerate(feature_map.weights())
            if n > 0 or a > 0
        )
    if feature_map.kind == "monomials":
        return d_in + d_in * (d_in + 1) // 2
    if feature_map.kind in OF_ANY_WIDTH:
        tensors = parameters or {}
        _check_tensors(feature_map, tensors, d_in)
        return int(tensors["proj"].shape[1] if "proj" in tensors else tensors["W"].shape[0])
    return d_in


def shapes(
    feature_map: FeatureMap, d_in: int, *, features: int | None = None
) -> dict[str, tuple[int | str, ...]]:
    """Shapes of the tensors of a map; an axis that the tensors alone tell stands by its name."""
    known = {"d_in": (d_in, "d_in"), **stated_sizes(feature_map)}
    sizes = {axis: size for axis, (size, _) in (known | sketched(feature_map, known)).items()}
    sizes["d_phi"] = features or d_in
    axes = TENSORS.get(feature_map.kind, {})
    return {
        name: tuple(sizes.get(axis, axis) for axis in words.split()) for name, words in axes.items()
    }


def init(
    feature_map: FeatureMap,
    d_in: int,
    seed: int,
    *,
    features: int | None = None,
    hidden: int | None = None,
) -> dict[str, Array]:
    """Tensors of a map, drawn from the counter-based generator Philox with `seed` (PHI-4, PHI-18).

    Args:
        d_in: inputs.
        features: d_phi of linear, random_fourier and both sketches; d_in when not given.
        hidden: hidden units of residual_mlp; 4 d_in when not given.
    """
    draw = np.random.Generator(np.random.Philox(seed).jumped())  # not the stream of the projections
    m, h = features or d_in, hidden or 4 * d_in
    if feature_map.kind == "linear":
        return {"W": draw.standard_normal((m, d_in)) / math.sqrt(d_in)}
    if feature_map.kind == "random_fourier":
        W = draw.standard_normal((m, d_in)) / feature_map.bandwidth
        return {"W": W, "b": draw.uniform(0.0, 2.0 * math.pi, m)}
    if feature_map.kind == "residual_mlp":
        return {
            "W1": draw.standard_normal((h, d_in)) / math.sqrt(d_in),
            "W2": draw.standard_normal((d_in, h)) / math.sqrt(h),
        }
    if feature_map.kind == "sketch":
        rows = d_in + d_in * d_in
        return {"proj": draw.standard_normal((rows, m)) / math.sqrt(rows)}
    if feature_map.kind == "tensor_sketch":
        return tensor_sketch.init(feature_map, d_in, m, draw)
    return {}
