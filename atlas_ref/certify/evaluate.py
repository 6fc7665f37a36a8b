"""A whole case on balls at one precision: results, and derivatives by every floating input.

Source: CASE-10 to CASE-14.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_mat, ctx

from atlas_ref.certify.deep import evaluate as deep
from atlas_ref.certify.dplr import run as dplr
from atlas_ref.certify.feature_maps import mapped
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, cotangents
from atlas_ref.certify.newton_schulz import newton_schulz
from atlas_ref.certify.recurrences import run as recurrences
from atlas_ref.certify.run import Results, Sequence
from atlas_ref.certify.tnt import run as tnt
from atlas_ref.messages import Progress, unwatched

Array = np.ndarray[Any, Any]
Index = tuple[int, ...]

#: Results that a cotangent weighs (CASE-14).
WEIGHED = {
    "out/y": "in/y_bar",
    "out/M": "in/M_bar",
    "out/S": "in/S_bar",
    "out/z": "in/z_bar",
    "out/A": "in/A_bar",
    **{f"out/{name}": f"in/{name}_bar" for name in ("K", "G", "h", "bias", "window")},
    "out/X": "in/X_bar",
    "out/phi": "in/phi_bar",
}

#: Axes of one item of a result, by the end of its name, where it is no vector; the axes in front of
#: them are leading, or count the items.
RANKS = {
    "M": 2,
    "S": 2,
    "K": 2,
    "G": 2,
    "window": 2,
    "M_ref": 2,
    "window_momentum": 2,
    "X": 2,
    "P": 2,
    "P_size": 0,
    "P_keys": 2,
    "window_gate_before": 0,
}

#: Rules whose sequences are not those of the family.
SEQUENCES: dict[str, Any] = {
    "dplr": dplr.Sequence,
    "recurrence": recurrences.Sequence,
    "tnt": tnt.Sum,
}


def leading(header: Any, arrays: Mapping[str, Array]) -> tuple[int, ...]:
    """The leading axes of a case, whose indices never meet (CONV-27)."""
    if header.rule == "deep_memory":
        return ()  # rows may share a memory
    if header.rule == "newton_schulz":
        return tuple(arrays["in/G"].shape[:-2])
    if header.rule == "feature_map":
        return tuple(arrays["in/x"].shape[:-1])
    if header.rule in ("dplr", "recurrence"):  # groups of value heads have one key
        return tuple(arrays["in/x" if "in/x" in arrays else "in/v"].shape[:-2])
    if header.level == "token":
        return (arrays["in/x"].shape[0], arrays["in/param/W_K"].shape[0])
    return tuple(arrays["in/k"].shape[:-2])


def evaluate(
    header: Any,
    convention: Any,
    arrays: Mapping[str, Array],
    *,
    bits: int,
    grad: Iterable[str] = (),
    only: Iterable[Index] | None = None,
    moved: Mapping[str, Array] | None = None,
    progress: Progress = unwatched,
) -> dict[str, Array]:
    """Balls for every entry of every result, as arrays of objects.

    Args:
        arrays: input tensors in float64.
        bits: precision.
        grad: names of the inputs to differentiate by; cotangents are among `arrays`.
        only: leading indices to evaluate; the others hold None. All of them with `grad`, which may
            sum over them.
        moved: arrays of balls that are added to inputs.
        progress: called with the work under way, its tokens done and all of them (CERT-16).
    """
    axes, names = leading(header, arrays), frozenset(grad)
    values: dict[str, Array] = {}
    slopes = {
        "grad/" + name.removeprefix("in/"): _zeros(arrays[name].shape) for name in sorted(names)
    }
    if header.rule == "deep_memory":
        with ctx.workprec(bits):
            inputs = Inputs(arrays, live=names, moved=moved)
            return deep.evaluate(header, convention, inputs, slopes, progress, bits)
    with ctx.workprec(bits):
        chosen = list(np.ndindex(*axes) if only is None or names else only)
        for number, index in enumerate(chosen):
            inputs = Inputs(arrays, live=names, moved=moved)
            watch = _Watch(progress, bits, number, len(chosen))
            results, marks = _results(header, convention, inputs, index, watch)
            for name, value in results.items():
                _store(values, name, value, axes, index)
            if names:
                _differentiate(results, inputs, index, slopes, watch, marks)
    return values | slopes


class _Watch(NamedTuple):
    """Progress of one sequence of several, which have as many tokens each."""

    progress: Progress
    bits: int
    number: int
    sequences: int

    def __call__(self, kind: str, done: int, tokens: int) -> None:
        whole = self.sequences * tokens
        self.progress(f"{kind} at {self.bits} bits", self.number * tokens + done, whole)


def _results(
    header: Any, convention: Any, inputs: Inputs, index: Index, watch: _Watch
) -> tuple[Results, list[int]]:
    """Results at one leading index, and the places of its tokens among all matrices."""
    if header.rule == "newton_schulz":
        watch("matrices", 0, 1)
        return {"out/X": newton_schulz(inputs.get("in/G", *index), convention.newton_schulz)}, []
    if header.rule == "feature_map":
        watch("vectors", 0, 1)
        return {"out/phi": mapped(header.feature_map, inputs.phi(), inputs.get("in/x", *index))}, []
    sequence = SEQUENCES.get(header.rule, Sequence)(header, convention, inputs, index)
    tokens = sequence.count
    return sequence.run(lambda kind, done: watch(kind, done, tokens)), sequence.marks


def _zeros(shape: tuple[int, ...]) -> Array:
    zeros = np.empty(shape, dtype=object)
    zeros.fill(arb(0))
    return zeros


def _store(
    values: dict[str, Array],
    name: str,
    value: Matrix | list[Matrix],
    axes: tuple[int, ...],
    index: Index,
) -> None:
    """Store the balls of one leading index in `values`."""
    items = value if isinstance(value, list) else [value]
    parts = [_shaped(each, RANKS.get(name.rpartition("/")[2], 1)) for each in items]
    own = np.stack(parts) if isinstance(value, list) else parts[0]
    if name not in values:
        values[name] = np.empty((*axes, *own.shape), dtype=object)
    at: tuple[Any, ...] = (*index, ...)  # so that an array without axes is stored by its entry
    values[name][at] = own


def _shaped(matrix: Matrix, rank: int) -> Array:
    balls = np.array([*matrix.value.entries(), None], dtype=object)[:-1]
    return balls.reshape(((), (matrix.rows,), (matrix.rows, matrix.columns))[rank])


def _differentiate(
    results: Results,
    inputs: Inputs,
    index: Index,
    slopes: dict[str, Array],
    watch: _Watch,
    marks: list[int],
) -> None:
    """Add the derivatives of one leading index (CASE-14).

    Args:
        marks: places of the tokens, by which progress is counted from the last token to the first.
    """
    seeds: list[tuple[Matrix, arb_mat]] = []
    for name, value in results.items():
        bar = WEIGHED.get(name, name.replace("out/state/", "in/state_bar/"))
        if bar in inputs:
            items = (
                [((i,), each) for i, each in enumerate(value)]
                if isinstance(value, list)
                else [((), value)]
            )
            seeds += [(each, inputs.get(bar, *index, *place).value) for place, each in items]
    leaves = [(key, matrix) for key, matrix in inputs.slices.items() if matrix.live]
    waiting = len(marks) + 1

    def visit(order: int) -> None:
        nonlocal waiting
        if marks and (left := bisect_left(marks, order)) < waiting:
            waiting = left
            watch("gradients", len(marks) - left, len(marks))

    found = cotangents(seeds, [matrix for _, matrix in leaves], visit)
    for (key, matrix), slope in zip(leaves, found, strict=True):
        if slope is not None:
            name, place = key
            target = slopes["grad/" + name.removeprefix("in/")]
            added = np.empty((matrix.rows, matrix.columns), dtype=object)
            added[...] = slope.tolist()
            target[place] = target[place] + added.reshape(np.shape(target[place]))
