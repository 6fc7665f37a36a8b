"""Needles that a trained memory finds beyond its attention: python -m benchmarks.needle [CASE ...]

Texts of the standard library state one fact and end with the question for it, at distances from
nothing to beyond what windows lead back to. Models learn them, with and without memory, and are
then asked for needles in text that was held out (EVAL-9 to EVAL-11). Runs are added to
benchmarks/needle.json; the page docs/pages/text.md makes a table of them.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas_ref.train import run as runs
from atlas_ref.train import text
from atlas_ref.train.probes import needle
from atlas_ref.train.settings import Model, Optimiser, Settings, Text
from atlas_ref.train.trained import load
from atlas_ref.train.use import held
from benchmarks import kept
from benchmarks import text as on_text

ROWS, TOKENS, STEPS = 8, 192, 3000
#: Texts to learn from, the lengths of hay before and behind a needle, and digits of a number.
TEXTS, HAY, DIGITS = 28_000, (0, 0, 4, 8, 16, 32, 64, 96), 2
#: Bytes of the library that hay is cut from.
LIBRARY = 4_000_000

MAG = Model(model="mag", dim=64, layers=2, heads=2, window=16)
CASES: dict[str, Model] = {"MAG": MAG, "attention alone": MAG.replaced(memory=False)}
ASKED = needle.Settings(lengths=(64, 96, 128), samples=32, digits=DIGITS)
KEPT = kept.Kept(Path(__file__).with_suffix(".json"), list(CASES), Settings)


def main(
    cases: Annotated[
        list[str] | None, typer.Argument(help=f"{'; '.join(CASES)}; both unless given")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="models of each case")] = 1,
    anew: Annotated[bool, typer.Option("--anew", help="Measure again what is there.")] = False,
) -> None:
    """Train a model of each case, and keep what it finds."""
    KEPT.fill(cases, seeds=seeds, anew=anew, settings=_told, work=_found, said=_said)


def _said(run: kept.Run) -> str:
    beyond = [cell["exact"] for cell in run["cells"] if cell["beyond"]]
    share = sum(beyond) / len(beyond)
    return f"{share:.3f} of the needles beyond attention, {run['seconds']:.0f} s"


def settings_of(name: str, folder: Path, seed: int) -> Settings:
    """The run of a case over the texts of a folder."""
    return Settings(
        model=CASES[name],
        text=Text(paths=(str(folder),)),
        optimiser=Optimiser(name="muon", rate=2e-3, hidden_rate=0.01),
        rows=ROWS,
        tokens=TOKENS,
        steps=STEPS,
        seed=seed,
        evaluate_every=0,
        save_every=STEPS,
    )


def texts(count: int, seed: int = 0) -> Iterator[bytes]:
    """Hay, a needle, hay and its question with the answer."""
    files = text.files_of(
        on_text.library().paths, only=on_text.library().only, skip=on_text.library().skip
    )
    library = b"".join(each.text for each in text.documents(files, limit=LIBRARY))
    draw = random.Random(seed)

    def hay() -> bytes:
        length = draw.choice(HAY)
        first = draw.randrange(len(library) - length)
        return library[first : first + length]

    for _ in range(count):
        name = draw.choice(needle.NAMES)
        digits = "".join(draw.choice("0123456789") for _ in range(DIGITS))
        fact = needle.QUESTION.format(name=name) + needle.ANSWER.format(digits=digits)
        yield b"".join([hay(), (fact + needle.END).encode(), hay(), fact.encode()])


def _told(name: str, seed: int) -> dict[str, Any]:
    """Settings as they are kept: with words in place of a path."""
    found: dict[str, Any] = settings_of(name, Path("texts"), seed).model_dump(mode="json")
    words = f"{TEXTS} texts from {on_text.SOURCE}"
    return {
        **found,
        "text": found["text"] | {"paths": [words]},
        "asked": ASKED.model_dump(mode="json"),
    }


def _found(name: str, seed: int) -> dict[str, Any]:
    """What a model finds in what its run held out."""
    with tempfile.TemporaryDirectory(prefix="atlas-ref-") as place:
        folder = Path(place, "texts")
        folder.mkdir()
        for i, each in enumerate(texts(TEXTS)):
            (folder / f"{i:05}.txt").write_bytes(each)
        out, begun = Path(place, "run"), time.process_time()
        runs.run(out, *runs.prepare(out, settings_of(name, folder, seed)))
        seconds = time.process_time() - begun
        model = load(out)
        cells = needle.measure(model, held.corpus(model), ASKED)
    return {"cells": [cell._asdict() for cell in cells], "seconds": seconds}


if __name__ == "__main__":
    typer.run(main)
