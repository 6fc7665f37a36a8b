"""Cases of rule dplr in the words of the loops of `tests/truth/dplr_trace.py`."""

from __future__ import annotations

import types
from typing import Any

from atlas_ref.oracle.dplr import parameters

MEMORIES = ("M0", "M_bar", "S0", "S_bar")


def of_case(case: Any) -> tuple[dict[str, Any], Any]:
    """Inputs by their bare names with memories (d_out, d_in), and settings in force."""
    own = parameters.parsed(case.header)
    x = {name.removeprefix("in/"): value for name, value in case.inputs.items()}
    if own.state_layout == "(d_in, d_out)":
        x |= {name: x[name].swapaxes(-1, -2) for name in MEMORIES if name in x}
    settings = types.SimpleNamespace(
        erase=own.of.erase, order=own.order, steps=own.steps, groups=own.groups,
        scale=1.0 if own.scale == 1 else x["k"].shape[-1] ** -0.5, eps=own.norm_eps,
        k_norm=own.norm("in/k"), q_norm=own.norm("in/q"), by_head=own.of.gated == "heads",
        second=own.of.second, group_order=own.group_order,
    )  # fmt: skip
    return x, settings
