"""A kernel of MLX arrays as one of NumPy's, with gradients by `mlx.core.grad`.

import mlx_kernels
from mlx_lm.models.gated_delta import gated_delta_ops

GATED_DELTA = {"q": "q", "k": "k", "v": "v", "g": "retain", "beta": "beta", "state": "M0"}
mine = mlx_kernels.of(gated_delta_ops, GATED_DELTA, member="gated_delta", state="(d_out, d_in)",
                      channels=False, grouped=True)

Kernels of MLX have the state (d_out, d_in), and take a gate itself, not its log. MLX computes in
float32 what comes in float64; results of bfloat16 come in float32, which holds them. It is imported
when a kernel is first called.
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
    device: str = "cpu",
    backward: bool = True,
    **how: Any,
) -> kernels.Kernel:
    """The kernel behind a function of MLX arrays, which returns o and its final states or None.

    Args:
        function: of arrays by the names of `arguments`.
        arguments, member, how: of `kernels.Kernel`.
        device: "cpu" or "gpu", where it runs.
        backward: whether MLX can go back through it.
    """

    def call(**given: Any) -> tuple[Array | None, ...]:
        with stream(device):
            found = function(**{name: device_array(x) for name, x in given.items()})
            return tuple(None if x is None else array(x) for x in found)

    def gradients(given: dict[str, Any], *bars: Array | None) -> dict[str, Any]:
        import mlx.core as mx

        def loss(floats: dict[str, Any]) -> Any:
            pairs = zip(function(**others, **floats), bars, strict=True)
            return sum((x * device_array(bar)).sum() for x, bar in pairs if bar is not None)

        with stream(device):
            leaves = {n: device_array(x) for n, x in given.items() if differentiable(x)}
            others = {n: device_array(x) for n, x in given.items() if n not in leaves}
            found = mx.grad(loss)(leaves)
            return {name: array(gradient) for name, gradient in found.items()}

    return kernels.Kernel(call, arguments, member, gradients if backward else None, **how)


def stream(device: str) -> Any:
    """The context in which MLX computes on a device."""
    import mlx.core as mx

    return mx.stream(getattr(mx, device))


def differentiable(x: Any) -> bool:
    """Whether there is a gradient by it: an array of floating numbers, of bfloat16 too."""
    return isinstance(x, np.ndarray) and x.dtype.kind not in "iub"


def device_array(x: Any) -> Any:
    """An MLX array of NumPy's; what is no array stays.

    bfloat16 passes through float32, which holds it, since MLX does not know NumPy's.
    """
    if not isinstance(x, np.ndarray):
        return x
    import mlx.core as mx

    if x.dtype.name == "bfloat16":
        return mx.array(x.astype(np.float32)).astype(mx.bfloat16)
    return mx.array(x)


def array(x: Any) -> Array:
    """An array of MLX's, of bfloat16 in float32."""
    import mlx.core as mx

    return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x)
