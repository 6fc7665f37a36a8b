"""A schedule beside its tensors: what every step reads, and whether it can be done (SCHED-7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.serving.parameters import Parameters, Part, Step, steps
from atlas_ref.types import Array

#: Steps that compute tokens of requests, which begin those that have no state.
CALLS = ("prefill", "decode", "packed", "padded")


class Place(NamedTuple):
    """What one read, a row of out/y, is of.

    Attributes:
        step: that computed it.
        request: whose token.
        token: its number in the request; of a drafted row, where it would stand.
    """

    step: Step
    request: int
    token: int

    @property
    def words(self) -> str:
        return f"{self.step.words}, request {self.request}, token {self.token}"


class Moment(NamedTuple):
    """What a step does with one request, and where that stands.

    Attributes:
        first: tokens of the request before it.
        begins: whether it has no state yet.
        last: tokens of the request whose state it leaves; None where it leaves none.
    """

    step: Step
    part: Part
    first: int
    begins: bool
    last: int | None


def moments(own: Parameters) -> Iterator[Moment]:
    """What is done with each request, in order.

    Raises:
        ValueError: a step that goes on from what is not there.
    """
    at, kept = dict[int, int](), dict[str, tuple[int, int]]()
    for step in steps(own):
        for part in step.parts:
            yield _moment(step, part, at, kept)


def _moment(step: Step, part: Part, at: dict[int, int], kept: dict[str, Any]) -> Moment:
    """One moment, with the requests and snapshots behind it."""
    r, where = part.request, f"parameters.schedule: {step.words}: request {part.request}"
    begins = r not in at
    if begins and (step.op in ("draft", "snapshot", "free") or part.fresh is False):
        raise ValueError(f"{where}: has no state; a call begins it, and free ends it")
    if part.fresh and not begins:
        raise ValueError(f"{where}: fresh, and has a state after {at[r]} tokens; free it first")
    first = at.get(r, 0)
    last: int | None = first + part.tokens
    if step.op == "draft":
        if not part.tokens:
            raise ValueError(f"{where}: rows: one drafted row at least is needed")
        if not 0 <= step.accept <= part.tokens:
            raise ValueError(f"{where}: accepts {step.accept} of {part.tokens} drafted rows")
        last = first + step.accept
    elif step.op == "padded" and part.tokens > step.width:
        raise ValueError(f"{where}: {part.tokens} tokens, the width is {step.width}")
    elif step.op == "snapshot":
        kept[step.name], last = (r, first), None
    elif step.op == "restore":
        if step.name not in kept:
            known = ", ".join(kept) or "none"
            raise ValueError(f"{where}: no snapshot {step.name!r}; there is {known}")
        if kept[step.name][1] != step.at:
            raise ValueError(
                f"{where}: at {step.at}, the snapshot {step.name!r} is of {kept[step.name][1]} tokens"
            )
        if step.source not in (None, kept[step.name][0]):
            raise ValueError(
                f"{where}: from {step.source}, the snapshot {step.name!r} is of request "
                f"{kept[step.name][0]}"
            )
        last = step.at
    elif step.op == "free":
        last = None
        del at[r]
    if last is not None:
        at[r] = last
    return Moment(step, part, first, begins, last)


def places(own: Parameters) -> list[Place]:
    """What the rows of out/y are of, in order (SCHED-7)."""
    return [
        Place(each.step, each.part.request, each.first + i)
        for each in moments(own)
        if each.step.op in (*CALLS, "draft")
        for i in range(each.part.tokens)
    ]


def check(own: Parameters, inputs: Mapping[str, Any]) -> None:
    """Refuse a schedule that these tensors cannot carry out (SCHED-7).

    Raises:
        ValueError: names the step, the request and what is missing.
    """
    requests, tokens = inputs["in/x"].shape[:2]
    sources = dict[str, int]()
    called = False
    for each in moments(own):
        step, r = each.step, each.part.request
        where = f"parameters.schedule: {step.words}: request {r}"
        if r >= requests:
            raise ValueError(f"{where}: in/x has {requests} requests")
        end = each.first + each.part.tokens
        if step.op in CALLS and end > tokens:
            raise ValueError(f"{where}: goes to token {end}, in/x has {tokens}")
        called = called or (step.op in CALLS and bool(each.part.tokens))
        if step.op == "draft":
            _check_draft(step, inputs, each, where)
        elif step.op == "snapshot":
            sources[step.name] = r
        elif step.op == "restore":
            _check_prefix(own, inputs, where, (r, sources[step.name]), step.at)
    if not called:
        raise ValueError("parameters.schedule: no call of a token, so there is nothing to judge")


def _check_draft(step: Step, inputs: Mapping[str, Any], each: Moment, where: str) -> None:
    """Refuse rows that are none, and kept rows that are not the request's own tokens."""
    if "in/draft_x" not in inputs:
        raise ValueError(f"in/draft_x: missing, {step.words} drafts rows of it")
    most = inputs["in/draft_x"].shape[0]
    if max(step.rows) >= most:
        raise ValueError(f"{where}: row {max(step.rows)}, in/draft_x has {most}")
    tokens = inputs["in/x"].shape[1]
    if each.first + step.accept > tokens:
        raise ValueError(f"{where}: keeps token {each.first + step.accept}, in/x has {tokens}")
    kept = list(step.rows[: step.accept])
    for name in (n for n in inputs if n.startswith("in/draft_")):
        own = of_request(inputs[name.replace("draft_", "")], name, each.part.request)
        here = own[each.first : each.first + step.accept]
        if not np.array_equal(inputs[name][kept], here):
            raise ValueError(f"{where}: keeps rows of {name} that are not its own tokens")


