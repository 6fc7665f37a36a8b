"""Runs that take minutes, kept in a JSON file of benchmarks/ one by one, so a stop loses one run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer
from pydantic_core import to_json

from atlas_ref.storage.files import write_bytes
from atlas_ref.types import Frozen
from benchmarks.measure import machine

#: A run: its "case", "seed" and "settings", what it found, and under what conditions.
Run = dict[str, Any]


class Kept(NamedTuple):
    """The runs of a file.

    Attributes:
        file: it need not exist.
        order: names of the cases, in the order of the file; runs of other cases are dropped.
        type: of the settings, whose defaults stand for a field that a run is older than.
    """

    file: Path
    order: Sequence[str]
    type: type[Frozen]

    def runs(self) -> list[Run]:
        """All of them, by case and seed."""
        found: list[Run] = json.loads(self.file.read_text()) if self.file.exists() else []
        return [run | {"settings": completed(run["settings"], self.type)} for run in found]

    def has(self, case: str, seed: int, settings: Any) -> bool:
        """Whether a run of these settings is there."""
        return any(
            (run["case"], run["seed"], run["settings"]) == (case, seed, settings)
            for run in self.runs()
        )

    def fill(
        self,
        cases: Iterable[str] | None,
        *,
        seeds: int,
        anew: bool,
        settings: Callable[[str, int], Any],
        work: Callable[[str, int], dict[str, Any]],
        said: Callable[[Run], str],
    ) -> None:
        """Make the runs that are not there yet, keep each, and print what it found.

        Args:
            cases: some of `order`; None for all.
            anew: make those that are there again.
            settings: of a case and a seed, as they are kept.
            work: what a run of a case and a seed finds.
            said: a run, in words.
        """
        for name in cases or []:
            if name not in self.order:
                raise typer.BadParameter(f"{name} is none of {'; '.join(self.order)}")
        for name in cases or self.order:
            for seed in range(seeds):
                told = settings(name, seed)
                if anew or not self.has(name, seed, told):
                    found = run(name, seed, told, work)
                    self.keep(found)
                    print(f"{name}, seed {seed}: {said(found)}", flush=True)

    def keep(self, run: Run) -> None:
        """Put a run in the place of the one of its case and seed, where there is one."""
        key = (run["case"], run["seed"])
        found = [each for each in self.runs() if (each["case"], each["seed"]) != key] + [run]
        found = [each for each in found if each["case"] in self.order]
        found.sort(key=lambda each: (self.order.index(each["case"]), each["seed"]))
        text = json.dumps(found, indent=1, default=_plain) + "\n"
        write_bytes(self.file, text.encode())


def completed(settings: dict[str, Any], of: type[Frozen]) -> dict[str, Any]:
    """Settings as kept, and the default of each field that they lack."""
    found = dict(settings)
    for name, field in of.model_fields.items():
        if name not in found:
            found[name] = json.loads(to_json(field.get_default(call_default_factory=True)))
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Frozen):
            found[name] = completed(found[name], field.annotation)
    return found


def run(case: str, seed: int, settings: Any, work: Callable[[str, int], dict[str, Any]]) -> Run:
    """What work finds, and under what conditions it ran."""
    before = machine()
    found = work(case, seed)
    load = [before.pop("load"), round(os.getloadavg()[0], 2)]
    return {
        "case": case,
        "seed": seed,
        "settings": settings,
        **found,
        "load": load,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "machine": before,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain value")
