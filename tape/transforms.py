"""Derivatives of functions: `vjp` and what follows from it.

Functions take nested parameters (see `tape.nested`) and return an array, or for `vjp` any nest of them.
Gradients come back in the shape of the parameters, and in their dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tape import ops
from tape.core import (
    Array,
    Pullback,
    TapeError,
    Variable,
    defvjp_joint,
    dtype,
    plain,
    primitive,
    recording,
    sealed,
    shape,
    sweep,
)
from tape.nested import flatten

Argnums = int | tuple[int, ...]


def vjp(function: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Value of a function and the map that pulls cotangents of its value back to its arguments.

        (x_1, ..., x_n) -> y,    y_bar -> (J_1^T y_bar, ..., J_n^T y_bar)

    Returns:
        value: as the function returned it, without variables of this differentiation.
        pullback: cotangents of the shape of `value` -> a tuple of cotangents, one per argument.

    Raises:
        TapeError: a leaf without a derivative; a cotangent of another shape than the value.
    """
    leaves, paths, build = flatten(tuple(args))
    with recording() as tape:
        inputs = [tape.variable(leaf) for leaf in leaves]
        result = function(*build(inputs))
    outputs, _, rebuild = _outputs(result)
    value = rebuild([o.value if type(o) is Variable and o.tape is tape else o for o in outputs])

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        bars, _, _ = _outputs(cotangents)
        if len(bars) != len(outputs):
            raise TapeError(f"pullback: the value has {len(outputs)} arrays, the cotangent {len(bars)}")
        seeds: dict[int, Array] = {}
        for o, bar in zip(outputs, bars, strict=True):
            if shape(bar) != shape(o):
                raise TapeError(f"pullback: cotangent of shape {shape(bar)} for a value of shape {shape(o)}")
            if type(o) is Variable and o.tape is tape:
                seeds[o.index] = bar if o.index not in seeds else seeds[o.index] + bar
        pulled = sweep(tape, seeds, [x.index for x in inputs])
        return build([_like(leaf, g) for leaf, g in zip(leaves, pulled, strict=True)])  # type: ignore[no-any-return]

    return value, pullback


def _outputs(tree: Any) -> tuple[list[Any], list[str], Any]:
    return flatten(tree, "value")


def _like(leaf: Array, g: Array | None) -> Array:
    """A gradient in the dtype of its leaf; zeros where the function does not depend on it."""
    if g is None:
        return np.zeros_like(plain(leaf)) if shape(leaf) else 0.0
    kind = dtype(leaf)
    if dtype(g) != kind and not np.iscomplexobj(plain(g)):
        return ops.astype(g, kind) if shape(leaf) else g
    return g


def value_and_grad(function: Callable[..., Array], argnums: Argnums = 0) -> Callable[..., tuple[Array, Any]]:
    """x -> (f(x), df/dx) of a function whose value is one number.

    Args:
        function: returns a scalar (shape ()).
        argnums: position, or positions, of the arguments to differentiate; the gradient is a tuple for positions.
    """

    def differentiated(*args: Any, **settings: Any) -> tuple[Array, Any]:
        positions = (argnums,) if isinstance(argnums, int) else argnums
        for position in positions:
            if not 0 <= position < len(args):
                raise TapeError(f"grad: argument {position} of {len(args)} positional arguments does not exist")

        def chosen(*some: Any) -> Array:
            full = list(args)
            for position, value in zip(positions, some, strict=True):
                full[position] = value
            return function(*full, **settings)

        value, pullback = vjp(chosen, *[args[position] for position in positions])
        if shape(value) != ():
            raise TapeError(f"grad: the function returned shape {shape(value)}, not one number; sum it, or use vjp or jacobian")
        gradients = pullback(_one(value))
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return differentiated


def _one(value: Array) -> Array:
    kind = dtype(value)
    return np.ones((), kind)[()]


def grad(function: Callable[..., Array], argnums: Argnums = 0) -> Callable[..., Any]:
    """x -> df/dx of a function whose value is one number; see `value_and_grad`."""
    both = value_and_grad(function, argnums)

    def gradient(*args: Any, **settings: Any) -> Any:
        return both(*args, **settings)[1]

    return gradient


def jacobian(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """x -> J with J[i..., j...] = d f(x)[i...] / d x[j...], one sweep per entry of f(x)."""

    def matrix(x: Array) -> Array:
        value, pullback = vjp(function, x)
        rows = []
        for i in range(int(np.prod(shape(value)))):
            seed = np.zeros(int(np.prod(shape(value))), dtype(value))
            seed[i] = 1.0
            rows.append(pullback(seed.reshape(shape(value))[()])[0])
        return ops.reshape(ops.stack(rows), (*shape(value), *shape(x)))

    return matrix


def hvp(function: Callable[[Any], Array]) -> Callable[[Any, Any], Any]:
    """(x, v) -> d/dx <df/dx, v>: the Hessian of a scalar function times a direction of the shape of x."""

    def product(x: Any, v: Any) -> Any:
        directions = flatten(v, "direction")[0]

        def along(y: Any) -> Array:
            gradients = flatten(grad(function)(y))[0]
            if len(gradients) != len(directions):
                raise TapeError(f"hvp: x has {len(gradients)} arrays, the direction {len(directions)}")
            total = 0.0
            for g, d in zip(gradients, directions, strict=True):
                if shape(g) != shape(d):
                    raise TapeError(f"hvp: direction of shape {shape(d)} for an argument of shape {shape(g)}")
                total = total + ops.sum(g * d)
            return total

        return grad(along)(x)

    return product


def checkpoint(function: Callable[..., Array]) -> Callable[..., Array]:
    """The same function, recorded as one entry and recomputed in the backward sweep (TAPE-10).

    Memory for the inside of `function` is needed only while its own entry is swept. Everything it
    differentiates through must come in by its arguments.

    Raises:
        TapeError: `function` used a variable it captured instead of taking it as an argument; the
            gradient with respect to that variable would be lost.
    """
    reason = "checkpoint: the function captured a tape variable; pass it as an argument, or its gradient would be lost"

    def wrapped(*args: Any) -> Array:
        leaves, _, build = flatten(tuple(args))

        def flat(*arrays: Array) -> Array:
            return function(*build(list(arrays)))

        def run(*arrays: Array) -> Array:
            with sealed(reason):
                value = flat(*arrays)
            if type(value) is Variable:
                raise TapeError(reason)
            return value

        def rule(value: Array, *arrays: Array) -> Pullback:
            return lambda g: vjp(flat, *arrays)[1](g)

        op = primitive(run)
        op.__name__ = "checkpoint"
        defvjp_joint(op, rule)
        return op(*leaves)

    return wrapped