def _check_prefix(
    own: Parameters, inputs: Mapping[str, Any], where: str, pair: tuple[int, int], count: int
) -> None:
    """Refuse a request that goes on from the state of other tokens than its own."""
    for name in ("in/x", *(f"in/{gate}" for gate in own.of.gates)):
        one, two = (of_request(inputs[name], name, r)[:count] for r in pair)
        if not np.array_equal(one, two):
            raise ValueError(
                f"{where}: its first {count} tokens are not those of request {pair[1]}, whose state "
                f"is restored: {name} differs"
            )


def of_request(x: Array, name: str, r: int) -> Array:
    """The rows of one request, tokens first; gates have heads in front of tokens."""
    return x[r] if name.endswith("x") else np.moveaxis(x[r], 1, 0)


def rows_of(
    own: Parameters, inputs: Mapping[str, Array], r: int, tokens: Sequence[int]
) -> dict[str, Array]:
    """Tensors of some tokens of a request, gates as (heads, n, ...)."""
    at = list(tokens)
    return {"x": inputs["in/x"][r, at]} | {
        name: inputs[f"in/{name}"][r][:, at] for name in own.of.gates
    }


def rows_beside(
    own: Parameters, inputs: Mapping[str, Array], rows: Sequence[int]
) -> dict[str, Array]:
    """Tensors of some drafted rows, as those of tokens."""
    at = list(rows)
    return {"x": inputs["in/draft_x"][at]} | {
        name: np.moveaxis(inputs[f"in/draft_{name}"][at], 0, 1) for name in own.of.gates
    }


def rows_of_padding(own: Parameters, inputs: Mapping[str, Array], count: int) -> dict[str, Array]:
    """What stands in so many pads: in/pad_x and gates, zeros where the case does not say."""
    x, found = inputs["in/x"], dict[str, Array]()
    one = inputs.get("in/pad_x", np.zeros(x.shape[-1], x.dtype))
    found["x"] = np.broadcast_to(one, (count, *one.shape))
    for name in own.of.gates:
        like = inputs[f"in/{name}"]
        each = inputs.get(f"in/pad_{name}", np.zeros((own.heads, *like.shape[3:]), like.dtype))
        found[name] = np.broadcast_to(each[:, None], (own.heads, count, *each.shape[1:]))
    return found
