"""Regimes of the inputs of a sequence, in which implementations break (SWEEP-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

# -- of rules of the linear family -------------------------------------------------------------------

#: Tensors that are 0 or 1 at the edges, those that are logs, and raw numbers of formulas.
PARTS = ("in/retain", "in/beta", "in/eta", "in/beta_precond")
LOGS = ("in/log_retain", "in/log_momentum", "in/log_retain_precond")
RAW = ("in/gate_input", "in/beta_input")

#: Logs of gates at the edges: of 0, of 1, and of what no format or only a wide one holds.
LAST_LOGS = (-np.inf, 0.0, -100.0, -1000.0)

#: Raw numbers far out, and where formulas change sides.
FAR = (-1000.0, -17.0, 0.0, 20.0, 1000.0)

#: Inputs that a step or a write is multiplied by, and those that an erase has beside them.
WEIGHTS = ("in/step_size", "in/weight")
ERASES = ("in/beta", "in/eta", "in/erase_write", "in/erase_gate", "in/a")


def _linear_edges(inputs: Arrays, draw: np.random.Generator) -> None:
    """A third of gates and rates 0 or 1, of logs and raw numbers at an edge, of weights 0."""
    for names, values in ((PARTS, (0, 1)), (LOGS, LAST_LOGS), (RAW, FAR)):
        for name in (each for each in names if each in inputs):
            places = draw.integers(0, len(values), inputs[name].shape)
            some(inputs, name, draw, np.array(values)[places])
    for name in (each for each in WEIGHTS if each in inputs):
        some(inputs, name, draw, np.zeros(inputs[name].shape))


def _linear_ones(inputs: Arrays, draw: np.random.Generator) -> None:
    """Gates of 1, so that nothing fades."""
    _set_powers(inputs, np.zeros)


def _linear_fading(inputs: Arrays, draw: np.random.Generator) -> None:
    """Gates down to 2^-13, so that their products leave every float format."""
    _set_powers(inputs, lambda shape: -draw.integers(2, 14, shape).astype(np.float64))


def _set_powers(inputs: Arrays, powers: Callable[[tuple[int, ...]], Any]) -> None:
    """Gates as powers of two, or their logs."""
    if "in/retain" in inputs:
        inputs["in/retain"] = np.exp2(powers(inputs["in/retain"].shape))
    if "in/log_retain" in inputs:
        inputs["in/log_retain"] = np.log(2.0) * powers(inputs["in/log_retain"].shape)


def _linear_sudden(inputs: Arrays, draw: np.random.Generator) -> None:
    """One token with the log of a gate of -1000, or a gate of 0, among gentle ones.

    Differences of cumulative sums of logs lose all that comes after it.
    """
    _gentle(inputs)
    rank = inputs["in/v" if "in/v" in inputs else "in/x"].ndim
    for name, value in (("in/retain", 0.0), ("in/log_retain", -1000.0)):
        if name in inputs:
            tokens = np.moveaxis(inputs[name], -2 if inputs[name].ndim == rank else -1, 0)
            tokens[int(draw.integers(len(tokens)))] = value


def _gentle(inputs: Arrays) -> None:
    """Gates 16 times nearer to 1, weights 16 times smaller."""
    if "in/retain" in inputs:
        inputs["in/retain"] = 1.0 - (1.0 - inputs["in/retain"].astype(np.float64)) / 16
    for name in ("in/log_retain", *WEIGHTS):
        if name in inputs:
            inputs[name] = inputs[name].astype(np.float64) / 16


def slow_linear(inputs: Arrays, draw: np.random.Generator) -> None:
    """Gates, rates and erases that change a state slowly, for hundreds of tokens (SWEEP-12)."""
    _gentle(inputs)
    for name in ERASES:
        if name in inputs:
            inputs[name] = inputs[name].astype(np.float64) / 16


def _without_first(inputs: Arrays, draw: np.random.Generator) -> None:
    """No first state."""
    for name in [each for each in inputs if each.endswith("0")]:
        del inputs[name]


#: Those of a rule of the linear family (SWEEP-16, RECUR-16), and those that are asked for by name.
LINEAR: dict[str, Change] = {
    "ordinary": ordinary,
    "edges": _linear_edges,
    "ones": _linear_ones,
    "fading": _linear_fading,
    "sudden": _linear_sudden,
    "repeated": repeat_key,
    "empty": _without_first,
}
LINEAR_NAMED: dict[str, Change] = {"slow": slow_linear, "trained": layer_gates}
