"""The command train with levels: periods of memories, and parameters that wait for them."""

from __future__ import annotations

import pytest

from atlas_ref.train import run
from tests.support.training import library

pytestmark = pytest.mark.host("trains in folders")

TINY = ("--model", "lmm", "--rule", "delta", "--dim", 8, "--layers", 1, "--heads", 2)
TINY += ("--kernel", 1, "--expansion", 1, "--batch-size", 2, "--seq-len", 16, "--warmup", 0)


@pytest.mark.clause("TRAIN-24")
def test_a_run_with_levels_goes_on_and_is_shown(cli, tmp_path):
    text, one = library(tmp_path), tmp_path / "one"
    words = (*TINY, "--periods", "1,2", "--by-level", "--data", text, "--held-out-share", 0.25)
    ran = cli("train", *words, "--eval-every", 0, "--steps", 3, "--out", one, "--json")
    assert ran.code == 0, ran.err
    found = run.settings_of(one)
    assert found.model.periods == (1, 2)
    assert found.optimiser.by_level
    again = cli("train", "--out", one, "--resume", "--periods", "1,2", "--by-level")
    assert again.code == 0, again.err
    shown = cli("model", "show", one / run.MODEL, "--json").json["blocks"][0]["levels"]
    assert [level["period"] for level in shown] == [1, 2]


@pytest.mark.clause("TRAIN-24")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--periods", "1,x"), "--periods: numbers of tokens between commas"),
        (("--periods", "0"), "periods"),
        (("--by-level",), "by_level: has no effect without periods"),
        (("--periods", "1,2", "--tnt-local-spans", "2"), "tnt_shards"),
        (
            ("--periods", "1,2", "--tnt-global-span", "4"),
            "periods: the memories of a TNT have chunks and shards",
        ),
    ],
)
def test_levels_that_mean_nothing_are_one_line(words, says, cli, tmp_path):
    data = ("--data", library(tmp_path), "--out", tmp_path / "one")
    ran = cli("train", *TINY, *words, *data, "--steps", 1)
    assert ran.code == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1
