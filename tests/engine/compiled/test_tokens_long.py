"""The compiled loop over tokens against literal loops, over 20,000 tokens, and in a child that is
forked.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import numpy as np
import pytest

from atlas_ref import forms
from atlas_ref.engine.compiled import tokens as compiled_tokens
from atlas_ref.rules import sequence
from atlas_ref.rules.sequence import Tokens
from tests.support.close import ANALYTIC, assert_close, relative_error
from tests.support.compiled import drawn, results
from tests.support.sequences import MODULES
from tests.truth.running_loops import omega, tokens

pytest.importorskip("numba", reason="Numba is not installed")
pytestmark = pytest.mark.host("compiled forms take arrays of NumPy alone")


@pytest.mark.clause("EXACT-21", "OMEGA-4")
@pytest.mark.parametrize("window", [1, 4])
def test_memories_of_a_literal_loop(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_tokens, "WORK", 0)
    random, keys, values = tokens(count=70, d_in=37, d_out=41)
    retain, momentum, rate = (
        random.uniform(*span, 70) for span in ((0.8, 1.0), (0.2, 0.9), (0.1, 0.5))
    )
    literal = omega(keys, values, retain, momentum, rate, np.ones(70), window)
    module = MODULES["omega"]
    convention = {"newton_schulz": "none", "rate": "momentum", "gradient_scale": 1.0}
    config = module.Config(
        d_in=37, d_out=41, window=window, convention={**convention, "gate": "retain"}
    )
    queries = random.standard_normal((70, 37))
    given = Tokens(k=keys, v=values, q=queries, retain=retain, momentum=momentum, step_size=rate)
    state, y = forms.run(module.RULE, config, given, module.start(config), form="exact")
    assert_close("M", state.M, literal[-1], ANALYTIC)
    assert_close("y", y, np.einsum("tij,tj->ti", literal, queries), ANALYTIC)


@pytest.mark.clause("EXACT-21")
@pytest.mark.slow
@pytest.mark.parametrize("rule", ["delta", "titans_lmm", "omega"])
def test_no_drift_over_twenty_thousand_tokens(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Error in float32 at most twice that of the rule token by token in float32."""
    monkeypatch.setattr(compiled_tokens, "WORK", 0)
    window = {"window": 3} if rule == "omega" else {}
    tensors = drawn(rule, T=20_000, **window)
    low = {name: value.astype(np.float32) for name, value in tensors.items()}
    high = {name: value.astype(np.float64) for name, value in low.items()}
    true = results(rule, high, "sequential")
    for got, plain, want in zip(
        results(rule, low), results(rule, low, "sequential"), true, strict=True
    ):
        assert relative_error(got, want) <= 2 * relative_error(plain, want)


def _loop_of(tensors: dict[str, Any]) -> Any:
    return results("titans_lmm", tensors)[0]


@pytest.mark.filterwarnings("ignore:.*fork")  # of JAX, where another test loaded it
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_is_forked_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_tokens, "WORK", 0)
    tensors = drawn("titans_lmm", T=20)
    here = _loop_of(tensors)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        there = pool.apply(_loop_of, (tensors,))
    assert np.array_equal(here, there)


@pytest.mark.clause("EXACT-21")
def test_no_memory_at_all_and_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty leading axes, and a memory of one output dimension."""
    monkeypatch.setattr(compiled_tokens, "WORK", 0)
    tensors = drawn("delta", T=5, d_out=1)
    empty = {name: value[:0] for name, value in tensors.items()}
    assert results("delta", empty)[0].shape == (0, 5, 1)
    module = MODULES["delta"]
    config = module.Config(d_in=4, d_out=1, convention={"gate": "retain"})
    given = Tokens(**{name: value for name, value in tensors.items() if not name.endswith("0")})
    start = module.start(config, (3,), M=tensors["M0"])
    got = forms.run(module.RULE, config, given, start, form="exact")
    want = sequence.run(module.RULE, config, given, start)
    assert_close("y", got[1], want[1], ANALYTIC)
