"""Blocks and models of Atlas-MAG as layers of cases, with their memories after every call.

Specified in specs/layer_cases.md (LAYER-21, LAYER-22).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.blocks import mag
from atlas_ref.layers import attention, shared_memory
from atlas_ref.models import MODULES, language_model
from atlas_ref.models.atlas_mag import configs, learning
from atlas_ref.models.atlas_mag.arguments import Block
from atlas_ref.models.atlas_mag.learning import Pairs
from atlas_ref.models.atlas_mag.modules import buffers, buffers_of_model
from atlas_ref.models.public.names import under
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.subjects.layers import GRADIENTS, Call, Entry, idle, sequence
from atlas_ref.oracle.subjects.layers.mag_modules import unit
from atlas_ref.types import Array
from tape import ops, plain

Results = dict[str, Array]


def _of_table(table: Any) -> dict[str, Tensor]:
    return {name: Tensor(each.axes) for name, each in table.items()}


# -- a block ---------------------------------------------------------------------------------------


def _block_tensors(settings: Any) -> dict[str, Tensor]:
    own = EVERY if settings is None else settings
    return sequence("B T dim")(settings) | _of_table(buffers(own, "in/buffer/"))


def _block(call: Call) -> Results:
    """The block, what lies between, and its memory after the call (LAYER-21)."""
    s, config, params, x = call.settings, call.config, call.params, call.inputs["in/x"]
    start = _start(s, config, call.inputs, "in/buffer/memory.", x)
    state, y = mag.apply(config, params, start, x)
    own, results = config.attention, {"out/y": y}
    if s.disable_memory:
        _, qkv = attention.projected(own, params.attention, x)
        reads, _ = attention.attended(own, params.attention, start.attention, qkv, None)
        return results | {"out/attn_projected": attention.merged(own, params.attention, reads)}
    _, a, m = mag.branches(config, params, start, x)
    tokens, u = _tokens_of(config, params, start, x)
    B, T = x.shape[:2]
    q = ops.swapaxes(ops.reshape(tokens["q"], (B, T, own.heads, own.d_head)), 1, 2)
    gates = ops.expand_dims(u, -1)
    results |= {"out/attn_projected": a, "out/gamma": gates, "out/q_projected": q, "out/mem_out": m}
    if s.learns:
        loss, _ = _learn(config.memory, params.memory, start.memory, tokens, u)
        after: Any = state.memory
        results |= {"out/omega_loss": loss, **_memory_of(after, "out/state/", "memory.")}
    return results


def _tokens_of(
    config: mag.Config, params: mag.Params, state: mag.State, x: Array
) -> tuple[Mapping[str, Array], Array]:
    """What the memory of a block takes of its tokens, and their gates."""
    n, qkv = attention.projected(config.attention, params.attention, x)
    shared = mag.shared_of(config, state.attention, n, qkv, None)
    memory: tuple[Any, Any, Any] = (config.memory, params.memory, state.memory)
    u = shared_memory.gate_of(memory[1], n)
    return shared_memory.projected(*memory, shared, u, None)[1], u


def _start(s: Any, config: mag.Config, inputs: Any, place: str, like: Array) -> mag.State:
    """The state of a block with the momenta of a case."""
    initial = None
    if not s.disable_memory:
        initial = {"momentum": configs.momenta(s, inputs, place)}
    return mag.start(config, like.shape[0], dtype=plain(like).dtype, initial=initial)


def _learn(
    config: shared_memory.Config, params: Any, state: Any, tokens: Mapping[str, Array], u: Array
) -> tuple[Array, Array]:
    """The loss of a call's write, at the weights before it, and its step size."""
    rule, before = config.level.config, state.levels.states[0]
    own = before.weights or params.phi
    weights = {
        name: ops.reshape(own[name], (1, *shape)) for name, shape in rule.fast_shapes.items()
    }
    pairs = Pairs(tokens["k"], tokens["v"], u)
    loss = learning.loss(rule, {name: each[0] for name, each in weights.items()}, pairs)
    done = learning.step(rule, weights, {}, pairs, config.rates)
    return loss, done.step_size[0]


def _memory_of(state: shared_memory.State, start: str, prefix: str) -> Results:
    """Tensors and momenta of a memory by the names of the code."""
    tensors, momenta = configs.of_state(state)
    named = {f"{start}param/{prefix}{name}": each for name, each in tensors.items()}
    return named | {f"{start}buffer/{prefix}{name}": each for name, each in momenta.items()}


# -- a model ---------------------------------------------------------------------------------------


def _model_tensors(settings: Any) -> dict[str, Tensor]:
    if settings is None:
        ids = Tensor("B T", low=0, whole=True)
        table = under(buffers(EVERY, ""), "in/buffer/blocks.N.")
        return {"in/ids": ids, "in/callN/ids": ids, **_of_table(table)}
    ids = Tensor("B T", low=0, high=settings.vocab_size - 1, whole=True)
    calls = {
        f"in/{prefix}ids": ids if not prefix else ids._replace(axes=f"B T{i}")
        for i, prefix in enumerate(settings.prefixes)
    }
    return calls | _of_table(buffers_of_model(settings))


