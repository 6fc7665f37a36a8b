"""Results of a case under many conventions at once, for ranking them (IDENT-3).

Conventions of one control flow are evaluated together, with an axis in front; Newton-Schulz takes
its settings along it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases import masks
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family import family, prepare, steps
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.family.state import Inputs, Outputs, Structure
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.parts.newton_schulz import NewtonSchulz, coefficient_table
from atlas_ref.types import Array

#: Numbers that one array of a group may hold; more conventions are evaluated in several rounds.
ROUND = 2**18

#: Arrays that are combined with others along the axis of conventions, and so have it in full.
REPEATED = (
    "keys",
    "window_keys",
    "targets",
    "window_targets",
    "residuals",
    "momenta",
    "M0",
    "S0",
    "reference",
)

#: Results of some conventions: name -> (convention, ...) array.
Results = dict[str, Array]


def evaluate(
    case: Case,
    inputs: Mapping[str, Array],
    conventions: Sequence[Convention],
    *,
    columns: bool = False,
) -> Iterator[tuple[list[int], Results]]:
    """Results of every convention, in groups: the numbers of its conventions, and results with them
    in front.

    Results are in the layout and momentum_sign of each convention where the shapes allow, as files
    have them.

    Args:
        inputs: of the case, float64, or complex for derivatives along a direction.
        columns: whether the retain gate of a square memory scales columns, see `Mistake`.
    """
    subject = SUBJECTS[case.header.rule]
    if subject.needs_newton_schulz:
        argument = inputs[subject.argument]
        for numbers in _rounds(range(len(conventions)), argument.size):
            group = [conventions[i] for i in numbers]
            yield numbers, {subject.result(case.header): orthogonaliser(group)(argument[None])}
        return
    if any(inputs[name].ndim > 1 for name in masks.MASKS if name in inputs):
        yield from _by_row(case, inputs, conventions, columns=columns)
        return
    prepared = prepare.Prepared(case.header, inputs)
    groups: dict[Any, list[int]] = defaultdict(list)
    for number, each in enumerate(conventions):
        groups[(prepare.structure(each, case.header), each.layout)].append(number)
    for (structure, _), members in groups.items():
        for numbers in _rounds(members, _size(prepared, case)):
            group = [conventions[i] for i in numbers]
            padded = group if len(group) > 1 else group * 2  # one convention has no axis in front
            stack = prepared.stack(padded)
            stack = _by_column(stack) if columns else stack
            full = {name: _repeat(getattr(stack, name), len(padded)) for name in REPEATED}
            outputs = _run(structure, stack._replace(**full), orthogonaliser(padded))
            yield (
                numbers,
                {
                    name: value[: len(group)]
                    for name, value in _name_results(case, padded, outputs).items()
                },
            )


def _by_row(
    case: Case, inputs: Mapping[str, Array], conventions: Sequence[Convention], *, columns: bool
) -> Iterator[tuple[list[int], Results]]:
    """Results of every convention by itself, where masks differ by row (CONV-68)."""

    def call(own: Mapping[str, Array]) -> Results:
        return {
            f"{number}:{name}": value[place]
            for numbers, results in evaluate(case, own, conventions, columns=columns)
            for place, number in enumerate(numbers)
            for name, value in results.items()
        }

    found = masks.by_row(case, inputs, call)
    for number in range(len(conventions)):
        start = f"{number}:"
        own = {n.removeprefix(start): x for n, x in found.items() if n.startswith(start)}
        yield [number], {name: value[None] for name, value in own.items()}


def _run(structure: Structure, inputs: Inputs, orthogonalise: Callable[[Array], Array]) -> Outputs:
    return family.run(structure, inputs, lambda S, t: orthogonalise(S))


def _by_column(stack: Inputs) -> Inputs:
    """The inputs with a retain gate (..., T, 1, d_phi) that scales columns of M."""
    gates = (None if x is None else np.swapaxes(x, -1, -2) for x in (stack.retain, stack.decay))
    retain, decay = gates
    return stack._replace(retain=retain, decay=decay)


def _size(prepared: prepare.Prepared, case: Case) -> int:
    k, v = prepared.k(case.convention), prepared.v(case.convention)
    heads, d_in, d_out = int(math.prod(k.shape[:-2])), int(k.shape[-1]), int(v.shape[-1])
    tokens = int(k.shape[-2])
    return heads * (tokens * (d_in + d_out) + 4 * d_in * d_out)


def _rounds(members: Sequence[int], size: int) -> Iterator[list[int]]:
    step = max(1, ROUND // max(size, 1))
    for i in range(0, len(members), step):
        yield list(members[i : i + step])


def _repeat(x: Array, count: int) -> Array:
    return x if x is None else np.broadcast_to(x, (count, *x.shape[1:]))


def _name_results(case: Case, group: Sequence[Convention], outputs: Outputs) -> Results:
    minus = np.array([each.momentum_sign == "minus" for each in group])
    transposed = group[0].layout == "transposed"

    def matrix(x: Array, *, signed: bool = False) -> Array:
        x = np.broadcast_to(x, (len(group), *x.shape[1:]))
        if signed and minus.any():
            x = np.where(minus.reshape(-1, *[1] * (x.ndim - 1)), -x, x)
        return np.swapaxes(x, -1, -2) if transposed else x

    results = {
        "out/y": np.broadcast_to(outputs.y, (len(group), *outputs.y.shape[1:])),
        "out/M": matrix(outputs.M),
    }
    if outputs.S is not None and {"in/momentum", "in/log_momentum", "in/param/W_momentum"} & set(
        case.inputs
    ):
        results["out/S"] = matrix(outputs.S, signed=True)
    if outputs.M_ref is not None:
        results["out/M_ref"] = matrix(outputs.M_ref)
    return results


def orthogonaliser(group: Sequence[Convention]) -> Callable[[Array], Array]:
    """Newton-Schulz with the settings of each convention along the first axis (NS-1, NS-6,
    NS-9).
    """
    settings = [each.newton_schulz for each in group]
    some = [each for each in settings if isinstance(each, NewtonSchulz)]
    if not some:
        return lambda S: S
    filled = [each if isinstance(each, NewtonSchulz) else some[0] for each in settings]
    if all(each == filled[0] for each in filled):
        filled = filled[:1]
    distinct = list({id(each): each for each in filled}.values())
    numbering = {id(each): i for i, each in enumerate(distinct)}
    place = [numbering[id(each)] for each in filled]
    most = max(each.steps for each in distinct)
    rows = np.array(
        [[*coefficient_table(each), *[(1.0, 0.0, 0.0)] * (most - each.steps)] for each in distinct]
    )[place]
    numbers = {
        key: np.array([getattr(each, key) for each in distinct], np.float64)[place]
        for key in ("eps", "norm_factor")
    }
    words = {
        key: np.array([getattr(each, key) for each in distinct])[place]
        for key in ("guard", "scale")
    }

    def apply(S: Array) -> Array:
        def column(x: Array) -> Array:
            return x.reshape(-1, *[1] * (S.ndim - 1)).astype(
                S.real.dtype if x.dtype.kind == "f" else x.dtype
            )

        eps, guard, scale = column(numbers["eps"]), column(words["guard"]), column(words["scale"])
        norm = _frobenius(S)
        length = column(numbers["norm_factor"]) * norm
        size = np.where(guard == "clamp", np.where(length.real < eps, eps, length), length + eps)
        X = S / np.where(size == 0.0, 1.0, size)
        tall = S.shape[-2] > S.shape[-1]
        X = np.swapaxes(X, -1, -2) if tall else X
        for step in range(most):
            a, b, c = (column(rows[:, step, i]) for i in range(3))
            A = X @ np.swapaxes(X, -1, -2)
            X = a * X + (b * A + c * (A @ A)) @ X
        X = np.swapaxes(X, -1, -2) if tall else X
        if (scale != "1").any():
            root = math.sqrt(max(1.0, S.shape[-2] / S.shape[-1]))
            X = X * np.where(scale == "norm", norm, np.where(scale == "sqrt", root, 1.0))
        return (
            np.where((guard == "return") & (norm.real < eps), S, X)
            if (guard == "return").any()
            else X
        )

    return apply


def _frobenius(S: Array) -> Array:
    """||S||; scaled, so that squares neither overflow nor vanish, and without a modulus, so that a
    complex step passes.
    """
    top = np.max(np.abs(S), axis=(-2, -1), keepdims=True)
    top = np.where(top == 0.0, 1.0, top)
    return np.sqrt(np.sum((S / top) ** 2, axis=(-2, -1), keepdims=True)) * top


def longest(prepared: prepare.Prepared, convention: Convention) -> float:
    """The greatest Frobenius norm of a memory after a write (CONV-67)."""
    lengths: list[float] = []

    def values(op: str, t: int, x: Array) -> Array:
        if op == "M":
            lengths.append(float(np.max(np.linalg.norm(x, axis=(-2, -1)))))
        return x

    def orthogonalise(S: Array, t: int) -> Array:
        return steps.newton_schulz(PLAIN, S, convention.newton_schulz_settings)

    structure = prepare.structure(convention, prepared.header)
    hook = family.value_hook(values)
    family.run(structure, prepared.stack([convention]), orthogonalise, hook=hook)
    return max(lengths, default=0.0)
