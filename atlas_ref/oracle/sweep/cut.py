"""Cut a case along one of its named axes, in every tensor that has it.

The remainder is a case again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from atlas_ref.conventions import effective
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensors import Tensor, legal
from atlas_ref.oracle.drawing import Candidate
from atlas_ref.parts import feature_maps

#: Maps whose features are as many as the numbers that they map.
_SAME = ("identity", "elu", "residual_mlp", "elementwise")


def table_of(case: Case) -> dict[str, Tensor]:
    """Tensors that this case may hold."""
    return legal(case.header, effective(case.convention, rule=case.header.rule), set(case.inputs))[
        0
    ]


def axes_of(case: Case) -> dict[str, tuple[str, ...]]:
    """Named axes of every input, leading ones as `leading0`, `leading1`, ..."""
    table, axes = table_of(case), {}
    for name, value in case.inputs.items():
        words = table[name].axes.split()
        if words == ["gate"]:
            words = (
                ["...", "T", "d_out"] if value.ndim == case.inputs["in/k"].ndim else ["...", "T"]
            )
        if words[0] == "...":
            words = [f"leading{i}" for i in range(value.ndim - len(words) + 1)] + words[1:]
        axes[name] = tuple(words)
    return axes


def axis_sizes(case: Case) -> dict[str, int]:
    """Size of every named axis."""
    return {
        axis: size
        for name, axes in axes_of(case).items()
        for axis, size in zip(axes, case.inputs[name].shape, strict=True)
    }


def cut(case: Case, axis: str, keep: Sequence[int]) -> Candidate | None:
    """The case with these places of an axis alone; None where it has no such axis.

    Axes tied to it follow: features to the numbers they are made of, the columns of computed gates
    to keys and values, one gate per output dimension to the output dimensions, the window's
    contents to the window.
    """
    sizes = axis_sizes(case)
    header = case.header.plain()
    places: dict[str, Sequence[int]] = {axis: keep}
    if axis == "c":
        header["window"] = len(keep)
        n = min(len(keep) - 1, sizes.get("n", 0))
        places |= {
            each: range(sizes[each] - min(n, sizes[each]), sizes[each])
            for each in ("n", "m")
            if each in sizes
        }
    elif axis not in sizes:
        return None
    d_in, d_out = sizes.get("d_in", 0), sizes.get("d_out", 0)
    if axis == "d_in":
        places |= _features(case, sizes, keep)
        places["d_kv"] = [*keep, *range(d_in, d_in + d_out)]
    elif axis == "d_out":
        places["d_kv"] = [*range(d_in), *(d_in + i for i in keep)]
        places |= {gate: keep for gate in sizes if gate.startswith("n_") and sizes[gate] == d_out}
    elif axis == "d_phi" and (
        "d_in" in sizes and "in/phi/W" not in case.inputs and "in/proj" not in case.inputs
    ):
        return None  # it follows d_in
    if header.get("span") and axis == "T" and header.get("phase", 0) >= header["span"]:
        header.pop("phase")
    return Candidate(
        header,
        {name: _take(case.inputs[name], axes, places) for name, axes in axes_of(case).items()},
    )


def some_tokens(case: Case, tokens: Sequence[int]) -> Candidate | None:
    """Some tokens of a case of one memory; None of one without tokens."""
    return cut(case, "T", tokens)


def _features(case: Case, sizes: dict[str, int], keep: Sequence[int]) -> dict[str, Sequence[int]]:
    """Features that remain of a map with fewer inputs."""
    kind = case.header.feature_map.kind
    if "in/phi/W" in case.inputs:
        return {}
    d = len(keep)
    if kind == "sketch":
        return {"d_sketch": range(d + d * d)}
    if kind == "tensor_sketch":  # the constant, the entries that stay, and all buckets
        behind = range(1 + sizes["d_in"], sizes["d_sketch"])
        return {"d_sketch": [0, *(1 + i for i in keep), *behind]}
    return {
        "d_phi": keep
        if kind in _SAME
        else range(min(sizes.get("d_phi", 0), feature_maps.d_phi(case.header.feature_map, d)))
    }


def _take(
    value: np.ndarray[Any, Any], axes: tuple[str, ...], places: dict[str, Sequence[int]]
) -> np.ndarray[Any, Any]:
    for place, axis in enumerate(axes):
        if axis in places:
            value = np.take(value, list(places[axis]), axis=place)
    return value


def flatten(case: Case) -> Iterator[Candidate | None]:
    """Candidates with fewer leading axes.

    Each axis is cut to one of its places; axes of one place are dropped; gates become one for all
    output dimensions.
    """
    leading = {axis: size for axis, size in axis_sizes(case).items() if axis.startswith("leading")}
    for axis, size in leading.items():
        if size > 1:
            yield from (cut(case, axis, [i]) for i in range(size))
    axes = axes_of(case)
    if leading and all(size == 1 for size in leading.values()):
        count = len(leading)
        tensors = {
            name: value[(0,) * count] if axes[name][:1] == ("leading0",) else value
            for name, value in case.inputs.items()
        }
        yield Candidate(case.header.plain(), tensors)
    for name, words in axes.items():
        if words[-2:] == ("T", "d_out") and name in (
            "in/retain",
            "in/momentum",
            "in/step_size",
            "in/step_size_memory",
        ):
            yield Candidate(case.header.plain(), {**case.inputs, name: case.inputs[name][..., 0]})
        for place, word in enumerate(words):
            if word.startswith("n_") and case.inputs[name].shape[place] > 1:
                pair = {
                    each: np.take(case.inputs[each], [0], axis=place)
                    for each in case.inputs
                    if word in axes[each]
                }
                yield Candidate(case.header.plain(), {**case.inputs, **pair})
