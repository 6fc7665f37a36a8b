"""Settings of the plain loop of a deep memory, as data (DEEP-1)."""

from __future__ import annotations

from typing import Any, NamedTuple

from atlas_ref.conventions import Convention
from atlas_ref.parts.memory_functions import MemoryFunction


class Settings(NamedTuple):
    """What a deep memory is, for a loop that knows no rule.

    Attributes:
        function: M(x; W).
        c: the convention in force.
        chunk, window, span: C, c and R; a span of 0 for none.
        bias: what a write minimises of the errors.
        retention: what a write keeps of a matrix.
        kind: of the weights of a window by lag.
        reduction, coupling, vectors, clip, clip_norm, adaptive, outer_gradient: of the clauses
            DEEP-7 to DEEP-12 and DEEP-18 to DEEP-21.
        which, names: the tensors that a write moves, in words or by name; all of the function.
        writes: whether these calls write (DEEP-17).
        flush: whether an incomplete chunk is written (DEEP-14).
        memory_reset, momentum_reset: of DEEP-16.
        deep_momentum, network: a network in the place of S, or None, and its tensors (DEEP-37).
        learns_first: whether the network maps a gradient after it learned of it, as it does.
        restarts: whether a document begins a chunk and an empty window, as it does.
    """

    function: MemoryFunction
    c: Convention
    chunk: int
    window: int
    span: int
    bias: Any
    retention: Any
    kind: Any
    reduction: str
    coupling: str
    which: Any
    names: tuple[str, ...]
    vectors: str
    clip: str
    clip_norm: float
    adaptive: bool
    outer_gradient: str
    writes: bool
    flush: bool
    memory_reset: str
    momentum_reset: str
    deep_momentum: Any = None
    network: tuple[str, ...] = ()
    learns_first: bool = True
    restarts: bool = True

    def replaced(self, **changes: Any) -> Settings:
        """Settings with other values of some fields."""
        return self._replace(**changes)

    @property
    def fast(self) -> tuple[str, ...]:
        """Tensors that a write moves, in the order of the function (DEEP-3)."""
        return fast(self.which, self.names, self.vectors)

    @property
    def by_lag(self) -> list[float]:
        """Weights of a window by lag, c of them (DEEP-7)."""
        return self.first_lags(self.window)

    def first_lags(self, count: int) -> list[float]:
        """Weights of so many lags of a window, from 0 on (DEEP-7)."""
        return [_weight(self.kind, lag, self.window) for lag in range(count)]

    @property
    def shares_memory(self) -> bool:
        """Whether rows of the first axis share a memory."""
        return self.coupling == "batch_shared"

    @property
    def uses_reference(self) -> bool:
        """Whether a write or a read looks at a reference."""
        return self.c.reference != "running" or self.c.read == "chunk_start"


def rank(name: str) -> int:
    """Axes of a tensor of a memory function (MEMFUN-2)."""
    if name.endswith("read_scale"):
        return 0
    return 1 if name.endswith(("gain", "bias")) else 2


def settings(values: Any, names: tuple[str, ...], network: tuple[str, ...] = ()) -> Settings:
    """Settings from those of a case.

    Args:
        values: with the attributes of DEEP-1 and `convention`.
        names: tensors of the memory function, in their order.
        network: those of a network in the place of the momentum.
    """
    phase, training = values.phase, values.training
    return Settings(
        function=values.memory,
        c=values.convention,
        chunk=values.chunk,
        window=values.window,
        span=values.span or 0,
        bias=values.bias,
        retention=values.retention,
        kind=values.window_weights,
        reduction=values.reduction,
        coupling=values.coupling,
        which=values.fast,
        names=names,
        vectors=values.vectors,
        clip=values.clip,
        clip_norm=values.clip_norm,
        adaptive=values.adaptive,
        outer_gradient=values.outer_gradient,
        writes=phase == "both" or (phase == "train" if training else phase == "infer"),
        flush=values.unfinished == "flush",
        memory_reset=values.memory_reset,
        momentum_reset=values.momentum_reset,
        deep_momentum=values.deep_momentum,
        network=network,
    )


def fast(which: Any, names: tuple[str, ...], vectors: str) -> tuple[str, ...]:
    """Tensors that a write moves (DEEP-3)."""
    inner = ("W", "W_in", "W_value", "W_out")
    chosen = {
        "all": names,
        "matrices": tuple(name for name in names if rank(name) == 2),
        "mlp": tuple(name for name in names if name in inner or name[2:].isdigit()),
    }.get(which, which)
    return tuple(
        name for name in names if name in chosen and (rank(name) == 2 or vectors != "frozen")
    )


def _weight(kind: Any, lag: int, window: int) -> float:
    """Weight of a lag, 1 where the tokens alone bring one (WINDOW-3 to WINDOW-6)."""
    if kind.kind == "product":
        product = 1.0
        for each in kind.of:
            product *= _weight(each, lag, window)
        return product
    return {"uniform": 1.0 / window, "decay": getattr(kind, "base", 1.0) ** lag}.get(kind.kind, 1.0)
