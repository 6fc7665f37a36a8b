"""Parameters of a neural memory: what they are, how they start, how they must fit the settings.

Specified in specs/neural_memory.md (NEURAL-11).
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import field_validator

from atlas_ref.layers import checks, norm
from atlas_ref.layers.norm import Params as NormParams
from atlas_ref.layers.projection import cast
from atlas_ref.parts.gates import GateParams, GateSet
from atlas_ref.rules import deep_memory
from atlas_ref.rules.checks import generator, require_floating
from atlas_ref.types import Array, Dims, Frozen, check_array


class Params(Frozen):
    """Parameters of a neural memory, which the outer loop learns (NEURAL-11).

    Attributes:
        store_norm, retrieve_norm: of the norms of tokens that are written and that read.
        W_K (H, d_in, d_model), W_V (H, d_out, d_model), W_Q (H, d_in, d_model): projections.
        gates: step_size, of a token's weight; retain and momentum, of a chunk, None without them;
            W (H, n, d_model), b (H, n), n = 1, of momentum its orders.
        memory: first weights and slow tensors of each head's memory by name, (H, ...).
        W_gate (H, d_model), W_out (d_model, H, d_out): gate of each head's reads, and their
            projection; None for one head.
    """

    store_norm: NormParams
    retrieve_norm: NormParams
    W_K: Annotated[Array, Dims("H d_in d_model")]
    W_V: Annotated[Array, Dims("H d_out d_model")]
    W_Q: Annotated[Array, Dims("H d_in d_model")]
    gates: GateSet
    memory: dict[str, Any]
    W_gate: Annotated[Array | None, Dims("H d_model", optional=True)] = None
    W_out: Annotated[Array | None, Dims("d_model H d_out", optional=True)] = None

    @field_validator("memory")
    @classmethod
    def _arrays(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, array in value.items():
            check_array(f"memory.{name}", array, Dims("..."))
        return value


def init_params(config: Any, seed: int, *, dtype: Any) -> Params:
    """Projections and gates from uniform(-r, r), r = 1/sqrt(terms of a sum); first memories as their
    rule draws them (NEURAL-11).
    """
    require_floating(dtype)
    draw = generator(seed)
    rule, D, H = config.rule, config.d_model, config.heads

    def uniform(*shape: int, terms: int = D) -> Array:
        return draw.uniform(-1.0, 1.0, shape) / np.sqrt(terms)

    gates = {
        name: GateParams(W=uniform(H, rows, D), b=uniform(H, rows))
        for name, rows in gate_rows(config).items()
    }
    several = H > 1
    params = Params(
        store_norm=norm.init(config.norm),
        retrieve_norm=norm.init(config.norm),
        W_K=uniform(H, rule.d_in, D),
        W_V=uniform(H, rule.d_out, D),
        W_Q=uniform(H, rule.d_in, D),
        gates=GateSet(**gates),
        memory=deep_memory.RULE.draw(rule, int(draw.integers(2**62))),
        W_gate=uniform(H, D) if several else None,
        W_out=uniform(D, H, rule.d_out, terms=H * rule.d_out) if several else None,
    )
    return cast(params, dtype)


def gate_rows(config: Any) -> dict[str, int]:
    """Rows of each gate of a head, by name (NEURAL-4, NEURAL-5)."""
    rows = {"retain": 1} if config.rule.convention.gate != "none" else {}
    if config.momentum:
        rows["momentum"] = config.rule.momentum_order
    return rows | {"step_size": 1}


def check_params(config: Any, params: Params, x: Array) -> None:
    """Refuse parameters that contradict the settings (NORM-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    rule, D, H = config.rule, config.d_model, config.heads
    arrays: dict[str, Any] = {}
    for name in ("store_norm", "retrieve_norm"):
        norm.check_params(config.norm, getattr(params, name), x, f"params.{name}")
    for name, rows in (("W_K", rule.d_in), ("W_V", rule.d_out), ("W_Q", rule.d_in)):
        arrays[f"params.{name}"] = W = getattr(params, name)
        checks.check_shape(f"params.{name}", W, (H, rows, D), "heads, d, d_model")
    arrays |= _checked_gates(config, params.gates)
    for name, shape, axes in (
        ("W_gate", (H, D), "heads, d_model"),
        ("W_out", (D, H, rule.d_out), "d_model, heads, d_out"),
    ):
        arrays[f"params.{name}"] = W = getattr(params, name)
        number = "is one head" if H == 1 else f"are {H} heads"
        checks.check_presence(f"params.{name}", W, H > 1, f"there {number}")
        if W is not None:
            checks.check_shape(f"params.{name}", W, shape, axes)
    needed: Any = deep_memory.RULE.tensors(rule)
    if set(params.memory) != set(needed):
        raise ValueError(
            f"params.memory: {', '.join(params.memory) or 'nothing'}, expected {', '.join(needed)}"
        )
    for name, wanted in needed.items():
        arrays[f"params.memory.{name}"] = own = params.memory[name]
        checks.check_shape(f"params.memory.{name}", own, wanted, "heads, and its own axes")
    checks.check_precision(x, arrays)


def _checked_gates(config: Any, gates: GateSet) -> dict[str, Any]:
    """Weights and biases of the gates by name, of the shapes of the settings."""
    needed = gate_rows(config)
    found: dict[str, Any] = {}
    for name, gate in gates.__dict__.items():
        place = f"params.gates.{name}"
        own = name in needed
        checks.check_presence(place, gate, own, f"the settings {'need it' if own else 'have none'}")
        if gate is not None:
            shape = (config.heads, needed[name])
            checks.check_shape(
                f"{place}.W", gate.W, (*shape, config.d_model), "heads, rows, d_model"
            )
            checks.check_shape(f"{place}.b", gate.b, shape, "heads, rows")
            found |= {f"{place}.W": gate.W, f"{place}.b": gate.b}
    return found
