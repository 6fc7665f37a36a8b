"""Memory functions M(x): what a deep memory computes with its parameters, and the hand gradient.

    y = apply(function, params, x)
    by_name, gx = gradient(function, params, x, gy)
    value = forward(function, params, x)        y and what the gradient keeps of it
    by_name, gx = gradient(function, params, x, gy, of=value)

A parameter has its own shape (slow, shared by all rows) or leading axes in front of it that
broadcast against those of x (fast, one per row and head), in any mix. All is written in tape ops,
so that the gradient can be differentiated again.

Specified in specs/memory_functions.md; special cases and cost: MEMFUN-10, MEMFUN-11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from atlas_ref.parts.memory_functions.function import MemoryFunction
from atlas_ref.parts.memory_functions.parameters import (
    KINDS,
    check,
    initial,
    matrices,
    mlp_matrices,
    names_of,
    tensors,
)
from atlas_ref.types import Array
from tape import opaque
from tape.shapes import unbroadcast

__all__ = [
    "Forward",
    "MemoryFunction",
    "apply",
    "check",
    "forward",
    "gradient",
    "initial",
    "matrices",
    "mlp_matrices",
    "pieces",
    "tensors",
]

Parameters = Mapping[str, Array]


class Forward(NamedTuple):
    """A value of a function, with what its gradient needs (MEMFUN-11).

    Attributes:
        pieces: every value between x and M(x) by name, y the last.
        kept: what stands beside them.
    """

    pieces: dict[str, Array]
    kept: dict[str, Array]

    @property
    def y(self) -> Array:
        """M(x)."""
        return self.pieces["y"]


def apply(function: MemoryFunction, params: Parameters, x: Array) -> Array:
    """M(x) of each token (MEMFUN-1, MEMFUN-3).

    Args:
        params: by the names of `tensors`, as `check` takes them.
        x (..., n, d_in): keys or queries.

    Returns:
        y (..., n, d_out): leading axes are those of x and of the parameters, broadcast.

    Source: Atlas-MAG's AtlasMemoryPoly; titans-pytorch's MemoryMLP with ResidualNorm.
    """
    names = tuple(params)
    if function.kind == "linear":
        return forward(function, params, x).y
    y: Array = _applied(tuple(function.__dict__.items()), names)(*(params[n] for n in names), x)
    return y


@functools.lru_cache(maxsize=256)
def _applied(fields: tuple[Any, ...], names: tuple[str, ...]) -> Callable[..., Any]:
    """`apply` of arrays in the order of their names, x last, with the hand gradient as backward."""
    function = MemoryFunction.trusted(**dict(fields))

    def plainly(*arrays: Array) -> Array:
        return forward(function, dict(zip(names, arrays[:-1], strict=True)), arrays[-1]).y

    def whole(*arrays: Array) -> tuple[Array, Any]:
        value = forward(function, dict(zip(names, arrays[:-1], strict=True)), arrays[-1])
        return value.y, (value, arrays)

    def backward(kept: Any, g: Array) -> list[Array]:
        value, arrays = kept
        params = dict(zip(names, arrays[:-1], strict=True))
        by_name, gx = gradient(function, params, arrays[-1], g, of=value)
        found = [*(by_name[name] for name in names), gx]
        return [unbroadcast(each, a.shape) for each, a in zip(found, arrays, strict=True)]

    return opaque(plainly, whole, backward, value=plainly)


def pieces(function: MemoryFunction, params: Parameters, x: Array) -> dict[str, Array]:
    """Every value between x and M(x), in the order in which it is computed (MEMFUN-3).

    Args:
        params, x: as in `apply`.

    Returns:
        linear: y; mlp: a_1, s_1, ..., o, normed (residual_norm), y; polynomial: z, features,
        normed, compressed (compress), a, b (gated), s, o, e, y. Each is (..., n, its width).
    """
    return forward(function, params, x).pieces


def forward(function: MemoryFunction, params: Parameters, x: Array) -> Forward:
    """M(x) with what `gradient` needs of it, so that both cost one forward pass (MEMFUN-11).

    Args:
        params, x: as in `apply`.
    """
    found, kept = KINDS[function.kind].forward(function, params, x)
    if function.with_input:
        found["y"] = found["y"] + x
    return Forward(found, kept)


def gradient(
    function: MemoryFunction,
    params: Parameters,
    x: Array,
    gy: Array,
    *,
    names: Iterable[str] | None = None,
    needs_input: bool = True,
    of: Forward | None = None,
) -> tuple[dict[str, Array], Array | None]:
    """Cotangents of the parameters and of x for a cotangent gy of M(x), by hand (MEMFUN-6).

    Args:
        params, x: as in `apply`.
        gy (..., n, d_out): with the leading axes of M(x).
        names: the parameters asked for, all where None; products of the others are left out.
        needs_input: whether the cotangent of x is asked for.
        of: what `forward` returned for the same params and x; computed again where None.

    Returns:
        by name, in the order of `tensors`: the leading axes of gy and the parameter's own shape,
        summed over the tokens alone; and gx (..., n, d_in), None where it is not asked for.

    Raises:
        ValueError: a name that is no parameter of the function.
    """
    known = names_of(function)
    wanted = set(known if names is None else names)
    for each in wanted:
        if each not in known:
            raise ValueError(
                f"names: {each!r} is no parameter of kind {function.kind}: {', '.join(known)}"
            )
    kind = KINDS[function.kind]
    value = kind.inside(function, params, x) if of is None else of
    found, gx = kind.gradient(function, params, x, gy, wanted, needs_input, *value)
    if gx is not None and function.with_input:
        gx = gx + gy
    return {name: found[name] for name in known if name in wanted}, gx
