"""Sizes and choices of a deep memory.

Specified in specs/deep_memory.md (DEEP-1 to DEEP-4).
"""

from __future__ import annotations

import math
import warnings
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from atlas_ref.conventions import Convention, resolve
from atlas_ref.parts import memory_functions
from atlas_ref.parts.biases import Bias
from atlas_ref.parts.deep_momentum import PREFIX, DeepMomentum
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.parts.retentions import Retention
from atlas_ref.parts.window import Ones, WindowWeights
from atlas_ref.rules import sequence
from atlas_ref.types import Count, Frozen

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Reset = Literal["sequence", "batch", "never"]


class Config(Frozen):
    """Sizes and choices of a deep memory (DEEP-1).

    Attributes:
        d_in, d_out: length of keys and queries; of values and reads.
        d_model, heads: length of a token and number of heads, for level token.
        memory: the function M(x; W) that is written and read.
        chunk: C, tokens between two writes; call, all tokens of a document in a call.
        window: c, tokens that a write looks at; C unless given, as it must be for chunk call.
        bias: what a write minimises of the errors: l2, l1, lp, huber or kl.
        retention: what a write keeps of each matrix: l2, elastic_net, kl, sphere, ftrl or lq.
        window_weights: kind of the weights of window tokens: ones, decay, gate or a product.
        span: R, tokens between refreshes of reference or read chunk_start; a multiple of C.
        reduction: sum of the losses of a write, or their mean over its tokens (and over the rows
            that share a memory).
        coupling: one memory a row, or one for all rows of the first axis.
        fast: tensors that a write moves: matrices, all, the mlp of the memory function, or their
            names.
        vectors: tensors of at most one axis among them: frozen, moved by S, or by S / (|S| + 1e-8).
        clip, clip_norm: bound of the gradient before momentum: none; hard, of the norm of all
            tensors; soft, of each tensor's.
        adaptive: whether the step is h / (1 + |g|), of the gradient before its bound.
        outer_gradient: full; first_order, through no gradient of a write; straight_through, from
            reads to the initial weights; none for those.
        phase, training: phases in which the memory is written, and the phase of these calls.
        unfinished: an incomplete chunk at the end of a call or document waits, or is written
            (flush).
        memory_reset, momentum_reset: where W and S start anew: at each document (sequence), at each
            call too (batch), or never.
        per_dimension_gates: not for weights of a function.
        momentum_order: m; S of order 1 carries gradients, each further one the order before it.
        deep_momentum: a network in the place of S, or none.
        convention: a preset's name, a mapping of axes, or a `Convention`.
    """

    d_in: Count
    d_out: Count
    d_model: Count | None = None
    heads: Count = 1
    memory: MemoryFunction = MemoryFunction(kind="mlp")
    chunk: Count | Literal["call"] = 1
    window: Count
    bias: Bias = Bias()
    retention: Retention = Retention()
    window_weights: WindowWeights = Ones()
    span: Count | None = None
    reduction: Literal["sum", "mean"] = "sum"
    coupling: Literal["per_sample", "batch_shared"] = "per_sample"
    fast: Literal["matrices", "all", "mlp"] | tuple[str, ...] = "matrices"
    vectors: Literal["frozen", "raw", "unit"] = "frozen"
    clip: Literal["none", "hard", "soft"] = "none"
    clip_norm: Positive = 1.0
    adaptive: bool = False
    outer_gradient: Literal["full", "first_order", "straight_through", "none"] = "full"
    phase: Literal["both", "train", "infer", "off"] = "both"
    training: bool = True
    unfinished: Literal["wait", "flush"] = "wait"
    memory_reset: Reset = "sequence"
    momentum_reset: Reset = "sequence"
    momentum_order: Count = 1
    deep_momentum: DeepMomentum | None = None
    per_dimension_gates: Literal[False] = False
    convention: Convention = resolve("spec", rule="deep_memory")

    @model_validator(mode="before")
    @classmethod
    def _window_of_chunk(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("chunk") == "call":
            if "window" not in data:
                raise ValueError("window: chunk call needs it")
        else:
            data = {"window": data.get("chunk", 1), **data}
        if isinstance(data.get("fast"), list):
            data["fast"] = tuple(data["fast"])
        return data

    @field_validator("convention", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Convention:
        return resolve(value, rule="deep_memory", level="token")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        c = self.convention
        sequence.require_span(c, self.span)
        if self.span is not None and (self.chunk == "call" or self.span % self.chunk):
            raise ValueError(f"span: {self.span} is no multiple of chunk {self.chunk}")
        for axis, legal in LEGAL.items():
            if (value := getattr(c, axis)) not in legal:
                raise ValueError(
                    f"convention: {axis} {value} is not defined for a deep memory, "
                    f"{' or '.join(legal)} is"
                )
        self._possible_momentum()
        if self.bias.kind == "kl" and c.value_sign == "plus":
            raise ValueError("bias: kl compares two distributions, but value_sign plus adds values")
        shapes = memory_functions.tensors(self.memory, self.d_in, self.d_out)
        unknown = [name for name in self._named() if name not in shapes]
        if unknown:
            raise ValueError(
                f"fast: {unknown[0]}: no tensor of the memory, which has {', '.join(shapes)}"
            )
        named = self.fast if isinstance(self.fast, tuple) else ()
        twice = [name for name in named if named.count(name) > 1]
        if twice:
            raise ValueError(f"fast: {twice[0]} is named twice")
        if not self.fast_shapes:
            raise ValueError("fast: no tensor is left to write")
        self._check_network()
        self._check_lag()
        if c.window_edge == "renormalise" and self.window > MOST_LAGS:
            raise ValueError(
                f"window: {self.window} tokens, but window_edge renormalise adds the weights of "
                f"all lags, at most {MOST_LAGS}"
            )
        if self.chunk != "call" and self.window < self.chunk:
            warnings.warn(
                f"window {self.window} below chunk {self.chunk}: no write sees "
                f"{self.chunk - self.window} of {self.chunk} tokens",
                stacklevel=2,
            )
        return self

    def _possible_momentum(self) -> None:
        nesterov = self.convention.argument == "nesterov"
        if self.momentum_order > 1 and nesterov:
            raise ValueError(
                f"momentum_order: {self.momentum_order}, but newton_schulz.argument nesterov looks "
                "ahead along one momentum"
            )
        if self.deep_momentum is None:
            return
        if self.momentum_order > 1:
            raise ValueError(
                f"deep_momentum: given beside momentum_order {self.momentum_order}, but a network "
                "has no orders"
            )
        if nesterov:
            raise ValueError(
                "deep_momentum: given, but newton_schulz.argument nesterov looks ahead along a sum "
                "of gradients"
            )

    def _check_lag(self) -> None:
        c = self.convention
        if self.retention.lag and (c.reference != "chunk_start" or c.read == "chunk_start"):
            raise ValueError(
                "retention: lag moves the reference behind the first write of a span; it needs "
                f"reference chunk_start and another read, found {c.reference} and read {c.read}"
            )

    def first_of_span(self, position: int) -> bool:
        """Whether a write at this place of a document is the first of its span (DEEP-39)."""
        return position % (self.span or 1) < (1 if self.chunk == "call" else self.chunk)

    def _check_network(self) -> None:
        try:
            _ = self.momentum_shapes
        except ValueError as error:
            raise ValueError(f"deep_momentum: {error}") from None

    def _named(self) -> tuple[str, ...]:
        if self.fast == "matrices":
            return memory_functions.matrices(self.memory)
        if self.fast == "mlp":
            return memory_functions.mlp_matrices(self.memory)
        if self.fast == "all":
            return tuple(memory_functions.tensors(self.memory, self.d_in, self.d_out))
        return self.fast

    @property
    def fast_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that a write moves, by name, in the function's order (DEEP-3)."""
        named = self._named()
        return {
            name: shape
            for name, shape in memory_functions.tensors(self.memory, self.d_in, self.d_out).items()
            if name in named and (len(shape) == 2 or self.vectors != "frozen")
        }

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what each call brings by name: of the memory, of a deep momentum behind
        `momentum/` (DEEP-6, DEEP-37).
        """
        own = memory_functions.tensors(self.memory, self.d_in, self.d_out)
        if self.deep_momentum is None:
            return own
        return own | {PREFIX + name: shape for name, shape in self.momentum_shapes.items()}

    def chunked(self, position: int, tokens: int) -> tuple[int, int]:
        """C, and the place in its chunk of the first of so many tokens (DEEP-1, DEEP-14)."""
        return (tokens, 0) if self.chunk == "call" else (self.chunk, position % self.chunk)

    @property
    def entries(self) -> int:
        """N, the entries of all tensors that a write moves (DEEP-37)."""
        return sum(math.prod(shape) for shape in self.fast_shapes.values())

    @property
    def momentum_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the momentum S by name.

        Those of W, with the orders in front where there are several; of a deep momentum those of
        its network, which has an entry for each of W (DEEP-37).
        """
        if self.deep_momentum is not None:
            function, entries = self.deep_momentum.function, self.entries
            return memory_functions.tensors(function, entries, entries)
        orders = () if self.momentum_order == 1 else (self.momentum_order,)
        return {name: (*orders, *shape) for name, shape in self.fast_shapes.items()}

    @property
    def writes(self) -> bool:
        """Whether these calls write: the phase of the memory holds that of the calls (DEEP-17)."""
        return self.phase == "both" or self.phase == ("train" if self.training else "infer")


#: Lags of a window whose weights are added.
MOST_LAGS = 2**20

#: Axes on which a deep memory has not every value (DEEP-4).
LEGAL = {
    "order": ("window_then_momentum",),
    "window_at_boundary": ("recompute",),
    "reference": ("running", "chunk_start", "call_start"),
    "span_origin": ("first",),
    "argument": ("S", "nesterov"),
}
