"""Graphs of layers: memory, attention and feed-forward from the modules that they are put together of.

The functions are those of `atlas_ref.layers`; how they are joined is written again here. Specified
in specs/modules.md (MODULES-6, MODULES-7).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import attention, convolution, feed_forward, memory, norm
from atlas_ref.oracle.modules.cell import GATES, cell
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.habits.attentions import Attend, Passed, Rotary
from atlas_ref.oracle.modules.habits.cells import Cell
from atlas_ref.oracle.modules.habits.feed_forwards import Gated
from atlas_ref.oracle.modules.habits.norms import Norm
from atlas_ref.oracle.modules.habits.projections import (
    Convolution,
    Gate,
    Linear,
    Merge,
    Split,
    merge,
    split,
)
from atlas_ref.oracle.modules.habits.wires import Sum
from atlas_ref.parts import gates
from atlas_ref.parts.gates import GateSet
from tape import ops


def linear(graph: Graph, name: str, source: Any, weight: Any, bias: Any = None, **how: Any) -> str:
    """A projection W x + b of tokens, as a module of that name."""
    rows, columns = weight.shape
    with graph.module(name):
        x = graph.wire("x", source, f"B T D={columns}", how.get("function"), work=how.get("work"))

        def project(x: Any) -> Any:
            y = graph.product(x, weight)
            return y if bias is None else y + bias

        axes = how.get("axes", f"B T D={rows}")
        own = Linear(weight, bias)
        return graph.output("y", x, axes, project, how.get("clause", ""), own)


def normed(
    graph: Graph,
    name: str,
    source: str,
    config: norm.Config,
    params: Any,
    function: Any = None,
    work: object = None,
) -> str:
    """A norm of tokens or heads as a module, which passes everything on under kind none.

    Args:
        function, work: what makes the input of the source.
    """
    axes = f"B T D={config.d}" if config.heads is None else f"B H={config.heads} T D={config.d}"
    with graph.module(name):
        x = graph.wire("x", source, axes, function, work=work)
        if config.kind == "none":
            return graph.wire("y", x, axes, way="out")
        own = Norm(config, params)
        return graph.output("y", x, axes, lambda x: norm.normed(config, params, x), "NORM-4", own)


def convolved(
    graph: Graph, name: str, source: str, config: convolution.Config, filters: Any, keeps: Any
) -> str:
    """A convolution as a module, its tail going on from call to call."""

    def run(config: convolution.Config, filters: Any, x: Any) -> Any:
        state = convolution.start(config, x.shape[0], dtype=x.dtype)
        results = []
        for i, (first, last) in enumerate(graph.spans(x.shape[1])):
            after, y = convolution.convolved(config, filters, state, x[:, first:last], None)
            state = after if not keeps or keeps[i] else state
            results.append(y)
        return np.concatenate(results, axis=1)

    axes = f"B T D={config.d_model}"
    with graph.module(name):
        x = graph.wire("x", source, axes)
        own = Convolution(run, config, filters)
        return graph.output("y", x, axes, lambda x: run(config, filters, x), "CONVOLUTION-1", own)


# -- memory ----------------------------------------------------------------------------------------


def memory_graph(
    graph: Graph,
    name: str,
    source: str,
    config: memory.Config,
    params: Any,
    keeps: tuple[bool, ...] = (),
) -> str:
    """A memory layer of one level (MODULES-7).

    Args:
        keeps: for each call whether its state goes on; empty for always.
    """
    D, branch = config.d_model, params.levels[0]
    with graph.module(name):
        x = graph.wire("x", source, f"B T D={D}")
        n = normed(graph, f"{name}.pre_norm", x, config.norm, params.norm)
        rows = {}
        for each in "qkv":
            flat = _projected(graph, name, each, n, config, branch, keeps)
            rows[each] = Rows(flat, _heads(config.heads), Split(config.heads))
        for each, weight in (("q", branch.q_norm), ("k", branch.k_norm)):
            own, module = rows[each], f"{name}.{each}_norm"
            key = normed(graph, module, own.key, config.head_norm, weight, own.function, own.work)
            rows[each] = Rows(key)
        rows |= _gates(graph, name, n, rows, config, branch)
        reads = _cell(graph, name, rows, config, branch, keeps)
        y = _output(graph, name, reads, n, config, params)
        return graph.wire("y", y, f"B T D={D}", way="out")


class Rows(NamedTuple):
    """What a cell receives: its source, what makes it of that, and which work that is."""

    key: str
    function: Any = None
    work: object = None


def _heads(heads: int) -> Any:
    return lambda x: split(x, heads)


def _projected(
    graph: Graph, name: str, each: str, n: str, config: memory.Config, branch: Any, keeps: Any
) -> str:
    """q, k or v of all heads (B, T, H d) before their norm (MEMORY-3)."""
    W = getattr(branch.projection, f"W_{each.upper()}")
    flat = W.reshape(-1, W.shape[-1])
    conv = config.conv_of(config.levels.levels[0], each)
    filters, module = getattr(branch, f"{each}_conv"), f"{name}.{each}_conv"
    if conv is None:
        return linear(graph, f"{name}.to_{each}", n, flat)
    if config.conv_place == "before_projection":
        n = convolved(graph, module, n, conv, filters, keeps)
        return linear(graph, f"{name}.to_{each}", n, flat)
    y = linear(graph, f"{name}.to_{each}", n, flat)
    return convolved(graph, module, y, conv, filters, keeps)


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

            def opened(x: Any, gate: Any = gate) -> Any:
                return graph.product(x, gate.W[:, 0]) + gate.b[:, 0]

            work = Gate(opened, activation, gate.b[:, 0])

        def compute(x: Any, gate: Any = gate, kind: str = kind, work: Any = work) -> Any:
            if work is not None:
                return work.activation(work.linear(x))
            each = x[:, None] if x.ndim == 3 else x
            y = gates.from_tokens(GateSet(**{kind: gate}), each, step_size=rate)[kind]
            return np.swapaxes(y, 1, 2)

        with graph.module(f"{name}.{module}"):
            if config.gate_input == "normed":
                x = graph.wire("x", n, f"B T D={D}")
            else:
                k, v = rows["k"], rows["v"]
                x = graph.wire(
                    "x",
                    (k.key, v.key),
                    f"B H={H} T D={D}",
                    lambda a, b, k=k, v=v: _joined(_made(k, a), _made(v, b)),
                )
            y = graph.output("y", x, f"B T H={H}", compute, "GATES-6", work)
        keys[field] = Rows(y, lambda y: np.swapaxes(y, 1, 2))
    return keys


def _made(rows: Rows, x: Any) -> Any:
    return x if rows.function is None else rows.function(x)


def _joined(k: Any, v: Any) -> Any:
    return np.concatenate([k, v], axis=-1)


def _cell(
    graph: Graph, name: str, rows: dict[str, Rows], config: memory.Config, branch: Any, keeps: Any
) -> str:
    """The rule as a module: reads, and the state after the last call (MODULES-7)."""
    rule = config.levels.levels[0].config
    H, d_in, d_out, d_phi = config.heads, rule.d_in, rule.d_out, rule.d_phi
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
            "y": (f"B H={H} T D={d_out}", lambda result: result[0], "OMEGA-1"),
            "state/M": (state, lambda result: result[1].M, "OMEGA-6"),
            "state/S": (state, lambda result: result[1].S, "OMEGA-6"),
        }
        for port, (axes, pick, clause) in results.items():
            if port == "state/S" and "momentum" not in rows:
                continue

            def run(fields: Any, lost: Any = (), pick: Any = pick) -> Any:
                return pick(cell(config, branch, graph, keeps, fields, lost))

            work = Cell(names, rule.window, rule.convention.rate, len(graph.calls), run)
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
    y = normed(graph, f"{name}.output_norm", reads, config.output_norm, params.output_norm)
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


# -- attention -------------------------------------------------------------------------------------


def attention_graph(
    graph: Graph, name: str, source: str, config: attention.Config, params: Any, context: Any = None
) -> str:
    """Attention in a window, with the rows of a mean before the call where there are some (MODULES-6)."""
    H, d, D = config.heads, config.d_head, config.d_model
    heads = f"B H={H} T D={d}"
    flat = params.W_qkv.reshape(3 * H * d, D)
    with graph.module(name):
        x = graph.wire("x", source, f"B T D={D}")
        n = normed(graph, f"{name}.norm", x, config.norm, params.norm)
        with graph.module(f"{name}.to_qkv"):
            x = graph.wire("x", n, f"B T D={D}")
            clause = "ATTENTION-1"
            qkv = graph.output(
                "y", x, f"B T D={3 * H * d}", lambda x: graph.product(x, flat), clause
            )
            rows = {
                each: graph.output(each, qkv, heads, own.plain, clause, own)
                for each, own in ((each, Split(H, i, 3)) for i, each in enumerate("qkv"))
            }
        turns = None
        if config.rotary is not None:
            turns = Rotary(config.rotary, graph.spans, config.persistent)
            rows |= _turned(graph, name, rows, turns, heads)
        with graph.module(f"{name}.attend"):
            sources = [
                graph.wire(each, rows[each], heads, work=Passed(turns) if each == "v" else None)
                for each in "qkv"
            ]
            row, copies = context or ("", 1)
            if context is not None:
                sources.append(graph.wire("context", row, f"B C D={D}"))

            def attend(q: Any, k: Any, v: Any, row: Any = None) -> Any:
                rows = None if row is None else (row, copies)
                return _attend(graph, config, params, np.stack([q, k, v], axis=1), rows)

            plainly = context is None and config.attention_window == "causal"
            own = Attend(config, params, graph.spans) if plainly else None
            y = graph.output("y", sources, heads, attend, "ATTENTION-2", own)
        weight, how = params.W_out.reshape(D, H * d), {"function": merge, "work": Merge(H)}
        y = linear(graph, f"{name}.to_out", y, weight, clause="ATTENTION-1", **how)
        return graph.wire("y", y, f"B T D={D}", way="out")


def _turned(
    graph: Graph, name: str, rows: dict[str, str], turns: Rotary, heads: str
) -> dict[str, str]:
    """Queries and keys after their positions (ROTARY-1)."""
    with graph.module(f"{name}.rotary"):
        sources = {each: graph.wire(each, rows[each], heads) for each in "qk"}
        return {
            each: graph.output(
                each, source, heads, lambda x: turns.turned(x, turns.at(x)), "ROTARY-1", turns
            )
            for each, source in sources.items()
        }


def _attend(graph: Graph, config: attention.Config, params: Any, qkv: Any, context: Any) -> Any:
    """Reads of all calls, with the cache of each going on to the next (ATTENTION-2 to ATTENTION-8)."""
    plain = config.replaced(rotary=None)
    state, results = attention.start(plain, qkv.shape[0], dtype=qkv.dtype), []
    for i, (first, last) in enumerate(graph.spans(qkv.shape[-2])):
        extra = None
        if context is not None:
            row = np.repeat(context[0][:, None, i : i + 1], context[1], axis=2)
            extra = tuple(row @ np.swapaxes(params.W_qkv[j], -1, -2) for j in (1, 2))
        y, state = attention.attended(plain, params, state, qkv[:, :, :, first:last], None, extra)
        results.append(y)
    return np.concatenate(results, axis=-2)


# -- feed-forward ----------------------------------------------------------------------------------


def feed_forward_graph(
    graph: Graph, name: str, source: Any, config: feed_forward.Config, params: Any, join: Any = None
) -> tuple[str, str]:
    """A gated feed-forward (FEED-1): keys of its input, and of its result.

    Args:
        join: what makes the input of the sources.
    """
    D, n = config.d_model, config.d_inner
    with graph.module(name):
        summed = Sum() if join is not None else None
        x = graph.wire("x", source, f"B T D={D}", join, work=summed)
        h = normed(graph, f"{name}.0", x, config.norm, params.norm)
        h = linear(graph, f"{name}.1", h, params.W_in, params.b_in, clause="FEED-1")
        own = Gated(config.gate_half)

        def gated(h: Any) -> Any:
            value, gate = own.halves(h)
            return feed_forward.activated(config.activation, gate) * value

        with graph.module(f"{name}.2"):
            hidden = graph.wire("x", h, f"B T D={2 * n}")
            h = graph.output("y", hidden, f"B T D={n}", gated, "FEED-1", own)
        y = linear(graph, f"{name}.3", h, params.W_out, params.b_out, clause="FEED-1")
        return x, graph.wire("y", y, f"B T D={D}", way="out")
