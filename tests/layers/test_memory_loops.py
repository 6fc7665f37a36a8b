"""Plain loops of memory layers against every recorded one of public code, with all gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import layer_files
from tests.support.close import ANALYTIC, assert_close
from tests.support.layers import files, recorded

MEMORIES = files("rnn_memory")
#: Files whose gradients are compared entry by entry.
ENTRIES = [
    f"atlas_rnn_memory_{name}"
    for name in (
        "delta",
        "omega2_clamp",
        "omega3_elementwise3",
        "omega4_gate_tensor2",
        "omega6_longer_than_call",
        "titans_chained",
        "titans_conv3_nonorm",
        "titans_scan_chunk",
    )
]


@pytest.mark.sample(6)
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", MEMORIES)
def test_the_loops_are_the_recorded_memory_layers_with_states_and_gradients(name: str) -> None:
    assert len(MEMORIES) == 25
    file = recorded(name)
    at = layer_files.inputs(file)
    y, states = layer_files.memory(file, at)
    assert_close("y", y, file.tensors["out/y"], ANALYTIC)
    for i, after in enumerate(states):
        last = i == len(states) - 1
        want = file.named("out/state/" if last else f"out/state_after_call{i}/")
        assert set(want) == set(after) or (not want and not last)
        for key, array in want.items():
            assert_close(f"{key} after call {i}", after[key], array, ANALYTIC)
    bars = file.named("in/state_bar/")

    def loss(at: Any) -> Any:
        y, states = layer_files.memory(file, at)
        total = np.sum(y * file.tensors["in/y_bar"])
        return total + sum(np.sum(states[-1][key] * bar) for key, bar in bars.items())

    want = file.named("grad/")
    assert layer_files.compared(loss, at, want, name in ENTRIES) < ANALYTIC.bound
