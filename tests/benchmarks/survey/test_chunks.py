"""Second calls of titans-pytorch: which return what one call returns."""

import json
from pathlib import Path

import pytest

from benchmarks.survey import chunks
from benchmarks.survey.catalogue import version

DATA = Path(__file__).parents[3] / "specs" / "survey.json"
SAID = json.loads(DATA.read_text())["chunks"]


def installed():
    if version(chunks.PACKAGE) != SAID["version"]:
        pytest.skip(f"{chunks.PACKAGE} {SAID['version']} is not installed")


def test_the_page_holds_what_is_found():
    """But for the power of ten of what is rounding."""
    installed()
    found = json.loads(json.dumps(chunks.found()))
    for each in (found, SAID):
        assert all(float(row["ours"]) <= chunks.ROUNDING for row in each["rows"])
    assert firm(found) == firm(SAID)


def firm(data):
    return {
        **data,
        "rows": [{**row, "ours": ""} for row in data["rows"]],
    }


def test_every_pair_is_counted_once():
    assert len(SAID["rows"]) == 2 * len(chunks.MEMORIES)
    for row in SAID["rows"]:
        assert row["same"] + row["raised"] + row["apart"] == SAID["pairs"]
        assert row["raised"] > 0
        assert row["apart"] > 0


@pytest.mark.parametrize("depth", chunks.MEMORIES)
def test_token_by_token_is_one_call_and_a_call_of_a_chunk_and_more_is_not(depth):
    """Where ours is one call for every cut."""
    installed()
    kind = chunks.Kind(depth, None)
    memory = chunks.module(kind)
    assert chunks.outcome(memory, 3, 1) < chunks.ROUNDING
    assert chunks.outcome(memory, 3, 4) > 0.1
    assert chunks.outcome(memory, 3, 5) == "RuntimeError"
    for second in (1, 4, 5):
        assert chunks.ours_apart(memory, kind, 3, second) < chunks.ROUNDING
