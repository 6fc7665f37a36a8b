"""Groups of public training and of matrices, over the parameters of whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.models import language_model
from atlas_ref.optim import OF_MATRICES, OPTIMISERS, adamw, groups, muon, presets, sgd
from atlas_ref.optim.schedule import Schedule
from tape import value_and_grad
from tests.support.models import MODELS
from tests.support.optimised import drawn

HIDDEN = {name: OPTIMISERS[name].module.Config(rate=0.02) for name in OF_MATRICES}
#: Last parts of the names of hidden matrices, but for those that lead back to the model.
OF_LAYERS = ("W_qkv", "W_in", "W_K", "W_V", "W_Q", "W", "W_pool")


@pytest.mark.clause("OPTIM-32")
@pytest.mark.sample(8)
@pytest.mark.parametrize("name", MODELS)
def test_hidden_matrices_and_nothing_else_are_taken_apart(name: str) -> None:
    params = language_model.init(MODELS[name])
    others = adamw.Config(rate=0.001)
    config = presets.matrices(HIDDEN["muon"], others, limit=1.0)
    taken = groups.assigned(config, params)
    assert all(each.rpartition(".")[2] == "W_out" for each in taken["outputs"])
    assert all(each.rpartition(".")[2] in OF_LAYERS for each in taken["hidden"])
    words = ("norm", "conv", "gates", "persistent", ".phi.", ".initial.", "embedding", "head")
    assert not [
        each
        for key in ("outputs", "hidden")
        for each in taken[key]
        if any(word in each for word in words)
    ]
    assert "embedding" in taken["others"]
    assert config.groups[0].optimiser == muon.Config(rate=0.02, axes="columns")


@pytest.mark.sample(1)
@pytest.mark.clause("OPTIM-32")
@pytest.mark.parametrize("kind", HIDDEN)
def test_a_model_moves_under_every_optimiser_of_matrices(kind: str) -> None:
    params = language_model.init(MODELS["mag titans"], dtype=np.float32)
    config = presets.matrices(HIDDEN[kind], adamw.Config(rate=0.001), limit=1.0)
    state = groups.init(config, params)
    ids = np.random.default_rng(0).integers(0, 7, (2, 9))

    def loss(params: Any) -> Any:
        start = language_model.start(MODELS["mag titans"], 2, dtype=np.float32)
        return language_model.loss(MODELS["mag titans"], params, start, ids)[1]

    first, gradient = value_and_grad(loss)(params)
    value = first
    for step in range(12):
        params, state = groups.update(config, state, params, gradient, step)
        value, gradient = value_and_grad(loss)(params)
    assert float(value) < float(first)
    assert params.embedding.dtype == np.float32


@pytest.mark.clause("OPTIM-33", "OPTIM-11")
def test_public_training() -> None:
    params = language_model.init(MODELS["mag shared"])
    schedule = Schedule(kind="cosine", warmup=2, steps=10, first="zero")
    mag = presets.atlas_mag(schedule=schedule)
    taken = groups.assigned(mag, params)
    assert taken["memory"]
    assert all(".memory.phi." in each for each in taken["memory"])
    assert not [each for each in taken["adamw"] if ".memory.phi." in each]
    assert [each for each in taken["adamw"] if ".memory.gate." in each]
    rule: Any = mag.groups[1].optimiser
    assert (rule.b1, rule.b2, rule.decay, rule.rate) == (0.9, 0.95, 0.1, 3e-4)
    assert rule.schedule == schedule
    rnn = presets.atlas_rnn()
    rule = rnn.groups[0].optimiser
    assert (rule.b1, rule.b2, rule.decay, rule.rate) == (0.9, 0.99, 0.01, 1e-3)
    for config in (mag, rnn):
        assert config.clip is not None
        assert (config.clip.limit, config.clip.eps) == (1.0, 1e-6)


@pytest.mark.clause("OPTIM-33")
def test_levels_move_at_their_periods() -> None:
    params = language_model.init(MODELS["memory levels"])
    periods = [each.period for each in MODELS["memory levels"].blocks[0].memory.levels.levels]
    config = presets.by_level(periods, sgd.Config(rate=0.1), sgd.Config(rate=0.2))
    taken = groups.assigned(config, params)
    for i in range(len(periods)):
        assert taken[f"level {i}"]
        assert all(f".levels.{i}." in each for each in taken[f"level {i}"])
    assert [group.period for group in config.groups] == [*periods, 1]


@pytest.mark.clause("OPTIM-17")
def test_muon_of_the_seed_is_the_average_without_nesterov() -> None:
    config = muon.Config(rate=0.1, **muon.PRESETS["seed"])
    assert config == muon.Config(rate=0.1, momentum=0.9)
    params, grads = drawn(("wide",), steps=1)
    _, state = muon.update(config, muon.init(config, params), params, grads[0], 0)
    assert np.allclose(state.slots["momentum"]["wide"], 0.1 * grads[0]["wide"], rtol=1e-15)
