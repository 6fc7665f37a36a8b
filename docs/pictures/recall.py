"""How many pairs a memory holds, for each feature map: the best any rule could do, by least squares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from atlas_ref import feature_maps
from docs.pictures import style

D_IN, D_OUT = 8, 4
COUNTS = (2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64)
KINDS: dict[str, dict[str, Any]] = {
    "identity": {"kind": "identity"},
    "elementwise, degree 2": {"kind": "elementwise", "degree": 2},
    "elu": {"kind": "elu"},
    "monomials, degree 2": {"kind": "monomials", "degree": 2},
}


def features() -> Iterator[tuple[str, Any]]:
    """(name, features of many keys) of each map."""
    keys = np.random.default_rng(0).standard_normal((max(COUNTS), D_IN)) / np.sqrt(D_IN)
    for name, settings in KINDS.items():
        chosen = TypeAdapter(feature_maps.FeatureMap).validate_python(settings)
        parameters = feature_maps.init(chosen, D_IN, 1)
        yield name, feature_maps.apply(chosen, parameters, keys)


def error(phi: Any, values: Any) -> float:
    """Relative error of the best memory for these pairs."""
    M, *_ = np.linalg.lstsq(phi, values, rcond=None)
    return float(np.linalg.norm(phi @ M - values) / np.linalg.norm(values))


def picture() -> str:
    """Error of recall over the number of random pairs; it leaves zero at the rank of the features (PHI-13)."""
    values = np.random.default_rng(1).standard_normal((max(COUNTS), D_OUT))
    figure, axes = style.figure(height=4.0)
    ax = axes[0][0]
    for place, (name, phi) in enumerate(features()):
        rank = int(np.linalg.matrix_rank(phi))
        found = [error(phi[:count], values[:count]) for count in COUNTS]
        ax.plot(COUNTS, found, color=style.COLOURS[place], marker=style.MARKERS[place], markersize=5, label=f"{name}: rank {rank}")
    ax.set(xlabel=f"stored pairs (random keys of length {D_IN})", ylabel="error of recall, relative", ylim=(-0.03, 1.0))
    style.legend(ax)
    return style.svg(figure, "recall", "Error of recall over the number of stored pairs for four feature maps")
