"""The smallest case that tells some conventions apart, from y alone (IDENT-8)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import Convention, resolve
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.tensors import main_result
from atlas_ref.oracle.family import candidates, lattice
from atlas_ref.oracle.family.facts import facts, refusal
from atlas_ref.oracle.identify.score import seen_as
from atlas_ref.oracle.judge.tolerance import MARGINAL, tolerances
from atlas_ref.oracle.norms import norms
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import names_with
from atlas_ref.types import Array

#: Numbers of tokens to try, and seeds of each.
TOKENS, SEEDS = (1, 2, 3, 4, 5, 6, 8, 12), 3

#: Tolerances that two conventions must be apart.
APART = 2.0 * MARGINAL

#: Conventions nearest to each one that are compared by the tolerance; the others are further away.
CLOSEST = 64

#: Relative distance below which no tolerance of a format is small enough, so that it need not be
#: measured.
LEAST = {"float64": 1e-13, "float32": 1e-6, "float16": 5e-3, "bfloat16": 4e-2}


class Design(NamedTuple):
    """Settings that are varied beside the seed.

    Attributes:
        scales: one head for each, whose values are this small and whose states are zero, so that
            eps and guard show.
        lengths: one further head for each, whose normed keys and queries are this small, so that
            norm_eps and norm_guard show.
    """

    tokens: int
    d_in: int
    d_out: int
    window: int
    span: int | None
    scales: tuple[float, ...]
    lengths: tuple[float, ...] = ()


def deciding_case(case: Case, conventions: Sequence[Any], *, dtype: str = "float32") -> Case | None:
    """The case with the fewest tokens whose y separates every two conventions beyond rounding.

    Where one exists, it also tells each of them from everything that is one change away from the
    first, so that results on it alone have one answer.

    Args:
        case: one that they agree on; the new one has its rule, level, feature map and window
            weights.
        conventions: or, for a subject that has readings of its own, those that fit.
        dtype: format in which results will be compared.

    Returns:
        a case under the first convention that it can be stated with, or None where no trial
        decides.
    """
    search = SUBJECTS[case.header.rule].search
    return None if search is None else search.deciding(case, conventions, dtype)


def deciding_convention(case: Case, conventions: Sequence[Convention], dtype: str) -> Case | None:
    """The same of conventions; None where no trial decides (IDENT-8)."""
    for alone in (True, False):
        for design in _designs(case, conventions):
            for seed in range(1 if design.scales or design.lengths else SEEDS):
                trial = _trial(case, conventions, design, seed, dtype)
                if trial is not None and separates(
                    trial, conventions, _beside(trial, conventions) if alone else [], dtype
                ):
                    return trial
    return None


def _beside(case: Case, conventions: Sequence[Convention]) -> list[Convention]:
    """Neighbours of the first convention that are none of those to tell apart.

    They are one change away, two for the small rules.
    """
    of = facts(case)
    own = {lattice.fold(of, lattice.point(each)) for each in conventions}
    depth = 1 if case.header.rule in names_with("has_window") else 2
    near = lattice.around(
        lattice.point(conventions[0]),
        lattice.tried_values(conventions[0], case.header.rule, case.inputs),
        depth,
    )
    points = dict.fromkeys(lattice.fold(of, each) for each in near)
    neighbours = [lattice.convention(each) for each in points if each not in own]
    return [each for each in neighbours if refusal(of, each) is None]


def separates(
    case: Case, conventions: Sequence[Convention], others: Sequence[Convention], dtype: str
) -> bool:
    """Whether y differs by more than the format rounds.

    Between every two conventions, and between each of them and the others.
    """
    name = main_result(case.header)
    flat = _flat(case, [*conventions, *others], name)
    if not np.isfinite(flat).all():
        return False
    count = len(conventions)
    size = np.linalg.norm(flat[:count], axis=1).max()
    gaps = [
        (i, i + 1 + np.argsort(np.linalg.norm(flat[i + 1 :] - flat[i], axis=1)))
        for i in range(min(count, len(flat) - 1))
    ]
    if not size or any(
        np.linalg.norm(flat[i] - flat[order[0]]) < LEAST[dtype] * size for i, order in gaps
    ):
        return False
    bound = tolerances(seen_as(case, conventions[0]), dtype=dtype, only=[name], alternatives=False)[
        name
    ].norms
    return all(
        norms(flat[i] - flat[j]).over(bound) > APART for i, order in gaps for j in order[:CLOSEST]
    )


def _flat(case: Case, conventions: Sequence[Convention], name: str) -> Array:
    """One result of every convention, (conventions, numbers)."""
    rows: list[Array] = [np.zeros(0)] * len(conventions)
    with np.errstate(all="ignore"):
        for numbers, results in candidates.evaluate(case, convert(case, "float64"), conventions):
            for place, number in enumerate(numbers):
                rows[number] = results[name][place].ravel()
    return np.stack(rows)


def _designs(case: Case, conventions: Sequence[Convention]) -> Iterator[Design]:
    h = case.header
    layouts = {each.layout for each in conventions}
    scales, lengths = _scales(conventions), _lengths(conventions)
    spans = (
        list(dict.fromkeys([h.span if h.span is not None else 2, 2, 3]))
        if _needs_span(conventions)
        else [h.span]
    )
    d_out = 3 if len(layouts) > 1 else 5  # at 4, 2/d_out is one half
    for tokens in TOKENS if SUBJECTS[h.rule].has_tokens else TOKENS[:1]:
        for span in spans:
            yield Design(tokens, 3, d_out, h.window, span, ())
            if scales or lengths:
                yield Design(tokens, 3, d_out, h.window, span, scales, lengths)


def _needs_span(conventions: Sequence[Convention]) -> bool:
    return any("chunk_start" in (each.reference, each.read) for each in conventions)


def _scales(conventions: Sequence[Convention]) -> tuple[float, ...]:
    """Sizes at which different eps and guards show: at and below every eps."""
    settings = [
        each.newton_schulz for each in conventions if isinstance(each.newton_schulz, NewtonSchulz)
    ]
    if len({(each.eps, each.guard) for each in settings}) < 2:
        return ()
    sizes = sorted({each.eps for each in settings if each.eps > 0.0}, reverse=True)
    return tuple(size * factor for size in sizes for factor in (20.0, 1.0, 0.05))


def _lengths(conventions: Sequence[Convention]) -> tuple[float, ...]:
    """Lengths of keys at which different norm_eps and norm_guard show: at every eps and its root."""
    normed = [each for each in conventions if (each.k_norm, each.q_norm) != ("none", "none")]
    if len({(each.norm_eps, each.norm_guard) for each in normed}) < 2:
        return ()
    sizes = {each.norm_eps for each in normed}
    return tuple(sorted({*sizes, *(math.sqrt(size) for size in sizes)}, reverse=True))


def _trial(
    case: Case, conventions: Sequence[Convention], design: Design, seed: int, dtype: str
) -> Case | None:
    """A case of a design that every convention can be evaluated on."""
    for convention in conventions:
        request = _request(
            case, convention, design, seed, "float32" if dtype == "float64" else dtype
        )
        try:
            trial = new(request, name="deciding case")
            trial = _scale(trial, design) if design.scales else trial
            trial = _shorten(trial, design, convention) if design.lengths else trial
        except (CaseError, ValueError):
            continue
        of = facts(trial)
        if all(refusal(of, each) is None for each in conventions):
            return trial
    return None


def _request(case: Case, convention: Convention, design: Design, seed: int, dtype: str) -> Request:
    h = case.header
    plain = h.plain()
    return Request(
        draw=1,
        rule=h.rule,
        level=h.level,
        tokens=design.tokens,
        d_in=design.d_in,
        d_out=design.d_out,
        heads=1 + len(design.scales) + len(design.lengths),
        window=design.window,
        span=design.span,
        seed=seed,
        dtype=dtype,
        convention=_state(convention, h.rule) or "spec",
        feature_map=plain.get("feature_map", {}),
        window_weights=plain.get("window_weights") or {},
    )


def _state(convention: Convention, rule: str) -> dict[str, Any]:
    """A convention as a header states it: its differences from `spec`."""
    axes, spec = convention.model_dump(mode="json"), resolve("spec", rule=rule)
    plain = spec.model_dump(mode="json")
    changes = {axis: value for axis, value in axes.items() if value != plain[axis]}
    if not SUBJECTS[rule].has_newton_schulz:
        changes.pop("newton_schulz", None)
    elif isinstance(changes.get("newton_schulz"), dict):
        changes["newton_schulz"] = {
            key: value
            for key, value in changes["newton_schulz"].items()
            if value != plain["newton_schulz"][key]
        }
    if rule in names_with("has_newton_schulz") and "newton_schulz" in changes:
        changes["rate"] = axes["rate"]  # whose default follows Newton-Schulz
    return changes


def _scale(case: Case, design: Design) -> Case:
    """A case whose heads but the first have tiny values and zero states.

    At level projected they have one write alone.

    From such a start every further write multiplies rounding by the slope of Newton-Schulz at 0,
    until nothing is left of it.
    """
    sizes = np.array([1.0, *design.scales, *(1.0 for _ in design.lengths)])
    small = slice(1, 1 + len(design.scales))
    inputs, subject = dict(case.inputs), SUBJECTS[case.header.rule]
    if not subject.has_tokens:
        inputs[subject.argument] = _times(inputs[subject.argument], sizes, 0)
    elif case.header.level == "token":
        inputs["in/param/W_V"] = _times(inputs["in/param/W_V"], sizes, 0)
    else:
        inputs["in/v"] = _times(inputs["in/v"], sizes, 0)
    for name in ("in/momentum", "in/step_size", "in/step_size_memory"):
        if name in inputs:
            gate = np.array(inputs[name])
            gate[small, 1:] = 0.0
            inputs[name] = gate
    for name in ("in/M0", "in/S0"):
        if name in inputs:
            inputs[name] = _times(
                inputs[name], (sizes == 1.0).astype(float), 1 if case.header.level == "token" else 0
            )
    return make(case.header.plain(), inputs, name=case.name)


def _shorten(case: Case, design: Design, convention: Convention) -> Case:
    """A case whose last heads have tiny keys and queries, where these are normed."""
    sizes = np.array([1.0, *(1.0 for _ in design.scales), *design.lengths])
    token, inputs = case.header.level == "token", dict(case.inputs)
    kinds = {"k": convention.k_norm, "q": convention.q_norm}
    for name in (name for name, kind in kinds.items() if kind != "none"):
        held = f"in/param/W_{name.upper()}" if token else f"in/{name}"
        inputs[held] = _times(inputs[held], sizes, 0)
    return make(case.header.plain(), inputs, name=case.name)


def _times(x: Array, sizes: Array, axis: int) -> Array:
    shape = [1] * x.ndim
    shape[axis] = -1
    return (x.astype(np.float64) * sizes.reshape(shape)).astype(x.dtype)
