"""Draw the cases of a sweep: odd shapes, conventions, dtypes and gate regimes from a seed.

Specified in specs/sweep.md, SWEEP-1 to SWEEP-4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from pydantic import ValidationError

from atlas_ref.conventions import PRESETS, Convention
from atlas_ref.messages import first_problem, meant
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.inputs import check_dtype
from atlas_ref.oracle.cases.new import DTYPES, Request, new
from atlas_ref.oracle.subjects import SUBJECTS
from atlas_ref.oracle.sweep import deep_draw
from atlas_ref.oracle.sweep.deep_draw import LATER, one
from atlas_ref.rules import FAMILY, names_with

Choices = Mapping[str, Sequence[Any]]

#: Rules that can be swept.
SWEPT = tuple(
    name
    for name, subject in SUBJECTS.items()
    if subject.draw is not None
    and (subject.own is None or (subject.own.has_convention and subject.own.swept))
)

#: Values that a case is drawn from, in the order of drawing; the first value is the plainest, and
#: shrinking leads towards it.
SPACE: dict[str, tuple[Any, ...]] = {
    "level": ("projected", "projected", "projected", "token"),
    "tokens": (1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 33),
    "d_in": (1, 2, 3, 4, 5, 7, 8),
    "d_out": (1, 2, 3, 4, 5, 7, 8),
    "heads": (1, 2, 3),
    "batch": (1, 2),
    "d_model": (3, 6),
    "window": (1, 2, 3, 4, 5, 8, 40),
    "span": (None, 1, 2, 3, 4, 8, 40),
    "history": (0, 0, 1, 3),
    "pulse": (1, 1, 1, 2, 3),
    "reset": (0, 0, 0, 4, 5),
    "per_dimension_gates": (False, False, True),
    "window_gate": (False, False, True),
    "features": (None, 1, 3, 5),
    "feature_map": ({"kind": "identity"},) * 3
    + tuple(
        {"kind": kind}
        for kind in (
            "linear",
            "random_fourier",
            "elu",
            "residual_mlp",
            "polynomial",
            "monomials",
            "elementwise",
            "sketch",
        )
    ),
    "window_weights": tuple(
        {"kind": kind} for kind in ("uniform", "ones", "decay", "softmax", "gate")
    ),
    "dtype": ("float64", "float32", "bfloat16", "float16"),
}

#: Version of the draw, which a log states: 2 since every tenth case is long.
DRAW = 2

#: Tokens of every tenth case: more than the usual chunks of kernels, by one or two (SWEEP-12).
LONG, EVERY = (65, 130, 257), 10

#: The regime of those cases.
SLOW = "slow"

#: Values of the axes that take numbers; the others list theirs themselves.
_NUMBERS: dict[str, tuple[Any, ...]] = {
    "gradient_scale": (1.0, 2.0, 0.5, "2/d_out"),
    "query_scale": (1.0, "1/sqrt(d_in)"),
}

_NEWTON_SCHULZ: dict[str, tuple[Any, ...]] = {
    "coefficients": ("muon", "cubic", "polar_express"),
    "steps": (5, 1, 3),
    "eps": (1e-7, 1e-2),
    "norm_factor": (1.0, 1.25),
    "guard": ("add", "clamp", "return"),
    "transpose": ("tall", "never"),
    "scale": ("1", "sqrt", "norm"),
    "argument": ("S", "nesterov", "written_back", "accumulated"),
}

#: Attempts at one case before the choices are called impossible.
ATTEMPTS = 300


class Drawn(NamedTuple):
    """One case of a sweep.

    Attributes:
        request: fields of `Request` that were drawn, as JSON can hold them.
        regime: a name in `regimes`.
        case: made from them.
    """

    request: dict[str, Any]
    regime: str
    case: Case


def checked_choices(rule: str, choices: Choices) -> dict[str, tuple[Any, ...]]:
    """Check choices against the limits of the rule (SWEEP-3).

    Raises:
        CaseError: a rule that cannot be swept, a name that is not drawn, or no value.
    """
    if rule not in SWEPT:
        raise CaseError(f"sweep: rule {rule!r} is none of {', '.join(SWEPT)}{meant(rule, SWEPT)}")
    names = (*(deep_draw.SPACE if parametrised(rule) else SPACE), "convention", "regime")
    for name, values in choices.items():
        if name not in names:
            raise CaseError(f"sweep: {name!r} is not drawn; {', '.join(names)} are")
        if not values:
            raise CaseError(f"sweep: {name}: at least one value is needed")
    for name in choices.get("regime", ()):
        known = (*regimes(rule), *((SLOW,) if rule in FAMILY else ()))
        if name not in known:
            raise CaseError(
                f"sweep: regime {name!r} does not exist for {rule}; regimes are {', '.join(known)}"
            )
    for name in choices.get("dtype", ()):
        check_dtype("sweep", name, DTYPES)
    return {name: tuple(values) for name, values in choices.items()}


def parametrised(rule: str) -> bool:
    """Whether the settings of a rule are parameters of its cases (SWEEP-13)."""
    return SUBJECTS[rule].own is not None


def drawn(rule: str, seed: int, number: int, choices: Choices) -> Drawn:
    """Case `number` of the sweep with this seed (SWEEP-1, SWEEP-2).

    It is the same on every machine and does not depend on other draws.

    Raises:
        CaseError: no case fits the choices.
    """
    draw = np.random.Generator(np.random.Philox(key=(number << 64) | seed))
    reason = ""
    for _ in range(ATTEMPTS):
        request, regime = _request(rule, draw, choices, long=is_long(rule, number, choices))
        try:
            case = new(Request(**request), name=f"{rule}-{seed}-{number}")
            return Drawn(request, regime, in_regime(case, regime, draw))
        except (CaseError, ValidationError) as error:
            reason = str(error) if isinstance(error, CaseError) else first_problem(error)
    raise CaseError(
        f"sweep: no case fits what is fixed after {ATTEMPTS} attempts, the last: "
        f"{' '.join(reason.split())}"
    )


def is_long(rule: str, number: int, choices: Choices) -> bool:
    """Whether a case has more tokens than usual chunks, unless tokens are fixed (SWEEP-12)."""
    return number % EVERY == EVERY - 1 and rule in FAMILY and "tokens" not in choices


def _request(
    rule: str, draw: np.random.Generator, choices: Choices, *, long: bool
) -> tuple[dict[str, Any], str]:
    """Draw the fields of a request, and a regime (SWEEP-3).

    Every field is drawn, fixed or not, so that fixing one leaves the others as they are.

    Args:
        long: a case of more tokens than a chunk (SWEEP-12).
    """
    fields: dict[str, Any] = {"rule": rule, "seed": int(draw.integers(2**31)), "cotangent": True}
    own = parametrised(rule)
    space = deep_draw.SPACE if own else SPACE | ({"tokens": LONG} if long else {})
    for name, values in space.items():
        fields[name] = one(draw, choices.get(name, values))
    drawn_convention = deep_draw.convention(draw) if own else _convention(rule, draw)
    fields["convention"] = (
        one(draw, choices["convention"]) if "convention" in choices else drawn_convention
    )
    regime = str(one(draw, choices.get("regime", regimes(rule))))
    if own:
        return deep_draw.request(fields, choices), regime
    if long:
        fields |= _lasting(fields, choices)
        regime = regime if "regime" in choices else SLOW
    return {
        name: value for name, value in _fitting(fields, choices).items() if value not in (None, {})
    }, regime


def _lasting(fields: dict[str, Any], choices: Choices) -> dict[str, Any]:
    """Fields of a long case that replace drawn ones: no rule grows under them (SWEEP-12).

    They are a preset without changes, and no feature map.
    """
    kept: dict[str, Any] = {}
    if not {"feature_map", "features"} & set(choices):
        kept |= {"feature_map": SPACE["feature_map"][0], "features": None}
    if "convention" not in choices:
        axes = fields["convention"]
        plain = {"newton_schulz": "none"} if axes.get("newton_schulz") == "none" else {}
        kept["convention"] = {key: axes[key] for key in axes if key == "preset"} | plain
    return kept


def _fitting(fields: dict[str, Any], choices: Choices) -> dict[str, Any]:
    """Fields without those that this rule or level does not have.

    A field among the choices stays, so that the refusal names it.
    """
    rule, token = fields["rule"], fields["level"] == "token"
    idle: list[str] = ["window_gate"] if token else ["batch", "d_model", "window_weights"]
    if rule not in names_with("has_window"):
        idle += ["window", "window_gate", "history", "window_weights"]
    if not SUBJECTS[rule].has_feature_map:
        idle += ["feature_map", "features"]
    if rule not in FAMILY:
        idle += ["level", "tokens", "span", "pulse", "reset", "per_dimension_gates"]
    result = {name: value for name, value in fields.items() if name not in idle or name in choices}
    if "history" in result and "history" not in choices and isinstance(result["window"], int):
        result["history"] = min(result["history"], result["window"] - 1)
    return result


def _convention(rule: str, draw: np.random.Generator) -> dict[str, Any]:
    """A preset, or `spec`, with up to three axes changed."""
    presets = [preset for preset in PRESETS if preset not in LATER]
    preset = one(draw, presets) if draw.uniform() < 0.5 else "spec"
    changes: dict[str, Any] = {}
    axes = [axis for axis in Convention.model_fields if axis not in ("newton_schulz", *LATER)]
    for _ in range(int(draw.integers(4))):
        axis = str(one(draw, axes))
        changes[axis] = one(draw, axis_choices(axis))
    settings: Any = {
        key: one(draw, values) for key, values in _NEWTON_SCHULZ.items() if draw.uniform() < 0.25
    }
    if draw.uniform() < 0.5:
        settings = "none"
    subject = SUBJECTS[rule]
    if subject.has_newton_schulz:
        idle = subject.needs_newton_schulz and settings == "none"
        changes["newton_schulz"] = {} if idle else settings
    return ({} if preset == "spec" else {"preset": preset}) | changes


def axis_choices(axis: str) -> tuple[Any, ...]:
    """Values of an axis that are drawn, the default first."""
    return (
        _NUMBERS[axis] if axis in _NUMBERS else get_args(Convention.model_fields[axis].annotation)
    )


# -- regimes ---------------------------------------------------------------------------------------

Tensors = dict[str, np.ndarray[Any, Any]]
GATES = ("in/retain", "in/momentum")
RATES = ("in/step_size", "in/step_size_memory")


def regimes(rule: str) -> tuple[str, ...]:
    """Names of the regimes that this rule's inputs are drawn from (SWEEP-4)."""
    return tuple(
        _MATRICES
        if SUBJECTS[rule].needs_newton_schulz
        else _SEQUENCES
        if rule in FAMILY or parametrised(rule)
        else {"ordinary": _ordinary}
    )


