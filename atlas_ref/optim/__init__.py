"""Outer-loop optimisers: what moves parameters after a backward. `OPTIMISERS` is their only list.

An optimiser is a module with `Config`, `init` and `update`, pure functions over frozen data
(OPTIM-1). `groups` gives each parameter its own.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.optim import adamuon, adamw, flat, m3, muon, sgd

#: Name -> module; the name is the kind of its settings.
OPTIMISERS: dict[str, Any] = {
    "sgd": sgd,
    "adamw": adamw,
    "adamw_flat": flat,
    "muon": muon,
    "adamuon": adamuon,
    "m3": m3,
}


def module_of(config: Any) -> Any:
    """The module whose settings these are.

    Raises:
        ValueError: settings of no optimiser.
    """
    for module in OPTIMISERS.values():
        if type(config) is module.Config:
            return module
    raise ValueError(
        f"config: {type(config).__qualname__} is no optimiser's, they are {', '.join(OPTIMISERS)}"
    )
