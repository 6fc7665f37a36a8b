"""The Delta rule in PyTorch, (B, T, H, D), with an adapter for atlas-ref.

The adapter answers values and, by autograd, gradients.

atlas-ref check cases/ --impl delta_torch:answer
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import layouts
import settings
from settings import Settings

Tensor = torch.Tensor


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step_size: Tensor | None,
    retain: Tensor | None,
    M: Tensor,
    *,
    cu_seqlens: list[int],
    active: Tensor | None = None,
    how: Settings,
) -> tuple[Tensor, Tensor]:
    """The Delta rule, M <- retain M - step (M k - v) k^T, read with q.

    Returns y (B, T, H, d_out) and the last memory (B, H, d_out, d_in).

    Args:
        q, k (B, T, H, d_in); v (B, T, H, d_out); step_size, retain (B, T, H, 1 or d_out), None
        where there is none.
        M (B, H, d_out, d_in): the memory that every packed sequence starts from.
        cu_seqlens: where packed sequences begin, and the end of the last.
        active (T,): where the memory is written; everywhere when None.
    """
    first, reads = M, []
    starts = set(cu_seqlens[:-1])
    for t in range(k.shape[1]):
        if t in starts:
            M = first
        before = M
        if active is None or bool(active[t]):
            M = _written(
                M,
                k[:, t],
                v[:, t],
                None if step_size is None else step_size[:, t],
                None if retain is None else retain[:, t],
                how,
            )
        reads.append(
            torch.einsum(
                "bhij,bhj->bhi", before if how.read == "before" else M, how.query_scale * q[:, t]
            )
        )
    return torch.stack(reads, dim=1), M


def _written(
    M: Tensor, k: Tensor, v: Tensor, step: Tensor | None, retain: Tensor | None, how: Settings
) -> Tensor:
    decayed = M if retain is None else retain[..., None] * M
    reference = decayed if how.decay == "before_error" else M
    error = torch.einsum("bhij,bhj->bhi", reference, k) + (v if how.value_sign == "plus" else -v)
    if step is not None:
        error = error * (step * step if how.rate == "both" else step)
    change = how.gradient_scale * error[..., None] * k[..., None, :]
    return decayed + change if how.direction == "ascent" else decayed - change


def answer(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
    """Answer a case for `--impl`: arrays of the case in, results by name out."""
    how, view = settings.read(case, inputs), layouts.Leading.of(inputs)
    names = [name for name in inputs if name not in (*layouts.MASKS, "y_bar", "M_bar")]
    leaves = {name: tensor(view.to_kernel(name, inputs[name])).requires_grad_() for name in names}
    wide = {
        name: leaf.float() if leaf.dtype in (torch.bfloat16, torch.float16) else leaf
        for name, leaf in leaves.items()
    }
    y, M = delta_rule(
        wide["q"],
        wide["k"],
        wide["v"],
        _gate(wide.get("step_size")),
        _retain(wide, how),
        _memory(wide, view, how),
        cu_seqlens=layouts.cu_seqlens(inputs.get("reset"), inputs["k"].shape[-2]).tolist(),
        active=torch.from_numpy(inputs["active"]) if "active" in inputs else None,
        how=how,
    )
    M = M.transpose(-1, -2) if how.transposed else M
    outputs = {"y": y, "M": M}
    if "y_bar" in inputs:
        loss = (y * tensor(view.to_kernel("y_bar", inputs["y_bar"])).to(y.dtype)).sum()
        if "M_bar" in inputs:
            loss = loss + (M * tensor(view.to_kernel("M0", inputs["M_bar"])).to(M.dtype)).sum()
        gradients = torch.autograd.grad(
            loss, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        outputs |= {
            f"grad/{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)
        }
    kind = leaves["k"].dtype
    return {name: _in_case(view, name, value.detach().to(kind)) for name, value in outputs.items()}


def tensor(x: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of a NumPy array; bfloat16 passes through the bits, since NumPy's own types have
    none.
    """
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(x))


def _gate(x: Tensor | None) -> Tensor | None:
    """A gate per head as one per output dimension that is the same for all."""
    return x if x is None or x.ndim == 4 else x[..., None]


def _retain(wide: dict[str, Tensor], how: Settings) -> Tensor | None:
    if how.gate == "none":
        return None
    gate = _gate(wide["log_retain"].exp() if "log_retain" in wide else wide["retain"])
    return 1.0 - gate if how.gate == "forget" else gate


def _memory(wide: dict[str, Tensor], view: layouts.Leading, how: Settings) -> Tensor:
    if "M0" in wide:
        return wide["M0"].transpose(-1, -2) if how.transposed else wide["M0"]
    return wide["k"].new_zeros((*view.folded, wide["v"].shape[-1], wide["k"].shape[-1]))


def _in_case(view: layouts.Leading, name: str, x: Tensor) -> Tensor:
    """(B, T, H, ...) to the leading axes of the case."""
    state = name.removeprefix("grad/") in layouts.STATES
    x = x if state else x.transpose(1, 2)
    return x.reshape(*view.axes, *x.shape[2:])