def in_regime(case: Case, regime: str, draw: np.random.Generator) -> Case:
    """The case with its inputs moved to a regime where implementations break (SWEEP-4)."""
    change = (_MATRICES | _SEQUENCES | {SLOW: _slow})[regime]
    inputs = dict(case.inputs)
    change(inputs, draw)
    stored = {name: value.astype(case.inputs[name].dtype) for name, value in inputs.items()}
    return make(case.header.plain(), stored, name=case.name)


def _ordinary(inputs: Tensors, draw: np.random.Generator) -> None:
    """Leave the inputs as `new` makes them."""


def _edges(inputs: Tensors, draw: np.random.Generator) -> None:
    """A third of the gates exactly 0 or 1, a third of the steps 0."""
    for name in GATES:
        if name in inputs:
            _some(inputs, name, draw, draw.integers(0, 2, inputs[name].shape))
    for name in RATES:
        if name in inputs:
            _some(inputs, name, draw, np.zeros(inputs[name].shape))


def _some(inputs: Tensors, name: str, draw: np.random.Generator, values: Any) -> None:
    """A third of a tensor's entries replaced."""
    mask = draw.uniform(size=inputs[name].shape) < 1 / 3
    inputs[name] = np.where(mask, np.asarray(values, np.float64), inputs[name].astype(np.float64))


