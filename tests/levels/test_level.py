"""Frozen levels: their state, their reads, their missing writes. Gate biases, forms, presets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atlas_ref import rules
from atlas_ref.layers import projection
from atlas_ref.levels import block as cms
from atlas_ref.levels import presets
from atlas_ref.levels.level import Biases
from atlas_ref.rules import FAMILY, titans_lmm
from tests.support.blocks import COUNTING, MIXED, block, drawn, level
from tests.support.close import EXACT, assert_close, assert_differs, reordered

FAST = (
    {"rule": "titans_lmm", "period": 1, "d_in": 4},
    {"rule": "omega", "period": 8, "d_in": 4, "window": 4, "convention": {"newton_schulz": "none"}},
)


def counting(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of each rule's write and rest from now on."""
    calls: Counter[str] = Counter()
    for name, rule in FAMILY.items():
        counted = {
            part: _counted(calls, f"{name}.{part}", getattr(rule, part))
            for part in ("write", "rest")
        }
        monkeypatch.setitem(rules.RULES.loaded, name, rule._replace(**counted))
    return calls


def _counted(calls: Counter[str], key: str, original: Any) -> Any:
    def counted(*args: Any) -> Any:
        calls[key] += 1
        return original(*args)

    return counted


@pytest.mark.clause("CMS-5")
@pytest.mark.parametrize("specs", [MIXED, COUNTING], ids=["mixed", "counting"])
def test_a_frozen_level_keeps_its_memory_bit_for_bit(specs: Any) -> None:
    config = block([{**spec, "period": 50} for spec in specs])
    params, x, context = drawn(config, tokens=60)
    first, _ = cms.run(config, params, x[:, :1], context)  # all levels write at step 0
    after, _ = cms.run(config, params, x[:, 1:50], first)
    for before, state in zip(first.states, after.states, strict=True):
        assert state.M.tobytes() == before.M.tobytes()
        if hasattr(before, "S"):
            assert state.S.tobytes() == before.S.tobytes()
    written, _ = cms.run(config, params, x[:, 50:51], after)
    for before, state in zip(after.states, written.states, strict=True):
        assert_differs("the memory after a write", state.M, before.M, 1e-3)


@pytest.mark.clause("CMS-5")
def test_a_frozen_level_reads_the_memory_that_it_keeps() -> None:
    config = block([{**MIXED[0], "period": 50}])
    params, x, context = drawn(config, tokens=50)
    first, _ = cms.run(config, params, x[:, :1], context)
    _, y = cms.run(config, params, x[:, 1:], first)
    queries = np.einsum("hid,btd->bhti", params.levels[0].W_Q, x[:, 1:])
    assert_close(
        "reads", y, np.einsum("bhoi,bhti->bhto", first.states[0].M, queries), reordered(50)
    )


@pytest.mark.clause("CMS-5", "WINDOW-17", "E-A29")
def test_a_frozen_level_fills_its_window() -> None:
    spec = {
        "rule": "omega",
        "period": 8,
        "d_in": 4,
        "window": 4,
        "convention": {"newton_schulz": "none"},
    }
    config = block([spec])
    params, x, context = drawn(config, tokens=15)
    after, _ = cms.run(config, params, x, context)
    made = projection.project(config.levels[0].config, params.levels[0], x)
    assert_close("keys", after.states[0].keys, made["k"][:, :, 11:15], EXACT)
    assert_close("values", after.states[0].values, made["v"][:, :, 11:15], EXACT)
    assert after.states[0].filled == 4
    once, _ = cms.run(config, params, x[:, :3], context)
    assert once.states[0].filled == 3


