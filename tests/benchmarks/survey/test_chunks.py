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
    installed()
    assert json.loads(json.dumps(chunks.found())) == SAID


def test_every_pair_is_counted_once():
    for row in SAID["rows"]:
        assert row["same"] + row["raised"] + row["apart"] == SAID["pairs"]
        assert row["raised"] > 0
        assert row["apart"] > 0


def test_token_by_token_is_one_call_and_a_call_of_a_chunk_and_more_is_not():
    installed()
    assert chunks.outcome(3, 1, batch=None) < chunks.ROUNDING
    assert chunks.outcome(3, 4, batch=None) > 0.1
    assert chunks.outcome(3, 5, batch=None) == "RuntimeError"
