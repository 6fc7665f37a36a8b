"""Derivatives of functions: `vjp` and what follows from it.

Functions take nested parameters (see `tape.nested`) and return an array, or for `vjp` any nest of
them. Gradients come back in the shape of the parameters, and in their dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tape import ops
from tape.core import defvjp_joint, is_finished, primitive, recording, sealed, sweep
from tape.nested import flatten, is_leaf, matched
from tape.variable import Array, TapeError, Variable, dtype, plain, shape

Argnums = int | tuple[int, ...]


def vjp(function: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Value of a function, and its pullback from cotangents of the value to cotangents of the
    arguments (TAPE-8).

        (x_1, ..., x_n) -> y,    y_bar -> (J_1^T y_bar, ..., J_n^T y_bar)

    Returns:
        value: as the function returned it, without variables of this differentiation.
        pullback: cotangents of the shape of `value` -> a tuple of cotangents, one per argument.

    Raises:
        TapeError: a leaf without a derivative; a cotangent that does not fit the value, by
            structure or shape.
    """
    leaves, _, build = flatten(tuple(args))
    with recording() as tape:
        inputs = [tape.variable(leaf) for leaf in leaves]
        result = function(*build(inputs))
    outputs, paths, rebuild = flatten(result, "value")
    for o, path in zip(outputs, paths, strict=True):
        if type(o) is Variable and o.tape is not tape and is_finished(o.tape):
            raise TapeError(
                f"value{path}: a tape variable left the function that was being "
                "differentiated; return it from there instead"
            )
    value = rebuild([o.value if type(o) is Variable and o.tape is tape else o for o in outputs])

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        seeds: dict[int, Array] = {}
        for o, path, bar in zip(
            outputs, paths, matched(cotangents, paths, "cotangent"), strict=True
        ):
            if shape(bar) != shape(o):
                raise TapeError(
                    f"cotangent{path} has shape {shape(bar)}; give the shape of the value, "
                    f"{shape(o)}"
                )
            if type(o) is Variable and o.tape is tape:
                seeds[o.index] = bar if o.index not in seeds else seeds[o.index] + bar
        pulled = sweep(tape, seeds, [x.index for x in inputs])
        like = [_like(leaf, *pair) for leaf, pair in zip(leaves, pulled, strict=True)]
        return build(like)  # type: ignore[no-any-return]

    return value, pullback


def _like(leaf: Array, g: Array | None, fresh: bool) -> Array:
    """A gradient in the precision of its leaf, in memory of its own.

    It is zero where the function does not depend on the leaf.
    """
    if type(g) is Variable or (fresh and g is not None and np.ndim(g)):
        return g if dtype(g) == dtype(leaf) else ops.astype(g, dtype(leaf))
    gradient = np.zeros_like(plain(leaf)) if g is None else ops.astype(g, dtype(leaf))
    return gradient if shape(leaf) else gradient[()]


def _require_array(value: Any, refusal: str) -> None:
    """Refuse what is not one array; the text has the name of its type in place of {}."""
    if not is_leaf(value):
        raise TapeError(refusal.format(type(value).__name__))


def value_and_grad(
    function: Callable[..., Array], argnums: Argnums = 0
) -> Callable[..., tuple[Array, Any]]:
    """x -> (f(x), df/dx) of a function whose value is one number (TAPE-8).

    Args:
        function: returns a scalar (shape ()).
        argnums: position, or positions, of the arguments to differentiate; the gradient is a tuple
            for positions.
    """

    def differentiated(*args: Any, **settings: Any) -> tuple[Array, Any]:
        positions = (argnums,) if isinstance(argnums, int) else argnums
        for position in positions:
            if not 0 <= position < len(args) or positions.count(position) > 1:
                raise TapeError(
                    f"grad: argnums {argnums} with {len(args)} positional arguments; name "
                    "each position from 0 once"
                )
            if is_leaf(args[position]):
                continue
            # a refusal names the position as given
            name = f"argument {position} of {len(args)}"
            if not flatten(args[position], name)[0]:
                raise TapeError(
                    f"grad: {name} is {type(args[position]).__name__} without a number to "
                    "differentiate by"
                )

        def chosen(*some: Any) -> Array:
            full = list(args)
            for position, value in zip(positions, some, strict=True):
                full[position] = value
            return function(*full, **settings)

        value, pullback = vjp(chosen, *[args[position] for position in positions])
        refusal = "grad: the function returned {}, not one array; return one number, or use vjp"
        _require_array(value, refusal)
        if shape(value) != ():
            raise TapeError(
                f"grad: the function returned shape {shape(value)}, not one number; sum it, "
                "or use vjp or jacobian"
            )
        gradients = pullback(ops.ones_like(value)[()])
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return differentiated


def grad(function: Callable[..., Array], argnums: Argnums = 0) -> Callable[..., Any]:
    """x -> df/dx of a function whose value is one number (TAPE-8); see `value_and_grad`."""
    both = value_and_grad(function, argnums)
    return lambda *args, **settings: both(*args, **settings)[1]


def jacobian(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """x -> J[i..., j...] = d f(x)[i...] / d x[j...], by one sweep per entry of f(x) (TAPE-8)."""

    def matrix(x: Array) -> Array:
        value, pullback = vjp(function, x)
        _require_array(x, "jacobian: x is a {}, not one array; use vjp")
        _require_array(value, "jacobian: the value is a {}, not one array; use vjp")
        rows = []
        for position in np.ndindex(*shape(value)):
            seed = ops.zeros_like(value)
            seed[position] = 1.0
            rows.append(pullback(seed[()])[0])
        full = (*shape(value), *shape(x))
        return ops.reshape(ops.stack(rows), full) if rows else ops.zeros_like(value, shape=full)

    return matrix


def hvp(function: Callable[[Any], Array]) -> Callable[[Any, Any], Any]:
    """(x, v) -> d/dx <df/dx, v>, the Hessian of a scalar function times a direction (TAPE-8).

    The direction v has the structure of x.
    """

    def product(x: Any, v: Any) -> Any:
        def along(y: Any) -> Array:
            gradients, paths, _ = flatten(grad(function)(y))
            total = 0.0
            for g, path, d in zip(gradients, paths, matched(v, paths, "direction"), strict=True):
                if shape(g) != shape(d):
                    raise TapeError(
                        f"hvp: direction{path} has shape {shape(d)}; give the shape of the "
                        f"argument, {shape(g)}"
                    )
                total = total + ops.vdot(g, d)
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
    reason = (
        "checkpoint: the function captured a tape variable; pass it as an argument, or its "
        "gradient would be lost"
    )
    several = "checkpoint: the function returned {}; return one array, joined by ops.concatenate"

    def wrapped(*args: Any) -> Array:
        leaves, _, build = flatten(tuple(args))

        def flat(*arrays: Array) -> Array:
            return function(*build(list(arrays)))

        def run(*arrays: Array) -> Array:
            with sealed(reason):
                value = flat(*arrays)
            if type(value) is Variable:
                raise TapeError(reason)
            _require_array(value, several)
            return value

        op = primitive(run, "checkpoint")
        defvjp_joint(op, lambda value, *arrays: lambda g: vjp(flat, *arrays)[1](g))
        return op(*leaves)

    return wrapped
