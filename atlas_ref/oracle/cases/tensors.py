"""Tensors that a case may hold, from its subject, and the results of all subjects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.cases.tensor_spec import LEVEL, Legal, Tensor, bare, of_call
from atlas_ref.oracle.registry import SUBJECTS
from tape import ops

#: Cotangents: inputs that have no gradient themselves.
COTANGENTS = (
    "in/y_bar",
    "in/M_bar",
    "in/S_bar",
    "in/z_bar",
    "in/A_bar",
    "in/K_bar",
    "in/h_bar",
    "in/G_bar",
    "in/bias_bar",
    "in/window_bar",
    "in/X_bar",
    "in/phi_bar",
)

#: Cotangents of the final state of a layer begin so, and those of turned queries and keys.
STATE_BAR = "in/state_bar/"
TURNED_BARS = ("in/q_bar", "in/k_bar", "in/v_bar")

#: Results of any rule, without `out/` (CASE-12).
RESULTS = (
    "y",
    "M",
    "S",
    "M_ref",
    "window_k",
    "window_v",
    "window_gate_before",
    "window_residual",
    "window_momentum",
    "X",
    "phi",
)


def legal(header: Any, convention: Any, names: set[str]) -> Legal:
    """Tensors that this case may hold, and the reasons against other names.

    Args:
        names: present, since some tensors are needed only beside others.

    Returns:
        name -> tensor, name -> the rule that an illegal but known name breaks.
    """
    return SUBJECTS[header.rule].legal(header, convention, names)


def is_cotangent(name: str) -> bool:
    """Whether an input is a cotangent of a result."""
    own = of_call(bare(name))
    return own in COTANGENTS or name in TURNED_BARS or name.startswith(STATE_BAR)


def token_count(inputs: Mapping[str, Any]) -> int:
    """Tokens of a case by its inputs; 0 where it has none."""
    names = ("in/q", "in/k", "in/x")
    return next((int(inputs[name].shape[-2]) for name in names if name in inputs), 0)


def weighed_result(cotangent: str) -> str:
    """The result a cotangent weighs: `in/M_bar` -> `out/M`, also with `level1/` before M."""
    return "out/" + cotangent.removeprefix("in/").replace("_bar", "", 1)


def seeds(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The cotangent of each result that has one; a loss that needs none has 1 (CASE-14, LAYER-8)."""
    subject = SUBJECTS[header.rule]
    others = subject.weighs(header)
    bars = {
        result: value
        for name, value in inputs.items()
        if is_cotangent(name)
        for result in others.get(name, (weighed_result(name),))
    }
    if loss := subject.loss(header):
        floating = (value for value in inputs.values() if value.dtype.kind not in "biu")
        bars[loss] = ops.ones_like(next(floating), shape=())
    return bars


def main_cotangent(header: Any) -> str:
    """The cotangent without which there are no gradients: that of the main result."""
    main = main_result(header)
    for name, results in SUBJECTS[header.rule].weighs(header).items():
        if main in results:
            return name
    return f"in/{main.removeprefix('out/')}_bar"


def main_result(header: Any) -> str:
    """The result whose absence is a verdict."""
    return SUBJECTS[header.rule].result(header)


__all__ = [
    "COTANGENTS",
    "LEVEL",
    "RESULTS",
    "Tensor",
    "bare",
    "is_cotangent",
    "legal",
    "main_cotangent",
    "main_result",
    "seeds",
    "token_count",
    "weighed_result",
]
