"""The float64 nearest to every result, proved by balls at a precision that doubles until each is
decided.

A ball is decided when all numbers in it have one nearest float64. Specified in specs/certify.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flint import arb, ctx

from atlas_ref.certify.dplr import run as dplr
from atlas_ref.certify.evaluate import evaluate, leading
from atlas_ref.certify.results import Certified, Unresolved
from atlas_ref.certify.rounding import Rounded, rounded
from atlas_ref.certify.rules import WRITES
from atlas_ref.certify.tnt import settings as tnt
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import (
    Case,
    CaseError,
    Unsupported,
    differentiable,
    require_supported,
)

Array = np.ndarray[Any, Any]

#: Bits of the first attempt; each further one has twice as many.
FIRST = 128

#: Directions per tensor along which gradients of larger cases are certified too, and the sizes
#: above which a case is larger.
DIRECTIONS = 8
SMALL_TOKENS, SMALL_WIDTH = 8, 4

#: Parts of rules that are cases of their own, without tokens.
ALONE = ("newton_schulz", "feature_map")

#: Rules whose memory is a function (CERT-17).
DEEP = ("deep_memory",)

#: Rules of which some settings may not be certified: the reason against a header, "" for none.
REFUSALS: dict[str, Callable[[Any], str]] = {
    "dplr": dplr.refusal,
    "recurrence": lambda header: "",
    "tnt": tnt.refusal,
}

UNKNOWN = Rounded(-math.inf, math.inf)


def certify(
    case: Case, *, grad: bool = False, max_bits: int = 16384, progress: Progress = unwatched
) -> Certified:
    """Certify every result of a case; see `atlas_ref.certify.certify`."""
    require_supported(case)
    require_certifiable(case)
    arrays = exact(case)
    names = _inputs_of_gradients(case) if grad else []
    rounding = _Rounding(axes=len(leading(case.header, arrays)))
    bits = min(FIRST, max_bits)
    while True:
        balls = evaluate(
            case.header,
            case.convention,
            arrays,
            bits=bits,
            grad=names,
            only=rounding.places(),
            progress=progress,
        )
        with ctx.workprec(bits):
            rounding.take(balls | (_along(balls) if larger(case) else {}), bits)
        if rounding.done or bits >= max_bits:
            return rounding.certified()
        bits = min(2 * bits, max_bits)


def require_certifiable(case: Case) -> None:
    """Refuse in one line a rule or a setting that certify does not have (CERT-18).

    Raises:
        Unsupported: names the case, what is not certified, and what to do instead.
        CaseError: sequences, or a rule that is not one memory; the line names what takes it.
    """
    case.require_one_call("certify")
    rule = case.header.rule
    if rule in REFUSALS:
        if why := REFUSALS[rule](case.header):
            raise Unsupported(f"{case.name}: {why}")
        return
    case.require_one_memory("certify")
    if rule not in (*WRITES, *ALONE, *DEEP):
        raise Unsupported(
            f"{case.name}: rule {rule}: certify is not yet supported; tolerance measures how results "
            "round"
        )


def exact(case: Case) -> dict[str, Array]:
    """The tensors of a case in float64, which holds every format exactly; masks as they are.

    Source: CERT-1.
    """
    return {
        name: value if value.dtype.kind in "bu" else value.astype(np.float64)
        for name, value in case.inputs.items()
    }


def _inputs_of_gradients(case: Case) -> list[str]:
    """The inputs to differentiate by.

    Raises:
        CaseError: the case has no cotangent of its main result.
    """
    main = {"newton_schulz": "in/X_bar", "feature_map": "in/phi_bar"}.get(
        case.header.rule, "in/y_bar"
    )
    if main not in case.inputs:
        raise CaseError(f"{case.name}: {main}: missing, gradients need it")
    return differentiable(case)


def larger(case: Case) -> bool:
    """Whether gradients are certified along directions too: over 8 tokens or 4 dimensions."""
    shapes = {name: value.shape for name, value in case.inputs.items()}
    k = shapes.get("in/k") or shapes.get("in/G") or shapes["in/x"]
    tokens = (
        shapes.get("in/q", k)[-2] if case.header.rule not in ("newton_schulz", "feature_map") else 1
    )
    widths = [k[-1], shapes["in/v"][-1] if "in/v" in shapes else k[-1]]
    if case.header.level == "token":
        widths = [shapes["in/param/W_K"][-2], shapes["in/param/W_V"][-2]]
    return tokens > SMALL_TOKENS or max(widths) > SMALL_WIDTH


def direction(shape: tuple[int, ...], i: int) -> Array:
    """Direction i of a tensor of this shape, an array of signs (CERT-10).

    The sign is +1 where the top bit of the random number of an entry is 1, else -1.
    """
    raw = np.random.Philox(key=i).random_raw(math.prod(shape))
    return np.where(raw >> np.uint64(63), 1.0, -1.0).reshape(shape)


def _along(balls: Mapping[str, Array]) -> dict[str, Array]:
    """The derivatives along each direction, by name of the gradient with `directions/` in front."""
    slopes = {}
    for name, value in balls.items():
        if name.startswith("grad/"):
            sums = [_signed_sum(value, direction(value.shape, i)) for i in range(DIRECTIONS)]
            slopes["directions/" + name] = np.array([*sums, None], dtype=object)[:-1]
    return slopes


def _signed_sum(value: Array, signs: Array) -> arb:
    pairs = zip(np.ravel(value), np.ravel(signs), strict=True)
    return sum((x if sign > 0 else -x for x, sign in pairs), arb(0))


class _Rounding:
    """The float64 bounds of every entry so far.

    Args:
        axes: number of leading axes of results whose indices are evaluated on their own.
    """

    def __init__(self, axes: int) -> None:
        self.axes = axes
        self.low: dict[str, Array] = {}
        self.high: dict[str, Array] = {}
        self.bits: dict[str, int] = {}

    def waiting(self, name: str) -> Iterable[tuple[int, ...]]:
        """Indices of the entries that have no one float64 yet."""
        return [
            tuple(int(i) for i in place) for place in np.argwhere(self.low[name] != self.high[name])
        ]

    @property
    def done(self) -> bool:
        return all(np.array_equal(self.low[name], self.high[name]) for name in self.low)

    def places(self) -> set[tuple[int, ...]] | None:
        """Leading indices that some entry still waits for; None before the first attempt."""
        return (
            {place[: self.axes] for name in self.low for place in self.waiting(name)}
            if self.low
            else None
        )

    def take(self, balls: Mapping[str, Array], bits: int) -> None:
        """Round the entries that are not resolved yet."""
        for name, value in balls.items():
            if name not in self.low:
                self.low[name], self.high[name] = (np.full(value.shape, end) for end in UNKNOWN)
                self.bits[name] = bits
            for place in self.waiting(name):
                ends = rounded(value[place])
                self.low[name][place], self.high[name][place] = ends
                if ends.unique:
                    self.bits[name] = bits

    def certified(self) -> Certified:
        lost = {
            name: [
                Unresolved(at, float(self.low[name][at]), float(self.high[name][at]))
                for at in self.waiting(name)
            ]
            for name in self.low
        }
        values = {
            name: np.where(np.isinf(low) & (low != self.high[name]), np.nan, low)
            for name, low in self.low.items()
        }
        ahead = "directions/"
        return Certified(
            values={name: value for name, value in values.items() if not name.startswith(ahead)},
            bits=self.bits,
            unresolved={name: entries for name, entries in lost.items() if entries},
            directions={
                name.removeprefix(ahead): value
                for name, value in values.items()
                if name.startswith(ahead)
            },
        )
