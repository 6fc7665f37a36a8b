"""Other readings of a trace compute other ops, at other tokens, in other shapes; none is a fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case, load
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace

VECTORS = Path(__file__).parents[3] / "vectors"

#: Bytes of the largest file of a case that is replayed under every reading.
LARGEST = 2**14

#: Cases whose readings have gates of another shape, and chunks that begin at other tokens.
OTHERS = ("omega-token-gradient-tall", "tnt-inclusive-gradient-packed-6")


def small(version: str) -> list[Path]:
    """Cases with gradients that a replay under every reading takes little time for."""
    found = sorted((VECTORS / version / "cases").glob("*gradient*.safetensors"))
    return [path for path in found if path.stat().st_size <= LARGEST and "cms" not in path.name]


def moved(case: Case) -> dict[str, np.ndarray]:
    """A trace with adjoints, the last of which is off at one place."""
    whole = {name: np.array(x) for name, x in trace(case, grad=True).items()}
    adjoints = [name for name in whole if name.startswith("trace_grad/") and whole[name].size]
    whole[adjoints[-1]].reshape(-1)[0] += 1e-2
    return whole


def said(path: Path) -> str:
    case = load(path)
    first = first_wrong(replay(case, moved(case)))
    assert first is not None
    return first.nearest


@pytest.mark.clause("REPLAY-16", "CASE-38")
@pytest.mark.parametrize("name", OTHERS)
def test_a_reading_with_other_ops_explains_nothing_and_is_no_fault(name: str) -> None:
    (path,) = VECTORS.glob(f"v?/cases/{name}.safetensors")
    assert "fault" not in said(path)


@pytest.mark.slow
@pytest.mark.clause("REPLAY-16", "CASE-38")
@pytest.mark.parametrize("path", [*small("v1"), *small("v2")], ids=lambda path: path.stem)
def test_no_reading_of_a_vector_is_a_fault(path: Path) -> None:
    assert "fault" not in said(path)
