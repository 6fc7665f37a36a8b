"""What memories are worth on text: python -m benchmarks.text [CASE ...] [--seeds N] [--anew]

Models learn the standard library's sources as bytes; whole files are held out by a seed. Each case
sees as many tokens, and is then evaluated on the same held-out rows (EVAL-2): as it is, with its
memories never written, and without them (EVAL-4). Beside them are byte n-grams, counted in the very
rows that the models saw. Runs are added to benchmarks/text.json; those that it has already under
the same settings stay. The page docs/pages/text.md makes its tables of that file.
"""

from __future__ import annotations

import platform
import resource
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from atlas_ref.train import data, sampler
from atlas_ref.train import run as runs
from atlas_ref.train.settings import Model, Optimiser, Settings, Text
from atlas_ref.train.trained import load
from atlas_ref.train.use import held, measure
from benchmarks import kept, ngrams

#: What is learnt from, in words: where it lies is a matter of the machine.
SOURCE = f"the standard library of Python {platform.python_version()}"
ROWS, TOKENS, LONG, STEPS = 4, 256, 1024, 2540
#: Batches of the held-out rows, of `ROWS * TOKENS` tokens each.
HELD = 128
#: Orders of the n-grams.
ORDERS = 6
#: Steps after which a step is one of many, for its page faults.
WARM = 20

LMM = Model(model="lmm", kernel=1)
MAG = Model(model="mag")
ALONE = MAG.replaced(memory=False)

#: Name of a case -> its model and the tokens of a row. MAG's memory has convolutions of four taps.
CASES: dict[str, tuple[Model, int]] = {
    "LMM": (LMM, TOKENS),
    "MAG": (MAG, TOKENS),
    "attention alone": (ALONE, TOKENS),
    "MAG, long rows": (MAG, LONG),
    "attention alone, long rows": (ALONE, LONG),
}
NGRAMS = "n-grams"
KEPT = kept.Kept(Path(__file__).with_suffix(".json"), [*CASES, NGRAMS], Settings)


def main(
    cases: Annotated[
        list[str] | None,
        typer.Argument(help=f"{'; '.join([*CASES, NGRAMS], Settings)}; all of them unless given"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="models of each case")] = 3,
    anew: Annotated[bool, typer.Option("--anew", help="Measure again what is there.")] = False,
) -> None:
    """Train the models of each case, and keep what held-out text costs them."""
    KEPT.fill(cases, seeds=seeds, anew=anew, settings=_told, work=_found, said=_said)


def _told(name: str, seed: int) -> dict[str, Any]:
    return without_path(settings_of(name, seed))


def _found(name: str, seed: int) -> dict[str, Any]:
    return (_counted if name == NGRAMS else _trained)(settings_of(name, seed))


def settings_of(name: str, seed: int) -> Settings:
    """The run of a case; n-grams count in the rows of MAG."""
    model, tokens = CASES["MAG" if name == NGRAMS else name]
    return Settings(
        model=model,
        text=library(),
        optimiser=Optimiser(name="muon", rate=2e-3, hidden_rate=0.01),
        rows=ROWS * TOKENS // tokens,
        tokens=tokens,
        steps=STEPS,
        seed=seed,
        evaluate_every=0,
        save_every=STEPS,
    )


def library() -> Text:
    """The text that models learn."""
    return Text(
        paths=(sysconfig.get_path("stdlib"),), only=("*.py",), skip=("site-packages", "test")
    )


def without_path(settings: Settings) -> dict[str, Any]:
    """Settings as they are kept: with words in place of a path."""
    found: dict[str, Any] = settings.model_dump(mode="json")
    return found | {"text": found["text"] | {"paths": [SOURCE]}}


def _trained(settings: Settings) -> dict[str, Any]:
    """A run, its speed, and what held-out text costs its model."""
    with tempfile.TemporaryDirectory(prefix="atlas-ref-") as name:
        folder = Path(name, "run")
        own, moment = runs.prepare(folder, settings)
        faults: list[int] = []

        def told(line: Any) -> None:
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

        begun = time.process_time()
        runs.run(folder, own, moment, runs.Watcher(told))
        seconds = time.process_time() - begun
        model = load(folder)
        text = held.corpus(model)
        asked = measure.Settings(
            rows=settings.rows,
            tokens=settings.tokens,
            batches=HELD,
            without=("writes", "memory") if settings.model.memory else (),
        )
        found = measure.evaluate(model, text, asked)
    count = settings.steps * settings.rows * settings.tokens
    each = np.diff(faults[WARM:])
    return {
        "text": own.data.about,
        "tokens": count,
        "bits": found.loss.bits_per_byte,
        **{
            f"bits without {each.what}": None if each.loss is None else each.loss.bits_per_byte
            for each in found.without
        },
        "held out": found.loss.tokens,
        "seconds": seconds,
        "tokens a second": count / seconds,
        "page faults a step": [int(np.median(each)), int(each.max())],
    }


def _counted(settings: Settings) -> dict[str, Any]:
    """n-grams of all orders, on the rows that a model is asked for.

    Counted in the rows that the model saw, and in all of the text that these are drawn from.
    """
    begun = time.process_time()
    text = data.load(settings)
    assert isinstance(text.sampler, sampler.Mixture)
    assert text.held is not None
    (source,) = text.sampler.sources
    assert isinstance(source, sampler.Corpus)
    place, seen = text.sampler.start(), []
    for _ in range(settings.steps):
        batch, place = text.sampler.batch(place)
        seen.append(batch.ids)
    asked = sampler.spread(text.held, rows=settings.rows, length=settings.tokens + 1, batches=HELD)
    rows = np.concatenate([batch.ids for batch in asked])
    found, whole = (
        [float(each) for each in ngrams.bits(ngrams.counted(some, ORDERS), rows)]
        for some in (np.concatenate(seen), source.ids[None])
    )
    return {
        "text": text.about,
        "tokens": settings.steps * settings.rows * settings.tokens,
        "bits of orders": found,
        "bits of orders, all text": whole,
        "held out": int(rows[:, 1:].size),
        "seconds": time.process_time() - begun,
    }


def _said(found: kept.Run) -> str:
    words = [
        f"{name} {found[name]:.3f}"
        for name in ("bits", "bits without writes", "bits without memory")
        if found.get(name) is not None
    ]
    if "bits of orders" in found:
        words = [
            f"{name} " + ", ".join(f"{each:.3f}" for each in found[name])
            for name in ("bits of orders", "bits of orders, all text")
        ]
    if "page faults a step" in found:
        words.append(f"page faults a step {found['page faults a step']}")
    return ", ".join([*words, f"{found['seconds']:.0f} s"])


if __name__ == "__main__":
    typer.run(main)
