"""Kept runs on text: of the cases as they are, what is asked of them, and their tables."""

from __future__ import annotations

import json
import statistics
from typing import Any

import numpy as np
import pytest

from atlas_ref.models import language_model
from atlas_ref.train.settings import Text
from atlas_ref.train.trained import load
from benchmarks import prefixes, text
from docs import run_tables
from tests.support import trained
from tests.support.close import ANALYTIC, assert_close, reordered
from tests.support.training import library

pytestmark = pytest.mark.host("trains in folders")


def bits(case: str) -> list[float]:
    return [run["bits"] for run in text.KEPT.runs() if run["case"] == case]


def test_kept_runs_are_those_of_the_cases_in_force() -> None:
    """A change of a default or of a case asks for `python -m benchmarks.text`."""
    runs = text.KEPT.runs()
    assert {run["case"] for run in runs} == set(text.KEPT.order)
    for run in runs:
        now = text.without_path(text.settings_of(run["case"], run["seed"]))
        now["text"]["paths"] = run["settings"]["text"]["paths"]  # of another Python
        assert run["settings"] == json.loads(json.dumps(now))
        assert run["threads"] == "1"
    for case in ("LMM", "MAG", "attention alone", text.NGRAMS):
        assert sum(run["case"] == case for run in runs) >= 3


def test_memories_are_worth_what_the_page_says() -> None:
    """Below the best n-gram by 0.1 bits, and below attention alone, whatever the seed."""
    counted = [run for run in text.KEPT.runs() if run["case"] == text.NGRAMS]
    best = min(each for run in counted for each in run["bits of orders, all text"])
    assert max(bits("LMM") + bits("MAG")) < best - 0.1
    assert statistics.fmean(bits("MAG")) <= 1.75
    assert max(bits("MAG")) < min(bits("attention alone"))
    assert max(bits("MAG, long rows")) < min(bits("attention alone, long rows")) - 0.05


def test_what_a_case_tells_is_what_its_run_and_its_model_say(tmp_path, monkeypatch) -> None:
    """A small run in place of a long one; on its path nothing of the machine is kept."""
    place = library(tmp_path, files=8, size=3000)
    own = Text(paths=(str(place),), share=0.25)
    monkeypatch.setattr(text, "library", lambda: own)
    for name, value in {"ROWS": 2, "TOKENS": 16, "LONG": 32, "STEPS": 24, "HELD": 3}.items():
        monkeypatch.setattr(text, name, value)
    model = text.MAG.replaced(dim=8, layers=1, heads=2, window=4)
    cases = {"MAG": (model, 16), "attention alone": (model.replaced(memory=False), 16)}
    monkeypatch.setattr(text, "CASES", cases)
    kept = text.KEPT._replace(file=tmp_path / "text.json", order=[*cases, text.NGRAMS])
    monkeypatch.setattr(text, "KEPT", kept)
    text.main(seeds=1)
    runs = {run["case"]: run for run in kept.runs()}
    assert str(tmp_path) not in kept.file.read_text()
    mag, alone, counted = runs["MAG"], runs["attention alone"], runs[text.NGRAMS]
    assert mag["tokens"] == alone["tokens"] == counted["tokens"] == 24 * 2 * 16
    assert mag["held out"] == alone["held out"] == counted["held out"] == 2 * 16 * 3
    assert len({mag["bits"], mag["bits without writes"], mag["bits without memory"]}) == 3
    assert "bits without writes" not in alone
    assert counted["bits of orders, all text"] != counted["bits of orders"]
    monkeypatch.setattr(run_tables, "BENCHMARKS", tmp_path)
    found = run_tables.text(None, "text.md")  # type: ignore[arg-type]
    lines = [line.strip("| ").split(" | ") for line in found.splitlines() if line[:1] == "|"]
    assert [line[:3] for line in lines[2:]] == [
        ["MAG", "16", f"{mag['bits']:.3f}"],
        ["attention alone", "16", f"{alone['bits']:.3f}"],
    ]
    orders = run_tables.ngrams(None, "text.md").splitlines()  # type: ignore[arg-type]
    assert len(orders) == 2 + text.ORDERS
    assert f"{counted['bits of orders'][0]:.3f}" in orders[2]


def test_a_model_that_is_causal_has_one_loss_and_one_that_leaks_has_two() -> None:
    """Two columns within 0.02, and far apart for the layer as it was published."""
    runs = prefixes.KEPT.runs()
    assert {run["case"] for run in runs} == set(prefixes.CASES)
    for run in runs:
        apart = abs(run["reported"] - run["prefixes"])
        assert apart < 0.02 or not run["causal"]
    leaks = {run["case"]: run["prefixes"] - run["reported"] for run in runs if not run["causal"]}
    assert leaks["lmm, atlas-rnn"] > 2
    found = run_tables.prefixes(None, "text.md").splitlines()  # type: ignore[arg-type]
    assert sum(line.startswith("|") for line in found) == 2 + len(prefixes.CASES)


@pytest.mark.parametrize("kind", ["lmm", "atlas-mag"])
def test_the_loss_of_prefixes_is_that_of_calls_that_end_before_a_token(kind: str) -> None:
    """The mean of rows that are asked alone, and for a causal model the loss of one call."""
    own = load(trained.model(kind))
    ids = np.random.default_rng(0).integers(0, 256, (2, 9))
    found: Any = prefixes.of_prefixes(own, ids)
    rows = [prefixes.of_prefixes(own, row[None]) for row in ids]
    assert_close("mean of rows", found, np.mean(rows), ANALYTIC)
    if own.config.causal:
        begun = language_model.start(own.config, 2, dtype=np.float32, initial=own.initial)
        _, loss = language_model.loss(own.config, own.params, begun, ids)
        assert_close("one call", found, float(loss), reordered(256, dtype=np.float32))
