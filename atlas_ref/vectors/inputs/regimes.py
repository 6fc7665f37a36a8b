"""Changes of a topic's inputs that show mistakes which ordinary numbers hide (VEC-3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.tnt import parameters as tnt_parameters
from atlas_ref.vectors.inputs import erase_regimes, recurrences
from atlas_ref.vectors.inputs.axes import deep_draws
from atlas_ref.vectors.inputs.stream import chosen, whole

Inputs = dict[str, Any]
Regime = Callable[[int, Inputs, Case], Inputs]

#: Values that gates, steps and biases of computed gates are drawn from where calls are long.
SLOW_RETAIN = tuple(1.0 - n / 256 for n in (1, 2, 3, 4))
SLOW_MOMENTUM = tuple(1.0 - n / 16 for n in (2, 3, 4, 5))
SLOW_STEP = tuple(n / 64 for n in (1, 2, 3, 4))
SLOWER_STEP = tuple(n / 512 for n in (1, 2, 3, 4))
SLOW_BIAS = (3.0, 3.5, 4.0, 4.5)
SLOW_MOMENTUM_BIAS = (1.0, 1.25, 1.5, 1.75)

#: Factors of weights where calls are long.
SLOWED = {
    "in/param/W_K": 2.0**-2,
    **dict.fromkeys(("in/param/W_retain", "in/param/W_momentum", "in/param/W_step_size"), 2.0**-4),
}

#: Steps towards an initial memory that the writes cancel.
STEPS = 24


def _as_drawn(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Initial contents are drawn with the case."""
    return inputs


