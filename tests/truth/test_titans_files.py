"""Plain loops of titans-pytorch's neural memory against every recorded file of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.support.layer_files import compared
from tests.truth import titans_memory_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

RECORDED = Path(__file__).parents[1] / "data" / "peers_atlas_mag"
FILES = sorted(path.name for path in RECORDED.glob("titans_*.safetensors"))
#: Files whose gradients are compared entry by entry.
ENTRIES = ("titans_depth1_linear_refresh1_11.safetensors",)
Tensors = dict[str, Any]


def settings(name: str) -> tuple[loops.Settings, list[int]]:
    with safetensors.safe_open(RECORDED / name, "np") as file:
        c = json.loads(file.metadata()["atlas_ref"])["config"]
    return loops.Settings(
        names=tuple(c["memory_names"]),
        heads=c["heads"],
        chunk=c["chunk_size"],
        batch=c["batch_size"],
        max_lr=c["max_lr"],
        order=int(c["momentum"]),
        newton_schulz=c.get("spectral_norm_surprises", False),
        clip=c.get("max_grad_norm"),
    ), c["calls"]


def named(s: loops.Settings, memories: list[Any], over: tuple[int, ...] = ()) -> Tensors:
    """Memories of rows and heads as the file stores them, (rows heads, ...), by tensor."""
    return {
        name: np.array([[each[name] for each in row] for row in memories]).reshape(
            len(memories) * s.heads, *over, *memories[0][0][name].shape
        )
        for name in s.names
    }


def computed(
    at: Tensors, s: loops.Settings, calls: list[int]
) -> tuple[list[Any], list[dict[str, Tensors]], list[int]]:
    """Of each call: y (B, T, dim), states by kind, and the index after it."""
    p = {n.removeprefix("param/"): a for n, a in at.items() if n.startswith("param/")}
    ys, kinds, index = [], [], []
    states = [loops.start(p, s) for _ in at["x" if len(calls) == 1 else "call0/x"]]
    for i in range(len(calls)):
        x = at["x" if len(calls) == 1 else f"call{i}/x"]
        done = [loops.call(row, p, s, state) for row, state in zip(x, states, strict=True)]
        states = [state for _, state, _ in done]
        ys.append(np.array([y for y, _, _ in done]))
        every = [
            [
                {n: np.array([memory[h][n] for memory in memories]) for n in s.names}
                for h in range(s.heads)
            ]
            for _, _, memories in done
        ]
        found = {
            "last_update": named(s, [state.W for state in states]),
            "weights": named(s, [state.ref for state in states]),
            "updates": named(s, every),
        }
        if s.order:
            momentum = named(s, [state.S[0] for state in states])
            found["last_momentum"] = {n: a[None] for n, a in momentum.items()}
        kinds.append(found)
        index.append(states[0].at - len(states[0].waiting))
    return ys, kinds, index


def inputs(tensors: Tensors) -> Tensors:
    return {
        n.removeprefix("in/"): a
        for n, a in tensors.items()
        if n.startswith("in/") and not n.endswith("y_bar")
    }


@pytest.mark.parametrize("name", FILES)
def test_the_loops_are_the_recorded_values_and_states(name: str) -> None:
    assert len(FILES) == 13
    (s, calls), tensors = settings(name), safetensors.numpy.load_file(RECORDED / name)
    ys, kinds, index = computed(inputs(tensors), s, calls)
    got: Tensors = {}
    for i, (y, found, at) in enumerate(zip(ys, kinds, index, strict=True)):
        start = "out/" if len(calls) == 1 else f"out/call{i}/"
        got |= {f"{start}y": y, f"{start}seq_index": at}
        got |= {f"{start}{kind}/{n}": a for kind, of in found.items() for n, a in of.items()}
    want = {n: a for n, a in tensors.items() if n.startswith("out/")}
    assert set(got) == set(want)
    for of, array in want.items():
        assert_close(of, got[of], array, ANALYTIC)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FILES)
def test_the_loops_have_the_recorded_gradients(name: str) -> None:
    (s, calls), tensors = settings(name), safetensors.numpy.load_file(RECORDED / name)
    at = inputs(tensors)
    bars = [a for n, a in sorted(tensors.items()) if n.endswith("y_bar")]
    want = {n.removeprefix("grad/"): a for n, a in tensors.items() if n.startswith("grad/")}
    # The memory's own parameters were copied for each head before they were read.
    unread = {n for n in want if n.startswith("param/memory_model.")}
    assert all(not np.any(want.pop(n)) for n in unread)

    def loss(at: Tensors) -> Any:
        ys, _, _ = computed(at, s, calls)
        return sum(np.sum(y * bar) for y, bar in zip(ys, bars, strict=True))

    assert compared(loss, at, want, name in ENTRIES) < ANALYTIC.bound


@pytest.mark.parametrize("name", ["depth2_chunk4", "depth2_chunk4_heads2", "depth1_chunk1"])
def test_calls_of_single_tokens_are_one_call(name: str) -> None:
    (s, calls), file = settings(f"titans_{name}_11.safetensors"), f"titans_{name}_11.safetensors"
    at = inputs(safetensors.numpy.load_file(RECORDED / file))
    one, _, _ = computed(at, s, calls)
    x = at.pop("x")
    split = {f"call{t}/x": x[:, t : t + 1] for t in range(x.shape[1])}
    each, _, _ = computed(at | split, s, [1] * x.shape[1])
    assert_close("y", np.concatenate(each, axis=1), one[0], EXACT)
