"""Replay: every op of a recorded trace evaluated again on its recorded inputs, and the first wrong
one named.

A comparison of results sees the sum of all mistakes. A replay sees each op alone. Specified in
specs/replay.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError, load_results
from atlas_ref.oracle.cases.inputs import check_dtype, check_size, round_inputs
from atlas_ref.oracle.judge.tolerance import MARGINAL, PASS, basis
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.adjoints import PREFIX, require_cotangents
from atlas_ref.oracle.replay.adjoints import clause as adjoint_clause
from atlas_ref.oracle.replay.adjoints import gap as adjoint_gap
from atlas_ref.oracle.replay.chunks import NAMES, chunks
from atlas_ref.oracle.replay.judge import (
    Cells,
    Judgement,
    at,
    cells,
    earlier_tokens,
    ensemble,
    judge,
    right_at,
    tokens_above_floor,
    tokens_in_doubt,
)
from atlas_ref.oracle.replay.nearest import explanation
from atlas_ref.oracle.replay.ops import Op, given_ops, ops_of
from atlas_ref.oracle.replay.passes import DRAWS, MORE_DRAWS, STATES, Passes
from atlas_ref.oracle.replay.recorded import (
    STANDS_FOR,
    Recorded,
    check_header,
    narrowest,
    recorded_ops,
)
from atlas_ref.oracle.replay.sequence import leading, traced_of
from atlas_ref.oracle.replay.trace import require_traced
from atlas_ref.storage import faults

#: Verdicts in the order of reporting.
RANK = {"WRONG": 0, "MARGINAL": 1, "UNDECIDABLE": 2}


class Finding(NamedTuple):
    """The result of a replay for one recorded op (REPLAY-13).

    Attributes:
        case: name of the case.
        op: S, X3, chunk/M, trace_grad/S. tensor: its name in the file, trace/S or out/y.
        verdict: PASS, MARGINAL, WRONG or UNDECIDABLE.
        token, place: of the first wrong entry, or of the worst where none is; the place is its
            index without the token.
        got, expected: the entries there.
        error, norm, tolerance, ratio: the deciding norm of that token and leading index, what is
            allowed, and their quotient.
        basis: where the tolerance comes from.
        gap: ops before this one that were not recorded, so that it was evaluated together with
            them.
        before: in words, the verdicts before it.
        clause: where the op is defined.
        nearest: the convention under which this op would be right; "" where there is none.
        why: in words, where numbers do not say it.
        order: place in the loop.
    """

    case: str
    op: str
    tensor: str
    verdict: str
    token: int | None = None
    place: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None
    error: float | None = None
    norm: str = ""
    tolerance: float | None = None
    ratio: float | None = None
    basis: str = ""
    gap: tuple[str, ...] = ()
    before: str = ""
    clause: str = ""
    nearest: str = ""
    why: str = ""
    order: int = 0


def replay(
    case: Case,
    mine: Mapping[str, Any],
    *,
    dtype: str | None = None,
    chunk: int | None = None,
    label: str = "trace",
    nearest: bool = True,
    progress: Progress = unwatched,
) -> list[Finding]:
    """Evaluate every recorded op again, in float64, on its recorded inputs (REPLAY-11).

    Args:
        mine: `trace/OP`, `trace_grad/OP` and `chunk/NAME` tensors, any subset; out/y stands for
            trace/y where that is absent.
        dtype: the precision that the implementation works in. Inputs are rounded to it first, and
            recorded tensors count as of that format. When None, inputs stay and each tensor is
            judged by its own dtype.
        chunk: tokens of a chunk, for `chunk/...` tensors; that of the case's header when None.
        label: what messages call `mine`.
        nearest: also search for the convention that explains the first wrong op.
        progress: called with "readings", those of the search that were tried, and all.

    Returns:
        one finding per recorded op, in the order of the loop.

    Raises:
        CaseError: nothing to replay, an op that the case does not have, another shape, an unknown
            dtype.
        Unsupported: a reserved rule.
    """
    require_traced(case, "replay")
    if dtype is not None:
        check_dtype(case.name, dtype)
    check_size(case)
    case = case if dtype is None else round_inputs(case, dtype)
    size = chunk if chunk is not None else case.header.chunk
    cut = (
        chunks(case, size)
        if size is not None and traced_of(case).has_chunks and any(map(_of_chunk, mine))
        else None
    )
    trace = recorded_ops(case, mine, cut, label=label)
    if not any(
        each.tensor.startswith(("trace/", "trace_grad/", "chunk/")) for each in trace.values()
    ):
        raise CaseError(f"{label}: no trace/... or chunk/... tensor, so there is nothing to replay")
    if dtype is not None:
        trace = {op: each._replace(dtype=dtype) for op, each in trace.items()}
    if any(name.startswith(PREFIX) for name in trace):
        require_cotangents(case)
    passes = Passes(case, trace, cut)
    parts = _parts(passes, narrowest(trace))
    findings = [_finding(passes, part, parts) for part in parts]
    first = first_wrong(findings)
    if first is None or not nearest or first.verdict != "WRONG":
        return findings
    spread = parts[findings.index(first)].judgement.spread
    words = faults.told(
        "the search",
        lambda: explanation(
            passes, first.op, spread, lambda each: _fits(each, len(parts)), progress
        ),
        str,
    )
    return [each._replace(nearest=words) if each is first else each for each in findings]


def _of_chunk(name: str) -> bool:
    return name.startswith("chunk/")


def replay_file(
    case: Case,
    path: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    nearest: bool = True,
    progress: Progress = unwatched,
) -> list[Finding]:
    """`replay` on the tensors of a file (REPLAY-9).

    Raises:
        CaseError: not a whole case file, a header of another case, and everything that `replay`
            refuses.
    """
    require_traced(case, "replay")
    label = os.fspath(path)
    header, tensors = load_results(label)
    check_header(case, header, label)
    if header.chunk is not None and case.header.chunk is None:
        case = case.replaced(header=case.header.replaced(chunk=header.chunk))
    return replay(case, tensors, dtype=dtype, label=label, nearest=nearest, progress=progress)


def first_wrong(findings: Iterable[Finding]) -> Finding | None:
    """The first finding that is not PASS, a wrong one before a marginal one (REPLAY-15).

    Values come before adjoints: values from the first token on, adjoints, which are computed
    backwards, from the last.
    """

    def place(each: Finding) -> tuple[int, bool, int, int]:
        adjoint = each.op.startswith(PREFIX)
        token = -1 if each.token is None else -each.token if adjoint else each.token
        return (RANK[each.verdict], adjoint, token, each.order)

    return min((each for each in findings if each.verdict != "PASS"), key=place, default=None)


def exit_code(findings: Sequence[Finding]) -> int:
    """Exit code: 0 when every op is PASS, 1 when one is not, 3 when none could be judged.

    Source: CASE-26.
    """
    if not findings:
        return 3
    return 0 if all(each.verdict == "PASS" for each in findings) else 1


class Part(NamedTuple):
    """One recorded op with its verdict, at its place in the order of evaluation."""

    order: int
    recorded: Recorded
    clause: str
    judgement: Judgement


class _Row(NamedTuple):
    """One recorded op that some token computes, before its verdict."""

    name: str
    clause: str
    order: int
    recorded: Recorded
    cells: Cells


def _parts(passes: Passes, dtype: str) -> list[Part]:
    """Every recorded op that some token computes, with its verdict.

    The ensemble runs where an error is above the floor, and more of it where that leaves a doubt.
    """
    truth, lead = passes.truth(), leading(passes.case)
    sequence = SUBJECTS[passes.case.header.rule].has_tokens
    listed = [
        (name, clause, order, passes.trace[name])
        for order, (name, clause) in enumerate(_clauses(passes.case))
        if name in passes.trace
    ]
    rows = [
        _Row(*each, op_cells)
        for each in listed
        if (op_cells := cells(each[-1], lead, truth, sequence=sequence)) is not None
    ]
    requests = {row.name: over for row in rows if (over := tokens_above_floor(row.cells))}
    members = passes.members(dtype, requests) if requests else []
    said = {
        row.name: ensemble(row.cells, row.name, requests.get(row.name, ()), members) for row in rows
    }
    doubts = {
        row.name: tokens for row in rows if (tokens := tokens_in_doubt(row.cells, said[row.name]))
    }
    if doubts:
        members += passes.draw(dtype, doubts, range(DRAWS, DRAWS + MORE_DRAWS))
    for row in rows:
        if row.name in doubts:
            closer = ensemble(row.cells, row.name, doubts[row.name], members)
            said[row.name] = said[row.name].with_more(closer)
    return [
        Part(
            row.order,
            row.recorded,
            row.clause,
            judge(row.name, row.cells, said[row.name], backwards=row.name.startswith(PREFIX)),
        )
        for row in rows
    ]


def _fits(passes: Passes, count: int) -> bool:
    """Whether `count` recorded ops are computed, and right."""
    parts = _parts(passes, narrowest(passes.trace))
    return len(parts) == count and all(part.judgement.worst <= PASS for part in parts)


def _clauses(case: Case) -> list[tuple[str, str]]:
    """Every name that a finding may be about with its clause, in the order of evaluation."""
    listed = [(op.name, op.clause) for op in ops_of(case)]
    place = next((i for i, (name, _) in enumerate(listed) if name == "residual"), 0)
    chunked = list(NAMES.items())
    adjoints = [
        (PREFIX + name, adjoint_clause(case.header.rule, name)) for name, _ in reversed(listed)
    ]
    return [*chunked[:-1], *listed[:place], chunked[-1], *listed[place:], *adjoints]


def _finding(passes: Passes, part: Part, parts: Sequence[Part]) -> Finding:
    one = part.judgement
    verdict = "PASS" if one.worst <= PASS else "MARGINAL" if one.worst <= MARGINAL else "WRONG"
    why = ""
    if one.open:
        verdict = verdict if one.decidable else "UNDECIDABLE"
        why = f"not judged{_at_tokens(one.open)}: what it is computed from is not finite"
    finding = Finding(
        case=passes.case.name,
        op=part.recorded.op,
        tensor=part.recorded.tensor,
        verdict=verdict,
        token=one.token,
        place=one.place,
        got=one.got,
        expected=one.want,
        error=one.error,
        norm=one.norm,
        tolerance=getattr(one.tolerance, one.norm),
        ratio=float(one.ratio[one.cell]),
        basis=basis(one.tolerance, one.norm),
        gap=_gap(passes, part.recorded),
        clause=part.clause,
        why=why,
        order=part.order,
    )
    return finding if verdict == "PASS" else finding._replace(before=_before(part, parts))


def _at_tokens(tokens: tuple[int | None, ...]) -> str:
    """Tokens in a phrase; nothing for an op without tokens."""
    if tokens[0] is None:
        return ""
    words = ", ".join(str(t) for t in tokens[:4]) + (
        f" and {len(tokens) - 4} more" if len(tokens) > 4 else ""
    )
    return f" at token{'' if len(tokens) == 1 else 's'} {words}"


def _gap(passes: Passes, each: Recorded) -> tuple[str, ...]:
    """Ops that were evaluated together with this one (REPLAY-14).

    The matrix of a chunk needs keys and gates alone.
    """
    listed = ops_of(passes.case)
    if each.op.startswith(PREFIX):
        adjoints = {name.removeprefix(PREFIX) for name in passes.trace if name.startswith(PREFIX)}
        # the adjoint of a result is its cotangent
        return adjoint_gap(
            listed, each.op.removeprefix(PREFIX), adjoints | set(STANDS_FOR.values())
        )
    every_token = [other for other in passes.trace.values() if other.op not in STATES]
    stored = {other.into for other in every_token} | given_ops(passes.case)
    if each.op == "chunk/A":
        return () if "phi_k" in stored else ("phi_k",)
    return gap(listed, each.into, stored)


def gap(listed: Sequence[Op], name: str, recorded_ops: set[str]) -> tuple[str, ...]:
    """Ops between this one and the recorded ops before it, in the order of the loop (REPLAY-14)."""
    by_name = {op.name: op for op in listed}
    missing: set[str] = set()
    waiting = [name]
    while waiting:
        for source in by_name[waiting.pop()].inputs:
            op = source.partition("[")[0]
            if op in by_name and op not in recorded_ops and op not in missing:
                missing.add(op)
                waiting.append(op)
    return tuple(op.name for op in listed if op.name in missing and op.name != name)


def _before(part: Part, parts: Sequence[Part]) -> str:
    """The phrase on the recorded op before this one at its token, and on the tokens before."""
    backwards = part.recorded.op.startswith(PREFIX)
    same = [other for other in parts if other.recorded.op.startswith(PREFIX) == backwards]
    phrases: list[str] = []
    token = part.judgement.token
    for other in reversed([other for other in same if other.order < part.order]):
        ratio = at(other.judgement, token)
        if ratio is not None:
            word = "right" if ratio <= PASS else "marginal" if ratio <= MARGINAL else "wrong"
            phrases.append(
                f"{other.recorded.op} is {word} at this token ({ratio:.2g} of its tolerance)"
            )
            break
    earlier = earlier_tokens(part.judgement, backwards=backwards)
    if earlier:
        where = (
            f"token {earlier[0]}" if len(earlier) == 1 else f"tokens {earlier[0]} to {earlier[-1]}"
        )
        everything = all(right_at(other.judgement, earlier) for other in same)
        phrases.append(
            f"every recorded {'adjoint' if backwards else 'op'} is right at {where}"
            if everything
            else f"it is right at {where}"
        )
    return "; ".join(phrases) or "nothing: it comes first"
