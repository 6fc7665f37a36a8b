"""Graphs of memory layers: projections, gates and the rule of each level, and what reads make.

The functions are those of `atlas_ref.layers`; how they are joined is written again here. Specified
in specs/modules.md (MODULES-7, MODULES-19).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import memory
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.graphs.cell import GATES, cell
from atlas_ref.oracle.modules.graphs.layers import convolution_module, linear, norm_module
from atlas_ref.oracle.modules.habits.cells import Cell, Combine
from atlas_ref.oracle.modules.habits.projections import Gate, Merge, Split, merge, split
from atlas_ref.oracle.modules.memories import combining
from atlas_ref.parts import gates
from atlas_ref.parts.gates import GateSet
from tape import ops


def memory_graph(
    graph: Graph,
    name: str,
    source: str,
    config: memory.Config,
    params: Any,
    keeps: tuple[bool, ...] = (),
) -> str:
    """A memory layer (MODULES-7); of several levels each has modules of its own (MODULES-19).

    Args:
        keeps: for each call whether its state goes on; empty for always.
    """
    D, several = config.d_model, len(params.levels) > 1
    with graph.module(name):
        x = graph.wire("x", source, f"B T D={D}")
        n = norm_module(graph, f"{name}.pre_norm", x, config.norm, params.norm)
        reads = [
            _level(graph, f"{name}.levels.{i}" if several else name, n, config, (i, branch), keeps)
            for i, branch in enumerate(params.levels)
        ]
        y = _combine(graph, name, reads, config, params) if several else reads[0]
        y = _output(graph, name, y, n, config, params)
        return graph.wire("y", y, f"B T D={D}", way="out")


def _level(
    graph: Graph,
    name: str,
    n: str,
    config: memory.Config,
    level: tuple[int, Any],
    keeps: tuple[bool, ...],
) -> str:
    """Queries, keys, values, gates and the cell of one level, from the normed tokens.

    Args:
        level: its number, and its parameters.
    """
    _, branch = level
    rows = {}
    for each in "qkv":
        flat = _project(graph, name, each, n, config, level, keeps)
        rows[each] = Rows(flat, _heads(config.heads), Split(config.heads))
    for each, weight in (("q", branch.q_norm), ("k", branch.k_norm)):
        own, module = rows[each], f"{name}.{each}_norm"
        key = norm_module(graph, module, own.key, config.head_norm, weight, own.function, own.work)
        rows[each] = Rows(key)
    rows |= _gates(graph, name, n, rows, config, branch)
    return _cell(graph, name, rows, config, level, keeps)


def _combine(graph: Graph, name: str, reads: list[str], config: memory.Config, params: Any) -> str:
    """The reads of all levels, weighed by a softmax (CMS-6, CMS-7)."""
    d_out = config.levels.levels[0].config.d_out
    axes = f"B H={config.heads} T D={d_out}"
    with graph.module(f"{name}.combine"):
        sources = [graph.wire(f"y{i}", each, axes) for i, each in enumerate(reads)]

        def combine(*reads: Any) -> Any:
            weights = combining(config, params.logits, reads[0].shape[-2])
            return sum(w[:, None] * y for w, y in zip(weights, reads, strict=True))

        return graph.output("y", sources, axes, combine, "CMS-6", Combine(params.logits))


class Rows(NamedTuple):
    """What a cell receives: its source, what makes it of that, and which work that is."""

    key: str
    function: Any = None
    work: object = None


def _heads(heads: int) -> Any:
    return lambda x: split(x, heads)


def _project(
    graph: Graph, name: str, each: str, n: str, config: memory.Config, level: Any, keeps: Any
) -> str:
    """q, k or v of all heads (B, T, H d) before their norm (MEMORY-3)."""
    number, branch = level
    W = getattr(branch.projection, f"W_{each.upper()}")
    flat = W.reshape(-1, W.shape[-1])
    conv = config.conv_of(config.levels.levels[number], each)
    filters, module = getattr(branch, f"{each}_conv"), f"{name}.{each}_conv"
    if conv is None:
        return linear(graph, f"{name}.to_{each}", n, flat)
    if config.conv_place == "before_projection":
        n = convolution_module(graph, module, n, conv, filters, keeps)
        return linear(graph, f"{name}.to_{each}", n, flat)
    y = linear(graph, f"{name}.to_{each}", n, flat)
    return convolution_module(graph, module, y, conv, filters, keeps)


def _gates(
    graph: Graph, name: str, n: str, rows: dict[str, Rows], config: memory.Config, branch: Any
) -> dict[str, Rows]:
    """Gates of the rule, and the weight that a token brings into the window (MEMORY-5, MEMORY-6)."""
    own, keys = branch.projection.gates, {}
    maps = {each: (module, getattr(own, each)) for each, module in GATES.items()}
    maps["window_gate"] = ("to_omega_gate", branch.window_gate)
    rate = ops.sigmoid if config.step_size == "sigmoid" else ops.softplus
    for field, (module, gate) in maps.items():
        if gate is None:
            continue
        H, D = gate.W.shape[0], gate.W.shape[-1]
        kind = "retain" if field == "window_gate" else field

        activation, work = (rate if kind == "step_size" else ops.sigmoid), None
        if config.gate_input == "normed" and gate.W.shape[-2] == 1:

            def open_gate(x: Any, gate: Any = gate) -> Any:
                return graph.product(x, gate.W[:, 0]) + gate.b[:, 0]

            work = Gate(open_gate, activation, gate.b[:, 0])

        def compute(x: Any, gate: Any = gate, kind: str = kind, work: Any = work) -> Any:
            if work is not None:
                return work.activation(work.linear(x))
            each = x[:, None] if x.ndim == 3 else x
            y = gates.from_tokens(GateSet(**{kind: gate}), each, step_size=rate)[kind]
            return ops.swapaxes(y, 1, 2)

        with graph.module(f"{name}.{module}"):
            if config.gate_input == "normed":
                x = graph.wire("x", n, f"B T D={D}")
            else:
                k, v = rows["k"], rows["v"]
                x = graph.wire(
                    "x",
                    (k.key, v.key),
                    f"B H={H} T D={D}",
                    lambda a, b, k=k, v=v: _join(_make_rows(k, a), _make_rows(v, b)),
                )
            y = graph.output("y", x, f"B T H={H}", compute, "GATES-6", work)
        keys[field] = Rows(y, lambda y: ops.swapaxes(y, 1, 2))
    return keys


def _make_rows(rows: Rows, x: Any) -> Any:
    return x if rows.function is None else rows.function(x)


def _join(k: Any, v: Any) -> Any:
    return ops.concatenate([k, v], axis=-1)


def _cell(
    graph: Graph, name: str, rows: dict[str, Rows], config: memory.Config, level: Any, keeps: Any
) -> str:
    """The rule as a module: reads, and the state after the last call (MODULES-7)."""
    (number, branch), kind = level, config.levels.levels[level[0]].rule
    rule = config.levels.levels[number].config
    H, d_in, d_out, d_phi = config.heads, rule.d_in, rule.d_out, kind.d_phi(rule)
    state = f"B H={H} R={d_out} D={d_phi}"
    with graph.module(f"{name}.cell"):
        sources = {}
        for field, source in rows.items():
            last = {"q": f" D={d_in}", "k": f" D={d_in}", "v": f" D={d_out}"}.get(field, "")
            axes = f"B H={H} T{last}"
            sources[field] = graph.wire(field, source.key, axes, source.function, work=source.work)
        for each in ("M", "S") if "momentum" in rows else ("M",):
            sources[f"state/{each}"] = graph.free(
                f"state/{each}",
                state,
                sources["k"],
                lambda k: np.zeros((*k.shape[:2], d_out, d_phi), k.dtype),
            )
        names = tuple(sources)

        results = {
            "y": (f"B H={H} T D={d_out}", lambda result: result[0], kind.clauses["out/y"]),
            "state/M": (state, lambda result: result[1].M, kind.clauses["out/M"]),
            "state/S": (state, lambda result: result[1].S, kind.clauses.get("out/S", "")),
        }
        for port, (axes, pick, clause) in results.items():
            if port == "state/S" and "momentum" not in rows:
                continue

            def run(fields: Any, lost: Any = (), pick: Any = pick) -> Any:
                return pick(cell(config, number, branch, graph, keeps, fields, lost))

            window, rate = kind.window(rule), rule.convention.rate
            work = Cell(names, window, rate, len(graph.calls), run)
            graph.output(
                port,
                tuple(sources.values()),
                axes,
                lambda *each, work=work: work.run(work.by_name(each)),
                clause,
                work,
            )
        return f"{name}.cell/out/y"


def _output(graph: Graph, name: str, reads: str, n: str, config: memory.Config, params: Any) -> str:
    """Norm, gate and projection of the reads of all heads (MEMORY-8)."""
    y = norm_module(graph, f"{name}.output_norm", reads, config.output_norm, params.output_norm)
    weight = params.W_out.reshape(params.W_out.shape[0], -1)
    if params.W_gate is None:
        own = Merge(config.heads)
        return linear(graph, f"{name}.to_out", y, weight, function=merge, work=own)
    shape = ops.silu if config.output_gate == "silu" else ops.sigmoid
    with graph.module(f"{name}.output_gate"):
        D, rows = params.W_gate.shape[1], params.W_gate.shape[0]
        x = graph.wire("x", n, f"B T D={D}")
        g = graph.output(
            "y",
            x,
            f"B T D={rows}",
            lambda x: shape(graph.product(x, params.W_gate) + params.b_gate),
            "",
        )
    return linear(graph, f"{name}.to_out", (y, g), weight, function=lambda y, g: merge(y) * g)
