"""Regimes of the inputs of a sequence, in which implementations break (SWEEP-4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.oracle.drawing import Arrays, Change

#: Gates of a token, and its steps, in the order in which they are changed.
GATES = ("retain", "momentum")
RATES = ("step_size", "step_size_memory")

PER_TOKEN = ("in/window_weights", "in/window_gate")


def ending(inputs: Arrays, names: tuple[str, ...]) -> Iterator[str]:
    """Tensors of tokens with these names, of all memories or of one."""
    for last in names:
        yield from [name for name in inputs if _ends(name, last)]


def _ends(name: str, last: str) -> bool:
    return name.rpartition("/")[2] == last and not name.startswith(("in/state", "in/param"))


def ordinary(inputs: Arrays, draw: np.random.Generator) -> None:
    """Leave the inputs as `new` makes them."""


def edges(inputs: Arrays, draw: np.random.Generator) -> None:
    """A third of the gates exactly 0 or 1, a third of the steps 0."""
    for name in ending(inputs, GATES):
        some(inputs, name, draw, draw.integers(0, 2, inputs[name].shape))
    for name in ending(inputs, RATES):
        some(inputs, name, draw, np.zeros(inputs[name].shape))


def some(inputs: Arrays, name: str, draw: np.random.Generator, values: Any) -> None:
    """A third of a tensor's entries replaced."""
    mask = draw.uniform(size=inputs[name].shape) < 1 / 3
    inputs[name] = np.where(mask, np.asarray(values, np.float64), inputs[name].astype(np.float64))


def ones(inputs: Arrays, draw: np.random.Generator) -> None:
    """Gates of 1, so that nothing fades."""
    for name in ending(inputs, GATES):
        inputs[name] = np.ones(inputs[name].shape)


def fading(inputs: Arrays, draw: np.random.Generator) -> None:
    """Gates so small that their products leave every float format, so that division by them
    fails.
    """
    for name in ending(inputs, GATES):
        inputs[name] = np.ldexp(
            np.ones(inputs[name].shape), -draw.integers(2, 14, inputs[name].shape)
        )


def slow(inputs: Arrays, draw: np.random.Generator) -> None:
    """Gates and steps that change a state slowly, so that hundreds of tokens stay in every format.

    A momentum and a gate that retains are 16 times nearer to 1, one that forgets to 0.
    """
    for name in ending(inputs, GATES):
        value = inputs[name].astype(np.float64)
        forgets = name.endswith("retain") and value.mean() < 0.5  # retained are 0.8 and more
        inputs[name] = value / 16 if forgets else 1.0 - (1.0 - value) / 16
    for name in ending(inputs, RATES):
        inputs[name] = inputs[name].astype(np.float64) / 4


#: Rates of heads, exp(A_log), that trained layers have, and softplus(dt) of a token: its usual range,
#: and the largest one, in which a head forgets by 2,661 nats.
TRAINED_RATES, TRAINED_STEPS, LARGEST_STEP = (1.0, 201.0), (1e-3, 1e-1), 2661.0 / 201.0


def _log_uniform(
    draw: np.random.Generator, bounds: tuple[float, float], shape: tuple[int, ...]
) -> Any:
    low, high = bounds
    return np.exp(draw.uniform(np.log(low), np.log(high), shape))


def layer_gates(inputs: Arrays, draw: np.random.Generator) -> None:
    """Gates exp(-rate softplus(dt)) of trained layers, one step in 16 the largest; keys and queries of
    length 1.

    Rates lie log-uniform between 1 and 201, the gates of a head between 0.999 and exp(-2661), which
    is 0 in every format, and whose log is not.
    """
    rows = inputs["in/v" if "in/v" in inputs else "in/x"]
    rates = _log_uniform(draw, TRAINED_RATES, rows.shape[:-2])
    for name in [*ending(inputs, ("retain", "log_retain", "gate_input"))]:
        x = inputs[name]
        steps = _log_uniform(draw, TRAINED_STEPS, x.shape)
        steps = np.where(draw.uniform(size=x.shape) < 1 / 16, LARGEST_STEP, steps)
        if name.endswith("gate_input"):  # whose rate is an input of its own
            inputs[name] = np.log(np.expm1(steps))
            continue
        logs = -rates.reshape(*rates.shape, *(1,) * (x.ndim - rates.ndim)) * steps
        forgets = name == "in/retain" and x.astype(np.float64).mean() < 0.5
        inputs[name] = logs if "log_" in name else -np.expm1(logs) if forgets else np.exp(logs)
    if "in/gate_log_rate" in inputs:
        shape = inputs["in/gate_log_rate"].shape
        inputs["in/gate_log_rate"] = np.log(_log_uniform(draw, TRAINED_RATES, shape))
    for name in ending(inputs, ("k", "q")):
        wide = inputs[name].astype(np.float64)
        inputs[name] = wide / np.sqrt(np.sum(wide * wide, axis=-1, keepdims=True))


def small(inputs: Arrays, draw: np.random.Generator) -> None:
    """Small steps and states, so that the norm of the momentum comes near the eps of
    Newton-Schulz.
    """
    for name in ending(inputs, (*RATES, "S0", "M0", "v")):
        inputs[name] = inputs[name].astype(np.float64) * 2.0**-10


def repeat_key(inputs: Arrays, draw: np.random.Generator) -> None:
    """One key for every token: what is written is overwritten."""
    for name in ending(inputs, ("k",)):
        inputs[name] = np.repeat(inputs[name][..., :1, :], inputs[name].shape[-2], axis=-2)


def empty(inputs: Arrays, draw: np.random.Generator) -> None:
    """No initial memory, momentum or window."""
    for name in (
        *ending(inputs, ("M0", "S0", "M_ref")),
        *(name for name in inputs if name.startswith("in/window_") and name not in PER_TOKEN),
        *(name for name in inputs if name.startswith("in/state/")),
    ):
        inputs.pop(name, None)


#: Those of a rule with a sequence.
SEQUENCES: dict[str, Change] = {
    "ordinary": ordinary,
    "edges": edges,
    "ones": ones,
    "fading": fading,
    "small": small,
    "repeated": repeat_key,
    "empty": empty,
}

#: Those that are asked for by name, beside that of a long case.
NAMED: dict[str, Change] = {"slow": slow, "trained": layer_gates}
