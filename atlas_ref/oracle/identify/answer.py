"""The answer of a search: its match, what fits beside it, and what explains the results otherwise.

Specified in specs/identify.md (IDENT-6, IDENT-7, IDENT-9).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from atlas_ref.oracle.identify.departed import Departed

Verdict = Literal[
    "MATCH", "UNDECIDABLE", "NO MATCH", "NOT FINITE", "FAILED", "NOT SUPPORTED", "MISSING"
]


class Fit(NamedTuple):
    """A convention and how well it explains the results.

    Attributes:
        convention: as a case's header would state it: a preset, and axes that change it.
        distance: the root mean square error over that of the results, the worst of the tensors.
        ratio: the worst error over its tolerance; up to 2 is a fit, above 4 is wrong; None where it
            has no tolerance.
        tensor: the tensor that is worst.
    """

    convention: dict[str, Any]
    distance: float
    ratio: float | None
    tensor: str


class Twin(NamedTuple):
    """A setting that this case cannot tell from the match, with its changes and the reason."""

    changes: dict[str, Any]
    reason: str
    distance: float


class Identification(NamedTuple):
    """Answer about the convention behind results under test (IDENT-1).

    Attributes:
        verdict: MATCH, one convention fits; UNDECIDABLE, several do; NO MATCH, none does; NOT
            FINITE, results hold a NaN; FAILED, NOT SUPPORTED or MISSING, there are none.
        match: the fit with the fewest changes from the case's own convention or a preset; the
            nearest one under NO MATCH.
        preset: the preset that the match equals on this case.
        own: whether it is the case's own convention; from_own: its differences from that.
        whole: the distance of the case's own convention; None where that was not compared.
        departures: what explains the results where it is none of the conventions' settings.
        runner_up: the nearest convention that does not fit, and by how much its error is larger
            than the match's.
        twins: settings that cannot be told from the match.
        undecided: axis -> the values that fit, the match's first.
        unused: results that no convention changes.
        dtype: the narrowest format of the results.
        void: settings that cannot matter in this case, with the reason; they are not searched.
        untried: values that cannot be evaluated on this case, with the reason.
        searched: conventions compared.
        fits: every convention that fits, for the construction of a deciding case.
        failed: parts of the search that failed, in words; the rest of the answer stands (CASE-38).
    """

    case: str
    verdict: Verdict
    why: str = ""
    match: Fit | None = None
    preset: str | None = None
    own: bool = False
    whole: float | None = None
    from_own: dict[str, Any] = {}
    departures: tuple[Departed, ...] = ()
    runner_up: Fit | None = None
    times_worse: float | None = None
    twins: tuple[Twin, ...] = ()
    undecided: dict[str, list[Any]] = {}
    void: dict[str, str] = {}
    untried: dict[str, str] = {}
    searched: int = 0
    unused: tuple[str, ...] = ()
    dtype: str = "float64"
    fits: tuple[Any, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def explains_half(self) -> bool:
        """Whether the match leaves half of the case's own distance, and half of the results, at most."""
        if self.match is None or self.whole is None:
            return self.match is not None
        return self.match.distance <= 0.5 * min(self.whole, 1.0)

    @property
    def exit_code(self) -> int:
        """0 for a match, 1 where no convention explains the results, 3 where they cannot decide.

        Source: IDENT-9, IDENT-20.
        """
        return {"MATCH": 0, "UNDECIDABLE": 3, "NOT SUPPORTED": 3}.get(self.verdict, 1)
