"""The NeuralMemory of titans-pytorch as a layer of cases, with its state after every call.

Specified in specs/layer_cases.md (LAYER-18).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from atlas_ref.layers import neural_memory
from atlas_ref.models import MODULES
from atlas_ref.models.public import titans_pytorch
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.subjects.layer_modules import Call, Entry, idle
from atlas_ref.types import Array
from tape import ops, plain


def _tensors(settings: Any) -> dict[str, Tensor]:
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
        state, y, written = _call(call, state, x)
        results[f"out/{prefix}y"] = y
        own = titans_pytorch.state_of(call.settings, call.config, call.params, state, written)
        results |= {f"out/{prefix}{name}": each for name, each in own.items()}
    return results


def _call(
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


def _void(settings: Any, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Arguments that change nothing beside others."""
    reasons = {
        "expansion_factor": "one matrix has no hidden entries" if settings.depth == 1 else "",
        "momentum_order": "" if settings.momentum else "there is no momentum",
    }
    return idle(settings, reasons)


def _numbers(settings: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of a tensor of every memory of a call, and of the hidden entries of its tokens."""
    calls = [inputs[f"in/{prefix}x"] for prefix in titans_pytorch.prefixes(settings)]
    B, T = calls[0].shape[0], max(x.shape[1] for x in calls)
    d, hidden = settings.inner, settings.hidden if settings.depth > 1 else settings.inner
    writes = T // settings.chunk_size + 1
    largest = max(writes * d * hidden, writes * hidden * hidden if settings.depth > 2 else 0)
    return int(B * settings.heads * max(largest, T * max(d, hidden), settings.orders * d * hidden))


#: Name in the header -> module.
PARTS: dict[str, Entry] = {
    "titans_neural_memory": Entry(
        MODULES["titans_neural_memory"],
        _tensors,
        _neural_memory,
        {
            "out/y": "NEURAL-2",
            "out/seq_index": "NEURAL-8",
            "out/last_momentum": "NEURAL-6",
            "out/last_update": "NEURAL-6",
            "out/weights": "NEURAL-6",
            "out/updates": "NEURAL-6",
            "grad": "LAYER-8",
        },
        result=lambda settings: f"out/{next(iter(titans_pytorch.prefixes(settings)))}y",
        void=_void,
        numbers=_numbers,
    ),
}
