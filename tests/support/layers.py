"""Layers for tests: what public code recorded of them, and one of each kind for the properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from atlas_ref import backend
from atlas_ref.layers import attention, convolution, feed_forward, neural_memory, norm, rotary

DATA = Path(__file__).parents[1] / "data"
RECORDED = DATA / "peers_layers"


class Recorded(NamedTuple):
    """A file of public code: its settings, and its tensors by name."""

    settings: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]

    def named(self, start: str) -> dict[str, np.ndarray[Any, Any]]:
        """Tensors whose names begin so, by the rest of their names."""
        return {
            name.removeprefix(start): array
            for name, array in self.tensors.items()
            if name.startswith(start)
        }


def recorded(name: str, folder: str = "peers_layers") -> Recorded:
    """The file <name>_11.safetensors of a folder of `tests/data`."""
    path = DATA / folder / f"{name}_11.safetensors"
    header = _header(path)
    settings = header["parameters"] if "parameters" in header else header["config"]
    return Recorded(settings, safetensors.numpy.load_file(path))


def _header(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, "np") as file:
        header: dict[str, Any] = json.loads(file.metadata()["atlas_ref"])
    return header


def files(layer: str) -> list[str]:
    """Names of all recorded files of a layer."""
    return [
        path.name.removesuffix("_11.safetensors")
        for path in sorted(RECORDED.glob("*.safetensors"))
        if layer in (_header(path).get("layer"), _header(path)["rule"])
    ]


class Layer(NamedTuple):
    """A layer with its settings, for tokens (B, T, 6) or the axes of heads.

    Attributes:
        causal: whether no token changes what comes before it.
        splits: whether calls of any length together give what one call gives.
        documents: whether documents may be packed into a call.
        before: tokens that a memory sees before each document.
    """

    module: Any
    config: Any
    heads: int | None = None
    causal: bool = True
    splits: bool = True
    documents: bool = True
    before: int = 0

    def tokens(self, count: int, seed: int = 0, batch: int = 2) -> Any:
        """Tokens of that number, in the backend in use."""
        heads = () if self.heads is None else (self.heads,)
        x = np.random.default_rng(seed).standard_normal((batch, *heads, count, 6))
        return backend.device(x)

    def drawn(self, seed: int = 0) -> Any:
        """Parameters away from their start, so that each shows."""
        draw = np.random.default_rng(seed)

        def moved(x: Any) -> Any:
            return x + backend.current().from_host(0.3 * draw.standard_normal(x.shape))

        return backend.changed(self.module.init(self.config, seed), moved)

    def run(self, params: Any, x: Any, cuts: Any = (), reset: Any = None, state: Any = None) -> Any:
        """The state and results of a call, or of several cut from it."""
        state = self.module.start(self.config, x.shape[0]) if state is None else state
        results = []
        for part in np.split(np.arange(x.shape[-2]), sorted(cuts)):
            if len(part):
                each = None if reset is None else reset[part]
                state, y = self.module.apply(
                    self.config, params, state, x[..., part, :], reset=each
                )
                results.append(y)
        return state, np.concatenate(results, axis=-2)


def _attention(**settings: Any) -> attention.Config:
    fields: dict[str, Any] = {
        "d_model": 6,
        "heads": 2,
        "d_head": 4,
        "window": 3,
        "persistent": 2,
        "norm": norm.Config(kind="rms", d=6, eps=1e-6),
        "rotary": rotary.Config(d=4),
    }
    return attention.Config(**fields | settings)


def _neural(**settings: Any) -> neural_memory.Config:
    """A neural memory whose steps are small beside 1, so that 70 tokens stay moderate."""
    fields: dict[str, Any] = {"expansion": 1.5, "max_step": 0.3, "depth": 1, "chunk": 3}
    return neural_memory.configured(6, **fields | settings)


BEFORE = {"persistent_kind": "prepended"}
LAST = {"attention_window": "last_keys_of_call", "persistent_visible": "right_aligned"}
LAYERS: dict[str, Layer] = {
    "norm rms": Layer(norm, norm.Config(kind="rms", d=6, eps=1e-6)),
    "norm layer": Layer(norm, norm.Config(kind="layer", d=6, eps="machine")),
    "norm head": Layer(norm, norm.Config(kind="rms", d=6, heads=2, eps=1e-8, guard="clamp"), 2),
    "norm l2": Layer(norm, norm.Config(kind="l2", d=6, eps=1e-6, weighted=False)),
    "norm none": Layer(norm, norm.Config(kind="none", d=6)),
    "rotary": Layer(rotary, rotary.Config(d=6)),
    "rotary halves": Layer(rotary, rotary.Config(d=6, pairs="halves", base=100.0)),
    "rotary restart": Layer(rotary, rotary.Config(d=6, position="restart"), splits=False),
    "convolution": Layer(convolution, convolution.Config(d_model=6, kernel=4)),
    "convolution silu": Layer(
        convolution, convolution.Config(d_model=6, kernel=3, activation="silu", bias=True)
    ),
    "convolution one tap": Layer(convolution, convolution.Config(d_model=6, kernel=1)),
    "convolution two centred": Layer(
        convolution, convolution.Config(d_model=6, kernel=2, padding="centred")
    ),
    "convolution per call": Layer(
        convolution,
        convolution.Config(d_model=6, kernel=4, state="zero_per_call"),
        splits=False,
    ),
    "convolution centred": Layer(
        convolution,
        convolution.Config(d_model=6, kernel=4, padding="centred", state="zero_per_call"),
        causal=False,
        splits=False,
    ),
    "feed_forward": Layer(
        feed_forward,
        feed_forward.Config(d_model=6, d_inner=3, norm=norm.Config(kind="rms", d=6, eps=1e-6)),
    ),
    "feed_forward gelu first": Layer(
        feed_forward,
        feed_forward.Config(
            d_model=6,
            d_inner=3,
            norm=norm.Config(kind="none", d=6),
            gate_half="first",
            activation="gelu",
            bias=False,
        ),
    ),
    "attention": Layer(attention, _attention()),
    "attention window 1": Layer(attention, _attention(window=1, persistent=0)),
    "attention window 9": Layer(attention, _attention(window=9, window_counts_self=False)),
    "attention window 40": Layer(attention, _attention(window=40)),
    "attention no positions": Layer(attention, _attention(rotary=None)),
    "attention head norm": Layer(
        attention,
        _attention(head_norm=norm.Config(kind="rms", d=4, heads=2, eps=1e-8, guard="clamp")),
    ),
    "attention halves": Layer(attention, _attention(rotary=rotary.Config(d=4, pairs="halves"))),
    "attention restart": Layer(
        attention, _attention(rotary=rotary.Config(d=4, position="restart")), splits=False
    ),
    "attention tokens before": Layer(attention, _attention(**BEFORE)),
    "attention tokens before, window": Layer(
        attention, _attention(**BEFORE, persistent_visible="window", persistent=4)
    ),
    "attention tokens before, halves": Layer(
        attention,
        _attention(**BEFORE, rotary=rotary.Config(d=4, pairs="halves"), window_counts_self=False),
    ),
    "attention tokens before, no positions": Layer(attention, _attention(**BEFORE, rotary=None)),
    "attention last keys": Layer(
        attention, _attention(**LAST), causal=False, splits=False, documents=False
    ),
    "neural_memory": Layer(neural_memory, _neural()),
    "neural_memory heads": Layer(
        neural_memory,
        _neural(heads=2, d_head=3, depth=2, chunk=2, refresh=4, momentum_order=2),
    ),
    "neural_memory token": Layer(
        neural_memory,
        _neural(heads=2, d_head=3, chunk=1, refresh=1, momentum=False, clip=4.0),
    ),
}
