"""Memory layers, blocks, language models and sampling as layers of cases.

Specified in specs/layer_cases.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.layers import memory
from atlas_ref.models import MODULES, generation, import_atlas_rnn, language_model, sampling
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.subjects.layers import (
    GRADIENTS,
    Call,
    Entry,
    States,
    check_calls,
    in_calls,
    sequence,
)
from atlas_ref.types import Array
from tape import plain
from tape.nested import flatten

# -- memory layers and blocks ----------------------------------------------------------------------


def _state_tensors(settings: Any) -> dict[str, Tensor]:
    """Tensors of a memory's state; of no settings all that there can be (LAYER-13)."""
    matrix = "B*heads dim_head dim_head"
    tensors = {"S": Tensor(matrix, "0")}
    if settings is None or settings.use_momentum:
        tensors["Z"] = Tensor(matrix, "0")
    if settings is None or settings.omega_window > 1:
        axes = "B*heads omega_window-1 dim_head dim_head"
        tensors["omega_buffer"] = Tensor(axes, "0")
    return tensors


def _start(config: memory.Config, tensors: Mapping[str, Array]) -> memory.State:
    S = tensors["S"]
    state = memory.start(config, S.shape[0] // config.heads, dtype=S.dtype)
    own: memory.State = import_atlas_rnn.to_state(config, state, tensors)
    return own


def _batch_of_states(settings: Any, sizes: Mapping[str, Any]) -> None:
    """Refuse a state of another batch than the tokens (LAYER-13)."""
    _even(settings, sizes)
    size, by = sizes.get("B*heads", (None, ""))
    if size is not None and size != sizes["B"][0] * settings.heads:
        raise ValueError(
            f"{by}: {size} memories, expected batch {sizes['B'][0]} times heads {settings.heads}"
        )


def _even(settings: Any, sizes: Mapping[str, Any]) -> None:
    """Refuse calls that do not fit, and heads of an odd length where there is attention (LAYER-2)."""
    check_calls(settings, sizes)
    attends = "window_size" in type(settings).model_fields
    attends = attends and getattr(settings, "block_type", "") != "lmm"
    d_head = settings.dim if getattr(settings, "dim_head", None) is None else settings.dim_head
    if attends and d_head % 2:
        raise ValueError(f"parameters.dim_head: must be even, found {d_head}")


def _numbers(settings: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of the memory after each token, or of the scores of all pairs of tokens."""
    tokens = next(inputs[name] for name in ("in/x", "in/ids") if name in inputs)
    B, T = tokens.shape[:2]
    d = settings.dim if settings.dim_head is None else settings.dim_head
    window = settings.omega_window
    rows = getattr(settings, "num_longterm_mem_tokens", 0) if _is_mac(settings) else 0
    scores = B * settings.heads * T * max(d * d, T + rows, window * d)
    return int(max(scores, B * rows * settings.dim))


def _is_mac(settings: Any) -> bool:
    return getattr(settings, "block_type", "mac") == "mac"


# -- language models -------------------------------------------------------------------------------


def _model_tensors(settings: Any) -> dict[str, Tensor]:
    high = None if settings is None else settings.vocab - 1
    ids = Tensor("B T", low=0, high=high, whole=True)
    return {
        "in/ids": ids,
        "in/prompt": ids._replace(axes="B n", need="no generation"),
        "in/uniform": Tensor("steps B 1 vocab", "no sampling"),
    }


def _memory_model_tensors(settings: Any) -> dict[str, Tensor]:
    high = None if settings is None else settings.vocab - 1
    ids = Tensor("B T", low=0, high=high, whole=True)
    return {"in/ids": ids, "in/targets": ids}


def _fits(settings: Any, sizes: Mapping[str, Any]) -> None:
    """Refuse lengths that do not fit each other (LAYER-15)."""
    _even(settings, sizes)
    if "steps" in sizes and "n" not in sizes:
        raise ValueError("in/uniform: needs in/prompt, of whose continuation it is")
    if "n" in sizes:
        new = (settings.max_length or 0) - sizes["n"][0]
        if new < 1:
            raise ValueError(
                f"parameters.max_length: {settings.max_length}, expected more than the "
                f"{sizes['n'][0]} tokens of in/prompt"
            )
        if "steps" in sizes and sizes["steps"][0] != new:
            raise ValueError(
                f"in/uniform: {sizes['steps'][0]} steps, expected max_length - n = {new}"
            )
    calls = getattr(settings, "repeat_calls", None)
    if calls is not None and max(calls) > sizes["T"][0]:
        raise ValueError(
            f"parameters.repeat_calls: {max(calls)} tokens, in/ids has {sizes['T'][0]}"
        )


def _language_model(call: Call) -> dict[str, Array]:
    """Logits, loss, calls of a module that keeps its memory, and generation (LAYER-15)."""
    ids, own = call.inputs["in/ids"], call.settings
    start = _fresh(call, ids.shape[0])
    _, logits = language_model.apply(call.config, call.params, start, ids)
    results = {"out/logits": logits}
    if not _one_token(call.inputs):
        results["out/loss"] = language_model.loss(call.config, call.params, start, ids)[1]
    state = start
    for i, tokens in enumerate(own.repeat_calls or ()):
        state = generation.forgotten(call.config, start, state)
        state, rows = language_model.apply(call.config, call.params, state, ids[:, :tokens])
        results[f"out/logits_call{i}"] = rows
    return results | (_generate(call) if "in/prompt" in call.inputs else {})


def _one_token(inputs: Mapping[str, Any]) -> str:
    """Why ids have no loss: a single one predicts nothing (LAYER-15)."""
    if inputs["in/ids"].shape[1] > 1:
        return ""
    return "in/ids has 1 token, and without a next one there is no loss to take gradients of"


def _fresh(call: Call, batch: int) -> language_model.State:
    kind = plain(call.params.embedding).dtype
    return language_model.start(call.config, batch, dtype=kind)


def _generate(call: Call) -> dict[str, Array]:
    """Greedy continuations with and without a state, and a drawn one (LAYER-15)."""
    prompt, own = call.inputs["in/prompt"], call.settings
    results: dict[str, Array] = {}
    leaves, _, build = flatten(call.params, "params")
    params = build([plain(leaf) for leaf in leaves])  # ids have no derivative
    steps = own.max_length - prompt.shape[1]
    for name, cached in (("cached", True), ("uncached", False)):
        run = generation.generate(
            call.config, params, prompt, steps=steps, temperature=0.0, cached=cached
        )
        results |= {f"out/greedy_{name}": run.ids, f"out/greedy_{name}_logits": run.logits}
    if "in/uniform" in call.inputs:
        run = generation.generate(
            call.config,
            params,
            prompt,
            steps=steps,
            temperature=own.temperature,
            min_p=own.min_p,
            uniforms=backend.host(plain(call.inputs["in/uniform"]))[:, :, 0],
            cached=False,
        )
        results["out/sampled_uncached"] = run.ids
    return results


def _memory_model(call: Call) -> dict[str, Array]:
    """Logits, and the loss of targets that a case states (LAYER-15)."""
    ids, targets = call.inputs["in/ids"], call.inputs["in/targets"]
    start = _fresh(call, ids.shape[0])
    _, logits = language_model.apply(call.config, call.params, start, ids)
    return {"out/logits": logits, "out/loss": language_model.cross_entropy(logits, targets)}


def _model_numbers(settings: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of the logits, those of repeated calls together and of a generation without state."""
    B, T = inputs["in/ids"].shape
    tokens = B * max(T, sum(getattr(settings, "repeat_calls", None) or ()))
    if "in/prompt" in inputs:
        B, n = inputs["in/prompt"].shape
        tokens = max(tokens, B * (settings.max_length - n) * settings.max_length)
    return max(_numbers(settings, inputs), int(tokens * settings.vocab))


# -- sampling --------------------------------------------------------------------------------------


def _sample(call: Call) -> dict[str, Array]:
    """Tokens that the filter keeps, and those that are drawn, of every setting (LAYER-16)."""
    logits, uniform = (plain(call.inputs[name]) for name in ("in/logits", "in/uniform"))
    results: dict[str, Array] = {}
    for min_p in call.settings.min_p:
        kept = sampling.kept_tokens(logits, min_p=min_p)
        results[f"out/kept_min_p_{min_p}"] = kept.astype(np.uint8)
        for temperature in call.settings.temperature:
            new = sampling.next_tokens(logits, uniform, temperature=temperature, min_p=min_p)
            results[f"out/token_min_p_{min_p}_temperature_{temperature}"] = new.astype(np.int64)
    return results


MATRICES = States(
    prefix="state",
    tensors=_state_tensors,
    start=_start,
    finish=import_atlas_rnn.from_state,
    each=True,
)
#: The memory that a block leaves, where public code returns it (LAYER-14).
LEFT = States(
    prefix="state",
    finish=lambda config, state: import_atlas_rnn.from_state(config.memory, state.memory),
)


def _of_block(name: str, clause: str, states: States | None = LEFT) -> Entry:
    return Entry(
        MODULES[name],
        sequence("B T dim"),
        in_calls,
        {"out/y": clause, "out/state": "MEMORY-9", **GRADIENTS},
        states=states,
        check=_even,
        numbers=_numbers,
    )


#: Name in the header -> layer or model.
SYSTEMS: dict[str, Entry] = {
    "rnn_memory": Entry(
        MODULES["rnn_memory"],
        sequence("B T dim"),
        in_calls,
        {"out/y": "MEMORY-2", "out/state": "MEMORY-9", **GRADIENTS},
        states=MATRICES,
        check=_batch_of_states,
        numbers=_numbers,
    ),
    "mag_block": _of_block("mag_block", "BLOCKS-4"),
    "mal_block": _of_block("mal_block", "BLOCKS-5"),
    "mac_block": _of_block("mac_block", "BLOCKS-7", None),
    "lmm_block": _of_block("lmm_block", "BLOCKS-6"),
    "language_model": Entry(
        MODULES["language_model"],
        _model_tensors,
        _language_model,
        {"out/logits": "MODEL-1", "out/loss": "MODEL-5", "out": "MODEL-6", **GRADIENTS},
        result="out/logits",
        loss="out/loss",
        no_loss=_one_token,
        check=_fits,
        numbers=_model_numbers,
    ),
    "memory_language_model": Entry(
        MODULES["memory_language_model"],
        _memory_model_tensors,
        _memory_model,
        {"out/logits": "MODEL-1", "out/loss": "MODEL-5", **GRADIENTS},
        result="out/logits",
        loss="out/loss",
        no_loss=_one_token,
        check=_fits,
        numbers=_model_numbers,
    ),
    "sampling": Entry(
        MODULES["sampling"],
        lambda settings: {
            "in/logits": Tensor("rows vocab"),
            "in/uniform": Tensor("rows vocab", low=0, high=1),
        },
        _sample,
        {"out": "MODEL-8", **GRADIENTS},
        result=lambda settings: f"out/kept_min_p_{settings.min_p[0]}",
    ),
}
