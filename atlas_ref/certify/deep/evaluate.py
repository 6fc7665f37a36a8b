"""Balls for every result of a case of a deep memory, and derivatives by every input (CERT-17)."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb_mat

from atlas_ref.certify.deep.run import Memory, memories
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, cotangents
from atlas_ref.messages import Progress

Array = np.ndarray[Any, Any]

#: What is no number of the memory: tokens that the next call sees, and its place in the document.
STATE, BAR = "out/state/", "in/state_bar/"


def evaluate(
    header: Any,
    convention: Any,
    inputs: Inputs,
    slopes: dict[str, Array],
    progress: Progress,
    bits: int,
) -> dict[str, Array]:
    """Every result of a case (DEEPCASE-6), and the derivatives that are asked for (DEEPCASE-7).

    Args:
        slopes: zeros for each gradient, by name; none without gradients.
    """
    values: dict[str, Array] = {}
    seeds: list[tuple[Matrix, arb_mat]] = []
    found = memories(header, convention, inputs)
    for number, memory in enumerate(found):
        marks: list[int] = []
        whole = len(found) * memory.rows[0].T

        def watch(kind: str, done: int, first: int = number, whole: int = whole) -> None:
            progress(f"{kind} at {bits} bits", first * whole // len(found) + done, whole)

        memory.run(watch, marks)
        _tokens(values, memory, inputs, seeds)
        for name, x in memory.state():
            kind, own = name.removeprefix(STATE).split("/", 1)
            networked = kind == "momentum" and memory.writer.network is not None
            shape = memory.writer.shape(f"momentum/{own}" if networked else own)
            _store(values, name, x, shape, memory.at, memory.lead)
            bar = BAR + name.removeprefix(STATE)
            if bar in inputs:
                seeds.append((x, inputs.get(bar, *memory.at).value))
    if slopes:
        _differentiate(inputs, seeds, slopes)
    return values | slopes


def _tokens(
    values: dict[str, Array], memory: Memory, inputs: Inputs, seeds: list[tuple[Matrix, arb_mat]]
) -> None:
    """Reads of each token, and the pairs that the next call sees."""
    lead = inputs.shape("in/k")[:-2]
    for row, reads in zip(memory.rows, memory.reads, strict=True):
        kept = [row.pair(i) for i in memory.kept()]
        columns = {"out/y": reads}
        if kept:
            columns[f"{STATE}keys"] = [each.key for each in kept]
            columns[f"{STATE}values"] = [each.value for each in kept]
            gates = [each.gate for each in kept if each.gate is not None]
            columns |= {f"{STATE}token_gates": gates} if gates else {}
            limits = [each.threshold for each in kept if each.threshold is not None]
            columns |= {f"{STATE}thresholds": limits} if limits else {}
        for name, matrices in columns.items():
            own = np.stack([_balls(x) for x in matrices])
            own = own[..., 0] if name.endswith(("token_gates", "thresholds")) else own
            if name not in values:
                values[name] = np.empty((*lead, *own.shape), dtype=object)
            values[name][row.index] = own
        if "in/y_bar" in inputs:
            seeds += [(y, inputs.get("in/y_bar", *row.index, t).value) for t, y in enumerate(reads)]


def _balls(x: Matrix) -> Array:
    """The entries of a column."""
    return np.array([*x.value.entries(), None], dtype=object)[:-1]


def _store(
    values: dict[str, Array],
    name: str,
    x: Matrix,
    shape: tuple[int, ...],
    at: tuple[int, ...],
    lead: tuple[int, ...],
) -> None:
    if name not in values:
        values[name] = np.empty((*lead, *shape), dtype=object)
    values[name][at] = _balls(x).reshape(shape) if shape else x.value[0, 0]


def _differentiate(
    inputs: Inputs, seeds: list[tuple[Matrix, arb_mat]], slopes: dict[str, Array]
) -> None:
    """Add the derivative of the weighed sum of results by each slice of an input."""
    leaves = [(key, matrix) for key, matrix in inputs.slices.items() if matrix.live]
    found = cotangents(seeds, [matrix for _, matrix in leaves])
    for ((name, place), matrix), slope in zip(leaves, found, strict=True):
        if slope is not None:
            target = slopes["grad/" + name.removeprefix("in/")]
            added = np.empty((matrix.rows, matrix.columns), dtype=object)
            added[...] = slope.tolist()
            target[place] = target[place] + added.reshape(np.shape(target[place]))
