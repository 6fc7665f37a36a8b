"""Changes of inputs of rule dplr that show mistakes which ordinary numbers hide (VEC-24)."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr import parameters, tensors
from atlas_ref.oracle.dplr.members import SECOND
from atlas_ref.vectors.inputs.stream import chosen, dyadic, whole

Inputs = dict[str, Any]

#: Factors of an erase, one for each value.
RATES = (0.3125, 0.4375, 0.5, 0.625, 0.75)

#: Gates of an erase that takes away most of what it finds.
STRONG = (0.75, 0.875, 0.9375, 1.0)

#: Natural logs of gates; gates near 1, with a low one now and then that bfloat16 sees missing.
LOGS = (-0.0625, -0.125, -0.25, -0.375, -0.5)
SLOW_GATES = (*(1.0 - n / 256 for n in (1, 1, 1, 1, 2, 2, 2, 3, 3, 4)), 0.5)

#: Gates of the extreme regime, and logs, of which the second underflows to a gate of 1e-13.
ENDS, LOG_ENDS = (0.0, 1.0, 0.0625), (-np.inf, 0.0, -30.0)

#: Logs of strong gates that a sum of logs holds, which it does not hold of a gate of 0 (VEC-27).
STRONG_LOGS = (-30.0, 0.0, -8.0)

#: Rows of a batch, and the factor of keys and queries of 64 and 128 channels (VEC-27, VEC-28).
ROWS, OF_WIDE = 3, 2.0**-3

#: Factors of the vectors that read and erase in long calls, where no erase makes a memory grow.
SHORTER = {
    **dict.fromkeys(("in/k", "in/erase_key", "in/kk"), 0.5),
    **dict.fromkeys(("in/erase_read", "in/erase_write", "in/alpha"), 0.375),
}

#: Factor of keys and queries whose squared length is near eps.
TINY = 2.0**-10


def first_memory(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A memory before the first token, and the cotangent of the last one beside that of reads."""
    own = parameters.parse(case.header)
    (shape,) = tensors.shapes(own, inputs)["in/M0"]
    names = ("in/M0", "in/M_bar") if "in/y_bar" in inputs else ("in/M0",)
    return inputs | {name: dyadic(seed, name, shape, most=12, scale=0.125) for name in names}


def further_state(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """What a member has beside its memory before the first token, and the cotangent of its last.

    It is a momentum, or a sum of squares, which is at least 0.
    """
    own = parameters.parse(case.header)
    shapes = tensors.shapes(own, inputs)
    first, cotangent = SECOND[own.of.second]
    names = (first, cotangent) if "in/y_bar" in inputs else (first,)
    drawn = {name: dyadic(seed, name, shapes[name][0], most=8, scale=0.125) for name in names}
    if own.of.second == "A":
        drawn[first] = np.abs(drawn[first])
    return inputs | drawn


def value_rates(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A factor of an erase for each value (DPLR-18)."""
    name = "in/erase_scale" if parameters.parse(case.header).of.erase == "given" else "in/beta"
    return inputs | {name: chosen(seed, name, inputs["in/v"].shape, RATES)}


def strong_erase(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Gates of an erase near 1."""
    name = "in/erase_gate"
    return inputs | {name: chosen(seed, f"strong {name}", inputs[name].shape, STRONG)}


def one_gate(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """One gate for all channels of a token."""
    gate = inputs["in/retain"]
    by_channel = gate.ndim == inputs["in/v"].ndim
    return inputs | {"in/retain": gate[..., 0] if by_channel else gate}


def log_gate(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """The natural log of the gate in its place."""
    shape = inputs["in/retain"].shape
    others = {name: x for name, x in inputs.items() if name != "in/retain"}
    return others | {"in/log_retain": chosen(seed, "in/log_retain", shape, LOGS)}


def extreme_gates(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Gates of 0, 1 and 1/16, or logs of -inf, 0 and -30, at half of the places."""
    name = "in/log_retain" if "in/log_retain" in inputs else "in/retain"
    value = inputs[name].copy()
    draw = whole(seed, f"extreme {name}", value.size, 0, 5).reshape(value.shape)
    for place, end in enumerate(LOG_ENDS if "log" in name else ENDS):
        value[draw == place] = end
    return inputs | {name: value}


def strong_logs(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Logs of -30, 0 and -8 at half of the places."""
    value = inputs["in/log_retain"].copy()
    draw = whole(seed, "strong in/log_retain", value.size, 0, 5).reshape(value.shape)
    for place, log in enumerate(STRONG_LOGS):
        value[draw == place] = log
    return inputs | {"in/log_retain": value}


def batch(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Rows of a batch in front of the heads, which are a third of those that were drawn."""
    return {
        name: x if x.dtype.kind in "biu" else x.reshape(ROWS, -1, *x.shape[1:])
        for name, x in inputs.items()
    }


def wide_keys(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Keys and queries an eighth as long, as those of many channels are too long for an erase.

    Every key has the first one in it, since keys of many channels are nearly orthogonal, and an
    erase would find nothing.
    """
    shorter = {name: OF_WIDE * inputs[name] for name in ("in/k", "in/q", "in/kk") if name in inputs}
    return inputs | {
        name: x if name == "in/q" else x + x[..., :1, :] for name, x in shorter.items()
    }


def bonus(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A read before the write, and the bonus of its own token."""
    shape = inputs["in/k"].shape[-1:]
    return inputs | {"in/bonus": dyadic(seed, "in/bonus", shape, most=12, scale=0.125)}


def long(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Gates near 1 and shorter vectors, so that the first token counts at the last."""
    changed = {name: factor * inputs[name] for name, factor in SHORTER.items() if name in inputs}
    if "in/alpha" in inputs:  # beside which beta is the other vector of the erase
        changed["in/beta"] = SHORTER["in/alpha"] * inputs["in/beta"]
    if "in/retain" in inputs:
        changed["in/retain"] = chosen(seed, "long gates", inputs["in/retain"].shape, SLOW_GATES)
    return inputs | changed


def tiny_keys(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Keys and queries so short that the eps of their norm decides."""
    return inputs | {name: TINY * inputs[name] for name in ("in/k", "in/q")}
