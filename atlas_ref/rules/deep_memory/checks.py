"""Checks of a call of a deep memory before its first token.

Specified in specs/deep_memory.md (DEEP-24).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref import backend
from atlas_ref.parts import memory_functions
from atlas_ref.parts.deep_momentum import PREFIX
from atlas_ref.parts.window import tensors as of_window
from atlas_ref.rules.checks import (
    GATES,
    check_gates,
    check_one_precision,
    check_rule,
    check_state,
    check_surrogate,
    check_window,
)
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.rules.deep_memory.state import State, Tensors, check_fast
from tape import ops


def check_call(rule: Any, config: Config, tokens: Any, state: State, phi: Tensors) -> None:
    """Refuse tokens, a state or tensors that contradict the settings.

    Raises:
        ValueError: names the array, what was found and what is needed.
    """
    check_rule(rule, config)
    check_state(rule, state)
    check_gates(rule, config.convention, tokens)
    check_window(rule, config, tokens)
    check_surrogate(rule, config, tokens)
    _check_thresholds(config, tokens, state)
    learned = of_window(config.window_weights)
    brings = tokens.window_gate is not None and "window_logits" not in learned
    if tokens.window_weights is None and learned and not brings:
        needs = ", ".join(learned)
        raise ValueError(f"window_weights: missing, the kind of the settings learns {needs}")
    _check_tensors(config, tokens, phi)
    leading = tokens.k.shape[:-2]
    if config.coupling == "batch_shared" and 0 in leading[:1]:
        raise ValueError(f"k: shape {tokens.k.shape} has no row, and rows share a memory")
    _check_leading(config, phi, leading)
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
    for name in GATES:
        gate, m = getattr(tokens, name), config.momentum_order
        orders = (m,) if name == "momentum" and m > 1 else ()
        expected = (*tokens.k.shape[:-1], *orders)
        if gate is not None and gate.shape != expected:
            raise ValueError(
                f"{name}: shape {gate.shape}, expected {expected}: "
                + (
                    f"one gate for each of {m} orders"
                    if orders
                    else "weights of a function have no gate per output dimension"
                )
            )
    _check_state(config, state, leading)
    _check_positive(config, state, phi)
    _check_precision(tokens, state, phi)


def _check_thresholds(config: Config, tokens: Any, state: State) -> None:
    """Check that thresholds of tokens belong to the bias, and to the tokens that wait (DEEP-36)."""
    for name, given in (("threshold", tokens.threshold), ("state.thresholds", state.thresholds)):
        if given is not None and config.bias.kind != "huber":
            raise ValueError(
                f"{name}: given, but only bias huber has one, found {config.bias.kind}"
            )
    held, waiting = state.thresholds, state.keys.shape[:-1]
    if held is not None and held.shape != waiting:
        raise ValueError(f"state.thresholds: shape {held.shape}, expected {waiting} as state.keys")


def _check_tensors(config: Config, tokens: Any, phi: Tensors) -> None:
    """Check the tensors of the memory and of a deep momentum, which needs its gate (DEEP-37)."""
    own, network = phi, config.deep_momentum
    if network is not None and isinstance(phi, Mapping):
        if tokens.momentum is None:
            raise ValueError("momentum: missing, deep_momentum forgets by this gate")
        own = {name: x for name, x in phi.items() if not name.startswith(PREFIX)}
    memory_functions.check(config.memory, own, config.d_in, config.d_out)
    if network is not None:
        of = {name.removeprefix(PREFIX): x for name, x in phi.items() if name not in own}
        entries = config.entries
        memory_functions.check(network.function, of, entries, entries, "memory/momentum")


def _check_leading(config: Config, phi: Tensors, leading: tuple[int, ...]) -> None:
    """Check that tensors of the memory are one for all rows, or broadcast to the rows."""
    shared = (1, *leading[1:]) if config.coupling == "batch_shared" and leading else leading
    for name, shape in config.tensors.items():
        found = tuple(phi[name].shape)
        own = found[: len(found) - len(shape)]
        moves = name in config.fast_shapes or name.startswith(PREFIX)
        rows = shared if moves else leading
        last = rows[len(rows) - len(own) :] if len(own) <= len(rows) else ()
        if len(own) > len(rows) or any(a not in (1, b) for a, b in zip(own, last, strict=True)):
            raise ValueError(
                f"memory/{name}: shape {found}, expected {shape}, or leading axes in front that "
                f"broadcast to {rows} of the tokens"
            )


def _check_state(config: Config, state: State, leading: tuple[int, ...]) -> None:
    """Check the tokens that wait, and the fast tensors."""
    if state.keys.shape[:-2] != leading:
        raise ValueError(
            f"state.keys: shape {state.keys.shape}, expected leading axes {leading} as of the tokens"
        )
    for name, size in (("keys", config.d_in), ("values", config.d_out)):
        shape = getattr(state, name).shape
        if shape[-1] != size:
            raise ValueError(f"state.{name}: shape {shape}, expected rows of {size}")
    held, due = state.keys.shape[-2], config.chunked(state.position, 1)[1]
    most = config.window - 1 + due
    if not min(due, most) <= held <= most:
        raise ValueError(
            f"state.keys: {held} tokens at position {state.position}, expected {due} to {most}: "
            "those of the unfinished chunk and of the window before it"
        )
    for kind in ("weights", "momentum", "reference", "initial"):
        given = getattr(state, kind)
        if given:
            check_fast(config, f"state.{kind}", given, leading)


def _check_positive(config: Config, state: State, phi: Tensors) -> None:
    """Refuse weights without a logarithm, where the retention takes it (DEEP-32)."""
    if not config.retention.positive:
        return
    matrices = [name for name, shape in config.fast_shapes.items() if len(shape) == 2]
    arrays = {f"memory/{name}": phi[name] for name in matrices}
    kinds = ("weights", "reference") if config.retention.stays_positive else ()
    for kind in (*kinds, "initial"):
        given = getattr(state, kind)
        arrays |= {f"state.{kind}.{name}": given[name] for name in matrices if given}
    for name, x in arrays.items():
        if backend.truth(ops.less(x, 0.0).any()):
            raise ValueError(f"{name}: has an entry below 0, retention kl needs weights from 0 on")


def _check_precision(tokens: Any, state: State, phi: Tensors) -> None:
    """Require one precision and one backend of all arrays (BACKEND-4)."""
    arrays = {
        name: getattr(tokens, name)
        for name in ("k", "v", "q", *GATES, "window_weights", "window_gate", "threshold")
    } | {"state.keys": state.keys, "state.thresholds": state.thresholds}
    arrays |= {f"memory.{name}": each for name, each in phi.items()}
    for kind in ("weights", "momentum", "reference", "initial"):
        arrays |= {f"state.{kind}.{name}": each for name, each in getattr(state, kind).items()}
    check_one_precision({name: array for name, array in arrays.items() if array is not None})
