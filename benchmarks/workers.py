"""What a step of training costs over workers: python -m benchmarks.workers [--workers N] [--batches A]

A line for each size of a model: the least seconds of a step in one process on one thread, over one
worker and over all of them, and of what is moved alone, without a computation (TRAIN-20).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from atlas_ref.backend import threads
from atlas_ref.train import data, loop, workers
from atlas_ref.train.settings import Model, Settings, Text
from tape.nested import flatten

#: Lengths of a token of the models.
DIMS = (64, 128, 256)


def main(
    count: Annotated[int, typer.Option("--workers", min=1)] = 2,
    batches: Annotated[int, typer.Option("--batches", min=1)] = 8,
    steps: Annotated[int, typer.Option("--steps", min=1)] = 5,
) -> None:
    """Print a table."""
    print(f"batches of a step: {batches}, workers: {count}, least of {steps} steps")
    print(f"{'numbers':>12} {'alone':>9} {'1 worker':>9} {f'{count} workers':>10} {'moved':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for own in (_task(Path(folder), dim, batches) for dim in DIMS):
            numbers = sum(x.size for x in flatten(loop.start(own).params, "params")[0])
            with threads.alone():
                alone = _least(own, None, steps)
            one, _ = _over(own, 1, steps)
            all_of_them, moved = _over(own, count, steps)
            print(
                f"{numbers:12,} {alone:7.2f} s {one:7.2f} s {all_of_them:8.2f} s {moved:7.3f} s",
                flush=True,
            )


def _task(folder: Path, dim: int, batches: int) -> loop.Task:
    """Steps of MAG on random bytes."""
    text = folder / "bytes.txt"
    text.write_bytes(np.random.default_rng(0).integers(32, 127, 2**16, np.uint8).tobytes())
    asked = Settings(
        model=Model(dim=dim), text=Text(paths=(str(text),)), accumulation=batches, rows=4
    )
    return loop.task(asked, data.load(asked))


def _over(own: loop.Task, count: int, steps: int) -> tuple[float, float]:
    """Seconds of a step over so many workers, and of what is moved."""
    with workers.opened(own.settings, count=count) as elsewhere:
        assert elsewhere is not None
        step = _least(own, elsewhere, steps)
        params, client = loop.start(own).params, elsewhere.client

        def move() -> None:
            sent = client.submit(workers.held, params, pure=False)
            for each in [
                client.submit(_gradient, sent, pure=False) for _ in range(own.settings.accumulation)
            ]:
                each.result()

        return step, min(_timed(move) for _ in range(2 * steps))


def _gradient(params: Any) -> list[Any]:
    """Arrays as large as a gradient."""
    return [x + np.float32(1) for x in flatten(params, "params")[0]]


def _least(own: loop.Task, elsewhere: loop.Elsewhere | None, steps: int) -> float:
    """Seconds of the fastest of some steps, after one that is not counted."""
    return min(list(_seconds(own, elsewhere, steps + 1))[1:])


def _seconds(own: loop.Task, elsewhere: loop.Elsewhere | None, steps: int) -> Iterator[float]:
    moment = loop.start(own)
    for _ in range(steps):
        before = time.perf_counter()
        moment, _ = loop.step(own, moment, elsewhere)
        yield time.perf_counter() - before


def _timed(work: Callable[[], None]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


if __name__ == "__main__":
    typer.run(main)
