"""Plain loops of norms, feed-forward, attention and blocks against every recorded one of public
code, with all gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support import layer_files
from tests.support.close import ANALYTIC, assert_close
from tests.support.layers import RECORDED, Recorded, files, recorded

NORMS = [
    (name, layer)
    for layer in ("rms_norm", "multihead_rms_norm")
    for name in files(layer)
    if name.startswith("atlas_rnn")
]
BLOCKS = [(name, kind) for kind in ("mag", "mal", "lmm", "mac") for name in files(f"{kind}_block")]


def gradients(file: Recorded, run: Callable[[Any], Any], *, entries: bool) -> float:
    """The worst error of the recorded gradients of a layer without state."""
    bar = file.tensors["in/y_bar"]
    return layer_files.compared(
        lambda at: np.sum(run(at) * bar), layer_files.inputs(file), file.named("grad/"), entries
    )


#: Kinds of layers that these loops and those of memory layers and models reproduce file by file.
KINDS = (
    "feed_forward",
    "sliding_window_attention",
    "rnn_memory",
    "language_model",
    "memory_language_model",
    "sampling",
)


@pytest.mark.host("recorded arrays")
def test_every_recorded_file_of_this_public_code_has_loops() -> None:
    covered = [name for name, _ in NORMS + BLOCKS] + [
        name for kind in KINDS for name in files(kind)
    ]
    every = sorted(
        path.name.removesuffix("_11.safetensors") for path in RECORDED.glob("atlas_rnn_*")
    )
    assert sorted(covered) == every
    assert len(every) == 55


@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize(("name", "layer"), NORMS)
def test_the_loops_are_the_recorded_norms_with_every_entry_of_their_gradients(
    name: str, layer: str
) -> None:
    assert len(NORMS) == 4
    file = recorded(name)

    def run(at: Any) -> Any:
        return layer_files.norm(file, at, layer)

    assert_close("y", run(layer_files.inputs(file)), file.tensors["out/y"], ANALYTIC)
    assert gradients(file, run, entries=True) < ANALYTIC.bound


@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", files("feed_forward"))
def test_the_loops_are_the_recorded_feed_forwards_with_every_entry_of_their_gradients(
    name: str,
) -> None:
    file = recorded(name)

    def run(at: Any) -> Any:
        return layer_files.feed_forward(file, at)

    assert_close("y", run(layer_files.inputs(file)), file.tensors["out/y"], ANALYTIC)
    assert gradients(file, run, entries=True) < ANALYTIC.bound


@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", files("sliding_window_attention"))
def test_the_loops_are_the_recorded_attentions_with_caches_prefixes_and_gradients(
    name: str,
) -> None:
    assert len(files("sliding_window_attention")) == 9
    file = recorded(name)
    at, calls = layer_files.inputs(file), file.settings["calls"]
    y, caches = layer_files.attention(file, at, calls, prefix=False)
    assert_close("y", y, file.tensors["out/y"], ANALYTIC)
    if "cache" in name:
        keys, values = (np.array([getattr(c, of) for c in caches]) for of in ("keys", "values"))
        assert_close("keys", keys, file.tensors["out/cache/k"], ANALYTIC)
        assert_close("values", values, file.tensors["out/cache/v"], ANALYTIC)
    want = file.tensors["out/y_prefix"]
    for cut in (calls, [1] * want.shape[1]):
        y, _ = layer_files.attention(file, at, cut, prefix=True)
        assert_close(f"the last row of each prefix, {cut}", y, want, ANALYTIC)

    def run(at: Any) -> Any:
        return layer_files.attention(file, at, calls, prefix=False)[0]

    assert gradients(file, run, entries=False) < ANALYTIC.bound


@pytest.mark.sample(2)
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize(("name", "kind"), BLOCKS)
def test_the_loops_are_the_recorded_blocks_with_memories_and_gradients(
    name: str, kind: str
) -> None:
    assert len(BLOCKS) == 6
    file = recorded(name)
    y, memory = layer_files.block(file, layer_files.inputs(file), kind)
    assert_close("y", y, file.tensors["out/y"], ANALYTIC)
    states = file.named("out/state/")
    assert bool(states) == (kind != "mac")
    for key, array in states.items():
        assert_close(key, memory[key], array, ANALYTIC)

    def run(at: Any) -> Any:
        return layer_files.block(file, at, kind)[0]

    assert gradients(file, run, entries=False) < ANALYTIC.bound
