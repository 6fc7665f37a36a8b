"""Logs of the commands on sets: what they hold is checked key by key, and never published."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.sweep.log import Log
from atlas_ref.vectors.sets import build, encode, matrix, plan, search

pytest.importorskip(
    "flint", reason="python-flint is not installed, and values are certified with it"
)


@pytest.fixture
def one(tmp_path: Path) -> str:
    """A plan of one vector, as a file."""
    found = plan.load("v1")
    kept = [each for each in found.vectors if each.target == "delta"][:1]
    path = tmp_path / "one.json"
    few = found.replaced(vectors=kept, negative=[], large=[])
    path.write_bytes(encode.json_bytes(few.model_dump(mode="json")))
    return str(path)


def refused(run: Callable[[], Any], log: Path, patch: Callable[[pytest.MonkeyPatch], None]) -> str:
    """What is said of a log whose lines a patched run has written."""
    with pytest.MonkeyPatch.context() as patched:
        patch(patched)
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            run()
    text = log.read_bytes()
    assert text.count(b"\n") > 1
    with pytest.raises(CaseError) as refusal:
        run()
    assert log.read_bytes() == text
    return str(refusal.value).removeprefix(f"{log}: ")


@pytest.mark.clause("VEC-9", "SWEEP-9")
@pytest.mark.parametrize(
    "values",
    [
        None,
        {"out/y": {"shape": [2], "numbers": [1.0]}},
        {"out/y": {"shape": [-1], "numbers": [1.0]}},
        {"out/y": {"shape": [10**9, 10**9], "numbers": []}},
        {"out/y": {"shape": [1], "numbers": ["1.0"]}},
        {"out/y": {"shape": [1], "numbers": ["nan"]}},
        {"out/y": {"numbers": [1.0]}},
        {"out/y": [1.0]},
    ],
)
def test_a_line_with_what_no_make_writes_is_refused(values: Any, one: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = refused(
        lambda: build.build(one, tmp_path / "set", resume=log),
        log,
        lambda patch: patch.setattr(
            build, "_line", lambda result: {} if values is None else {"values": values}
        ),
    )
    assert said == "line 2: not what a set of vectors writes there"


KILLS = {"kills": {"a": True}, "alarms": [], "controls": 3}


@pytest.mark.clause("VEC-18", "SWEEP-9")
@pytest.mark.parametrize(
    "line",
    [
        {},
        {"float32": KILLS},
        {"float32": KILLS, "bfloat16": KILLS | {"kills": {"a": 1.5}}},
        {"float32": KILLS, "bfloat16": KILLS | {"alarms": [3]}},
        {"float32": KILLS, "bfloat16": KILLS | {"controls": "many"}},
    ],
)
def test_a_line_with_what_no_kill_matrix_writes_is_refused(
    line: Any, shipped: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    said = refused(
        lambda: matrix.matrix(shipped, targets=["hebbian"], resume=log),
        log,
        lambda patch: patch.setattr(matrix.Scoring, "perform", lambda *arguments: line),
    )
    assert said == "line 2: not what a kill matrix writes there"


DRAW = {"refused": "", "shows": [], "kills": {"float32": {"a": 4.0}, "bfloat16": {"a": 4.0}}}


@pytest.mark.clause("VEC-7", "SWEEP-9")
@pytest.mark.parametrize(
    "line",
    [
        {},
        DRAW | {"refused": None},
        DRAW | {"shows": "all"},
        DRAW | {"kills": {"float32": {"a": "much"}}},
        DRAW | {"kills": {"float8": {"a": 4.0}}},
    ],
)
def test_a_line_with_what_no_search_writes_is_refused(line: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = refused(
        lambda: search.search("mine", "1.0.0", seeds=1, resume=log),
        log,
        lambda patch: patch.setattr(search.Scoring, "perform", lambda *arguments: line),
    )
    assert said == "line 2: not what a search for vectors writes there"


@pytest.mark.clause("VEC-9", "SWEEP-9")
def test_a_number_changed_in_a_log_is_never_published(one: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    build.build(one, tmp_path / "first", resume=log)
    first, line = log.read_text().splitlines()
    changed = json.loads(line)
    numbers = changed["values"]["out/M"]["numbers"]
    numbers[0] = float(np.nextafter(numbers[0], np.inf))
    log.write_text(f"{first}\n{json.dumps(changed, sort_keys=True)}\n")
    with pytest.raises(CaseError, match=f"^{log}: line 2: was changed after it was written, its"):
        build.build(one, tmp_path / "second", resume=log)
    del changed["sum"]  # with a checksum that is right
    log.write_text(f"{first}\n")
    with Log(log, _plan(first), key=build.LOG, what=build.WHAT) as stream:
        stream.append(changed)
    with pytest.raises(CaseError, match=f"^{log}: certify 0: holds something else than was comp"):
        build.build(one, tmp_path / "third", resume=log)
    assert not (tmp_path / "second").exists()
    assert not (tmp_path / "third").exists()
    # a log of the truth is no reason to trust it either, and harms nothing
    log.write_text(f"{first}\n{line}\n")
    build.build(one, tmp_path / "fourth", resume=log)
    assert log.read_text() == f"{first}\n{line}\n"


def _plan(first: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(first).items() if key != build.LOG}
