"""Gates and step sizes that a case states by a formula of raw numbers.

Specified in specs/dplr_cases.md (DPLRCASE-16, DPLRCASE-17).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from atlas_ref.parts import gate_formulas
from atlas_ref.types import Array
from tape import ops

GateFormula = Literal["softplus", "bounded", "log_sigmoid", "floored_sigmoid", "exponential"]
BetaFormula = Literal["sigmoid", "twice_sigmoid"]

#: The gate as it is, its log, and what a formula makes its log of.
GATES = ("in/retain", "in/log_retain", "in/gate_input")


class Formula(NamedTuple):
    """What a formula of gates has beside its input (DPLRCASE-16).

    Attributes:
        may: tensors that a case may have.
        needs: tensors that it must have.
        settings: parameters of the formula.
        needed: those without a default.
    """

    may: tuple[str, ...] = ("in/gate_bias",)
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


_RATED = ("in/gate_log_rate", "in/gate_bias")

#: Name of a formula -> its tensors and settings.
FORMULAS: dict[str, Formula] = {
    "softplus": Formula(_RATED, settings=("gate_threshold",)),
    "bounded": Formula(_RATED, settings=("gate_lower_bound",), needed=("gate_lower_bound",)),
    "log_sigmoid": Formula(settings=("gate_normalizer", "gate_least")),
    "floored_sigmoid": Formula(needs=("in/gate_floor",)),
    "exponential": Formula(),
}

#: Every tensor beside the input of a gate, and every tensor that the rule does not have.
BESIDE = ("in/gate_log_rate", "in/gate_bias", "in/gate_floor")
RAW = ("in/gate_input", *BESIDE, "in/beta_input")

#: Parameters of what a program does to its log gates, which change no result of the rule.
DECLARED = ("gate_softplus", "gate_dtype")

#: Every setting of a formula of gates.
SETTINGS = ("gate_threshold", "gate_lower_bound", "gate_normalizer", "gate_least")


class Made(NamedTuple):
    """What a formula is made of, and what it makes.

    Attributes:
        raw: tensors, the main one first.
        settings: parameters beside the key of the formula.
        name: of the tensor of the rule.
    """

    raw: tuple[str, ...]
    settings: tuple[str, ...]
    name: str


#: Parameter that names a formula -> what it makes of which tensors.
MADE = {
    "gate_formula": Made(("in/gate_input", *BESIDE), (*SETTINGS, *DECLARED), "in/log_retain"),
    "beta_formula": Made(("in/beta_input",), (), "in/beta"),
}


def check(given: Any, *, gated: bool, rated: bool, who: str) -> None:
    """Refuse a formula that the member has no use for, and settings of another formula.

    Args:
        given: parameters of a case.
        gated, rated: whether the member has a tensor of gates, and step sizes.
        who: the member, or the rule.

    Raises:
        ValueError: names the parameter and the formula that has it.
    """
    if given.gate_formula is not None and not gated:
        raise ValueError(f"gate_formula: {who} has no gate that is given, found a formula of it")
    if given.beta_formula is not None and not rated:
        raise ValueError(f"beta_formula: {who} has no step size, found a formula of it")
    own = FORMULAS.get(given.gate_formula or "", Formula(may=()))
    for name in SETTINGS:
        if getattr(given, name) is not None and name not in own.settings:
            of = next(each for each, formula in FORMULAS.items() if name in formula.settings)
            raise ValueError(f"{name}: belongs to gate_formula {of}, found {given.gate_formula}")
    if given.gate_softplus is not None and given.gate_formula != "softplus":
        raise ValueError(
            f"gate_softplus: belongs to gate_formula softplus, found {given.gate_formula}"
        )
    if given.gate_dtype is not None and given.gate_formula is None:
        raise ValueError("gate_dtype: belongs to a gate_formula, found none")
    for name in own.needed:
        if getattr(given, name) is None:
            raise ValueError(f"{name}: missing, gate_formula {given.gate_formula} needs it")


def names(own: Any, needed: set[str], free: set[str]) -> tuple[set[str], set[str]]:
    """Tensors that a case of these settings needs and may have, raw ones in place of others."""
    if own.gate_formula is not None:
        formula = FORMULAS[own.gate_formula]
        free = (free - set(GATES)) | set(formula.may)
        needed = (needed - set(GATES)) | {"in/gate_input", *formula.needs}
    if own.beta_formula is not None:
        needed = (needed - {"in/beta"}) | {"in/beta_input"}
    return needed, free


def draw(own: Any, shapes: Mapping[str, Any], generator: Any) -> dict[str, Array]:
    """Raw numbers of gates of channels and of step sizes, with all that a formula takes."""
    found: dict[str, Array] = {}
    if own.gate_formula is not None:
        found["in/gate_input"] = generator.standard_normal(shapes["in/gate_input"][1])
        formula = FORMULAS[own.gate_formula]
        for name in (*formula.may, *formula.needs):
            low, high = (0.1, 0.9) if name in formula.needs else (-1.0, 1.0)
            found[name] = generator.uniform(low, high, shapes[name][-2])  # of heads alone
    if own.beta_formula is not None:
        found["in/beta_input"] = generator.standard_normal(shapes["in/beta_input"][0])
    return found


def of_tokens(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs with raw numbers of one gate a token in place of those of channels."""
    first = ("in/gate_input", "in/gate_bias", "in/gate_floor")
    return {name: x[..., 0] if name in first else x for name, x in inputs.items()}


def wide(name: str, x: Array, *, channels: bool) -> Array:
    """A tensor of heads with an axis of tokens, and one of channels where the gates have it."""
    if not channels:
        return ops.expand_dims(x, -1)
    return ops.expand_dims(ops.expand_dims(x, -1), -1) if "rate" in name else ops.expand_dims(x, -2)


def apply(own: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs with gates and step sizes in place of raw numbers (DPLRCASE-16, DPLRCASE-17)."""
    x = dict(inputs)
    if own.gate_formula is not None:
        raw = x.pop("in/gate_input")
        channels = len(raw.shape) == len(x["in/v"].shape)
        beside = {
            name.removeprefix("in/gate_"): wide(name, x.pop(name), channels=channels)
            for name in BESIDE
            if name in x
        }
        given = {name: getattr(own, name) for name in FORMULAS[own.gate_formula].settings}
        settings = {name.removeprefix("gate_"): v for name, v in given.items() if v is not None}
        compute: Any = getattr(gate_formulas, own.gate_formula)
        x["in/log_retain"] = compute(raw, **beside, **settings)
    if own.beta_formula is not None:
        rate = ops.sigmoid(x.pop("in/beta_input"))
        x["in/beta"] = 2.0 * rate if own.beta_formula == "twice_sigmoid" else rate
    return x


def without(own: Any) -> Any:
    """Settings of a case whose gates and step sizes are computed."""
    return own.replaced(
        gate_formula=None, beta_formula=None, **dict.fromkeys((*SETTINGS, *DECLARED))
    )
