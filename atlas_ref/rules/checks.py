"""Checks of a call before its first token: rule, convention, tokens and state must agree.

Checked once per call, so that a loop never has to. Specified in specs/conventions.md (CONV-4,
CONV-7, CONV-27).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from atlas_ref.backend import require_one
from atlas_ref.conventions import Convention
from atlas_ref.rules.rule import Rule
from atlas_ref.types import Array

GATES = ("retain", "momentum", "step_size", "step_size_memory")


def check_call(rule: Any, config: Any, tokens: Any, state: Any) -> None:
    """Refuse tokens or a state that contradict the rule or its convention.

    Raises:
        ValueError: names the array, what was found and what is needed.
    """
    check_rule(rule, config)
    check_state(rule, state)
    _check_gates(rule, config.convention, tokens)
    _check_window(config, tokens)
    for name, axis, size in (
        ("k", "d_in", config.d_in),
        ("v", "d_out", config.d_out),
        ("q", "d_in", config.d_in),
    ):
        shape = getattr(tokens, name).shape
        if shape[-1] != size:
            raise ValueError(
                f"{name}: shape {shape}, expected {axis} = {size} as in the configuration"
            )
    expected = (*tokens.k.shape[:-2], config.d_out, rule.d_phi(config))
    if state.M.shape != expected:
        raise ValueError(
            f"state.M: shape {state.M.shape}, expected {expected}: the tokens' leading axes, "
            "d_out, d_phi"
        )
    if rule.has_window:
        _check_stored_window(config, state)
    _check_precision(tokens, state)


def check_rule(rule: Any, config: Any) -> None:
    """Refuse an object that is no rule, such as its module, and the configuration of another rule.

    Raises:
        ValueError: what was found and what is needed.
    """
    if not isinstance(rule, Rule):
        name = getattr(rule, "__name__", type(rule).__name__)
        instead = f"; pass {name.rpartition('.')[2]}.RULE" if hasattr(rule, "RULE") else ""
        raise ValueError(f"rule: a Rule such as omega.RULE is needed, found {name}{instead}")
    if not isinstance(config, rule.Config):
        kind = type(config)
        raise ValueError(
            f"config: a {rule.Config.__module__}.Config is needed, found "
            f"{kind.__module__}.{kind.__qualname__}"
        )


def check_state(rule: Rule, state: Any) -> None:
    """Refuse the state of another rule, and what is no state.

    Raises:
        ValueError: what was found and what is needed.
    """
    if not isinstance(state, rule.State):
        raise ValueError(
            f"state: a {rule.State.__module__}.State is needed, found "
            f"{type(state).__module__}.{type(state).__name__}"
        )


def stores_residuals(config: Any) -> bool:
    """Whether window tokens keep the residual of their arrival (WINDOW-13)."""
    c = config.convention
    return bool(
        c.window_at_boundary == "carry"
        and c.frozen_reference
        and config.window > 1
        and c.order == "window_then_momentum"
    )


def _check_gates(rule: Any, convention: Convention, tokens: Any) -> None:
    """Check the gates against the rule and the axes gate and rate (GATES-2, CONV-4, CONV-7)."""
    required = {"retain"} if convention.gate != "none" else set()
    if "step_size" in rule.gates and convention.rate != "none":
        required |= (
            {"step_size", "step_size_memory"} if convention.rate == "split" else {"step_size"}
        )
    possible = required | ({"momentum"} & set(rule.gates))
    for name in GATES:
        present = getattr(tokens, name) is not None
        if present and name not in possible:
            raise ValueError(
                f"{name}: this rule under gate {convention.gate}, rate {convention.rate} has none"
            )
        if not present and name in required:
            raise ValueError(
                f"{name}: missing, gate {convention.gate} and rate {convention.rate} need it"
            )


def _check_window(config: Any, tokens: Any) -> None:
    c = getattr(config, "window", None)
    for name in ("window_weights", "window_gate"):
        if c is None and getattr(tokens, name) is not None:
            raise ValueError(f"{name}: this rule looks at one token of weight 1")
    if tokens.window_weights is not None and tokens.window_weights.shape[-1] != c:
        raise ValueError(
            f"window_weights: shape {tokens.window_weights.shape}, expected one weight for "
            f"each of {c} lags"
        )


def _check_stored_window(config: Any, state: Any) -> None:
    """Check the window of a state, and the residuals and momenta beside it, against the
    configuration.
    """
    if state.keys.shape[-2] != config.window:
        raise ValueError(
            f"state.keys: shape {state.keys.shape}, expected one row for each of "
            f"{config.window} window tokens"
        )
    convention = config.convention
    stored = {
        "residuals": (
            stores_residuals(config),
            f"window_at_boundary {convention.window_at_boundary}, reference {convention.reference}",
        ),
        "momenta": (convention.order == "momentum_then_window", f"order {convention.order}"),
    }
    for name, (required, why) in stored.items():
        if required != (getattr(state, name) is not None):
            raise ValueError(
                f"state.{name}: {'missing' if required else 'stored'}, but {why} "
                f"{'needs them' if required else 'has none'}"
            )


def _check_precision(tokens: Any, state: Any) -> None:
    """Require one precision and one backend of all arrays (BACKEND-4).

    Promotion would hide the precision of a result.
    """
    arrays = {
        name: getattr(tokens, name)
        for name in ("k", "v", "q", *GATES, "window_weights", "window_gate")
    } | {"state.M": state.M}
    arrays["state.S"] = getattr(state, "S", None)
    arrays = {name: array for name, array in arrays.items() if array is not None}
    require_one(arrays)
    precisions = {name: precision(array) for name, array in arrays.items()}
    for name, own in precisions.items():
        if own != precisions["k"]:
            raise ValueError(
                f"{name}: {own}, but k is {precisions['k']}; cast them to one precision "
                "(start and init take dtype)"
            )


def precision(array: Array) -> str:
    """Name of the real dtype of an array: complex numbers have that of their parts."""
    return _precision(array.dtype)


@functools.cache
def _precision(kind: Any) -> str:
    return {np.dtype(np.complex64): "float32", np.dtype(np.complex128): "float64"}.get(
        kind, str(kind)
    )
