"""What a function cannot be asked, beyond what `kernels.Kernel` knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Answer = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


def one_width(answer: Answer) -> Answer:
    """A function whose keys and values have one width."""

    def limited(case: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        d_in, d_out = (inputs[name].shape[-1] for name in ("k", "v"))
        if d_in != d_out:
            raise NotImplementedError("keys and values of two widths: it knows one")
        return answer(case, inputs)

    return limited


def never_full(answer: Answer) -> Answer:
    """A function whose write is as large as its decay, so that a gate of 1 writes nothing."""

    def limited(case: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        gates = [
            bool((inputs[name] < full).all())
            for name, full in (("retain", 1), ("log_retain", 0))
            if name in inputs
        ]
        if not all(gates) or not gates:
            raise NotImplementedError("a gate of 1: its write is as large as its decay")
        return answer(case, inputs)

    return limited
