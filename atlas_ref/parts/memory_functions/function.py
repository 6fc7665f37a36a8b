"""The settings of a memory function, and the sizes that follow from them.

Specified in specs/memory_functions.md (MEMFUN-1, MEMFUN-2).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from atlas_ref.parts.kinds import check_read
from atlas_ref.types import Count, Frozen

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

#: Settings that one or two kinds read; under another kind they must have their defaults.
READ_BY: dict[str, tuple[str, ...]] = {
    "depth": ("mlp",),
    "expansion": ("mlp", "polynomial"),
    "residual_norm": ("mlp",),
    "activation": ("mlp", "polynomial"),
    "gated": ("polynomial",),
    "degree": ("polynomial",),
    "key_width": ("polynomial",),
    "compress": ("polynomial",),
    "norm_eps": ("mlp", "polynomial"),
    "scale": ("polynomial",),
}


class MemoryFunction(Frozen):
    """What a memory computes from a key or a query with its fast and slow parameters (MEMFUN-1).

    Attributes:
        kind: linear, M(x) = W x; mlp, matrices with an activation between; polynomial, that of
            Atlas-MAG.
        depth: L, matrices of an mlp; bounded, since tables of their names are made before any
            tensor is read.
        expansion: hidden units per input of an mlp, per key_width of a polynomial.
        residual_norm: whether an mlp returns (1 + gain) LayerNorm(W_L ...) + x.
        activation: gelu by the error function; gelu_tanh; silu.
        gated: polynomial: whether a second product of the features multiplies the activation.
        degree: 2 with products of two entries, 1 without.
        key_width: d_key, entries that are multiplied; a polynomial needs it.
        compress: rows of W_compress; none from the number of features on.
        norm_eps: inside the roots of the layer norms.
        scale: the initial read_scale.
        with_input: whether the argument is added to the result.
    """

    kind: Literal["linear", "mlp", "polynomial"]
    depth: Annotated[int, Field(ge=1, le=1000)] = 2
    expansion: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 4.0
    residual_norm: bool = False
    activation: Literal["gelu", "gelu_tanh", "silu"] = "gelu"
    gated: bool = False
    degree: Literal[1, 2] = 2
    key_width: Count | None = None
    compress: Count | None = None
    norm_eps: Positive = 1e-5
    scale: Annotated[float, Field(allow_inf_nan=False)] = 0.15
    with_input: bool = False

    @model_validator(mode="after")
    def _read(self) -> Self:
        check_read(self, READ_BY)
        if self.kind == "polynomial" and self.key_width is None:
            raise ValueError("key_width: kind polynomial needs it")
        if self.key_width is not None:
            self.hidden(self.key_width)
        return self

    def hidden(self, d_in: int) -> int:
        """Hidden units: expansion times d_in (mlp) or key_width (polynomial), cut to a whole number.

        Raises:
            ValueError: where none is left.
        """
        width = d_in if self.key_width is None else self.key_width
        count = int(width * self.expansion)
        if count < 1:
            raise ValueError(f"expansion: {self.expansion:g} of {width} leaves no hidden unit")
        return count

    @property
    def features(self) -> int:
        """F, the features of a polynomial: d_key, and d_key (d_key + 1) / 2 products."""
        kd = self.key_width or 0
        return kd if self.degree == 1 else kd + kd * (kd + 1) // 2

    @property
    def compressed(self) -> bool:
        """Whether a polynomial has W_compress: compress below the number of features."""
        return self.compress is not None and self.compress < self.features
