"""A vector's inputs from its target, topic and seed (VEC-3 to VEC-5).

They are dyadic, exact in bfloat16 and float16, and the same on every machine.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.rules import names_with
from atlas_ref.vectors.inputs import regimes
from atlas_ref.vectors.inputs.axes import deep_draws
from atlas_ref.vectors.inputs.stream import chosen, count_sketches, dyadic
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import Topic

Inputs = dict[str, Any]

#: A list that entries are drawn from; or the largest whole number, and what it is multiplied by.
Recipe = tuple[float, ...] | tuple[int, float]

#: Values that gates and rates are drawn from: none at 1/2, where forget is retain, and none equal
#: throughout.
RETAIN = (0.625, 0.75, 0.8125, 0.875, 0.9375)
FORGET = tuple(1.0 - each for each in RETAIN)
MOMENTUM = (0.25, 0.375, 0.5, 0.625, 0.75)
STEP = (0.0625, 0.125, 0.1875, 0.25, 0.375)
STEP_MEMORY = (0.3125, 0.4375, 0.5, 0.625, 0.75)
LOG_MOMENTUM = tuple(-each for each in MOMENTUM)
WEIGHT = (0.125, 0.1875, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)

#: Steps of a deep memory without Newton-Schulz, whose gradients keep their size.
SMALL_STEP = (0.015625, 0.0234375, 0.03125, 0.046875, 0.0625)

#: Gains of a norm inside a memory, and its scale.
GAIN = (0.75, 0.875, 1.0, 1.125, 1.25)

#: Values that biases of computed gates are drawn from.
RETAIN_BIAS, MOMENTUM_BIAS, STEP_BIAS = (
    (1.0, 1.5, 2.0, 2.5),
    (-0.5, 0.25, 0.5, 1.0),
    (-2.5, -2.0, -1.75, -1.5),
)

#: Squared norms of the keys that a projection has met, together.
SQUARES = (1.5, 2.0, 2.5, 3.0, 3.5)

#: A tensor of one memory of a TNT, or of its state, and the end of its name.
OF_MEMORY = re.compile(r"in/(?:state/)?(?:global|local\d+)/(\w+)")

#: Largest whole number and its unit, of everything that is no gate.
WHOLE: dict[str, tuple[int, float]] = dict.fromkeys(
    ("in/k", "in/window_k", "in/gate_input", "in/gate_bias", "in/gate_log_rate"), (8, 0.125)
)
OTHER = (12, 0.125)


def drawn(target: Target, topic: Topic, seed: int) -> Case:
    """The case of a target, a topic and a seed.

    Returns:
        a case without results, whose inputs are float32 and exact in bfloat16 and float16.
    """
    request, convention = {**target.request, **topic.request}, target.convention
    parametrised = "parameters" in request
    if topic.parameters:
        request["parameters"] = {**request["parameters"], **topic.parameters}
    history = "history" in topic.regimes
    history = history and (parametrised or target.rule in names_with("has_window"))
    if history:
        request["history"] = (request["parameters"] if parametrised else request)["window"] - 1
    name = f"{target.name}-{topic.name}"
    case = new(Request(**request, cotangent=topic.grad, draw=1), name=name)
    header = case.header.plain()
    inputs = {key: _values(seed, key, value, convention) for key, value in case.inputs.items()}
    if parametrised:
        inputs |= _short_steps(seed, inputs, convention)
        inputs |= deep_draws.settled(seed, case, inputs)
    else:
        phase = "phase" in topic.regimes
        inputs |= _resuming(seed, header, inputs, convention, phase, history=history)
    if topic.grad:
        inputs |= {
            f"in/{key[3]}_bar": _values(seed, f"in/{key[3]}_bar", inputs[key], convention)
            for key in ("in/M0", "in/S0")
            if key in inputs
        }
    for regime in topic.regimes:
        inputs = regimes.REGIMES[regime](seed, inputs, make(header, inputs, name=name))
    return make(header, {key: stored(value) for key, value in inputs.items()}, name=name)


def stored(value: Any) -> Any:
    """An array as files hold it: masks as they are, numbers in float32."""
    return value if value.dtype.kind in "biu" else value.astype(np.float32)


def exact(value: Any) -> bool:
    """Whether every number is held by bfloat16 and by float16."""
    wide = value.astype(np.float64)
    return all(
        np.array_equal(wide.astype(kind).astype(np.float64), wide)
        for kind in (ml_dtypes.bfloat16, np.float16)
    )


def recipe(key: str, convention: Convention) -> Recipe:
    """How the entries of a tensor are drawn (VEC-4)."""
    key = _shared(key)
    lists = {
        "in/retain": FORGET if convention.gate == "forget" else RETAIN,
        "in/momentum": MOMENTUM,
        "in/step_size": STEP,
        "in/step_size_memory": STEP_MEMORY,
        "in/param/b_retain": tuple(-x for x in RETAIN_BIAS)
        if convention.gate == "forget"
        else RETAIN_BIAS,
        "in/param/b_momentum": MOMENTUM_BIAS,
        "in/param/b_step_size": STEP_BIAS,
        **dict.fromkeys(("in/window_weights", "in/window_gate", "in/window_gate_before"), WEIGHT),
        "in/state/token_gates": WEIGHT,
        "in/P_size": SQUARES,
        **dict.fromkeys(("in/phi/c", "in/gate_floor"), WEIGHT),
        "in/eta": STEP,
        "in/beta_precond": STEP_MEMORY,
        **dict.fromkeys(("in/log_momentum", "in/log_retain_precond"), LOG_MOMENTUM),
        **dict.fromkeys(("in/a", "in/erase_gate", "in/write_gate"), WEIGHT),
        # a case that is read before a regime of recurrences draws them (VEC-29)
        "in/log_retain": LOG_MOMENTUM,
        "in/ridge": SQUARES,
    }
    if key in lists:
        return lists[key]
    return _of_function(key) if key.startswith(FUNCTION) else WHOLE.get(key, OTHER)


def _shared(key: str) -> str:
    """A tensor of one memory by the name of the one that all share (TNTCASE-3)."""
    found = OF_MEMORY.fullmatch(key)
    return f"in/{found[1]}" if found else key


#: Tensors of a memory function, and their momenta.
FUNCTION = ("in/memory/", "in/state/weights/", "in/state/reference/", "in/state/momentum/")


def _of_function(key: str) -> Recipe:
    """How a tensor of a memory function is drawn: gains around 1, the rest around 0."""
    if key.startswith("in/state/momentum/"):
        return (6, 0.0625)
    if key.endswith(("norm/gain", "read_scale")):
        plain = key.endswith("/norm/gain")  # which is added to 1
        return tuple(each - 1.0 for each in GAIN) if plain else GAIN
    return (4, 0.125) if key.endswith("bias") else (8, 0.125)


def _short_steps(seed: int, inputs: Inputs, convention: Convention) -> Inputs:
    """Smaller steps, where no Newton-Schulz bounds a write."""
    name = "in/step_size"
    if convention.has_newton_schulz or name not in inputs:
        return {}
    return {name: chosen(seed, name, inputs[name].shape, SMALL_STEP)}


def _values(seed: int, key: str, like: Any, convention: Convention) -> Any:
    if like.dtype.kind in "biu":
        return like
    if key == "in/phi/H":
        return count_sketches(seed, key, like.shape)
    of_step = key == "in/beta" and like.ndim == 2  # else a vector of an erase (DPLRCASE-4)
    how = STEP_MEMORY if of_step else recipe(key, convention)
    if isinstance(how[0], int):
        return dyadic(seed, key, like.shape, most=how[0], scale=how[1])
    return chosen(seed, key, like.shape, how)


def _resuming(
    seed: int, header: Inputs, inputs: Inputs, convention: Convention, phase: bool, *, history: bool
) -> Inputs:
    """Extra inputs of a call that goes on in the middle of a span, beside its states."""
    extra: Inputs = {}
    frozen = convention.frozen_reference or convention.read == "chunk_start"
    if phase and frozen:
        header["phase"] = 2
        extra["in/M_ref"] = _values(seed, "in/M_ref", inputs["in/M0"], convention)
    if history and convention.order == "momentum_then_window":
        lead, shape = inputs["in/M0"].shape[:-2], inputs["in/M0"].shape[-2:]
        like = np.zeros((*lead, header["window"] - 1, *shape))
        extra["in/window_momentum"] = _values(seed, "in/window_momentum", like, convention)
    return extra
