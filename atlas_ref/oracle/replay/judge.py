"""The verdict on one recorded op: error over tolerance at every token and leading index, and the
first wrong cell.

Specified in specs/replay.md (REPLAY-13 to REPLAY-15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.judge.arrays import decisive
from atlas_ref.oracle.judge.op_tolerance import OP_FLOOR
from atlas_ref.oracle.judge.tolerance import MARGINAL, PASS, Tolerance, from_members
from atlas_ref.oracle.norms import FORMATS, Norms, norms
from atlas_ref.oracle.replay.passes import Pass, store
from atlas_ref.oracle.replay.recorded import Recorded
from atlas_ref.types import Array

#: Name of the truth as the only member, where the floor alone decides an op.
FLOOR_ALONE = "the floor is enough"

#: Multiples of the tolerance up to which more draws are made: twice those of MARGINAL.
DOUBT = 2 * MARGINAL


class Cells(NamedTuple):
    """The cells of an op, one per leading index and token, each with its own verdict.

    Attributes:
        tokens: of the last axis of cells; (None,) for an op without tokens.
        tail: shape of one cell.
        got, want (cells..., entries): cells are the leading axes, then tokens; 0 in entries without
            an influence.
        counts: which entries have one, in the same shape.
        dtype: format of the recorded op.
    """

    tokens: tuple[int | None, ...]
    tail: tuple[int, ...]
    got: Array
    want: Array
    counts: Array
    dtype: str


class Ensemble(NamedTuple):
    """The values of an op by every member, at some of its tokens.

    Attributes:
        members (leading axes, entries): by place of the token among the op's, then by name.
        spread (norms, cells...): the largest error of a member, 0 at the other tokens.
    """

    members: dict[int, dict[str, Array]]
    spread: Array

    def with_more(self, other: Ensemble) -> Ensemble:
        """This one, and at the tokens of the other one, which has all of its members, that one."""
        return Ensemble(self.members | other.members, np.maximum(self.spread, other.spread))


class Judgement(NamedTuple):
    """The first wrong cell of an op, or the worst one where it is right.

    Attributes:
        ratio (cells...): error over tolerance, in the worst of the three norms; 0 where a cell
            cannot be judged.
        open: tokens with cells that cannot be judged, since their inputs are not finite.
        decidable: whether any cell can be judged.
        worst: the largest ratio.
        tokens: of the last axis of `ratio`. cell: the one that the rest is about.
        token, place: of the first wrong cell, or of the worst; the place is the index of the entry
            without the token.
        got, want: there.
        error: in the norm that decides. norm: its name. tolerance: of that cell.
        spread (norms, cells...): the largest error of a member.
    """

    ratio: Array
    open: tuple[int | None, ...]
    decidable: bool
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
        tokens = (
            tuple(range(each.values.shape[lead]))
            if None in computed
            else tuple(sorted(t for t in computed if t is not None))
        )
    places = (
        tokens
        if each.labels is None
        else tuple(each.labels.index(t) for t in tokens if t is not None)
    )
    head = (slice(None),) * lead
    got = (
        np.stack([each.values[(*head, t)] for t in places], axis=lead)
        if sequence
        else np.expand_dims(each.values, lead)
    )
    shape = got.shape[: lead + 1]
    masks = truth.counts.get(each.op)
    counts = np.broadcast_to(
        np.stack([masks[t] for t in tokens]) if masks else np.ones((), bool), got.shape
    ).reshape(*shape, -1)
    want = _gather(computed, tokens, lead, sequence).astype(np.float64).reshape(*shape, -1)
    tail, got = got.shape[lead + 1 :], got.reshape(*shape, -1)
    # an overflow that recording alone made
    got = np.where(np.isinf(got) & (store(want, each.dtype) == got), want, got)
    return Cells(
        tokens, tail, np.where(counts, got, 0.0), np.where(counts, want, 0.0), counts, each.dtype
    )


def _gather(
    values: Mapping[int | None, Any], tokens: Sequence[int | None], lead: int, sequence: bool
) -> Array:
    """Values of some tokens, (leading axes, tokens, ...)."""
    if None in values:
        whole = np.asarray(values[None])
        return (
            np.take(whole, [t for t in tokens if t is not None], axis=lead)
            if sequence
            else np.expand_dims(whole, lead)
        )
    return np.stack([np.asarray(values[t]) for t in tokens], axis=lead)


def tokens_above_floor(op_cells: Cells) -> tuple[int | None, ...]:
    """Tokens with an error above the floor, which the ensemble decides (REPLAY-13)."""
    over = ratios(op_cells, np.zeros((3, *op_cells.got.shape[:-1])))
    return _tokens_of(op_cells, over > 1.0)


def _tokens_of(op_cells: Cells, where: Array) -> tuple[int | None, ...]:
    """Tokens with a cell of a kind, at any leading index."""
    return tuple(
        op_cells.tokens[i] for i in np.nonzero(where.reshape(-1, where.shape[-1]).any(axis=0))[0]
    )


def ensemble(
    op_cells: Cells, op: str, tokens: Sequence[int | None], members: Sequence[Pass]
) -> Ensemble:
    """The members' values of an op at some tokens."""
    lead = op_cells.got.ndim - 2
    places = tuple(op_cells.tokens.index(t) for t in tokens)
    counts = op_cells.counts[..., list(places), :]
    by_member = {}
    for member in members if tokens else ():
        values = store(
            _gather(member.values[op], tokens, lead, op_cells.tokens != (None,)), op_cells.dtype
        )
        by_member[member.name] = np.where(counts, values.reshape(counts.shape), 0.0)
    spread = np.zeros((3, *op_cells.got.shape[:-1]))
    if by_member:
        with np.errstate(all="ignore"):
            errors = [
                norms_of(each - op_cells.want[..., list(places), :]) for each in by_member.values()
            ]
        spread[..., list(places)] = np.max(errors, axis=0)
    return Ensemble(
        {
            place: {name: values[..., i, :] for name, values in by_member.items()}
            for i, place in enumerate(places)
        },
        spread,
    )


