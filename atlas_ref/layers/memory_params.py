"""Parameters of a memory layer: what they are, how they start, and how they must fit the settings.

Specified in specs/memory.md (MEMORY-11).
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from atlas_ref.forms import tnt
from atlas_ref.layers import checks, convolution, memory_tnt, norm, projection
from atlas_ref.layers.norm import Params as NormParams
from atlas_ref.levels.level import Level, of_rank
from atlas_ref.parts import window
from atlas_ref.parts.gates import GateParams, GateSet
from atlas_ref.rules.checks import generator, require_floating
from atlas_ref.types import Array, Dims, Frozen, check_array

#: Initial biases of the gates of a layer of one level; those of several are CMS-3's.
BIASES = {"retain": 4.0, "momentum": 2.0, "step_size": -4.0}


class Branch(Frozen):
    """Parameters of one level of a memory layer (MEMORY-11).

    Attributes:
        projection: W_K (H, d_in, d_model), W_V, W_Q, gates, and tensors of the feature map and of
            the window weights.
        q_conv, k_conv, v_conv: filters; None without a convolution.
        q_norm, k_norm: weights of the norm of heads; None without one.
        window_gate: W (H, 1, d), b (H, 1) of the weight that a token brings; None without one.
    """

    projection: projection.Params
    q_conv: convolution.Params | None = None
    k_conv: convolution.Params | None = None
    v_conv: convolution.Params | None = None
    q_norm: norm.Params | None = None
    k_norm: norm.Params | None = None
    window_gate: GateParams | None = None


class Params(Frozen):
    """Parameters of a memory layer, which the outer loop learns (MEMORY-11).

    Attributes:
        norm: of the norm of tokens.
        levels: of each level; of a TNT one for all memories, or one each.
        W_out (d_model, H, d_out): projection of the reads of all heads.
        logits (k,): weights of the levels; None for one level.
        output_norm: of the norm of reads.
        W_gate (H d_out, d_model), b_gate (H d_out,): gate of the reads; None without one.
        initial: where each memory of a TNT starts (MEMORY-14).
    """

    norm: NormParams
    levels: tuple[Branch, ...]
    W_out: Annotated[Array, Dims("d_model H d_out")]
    output_norm: NormParams = NormParams()
    logits: Annotated[Array | None, Dims("k", optional=True)] = None
    W_gate: Annotated[Array | None, Dims("channels d_model", optional=True)] = None
    b_gate: Annotated[Array | None, Dims("channels", optional=True)] = None
    initial: tuple[tnt.Initial, ...] = ()


def init_params(config: Any, seed: int, *, dtype: Any) -> Params:
    """Projections and filters from uniform(-r, r), r = 1/sqrt(terms of a sum); gates zero but for
    their biases (MEMORY-11).
    """
    require_floating(dtype)
    draw = generator(seed)
    levels, D, H = config.levels.levels, config.d_model, config.heads
    d_out = levels[0].config.d_out
    places = config.levels.places() if config.combined else [None] * len(levels)
    branches = [
        _branch(config, level, place, draw) for level, place in zip(levels, places, strict=True)
    ]
    gate = config.output_gate != "none"
    params = Params(
        norm=norm.init(config.norm),
        levels=tuple(branches),
        W_out=draw.uniform(-1.0, 1.0, (D, H, d_out)) / np.sqrt(H * d_out),
        output_norm=norm.init(config.output_norm),
        logits=np.zeros(len(levels)) if config.combined else None,
        W_gate=draw.uniform(-1.0, 1.0, (H * d_out, D)) / np.sqrt(D) if gate else None,
        b_gate=draw.uniform(-1.0, 1.0, H * d_out) / np.sqrt(D) if gate else None,
        initial=memory_tnt.init(config.levels) if of_tnt(config) else (),
    )
    return projection.cast(params, dtype)


def _branch(config: Any, level: Level, place: int | None, draw: np.random.Generator) -> Branch:
    rule, D, H = level.config, config.d_model, config.heads
    d_in, d_out = rule.d_in, rule.d_out

    def uniform(rows: int) -> Array:
        return draw.uniform(-1.0, 1.0, (H, rows, D)) / np.sqrt(D)

    def seed() -> int:
        return int(draw.integers(2**62))

    convs = {
        f"{name}_conv": convolution.init(settings, seed())
        for name in "qkv"
        if (settings := config.conv_of(level, name)) is not None
    }
    of_heads = None if config.head_norm.kind == "none" else norm.init(config.head_norm)
    inputs = D if config.gate_input == "normed" else d_in + d_out
    tensors: dict[str, Any] = {}
    if level.rule.has_window:
        tensors["phi"] = level.rule.draw(rule, seed())
        tensors["window"] = window.init(
            rule.window_weights, heads=H, window=rule.window, d_model=D, draw=draw
        )
    own = projection.Params(
        W_Q=uniform(d_in),
        W_K=uniform(d_in),
        W_V=uniform(d_out),
        gates=_gates(config, level, place, inputs),
        **tensors,
    )
    gate = (
        GateParams(W=np.zeros((H, 1, inputs)), b=np.zeros((H, 1))) if config.window_gate else None
    )
    return Branch(projection=own, q_norm=of_heads, k_norm=of_heads, window_gate=gate, **convs)


def _gates(config: Any, level: Level, place: int | None, inputs: int) -> GateSet:
    """Gates with weights zero and the biases of the level, or of its place (MEMORY-11, CMS-3)."""
    rule, H = level.config, config.heads
    rows = rule.d_out if rule.per_dimension_gates else 1
    least = dict(BIASES)
    if place is not None:
        least |= of_rank(place)
    maps = {}
    for name in gate_names(config, level):
        bias = getattr(level.biases, name)
        bias = least[name] if bias is None else bias
        forget = name == "retain" and rule.convention.gate == "forget"
        maps[name] = GateParams(
            W=np.zeros((H, rows, inputs)), b=np.full((H, rows), -bias if forget else bias)
        )
    return GateSet(**maps)


def gate_names(config: Any, level: Level) -> list[str]:
    """The gates of a level: its rule's, momentum only where the layer has one (MEMORY-5)."""
    names = projection.gate_names(level.rule.gates, level.config.convention)
    return [name for name in names if name != "momentum" or config.momentum]


