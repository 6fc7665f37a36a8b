"""The verdict on one tensor, and the size and place of its error.

Specified in specs/case.md and specs/sources.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Verdict = Literal["PASS", "MARGINAL", "WRONG", "MISSING", "UNDECIDABLE", "FAILED", "NOT SUPPORTED"]


class First(NamedTuple):
    """The first wrong entry of a tensor, in the order of tokens (SRC-12).

    Attributes:
        token: None for a tensor without tokens, as a final state.
        place: index in the tensor; empty for a scalar.
    """

    token: int | None
    place: tuple[int, ...]
    got: float
    want: float


class Profile(NamedTuple):
    """Error along the tokens over what PASS allows (SRC-13).

    Attributes:
        ratios: the largest of each cell; one cell for a tensor without tokens. 1 is what is
            allowed.
        width: tokens per cell; 0 where there are none.
    """

    ratios: tuple[float, ...]
    width: int


class Comparison(NamedTuple):
    """The verdict on one tensor.

    Attributes:
        tensor: its name, `out/y`; "-" for a case without an answer.
        error: ||got - want|| / ||want|| by CASE-20 (absolute where want is 0), the error in the
            deciding norm by CASE-22; None where nothing could be compared.
        tolerance: one time the tolerance of that error.
        place: where |got - want| is largest, or the first entry that is not finite.
        got, want: the entries there.
        why: what is wrong in words, where the numbers do not say it.
        basis: where the tolerance comes from.
        allowed: how many times the tolerance PASS allows.
        first: the first wrong entry in the order of tokens, unless PASS.
        profile: error over tolerance along the tokens.
        xfail: the reason why this is expected not to pass, from an xfail file.
    """

    case: str
    tensor: str
    verdict: Verdict
    error: float | None = None
    tolerance: float | None = None
    place: tuple[int, ...] | None = None
    got: float | None = None
    want: float | None = None
    why: str = ""
    basis: str = ""
    allowed: float = 1.0
    first: First | None = None
    profile: Profile | None = None
    xfail: str = ""

    @property
    def ratio(self) -> float | None:
        """Error over tolerance."""
        if self.error is None or self.tolerance is None:
            return None
        return (
            0.0
            if self.error == 0.0
            else self.error / self.tolerance
            if self.tolerance
            else math.inf
        )


def number_words(value: float | None) -> str:
    """A number in decimal and hexadecimal."""
    return "" if value is None else f"{value!r} = {value.hex()}"


def number_as_json(value: float | None) -> dict[str, Any] | None:
    """The same as JSON can hold it."""
    return None if value is None else {"decimal": value, "hex": value.hex()}


def error_words(ratio: float | None, tolerance: float | None, basis: str) -> str:
    """An error over its tolerance, and where that comes from."""
    if ratio is None or tolerance is None:
        return ""
    return f"{ratio:.3g} times the tolerance {tolerance:.3g}, {basis}"


def index_words(place: Sequence[int]) -> str:
    """An index in brackets."""
    return f"({', '.join(map(str, place))})"