def _edges(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Gates exactly 0 and 1, and steps of 0, at a third of the places.

    Two fixed places have a 0 and a 1 under every seed.
    """
    tensors = dict(inputs)
    for name, values in (
        ("in/retain", (0.0, 1.0)),
        ("in/momentum", (1.0, 0.0)),
        ("in/step_size", (0.0, 0.0)),
    ):
        if name not in inputs:
            continue
        value = inputs[name].copy()
        draw = whole(seed, f"edges of {name}", value.size, 0, 5).reshape(value.shape)
        value[draw == 0], value[draw == 1] = values
        flat = value.reshape(-1)
        flat[2], flat[-2] = values
        tensors[name] = value
    return tensors


def _slow(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Gates near 1 and smaller steps, so that products of hundreds of gates stay within float32.

    Steps that a momentum adds up under a running reference are smaller still: else the writes of a
    chunk cancel each other, and forms that sum them lose float32. Computed gates are near 1 by their biases, with weights
    and keys of a fraction.
    """
    c, forgets = case.convention, case.convention.gate == "forget"
    running = not (c.has_newton_schulz or c.frozen_reference)
    adds_up = "in/momentum" in inputs and running and c.order == "window_then_momentum"
    lists = {
        "in/retain": tuple(1.0 - x for x in SLOW_RETAIN) if forgets else SLOW_RETAIN,
        "in/momentum": SLOW_MOMENTUM,
        "in/step_size": SLOWER_STEP if adds_up else SLOW_STEP,
        "in/param/b_retain": tuple(-x for x in SLOW_BIAS) if forgets else SLOW_BIAS,
        "in/param/b_momentum": SLOW_MOMENTUM_BIAS,
        "in/param/b_step_size": tuple(-x for x in SLOW_BIAS),
    }
    tensors = dict(inputs)
    for name, value in inputs.items():
        if name in lists:
            tensors[name] = chosen(seed, f"slow {name}", value.shape, lists[name])
        elif name in SLOWED:
            tensors[name] = value * SLOWED[name]
    return tensors


def _repeated(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """One key for every token of a sequence, so that every write overwrites the one before."""
    return inputs | {
        "in/k": np.repeat(inputs["in/k"][..., :1, :], inputs["in/k"].shape[-2], axis=-2)
    }


def _strong(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Steps twice as large and keys of at least 3/4, so that writes of one chunk interact."""
    k = inputs["in/k"]
    longer = np.where(k < 0, -1.0, 1.0) * np.maximum(np.abs(k), 0.75)
    rates = {
        name: 2.0 * inputs[name]
        for name in ("in/step_size", "in/step_size_memory")
        if name in inputs
    }
    return inputs | rates | {"in/k": longer}


def _zero_gradient(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Inputs whose first gradient and momentum are 0.

    The first value is what M0 returns for the first key, a unit vector, and S0 is 0.
    """
    tensors = dict(inputs)
    M0 = (
        np.swapaxes(inputs["in/M0"], -1, -2)
        if case.convention.layout == "transposed"
        else inputs["in/M0"]
    )
    k, v = inputs["in/k"].copy(), inputs["in/v"].copy()
    k[..., 0, :] = np.eye(k.shape[-1])[0]
    v[..., 0, :] = 0.0 if case.convention.reference == "zero" else M0[..., :, 0]
    if "in/S0" in inputs:
        tensors["in/S0"] = np.zeros_like(inputs["in/S0"])
    return tensors | {"in/k": k, "in/v": v}


def _tiny(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """First momenta with norms near 1e-7, the eps of Newton-Schulz, from inputs that float16
    holds.
    """
    enters = case.convention.rate in ("momentum", "both", "split")
    h = 2.0**-8
    k, v = (2.0**-6, 2.0**-10) if enters else (2.0**-10, 2.0**-14)
    factors = {
        "in/k": k,
        "in/v": v * 2.0 ** (seed % 5 - 2),
        "in/M0": 0.0,
        "in/step_size": h,
        "in/S0": 0.0,
    }
    return inputs | {
        name: inputs[name] * factor for name, factor in factors.items() if name in inputs
    }


def _cancelling(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """An initial memory that the writes nearly cancel.

    A small error of one write is then a large error of the last memory.
    """
    candidate, best, least = dict(inputs), inputs["in/M0"], np.inf
    for _ in range(STEPS):
        rest = evaluate(make(case.header.plain(), candidate)).tensors["out/M"]
        size = float(np.linalg.norm(rest)) / max(float(np.linalg.norm(candidate["in/M0"])), 1e-9)
        if size < least:
            best, least = candidate["in/M0"], size
        moved = candidate["in/M0"] - rest
        candidate["in/M0"] = (
            np.clip(moved, -64, 64).astype(ml_dtypes.bfloat16).astype(np.float16).astype(np.float64)
        )
    return inputs | {"in/M0": best}


def _gentle(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Keys, values and memories half as long, so that squares of gradients are near momenta."""
    halved = ("in/k", "in/v", "in/M0", "in/M_ref", "in/window_k", "in/window_v")
    return inputs | {name: 0.5 * inputs[name] for name in halved if name in inputs}


def _on_bounds(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Gates on both bounds, between them, and beyond both.

    Five fixed places have one of each under every seed.
    """
    c, changed = case.convention, dict(inputs)
    of_gates: dict[str, Any] = {"in/retain": c.retain_bounds, "in/step_size": c.step_bounds}
    for name, (least, greatest) in of_gates.items():
        beyond = (0.5 * least, 0.5 * (1.0 + greatest))
        places = (least, greatest, 0.5 * (least + greatest), *beyond)
        value = chosen(seed, f"on bounds of {name}", inputs[name].shape, places)
        flat = value.reshape(-1)
        flat[1 : 1 + len(places)] = places
        changed[name] = flat.reshape(value.shape)
    return changed


def _own_tokens(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A query, a key and a gate for one memory of a TNT, in the place of the shared ones."""
    memory = tnt_parameters.names(tnt_parameters.parse(case.header))[-1]
    own = {}
    for name in ("k", "q", "retain", "step_size"):
        if f"in/{name}" in inputs:
            own[f"in/{memory}/{name}"] = np.flip(inputs[f"in/{name}"], axis=1)
    if "in/step_size" in inputs:  # a write of another size shows at every read
        own[f"in/{memory}/step_size"] = 2.0 * own[f"in/{memory}/step_size"]
    return inputs | own


def _equal(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Equal singular values: a signed permutation over 2."""
    G = inputs["in/G"]
    n, m = G.shape[-2:]
    signs = np.where(whole(seed, "signs", n, 0, 1) == 0, 0.5, -0.5)
    return {
        **inputs,
        "in/G": np.broadcast_to(np.roll(np.diag(signs), 1, axis=0)[:n, :m], G.shape).copy(),
    }


def _rank_one(seed: int, inputs: Inputs, case: Case) -> Inputs:
    G = inputs["in/G"]
    column, row = np.sign(G[..., :, :1]) + (G[..., :, :1] == 0), G[..., :1, :]
    return {**inputs, "in/G": column * row}


def _zero_matrix(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A first matrix of zeros."""
    G = inputs["in/G"].copy()
    G[0] = 0.0
    return {**inputs, "in/G": G}


def _tiny_matrix(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Norms near 1e-7: above it, and below it by the one entry that float16 still holds."""
    unit = np.array([2.0**-24, 2.0**-24, 2.0**-21]).reshape(-1, 1, 1)
    G = np.clip(inputs["in/G"] * 8, -3, 3)
    G[0], G[0, 1, 1] = 0.0, 1.0
    return {**inputs, "in/G": G * unit[: G.shape[0]]}


REGIMES: dict[str, Regime] = {
    "history": _as_drawn,
    "phase": _as_drawn,
    "edges": _edges,
    "slow": _slow,
    "repeated": _repeated,
    "strong": _strong,
    "zero gradient": _zero_gradient,
    "tiny": _tiny,
    "cancelling": _cancelling,
    "gentle": _gentle,
    "on bounds": _on_bounds,
    "own tokens": _own_tokens,
    "equal": _equal,
    "rank one": _rank_one,
    "zero matrix": _zero_matrix,
    "tiny matrix": _tiny_matrix,
    "first memory": erase_regimes.first_memory,
    "further state": erase_regimes.further_state,
    "value rates": erase_regimes.value_rates,
    "strong erase": erase_regimes.strong_erase,
    "one gate": erase_regimes.one_gate,
    "log gate": erase_regimes.log_gate,
    "extreme gates": erase_regimes.extreme_gates,
    "strong logs": erase_regimes.strong_logs,
    "batch": erase_regimes.batch,
    "wide keys": erase_regimes.wide_keys,
    "bonus": erase_regimes.bonus,
    "long": erase_regimes.long,
    "tiny keys": erase_regimes.tiny_keys,
    "without momentum": deep_draws.without_momentum,
    "recurrence": recurrences.numbers,
    "first states": recurrences.first_states,
    "gates of zero": recurrences.gates_of_zero,
    "near one": recurrences.near_one,
    "from before": deep_draws.from_before,
    "thresholds": deep_draws.thresholds,
}