def check_params(config: Any, params: Params, x: Array) -> None:
    """Refuse parameters that contradict the settings (NORM-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    levels = config.levels.levels
    norm.check_params(config.norm, params.norm, x, "params.norm")
    norm.check_params(config.output_norm, params.output_norm, x, "params.output_norm")
    if len(params.levels) != len(levels):
        raise ValueError(f"params.levels: {len(params.levels)}, expected {len(levels)}")
    for i, (level, branch) in enumerate(zip(levels, params.levels, strict=True)):
        _check_branch(
            config, level, branch, x, "params" if len(levels) == 1 else f"params.levels[{i}]"
        )
    D, H, d_out = config.d_model, config.heads, levels[0].config.d_out
    checks.check_shape("params.W_out", params.W_out, (D, H, d_out), "d_model, heads, d_out")
    optional = {
        "logits": ((len(levels),) if config.combined else None, "levels"),
        "W_gate": ((H * d_out, D), "heads d_out, d_model"),
        "b_gate": ((H * d_out,), "heads d_out"),
    }
    for name, (shape, axes) in optional.items():
        absent = shape is None or (name != "logits" and config.output_gate == "none")
        _check_optional(f"params.{name}", getattr(params, name), None if absent else shape, axes)
    names = ("W_out", "logits", "W_gate", "b_gate")
    checks.check_precision(x, {f"params.{name}": getattr(params, name) for name in names})
    memory_tnt.check_initial(config.levels, params.initial, x)


def of_tnt(config: Any) -> bool:
    """Whether the memories of a layer are those of a TNT (MEMORY-13)."""
    return isinstance(config.levels, memory_tnt.Config)


def _check_optional(name: str, array: Any, shape: tuple[int, ...] | None, axes: str) -> None:
    needed = shape is not None
    checks.check_presence(name, array, needed, f"the settings {_verb(needed)}")
    if array is not None and shape is not None:
        checks.check_shape(name, array, shape, axes)


def _check_branch(config: Any, level: Level, branch: Branch, x: Array, name: str) -> None:
    rule, H, own = level.config, config.heads, branch.projection
    projection.check_params(rule, own, x)
    for each, count in (("W_Q", rule.d_in), ("W_K", rule.d_in), ("W_V", rule.d_out)):
        W, place = getattr(own, each), f"{name}.{each}"
        checks.check_shape(place, W, (H, count, config.d_model), "heads, d, d_model")
        checks.check_precision(x, {place: W})
    inputs = config.d_model if config.gate_input == "normed" else rule.d_in + rule.d_out
    rows = rule.d_out if rule.per_dimension_gates else 1
    maps = {
        f"gates.{each}": getattr(own.gates, each) for each in ("retain", "momentum", "step_size")
    }
    checks.check_presence(
        f"{name}.gates.momentum",
        own.gates.momentum,
        config.momentum and "momentum" in level.rule.gates,
        f"the layer has {'' if config.momentum else 'no '}momentum",
    )
    given, needed = branch.window_gate, config.window_gate
    checks.check_presence(f"{name}.window_gate", given, needed, f"window_gate is {needed}")
    for each, gate in (maps | {"window_gate": branch.window_gate}).items():
        if gate is not None:
            count = 1 if each == "window_gate" else rows
            checks.check_shape(
                f"{name}.{each}.W", gate.W, (H, count, inputs), "heads, rows, inputs"
            )
            checks.check_shape(f"{name}.{each}.b", gate.b, (H, count), "heads, rows")
            checks.check_precision(x, {f"{name}.{each}.W": gate.W, f"{name}.{each}.b": gate.b})
    for each in "qkv":
        place, settings = f"{name}.{each}_conv", config.conv_of(level, each)
        filters, needed = getattr(branch, f"{each}_conv"), settings is not None
        checks.check_presence(place, filters, needed, f"the settings {_verb(needed)}")
        if settings is not None:
            convolution.check_params(settings, filters, x, place)
    for each in ("q_norm", "k_norm"):
        weight = getattr(branch, each)
        kind = config.head_norm.kind
        checks.check_presence(f"{name}.{each}", weight, kind != "none", f"head_norm is {kind}")
        if weight is not None:
            norm.check_params(config.head_norm, weight, x, f"{name}.{each}")


def _verb(needed: bool) -> str:
    return "need it" if needed else "have none"


def check_state(config: Any, state: Any, x: Array) -> None:
    """Refuse a state that contradicts the settings or the tokens (NORM-2).

    Raises:
        ValueError: names the part, what was found and what is needed.
    """
    levels, conv = config.levels.levels, config.conv is not None
    rules = [each.rule for each in (config.levels.tnt.memories if of_tnt(config) else levels)]
    held = _memories(config, state)
    if any(len(own) != len(rules) for _, own in held) or len(state.tails) != len(levels) * conv:
        raise ValueError(
            f"state: {len(held[0][1])} memories and tails of {len(state.tails)} levels, expected "
            f"{len(rules)} and {len(levels) * conv}"
        )
    for i, tails in enumerate(state.tails):
        if len(tails) != 3:
            raise ValueError(f"state.tails[{i}]: {len(tails)}, expected those of q, k and v")
        for name, tail in zip("qkv", tails, strict=True):
            settings, place = config.conv_of(levels[i], name), f"state.tails[{i}]: {name}"
            expected = (x.shape[0], settings.rows, settings.d_model)
            checks.check_shape(place, tail.tail, expected, "batch, rows, channels")
            checks.check_precision(x, {place: tail.tail})
    leading = (x.shape[0], config.heads)
    for part, memories in held:
        for i, memory in enumerate(memories):
            for each in rules[i].memories:
                own = getattr(memory, each)
                arrays = own if isinstance(own, dict) else {"": own}
                for name, array in arrays.items():
                    place = f"state: level {i}: {part}{each}{name and '.'}{name}"
                    shared = (1, config.heads) if isinstance(own, dict) else leading
                    _check_memory(place, array, leading, shared, x)


def _memories(config: Any, state: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """The states of rules within a state, by what they are."""
    own, needed = state.levels, of_tnt(config)
    if isinstance(own, tnt.State) != needed:
        raise ValueError(f"state: {'of levels' if needed else 'of a TNT'}, but the layer has none")
    if needed:
        return [("", tuple(place.memory for place in own.places))]
    return [("", own.states), ("origin ", own.origins)]


def _check_memory(
    name: str, array: Any, leading: tuple[int, int], shared: tuple[int, int], x: Array
) -> None:
    """Refuse a memory of other rows; fast tensors may have one row for all, as their rule checks."""
    check_array(name, array, Dims("..."))
    if array.shape[:2] not in (leading, shared):
        raise ValueError(
            f"{name} of shape {array.shape}, expected leading axes {leading}: batch, heads"
        )
    checks.check_precision(x, {name: array})