@pytest.mark.host("counts calls for each token, and a kernel takes all in one")
@pytest.mark.clause("CMS-5", "CMS-16", "PULSE-7")
@pytest.mark.parametrize("preset", list(presets.PRESETS))
def test_frozen_levels_cost_no_write(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.PRESETS[preset](d_model=4, d_in=3, d_out=3)
    params, x, context = drawn(config, tokens=512, batch=1)
    calls = counting(monkeypatch)
    cms.run(config, params, x, context)
    writes = sum(count for name, count in calls.items() if name.endswith(".write"))
    assert writes == 512 + 64 + 8 + 1 == context.conductor.schedule(512).sum()
    assert round(writes / 512, 2) == 1.14
    assert writes / 512 <= 1.3
    if preset == "fast-titans-slow-omega":
        assert calls["titans_lmm.write"] == 512 + 64
        assert calls["omega.write"] == 8 + 1


@pytest.mark.clause("CMS-5")
def test_a_span_counts_frozen_tokens_too_and_still_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = block(COUNTING)
    params, x, context = drawn(config, tokens=24)
    calls = counting(monkeypatch)
    cms.run(config, params, x, context)
    assert sum(count for name, count in calls.items() if name.endswith(".write")) == 24 + 12 + 8 + 6


@pytest.mark.clause("CMS-17")
@pytest.mark.parametrize("form", ["exact", "scan", "kernel"])
def test_every_form_of_a_level_gives_the_same(form: str) -> None:
    plain = block(FAST)
    params, x, context = drawn(plain, tokens=40)
    reset = np.arange(40) == 21
    want, y = cms.run(plain, params, x, context, reset=reset)
    config = cms.Config(levels=tuple(level(each, form=form, chunk=16) for each in FAST))
    after, same = cms.run(config, params, x, context, reset=reset)
    assert_close("y", same, y, reordered(40, amplification=1e3))
    for got, state in zip(after.states, want.states, strict=True):
        assert_close("M", got.M, state.M, reordered(40, amplification=1e3))


@pytest.mark.clause("CMS-17")
@pytest.mark.parametrize("form", ["sequential", "chunkwise", "kernel"])
def test_a_form_takes_frozen_tokens_where_positions_move(form: str) -> None:
    spec = {
        "rule": "titans_lmm",
        "period": 3,
        "d_in": 4,
        "span": 4,
        "convention": {"reference": "chunk_start"},
    }
    config = cms.Config(levels=(level(spec, form=form),))
    params, x, context = drawn(config, tokens=22)
    active = np.arange(22) % 3 == 0
    after, y = cms.run(config, params, x, context)
    state, want = projection.run_tokens(
        titans_lmm.RULE,
        config.levels[0].config,
        params.levels[0],
        x,
        context.states[0],
        active=active,
    )
    assert_close("y", y, want, reordered(22, amplification=1e3))
    assert_close("M", after.states[0].M, state.M, reordered(22, amplification=1e3))
    assert after.states[0].position == state.position == 22 % 4


@pytest.mark.clause("CMS-17")
def test_a_frozen_call_keeps_every_bit_in_every_form() -> None:
    for form in ("sequential", "exact", "scan", "kernel"):
        config = cms.Config(levels=tuple(level(each, form=form) for each in FAST), per="call")
        params, x, context = drawn(config)
        first, _ = cms.run(config, params, x, context)
        after, _ = cms.run(config, params, x, first)  # the second call: level 1 is frozen
        assert after.states[1].M.tobytes() == first.states[1].M.tobytes()
        assert after.states[1].S.tobytes() == first.states[1].S.tobytes()
        assert after.states[0].M.tobytes() != first.states[0].M.tobytes()


@pytest.mark.clause("CMS-3", "GATES-9")
def test_slower_levels_start_with_a_stronger_hold_and_smaller_steps() -> None:
    config = block([{**MIXED[0], "period": period} for period in (64, 1, 512, 8)])
    params = cms.init(config, 0)
    assert config.places() == [2, 0, 3, 1]
    for place, own in zip(config.places(), params.levels, strict=True):
        retain, step = [3.0, 4.0, 4.5, 5.0][place], [-4.6, -5.6, -6.6, -7.6][place]
        assert (own.gates.retain.b == -retain).all()  # Titans computes a forget gate
        assert (own.gates.step_size.b == step).all()
        assert (own.gates.momentum.b == [1.5, 2.0, 2.5, 3.0][place]).all()
    kept = [1 / (1 + np.exp(own.gates.retain.b[0, 0])) for own in params.levels]
    assert [round(float(kept[i]), 4) for i in (1, 3, 0, 2)] == [0.9526, 0.9820, 0.9890, 0.9933]
    slow = cms.init(block([{**MIXED[2], "period": period} for period in (1, 8)]), 0).levels[1]
    assert (slow.gates.retain.b == 4.0).all()  # Omega computes what is retained
    assert not np.array_equal(params.levels[0].W_K, params.levels[1].W_K)


@pytest.mark.clause("CMS-3")
@pytest.mark.parametrize("place", range(8))
def test_six_ranks_are_those_of_the_public_table(place: int) -> None:
    gates = level(MIXED[0]).init(place, 0, dtype=np.float64).gates
    rank = min(place, 5)
    assert (gates.retain.b == -[3.0, 4.0, 4.5, 5.0, 5.5, 6.0][rank]).all()
    assert (gates.momentum.b == 1.5 + rank / 2).all()
    assert gates.step_size.b == pytest.approx(-4.6 - rank)


@pytest.mark.clause("CMS-3")
def test_a_level_may_say_where_its_gates_start() -> None:
    own = level(MIXED[2], biases=Biases(retain=2.0, momentum=0.0))
    gates = own.init(3, 0, dtype=np.float32).gates
    assert gates.retain.b.dtype == np.float32
    assert [float(each.b[0, 0]) for each in (gates.retain, gates.momentum, gates.step_size)] == [
        2.0,
        0.0,
        np.float32(-7.6),
    ]
    assert (
        own.init(9, 0, dtype=np.float64).gates.step_size.b == -9.6
    ).all()  # slower than the slowest of the table


@pytest.mark.clause("CMS-3")
def test_a_bias_of_a_gate_that_the_level_does_not_have_is_refused() -> None:
    for spec, biases, words in (
        (
            MIXED[1],
            {"momentum": 1.0},
            "biases: momentum: delta has no such gate, its gates are retain, step_size",
        ),
        (
            {**MIXED[1], "convention": {"gate": "none", "rate": "none"}},
            {"retain": 1.0},
            "retain: delta has no such gate, its gates are none",
        ),
        (MIXED[0], {"retain": float("nan")}, "retain"),
    ):
        with pytest.raises(ValidationError, match=words):
            level(spec, biases=Biases(**biases))


@pytest.mark.clause("CMS-14")
def test_the_presets_are_what_they_are_called() -> None:
    sizes: dict[str, Any] = {"d_model": 6, "d_in": 4, "d_out": 3, "heads": 2}
    mixed = presets.PRESETS["fast-titans-slow-omega"](**sizes, window=16, first_step=1)
    assert [each.rule.name for each in mixed.levels] == [
        "titans_lmm",
        "titans_lmm",
        "omega",
        "omega",
    ]
    assert [getattr(each.config, "window", 1) for each in mixed.levels] == [1, 1, 16, 16]
    assert mixed.levels[3].config.convention.has_newton_schulz
    assert (mixed.periods, mixed.first_step) == ((1, 8, 64, 512), 1)
    plain = presets.PRESETS["all-delta"](**sizes, periods=(4, 1), combine="masked")
    assert [(each.rule.name, each.period) for each in plain.levels] == [("delta", 1), ("delta", 4)]
    for config in (mixed, plain):
        params, x, context = drawn(config, tokens=9)
        _, y = cms.run(config, params, x, context)
        assert y.shape == (2, 2, 9, 3)
        assert np.isfinite(y).all()


@pytest.mark.clause("CMS-3")
def test_float32_stays_float32() -> None:
    config = presets.PRESETS["fast-titans-slow-omega"](d_model=4, d_in=3, d_out=3)
    for combine in ("softmax", "masked"):
        own = cms.Config(levels=config.levels, combine=combine)
        params, context = cms.init(own, 0, dtype=np.float32), cms.start(own, dtype=np.float32)
        after, y = cms.run(own, params, np.ones((1, 10, 4), np.float32), context)
        assert y.dtype == np.float32
        assert {state.M.dtype for state in after.states} == {np.dtype(np.float32)}
        assert isinstance(params.levels[2], projection.Params)