def _ones(inputs: Tensors, draw: np.random.Generator) -> None:
    """Gates of 1, so that nothing fades."""
    for name in GATES:
        if name in inputs:
            inputs[name] = np.ones(inputs[name].shape)


def _fading(inputs: Tensors, draw: np.random.Generator) -> None:
    """Gates so small that their products leave every float format, so that division by them
    fails.
    """
    for name in GATES:
        if name in inputs:
            inputs[name] = np.ldexp(
                np.ones(inputs[name].shape), -draw.integers(2, 14, inputs[name].shape)
            )


def _slow(inputs: Tensors, draw: np.random.Generator) -> None:
    """Gates and steps that change a state slowly, so that hundreds of tokens stay in every format.

    A momentum and a gate that retains are 16 times nearer to 1, one that forgets to 0.
    """
    for name in GATES:
        if name in inputs:
            value = inputs[name].astype(np.float64)
            forgets = name == "in/retain" and value.mean() < 0.5  # retained are 0.8 and more
            inputs[name] = value / 16 if forgets else 1.0 - (1.0 - value) / 16
    for name in RATES:
        if name in inputs:
            inputs[name] = inputs[name].astype(np.float64) / 4


def _small(inputs: Tensors, draw: np.random.Generator) -> None:
    """Small steps and states, so that the norm of the momentum comes near the eps of
    Newton-Schulz.
    """
    for name in (*RATES, "in/S0", "in/M0", "in/v"):
        if name in inputs:
            inputs[name] = inputs[name].astype(np.float64) * 2.0**-10


