"""Outer-loop optimisers: what moves parameters after a backward. `OPTIMISERS` is their only list.

An optimiser is a module with `Config`, `init` and `update`, pure functions over frozen data
(OPTIM-1). `groups` gives each parameter its own. Modules are imported at their first use, so that
the help of a command names them all and loads none.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple


class Optimiser(NamedTuple):
    """An optimiser and its facts.

    Attributes:
        file: of this folder, without its ending.
        matrices: whether a run gives it hidden matrices alone, and AdamW the rest (OPTIM-32).
        run: settings of a run beside rate, schedule and decay; None where no run names it (TRAIN-9).
    """

    file: str
    matrices: bool = False
    run: Mapping[str, Any] | None = MappingProxyType({})

    @property
    def module(self) -> Any:
        """Its module, with `Config`, `init` and `update`."""
        return import_module(f"{__name__}.{self.file}")


#: Name -> optimiser; the name is the kind of its settings.
OPTIMISERS: dict[str, Optimiser] = {
    "sgd": Optimiser("sgd", run={"decoupled": True}),
    "adamw": Optimiser("adamw"),
    "adamw_flat": Optimiser("flat", run=None),
    "muon": Optimiser("muon", matrices=True),
    "adamuon": Optimiser("adamuon", matrices=True),
    "m3": Optimiser("m3", matrices=True),
}

#: What a run takes where none is named, and what moves the parameters that others leave.
DEFAULT = "adamw"

#: Names that a run may give, the default first.
OF_RUNS = (
    DEFAULT,
    *(name for name, each in OPTIMISERS.items() if each.run is not None and name != DEFAULT),
)

#: Those of a run that take hidden matrices alone.
OF_MATRICES = tuple(name for name in OF_RUNS if OPTIMISERS[name].matrices)


def module_of(config: Any) -> Any:
    """The module whose settings these are.

    Raises:
        ValueError: settings of no optimiser.
    """
    for each in OPTIMISERS.values():
        if type(config) is each.module.Config:
            return each.module
    raise ValueError(
        f"config: {type(config).__qualname__} is no optimiser's, they are {', '.join(OPTIMISERS)}"
    )