def tokens_in_doubt(op_cells: Cells, others: Ensemble) -> tuple[int | None, ...]:
    """Tokens with an error beyond PASS that more draws may let pass (REPLAY-13)."""
    ratio = ratios(op_cells, others.spread)
    doubt = (ratio > PASS) & (ratio <= DOUBT)
    return _tokens_of(op_cells, doubt)


def judge(name: str, op_cells: Cells, others: Ensemble, *, backwards: bool = False) -> Judgement:
    """Error over tolerance of every cell, and the first wrong one: tokens first, then leading
    indices (REPLAY-13).

    Args:
        backwards: whether the op is computed from the last token to the first, as adjoints are.
    """
    ratio = ratios(op_cells, others.spread)
    wrong = ratio > MARGINAL
    cell = _first(wrong if wrong.any() else ratio == np.max(ratio, initial=0.0), backwards)
    got, want = op_cells.got[cell], op_cells.want[cell]
    with np.errstate(all="ignore"):
        tolerance = from_members(
            name, want, _members_at(op_cells, others, cell), op_cells.dtype, units=OP_FLOOR
        )
        error = Norms(*(np.inf if np.isnan(each) else each for each in norms(got - want)))
    norm = decisive(error, tolerance.norms)
    entry = _entry(got, want, MARGINAL * tolerance.max)
    undecidable = ~np.isfinite(op_cells.want).all(axis=-1)
    return Judgement(
        ratio=ratio,
        open=_tokens_of(op_cells, undecidable),
        decidable=not undecidable.all(),
        worst=float(np.max(ratio, initial=0.0)),
        tokens=op_cells.tokens,
        cell=cell,
        token=op_cells.tokens[cell[-1]],
        place=(*cell[:-1], *(int(i) for i in np.unravel_index(entry, op_cells.tail)))
        if op_cells.tail
        else cell[:-1],
        got=float(got[entry]),
        want=float(want[entry]),
        error=getattr(error, norm),
        norm=norm,
        tolerance=tolerance,
        spread=others.spread,
    )


