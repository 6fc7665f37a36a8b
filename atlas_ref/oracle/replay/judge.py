"""The verdict on one recorded op: error over tolerance at every token and leading index, and the first that is wrong.

Specified in specs/replay.md (REPLAY-13 to REPLAY-15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.judge.norms import FORMATS, Norms, norms
from atlas_ref.oracle.judge.tolerance import MARGINAL, OP_FLOOR, PASS, Tolerance, decisive, from_members
from atlas_ref.oracle.replay.passes import Pass, stored
from atlas_ref.oracle.replay.recorded import Recorded
from atlas_ref.types import Array

#: What stands for the ensemble where the floor alone settles an op.
NOT_ASKED = "the floor is enough"


class Cells(NamedTuple):
    """An op cut into cells, one per leading index and token, each judged on its own.

    Attributes:
        tokens: of the last axis of cells; (None,) for an op without tokens.
        tail: shape of one cell.
        got, want (cells..., entries): cells are the leading axes, then tokens; 0 in entries without an influence.
        counts: which have one, for entries of the same shape.
        dtype: format that the op was recorded in.
    """

    tokens: tuple[int | None, ...]
    tail: tuple[int, ...]
    got: Array
    want: Array
    counts: Array
    dtype: str


class Ensemble(NamedTuple):
    """What the members computed for an op, at the tokens at which they were asked.

    Attributes:
        places: of those tokens among all of the op's.
        members (leading axes, places, entries): by name.
        spread (norms, cells...): the largest error of a member, 0 where none was asked.
    """

    places: tuple[int, ...]
    members: dict[str, Array]
    spread: Array


class Judged(NamedTuple):
    """Where an op is wrong first, or worst where it is right.

    Attributes:
        ratio (cells...): error over tolerance, in the worst of the three norms; 0 where a cell cannot be judged.
        open: tokens with cells that cannot be judged, since what they were computed from is not finite. judged: whether any can.
        worst: the largest ratio.
        tokens: of the last axis of `ratio`. cell: the one that the rest is about.
        token, place: of the first wrong cell, or of the worst; the place is the index of the entry without the token.
        got, want: there.
        error: in the norm that decides. norm: its name. tolerance: of that cell.
        spread (norms, cells...): the largest error of a member.
    """

    ratio: Array
    open: tuple[int | None, ...]
    judged: bool
    worst: float
    tokens: tuple[int | None, ...]
    cell: tuple[int, ...]
    token: int | None
    place: tuple[int, ...]
    got: float
    want: float
    error: float
    norm: str
    tolerance: Tolerance
    spread: Array


def cells(each: Recorded, lead: int, truth: Pass, *, sequence: bool) -> Cells | None:
    """An op's recorded values beside the truth; None where no token computes it.

    Args:
        lead: how many leading axes there are. sequence: whether the rule has tokens.
    """
    computed = truth.values.get(each.op, {})
    if not computed:
        return None
    if not sequence:
        tokens: tuple[int | None, ...] = (None,)
    else:
        tokens = tuple(range(each.values.shape[lead])) if None in computed else tuple(sorted(t for t in computed if t is not None))
    places = tokens if each.labels is None else tuple(each.labels.index(t) for t in tokens if t is not None)
    head = (slice(None),) * lead
    got = np.stack([each.values[(*head, t)] for t in places], axis=lead) if sequence else np.expand_dims(each.values, lead)
    shape = got.shape[: lead + 1]
    counted = truth.counts.get(each.op)
    counts = np.broadcast_to(np.stack([counted[t] for t in tokens]) if counted else np.ones((), bool), got.shape).reshape(*shape, -1)
    want = _gathered(computed, tokens, lead, sequence).astype(np.float64).reshape(*shape, -1)
    tail, got = got.shape[lead + 1 :], got.reshape(*shape, -1)
    got = np.where(np.isinf(got) & (stored(want, each.dtype) == got), want, got)  # an overflow that recording alone made
    return Cells(tokens, tail, np.where(counts, got, 0.0), np.where(counts, want, 0.0), counts, each.dtype)


def _gathered(values: Mapping[int | None, Any], tokens: Sequence[int | None], lead: int, sequence: bool) -> Array:
    """Values of some tokens, (leading axes, tokens, ...)."""
    if None in values:
        whole = np.asarray(values[None])
        return np.take(whole, [t for t in tokens if t is not None], axis=lead) if sequence else np.expand_dims(whole, lead)
    return np.stack([np.asarray(values[t]) for t in tokens], axis=lead)


def unsettled(given: Cells) -> tuple[int | None, ...]:
    """Tokens at which an error is beyond the floor alone, so that the ensemble has to be asked (REPLAY-13)."""
    over = ratios(given, np.zeros((3, *given.got.shape[:-1])))
    return tuple(given.tokens[i] for i in np.nonzero((over > 1.0).reshape(-1, over.shape[-1]).any(axis=0))[0])


def ensemble(given: Cells, op: str, asked: Sequence[int | None], members: Sequence[Pass]) -> Ensemble:
    """What the members say about an op at some tokens."""
    lead = given.got.ndim - 2
    places = tuple(given.tokens.index(t) for t in asked)
    counts = given.counts[..., list(places), :]
    found = {}
    for made in members if asked else ():
        values = stored(_gathered(made.values[op], asked, lead, given.tokens != (None,)), given.dtype)
        found[made.name] = np.where(counts, values.reshape(counts.shape), 0.0)
    spread = np.zeros((3, *given.got.shape[:-1]))
    if found:
        with np.errstate(all="ignore"):
            errors = [norms_of(each - given.want[..., list(places), :]) for each in found.values()]
        spread[..., list(places)] = np.max(errors, axis=0)
    return Ensemble(places, found, spread)


def judge(name: str, given: Cells, others: Ensemble, *, backwards: bool = False) -> Judged:
    """Error over tolerance of every cell, and the first wrong one: tokens first, then leading indices (REPLAY-13).

    Args:
        backwards: whether the op is computed from the last token to the first, as adjoints are.
    """
    ratio = ratios(given, others.spread)
    wrong = ratio > MARGINAL
    cell = _first(wrong if wrong.any() else ratio == np.max(ratio, initial=0.0), backwards)
    got, want = given.got[cell], given.want[cell]
    with np.errstate(all="ignore"):
        tolerance = from_members(name, want, _members_at(given, others, cell), given.dtype, units=OP_FLOOR)
        error = Norms(*(np.inf if np.isnan(each) else each for each in norms(got - want)))
    norm = decisive(error, tolerance.norms)
    entry = _entry(got, want, MARGINAL * tolerance.max)
    unjudged = ~np.isfinite(given.want).all(axis=-1)
    return Judged(
        ratio=ratio,
        open=tuple(given.tokens[i] for i in np.nonzero(unjudged.reshape(-1, unjudged.shape[-1]).any(axis=0))[0]),
        judged=not unjudged.all(),
        worst=float(np.max(ratio, initial=0.0)),
        tokens=given.tokens,
        cell=cell,
        token=given.tokens[cell[-1]],
        place=(*cell[:-1], *(int(i) for i in np.unravel_index(entry, given.tail))) if given.tail else cell[:-1],
        got=float(got[entry]),
        want=float(want[entry]),
        error=getattr(error, norm),
        norm=norm,
        tolerance=tolerance,
        spread=others.spread,
    )


def _members_at(given: Cells, others: Ensemble, cell: tuple[int, ...]) -> dict[str, Array]:
    """The members' values in a cell; where none was asked, the truth stands for them."""
    if cell[-1] not in others.places:
        return {NOT_ASKED: given.want[cell]}
    place = (*cell[:-1], others.places.index(cell[-1]))
    return {name: values[place] for name, values in others.members.items()}


