"""Runs of a few steps, made once, for the tests of evaluation and generation."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from atlas_ref.train.settings import Model, Optimiser
from tests.support.training import TINY, library, settings, trained

#: Kinds of models beside those of `TINY`.
KINDS: dict[str, Model] = {
    "lmm": TINY,
    "mag": TINY.replaced(model="mag", window=4),
    "mac": TINY.replaced(model="mac", segment=4),
    "tnt": TINY.replaced(tnt_global_span=8, tnt_local_spans=(2, 3), tnt_shards=(4, 6)),
    "none": TINY.replaced(model="mag", window=4, memory=False),
    "atlas-mag": Model(model="atlas-mag", dim=8, layers=1, heads=2, expansion=1, window=4),
}


@cache
def _made(kind: str) -> tuple[Path, Any]:
    folder = Path(tempfile.mkdtemp(prefix="atlas-ref-trained-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    few = {"steps": 2, "evaluate_every": 2, "save_every": 1, "optimiser": Optimiser(rate=0.01)}
    asked = settings(library(folder), model=KINDS[kind], **few)
    return folder, trained(folder / "out", asked)


def ended(kind: str = "lmm") -> Any:
    """How the run of a kind ended."""
    return _made(kind)[1]


def folder(kind: str = "lmm") -> Path:
    """The folder of a run of two steps; it is read and never written."""
    return _made(kind)[0] / "out"


def text(kind: str = "lmm") -> Path:
    """Its text."""
    return _made(kind)[0] / "text"


def model(kind: str = "lmm") -> Path:
    """The model that it ended with."""
    return folder(kind) / "model.safetensors"


def copied(place: Path, kind: str = "lmm") -> Path:
    """A copy of the folder of a run, which may be written."""
    return Path(shutil.copytree(folder(kind), place))
