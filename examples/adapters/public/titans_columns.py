"""Columns of what a neural memory gets, in place of its projections, so that it works on a case's
keys, values, queries and gates.
"""

from __future__ import annotations

from typing import Any

from torch_calls import column, pytorch

#: What the forget gate of titans-unofficial is shifted by before the sigmoid.
SHIFT = 4.0


class Gate:
    """A gate that is its own sigmoid, so that 0 and 1 stay exact.

    A projection returns it where its caller takes the sigmoid.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def sigmoid(self) -> Any:
        return self.value


def of_titans_pytorch(memory: Any, width: int, *, momentum: bool) -> None:
    """Columns k, v, q of some width, step, retain and, where it has it, momentum."""
    torch = pytorch()

    class Gates(torch.nn.Module):
        def __init__(self, place: int, order: bool) -> None:
            super().__init__()
            self.place, self.order = place, order

        def forward(self, seq: Any) -> Gate:
            value = seq[..., self.place : self.place + 1]
            return Gate(value[None] if self.order else value)

    class Steps(torch.nn.Module):
        def forward(self, seq: Any) -> Any:
            return seq[..., 3 * width]

    memory.to_keys, memory.to_values, memory.to_queries = (
        column(n * width, (n + 1) * width) for n in range(3)
    )
    memory.to_adaptive_step = Steps()
    memory.to_decay_factor = Gates(3 * width + 1, False)
    if momentum:
        memory.to_momentum = Gates(3 * width + 2, True)


def of_titans_unofficial(memory: Any, width: int, *, momentum: bool) -> None:
    """The same columns, of gates whose sigmoids it takes; without momentum the last is retain."""
    torch = pytorch()

    class Logit(torch.nn.Module):
        def __init__(self, place: int, shift: float = 0.0) -> None:
            super().__init__()
            self.place, self.shift = place, shift

        def forward(self, seq: Any) -> Any:
            return seq[..., self.place : self.place + 1].logit() + self.shift

    memory.W_K, memory.W_V, memory.W_Q = (column(n * width, (n + 1) * width) for n in range(3))
    memory.theta_proj, memory.alpha_proj = Logit(3 * width), Logit(3 * width + 1, SHIFT)
    memory.eta_proj = Logit(3 * width + (2 if momentum else 1))
