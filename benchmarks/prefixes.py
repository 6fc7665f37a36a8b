"""Reported losses beside those of prefixes: python -m benchmarks.prefixes [CASE ...] [--seeds N] [--anew]

    reported = mean over t of -log p(x_t | call),    of prefixes = mean over t of -log p(x_t | x_0 .. x_{t-1})

A call has all tokens of a row, and a prefix lacks the future. A model that is causal (MODEL-4) has
the same loss twice; one that is not learns to read what it is asked for, and its reported loss says
nothing. Each kind of model and preset learns the standard library's sources for a few steps. Runs
are added to benchmarks/prefixes.json, and the page docs/pages/text.md makes a table of them.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from atlas_ref.layers import shared_memory
from atlas_ref.models import language_model
from atlas_ref.train import models, sampler
from atlas_ref.train import run as runs
from atlas_ref.train.settings import Model, Optimiser, Settings
from atlas_ref.train.trained import Trained, load
from atlas_ref.train.use import held, measure
from benchmarks import kept, text

ROWS, TOKENS, STEPS = 8, 64, 200
SIZES: dict[str, Any] = {"dim": 64, "layers": 2, "heads": 2, "window": 16}

#: Name of a case, "model, preset" -> the model.
CASES: dict[str, Model] = {
    f"{kind}, {preset}": Model.model_validate(SIZES | {"model": kind, "preset": preset})
    for kind, presets in {
        **dict.fromkeys(("lmm", "omega", "mag", "mal", "mac"), models.PRESETS),
        "atlas-mag": shared_memory.PRESETS,
    }.items()
    for preset in presets
}
KEPT = kept.Kept(Path(__file__).with_suffix(".json"), list(CASES), Settings)


def main(
    cases: Annotated[
        list[str] | None, typer.Argument(help=f"{'; '.join(CASES)}; all of them unless given")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="models of each case")] = 1,
    anew: Annotated[bool, typer.Option("--anew", help="Measure again what is there.")] = False,
) -> None:
    """Train a model of each case for a few steps, and keep its two losses."""
    KEPT.fill(cases, seeds=seeds, anew=anew, settings=_told, work=_measured, said=_said)


def _told(name: str, seed: int) -> dict[str, Any]:
    return text.without_path(_settings(name, seed))


def _said(run: kept.Run) -> str:
    leaks = "" if run["causal"] else ", not causal"
    return f"reported {run['reported']:.3f}, of prefixes {run['prefixes']:.3f}{leaks}"


def _settings(name: str, seed: int) -> Settings:
    return Settings(
        model=CASES[name],
        text=text.library(),
        optimiser=Optimiser(rate=3e-3),
        rows=ROWS,
        tokens=TOKENS,
        steps=STEPS,
        seed=seed,
        documents=False,
        evaluate_every=0,
        save_every=STEPS,
    )


def _measured(name: str, seed: int) -> dict[str, Any]:
    begun = time.process_time()
    with tempfile.TemporaryDirectory(prefix="atlas-ref-") as place:
        folder = Path(place, "run")
        runs.run(folder, *runs.prepare(folder, _settings(name, seed)))
        model = load(folder)
        corpus = held.corpus(model)
    asked = measure.Settings(rows=ROWS, tokens=TOKENS, batches=1)
    reported = measure.evaluate(model, corpus, asked).loss
    (batch,) = sampler.spread(corpus, rows=ROWS, length=TOKENS + 1, batches=1)
    return {
        "causal": model.config.causal,
        "reported": reported.loss,
        "prefixes": of_prefixes(model, batch.ids),
        "tokens": reported.tokens,
        "seconds": time.process_time() - begun,
    }


def of_prefixes(own: Trained, ids: Any) -> float:
    """The mean loss of ids (B, T + 1) in nats, without a future.

    Each is predicted in a call of its own that ends before it, each row alone.
    """
    found = [_surprise(own, row[:t], row[t]) for row in ids for t in range(1, len(row))]
    return float(np.mean(found))


def _surprise(own: Trained, before: Any, next_one: Any) -> float:
    begun = language_model.start(own.config, 1, dtype=np.float32, initial=own.initial)
    _, logits = language_model.apply(own.config, own.params, begun, before[None])
    z = np.asarray(logits, np.float64)[0, -1]
    return float(np.log(np.exp(z - z.max()).sum()) + z.max() - z[next_one])


if __name__ == "__main__":
    typer.run(main)
