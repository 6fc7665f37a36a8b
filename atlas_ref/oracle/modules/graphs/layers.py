"""Graphs of layers: memory, attention and feed-forward from the modules that they are put together of.

The functions are those of `atlas_ref.layers`; how they are joined is written again here. Specified
in specs/modules.md (MODULES-6, MODULES-7).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.layers import attention, convolution, feed_forward, norm
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.habits.attentions import Attend, Passed, Rotary
from atlas_ref.oracle.modules.habits.feed_forwards import Gated
from atlas_ref.oracle.modules.habits.norms import Norm
from atlas_ref.oracle.modules.habits.projections import (
    Convolution,
    Linear,
    Merge,
    Split,
    merge,
)
from atlas_ref.oracle.modules.habits.wires import Sum
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


def norm_module(
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


def convolution_module(
    graph: Graph, name: str, source: str, config: convolution.Config, filters: Any, keeps: Any
) -> str:
    """A convolution as a module, its tail going on from call to call."""

    def run(config: convolution.Config, filters: Any, x: Any) -> Any:
        state = convolution.start(config, x.shape[0], dtype=x.dtype)
        results = []
        for i, (first, last) in enumerate(graph.spans(x.shape[1])):
            after, y = convolution.convolved(config, filters, state, x[:, first:last], None)
            state = graph.hand_over(after) if not keeps or keeps[i] else state
            results.append(y)
        return ops.concatenate(results, axis=1)

    axes = f"B T D={config.d_model}"
    with graph.module(name):
        x = graph.wire("x", source, axes)
        own = Convolution(run, config, filters)
        return graph.output("y", x, axes, lambda x: run(config, filters, x), "CONVOLUTION-1", own)


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
        n = norm_module(graph, f"{name}.norm", x, config.norm, params.norm)
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
            rows |= _turn(graph, name, rows, turns, heads)
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
                return _attend(graph, config, params, ops.stack([q, k, v], axis=1), rows)

            plainly = context is None and config.attention_window == "causal"
            own = Attend(config, params, graph.spans) if plainly else None
            y = graph.output("y", sources, heads, attend, "ATTENTION-2", own)
        weight, how = params.W_out.reshape(D, H * d), {"function": merge, "work": Merge(H)}
        y = linear(graph, f"{name}.to_out", y, weight, clause="ATTENTION-1", **how)
        return graph.wire("y", y, f"B T D={D}", way="out")


def _turn(
    graph: Graph, name: str, rows: dict[str, str], turns: Rotary, heads: str
) -> dict[str, str]:
    """Queries and keys after their positions (ROTARY-1)."""
    with graph.module(f"{name}.rotary"):
        sources = {each: graph.wire(each, rows[each], heads) for each in "qk"}
        return {
            each: graph.output(
                each, source, heads, lambda x: turns.turn(x, turns.at(x)), "ROTARY-1", turns
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
            row = ops.expand_dims(context[0][:, i : i + 1], 1)
            row = ops.broadcast_to(row, (*row.shape[:2], context[1], row.shape[-1]))
            extra = tuple(row @ np.swapaxes(params.W_qkv[j], -1, -2) for j in (1, 2))
        y, state = attention.attended(plain, params, state, qkv[:, :, :, first:last], None, extra)
        state = graph.hand_over(state)
        results.append(y)
    return ops.concatenate(results, axis=-2)


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
        h = norm_module(graph, f"{name}.0", x, config.norm, params.norm)
        h = linear(graph, f"{name}.1", h, params.W_in, params.b_in, clause="FEED-1")
        own = Gated(config.gate_half)

        def gate(h: Any) -> Any:
            value, gate = own.halves(h)
            return feed_forward.activated(config.activation, gate) * value

        with graph.module(f"{name}.2"):
            hidden = graph.wire("x", h, f"B T D={2 * n}")
            h = graph.output("y", hidden, f"B T D={n}", gate, "FEED-1", own)
        y = linear(graph, f"{name}.3", h, params.W_out, params.b_out, clause="FEED-1")
        return x, graph.wire("y", y, f"B T D={D}", way="out")
