"""AdamW on one buffer: all parameters end to end, block by block near the processor.

Plain twin: optim/adamw.py, of which every number here has the same bits. Target: the optimiser's
share of a training step of many small tensors. Specified in specs/optim.md (OPTIM-24, OPTIM-25).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from atlas_ref import backend
from atlas_ref.backend.scratch import scratch
from atlas_ref.optim import adamw, tensors
from atlas_ref.optim.tensors import Moment, Tensors, settled
from atlas_ref.types import Array

BLOCK = 2**15  # numbers of one array that are computed at once: five such arrays fit a cache


class Config(adamw.Config):
    """Settings (OPTIM-24, OPTIM-25): those of AdamW, with its decay on the parameters.

    Attributes:
        in_place: whether the new parameters and state are written into the arrays of the old ones,
            which must not be used any more.
    """

    kind: Literal["adamw_flat"] = "adamw_flat"  # type: ignore[assignment]
    in_place: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.decoupled:
            raise ValueError("decoupled: the flat form has the decay on the parameters alone")
        if not self.eps:
            raise ValueError("eps: the flat form needs one above 0")
        return self


class State(tensors.State):
    """The moments as views of one buffer each, as any state has them (OPTIM-24).

    Attributes:
        buffers: p, m and v, each (n,); p holds the parameters of the last update.
        views: of p, by the names of the parameters.
    """

    buffers: dict[str, Any]
    views: dict[str, Any]


def init(config: Config, params: Any) -> State:
    """The state before the first update: both moments 0 (OPTIM-24).

    Raises:
        ValueError: names the parameter that cannot be optimised; parameters of two dtypes.
    """
    return packed(adamw.init(config, params), tensors.named(params, "params").tensors)


def packed(state: tensors.State, params: Mapping[str, Array]) -> State:
    """A state of AdamW on one buffer, with a copy of the parameters (OPTIM-24).

    Raises:
        ValueError: parameters of two dtypes, or a state of others.
    """
    first = next(iter(params), "")
    for name, p in params.items():
        if p.dtype != params[first].dtype:
            raise ValueError(
                f"params.{name}: {p.dtype}, but {first} is {params[first].dtype}; one buffer has "
                "one dtype"
            )
    held = [tensors.held_by(state, name, p, ("m", "v")) for name, p in params.items()]
    parts = {"p": list(params.values()), **{s: [each[s] for each in held] for s in ("m", "v")}}
    buffers = {key: _end_to_end(arrays) for key, arrays in parts.items()}
    return _viewed(state.count, buffers, params)


def update(
    config: Config, state: tensors.State, params: Any, grads: Any, step: int
) -> tuple[Any, State]:
    """One outer step of AdamW, with the same bits as `adamw.update` (OPTIM-24, OPTIM-25).

    Args:
        state: of this module or of `adamw`.
        params, grads: nests of arrays of one structure. Parameters that are those of the state, as
            the last update returned them, are not copied.
        step: number of the outer step, from 0.

    Returns:
        (params, state) after it; parameters are views of one buffer.

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    tensors.check_step(step)
    own, given = tensors.named(params, "params"), tensors.named(grads, "grads").tensors
    tensors.check_gradients(own.tensors, given)
    if not isinstance(state, State) or not _is_packed(state, own.tensors):
        state = packed(state, own.tensors)
    at = Moment(config.rate_at(step), state.count + 1)
    old = state.buffers
    new = old if config.in_place else {key: np.empty_like(x) for key, x in old.items()}
    if len(given):
        _move(config, at, old, new, given)
    after = _viewed(at.number, new, own.tensors, state if config.in_place else None)
    return own.build(after.views), after


def _is_packed(state: State, params: Tensors) -> bool:
    """Whether the parameters are those that the state holds."""
    views = state.views
    return views.keys() == params.keys() and all(views[name] is p for name, p in params.items())


def _end_to_end(arrays: list[Array]) -> Array:
    if not arrays:
        return np.zeros(0)
    return np.concatenate([x.reshape(-1) for x in arrays])


def _viewed(
    count: int, buffers: dict[str, Array], params: Mapping[str, Array], before: State | None = None
) -> State:
    """The state of these buffers; the views of the state before, where it has the same buffers."""
    if before is not None:
        return before.replaced(count=count)
    ends = list(itertools.accumulate((p.size for p in params.values()), initial=0))
    views: dict[str, Tensors] = {}
    for key, x in buffers.items():
        views[key] = {
            name: settled(x[a:b].reshape(p.shape))
            for (name, p), (a, b) in zip(params.items(), itertools.pairwise(ends), strict=True)
        }
    slots = {key: views[key] for key in ("m", "v")}
    return State.trusted(count=count, slots=slots, buffers=buffers, views=views["p"])


def _move(config: Config, at: Moment, old: Tensors, new: Tensors, grads: Tensors) -> None:
    """AdamW of all blocks, from the old buffers into the new ones, which may be the same."""
    p = old["p"]
    with scratch.frame():
        g = scratch.empty(p.shape, p)
        end = 0
        for x in grads.values():
            g[end : end + x.size] = x.reshape(-1)
            end += x.size
        block = min(p.size, BLOCK) if backend.on_host(p) else p.size
        a, b = scratch.empty((block,), p), scratch.empty((block,), p)
        for part in _parts(p.size, block):
            size = part.stop - part.start
            here = {key: x[part] for key, x in old.items()}
            there = {key: x[part] for key, x in new.items()}
            _move_block(config, at, here, there, g[part], (a[:size], b[:size]))


def _parts(size: int, block: int) -> Iterator[slice]:
    for start in range(0, size, max(1, block)):
        yield slice(start, min(start + block, size))


def _move_block(
    config: Config, at: Moment, old: Tensors, new: Tensors, g: Array, room: tuple[Array, Array]
) -> None:
    """The steps of `adamw` in their order, in place."""
    first, second = adamw.corrections(config, at.number)
    a, b = room
    np.multiply(old["m"], config.b1, out=new["m"])
    np.multiply(g, 1.0 - config.b1, out=a)
    new["m"] += a
    np.multiply(g, g, out=a)
    a *= 1.0 - config.b2
    np.multiply(old["v"], config.b2, out=new["v"])
    new["v"] += a
    np.divide(new["v"], second, out=a)
    np.sqrt(a, out=a)
    a += config.eps
    np.divide(new["m"], first, out=b)
    b /= a
    b *= at.rate
    if config.decay:
        np.multiply(old["p"], 1.0 - at.rate * config.decay, out=new["p"])
        new["p"] -= b
    else:
        np.subtract(old["p"], b, out=new["p"])
