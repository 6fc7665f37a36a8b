"""A case of sequences as a case of each, and results of each as those of all (CASE-44, CASE-45)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.tensors import is_cotangent, token_count, weighed_result
from atlas_ref.oracle.registry import OF_SEQUENCES
from atlas_ref.oracle.subjects.base.calls import Calls
from atlas_ref.types import Array
from tape import ops

if TYPE_CHECKING:
    from atlas_ref.oracle.subjects.subject import Subject

#: Where each sequence starts, and where the last ends; and whether each has a first state.
SEQUENCES, INITIAL = OF_SEQUENCES


class Span(NamedTuple):
    """One sequence.

    Attributes:
        number: from 0.
        first, last: its first token, and the one behind its last.
        fresh: whether it starts from the state of no call.
    """

    number: int
    first: int
    last: int
    fresh: bool = False

    @property
    def empty(self) -> bool:
        return self.first == self.last


class Wiring(NamedTuple):
    """Which states each sequence starts from and leaves, where that is a mistake (CASE-46).

    Attributes:
        firsts: the sequence whose first state each starts from.
        lasts: the sequence whose last state stands for that of each; None for zeros.
        fresh: whether each starts from the state of no call; None as the case says.
        moved: whether the sequence of `firsts` says that, too, for each.
        carries: which go on from the last state of the one before: all, those that are not empty, from
            that of the last of these, those that are fresh, those that are given a first state; "" for none.
    """

    firsts: Sequence[int]
    lasts: Sequence[int | None]
    fresh: bool | None = None
    moved: bool = False
    carries: Literal["", "all", "full", "fresh", "given"] = ""

    def goes_on(self, span: Span) -> bool:
        """Whether a sequence goes on from the last state of the one before."""
        if self.carries in ("all", "full"):
            return self.carries == "all" or not span.empty
        return self.carries == ("fresh" if span.fresh else "given")


class Plan(NamedTuple):
    """How the tensors of a case are those of its sequences.

    Attributes:
        spans: the sequences.
        axes: input with tokens -> their axis, and its rows of each token.
        stacked: inputs with N in front: first states, and cotangents of the last.
        firsts: the first states.
    """

    spans: tuple[Span, ...]
    axes: Mapping[str, tuple[int, int]]
    stacked: frozenset[str]
    firsts: frozenset[str]

    def inputs_of(self, inputs: Mapping[str, Any], span: Span) -> dict[str, Any]:
        """Inputs of one sequence as a call of its own; arrays or tape variables."""
        own: dict[str, Any] = {}
        for name, x in inputs.items():
            if name in (SEQUENCES, INITIAL) or (span.fresh and name in self.firsts):
                continue
            if name in self.stacked:
                x = x[span.number, ...]
            elif name in self.axes:
                x = rows(x, *self.axes[name], span)
            own[name] = x
        return own


def rows(x: Any, axis: int, each: int, span: Span) -> Any:
    """Rows of the tokens of a sequence, `each` of them for a token."""
    return x[(*[slice(None)] * axis, slice(span.first * each, span.last * each))]


def spans_of(inputs: Mapping[str, Any]) -> tuple[Span, ...]:
    """The sequences that inputs state."""
    bounds = [int(t) for t in inputs[SEQUENCES]]
    initial = inputs.get(INITIAL, np.ones(len(bounds) - 1, bool))
    pairs = itertools.pairwise(bounds)
    return tuple(Span(n, a, b, not initial[n]) for n, (a, b) in enumerate(pairs))


def stacked_names(subject: Subject, header: Any, names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Inputs with N in front, and those of them that are first states."""
    calls, others = subject.calls, subject.weighs(header)
    assert calls is not None
    firsts = {name for name in names if calls.begins(name)}
    bars = {
        name
        for name in names
        if is_cotangent(name)
        and all(calls.left(each) for each in others.get(name, (weighed_result(name),)))
    }
    return firsts | bars, firsts


def plan(subject: Subject, case: Case) -> Plan:
    """How a case is cut into its sequences."""
    assert subject.calls is not None
    stacked, firsts = stacked_names(subject, case.header, case.inputs)
    spans = spans_of(case.inputs)
    one = case.replaced(inputs=first_of(case.inputs, stacked), recorded={})
    axes = token_axes(subject.calls, one)
    return Plan(spans, axes, frozenset(stacked), frozenset(firsts))


def first_of(inputs: Mapping[str, Any], stacked: Iterable[str]) -> dict[str, Any]:
    """All tokens from the first state of sequence 0, as one call."""
    return {
        name: x[0, ...] if name in stacked else x
        for name, x in inputs.items()
        if name not in (SEQUENCES, INITIAL)
    }