def ratios(given: Cells, spread: Array) -> Array:
    """Error over tolerance of every cell, `from_members` for all of them at once; 0 where a cell cannot be judged.

    Args:
        spread: the largest error of a member in each norm.
    """
    with np.errstate(all="ignore"):
        allowed = spread + OP_FLOOR * ulps(norms_of(given.want), given.dtype)
        errors = norms_of(given.got - given.want)
        over = np.where(errors == 0.0, 0.0, errors / np.where(allowed > 0.0, allowed, np.finfo(float).tiny))
    over = np.where(np.isfinite(given.got).all(axis=-1), over, np.inf)
    worst = np.max(np.where(np.isnan(over), np.inf, over), axis=0)
    return np.where(np.isfinite(given.want).all(axis=-1), worst, 0.0)


def norms_of(x: Array) -> Array:
    """Largest magnitude, root mean square and 99th percentile over the last axis, (3, ...): `norms.norms` cell by cell."""
    size = np.abs(x)
    count = size.shape[-1]
    top = size.max(axis=-1)
    safe = np.where((top > 0.0) & np.isfinite(top), top, 1.0)
    rank = count - 1 - count // 100
    return np.stack([top, safe * np.sqrt(np.mean((size / safe[..., None]) ** 2, axis=-1)), np.partition(size, rank, axis=-1)[..., rank]])


def ulps(scale: Array, dtype: str) -> Array:
    """`norms.ulp` of every number."""
    _, bits, least = FORMATS[dtype]
    exponent = np.where(scale > 0.0, np.frexp(scale)[1] - 1, least)
    return np.where(np.isfinite(scale), np.ldexp(1.0, np.maximum(np.maximum(exponent, least) - bits, -1074)), scale)


def at(given: Judged, token: int | None) -> float | None:
    """The worst ratio of an op at a token; None where it has none there."""
    if token not in given.tokens:
        return None
    return float(given.ratio[..., given.tokens.index(token)].max(initial=0.0))


def earlier_tokens(given: Judged, *, backwards: bool) -> list[int]:
    """Tokens of an op that come before the one that it is judged by, in the order in which they are computed."""
    tokens = [t for t in given.tokens if t is not None]
    if given.token is None:
        return []
    return [t for t in tokens if (t > given.token if backwards else t < given.token)]


def right_at(given: Judged, tokens: list[int]) -> bool:
    """Whether an op is right at all of these tokens."""
    return all((at(given, t) or 0.0) <= PASS for t in tokens)


def _first(where: Array, backwards: bool) -> tuple[int, ...]:
    """The first True, tokens (the last axis) before leading indices."""
    by_token = np.moveaxis(where, -1, 0)
    t, *lead = (int(i) for i in np.unravel_index(int(np.argmax(by_token[::-1] if backwards else by_token)), by_token.shape))
    return (*lead, len(by_token) - 1 - t if backwards else t)


def _entry(got: Array, want: Array, allowed: float) -> int:
    """The first entry that is not finite or beyond what is allowed of the largest one; the worst where none is."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(got - want)
    bad = ~np.isfinite(got) | (gap > allowed)
    return int(np.argmax(bad)) if bad.any() else int(np.argmax(np.where(np.isnan(gap), -1.0, gap)))
