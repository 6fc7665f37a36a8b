"""Random inputs of a schedule, and schedules made by what they have to show (SCHED-11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.serving.parameters import Parameters
from atlas_ref.oracle.serving.plan import CALLS, moments
from atlas_ref.oracle.subjects.subject import Preset
from atlas_ref.types import Array

#: Tokens of the blocks around which `full` has calls.
BLOCK = 4


def full() -> list[dict[str, Any]]:
    """Steps that show what is known to go wrong (SCHED-11)."""
    decode: dict[str, Any] = {"op": "decode", "r": [0]}
    return [
        {"op": "prefill", "r": 0, "n": BLOCK + 1},
        {"op": "snapshot", "r": 0, "name": "shared"},
        *[decode] * 2,
        {"op": "draft", "r": 0, "rows": [0, 1, 2], "accept": 2},
        {"op": "draft", "r": 0, "rows": [3, 4], "accept": 0},
        {"op": "prefill", "r": 0, "n": BLOCK - 1},
        {"op": "prefill", "r": 0, "n": 2},
        {"op": "prefill", "r": 0, "n": BLOCK},
        decode,
        {"op": "restore", "r": 1, "from": 0, "name": "shared", "at": BLOCK + 1},
        {"op": "prefill", "r": 1, "n": 3},
        {"op": "decode", "r": [0, 1]},
        {"op": "free", "r": 0},
        {"op": "packed", "r": [2, 1, 3], "n": [7, 0, 5], "fresh": [True, False, True]},
        {"op": "packed", "r": [1, 2, 3], "n": [3, 2, 6]},
        {"op": "padded", "r": [1, 2, 3], "n": [4, 2, 1], "width": 5, "side": "left"},
        {"op": "padded", "r": [1, 2, 3], "n": [3, 2, 4], "width": 6, "side": "right"},
        {"op": "draft", "r": 2, "rows": [5, 6, 7], "accept": 3},
        {"op": "decode", "r": [1, 2, 3]},
    ]


def prefill_decode() -> list[dict[str, Any]]:
    """One call of 16 tokens, then 8 of one."""
    return [{"op": "prefill", "r": 0, "n": 16}, *[{"op": "decode", "r": [0]}] * 8]


_OWN = {"member": "gated_delta", "heads": 2, "d_in": 4, "d_out": 4}

#: Settings of new cases by a name; a parameter beside it stands in the place of these.
PRESETS = {
    name: Preset({**_OWN, "conv": 4, "qk_norm": True, "schedule": steps}, {})
    for name, steps in (("full", full()), ("prefill_decode", prefill_decode()))
}

#: Gate -> its value from a normal number, within what a layer has.
_VALUES: Mapping[str, Any] = {
    "g": lambda z: -np.exp(z - 2.0),
    "beta": lambda z: 1.0 / (1.0 + np.exp(-z)),
    "a": lambda z: 1.0 / (1.0 + np.exp(-z)),
    "mu": lambda z: 1.0 / (1.0 + np.exp(-z)),
    "eta": lambda z: 0.3 / (1.0 + np.exp(-z)),
    "dt_raw": lambda z: 2.0 * z,
}


def draw(own: Parameters, tokens: int, generator: Any) -> dict[str, Array]:
    """Random inputs that carry a schedule out, with padding that is not zero (SCHED-11).

    Args:
        tokens: of each request, at least; there are as many as the schedule reads.
    """
    looked = list(moments(own))
    requests = 1 + max(each.part.request for each in looked)
    ends = [each.first + each.part.tokens for each in looked if each.step.op in CALLS]
    tokens = max([tokens, *ends, *(each.last or 0 for each in looked)])
    rows = 1 + max([i for each in looked for i in each.step.rows], default=-1)
    found: dict[str, Array] = {}
    for prefix, front, gate_front in (
        ("", (requests, tokens), (requests, own.heads, tokens)),
        ("draft_", (rows,), (rows, own.heads)),
        ("pad_", (), (own.heads,)),
    ):
        if prefix == "draft_" and not rows:
            continue
        found[f"in/{prefix}x"] = generator.standard_normal((*front, own.channels))
        for name, of_channel in own.of.gates.items():
            shape = (*gate_front, *((own.d_in,) if of_channel else ()))
            found[f"in/{prefix}{name}"] = _VALUES[name](generator.standard_normal(shape))
    for name in own.of.weights:
        found[f"in/{name}"] = generator.standard_normal(own.heads) - 1.0
    if own.conv:
        shape = (own.channels, own.conv)
        found["in/conv_w"] = generator.standard_normal(shape) / np.sqrt(own.conv)
    _share(own, found)
    return found


def _share(own: Parameters, found: dict[str, Array]) -> None:
    """Give requests that go on from another one its first tokens, and kept drafts their own."""
    sources = dict[str, int]()
    for each in moments(own):
        if each.step.op == "snapshot":
            sources[each.step.name] = each.part.request
        elif each.step.op == "restore":
            r, count, source = each.part.request, each.step.at, sources[each.step.name]
            found["in/x"][r, :count] = found["in/x"][source, :count]
            for name in own.of.gates:
                found[f"in/{name}"][r, :, :count] = found[f"in/{name}"][source, :, :count]
    for each in moments(own):
        r, first = each.part.request, each.first
        for i, row in enumerate(each.step.rows[: each.step.accept]):
            found["in/draft_x"][row] = found["in/x"][r, first + i]
            for name in own.of.gates:
                found[f"in/draft_{name}"][row] = found[f"in/{name}"][r, :, first + i]