def token_axes(calls: Calls, case: Case) -> dict[str, tuple[int, int]]:
    """Input with tokens -> their axis, and its rows of each token, found by a cut (CASE-44)."""
    tokens = token_count(case.inputs)
    cut = calls.cut(case, range(1)) if tokens > 1 else None
    if cut is None:  # all of the tokens are one sequence's
        return {}
    axes: dict[str, tuple[int, int]] = {}
    for name, x in case.inputs.items():
        for axis, (whole, part) in enumerate(zip(x.shape, cut.tensors[name].shape, strict=True)):
            if whole != part:
                axes[name] = (axis, whole // tokens)
    return axes


def case_of(case: Case, plan: Plan, span: Span) -> Case:
    """One sequence that has tokens, as an ordinary case."""
    return case.replaced(inputs=plan.inputs_of(case.inputs, span), recorded={})


def evaluate(
    subject: Subject,
    inputs: Mapping[str, Array],
    case: Case,
    run: Callable[[Mapping[str, Array], Case], Mapping[str, Array]],
    wiring: Wiring | None = None,
) -> dict[str, Array]:
    """Results of all sequences, each by `run` as a call of its own (CASE-45).

    Args:
        inputs: arrays or tape variables, so that gradients are those of the tape.
        run: (inputs, case) -> results of one sequence that has tokens.
        wiring: of a mistake.

    Raises:
        CaseError: a cotangent of a last state that is left out.
    """
    of = plan(subject, case)
    if wiring is not None:
        inputs, of = _rewire(of, inputs, wiring)
    calls = subject.calls
    assert calls is not None
    found: list[Mapping[str, Array] | None] = []
    before: Mapping[str, Array] = {}  # the last states of the sequence before
    for span in of.spans:
        goes_on = wiring is not None and wiring.goes_on(span)
        if span.empty:
            if wiring is not None and not goes_on and wiring.carries != "full":
                before = _last_of_none(calls, of, inputs, span, before)
            found.append(before if goes_on and before else None)
            continue
        own = of.inputs_of(inputs, span)
        if goes_on:
            own |= {calls.left(name): x for name, x in before.items()}
        results = run(own, case_of(case, of, span))
        before = {name: x for name, x in results.items() if calls.left(name)}
        found.append(results)
    joint = join(calls, of, inputs, found, None if wiring is None else wiring.lasts)
    for bar in sorted(of.stacked - of.firsts) if wiring is None else ():
        if (result := weighed_result(bar)) not in joint:
            why = f"{bar}: weighs {result}, which is not of one shape in all sequences"
            raise CaseError(f"{case.name}: {why}")
    return joint


def _last_of_none(
    calls: Calls, of: Plan, inputs: Mapping[str, Array], span: Span, like: Mapping[str, Array]
) -> dict[str, Array]:
    """Last states of an empty sequence, as far as they are known."""
    states = {name: last_of_none(calls, of, inputs, span, name, x) for name, x in like.items()}
    return {name: x for name, x in states.items() if x is not None}


def join(
    calls: Calls | None,
    of: Plan,
    inputs: Mapping[str, Array],
    found: Sequence[Mapping[str, Array] | None],
    lasts: Sequence[int | None] | None = None,
) -> dict[str, Array]:
    """Reads one behind the other, and states with N in front (CASE-45).

    A last state whose shape is not the same in all sequences, as that of a window, is left out.

    Args:
        found: results of each sequence; None of an empty one.
        lasts: of a mistake, as `Wiring` has them.
    """
    assert calls is not None
    given = [each for each in found if each is not None]
    names = dict.fromkeys(name for each in given for name in each)
    joint: dict[str, Array] = {}
    for name in names:
        if not calls.left(name):
            joint[name] = ops.concatenate([each[name] for each in given if name in each], axis=-2)
            continue
        like = next(each[name] for each in given if name in each)
        states = [
            last_of_none(calls, of, inputs, span, name, like) if each is None else each.get(name)
            for span, each in zip(of.spans, found, strict=True)
        ]
        if all(x is not None and x.shape == like.shape for x in states):
            order = range(len(states)) if lasts is None else lasts
            zeros = ops.zeros_like(like)
            joint[name] = stack([zeros if n is None else states[n] for n in order])
    return joint


def _rewire(
    of: Plan, inputs: Mapping[str, Array], wiring: Wiring
) -> tuple[Mapping[str, Array], Plan]:
    """Inputs and sequences as a mistake takes them."""
    if wiring.fresh is not None:
        of = of._replace(spans=tuple(each._replace(fresh=wiring.fresh) for each in of.spans))
    if wiring.moved:
        fresh = [of.spans[n].fresh for n in wiring.firsts]
        pairs = zip(of.spans, fresh, strict=True)
        of = of._replace(spans=tuple(each._replace(fresh=has) for each, has in pairs))
    own = {
        name: stack([x[n, ...] for n in wiring.firsts]) if name in of.firsts else x
        for name, x in inputs.items()
    }
    return own, of


def last_of_none(
    calls: Calls, of: Plan, inputs: Mapping[str, Array], span: Span, result: str, like: Array
) -> Array | None:
    """The last state of an empty sequence, which is its first; None where none is known."""
    name: str | None = calls.left(result)
    while name and (name not in inputs or span.fresh):
        name = calls.blank(name)
    if name is None:
        return None
    if not name:
        return ops.zeros_like(like)
    if name in of.stacked:
        return inputs[name][span.number, ...]
    return inputs[name] + ops.zeros_like(like)  # a parameter that all rows share


def stack(states: Sequence[Any]) -> Any:
    """States with their number in front; whole numbers have no derivative."""
    if states[0].dtype.kind in "biu":
        return np.stack([np.asarray(x) for x in states])
    return ops.stack(list(states))


def results_of(
    subject: Subject, of: Plan, results: Mapping[str, Any], span: Span
) -> dict[str, Any]:
    """Results of all sequences as those of one; gradients by what all share are left out."""
    assert subject.calls is not None
    own: dict[str, Any] = {}
    for name, x in results.items():
        by = name.replace("grad/", "in/", 1)
        if subject.calls.left(name) or by in of.stacked:
            if not (span.fresh and by in of.firsts):
                own[name] = x[span.number, ...]
        elif name.startswith("out/"):
            own[name] = rows(x, x.ndim - 2, 1, span)
        elif by in of.axes:
            own[name] = rows(x, *of.axes[by], span)
    return own
