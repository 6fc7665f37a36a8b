"""Progress on a terminal: of a long certification and of a search, and nowhere else."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import load_results, save
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from tests.support.casefiles import written


@pytest.fixture
def on_terminal(cli, monkeypatch):
    """The command line with a standard error that says it is a terminal."""

    def run(*arguments):
        with monkeypatch.context() as patch:
            patch.setenv("TERM", "xterm")
            patch.setenv("COLUMNS", "100")
            patch.setattr(sys.stderr, "isatty", lambda: True)
            return cli(*arguments)

    return run


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = new(Request(rule="omega", tokens=5, window=2, heads=2, cotangent=True))
    return written(tmp_path / "case.safetensors", made.header.plain(), made.inputs).name


@pytest.mark.clause("CERT-16")
def test_a_terminal_is_shown_the_tokens_of_one_certification(case, cli, on_terminal):
    ran = on_terminal("certify", case, "--grad")
    assert ran.code == 0, ran.err
    for words in ("tokens at 128 bits", "reads at 128 bits", "gradients at 128 bits"):
        assert words in ran.err
    assert "0/10" in ran.err
    assert cli("certify", case, "--grad").out == ran.out


@pytest.mark.clause("CERT-16")
def test_a_terminal_is_shown_the_cases_and_differences_too(on_terminal, tmp_path):
    made = new(Request(rule="delta", tokens=2, d_in=2, d_out=2, heads=1, cotangent=True))
    cases = [
        written(tmp_path / f"{name}.safetensors", made.header.plain(), made.inputs)
        for name in ("first", "second")
    ]
    ran = on_terminal("certify", *cases, "--grad", "--differences")
    assert ran.code == 0, ran.err
    for words in ("certifying", "0/2", "derivatives by differences"):
        assert words in ran.err


@pytest.mark.clause("CERT-16", "SRC-23")
def test_nothing_is_shown_in_a_pipe_and_an_object_stays_one(case, cli, on_terminal, wrong):
    for words in (("certify", case, "--grad"), ("check", wrong)):
        assert cli(*words).err == ""
        assert "\x1b" not in cli(*words).out
        json.loads(on_terminal(*words, "--json").out)


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """A case with results that no convention explains."""
    monkeypatch.chdir(tmp_path)
    made = new(Request(rule="delta", tokens=6))
    y = evaluate(made).tensors["out/y"]
    far = {"out/y": y + 1.0 + np.arange(y.size).reshape(y.shape)}
    return written(tmp_path / "wrong.safetensors", made.header.plain(), made.inputs | far).name


@pytest.mark.clause("SRC-23")
def test_a_terminal_is_shown_the_conventions_of_a_search(wrong, on_terminal):
    for words in (("check", wrong), ("identify", wrong, "--out", wrong)):
        ran = on_terminal(*words)
        assert ran.code == 1
        assert "conventions" in ran.err
        assert "departures" in ran.err
    assert "conventions" not in on_terminal("check", wrong, "--no-nearest").err


@pytest.mark.clause("REPLAY-16")
def test_a_terminal_is_shown_the_readings_of_a_replay(case, cli, on_terminal):
    assert cli("eval", case, "-o", "mine.safetensors", "--trace").code == 0
    header, tensors = load_results("mine.safetensors")
    late = np.roll(tensors["trace/residual"], 1, axis=-3)
    save("late.safetensors", header, tensors | {"trace/residual": late})
    words = ("replay", case, "--trace", "late.safetensors")
    ran = on_terminal(*words)
    assert ran.code == 1
    assert "readings compared" in ran.err
    assert "readings" not in on_terminal(*words, "--no-nearest").err
    assert cli(*words).err == ""
