"""The command train with TNT: flags, and a second stage that begins from a run."""

from __future__ import annotations

import json

import pytest

from atlas_ref.train import run
from tests.support.training import library

pytestmark = pytest.mark.host("trains in folders")

TINY = ("--model", "lmm", "--rule", "delta", "--dim", 8, "--layers", 1, "--heads", 2)
TINY += ("--kernel", 1, "--expansion", 1, "--batch-size", 2, "--seq-len", 16, "--warmup", 0)
STAGE = ("--tnt-global-span", 8, "--tnt-local-spans", "4,8", "--tnt-shards", 8)


@pytest.mark.clause("TRAIN-22", "TRAIN-23")
def test_two_stages_of_a_run_with_tnt(cli, tmp_path):
    text, one, two = library(tmp_path), tmp_path / "one", tmp_path / "two"
    words = (*TINY, *STAGE, "--data", text, "--held-out-share", 0.25, "--eval-every", 0)
    ran = cli("train", *words, "--steps", 3, "--out", one, "--json")
    assert ran.code == 0, ran.err
    next_one = ("--from", one, "--tnt-local-spans", "1,2", "--learns", "locals", "--out", two)
    ran = cli("train", *next_one, "--steps", 2, "--json")
    assert ran.code == 0, ran.err
    first, second = run.settings_of(one), run.settings_of(two)
    assert first.model.tnt_local_spans == (4, 8)
    changed = first.model.replaced(tnt_local_spans=(1, 2))
    assert second == first.replaced(model=changed, steps=2, begins_from=str(one), learns="locals")
    assert first.model.tnt_preset == "paper"
    again = cli("train", "--out", two, "--resume", "--from", one)
    assert again.code == 0, again.err
    shown = cli("model", "show", two / run.MODEL, "--json").json["blocks"][0]["levels"]
    assert [level["tnt"] for level in shown] == [
        {"span": 8, "shard": None},
        {"span": 1, "shard": 8},
        {"span": 2, "shard": 8},
    ]
    assert "span 1, shard 8" in cli("model", "show", two / run.MODEL).out
    third = cli("train", "--from", two, "--steps", 1, "--out", tmp_path / "three", "--json")
    assert third.code == 0, third.err
    assert json.loads((tmp_path / "three" / run.SETTINGS).read_text())["learns"] == "all"


@pytest.mark.clause("TRAIN-22", "TRAIN-23")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--tnt-local-spans", "4,x"), "--tnt-local-spans: numbers of tokens between commas"),
        (("--tnt-shards", ""), "--tnt-shards: numbers of tokens between commas"),
        (("--tnt-local-spans", "0"), "tnt_local_spans"),
        (("--tnt-shards", "8"), "tnt_shards: has no effect without"),
        ((*STAGE, "--tnt-preset", "papr"), "tnt_preset 'papr' does not exist"),
        ((*STAGE, "--tnt-preset", "paper-literal"), "previous is a momentum of one"),
        (("--tnt-preset", "paper-app-c"), "tnt_preset: has no effect without"),
        (("--from", "nowhere"), "nowhere"),
        (("--learns", "few"), "learns"),
    ],
)
def test_bad_flags_are_one_line_and_exit_code_2(words, says, cli, tmp_path):
    ran = cli("train", *TINY, "--data", library(tmp_path), "--out", tmp_path / "out", *words)
    assert ran.code == 2
    assert says in ran.err
    assert len(ran.err.strip().splitlines()) == 1
