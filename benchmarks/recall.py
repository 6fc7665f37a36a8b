"""How soon memories learn associative recall: python -m benchmarks.recall [CASE ...] [--seeds N] [--anew]

Runs of the probe (PROBE-16 to PROBE-22) are added to benchmarks/recall.json, with the load of the
machine; those that it has already under the same settings stay, so a stop loses one run. The page
docs/pages/associative_recall.md makes its tables of that file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from atlas_ref.storage.files import write_bytes
from atlas_ref.train.probes.lessons import learn
from atlas_ref.train.probes.recall import Settings
from benchmarks.measure import machine

FILE = Path(__file__).with_suffix(".json")

#: Name of a case -> its settings: the rules, and the twin that fails; and where the rules part, since
#: a matrix of 64 columns holds 64 pairs exactly, but not as a sum.
CASES: dict[str, Settings] = {
    **{name: Settings(memory=name) for name in ("delta", "gated_delta", "titans_lmm", "hebbian")},
    "delta without convolution": Settings(memory="delta", kernel=1),
    **{
        f"{name} to 64 pairs": Settings(memory=name, pairs=(4, 8, 16, 32, 64))
        for name in ("delta", "hebbian")
    },
}


def main(
    cases: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join(CASES)}; all of them unless given")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="models of each case")] = 3,
    anew: Annotated[bool, typer.Option("--anew", help="Measure again what is there.")] = False,
) -> None:
    """Train the models of each case through the lessons, and keep what the lessons tell."""
    for name in cases or []:
        if name not in CASES:
            raise typer.BadParameter(f"{name} is none of {', '.join(CASES)}")
    for name in cases or CASES:
        settings = CASES[name]
        todo = [seed for seed in range(seeds) if anew or not _is_kept(name, settings, seed)]
        if todo:  # what is loaded at a process's first steps is no part of a run
            learn(settings.replaced(steps=len(settings.pairs), every=1, enough=1e-9))
        for seed in todo:
            run = _run(name, settings, seed)
            _keep(run)
            last = run["lessons"][-1]
            print(
                f"{name}, seed {seed}: {last['pairs']} pairs, step {last['steps']}, "
                f"{last['accuracy']:.3f}, {last['seconds']:.0f} s",
                flush=True,
            )


def _run(name: str, settings: Settings, seed: int) -> dict[str, Any]:
    """One run, and under what conditions."""
    before = machine()
    lessons = [lesson._asdict() for lesson in learn(settings, seed)]
    load = [before.pop("load"), round(os.getloadavg()[0], 2)]
    return {
        "case": name,
        "seed": seed,
        "settings": settings.model_dump(mode="json"),
        "lessons": lessons,
        "load": load,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "machine": before,
    }


def kept() -> list[dict[str, Any]]:
    """The runs of the file, by case and seed."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else []
    return found


def _is_kept(name: str, settings: Settings, seed: int) -> bool:
    own = settings.model_dump(mode="json")
    return any((r["case"], r["seed"], r["settings"]) == (name, seed, own) for r in kept())


def _keep(run: dict[str, Any]) -> None:
    """Put a run in the place of the one of its case and seed, where there is one."""
    key, order = (run["case"], run["seed"]), list(CASES)
    runs = [each for each in kept() if (each["case"], each["seed"]) != key] + [run]
    runs = [each for each in runs if each["case"] in CASES]
    runs.sort(key=lambda each: (order.index(each["case"]), each["seed"]))
    text = json.dumps(runs, indent=1, default=_plain) + "\n"
    write_bytes(FILE, text.encode())


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain value")


if __name__ == "__main__":
    typer.run(main)