def _repeated(inputs: Tensors, draw: np.random.Generator) -> None:
    """One key for every token: what is written is overwritten."""
    if "in/k" in inputs:
        inputs["in/k"] = np.repeat(inputs["in/k"][..., :1, :], inputs["in/k"].shape[-2], axis=-2)


def _empty(inputs: Tensors, draw: np.random.Generator) -> None:
    """No initial memory, momentum or window."""
    for name in (
        "in/M0",
        "in/S0",
        "in/M_ref",
        *(name for name in inputs if name.startswith("in/window_") and name not in PER_TOKEN),
        *(name for name in inputs if name.startswith("in/state/")),
    ):
        inputs.pop(name, None)


def _tiny_matrix(inputs: Tensors, draw: np.random.Generator) -> None:
    inputs["in/G"] = inputs["in/G"].astype(np.float64) * 2.0**-20


def _rank_one(inputs: Tensors, draw: np.random.Generator) -> None:
    G = inputs["in/G"].astype(np.float64)
    inputs["in/G"] = G[..., :, :1] * G[..., :1, :]


def _zero_matrix(inputs: Tensors, draw: np.random.Generator) -> None:
    inputs["in/G"] = np.zeros(inputs["in/G"].shape)


PER_TOKEN = ("in/window_weights", "in/window_gate")

_Change = Callable[[Tensors, np.random.Generator], None]
_SEQUENCES: dict[str, _Change] = {
    "ordinary": _ordinary,
    "edges": _edges,
    "ones": _ones,
    "fading": _fading,
    "small": _small,
    "repeated": _repeated,
    "empty": _empty,
}
_MATRICES: dict[str, _Change] = {
    "ordinary": _ordinary,
    "tiny": _tiny_matrix,
    "rank_one": _rank_one,
    "zero": _zero_matrix,
}
