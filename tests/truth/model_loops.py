"""Language models of blocks, their loss and generation, on one sequence at a time.

The same numbers as in block_loops: float64 or complex128, never a conjugate, comparisons of real
parts only, parameters by the names of public code, nothing shared with the package under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.truth import block_loops, layer_loops
from tests.truth import memory_layer_loops as layer

Array = np.ndarray
Parameters = dict[str, Array]


class Model(NamedTuple):
    """Settings of a model.

    Attributes:
        blocks: of each layer.
        memory_only: whether a layer is x + memory(x) and nothing else.
        norm: of the embedding and before the logits: layer | rms | none.
    """

    blocks: tuple[block_loops.Block, ...]
    memory_only: bool = False
    norm: str = "layer"
    norm_eps: float = 1e-5


def start(m: Model, p: Parameters) -> list[Any]:
    """States of all layers before the first token."""
    states = []
    for i, b in enumerate(m.blocks):
        own = block_loops.below(p, f"layers.{i}.")
        if m.memory_only:
            states.append(layer.start(b.memory.heads, len(own["to_q.weight"]) // b.memory.heads))
        else:
            states.append(block_loops.start(b, own))
    return states


def logits(
    ids: Sequence[int], p: Parameters, m: Model, states: list[Any], reset: Any = None
) -> tuple[Array, list[Any]]:
    """Of each token (T, vocabulary), and the states after the call."""
    x = normed([p["embed.weight"][token] for token in ids], p, m, "embed_norm")
    after = []
    for i, b in enumerate(m.blocks):
        own = block_loops.below(p, f"layers.{i}.")
        if m.memory_only:
            y, state = layer.memory(x, own, b.memory, states[i], reset)
            x = x + y
        else:
            x, state = block_loops.block(x, own, b, states[i], reset)
        after.append(state)
    return np.array([p["to_logits.weight"] @ row for row in normed(x, p, m, "norm")]), after


def normed(x: Any, p: Parameters, m: Model, name: str) -> Array:
    if m.norm == "none":
        return np.array(x)
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    return np.array([layer_loops.norm(row, m.norm, m.norm_eps, "add", weight, bias) for row in x])


def losses(logits: Array, targets: Sequence[int]) -> list[Any]:
    """The cross-entropy of each row with its target."""
    result = []
    for row, target in zip(logits, targets, strict=True):
        top = np.max(np.real(row))
        result.append(top + np.log(np.sum(np.exp(row - top))) - row[target])
    return result


def loss(ids: Array, p: Parameters, m: Model, targets: Any = None) -> Any:
    """The mean cross-entropy of ids (B, T), of each with the next one where no target is given."""
    each: list[Any] = []
    for b, row in enumerate(ids):
        read, want = (row[:-1], row[1:]) if targets is None else (row, targets[b])
        each += losses(logits(read, p, m, start(m, p))[0], want)
    return sum(each) / len(each)


def kept(z: Array, min_p: float) -> Array:
    """Whether each token has at least min_p of the probability of the likeliest."""
    p = np.exp(z - np.max(z))
    p = p / np.sum(p)
    return np.array([each >= min_p * np.max(p) for each in p])


def sampled(z: Array, u: Any, temperature: float, min_p: float) -> int:
    """The next token from a row of logits and uniform numbers, the likeliest at temperature 0."""
    if temperature <= 0:
        return int(np.argmax(z))
    noise = -np.log(np.maximum(-np.log(np.maximum(u, 1e-20)), 1e-20))
    filtered = np.where(kept(z, min_p), z, -np.inf)
    return int(np.argmax(filtered / temperature + noise))


def generated(
    prompt: Sequence[int],
    steps: int,
    p: Parameters,
    m: Model,
    choose: Callable[[Array, int], int],
    cached: bool,
) -> tuple[list[int], Array]:
    """The prompt with new tokens, and the logits that each was chosen from.

    Args:
        choose: the next token from logits and the number of the step.
        cached: whether each new token is a call of its own on the states before it; if not, each
            step runs on all tokens, and only the hidden state of a block goes from step to step.
    """
    ids, states, rows = list(prompt), start(m, p), []
    for step in range(steps):
        if cached:
            new = ids if step == 0 else ids[-1:]
            z, states = logits(new, p, m, states)
        else:
            z, after = logits(ids, p, m, states)
            states = hidden(after, start(m, p), m)
        rows.append(z[-1])
        ids.append(choose(z[-1], step))
    return ids, np.array(rows)


def hidden(after: list[Any], fresh: list[Any], m: Model) -> list[Any]:
    """Fresh states but for what blocks keep to themselves."""
    if m.memory_only:
        return fresh
    return [
        new._replace(committed=old.committed, at=old.at) if b.kind == "mac" else new
        for old, new, b in zip(after, fresh, m.blocks, strict=True)
    ]
