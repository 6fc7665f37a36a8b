"""Parts of layers as layers of cases: norms, feed-forward, attention, gates, a neural memory.

Specified in specs/layer_cases.md; the NeuralMemory of titans-pytorch, with its state after every
call, in LAYER-18.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from atlas_ref.layers import attention, log_gate, neural_memory, rotary
from atlas_ref.models import MODULES, atlas_rnn
from atlas_ref.models.public import titans_pytorch
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.subjects.layers import (
    GRADIENTS,
    Call,
    Entry,
    States,
    check_calls,
    idle,
    in_calls,
    of_state,
    sequence,
)
from atlas_ref.types import Array
from tape import ops, plain

# -- attention -------------------------------------------------------------------------------------


def _attention(call: Call) -> dict[str, Array]:
    """The code's own reading, its cache, and the causal reading of the same tokens (LAYER-6)."""
    results = in_calls(call)
    assert call.entry.states is not None
    if not of_state(call.entry.states, call.inputs):
        config, x = atlas_rnn.causal(call.config), call.inputs["in/x"]
        state = attention.start(config, x.shape[0], dtype=x.dtype)
        _, results["out/y_prefix"] = attention.apply(config, call.params, state, x)
    return results


def _cache(config: attention.Config, tensors: Mapping[str, Array]) -> attention.State:
    return attention.State.trusted(
        keys=tensors["k"],
        values=tensors["v"],
        rotary=rotary.State(),
        begun=False,
        prefix_keys=None,
        prefix_values=None,
    )


def _log_gates(call: Call) -> dict[str, Array]:
    """Log gates of every token, head and channel (LAYER-23)."""
    _, gates = log_gate.apply(call.config, call.params, log_gate.State(), call.inputs["in/x"])
    return {"out/y": gates}


def _fits(settings: atlas_rnn.SlidingWindowAttention, sizes: Mapping[str, Any]) -> None:
    """Refuse more cached rows than a window keeps, and calls that do not fit."""
    check_calls(settings, sizes)
    size, by = sizes.get("rows", (0, ""))
    if size > settings.window_size:
        raise ValueError(f"{by}: {size} rows, at most window_size = {settings.window_size} fit")


def _scores(settings: atlas_rnn.SlidingWindowAttention, inputs: Mapping[str, Any]) -> int:
    """Scores of all pairs of tokens, of all heads."""
    B, T, _ = inputs["in/x"].shape
    rows = inputs["in/cache/k"].shape[-2] if "in/cache/k" in inputs else 0
    return int(B * settings.heads * T * (settings.num_persist_mem_tokens + rows + T))


CACHE = States(
    prefix="cache",
    tensors=lambda settings: {
        name: Tensor("B heads rows dim_head", "no token before the first") for name in ("k", "v")
    },
    start=_cache,
    finish=lambda config, state: {"k": state.keys, "v": state.values},
)


# -- the neural memory of titans-pytorch ------------------------------------------------------------


def _memory_tensors(settings: Any) -> dict[str, Tensor]:
    """Tokens and cotangents, of several calls by their numbers; of no settings of any call."""
    rows: dict[str, Tensor] = {}
    prefixes = titans_pytorch.prefixes(settings) if settings else {"": None, "callN/": None}
    for prefix, count in prefixes.items():
        tokens = Tensor(f"B {'T' if count is None else count} dim")
        rows |= {f"in/{prefix}x": tokens, f"in/{prefix}y_bar": tokens._replace(need="no gradients")}
    return rows


def _neural_memory(call: Call) -> dict[str, Array]:
    """Results of each call, and the state after it by the names of the code (LAYER-18)."""
    prefixes = titans_pytorch.prefixes(call.settings)
    first = call.inputs[f"in/{next(iter(prefixes))}x"]
    state = neural_memory.start(call.config, first.shape[0], dtype=plain(first).dtype)
    results: dict[str, Array] = {}
    for prefix in prefixes:
        x = call.inputs[f"in/{prefix}x"]
        state, y, written = _call_memory(call, state, x)
        results[f"out/{prefix}y"] = y
        own = titans_pytorch.state_of(call.settings, call.config, call.params, state, written)
        results |= {f"out/{prefix}{name}": each for name, each in own.items()}
    return results


