"""Mistakes of a call in two: a state that does not arrive in the second (VEC-16)."""

from __future__ import annotations

import functools

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.evaluate import Results as Evaluated
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.mistake import Mistake, Results, Seen
from atlas_ref.oracle.sweep import split

#: Results that are lost where a call is cut: name -> results, the mistake in words.
LOST: dict[str, tuple[tuple[str, ...], str]] = {
    "momentum lost at a cut": (("out/S",), "a second call starts with a momentum of zero"),
    "window lost at a cut": (
        ("out/window_k", "out/window_v", "out/window_gate_before"),
        "a second call starts with an empty window",
    ),
    "reference lost at a cut": (("out/M_ref",), "a second call starts a span of its own"),
    "phase lost at a cut": (("phase",), "a second call counts its span from its first token"),
    "residuals lost at a cut": (
        ("out/window_residual",),
        "a second call starts with stored residuals of zero",
    ),
    "momenta lost at a cut": (("out/window_momentum",), "a second call starts with no momenta"),
}


def words_by_name() -> dict[str, str]:
    """Mistakes in words, by name."""
    return {name: words for name, (_, words) in LOST.items()}


def mistakes(at: Seen) -> list[Mistake]:
    """States that can be lost where the call of a case is cut in two, in its middle."""
    places = split.places(at.case)
    if not places:
        return []
    call = _Call(at.case, places[len(places) // 2], at.tokens)
    return [
        Mistake(
            name, words, lambda _: True, program=functools.partial(call.results, lost), whole=True
        )
        for name, (lost, words) in LOST.items()
        if _needs(at, name) and call.can_lose(lost)
    ]


class _Call:
    """A call that is cut before one of its tokens."""

    def __init__(self, case: Case, place: int, tokens: int) -> None:
        self.case, self.place, self.tokens = case, place, tokens
        self.head, _ = split.in_two(case, place)
        self.first = functools.cache(self._first)

    def _first(self, arithmetic: str) -> Evaluated:
        return evaluate(self.head, dtype=arithmetic)

    def _second(self, lost: tuple[str, ...], arithmetic: str) -> Case:
        rest = range(self.place, self.tokens)
        return split.resume(self.case, self.first(arithmetic), rest, lost=lost)

    def can_lose(self, lost: tuple[str, ...]) -> bool:
        """Whether the first call has such results, and the second can do without them."""
        before = self.first("float32")
        if not set(lost) & {*before.tensors, *before.header}:
            return False
        try:
            self._second(lost, "float32")
        except CaseError:  # the convention cannot do without it
            return False
        return True

    def results(self, lost: tuple[str, ...], arithmetic: str) -> Results:
        """Results of both calls, with a state that does not arrive."""
        tail = evaluate(self._second(lost, arithmetic), dtype=arithmetic)
        found = split.join(self.first(arithmetic).tensors, tail.tensors)
        return {name: x for name, x in found.items() if name in ("out/y", "out/M", "out/S")}


def _needs(at: Seen, name: str) -> bool:
    """Whether the second call depends on the results that are lost.

    momentum_then_window does not look at the window (CONV-16). Under call_start a stored residual
    is the same as one computed again, so that its position decides nothing (CONV-14).
    """
    if name == "window lost at a cut":
        return at.structure.order == "window_then_momentum"
    return (
        name not in ("phase lost at a cut", "residuals lost at a cut")
        or at.structure.frozen == "chunk_start"
    )
