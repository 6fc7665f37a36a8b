"""Small runs for the tests of training: a folder of text, settings, a stand-in of Parquet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from atlas_ref.models import checkpoint as models_of_files
from atlas_ref.storage import files as stored
from atlas_ref.storage import lifetimes
from atlas_ref.train import checkpoint, run
from atlas_ref.train.settings import Model, Optimiser, Settings, Text

#: A model whose step takes milliseconds: delta is its shortest rule.
TINY = Model(model="lmm", rule="delta", dim=8, layers=1, heads=2, kernel=1, expansion=1)


def library(folder: Path, *, files: int = 4, size: int = 400) -> Path:
    """A folder of text of a few words, drawn from a seed."""
    place = folder / "text"
    place.mkdir(parents=True)
    words = ["memory", "learns", "at", "test", "time", "from", "what", "it", "reads"]
    for i in range(files):
        draw = np.random.default_rng(i)
        text = " ".join(draw.choice(words, size=size // 5))
        (place / f"{i}.txt").write_text(text)
    return place


def named(params: Any) -> dict[str, Any]:
    """Parameters by their names in files."""
    leaves = models_of_files.flatten(params, "params")
    return dict(zip(leaves[1], leaves[0], strict=True))


def settings(text: Path, **changes: Any) -> Settings:
    """Settings of a small run on a folder of text."""
    fields: dict[str, Any] = {
        "model": TINY,
        "text": Text(paths=(str(text),), share=0.25),
        "optimiser": Optimiser(rate=0.01, warmup=2),
        "rows": 2,
        "tokens": 16,
        "steps": 6,
        "save_every": 2,
        "evaluate_every": 3,
        "evaluate_batches": 2,
    }
    return Settings(**fields | changes)


def trained(folder: Path, asked: Settings, **how: Any) -> run.Ended:
    """A run from its start, or from its last checkpoint."""
    own, moment = run.prepare(folder, asked, **how)
    return run.run(folder, own, moment)


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Lines of a log without times."""
    found = run.lines(folder / run.LOG)
    return [{key: each[key] for key in each if key != "tokens_per_second"} for each in found]


class FakeParquet:
    """What `pyarrow.parquet.ParquetFile` gives of a file, from lists of texts by its name."""

    def __init__(self, files: dict[str, list[list[str]]]) -> None:
        self.files = files
        self.read: list[tuple[str, int]] = []

    def open(self, path: str) -> Any:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        groups = self.files[path]

        def read_row_group(number: int, columns: list[str]) -> Any:
            assert columns == ["text"]
            self.read.append((path, number))
            column = SimpleNamespace(to_pylist=lambda: list(groups[number]))
            return SimpleNamespace(column=lambda i: column)

        def sizes(number: int) -> Any:
            texts = groups[number]
            return SimpleNamespace(num_rows=len(texts), total_byte_size=sum(map(len, texts)))

        return SimpleNamespace(
            metadata=SimpleNamespace(num_row_groups=len(groups), row_group=sizes),
            schema_arrow=SimpleNamespace(names=["text"]),
            read_row_group=read_row_group,
        )

    def install(self, monkeypatch: Any) -> None:
        """Put it in the place of the library."""
        package, inner = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
        inner.ParquetFile = self.open  # type: ignore[attr-defined]
        package.parquet = inner  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pyarrow", package)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", inner)


def rewritten(path: Path, to: Path, *without: str, **changes: Any) -> None:
    """Write a checkpoint with other words about its run, as a run would have written it.

    Args:
        without: keys that are left out.
    """
    metadata, tensors = stored.read(path)
    header = lifetimes.header_of(metadata, tensors)
    own = header["training"] | changes
    header["training"] = {key: each for key, each in own.items() if key not in without}
    stored.write(to, lifetimes.sealed(header, tensors), tensors)


def of_earlier(path: Path) -> None:
    """Write a checkpoint anew as versions did whose files had an object of training alone."""
    metadata, tensors = stored.read(path)
    header = {"schema": 1} | checkpoint.header_of(metadata, tensors)
    header["digest"] = lifetimes.digest(header, tensors)
    stored.write(path, {checkpoint.EARLIER: json.dumps(header)}, tensors)