def _call_memory(
    call: Call, state: neural_memory.State, x: Array
) -> tuple[neural_memory.State, Array, list[dict[str, Array]]]:
    """One call, cut where chunks end: the state, y, and the weights of each write.

    The first weights are those before the call; where it writes nothing, those of the reference.
    """
    config, B, T = call.config, x.shape[0], x.shape[1]
    C, at = config.rule.chunk, state.memory.position
    memories = [titans_pytorch.last_weights(config, call.params, state, B)]
    reads = []
    for start, stop in itertools.pairwise([0, *range(C - at % C, T, C), T]):
        state, y = neural_memory.apply(config, call.params, state, x[:, start:stop])
        reads.append(y)
        if (at + stop) % C == 0:
            memories.append(titans_pytorch.last_weights(config, call.params, state, B))
    if len(memories) == 1:
        memories = [titans_pytorch.reference(config, call.params, state, B)]
    return state, reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=1), memories


def _void_of_memory(settings: Any, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Arguments that change nothing beside others."""
    reasons = {
        "expansion_factor": "one matrix has no hidden entries" if settings.depth == 1 else "",
        "momentum_order": "" if settings.momentum else "there is no momentum",
    }
    return idle(settings, reasons)


def _numbers_of_memory(settings: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of a tensor of every memory of a call, and of the hidden entries of its tokens."""
    calls = [inputs[f"in/{prefix}x"] for prefix in titans_pytorch.prefixes(settings)]
    B, T = calls[0].shape[0], max(x.shape[1] for x in calls)
    d, hidden = settings.inner, settings.hidden if settings.depth > 1 else settings.inner
    writes = T // settings.chunk_size + 1
    largest = max(writes * d * hidden, writes * hidden * hidden if settings.depth > 2 else 0)
    return int(B * settings.heads * max(largest, T * max(d, hidden), settings.orders * d * hidden))


#: Name in the header -> layer that is a part of others.
PARTS: dict[str, Entry] = {
    "rms_norm": Entry(
        MODULES["rms_norm"],
        sequence("... T dim"),
        in_calls,
        {"out/y": "NORM-4", **GRADIENTS},
    ),
    "multihead_rms_norm": Entry(
        MODULES["multihead_rms_norm"],
        sequence("... heads T dim"),
        in_calls,
        {"out/y": "NORM-6", **GRADIENTS},
    ),
    "feed_forward": Entry(
        MODULES["feed_forward"],
        sequence("B T dim"),
        in_calls,
        {"out/y": "FEED-1", **GRADIENTS},
    ),
    "sliding_window_attention": Entry(
        MODULES["sliding_window_attention"],
        sequence("B T dim"),
        _attention,
        {
            "out/y": "ATTENTION-4",
            "out/y_prefix": "ATTENTION-3",
            "out/cache": "ATTENTION-8",
            "grad": "ATTENTION-12",
        },
        states=CACHE,
        check=_fits,
        void=lambda settings, inputs: idle(
            settings, {"rotary_base": "in/param/rotary_emb.freqs holds the frequencies"}
        ),
        numbers=_scores,
    ),
    "kda_gate": Entry(
        MODULES["kda_gate"],
        sequence("B T heads head_dim"),
        _log_gates,
        {"out/y": "GATES-22", **GRADIENTS},
    ),
}

#: Name in the header -> memory layer of titans-pytorch.
MEMORIES: dict[str, Entry] = {
    "titans_neural_memory": Entry(
        MODULES["titans_neural_memory"],
        _memory_tensors,
        _neural_memory,
        {
            "out/y": "NEURAL-2",
            "out/seq_index": "NEURAL-8",
            "out/last_momentum": "NEURAL-6",
            "out/last_update": "NEURAL-6",
            "out/weights": "NEURAL-6",
            "out/updates": "NEURAL-6",
            **GRADIENTS,
        },
        result=lambda settings: f"out/{next(iter(titans_pytorch.prefixes(settings)))}y",
        void=_void_of_memory,
        numbers=_numbers_of_memory,
    ),
}