def _members_at(op_cells: Cells, others: Ensemble, cell: tuple[int, ...]) -> dict[str, Array]:
    """The members' values in a cell; the truth instead at a token that the floor decides."""
    if cell[-1] not in others.members:
        return {FLOOR_ALONE: op_cells.want[cell]}
    return {name: values[cell[:-1]] for name, values in others.members[cell[-1]].items()}


def ratios(op_cells: Cells, spread: Array) -> Array:
    """Error over tolerance of every cell, `from_members` for all of them at once; 0 where a cell
    cannot be judged.

    Args:
        spread: the largest error of a member in each norm.
    """
    with np.errstate(all="ignore"):
        allowed = spread + OP_FLOOR * ulps(norms_of(op_cells.want), op_cells.dtype)
        errors = norms_of(op_cells.got - op_cells.want)
        over = np.where(
            errors == 0.0, 0.0, errors / np.where(allowed > 0.0, allowed, np.finfo(float).tiny)
        )
    over = np.where(np.isfinite(op_cells.got).all(axis=-1), over, np.inf)
    worst = np.max(np.where(np.isnan(over), np.inf, over), axis=0)
    return np.where(np.isfinite(op_cells.want).all(axis=-1), worst, 0.0)


def norms_of(x: Array) -> Array:
    """Largest magnitude, root mean square and 99th percentile over the last axis, (3, ...):
    `norms.norms` cell by cell.
    """
    size = np.abs(x)
    count = size.shape[-1]
    top = size.max(axis=-1)
    safe = np.where((top > 0.0) & np.isfinite(top), top, 1.0)
    rank = count - 1 - count // 100
    return np.stack(
        [
            top,
            safe * np.sqrt(np.mean((size / safe[..., None]) ** 2, axis=-1)),
            np.partition(size, rank, axis=-1)[..., rank],
        ]
    )


def ulps(scale: Array, dtype: str) -> Array:
    """`norms.ulp` of every number."""
    _, bits, least = FORMATS[dtype]
    exponent = np.where(scale > 0.0, np.frexp(scale)[1] - 1, least)
    return np.where(
        np.isfinite(scale),
        np.ldexp(1.0, np.maximum(np.maximum(exponent, least) - bits, -1074)),
        scale,
    )


def at(judgement: Judgement, token: int | None) -> float | None:
    """The worst ratio of an op at a token; None where it has none there."""
    if token not in judgement.tokens:
        return None
    return float(judgement.ratio[..., judgement.tokens.index(token)].max(initial=0.0))


def earlier_tokens(judgement: Judgement, *, backwards: bool) -> list[int]:
    """Tokens of an op that are computed before the token of its judgement."""
    tokens = [t for t in judgement.tokens if t is not None]
    if judgement.token is None:
        return []
    return [t for t in tokens if (t > judgement.token if backwards else t < judgement.token)]


def right_at(judgement: Judgement, tokens: list[int]) -> bool:
    """Whether an op is right at all of these tokens."""
    return all((at(judgement, t) or 0.0) <= PASS for t in tokens)


def _first(where: Array, backwards: bool) -> tuple[int, ...]:
    """The first True, tokens (the last axis) before leading indices."""
    by_token = np.moveaxis(where, -1, 0)
    t, *lead = (
        int(i)
        for i in np.unravel_index(
            int(np.argmax(by_token[::-1] if backwards else by_token)), by_token.shape
        )
    )
    return (*lead, len(by_token) - 1 - t if backwards else t)


def _entry(got: Array, want: Array, allowed: float) -> int:
    """The first entry that is not finite or errs beyond the largest allowed, else the worst."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(got - want)
    bad = ~np.isfinite(got) | (gap > allowed)
    return int(np.argmax(bad)) if bad.any() else int(np.argmax(np.where(np.isnan(gap), -1.0, gap)))
