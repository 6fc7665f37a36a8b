"""A kernel of JAX arrays as one of NumPy's, with gradients by `jax.vjp`.

import jax_kernels, kernels

mine = jax_kernels.of(chunk_kda, kernels.KDA, member="kda", options={"output_final_state": True})

What is not an array (options, numbers of the case) is handed over as it is, so that a jitted function
has to declare it static. JAX makes float32 of float64, unless `jax_enable_x64` is set, which is left to
the kernel's author: results are judged by the type that they come in. JAX is imported when a kernel
is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or __package__:
    from . import kernels
else:  # copied beside a kernel
    import kernels

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def of(
    function: Function,
    arguments: Mapping[str, str],
    *,
    member: str,
    backward: bool = True,
    **how: Any,
) -> kernels.Kernel:
    """The kernel behind a function of JAX arrays, which returns o and its final states or None.

    Args:
        function: of arrays by the names of `arguments`.
        arguments, member, how: of `kernels.Kernel`.
        backward: whether JAX can go back through it.
    """

    def call(**given: Any) -> tuple[Array | None, ...]:
        found = function(**{name: device_array(x) for name, x in given.items()})
        return tuple(None if x is None else np.asarray(x) for x in found)

    def gradients(given: dict[str, Any], *bars: Array | None) -> dict[str, Any]:
        import jax

        leaves = {n: device_array(x) for n, x in given.items() if differentiable(x)}
        others = {n: device_array(x) for n, x in given.items() if n not in leaves}
        results, back = jax.vjp(lambda floats: tuple(function(**others, **floats)), leaves)
        (found,) = back(tuple(map(_cotangent, results, bars)))
        return {name: np.asarray(gradient) for name, gradient in found.items()}

    return kernels.Kernel(call, arguments, member, gradients if backward else None, **how)


def _cotangent(x: Any, bar: Array | None) -> Any:
    """The cotangent of a result, zero where the case has none."""
    import jax

    if x is None:
        return None
    return jax.numpy.zeros_like(x) if bar is None else jax.numpy.asarray(bar, x.dtype)


def differentiable(x: Any) -> bool:
    """Whether there is a gradient by it: an array of floating numbers, of bfloat16 too."""
    return isinstance(x, np.ndarray) and x.dtype.kind not in "iub"


def device_array(x: Any) -> Any:
    """A JAX array of NumPy's; what is no array stays."""
    if not isinstance(x, np.ndarray):
        return x
    import jax

    return jax.numpy.asarray(x)
