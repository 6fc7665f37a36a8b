"""Graphs of blocks and of language models, from the graphs of their layers.

Specified in specs/modules.md (MODULES-6, MODULES-8).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.blocks import lmm, mac, mag, mal, mix, segments
from atlas_ref.layers import norm
from atlas_ref.models import language_model
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.graphs.layers import (
    attention_graph,
    feed_forward_graph,
    linear,
    norm_module,
)
from atlas_ref.oracle.modules.graphs.memories import memory_graph
from atlas_ref.oracle.modules.habits.feed_forwards import Loss, Mix
from atlas_ref.oracle.modules.habits.projections import Gate
from atlas_ref.oracle.modules.habits.wires import Sum
from atlas_ref.oracle.modules.recipe import Recipe
from tape import ops

#: What a recording of one layer or block is called.
ALONE = "layer"


def graph_of(recipe: Recipe, config: Any, params: Any) -> Graph:
    """The graph of a recipe, with parameters of one dtype (MODULES-4)."""
    graph = Graph(recipe.calls, detached=recipe.detached)
    if recipe.kind == "language_model":
        _model(graph, config, params)
        return graph
    x = graph.free("x", f"B T D={recipe.settings.dim}")
    if recipe.kind == "block":
        _block(graph, ALONE, x, config, params)
    elif recipe.kind == "memory":
        memory_graph(graph, ALONE, x, config, params)
    elif recipe.kind == "attention":
        attention_graph(graph, ALONE, x, config, params)
    else:
        feed_forward_graph(graph, ALONE, x, config, params)
    return graph


def _sum(*terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _block(graph: Graph, name: str, source: str, config: Any, params: Any) -> str:
    """A block of any kind (BLOCKS-3 to BLOCKS-7)."""
    builders: dict[Any, Any] = {
        mag.Config: _mag,
        mal.Config: _mal,
        lmm.Config: _lmm,
        mac.Config: _mac,
    }
    axes = f"B T D={config.d_model}"
    with graph.module(name):
        x = graph.wire("x", source, axes)
        terms = builders[type(config)](graph, name, x, config, params)
        return graph.wire("y", terms, axes, _sum, way="out", work=Sum())


def _mag(graph: Graph, name: str, x: str, config: Any, params: Any) -> tuple[str, ...]:
    a = attention_graph(graph, f"{name}.attention", x, config.attention, params.attention)
    terms: tuple[str, ...] = (x, a)
    if config.memory is not None:
        m = memory_graph(graph, f"{name}.memory", x, config.memory, params.memory)
        terms = (x, _mix(graph, name, x, a, m, config.mix, params.mix))
    return _feed_forward(graph, f"{name}.ff", terms, config.feed_forward, params.feed_forward)


def _feed_forward(
    graph: Graph, name: str, terms: tuple[str, ...], config: Any, params: Any
) -> tuple[str, ...]:
    """Terms of the residual stream after a feed-forward: its input and its result."""
    if config is None:
        return terms
    return feed_forward_graph(graph, name, terms, config, params, _sum)


def _mix(graph: Graph, name: str, x: str, a: str, m: str, config: Any, params: Any) -> str:
    """The mix of attention and memory (BLOCKS-3): its gate where it has one, and the mix."""
    axes, gate = f"B T D={config.d_model}", []
    if config.has_gate:
        with graph.module(f"{name}.gate"):
            tokens = graph.wire("x", x, axes)

            def open_gate(x: Any) -> Any:
                n = norm.normed(config.gate_norm, params.norm, x)
                return ops.sigmoid(graph.product(n, params.W) + params.b)

            plain = config.gate_norm.kind == "none"
            work = Gate(lambda x: graph.product(x, params.W) + params.b, ops.sigmoid, params.b)
            gate = [graph.output("y", tokens, axes, open_gate, "", work if plain else None)]
    with graph.module(f"{name}.mix"):
        sources = [graph.wire("a", a, axes), graph.wire("m", m, axes)]
        sources += [graph.wire("g", each, axes) for each in gate]

        def blend(a: Any, m: Any, g: Any = None) -> Any:
            if g is None:
                return mix.mixed(config, params, a, a, m)
            return a + g * m if config.kind == "sum" else g * a + (1.0 - g) * m

        return graph.output("y", sources, axes, blend, "", Mix(bool(gate)))


def _mal(graph: Graph, name: str, x: str, config: Any, params: Any) -> tuple[str, ...]:
    terms: tuple[str, ...] = (x,)
    if config.memory is not None:
        terms = (x, memory_graph(graph, f"{name}.memory", x, config.memory, params.memory))
    terms = _feed_forward(graph, f"{name}.ff_pre", terms, config.ff_pre, params.ff_pre)
    with graph.module(f"{name}.stream"):  # the residual stream before attention
        stream = graph.wire("x", terms, f"B T D={config.d_model}", _sum, work=Sum())
    a = attention_graph(graph, f"{name}.attention", stream, config.attention, params.attention)
    return _feed_forward(graph, f"{name}.ff_post", (stream, a), config.ff_post, params.ff_post)


def _lmm(graph: Graph, name: str, x: str, config: Any, params: Any) -> tuple[str, ...]:
    terms: tuple[str, ...] = (x,)
    if config.memory is not None:
        terms = (x, memory_graph(graph, f"{name}.memory", x, config.memory, params.memory))
    return _feed_forward(graph, f"{name}.ff", terms, config.feed_forward, params.feed_forward)


def _mac(graph: Graph, name: str, x: str, config: Any, params: Any) -> tuple[str, ...]:
    D = config.d_model
    if config.context == "segments":
        with graph.module(f"{name}.segments"):
            tokens = graph.wire("x", x, f"B T D={D}")

            def run(x: Any) -> Any:
                return _segments(graph, config, params, x)

            terms: tuple[str, ...] = (graph.output("y", tokens, f"B T D={D}", run, ""),)
        return _feed_forward(graph, f"{name}.ff", terms, config.feed_forward, params.feed_forward)
    keeps = ()
    if config.state == "committed":
        keeps = tuple(
            sum(graph.calls[: i + 1]) % config.segment == 0 for i in range(len(graph.calls))
        )
    m = memory_graph(graph, f"{name}.memory", x, config.memory, params.memory, keeps)

    def means(m: Any) -> Any:
        spans = graph.spans(m.shape[1])
        return ops.stack([ops.mean(m[:, first:last], axis=1) for first, last in spans], axis=1)

    with graph.module(f"{name}.mem_pool_norm"):
        mean = graph.wire("x", m, f"B C D={D}", means)
        pooled = graph.output(
            "y",
            mean,
            f"B C D={D}",
            lambda x: norm.normed(config.pool_norm, params.pool_norm, x),
            "",
        )
    with graph.module(f"{name}.to_mem_tokens"):
        row = graph.wire("x", pooled, f"B C D={D}")
        row = graph.output("y", row, f"B C D={D}", lambda x: graph.product(x, params.W_pool), "")
    a = attention_graph(
        graph, f"{name}.attention", x, config.attention, params.attention, (row, config.longterm)
    )
    return _feed_forward(graph, f"{name}.ff", (x, a), config.feed_forward, params.feed_forward)


def _segments(graph: Graph, config: Any, params: Any, x: Any) -> Any:
    state, results = mac.start(config, x.shape[0], dtype=x.dtype), []
    for first, last in graph.spans(x.shape[1]):
        state, y = segments.run_segments(config, params, state, x[:, first:last], None)
        state = graph.hand_over(state)
        results.append(y)
    return ops.concatenate(results, axis=1)


# -- model -----------------------------------------------------------------------------------------


def _model(graph: Graph, config: language_model.Config, params: Any) -> None:
    """A language model from ids to its loss (MODULES-8)."""
    D, V = config.d_model, config.vocabulary
    with graph.module("embed"):
        ids = graph.free("ids", "B T")
        x = graph.output("y", ids, f"B T D={D}", lambda ids: params.embedding[ids], "")
    x = norm_module(graph, "embed_norm", x, config.embed_norm, params.embed_norm)
    for i, (block, own) in enumerate(zip(config.blocks, params.blocks, strict=True)):
        x = _block(graph, f"layers.{i}", x, block, own)
    x = norm_module(graph, "norm", x, config.norm, params.norm)
    head = params.embedding if config.tied else params.head
    logits = linear(graph, "to_logits", x, head, axes=f"B T V={V}")
    with graph.module("loss"):
        rows = graph.wire("logits", logits, f"B T V={V}")
        all_ids = graph.free("ids", "B N", ids, lambda ids: ids)
        targets = graph.free("targets", "B T", all_ids, lambda ids: ids[:, 1:])
        graph.output("y", (rows, targets), "", _loss, "", Loss())


def _loss(logits: Any, targets: Any) -> Any:
    """Mean cross-entropy of the targets, which may be one fewer than the rows (MODEL-5).

    Raises:
        ValueError: no target at all.
    """
    if targets.shape[1] == 0:
        raise ValueError("targets: a single token has no next one, so there is no loss")
    return language_model.cross_entropy(logits[:, : targets.shape[1]], targets)
