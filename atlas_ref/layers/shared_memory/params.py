"""Parameters of a memory that shares the projections of attention, and the checks of a call.

Specified in specs/shared_memory.md (SHARED-7).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import field_validator

from atlas_ref.layers import checks, query_key
from atlas_ref.layers.memory_params import BIASES
from atlas_ref.layers.projection import cast
from atlas_ref.layers.shared_memory.config import Config
from atlas_ref.parts import gates
from atlas_ref.parts.gates import GateParams, GateSet, HiddenGateParams
from atlas_ref.rules.checks import generator, require_floating
from atlas_ref.types import Array, Dims, Frozen, check_array


class Params(Frozen):
    """Parameters of the layer, which the outer loop learns (SHARED-7).

    Attributes:
        phi: tensors of the memory, each with an axis of its heads: of a deep memory W_0 and those
            that no write moves.
        gate: of keys and of tokens in the window; None without one.
        projection: of queries onto keys; None without one.
        gates: of the rule, from the normed token; empty where they are numbers.
    """

    phi: dict[str, Any]
    gate: HiddenGateParams | None = None
    projection: query_key.Params | None = None
    gates: GateSet = GateSet()

    @field_validator("phi")
    @classmethod
    def _arrays(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, array in value.items():
            check_array(name, array, Dims("..."))
        return value


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """The memory at its rule's start, the gate at 1/2, gates of the rule at their biases
    (SHARED-7).
    """
    require_floating(dtype)
    draw, level, D = generator(seed), config.level, config.d_model
    seeds = [int(each) for each in draw.integers(2**62, size=2)]
    gate = None
    if config.gate_hidden is not None:
        gate = gates.init_hidden(heads=1, hidden=config.gate_hidden, d_model=D, draw=draw)
    own = config.projection
    params = Params(
        phi=level.rule.draw(level.config, seeds[0]) if level.rule.has_window else {},
        gate=gate,
        projection=None if own is None else query_key.init(own, seeds[1]),
        gates=GateSet(**{name: _gate(config, name) for name in config.gate_names}),
    )
    return cast(params, dtype)


def _gate(config: Config, name: str) -> GateParams:
    rule, D, bias = config.level.config, config.d_model, BIASES[name]
    n = rule.d_out if rule.per_dimension_gates else 1
    if name == "retain" and rule.convention.gate == "forget":
        bias = -bias
    shape = (config.heads, n)
    return GateParams(W=np.zeros((*shape, D)), b=np.full(shape, bias))


def check_params(config: Config, params: Params, n: Array) -> None:
    """Refuse parameters that contradict the settings or the tokens (NORM-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    D, hidden, of = config.d_model, config.gate_hidden, "params.memory"
    checks.check_presence(f"{of}.gate", params.gate, hidden is not None, f"gate_hidden is {hidden}")
    if params.gate is not None and hidden is not None:
        for name, shape in (("W_in", (hidden, D)), ("W_out", (1, hidden))):
            array = getattr(params.gate, name)
            checks.check_shape(f"{of}.gate.{name}", array, shape, "of the gate")
            checks.check_precision(n, {f"{of}.gate.{name}": array})
    own = config.projection
    but = f"the settings {'need it' if own is not None else 'have none'}"
    checks.check_presence(f"{of}.projection", params.projection, own is not None, but)
    rule, names = config.level.config, config.gate_names
    rows = rule.d_out if rule.per_dimension_gates else 1
    for name, gate in params.gates.__dict__.items():
        but = f"gates from tokens are {', '.join(names) or 'none'}"
        checks.check_presence(f"{of}.gates.{name}", gate, name in names, but)
        if gate is not None:
            place, shape = f"{of}.gates.{name}", (config.heads, rows)
            checks.check_shape(f"{place}.W", gate.W, (*shape, D), "heads, rows, d_model")
            checks.check_shape(f"{place}.b", gate.b, shape, "heads, rows")
            checks.check_precision(n, {f"{place}.W": gate.W, f"{place}.b": gate.b})