def _model(call: Call) -> Results:
    """Logits and loss of each call, and every memory after it (LAYER-22)."""
    s, config, params = call.settings, call.config, call.params
    ids = [call.inputs[f"in/{prefix}ids"] for prefix in s.prefixes]
    blocks = [
        _start(s, block, call.inputs, f"in/buffer/blocks.{i}.memory.", _like(params, ids[0]))
        for i, block in enumerate(config.blocks)
    ]
    state = language_model.State(blocks=tuple(blocks))
    results: Results = {}
    for prefix, own in zip(s.prefixes, ids, strict=True):
        place, read = f"out/{prefix}", own[:, :-1]
        if s.learns:
            results |= _learned_of(call, state, read, place)
        state, logits = language_model.apply(config, params, state, read)
        loss = language_model.cross_entropy(logits, own[:, 1:])
        results |= {f"{place}logits": logits, f"{place}loss": loss}
        if s.learns:
            for i, block in enumerate(state.blocks):
                results |= _memory_of(block.memory, f"{place}state/", f"blocks.{i}.memory.")
    return results


def _like(params: language_model.Params, ids: Any) -> Array:
    """Numbers of the model's precision for each row of ids."""
    return ops.zeros_like(params.embedding, shape=(ids.shape[0],))


def _learned_of(call: Call, state: language_model.State, ids: Any, place: str) -> Results:
    """Loss of learning, and step size where it adapts, of every block in a call."""
    results: Results = {}
    x = language_model.embedded(call.config, call.params, ids)
    for i, (config, params, before) in enumerate(
        zip(call.config.blocks, call.params.blocks, state.blocks, strict=True)
    ):
        fresh = mag.start(config, x.shape[0], dtype=plain(x).dtype)
        # a call is a document, which has the memory alone
        tokens, u = _tokens_of(config, params, fresh, x)
        loss, step = _learn(config.memory, params.memory, before.memory, tokens, u)
        results[f"{place}omega_loss/{i}"] = loss
        if call.settings.ttl_adaptive_eta:
            results[f"{place}effective_eta/{i}"] = step
        _, x = mag.apply(config, params, before, x)
    return results


def _fits(settings: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse a projection that is not onto a multiple of the unit matrix (LAYER-21)."""
    for name, each in inputs.items():
        if name.endswith("qk_memory.m_persistent"):
            unit(name, np.asarray(each, np.float64))


def _rows(settings: Any, sizes: Mapping[str, Any]) -> None:
    """Refuse ids of which none is predicted."""
    for axis, (size, by) in sizes.items():
        if axis.startswith("T") and by.endswith("ids") and size < 2:
            raise ValueError(
                f"{by}: {size} tokens, at least 2 are needed, of which one is predicted"
            )


# -- what is said of them --------------------------------------------------------------------------


def _numbers(settings: Any, inputs: Mapping[str, Any]) -> int:
    """Scores of all pairs of tokens, features of all tokens, logits."""
    own = [x for name, x in inputs.items() if name.endswith(("ids", "in/x"))]
    B, T = own[0].shape[0], max(x.shape[1] for x in own)
    width = max(settings.n_heads * T, settings.features, settings.vocab_size, settings.dim)
    return int(max(B * T * width, settings.dim * settings.dim))


def _void(settings: Any, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Arguments that a buffer holds, or that nothing reads."""
    own = ("ttl_", "poly_", "omega_", "memory_m") if settings.disable_memory else ()
    names = [name for name in type(settings).model_fields if name.startswith(own)]
    held = dict.fromkeys(("persistent_factor", "persistent_size"), HELD)
    return idle(settings, dict.fromkeys(names, "memories are disabled") | held)


HELD = "buffers of the projection hold it"

#: Settings that turn on every tensor, for tables of names.
EVERY = Block(dim=2, n_heads=1, poly_rank=1, memory_mlp="geglu")

LEARNED = {
    "out/omega_loss": "LAYER-20",
    "out/effective_eta": "DEEP-10",
    "out/state/param": "DEEP-13",
    "out/state/buffer": "DEEP-11",
}

#: Name in the header -> module.
PARTS: dict[str, Entry] = {
    "atlas_mag_block": Entry(
        MODULES["atlas_mag_block"],
        _block_tensors,
        _block,
        {
            "out/y": "MAG-2",
            "out/attn_projected": "ATTENTION-1",
            "out/gamma": "GATES-14",
            "out/q_projected": "QK-1",
            "out/mem_out": "MAG-3",
            **LEARNED,
            **GRADIENTS,
        },
        fits=_fits,
        void=_void,
        numbers=_numbers,
    ),
    "atlas_mag_model": Entry(
        MODULES["atlas_mag_model"],
        _model_tensors,
        _model,
        {"out/logits": "MODEL-1", "out/loss": "MODEL-5", **LEARNED, **GRADIENTS},
        result=lambda settings: f"out/{settings.prefixes[-1]}logits",
        loss=lambda settings: f"out/{settings.prefixes[-1]}loss",
        check=_rows,
        fits=_fits,
        void=_void,
        numbers=_numbers,
    ),
}
