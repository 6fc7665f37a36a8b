"""Cases with results of every kind for tests of reports, and a report of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import atlas_ref
from tests.support.casefiles import RESERVED, some, written

DRAWN = {"tokens": 6, "d_in": 3, "d_out": 2, "heads": 1, "seed": 7}


def write_cases(folder: Path) -> None:
    """Write cases with results: right, wrong from token 2, not a number, unknown rule, and an odd
    name.
    """
    header, tensors = some("delta", **DRAWN)
    results = dict(atlas_ref.evaluate(atlas_ref.make(header, tensors), grad=True).tensors)
    late, hole = results["out/y"].copy(), results["out/M"].copy()
    late[..., 2:, :] = np.round(late[..., 2:, :] * 4) / 4
    hole[0, 1, 1] = np.nan
    folder.mkdir()
    for name, changed in {
        "right": results,
        "late": results | {"out/y": late},
        "hole": results | {"out/M": hole},
        "void <b>&": {"out/y": results["out/y"]},
    }.items():
        written(folder / f"{name}.safetensors", header, tensors | changed)
    (folder / "reserved.safetensors").write_bytes(RESERVED.read_bytes())


def reported(cli: Callable[..., Any], suffix: str, *options: str) -> tuple[Any, str]:
    """The run of check over the folder `cases`, and the text of its report."""
    ran = cli("check", "cases", "--report", f"out{suffix}", "--no-nearest", *options)
    return ran, Path(f"out{suffix}").read_text()
