"""A kernel of PyTorch tensors as one of arrays, with gradients by its own backward.

import kernels, torch_kernels
from fla.ops.kda import chunk_kda

mine = torch_kernels.of(chunk_kda, kernels.KDA, member="kda", device="cuda",
                        options={"output_final_state": True}, grouped=True)

PyTorch is imported when a kernel is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
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
    """The kernel behind a function of tensors, which returns o and its final states.

    Args:
        function: of tensors by the names of `arguments`.
        arguments, member, how: of `kernels.Kernel`.
        device: where its tensors are.
        backward: whether autograd can go through it.
    """

    def call(**given: Any) -> tuple[Array | None, ...]:
        import torch

        with torch.no_grad():
            found = function(**{name: tensor(x, device) for name, x in given.items()})
        return tuple(None if x is None else array(x) for x in found)

    def gradients(given: dict[str, Any], *bars: Array | None) -> dict[str, Any]:
        import torch

        leaves = {name: tensor(x, device) for name, x in given.items()}
        names = [name for name, x in leaves.items() if _differentiable(x)]
        for name in names:
            leaves[name].requires_grad_()
        loss = sum(
            (x * tensor(bar, device).to(x.dtype)).sum()
            for x, bar in zip(function(**leaves), bars, strict=True)
            if bar is not None
        )
        by = torch.autograd.grad(loss, [leaves[name] for name in names], materialize_grads=True)
        return {name: array(each) for name, each in zip(names, by, strict=True)}

    return kernels.Kernel(call, arguments, member, gradients if backward else None, **how)


def _differentiable(x: Any) -> bool:
    return hasattr(x, "is_floating_point") and bool(x.is_floating_point())


def tensor(x: Any, device: str = "cpu") -> Any:
    """A tensor of an array, which it owns; what is no array stays.

    bfloat16 passes through the bits, since NumPy's own types have none.
    """
    if not isinstance(x, np.ndarray):
        return x
    import torch

    x = np.array(x, order="C")
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(x).to(device)


def array(x: Any) -> Array:
    """An array of a tensor; of bfloat16 by the type of ml_dtypes, so that it is judged as such."""
    import torch

    x = x.detach().cpu().contiguous()
    if x.dtype == torch.bfloat16:
        found: Array = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return found
    values: Array = x.numpy()
    return values
