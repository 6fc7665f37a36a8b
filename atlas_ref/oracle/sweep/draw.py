"""Draw the cases of a sweep: odd shapes, conventions, dtypes and gate regimes from a seed.

Specified in specs/sweep.md, SWEEP-1 to SWEEP-4. What a rule is drawn from is its own (SWEEP-14).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from atlas_ref.messages import first_problem, meant
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.inputs import check_dtype
from atlas_ref.oracle.cases.new import DTYPES, Request, new
from atlas_ref.oracle.drawing import Drawing, Space, one, without
from atlas_ref.oracle.registry import SUBJECTS

#: Rules that can be swept.
SWEPT = tuple(name for name, subject in SUBJECTS.items() if subject.drawing is not None)

#: Version of the draw, which a log states: 2 since every tenth case is long.
DRAW = 2

#: Every tenth case is long (SWEEP-12).
EVERY = 10

#: The regime of those cases.
SLOW = "slow"

#: Attempts at one case before the choices are called impossible.
ATTEMPTS = 300


class Drawn(NamedTuple):
    """One case of a sweep.

    Attributes:
        request: fields of `Request` that were drawn, and those of the rule's tensors beside them,
            as JSON can hold them.
        regime: a name in `regimes`.
        case: made from them.
    """

    request: dict[str, Any]
    regime: str
    case: Case


def drawing(rule: str) -> Drawing:
    """What is drawn of a rule (SWEEP-14).

    Raises:
        KeyError: a rule that is not swept.
    """
    found = SUBJECTS[rule].drawing
    if found is None:
        raise KeyError(rule)
    return found


def regimes(rule: str) -> tuple[str, ...]:
    """Names of the regimes that this rule's inputs are drawn from (SWEEP-4)."""
    return tuple(drawing(rule).regimes)


def checked_choices(rule: str, choices: Space) -> dict[str, tuple[Any, ...]]:
    """Check choices against the limits of the rule (SWEEP-3).

    Raises:
        CaseError: a rule that cannot be swept, a name that is not drawn, or no value.
    """
    if rule not in SWEPT:
        subject = SUBJECTS.get(rule)
        if subject is not None and subject.draw is not None:
            raise CaseError(
                f"sweep: rule {rule}: no sweep draws it; atlas-ref new does, case by case"
            )
        if subject is not None and subject.is_memory:
            raise CaseError(f"sweep: rule {rule}: is not swept; {subject.instead}")
        raise CaseError(f"sweep: rule {rule!r} is none of {', '.join(SWEPT)}{meant(rule, SWEPT)}")
    of = drawing(rule)
    names = (
        *of.space,
        *of.later,
        *(("convention",) if of.convention is not None else ()),
        "regime",
    )
    for name, values in choices.items():
        if name not in names:
            raise CaseError(f"sweep: {name!r} is not drawn; {', '.join(names)} are")
        if not values:
            raise CaseError(f"sweep: {name}: at least one value is needed")
        for value in values if name in of.closed else ():
            if value not in of.space[name]:
                words = ", ".join(dict.fromkeys(map(str, of.space[name])))
                raise CaseError(f"sweep: {name}: {value!r} is none of {words}")
    for name in choices.get("regime", ()):
        known = (*of.regimes, *(each for each in of.named if each != SLOW or of.long))
        if name not in known:
            raise CaseError(
                f"sweep: regime {name!r} does not exist for {rule}; regimes are {', '.join(known)}"
            )
    for name in choices.get("dtype", ()):
        check_dtype("sweep", name, DTYPES)
    return {name: tuple(values) for name, values in choices.items()}


def draw_case(rule: str, seed: int, number: int, choices: Space) -> Drawn:
    """Case `number` of the sweep with this seed (SWEEP-1, SWEEP-2).

    It is the same on every machine and does not depend on other draws.

    Raises:
        CaseError: no case fits the choices.
    """
    draw = np.random.Generator(np.random.Philox(key=(number << 64) | seed))
    of, reason = drawing(rule), ""
    for _ in range(ATTEMPTS):
        request, regime = _request(rule, draw, choices, long=is_long(rule, number, choices))
        try:
            fields = without(request, *of.of_tensors)
            case = new(Request(**fields, draw=1), name=f"{rule}-{seed}-{number}")
            return Drawn(request, regime, _change(case, request, regime, draw))
        except (CaseError, ValidationError) as error:
            reason = str(error) if isinstance(error, CaseError) else first_problem(error)
    raise CaseError(
        f"sweep: no case fits what is fixed after {ATTEMPTS} attempts, the last: "
        f"{' '.join(reason.split())}"
    )


def is_long(rule: str, number: int, choices: Space) -> bool:
    """Whether a case has more tokens than usual chunks, unless tokens are fixed (SWEEP-12)."""
    return number % EVERY == EVERY - 1 and bool(drawing(rule).long) and "tokens" not in choices


def _request(
    rule: str, draw: np.random.Generator, choices: Space, *, long: bool
) -> tuple[dict[str, Any], str]:
    """Draw the fields of a request, and a regime (SWEEP-3).

    Every field is drawn, fixed or not, so that fixing one leaves the others as they are.

    Args:
        long: a case of more tokens than a chunk (SWEEP-12).
    """
    of = drawing(rule)
    fields: dict[str, Any] = {"rule": rule, "seed": int(draw.integers(2**31)), "cotangent": True}
    for name, values in {**of.space, **(of.long if long else {})}.items():
        fields[name] = one(draw, choices.get(name, values))
    for place, name in enumerate(each for each in of.later if each in choices):
        own = np.random.Generator(np.random.Philox(key=(fields["seed"] << 64) | place))
        fields[name] = one(own, choices[name])
    if of.convention is not None:
        axes = of.convention(draw)
        fields["convention"] = one(draw, choices["convention"]) if "convention" in choices else axes
    regime = str(one(draw, choices.get("regime", tuple(of.regimes))))
    if long and "regime" not in choices:
        regime = SLOW
    return of.request(fields, choices, long), regime


def _change(case: Case, request: dict[str, Any], regime: str, draw: np.random.Generator) -> Case:
    """The case with its tensors as drawn, and moved to a regime where implementations break.

    Source: SWEEP-4, SWEEP-14.
    """
    of, inputs = drawing(case.header.rule), dict(case.inputs)
    if of.tensors is not None:
        try:
            of.tensors(inputs, request, case.header, draw)
        except ValueError as error:
            raise CaseError(f"{case.name}: {error}") from None
    {**of.regimes, **of.named}[regime](inputs, draw)
    kinds = {name: value.dtype for name, value in case.inputs.items()}
    usual = DTYPES[request["dtype"]]
    stored = {name: value.astype(kinds.get(name, usual)) for name, value in inputs.items()}
    return make(case.header.plain(), stored, name=case.name)
