"""Features of a case that an implementation may not have, by name.

Pulses, resets, gates per row and the like: what `--without` takes, and what a crash is explained
by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from atlas_ref.messages import no_such
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.tensor_spec import LOGARITHMS
from atlas_ref.oracle.cases.tensors import COTANGENTS
from atlas_ref.oracle.registry import SUBJECTS

GATES = ("retain", "momentum", "step_size", "step_size_memory", "log_retain", "log_momentum")
KEYS_AND_VALUES = (("in/k", "in/v", -1), ("in/param/W_K", "in/param/W_V", -2))


class Feature(NamedTuple):
    """A feature: what a case with it holds, and whether one memory's case has it."""

    meaning: str
    is_of: Callable[[Case], bool]


def _holds(*names: str) -> Callable[[Case], bool]:
    return lambda case: any(name in case.inputs for name in names)


def _rows(case: Case) -> bool:
    inputs = case.inputs
    given = [inputs[name] for gate in GATES if (name := f"in/{gate}") in inputs]
    biases = [inputs[name] for gate in GATES if (name := f"in/param/b_{gate}") in inputs]
    return any(gate.ndim == inputs["in/k"].ndim for gate in given) or any(
        bias.shape[-1] > 1 for bias in biases
    )


def _rectangular(case: Case) -> bool:
    if "in/G" in case.inputs:
        return bool(case.inputs["in/G"].shape[-1] != case.inputs["in/G"].shape[-2])
    return any(
        case.inputs[k].shape[axis] != case.inputs[v].shape[axis]
        for k, v, axis in KEYS_AND_VALUES
        if k in case.inputs
    )


def _heads(case: Case) -> bool:
    """Whether the leading axes hold more than one memory; parameters have heads in front."""
    inputs = case.inputs
    if "in/param/W_K" in inputs:
        leading = (*inputs["in/x"].shape[:-2], *inputs["in/param/W_K"].shape[:-2])
        return bool(math.prod(leading) > 1)
    return any(
        math.prod(inputs[name].shape[:-2]) > 1 for name in ("in/k", "in/G") if name in inputs
    )


FEATURES: dict[str, Feature] = {
    "pulse": Feature("tokens at which nothing is written", _holds("in/active")),
    "reset": Feature("packed sequences", _holds("in/reset")),
    "sequences": Feature("packed sequences with states of their own", _holds("in/sequences")),
    "snapshots": Feature("states behind some tokens", _holds("in/states_after")),
    "rows": Feature("one gate per output dimension", _rows),
    "heads": Feature("more than one memory, as batch or heads", _heads),
    "rectangular": Feature("keys and values of different lengths", _rectangular),
    "state": Feature("an initial memory or momentum", _holds("in/M0", "in/S0")),
    "history": Feature("initial window tokens", _holds("in/window_k")),
    "resumed": Feature(
        "a call that begins within a span",
        lambda case: case.header.phase is not None or "in/M_ref" in case.inputs,
    ),
    "span": Feature("spans of a frozen reference", lambda case: case.header.span is not None),
    "window": Feature("a window of several tokens", lambda case: case.header.window > 1),
    "weights": Feature(
        "window weights that are not uniform",
        lambda case: (
            case.header.window_weights is not None
            or _holds("in/window_weights", "in/window_gate")(case)
        ),
    ),
    "momentum": Feature(
        "a momentum gate", _holds("in/momentum", "in/log_momentum", "in/param/W_momentum")
    ),
    "logarithms": Feature("gates as logarithms", _holds(*LOGARITHMS)),
    "map": Feature("a feature map", lambda case: case.header.feature_map.kind != "identity"),
    "iterations": Feature("Newton-Schulz", lambda case: case.convention.has_newton_schulz),
    "token": Feature(
        "tokens and parameters in place of keys", lambda case: case.header.level == "token"
    ),
    "nested": Feature("contexts that begin from a slower level", lambda case: case.header.nested),
    "learned": Feature(
        "gates that decide which level writes",
        lambda case: case.header.schedule is not None and case.header.schedule.learned is not None,
    ),
    "gradient": Feature("a cotangent, which asks for gradients", _holds(*COTANGENTS)),
}

#: Features that no subject is asked about.
OF_ALL = ("sequences", "snapshots", "gradient")


def features(case: Case) -> tuple[str, ...]:
    """Names of the features that a case has; of a block, those of any level too (SRC-21)."""
    if not case.supported:
        return ()
    has = SUBJECTS[case.header.rule].features(case)
    has = has | {name for name in OF_ALL if FEATURES[name].is_of(case)}
    return tuple(name for name in FEATURES if name in has)


def of_one(case: Case) -> set[str]:
    """Names of the features that a case of one memory, of a matrix or of a map has."""
    return {name for name, each in FEATURES.items() if each.is_of(case)}


def declared_features(names: Iterable[str]) -> tuple[str, ...]:
    """The features that an implementation is declared not to have.

    Raises:
        CaseError: one that does not exist.
    """
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in FEATURES:
            raise CaseError(f"without: {no_such('feature', name, FEATURES)}")
    return chosen
