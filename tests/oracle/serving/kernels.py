"""Five kernels of the server by hand, cases of them, and random schedules that are legal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.serving import draw
from atlas_ref.oracle.serving.parameters import parse
from atlas_ref.oracle.sources.sources import respond
from tests.oracle.serving.server import serve

#: Parameters of each kernel.
KERNELS: dict[str, dict[str, Any]] = {
    "gated_delta": {"conv": 4, "qk_norm": True, "scale": 0.5, "d_out": 3},
    "kda": {"conv": 4, "qk_norm": True, "d_out": 3},
    "rwkv7": {"conv": 2, "conv_silu": False, "d_out": 4},
    "titans": {"rope": True, "scale": 0.5, "d_out": 3},
    "mamba2": {"conv": 4, "dt_min": 0.05, "dt_max": 0.8, "d_out": 3},
}


def case_of(member: str, steps: list[Any], seed: int = 0, tokens: int = 24) -> Case:
    """A case of a member under some steps."""
    parameters = {"member": member, "heads": 2, "d_in": 4, "schedule": steps, **KERNELS[member]}
    header = {"schema": 1, "rule": "schedule", "parameters": parameters}
    own = parse(type("Header", (), {"parameters": parameters, "rule": "schedule"}))
    return make(header, draw.draw(own, tokens, np.random.default_rng(seed)), name=member)


def source(fault: str = "") -> Callable[[Case], Answer]:
    """The server as what `check` asks."""
    return partial(respond, partial(serve, fault=fault))


def legal(seed: int, tokens: int = 24, length: int = 14) -> list[dict[str, Any]]:
    """Random steps of up to four requests that a server can carry out."""
    generator, steps = np.random.default_rng(seed), [{"op": "prefill", "r": 0, "n": 1}]
    at, kept, row = {0: 1}, dict[str, int](), 0

    def some(most: int) -> int:
        return int(generator.integers(0, most + 1))

    while len(steps) < length:
        op = generator.choice([*"ppdddkkcrf", "packed", "left", "right"])
        r, n = some(3), 1 + some(5)
        room = {each: tokens - place for each, place in at.items()}
        if op == "p" and n <= room.get(r, tokens):
            steps.append({"op": "prefill", "r": r, "n": n})
            at[r] = at.get(r, 0) + n
        elif op == "d" and (live := [each for each in at if room[each]]):
            steps.append({"op": "decode", "r": live})
            at |= {each: at[each] + 1 for each in live}
        elif op == "k" and r in at and n <= room[r]:
            accept = some(n)
            steps.append(
                {"op": "draft", "r": r, "rows": list(range(row, row + n)), "accept": accept}
            )
            at[r], row = at[r] + accept, row + n
        elif op == "c" and r in at and not any(each["op"] == "snapshot" for each in steps):
            steps.append({"op": "snapshot", "r": r, "name": "kept"})
            kept["kept"] = at[r]
        elif op == "r" and kept and not any(each["op"] == "restore" for each in steps):
            # of a request that has not begun, whose first tokens are then the other's
            if fresh := [each for each in range(4, 6) if each not in at]:
                place = kept["kept"]
                step = {"op": "restore", "r": fresh[0], "name": "kept", "at": place}
                steps.append(step)
                at[fresh[0]] = place
        elif op == "f" and len(at) > 1 and r in at:
            steps.append({"op": "free", "r": r})
            del at[r]
        elif op in ("packed", "left", "right"):
            requests = sorted({r, some(3), some(3)})
            counts = [min(some(5), tokens - at.get(each, 0)) for each in requests]
            step = {"op": "packed" if op == "packed" else "padded", "r": requests, "n": counts}
            fresh = [each not in at for each in requests]
            more = {"fresh": fresh} if op == "packed" else {"width": max(counts) + 1, "side": op}
            steps.append({**step, **more})
            at |= {each: at.get(each, 0) + n for each, n in zip(requests, counts, strict=True)}
    return steps
