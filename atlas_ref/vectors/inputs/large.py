"""Larger cases without a download: a recipe for the inputs, and norms and projections of the
results (VEC-13).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.vectors.inputs.draw import drawn, recipe
from atlas_ref.vectors.inputs.stream import chosen, dyadic, words
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.targets import by_name
from atlas_ref.vectors.inputs.topics import Topic

Numbers = np.ndarray[Any, Any]

#: Projections of every result.
PROJECTIONS = 8

#: Relative distance of norms, and of projections relative to norm, within which results agree in
#: float64 (VEC-13).
AGREE = 1e-12


class Large(NamedTuple):
    """A target at a size that shows what small ones cannot: long sums, many chunks, blocks of a
    kernel.

    Attributes:
        shrink: factor of keys, which keeps the rule from growing.
    """

    name: str
    rule: str
    request: dict[str, Any]
    shrink: float = 0.25
    seed: int = 1


LARGE = (
    Large("hebbian-1024", "hebbian", {"tokens": 1024, "d_in": 32, "d_out": 16, "heads": 1}),
    Large("delta-512", "delta", {"tokens": 512, "d_in": 16, "d_out": 24, "heads": 2}),
    Large("delta-odd", "delta", {"tokens": 251, "d_in": 17, "d_out": 13, "heads": 1}),
    Large("titans_lmm-256", "titans_lmm", {"tokens": 256, "d_in": 24, "d_out": 16, "heads": 2}),
    Large("omega-64", "omega", {"tokens": 64, "d_in": 16, "d_out": 16, "heads": 1, "window": 4}),
    Large(
        "omega-linear-129",
        "omega",
        {
            "tokens": 129,
            "d_in": 16,
            "d_out": 16,
            "heads": 1,
            "window": 8,
            "convention": {"newton_schulz": "none"},
        },
    ),
    Large(
        "omega-frozen-128",
        "omega",
        {
            "tokens": 128,
            "d_in": 16,
            "d_out": 8,
            "heads": 1,
            "window": 4,
            "span": 16,
            "convention": {"reference": "chunk_start"},
        },
    ),
    Large("newton_schulz-64", "newton_schulz", {"d_in": 64, "d_out": 48, "heads": 1}),
)


def large_named(name: str) -> Large:
    """A larger case by its name."""
    return by_name("larger case", name, LARGE)


def drawn_large(large: Large) -> tuple[Case, dict[str, Any]]:
    """The case, and the recipes of its tensors as JSON holds them."""
    target = Target(large.name, {"rule": large.rule})
    case = drawn(target, Topic("large", large.request), large.seed)
    recipes = {name: _recipe(name, value, case, large) for name, value in case.inputs.items()}
    return from_recipes(case.header.plain(), recipes, large.name), recipes


def _recipe(name: str, value: Numbers, case: Case, large: Large) -> dict[str, Any]:
    how = recipe(name, case.convention)
    origin: dict[str, Any] = {"shape": list(value.shape), "seed": large.seed}
    if isinstance(how[0], int):
        return origin | {
            "most": how[0],
            "unit": how[1] * (large.shrink if name in ("in/k", "in/q") else 1.0),
        }
    return origin | {"values": list(how)}


def from_recipes(
    header: Mapping[str, Any], recipes: Mapping[str, Mapping[str, Any]], name: str
) -> Case:
    """The case that recipes make.

    Raises:
        CaseError: the recipes make no case.
    """
    tensors = {}
    for key, each in recipes.items():
        shape, seed = tuple(each["shape"]), each["seed"]
        if "values" in each:
            tensors[key] = chosen(seed, key, shape, tuple(each["values"]))
        else:
            tensors[key] = dyadic(seed, key, shape, most=each["most"], scale=each["unit"])
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as not finite
        narrow = {key: value.astype(np.float32) for key, value in tensors.items()}
    return make(header, narrow, name=name)


def summary(tensor: str, value: Numbers, seed: int) -> dict[str, Any]:
    """Largest magnitude, root mean square and projections on vectors of signs, each sum rounded
    once (VEC-13).
    """
    flat = np.asarray(value, np.float64).ravel()
    rms = math.sqrt(math.fsum((flat * flat).tolist()) / flat.size)
    projections = [
        math.fsum((flat * signs(tensor, i, flat.size, seed)).tolist()) for i in range(PROJECTIONS)
    ]
    return {
        "shape": list(value.shape),
        "max": float(np.abs(flat).max()),
        "rms": rms,
        "projections": projections,
    }


def signs(tensor: str, number: int, count: int, seed: int) -> Numbers:
    """+1 where the top bit of the stream's word is 0, else -1; the stream's name is "TENSOR
    projection NUMBER".
    """
    values: Numbers = np.where(
        words(seed, f"{tensor} projection {number}", count) >> np.uint64(63) == 0, 1.0, -1.0
    )
    return values


def apart(own: Mapping[str, Any], want: Mapping[str, Any]) -> float:
    """Distance of two summaries, as a multiple of what is allowed in float64."""
    size = float(want["rms"]) * math.sqrt(math.prod(want["shape"]))
    if own["shape"] != want["shape"]:
        return math.inf
    gaps = [abs(own[key] - want[key]) / max(want[key], 5e-324) for key in ("max", "rms")]
    gaps += [
        abs(a - b) / max(size, 5e-324)
        for a, b in zip(own["projections"], want["projections"], strict=True)
    ]
    return float(max(gaps)) / AGREE
