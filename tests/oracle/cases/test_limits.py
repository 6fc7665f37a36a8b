"""Sizes of a stranger's file, which are refused before any work is done for them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.vectors.sets.encode import tensor_bytes
from tests.support.casefiles import some

#: Seconds of this process for a refusal, whatever else runs on the machine.
SOON = 1.0

BLOCK: Any = {"schema": 1, "rule": "cms", "level": "token"}
X = {"in/x": np.ones((1, 2, 2))}


def levels(count: int) -> tuple[Any, Any]:
    schedule = {"periods": [1] * count}
    return {**BLOCK, "levels": [{"rule": "delta"}] * count, "schedule": schedule}, X


def omega(**keys: Any) -> tuple[Any, Any]:
    header, tensors = some("omega")
    tensors = {name: value for name, value in tensors.items() if "window" not in name}
    return {**header, **keys}, tensors


def scheduled(count: int) -> tuple[Any, Any]:
    return omega(schedule={"periods": [1] * count, "level": 0})


def many(count: int) -> tuple[Any, Any]:
    header, tensors = omega()
    return header, {**tensors, **{f"trace/{i}": np.zeros(()) for i in range(count)}}


TOO_LARGE = {
    "levels": (lambda: levels(20_000), "schedule.periods: must have at most 256 entries"),
    "more levels": (lambda: levels(257), "schedule.periods: must have at most 256 entries"),
    "levels alone": (
        lambda: ({**levels(257)[0], "schedule": {"periods": [1]}}, X),
        "levels: must have at most 256 entries",
    ),
    "periods": (lambda: scheduled(10**6), "characters, at most 1000000 are read"),
    "fewer periods": (lambda: scheduled(300_000), "periods: must have at most 256 entries"),
    "tensors": (lambda: many(100_000), "bytes, at most 5000000 are read"),
    "fewer tensors": (lambda: many(20_000), "tensors, at most 20000 are read"),
    "header": (lambda: omega(note="x" * 98_000_000), "bytes, at most 5000000 are read"),
    "note": (lambda: omega(note="x" * 1_000_001), "characters, at most 1000000 are read"),
}


@pytest.mark.clause("CASE-1", "CASE-2", "CASE-16")
@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_size_beyond_the_limits_is_refused_at_once(name: str, tmp_path: Path) -> None:
    made, said = TOO_LARGE[name]
    path = tmp_path / "case.safetensors"
    path.write_bytes(tensor_bytes(*made()))
    start = time.process_time()
    with pytest.raises(atlas_ref.CaseError) as refusal:
        atlas_ref.load(path)
    assert time.process_time() - start < SOON
    assert str(refusal.value).startswith(f"{path}: ")
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.clause("CASE-1", "CASE-2")
@pytest.mark.parametrize(
    "made",
    [
        lambda: omega(window=10**7),
        lambda: scheduled(256),
        lambda: many(20_000 - 10),
        lambda: omega(note="x" * 900_000),
    ],
)
def test_a_size_within_the_limits_is_read(made: Any, tmp_path: Path) -> None:
    path = tmp_path / "case.safetensors"
    path.write_bytes(tensor_bytes(*made()))
    header, _ = made()
    assert atlas_ref.load(path).header.plain() == json.loads(json.dumps(header))


@pytest.mark.clause("CASE-2")
@pytest.mark.parametrize("grad", [False, True])
def test_a_window_beyond_the_limit_is_read_and_not_evaluated(grad: bool) -> None:
    header, tensors = omega(window=10**7)
    case = atlas_ref.make(header, tensors)
    start = time.process_time()
    with pytest.raises(atlas_ref.CaseError) as refusal:
        atlas_ref.evaluate(case, grad=grad)
    assert time.process_time() - start < SOON
    said = "case: window: must be at most 1000000 to be evaluated, found 10000000"
    assert str(refusal.value) == said


@pytest.mark.clause("CASE-2")
@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(rule="omega", window=10**7), "window: must be at most 1000000"),
        (Request(rule="omega", periods=(1,) * 10**6), "must have at most 256 entries|characters"),
        (
            Request(rule="cms", levels=("delta",) * 20_000, periods=(1,) * 20_000),
            "must have at most 256 entries",
        ),
    ],
)
def test_no_case_beyond_the_limits_is_made(request_: Request, said: str) -> None:
    start = time.process_time()
    with pytest.raises(atlas_ref.CaseError, match=said):
        new(request_)
    assert time.process_time() - start < SOON
