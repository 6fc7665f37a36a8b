"""Neural memories for tests: drawn arguments, the same for the layer and for plain loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import neural_memory
from atlas_ref.models import atlas_rnn
from atlas_ref.models.public import titans_pytorch
from tests.truth import titans_memory_loops as loops

EPS = float(np.finfo(np.float64).eps)
Tensors = dict[str, Any]

#: Values of every argument.
AXES: dict[str, tuple[Any, ...]] = {
    "heads": (1, 2),
    "chunk_size": (1, 2, 3, 5),
    "batch_size": (None, "chunk", "twice"),
    "depth": (1, 2, 3),
    "mem_model_norm_add_residual": (True, True, False),
    "momentum": (True, True, False),
    "momentum_order": (1, 2, 3),
    "max_lr": (0.5, 0.1),
    "max_grad_norm": (None, None, 0.5),
    "spectral_norm_surprises": (False, False, True),
}


def drawn(number: int, **fixed: Any) -> titans_pytorch.NeuralMemory:
    """A value of every argument, by number."""
    rng = np.random.default_rng((5, number))
    own = {axis: values[rng.integers(len(values))] for axis, values in AXES.items()} | fixed
    chunk = own["chunk_size"]
    own["batch_size"] = {"chunk": chunk, "twice": 2 * chunk}.get(own["batch_size"])
    return titans_pytorch.NeuralMemory(
        dim=4, dim_head=4 if own["heads"] == 1 else 3, expansion_factor=1.5, **own
    )


def state_dict(settings: titans_pytorch.NeuralMemory, seed: int = 0) -> Tensors:
    """Parameters away from their start, by their public names."""
    rng, sizes = np.random.default_rng((seed, 3)), titans_pytorch.sizes(settings)
    shapes = {
        name: tuple(sizes[axis] for axis in each.axes.split())
        for name, each in titans_pytorch.names(settings).items()
        if not each.unread
    }
    return {
        name: (1.0 if "norm.weight" in name else 0.0) + 0.6 * rng.standard_normal(shape)
        for name, shape in shapes.items()
    }


class Found(NamedTuple):
    """Reads (B, T, dim), and W, the reference and S of each order (B, H, ...), matrices (in, out)."""

    y: Any
    weights: Tensors
    reference: Tensors
    momentum: list[Tensors]


def ours(settings: titans_pytorch.NeuralMemory, at: Tensors, x: Any, calls: Any) -> Found:
    """The layer, in calls of so many tokens."""
    config = titans_pytorch.config(settings, EPS, {})
    params = atlas_rnn.parameters(titans_pytorch.MODULE, settings, config, at)
    state, reads, first = neural_memory.start(config, x.shape[0]), [], 0
    for length in calls:
        state, y = neural_memory.apply(config, params, state, x[:, first : first + length])
        reads.append(y)
        first += length
    written = titans_pytorch.last_weights(config, params, state, x.shape[0])
    own = titans_pytorch.state_of(settings, config, params, state, [written])

    def kind(name: str) -> Tensors:
        return {key.removeprefix(name): a for key, a in own.items() if key.startswith(name)}

    orders = kind("last_momentum/")
    momentum = [{key: a[j] for key, a in orders.items()} for j in range(settings.orders)]
    return Found(reads, kind("last_update/"), kind("weights/"), momentum)


def of_loops(settings: titans_pytorch.NeuralMemory, at: Tensors, x: Any) -> Found:
    """The plain loops, token by token."""
    s = loops.Settings(
        names=tuple(titans_pytorch.memory_names(settings)),
        heads=settings.heads,
        chunk=settings.chunk_size,
        batch=settings.batch_size,
        max_lr=settings.max_lr,
        order=settings.orders,
        newton_schulz=settings.spectral_norm_surprises,
        clip=settings.max_grad_norm,
    )
    every = [loops.call(row, at, s, loops.start(at, s)) for row in x]
    after = [state for _, state, _ in every]

    def named(memories: list[Any]) -> Tensors:
        return {
            name: np.array([head[name] for row in memories for head in row]) for name in s.names
        }

    return Found(
        np.array([y for y, _, _ in every]),
        named([state.W for state in after]),
        named([state.ref for state in after]),
        [named([state.S[order] for state in after]) for order in range(s.order)],
    )
