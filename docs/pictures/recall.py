"""Capacity of a memory for each feature map: the best recall of any rule, by least squares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from atlas_ref.parts import feature_maps
from docs.pictures import style

#: Name -> settings of a feature map, and its number of columns where it may have any.
Kinds = dict[str, tuple[dict[str, Any], int | None]]
D_IN, D_OUT = 8, 4
COUNTS = (2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64)
#: Columns of the maps that may have any number.
WIDER = 24
#: The maps that bend or mix the entries of a key, and those that make more of them; of each the
#: settings, and columns where it may choose.
BENT: Kinds = {
    "identity": ({"kind": "identity"}, None),
    "linear": ({"kind": "linear"}, WIDER),
    "elu": ({"kind": "elu"}, None),
    "residual_mlp": ({"kind": "residual_mlp"}, None),
    "elementwise, degree 2": ({"kind": "elementwise"}, None),
    "sketch": ({"kind": "sketch"}, None),
}
MORE: Kinds = {
    "identity": ({"kind": "identity"}, None),
    "random_fourier": ({"kind": "random_fourier"}, WIDER),
    "polynomial, degree 2": ({"kind": "polynomial"}, None),
    "monomials": ({"kind": "monomials"}, None),
}


def features(kinds: Kinds) -> Iterator[tuple[str, Any]]:
    """(name, features of many keys) of each map."""
    keys = np.random.default_rng(0).standard_normal((max(COUNTS), D_IN)) / np.sqrt(D_IN)
    for name, (settings, columns) in kinds.items():
        chosen = TypeAdapter(feature_maps.FeatureMap).validate_python(settings)
        parameters = feature_maps.init(chosen, D_IN, 1, features=columns)
        yield name, feature_maps.apply(chosen, parameters, keys)


def error(phi: Any, values: Any) -> float:
    """Relative error of the best memory for these pairs."""
    M, *_ = np.linalg.lstsq(phi, values, rcond=None)
    return float(np.linalg.norm(phi @ M - values) / np.linalg.norm(values))


def picture() -> str:
    """Error of recall over the number of random pairs, zero up to the rank of the features
    (PHI-13).
    """
    values = np.random.default_rng(1).standard_normal((max(COUNTS), D_OUT))
    figure, axes = style.figure(2, width=9.6, height=5.2, sharey=True)
    titles = ("maps that mix or bend", "maps that make more of a key")
    for ax, kinds, title in zip(axes[0], (BENT, MORE), titles, strict=True):
        for place, (name, phi) in enumerate(features(kinds)):
            rank = int(np.linalg.matrix_rank(phi))
            errors = [error(phi[:count], values[:count]) for count in COUNTS]
            look = {"color": style.COLOURS[place], "marker": style.MARKERS[place], "markersize": 5}
            ax.plot(COUNTS, errors, label=f"{name}: {phi.shape[1]} columns, rank {rank}", **look)
        ax.set(
            title=title, xlabel=f"stored pairs (random keys of length {D_IN})", ylim=(-0.03, 1.0)
        )
        style.legend(ax, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    axes[0][0].set_ylabel("error of recall, relative")
    return style.svg(
        figure, "recall", "Error of recall over the number of stored pairs for nine feature maps"
    )
