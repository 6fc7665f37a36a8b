"""TensorSketch: products of count sketches in place of the monomials of a vector.

One of the feature maps. Specified in specs/feature_maps.md (PHI-18, PHI-19). Source: Pham and Pagh,
Fast and scalable polynomial kernels via explicit feature maps (KDD 2013).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from atlas_ref.types import Array, Frozen
from tape import ops

#: Tensors and their axes. `d_hashes` is the degree, `d_terms` the degree and one.
AXES = {"c": "d_terms", "H": "d_hashes d_buckets d_in", "proj": "d_sketch d_phi"}


class TensorSketch(Frozen):
    """phi(x) = proj^T [c_0; c_1 x; c_2 (H_1 x * H_2 x); ...], with * the circular convolution.

    H (degree, d_buckets, d_in) holds the count sketches and c (degree + 1,) the coefficients.
    """

    kind: Literal["tensor_sketch"] = "tensor_sketch"
    degree: Literal[2, 3] = 2
    learned: bool = True

    def rows(self, d_in: int, buckets: int) -> int:
        """Length of what proj reads: 1 + d_in + (degree - 1) buckets."""
        return 1 + d_in + (self.degree - 1) * buckets


def circular(a: Array, b: Array) -> Array:
    """The circular convolution of two arrays (..., m) along their last axis.

        (a * b)_r = sum_s a_s b_{(r - s) mod m}

    It is summed as it stands, so that no Fourier transform rounds the sketches of whole numbers.

    Source: PHI-18.
    """
    m = b.shape[-1]
    shifts = (np.arange(m)[:, None] - np.arange(m)) % m
    return ops.reshape(ops.index(b, (..., shifts)) @ ops.reshape(a, (*a.shape, 1)), b.shape)


def mapped(settings: TensorSketch, p: Mapping[str, Array], x: Array) -> Array:
    """phi(x) (..., d_phi) of x (..., d_in), whose tensors were checked.

    Source: PHI-18.
    """
    c, H = p["c"], p["H"]
    sketches = [x @ ops.transpose(ops.index(H, (n,))) for n in range(settings.degree)]
    blocks = [ops.ones_like(x, shape=(*x.shape[:-1], 1)), x]
    product = sketches[0]
    for sketch in sketches[1:]:
        product = circular(product, sketch)
        blocks.append(product)
    weighted = [ops.index(c, (n,)) * block for n, block in enumerate(blocks)]
    return ops.concatenate(weighted, axis=-1) @ p["proj"]


def init(
    settings: TensorSketch, d_in: int, columns: int, draw: np.random.Generator
) -> dict[str, Array]:
    """Coefficients 1/n!, count sketches into as many buckets as columns, and a Gaussian proj.

    Each column of H_n has one entry of 1 or -1, in a bucket that is drawn.

    Source: PHI-18.
    """
    shape = (settings.degree, columns, d_in)
    buckets = draw.integers(columns, size=(settings.degree, 1, d_in))
    signs = draw.choice([-1.0, 1.0], size=(settings.degree, 1, d_in))
    H = np.zeros(shape)
    np.put_along_axis(H, buckets, signs, axis=1)
    rows = settings.rows(d_in, columns)
    return {
        "c": np.array([1 / math.factorial(n) for n in range(settings.degree + 1)]),
        "H": H,
        "proj": draw.standard_normal((rows, columns)) / math.sqrt(rows),
    }
