"""How tensors of the younger axes of a deep memory are drawn.

Weights with logarithms are above 0 or 0, those of a network in the place of the momentum small, and
states of a preset have no tokens from before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep import parameters
from atlas_ref.parts.deep_momentum import PREFIX
from atlas_ref.rules.deep_memory import RULE
from atlas_ref.vectors.inputs.stream import chosen, dyadic

Inputs = dict[str, Any]

#: Thresholds of tokens, and weights of a simplex; one in nine is 0.
THRESHOLD = (0.25, 0.5, 0.75, 1.0, 1.5)
SHARE = (0.0, 0.03125, 0.0625, 0.09375, 0.125, 0.1875, 0.25, 0.375, 0.5)

#: Steps of a write whose slopes are bounded or grow slowly, of one among logarithms, and of one that a network makes of a gradient.
BOUNDED_STEP = (0.0625, 0.125, 0.1875, 0.25, 0.375)
LOG_STEP = (0.125, 0.1875, 0.25, 0.375, 0.5)
NETWORK_STEP = (0.25, 0.375, 0.5, 0.625, 0.75)

#: Kinds of a bias whose slope is bounded.
BOUNDED = ("l1", "huber", "kl")

#: Largest whole number and unit where a network is in the place of the momentum: of its tensors, and
#: of keys and values, whose gradients it then does not let grow.
NETWORK, TOKEN = (4, 0.125), (8, 0.0625)

#: Keys and values of a case.
TOKENS = ("in/k", "in/v", "in/state/keys", "in/state/values")

#: A token of the document before a call that goes on.
POSITION = 2


def settled(seed: int, case: Case, inputs: Inputs) -> Inputs:
    """Tensors of a case that other memories draw otherwise; none without a younger axis."""
    if case.header.rule != RULE.name:
        return {}
    config = _config(case)
    extra: Inputs = {}
    steps = _steps(config)
    if steps:
        extra["in/step_size"] = chosen(seed, "in/step_size", inputs["in/step_size"].shape, steps)
    if config.deep_momentum is not None:
        extra |= _of_network(seed, inputs)
    if config.retention.positive:
        extra |= {
            name: chosen(seed, name, x.shape, SHARE)
            for name, x in inputs.items()
            if _on_simplex(config, name)
        }
    return extra


def _steps(config: Any) -> tuple[float, ...]:
    """Step sizes where they are not those of other memories, so that a write shows and none grows."""
    if config.deep_momentum is not None:
        return NETWORK_STEP
    if config.retention.positive:
        return LOG_STEP
    bias = config.bias
    slow = bias.kind in BOUNDED or (bias.kind == "lp" and bias.power < 2.0)
    return BOUNDED_STEP if slow else ()


def _of_network(seed: int, inputs: Inputs) -> Inputs:
    """Tensors of a case with a network in the place of the momentum."""
    extra: Inputs = {}
    for name, x in inputs.items():
        network = name.startswith((f"in/memory/{PREFIX}", "in/state/momentum/"))
        if network or name in TOKENS:
            most, scale = NETWORK if network else TOKEN
            extra[name] = dyadic(seed, name, x.shape, most=most, scale=scale)
    return extra


def without_momentum(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A memory that has no momentum gate."""
    return {
        name: x
        for name, x in inputs.items()
        if name != "in/momentum" and not name.startswith("in/state/momentum/")
    }


def from_before(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A call that goes on within a document and a span, of whose tokens no write sees another."""
    config = _config(case)
    lead = inputs["in/k"].shape[:-2]
    extra: Inputs = {"in/state/position": np.asarray(POSITION, np.int64)}
    for kind in ("weights", "reference"):
        for name, shape in config.fast_shapes.items():
            tensor = f"in/state/{kind}/{name}"
            extra[tensor] = (
                chosen(seed, tensor, (*lead, *shape), SHARE)
                if _on_simplex(config, tensor)
                else dyadic(seed, tensor, (*lead, *shape), most=8, scale=0.125)
            )
    return inputs | extra


def thresholds(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A threshold of every token, and of those from before."""
    of_tokens = {"in/threshold": "in/k", "in/state/thresholds": "in/state/keys"}
    return inputs | {
        name: chosen(seed, name, inputs[keys].shape[:-1], THRESHOLD)
        for name, keys in of_tokens.items()
        if keys in inputs
    }


def _on_simplex(config: Any, name: str) -> bool:
    """Whether a tensor holds weights that have logarithms."""
    prefixes = ("in/memory/", "in/state/weights/", "in/state/reference/")
    own = [name.removeprefix(each) for each in prefixes if name.startswith(each)]
    return bool(config.retention.positive and own and len(config.fast_shapes.get(own[0], ())) == 2)


def _config(case: Case) -> Any:
    k, v = case.inputs["in/k"], case.inputs["in/v"]
    return parameters.config(case.header, k.shape[-1], v.shape[-1])
