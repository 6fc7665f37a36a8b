"""Faults of atlas-rnn's layers: ours under its preset has the numbers that the page has, and the
package where its clone is on the path.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.survey import rnn_faults
from benchmarks.survey.rnn_layers import SIZES, apart, percent
from benchmarks.survey.rnn_modules import Ours, Package, Settings, causal, ours, tokens, version

DATA = Path(__file__).parents[3] / "specs" / "survey.json"
SAID = json.loads(DATA.read_text())["rnn"]
ROWS = {row["fault"]: row for row in SAID["rows"]}
SYSTEMS = {"atlas-rnn": ours, "causal": causal}


def test_the_page_is_about_every_fault_and_the_published_commit():
    assert SAID["version"] == "1a2cf8a"
    assert list(ROWS) == [fault.words for fault in rnn_faults.FAULTS]
    for fault in rnn_faults.FAULTS:
        row = ROWS[fault.words]
        assert (row["measured"], row["by"]) == (fault.measured, fault.by)


@pytest.mark.parametrize("fault", rnn_faults.FAULTS, ids=lambda fault: fault.words)
def test_ours_have_the_numbers_of_the_page(fault):
    for name, system in SYSTEMS.items():
        assert (fault.of(system()) or rnn_faults.NONE) == ROWS[fault.words][name], name


@pytest.mark.parametrize("fault", rnn_faults.FAULTS, ids=lambda fault: fault.words)
def test_the_package_has_the_numbers_of_the_page(fault):
    if version() != SAID["version"]:
        pytest.skip("atlas-rnn at that commit is not on the path")
    assert (fault.of(Package()) or rnn_faults.NONE) == ROWS[fault.words]["package"]


def test_the_preset_reproduces_what_is_not_said_to_be_otherwise():
    """What only ours or only the package can be asked has no second number to compare."""
    alone = {name for name, row in ROWS.items() if rnn_faults.NONE in row.values()}
    other = {
        name
        for name, row in ROWS.items()
        if name not in alone and row["package"] != row["atlas-rnn"]
    }
    assert other == {
        "its softmax is in float32 in a float64 model, where the mask's value is infinite",
        "no class takes the arguments that its README prints",
    }
    assert len(ROWS) - len(alone) - len(other) >= 15


def test_no_number_of_the_causal_preset_is_that_of_a_leak():
    for name, number in {
        "a convolution of 4 taps has zeros on both sides, in every block": "23",
        "attention keeps the last keys of the call for all queries": "1",
        "generation with a cache is another function": "0, 0, 0",
        "a training step of MAC goes back through the steps before it": "0",
    }.items():
        assert ROWS[name]["causal"] == number != ROWS[name]["package"]


def test_a_change_of_tensors_is_one_of_parameters():
    s, x = Settings(**SIZES, num_persist_mem_tokens=2), [tokens(5, 8)]
    assert np.array_equal(
        ours().run("block", s, x, lambda tensors: tensors).last, ours().run("block", s, x).last
    )
    halved = ours().built("block", s, lambda tensors: {"gate.0.bias": tensors["gate.0.bias"] / 2})
    assert np.array_equal(halved[2].mix.b, ours().built("block", s)[2].mix.b / 2)
    unlike = Ours("causal", "spec").run("block", s.replaced(block_type="lmm"), x)
    assert unlike.memory.shape == (2, 4, 4)


def test_a_percentage_is_nothing_below_the_rounding_of_float32():
    assert [percent(size) for size in (0.9e-5, 1.2e-5, 0.055, 0.0999, 1.264)] == [
        "0",
        "0.0012 %",
        "5.5 %",
        "10 %",
        "126 %",
    ]
    assert apart(np.array([3.0, 4.0]), np.array([0.0, 4.0])) == 0.75
