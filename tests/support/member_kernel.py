"""A kernel of any member of rule dplr, (B, T, H, D) and states (K, V), whose numbers are the rule's.

It stands for a kernel that is right, where a test asks what `examples/adapters` convert.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.oracle.dplr import members


def arguments(member: str) -> dict[str, str]:
    """Arguments by the names of a case, the gate as its log."""
    row = members.MEMBERS[member]
    names = ["q", "k", "v", "M0"]
    names += [name[3:] for name in members.NEEDS[row.erase]]
    names += [name[3:] for name in members.MADE_OF.get(row.second, ())]
    names += [row.read[3:]] if row.read != "in/k" else []
    names += ["bonus"] if row.bonus else []
    names += ["log_retain"] if row.gated is True else []
    return {name: name for name in names}


class Strict:
    """The kernel of a member, which takes multiples of a width and of tokens alone."""

    def __init__(self, member: str, width: int = 1, tokens: int = 1, **parameters: Any) -> None:
        self.parameters = {"member": member, "state_layout": "(d_in, d_out)", **parameters}
        self.width, self.tokens = width, tokens

    def __call__(self, **x: Any) -> tuple[Any, Any]:
        assert x["q"].shape[1] % self.tokens == 0, x["q"].shape
        assert {x["k"].shape[3] % self.width, x["v"].shape[3] % self.width} == {0}
        found = self._run(x).tensors
        return np.swapaxes(found["out/y"], 1, 2), found["out/M"]

    def gradients(self, x: dict[str, Any], y_bar: Any, M_bar: Any) -> dict[str, Any]:
        bars = {"y_bar": y_bar, **({} if M_bar is None else {"M_bar": M_bar})}
        found = self._run({**x, **bars}, grad=True).tensors
        return {name: _turned(name, found[f"grad/{name}"]) for name in x}

    def _run(self, x: dict[str, Any], *, grad: bool = False) -> Any:
        header = {"schema": 1, "rule": "dplr", "parameters": self.parameters}
        inputs = {f"in/{name}": _turned(name, value) for name, value in x.items()}
        return atlas_ref.evaluate(atlas_ref.make(header, inputs), grad=grad)


def _turned(name: str, x: Any) -> Any:
    """Heads in front of time, or back; states and a bonus stay."""
    return x if name in ("M0", "M_bar", "bonus") else np.swapaxes(x, 1, 2)
