"""How soon memories learn associative recall: python -m benchmarks.recall [CASE ...] [--seeds N] [--anew]

Runs of the probe (PROBE-16 to PROBE-22) are added to benchmarks/recall.json, with the load of the
machine; those that it has already under the same settings stay, so a stop loses one run. The page
docs/pages/associative_recall.md makes its tables of that file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atlas_ref.train.probes.lessons import learn
from atlas_ref.train.probes.recall import Settings
from benchmarks import kept

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
KEPT = kept.Kept(Path(__file__).with_suffix(".json"), list(CASES), Settings)


def main(
    cases: Annotated[
        list[str] | None, typer.Argument(help=f"{'; '.join(CASES)}; all of them unless given")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="models of each case")] = 3,
    anew: Annotated[bool, typer.Option("--anew", help="Measure again what is there.")] = False,
) -> None:
    """Train the models of each case through the lessons, and keep what the lessons tell."""
    KEPT.fill(cases, seeds=seeds, anew=anew, settings=_told, work=_lessons, said=_said)


def _told(name: str, seed: int) -> Any:
    return CASES[name].model_dump(mode="json")


def _lessons(name: str, seed: int) -> dict[str, Any]:
    settings = CASES[name]
    # what is loaded at a process's first steps is no part of a run
    learn(settings.replaced(steps=len(settings.pairs), every=1, enough=1e-9))
    return {"lessons": [lesson._asdict() for lesson in learn(settings, seed)]}


def _said(run: kept.Run) -> str:
    last = run["lessons"][-1]
    return (
        f"{last['pairs']} pairs, step {last['steps']}, {last['accuracy']:.3f}, "
        f"{last['seconds']:.0f} s"
    )


if __name__ == "__main__":
    typer.run(main)
