"""Checks of a call before its first token: rule, convention, tokens and state must agree.

Checked once per call, so that a loop never has to. Specified in specs/conventions.md (CONV-4,
CONV-7, CONV-27).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.backend import host, require_one
from atlas_ref.conventions import Convention, OpenGate
from atlas_ref.rules.rule import Rule
from atlas_ref.types import Array, check_kind

#: Gates of a token.
GATES = ("retain", "momentum", "step_size", "step_size_memory")

#: The gate that is taken for one per output dimension where a memory is square (GATES-15).
KEY_CHANNEL = "a gate per key channel, as of KDA, GLA and the rule dplr, which scales columns of M"


def check_call(rule: Any, config: Any, tokens: Any, state: Any) -> None:
    """Refuse tokens or a state that contradict the rule or its convention.

    A given retain whose meaning the convention leaves open is refused too (CONV-4).

    Raises:
        ValueError: names the array, what was found and what is needed.
    """
    check_rule(rule, config)
    check_state(rule, state)
    check_gates(rule, config.convention, tokens)
    check_window(rule, config, tokens)
    check_surrogate(rule, config, tokens)
    if tokens.threshold is not None:
        raise ValueError(f"threshold: the rule {rule.name} has no bias huber; deep_memory has")
    _check_span(config, state)
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
    shapes = tokens.k.shape[:-1], tokens.v.shape
    if tokens.momentum is not None and tokens.momentum.shape not in shapes:
        raise ValueError(
            f"momentum: shape {tokens.momentum.shape}, expected {shapes[0]} or, one per output "
            f"dimension, {shapes[1]}"
        )
    check_gate_axis(rule, config, tokens)
    expected = (*tokens.k.shape[:-2], config.d_out, rule.d_phi(config))
    if state.M.shape != expected:
        raise ValueError(
            f"state.M: shape {state.M.shape}, expected {expected}: the tokens' leading axes, "
            "d_out, d_phi"
        )
    if rule.has_window:
        _check_stored_window(config, state)
    _check_precision(tokens, state)
    check_open_gate(config.convention, tokens)


def check_open_gate(convention: Convention, tokens: Any) -> None:
    """Refuse a given retain whose meaning the convention leaves open (CONV-4).

    Raises:
        ValueError: what to state.
    """
    if isinstance(convention, OpenGate) and tokens.retain is not None:
        raise ValueError(
            "convention: gate: not stated, and a given retain can be the share of M that a token "
            "keeps or forgets; state it in the Config, such as convention={'gate': 'retain'}"
        )


def check_rule(rule: Any, config: Any) -> None:
    """Refuse an object that is no rule, such as its module, and the configuration of another rule.

    Raises:
        ValueError: what was found and what is needed.
    """
    if not isinstance(rule, Rule):
        name = getattr(rule, "__name__", type(rule).__name__)
        instead = f"; pass {name.rpartition('.')[2]}.RULE" if hasattr(rule, "RULE") else ""
        raise ValueError(f"rule: a Rule such as omega.RULE is needed, found {name}{instead}")
    _check_config(rule.Config, config)


def _check_config(kind: Any, config: Any) -> None:
    if not isinstance(config, kind):
        raise ValueError(
            f"config: the Config of {kind.__module__} is needed, found "
            f"{type(config).__module__}.{type(config).__qualname__}"
        )


def check_start(kind: Any, config: Any, leading: Any, dtype: Any) -> None:
    """Refuse the configuration of another rule, and axes or a dtype that no state can have.

    Args:
        kind: the rule's `Config`.

    Raises:
        ValueError: names the argument, what was found and what is needed.
    """
    _check_config(kind, config)
    if not isinstance(leading, tuple) or not all(
        isinstance(size, int | np.integer) and size >= 0 for size in leading
    ):
        raise ValueError(f"leading: {leading!r}, expected a tuple of sizes such as (batch, heads)")
    require_floating(dtype)


def require_floating(dtype: Any) -> None:
    """Refuse a dtype that is not floating or complex.

    Raises:
        ValueError: the dtype.
    """
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise ValueError(f"dtype: a floating or complex dtype is needed, found {dtype!r}") from None
    check_kind("dtype", np.empty(0, kind))


def check_count(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 0 (NORM-2).

    Raises:
        ValueError: names it, and the value.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name}: {value!r}, expected a whole number that is not negative")


def generator(seed: Any) -> np.random.Generator:
    """The counter-based generator Philox with `seed` (NORM-2).

    Raises:
        ValueError: a seed that is not a whole number of at least 0.
    """
    check_count("seed", seed)
    return np.random.Generator(np.random.Philox(seed))


def check_log(name: str, value: Any) -> None:
    """Refuse a log of a gate above 0 or without a number; -inf is the log of 0 (DPLR-1)."""
    bare = host(check_kind(name, value))
    bad = ~(np.real(bare) <= 0) | (np.imag(bare) * 0 != 0)  # not a number is neither
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{name}: entries must be at most 0, found {bare[where]} at {where}")


def check_shapes(
    tokens: Any, needed: Mapping[str, tuple[tuple[int, ...], ...]]
) -> dict[str, Array]:
    """The arrays that are given, each of one of its shapes, and masks of booleans.

    Raises:
        ValueError: names the array, its shape or dtype and what is needed.
    """
    arrays = {name: getattr(tokens, name) for name in needed}
    arrays = {name: value for name, value in arrays.items() if value is not None}
    for name, value in arrays.items():
        if tuple(value.shape) not in needed[name]:
            words = " or ".join(map(str, dict.fromkeys(needed[name])))
            raise ValueError(f"{name}: shape {tuple(value.shape)}, expected {words}")
        if name in ("active", "reset") and value.dtype != np.bool_:
            raise ValueError(f"{name}: {value.dtype}, expected bool")
    return arrays


def check_state_shape(name: str, value: Array, expected: tuple[int, ...]) -> None:
    """Refuse a state of another shape.

    Raises:
        ValueError: names it, its shape and what is needed.
    """
    if tuple(value.shape) != expected:
        raise ValueError(f"state.{name}: shape {tuple(value.shape)}, expected {expected}")


def check_state(rule: Rule, state: Any) -> None:
    """Refuse the state of another rule, and what is no state.

    Raises:
        ValueError: what was found and what is needed.
    """
    if not isinstance(state, rule.State):
        raise ValueError(
            f"state: the State of {rule.State.__module__} is needed, found "
            f"{type(state).__module__}.{type(state).__name__}"
        )
    for name in ("filled", "position"):
        if getattr(state, name, 0) is None:
            raise ValueError(
                f"state.{name}: none, since rows of the call before ended with other counts; call "
                "rows that share their masks by themselves (CONV-68)"
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


def check_gates(rule: Any, convention: Convention, tokens: Any) -> None:
    """Check the gates against the rule and the axes gate and rate (GATES-2, CONV-4, CONV-7).

    Raises:
        ValueError: a gate that is missing, or that the rule does not have.
    """
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
                f"{name}: the rule {rule.name} under gate {convention.gate}, rate "
                f"{convention.rate} has none"
            )
        if not present and name in required:
            raise ValueError(
                f"{name}: missing, the rule {rule.name} under gate {convention.gate}, rate "
                f"{convention.rate} needs it"
            )


def check_gate_axis(rule: Rule, config: Any, tokens: Any) -> None:
    """Refuse gates per dimension of a square memory until the configuration says what they are.

    Source: GATES-15.

    Raises:
        ValueError: names the gate, both readings of its axis, and what to state.
    """
    if config.per_dimension_gates or not config.d_out == rule.d_phi(config) > 1:
        return
    for name in GATES:
        value = getattr(tokens, name)
        if value is not None and value.shape == tokens.v.shape:
            raise ValueError(
                f"{name}: shape {value.shape} has two readings where M is {config.d_out} by "
                f"{config.d_out}: one gate per output dimension, which scales rows of M, or "
                f"{KEY_CHANNEL}; Config(per_dimension_gates=True) states the first, and "
                f"the rule {rule.name} does not have the second"
            )


def check_window(rule: Rule, config: Any, tokens: Any) -> None:
    """Check window weights against the rule and its window.

    Raises:
        ValueError: weights that a rule without a window has not, or of another length.
    """
    for name in ("window_weights", "window_gate"):
        if not rule.has_window and getattr(tokens, name) is not None:
            raise ValueError(f"{name}: the rule {rule.name} looks at one token of weight 1")
    weights = tokens.window_weights
    if weights is not None and weights.shape[-1] != config.window:
        raise ValueError(
            f"window_weights: shape {weights.shape}, expected one weight for "
            f"each of {config.window} lags"
        )


def check_surrogate(rule: Rule, config: Any, tokens: Any) -> None:
    """Check the learned residual against the axis reference (SURROGATE-1)."""
    residual, reference = tokens.surrogate, config.convention.reference
    if rule.learns_residual(config) != (residual is not None):
        words = "missing" if residual is None else "given"
        needs = "needs it" if residual is None else "has none"
        raise ValueError(
            f"surrogate: {words}, the rule {rule.name} under reference {reference} {needs}"
        )


def _check_span(config: Any, state: Any) -> None:
    """Check the place of the next token in its span (CONV-11, CONV-30)."""
    convention = config.convention
    counts = convention.frozen_reference or convention.read == "chunk_start"
    if not counts or convention.reference == "call_start":
        return
    if state.position >= config.span:
        raise ValueError(f"state.position: {state.position}, expected below span = {config.span}")


def _check_stored_window(config: Any, state: Any) -> None:
    """Check the window of a state, and the residuals and momenta beside it, against the
    configuration.
    """
    if state.keys.shape[-2] != config.window:
        raise ValueError(
            f"state.keys: shape {state.keys.shape}, expected one row for each of "
            f"{config.window} window tokens"
        )
    if state.filled > config.window:
        raise ValueError(f"state.filled: {state.filled}, expected at most {config.window} tokens")
    if getattr(state, "gradients", None) is not None and not stores_residuals(config):
        raise ValueError("state.gradients: stored, but only window_at_boundary carry has matrices")
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
        for name in ("k", "v", "q", *GATES, "window_weights", "window_gate", "surrogate")
    } | {"state.M": state.M}
    arrays["state.S"] = getattr(state, "S", None)
    arrays = {name: array for name, array in arrays.items() if array is not None}
    check_one_precision(arrays)


def check_one_precision(arrays: Mapping[str, Array], *, of: str = "k") -> None:
    """Require one backend of all arrays, and of all the precision of one (BACKEND-4).

    Args:
        of: name of the array whose precision the others need.

    Raises:
        ValueError: names the array that differs.
    """
    require_one(arrays)
    expected = precision(arrays[of])
    for name, array in arrays.items():
        if (own := precision(array)) != expected:
            raise ValueError(
                f"{name}: {own}, but {of} is {expected}; cast them to one precision "
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
