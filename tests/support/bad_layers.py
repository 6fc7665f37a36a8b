"""Cases of layers that are refused: the change to a recorded one, and its refusal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.support.casefiles import GONE, changed, last_entry, written
from tests.support.layer_cases import layer_case

ATTENTION, FEED, NORM, HEADS = (
    "attention_w5_p3",
    "feed_forward_mult1",
    "rms_norm",
    "multihead_rms_norm",
)


class Bad(NamedTuple):
    """A fault of a recorded case.

    Attributes:
        name: of the file that is changed.
        message: beginning of the refusal.
        header, tensors, parameters: changes.
        schema: whether JSON Schema refuses the header too.
    """

    name: str
    message: str
    header: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    schema: bool = True


def case_of(bad: Bad, folder: Any) -> Any:
    return written(folder / "bad.safetensors", header_of(bad), changed(*tensors_of(bad)))


def header_of(bad: Bad) -> dict[str, Any]:
    header, _ = layer_case(bad.name)
    own = {"parameters": changed(header["parameters"], bad.parameters)} if bad.parameters else {}
    return changed(header, own | bad.header)


def tensors_of(bad: Bad) -> tuple[dict[str, Any], dict[str, Any]]:
    _, tensors = layer_case(bad.name)
    return tensors, {
        key: value(tensors[key]) if callable(value) else value for key, value in bad.tensors.items()
    }


HEADER: dict[str, Bad] = {
    "no layer": Bad(NORM, "layer: missing, rule layer needs it: rms_norm, ", {"layer": GONE}),
    "layer null": Bad(NORM, "layer: missing, rule layer needs it: ", {"layer": None}),
    "unknown layer": Bad(
        NORM, "layer: must be 'rms_norm', 'multihead_rms_norm', ", {"layer": "layer_norm"}
    ),
    "layer as a number": Bad(NORM, "layer: must be 'rms_norm', ", {"layer": 3}),
    "no parameters": Bad(
        NORM, "parameters: missing, layer rms_norm needs them", {"parameters": GONE}
    ),
    "parameters as a list": Bad(NORM, "parameters: must be ", {"parameters": [12]}),
    "parameters of a later layer as a word": Bad(
        NORM, "parameters: must be ", {"layer": "mag_block", "parameters": "x"}
    ),
    "no parameters of a later layer": Bad(
        NORM, "parameters: missing, layer mag_block", {"layer": "mag_block", "parameters": GONE}
    ),
    "a window": Bad(NORM, "window: the rule layer has none; it has schema, ", {"window": 3}),
    "a level": Bad(NORM, "level: the rule layer has none", {"level": "token"}),
    "a convention": Bad(NORM, "convention: the rule layer has none", {"convention": "spec"}),
    "a form": Bad(NORM, "form: the rule layer has none", {"form": "scan"}),
    "levels": Bad(NORM, "levels: the rule layer has none", {"levels": [{"rule": "delta"}]}),
    "a layer of a memory": Bad(
        NORM, "layer: the rule delta has none", {"rule": "delta", "parameters": GONE}
    ),
    "a note as a number": Bad(NORM, "note: must be a string, found 3", {"note": 3}),
}

PARAMETERS: dict[str, Bad] = {
    "unknown parameter": Bad(
        ATTENTION,
        "parameters.windw_size: layer sliding_window_attention has none; it has dim, heads, ",
        parameters={"windw_size": 5},
    ),
    "calls of a feed-forward": Bad(
        FEED, "parameters.calls: layer feed_forward has none", parameters={"calls": [5]}
    ),
    "no dim": Bad(FEED, "parameters.dim: missing", parameters={"dim": GONE}),
    "dim 0": Bad(FEED, "parameters.dim: must be at least 1, found 0", parameters={"dim": 0}),
    "dim as a word": Bad(
        FEED, "parameters.dim: must be an integer, found '12'", parameters={"dim": "12"}
    ),
    "dim as a fraction": Bad(
        FEED, "parameters.dim: must be an integer, found 12.5", parameters={"dim": 12.5}
    ),
    "dim true": Bad(
        FEED, "parameters.dim: must be an integer, found true", parameters={"dim": True}
    ),
    "dim null": Bad(
        FEED, "parameters.dim: must be an integer, found null", parameters={"dim": None}
    ),
    "mult 0": Bad(FEED, "parameters.mult: ", parameters={"mult": 0}),
    "a hidden layer without an entry": Bad(
        FEED,
        "parameters.mult: 0.01 leaves the hidden layer of dim 12 empty",
        parameters={"mult": 0.01},
        schema=False,
    ),
    "eps as another word": Bad(NORM, "parameters.eps: must be ", parameters={"eps": "machine"}),
    "eps 0": Bad(NORM, "parameters.eps: ", parameters={"eps": 0}),
    "heads -1": Bad(
        HEADS, "parameters.heads: must be at least 1, found -1", parameters={"heads": -1}
    ),
    "an odd head": Bad(ATTENTION, "parameters.dim_head: ", parameters={"dim_head": 5}),
    "window_size 0": Bad(
        ATTENTION, "parameters.window_size: must be at least 1", parameters={"window_size": 0}
    ),
    "a base of 0": Bad(ATTENTION, "parameters.rotary_base: ", parameters={"rotary_base": 0}),
    "calls as a number": Bad(
        ATTENTION,
        "parameters.calls: must be a list of whole numbers from 1, found 12",
        parameters={"calls": 12},
    ),
    "no call": Bad(ATTENTION, "parameters.calls: must be a list ", parameters={"calls": []}),
    "a call of 0": Bad(
        ATTENTION, "parameters.calls: must be a list ", parameters={"calls": [12, 0]}
    ),
    "a call of true": Bad(
        ATTENTION, "parameters.calls: must be a list ", parameters={"calls": [11, True]}
    ),
    "calls of other tokens": Bad(
        ATTENTION,
        "parameters.calls: 11 tokens in all, but in/x has 12",
        parameters={"calls": [6, 5]},
        schema=False,
    ),
}

CACHE = np.zeros((2, 2, 3, 4))
TENSORS: dict[str, Bad] = {
    "no tokens": Bad(NORM, "in/x: missing, axes (..., T, dim) are needed", tensors={"in/x": GONE}),
    "no weight": Bad(
        NORM, "in/param/weight: missing, axes (dim) are needed", tensors={"in/param/weight": GONE}
    ),
    "no frequencies": Bad(
        ATTENTION,
        "in/param/rotary_emb.freqs: missing, ",
        tensors={"in/param/rotary_emb.freqs": GONE},
    ),
    "no persistent rows": Bad(
        ATTENTION, "in/param/persist_mem: missing, ", tensors={"in/param/persist_mem": GONE}
    ),
    "persistent rows that are not there": Bad(
        "attention_w5_p0",
        "in/param/persist_mem: unknown tensor for layer sliding_window_attention; it has in/x, ",
        tensors={"in/param/persist_mem": np.zeros((2, 3, 4))},
    ),
    "a name of another layer": Bad(
        FEED, "in/param/gamma: unknown tensor for ", tensors={"in/param/gamma": np.zeros(12)}
    ),
    "a name that is misspelt": Bad(
        FEED,
        "in/param/1.wieght: unknown tensor for layer feed_forward; it has in/x, ",
        tensors={"in/param/1.wieght": np.zeros((16, 12))},
    ),
    "keys of a memory": Bad(NORM, "in/k: unknown tensor for ", tensors={"in/k": np.zeros((3, 2))}),
    "a weight of another length": Bad(
        NORM,
        "in/param/weight: shape (11,) makes dim 11, but parameters makes it 12",
        tensors={"in/param/weight": np.ones(11)},
    ),
    "a weight with an axis more": Bad(
        NORM,
        "in/param/weight: shape (1, 12), expected axes (dim)",
        tensors={"in/param/weight": np.ones((1, 12))},
    ),
    "a projection that is transposed": Bad(
        ATTENTION,
        "in/param/to_out.weight: shape (8, 9) makes dim 8, but parameters makes it 9",
        tensors={"in/param/to_out.weight": lambda w: np.ascontiguousarray(w.T)},
    ),
    "tokens of another length": Bad(
        FEED, "in/x: shape (2, 5, 11) makes dim 11", tensors={"in/x": np.ones((2, 5, 11))}
    ),
    "tokens without a batch": Bad(
        FEED, "in/x: shape (5, 12), expected axes (B, T, dim)", tensors={"in/x": np.ones((5, 12))}
    ),
    "no token": Bad(
        FEED,
        "in/x: axis T has size 0, at least 1 is needed",
        tensors={"in/x": np.ones((2, 0, 12)), "in/y_bar": GONE},
    ),
    "no sequence": Bad(
        FEED,
        "in/x: axis B has size 0, at least 1 is needed",
        tensors={"in/x": np.ones((0, 5, 12)), "in/y_bar": GONE},
    ),
    "a cotangent of other tokens": Bad(
        FEED,
        "in/y_bar: shape (2, 4, 12) makes T 4, but in/x makes it 5",
        tensors={"in/y_bar": np.ones((2, 4, 12))},
    ),
    "whole tokens": Bad(
        FEED,
        "in/x: dtype int64, float64, float32, ",
        tensors={"in/x": np.ones((2, 5, 12), np.int64)},
    ),
    "a complex weight": Bad(
        NORM,
        "in/param/weight: dtype complex64",
        tensors={"in/param/weight": np.ones(12, np.complex64)},
    ),
    "a token that is NaN": Bad(
        FEED,
        "in/x: entries must be finite, found nan at (1, 4, 11)",
        tensors={"in/x": last_entry(np.nan)},
    ),
    "an infinite weight": Bad(
        ATTENTION,
        "in/param/to_qkv.weight: entries must be finite, found inf at (23, 8)",
        tensors={"in/param/to_qkv.weight": last_entry(np.inf)},
    ),
    "a cotangent that is NaN": Bad(
        HEADS,
        "in/y_bar: entries must be finite, found nan",
        tensors={"in/y_bar": last_entry(np.nan)},
    ),
    "a negative frequency": Bad(
        ATTENTION,
        "in/param/rotary_emb.freqs: entries must be at least 0, found -1.0 at (1,)",
        tensors={"in/param/rotary_emb.freqs": last_entry(-1.0)},
    ),
    "half a cache": Bad(
        ATTENTION,
        "in/cache/v: missing, axes (B, heads, rows, dim_head) are needed",
        tensors={"in/cache/k": CACHE},
    ),
    "a cache of two lengths": Bad(
        ATTENTION,
        "in/cache/v: shape (2, 2, 2, 4) makes rows 2, but in/cache/k makes it 3",
        tensors={"in/cache/k": CACHE, "in/cache/v": CACHE[:, :, 1:]},
    ),
    "a cache that is longer than the window": Bad(
        ATTENTION,
        "in/cache/k: 6 rows, at most window_size = 5 fit",
        tensors={"in/cache/k": np.zeros((2, 2, 6, 4)), "in/cache/v": np.zeros((2, 2, 6, 4))},
    ),
    "a cache of another batch": Bad(
        ATTENTION,
        "in/cache/k: shape (1, 2, 3, 4) makes B 1, but in/x makes it 2",
        tensors={"in/cache/k": CACHE[:1], "in/cache/v": CACHE[:1]},
    ),
    "numbers to draw with and nothing to continue": Bad(
        "lm_mag", "in/uniform: needs in/prompt", tensors={"in/prompt": GONE}
    ),
    "a tensor outside": Bad(
        NORM, "'x/y': tensor names start with in/", tensors={"x/y": np.ones(2)}
    ),
}

MODEL, MAC = "lm_mag", "lm_mac"

MODELS: dict[str, Bad] = {
    "no vocab": Bad(MODEL, "parameters.vocab: missing", parameters={"vocab": GONE}),
    "no depth": Bad("lm_memory_only", "parameters.depth: missing", parameters={"depth": GONE}),
    "a depth without end": Bad(
        MODEL, "parameters.depth: must be at most 1000", parameters={"depth": 10**6}
    ),
    "a feed-forward without end": Bad(
        MODEL, "parameters.ff_mult: must be at most ", parameters={"ff_mult": 1e308}
    ),
    "no repeated call": Bad(
        MAC, "parameters.repeat_calls: must have at least 1 entry", parameters={"repeat_calls": []}
    ),
    "calls without end": Bad(
        MAC,
        "parameters.repeat_calls: must have at most 1000 entries",
        parameters={"repeat_calls": [5] * 1001},
    ),
    "no share": Bad(
        "sampling", "parameters.min_p: must have at least 1 entry", parameters={"min_p": []}
    ),
}

TABLE: dict[str, Bad] = {
    f"{kind}: {name}": bad
    for kind, table in (
        ("header", HEADER),
        ("parameters", PARAMETERS),
        ("models", MODELS),
        ("tensors", TENSORS),
    )
    for name, bad in table.items()
}
