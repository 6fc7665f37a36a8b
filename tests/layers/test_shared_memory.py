"""Settings and parameters of a memory that shares attention's queries, keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref import backend
from atlas_ref.layers import shared_memory
from atlas_ref.layers.shared_memory.config import Rates
from atlas_ref.parts.memory_functions import MemoryFunction

D = 4
MEMORY = MemoryFunction(kind="mlp", activation="gelu_tanh")


def settings(**changes: Any) -> shared_memory.Config:
    return shared_memory.configured("causal", d_model=D, memory=MEMORY, **changes)


@pytest.mark.clause("SHARED-1")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"projection": None}, "projection: missing, but memory_input is q_projected"),
        ({"memory_input": "q"}, "projection: present, but memory_input is q and write_key k"),
        ({"gate_hidden": None}, "gate_hidden: missing, but some of the weights take the gate"),
        ({"rates": Rates(retain=0.9)}, "rates.step_size: missing, gates of deep_memory are"),
        ({"step_size": "tanh"}, "sigmoid"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(changes: dict[str, Any], words: str) -> None:
    own = settings()
    fields = {name: getattr(own, name) for name in type(own).model_fields}
    with pytest.raises(ValueError, match=words):
        shared_memory.Config(**fields | changes)


@pytest.mark.clause("SHARED-1", "SHARED-9")
@pytest.mark.parametrize(
    ("changes", "words"),
    [({"colour": "red"}, "colour: no axis of a preset"), ({"chunk": 0}, "chunk")],
    ids=str,
)
def test_axes_that_no_preset_has(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(**changes)


@pytest.mark.clause("SHARED-7")
def test_parameters_start_with_half_a_gate_and_a_drawn_memory() -> None:
    own = settings()
    params = shared_memory.init(own, 3)
    assert params.gate is not None
    assert not np.any(backend.host(params.gate.W_out))  # sigmoid(0)
    assert set(params.phi) == set(own.level.rule.tensors(own.level.config))
    assert params.projection is not None
    other = shared_memory.init(own, 4)
    for name, tensor in params.phi.items():
        assert tensor.shape == own.level.rule.tensors(own.level.config)[name]
        assert not np.array_equal(backend.host(tensor), backend.host(other.phi[name]))
