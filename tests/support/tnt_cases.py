"""Cases of a TNT for tests: drawn settings as files, and the same for the literal loops."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.new import Request, new
from tests.support.casefiles import parts
from tests.truth import tnt_loops as loops

#: A case with every kind of tensor: a call within a document, each memory with something its own.
FULL: dict[str, Any] = {
    "tokens": 9,
    "d_in": 3,
    "d_out": 2,
    "history": 5,
    "reset": 6,
    "cotangent": True,
    "convention": {"newton_schulz": "none"},
    "parameters": {
        "rule": "omega",
        "window": 2,
        "origin": 1,
        "global": {"span": 3},
        "locals": [
            {"span": 2, "shard": 4, "projection": {"norm": "sum_of_norms"}},
            {"span": 3, "shard": 5, "projection": {"range": "window", "window": 3}},
            {
                "span": 1,
                "shard": 3,
                "reset_momentum": "learned",
                "projection": {"kind": "learned"},
            },
        ],
    },
}


def made(**request: Any) -> Any:
    """A small valid case."""
    sizes = {"tokens": 7, "d_in": 4, "d_out": 3, "heads": 2, "cotangent": True}
    return new(Request(**({"rule": "tnt", "draw": 1} | sizes | request)))


def some(**request: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and inputs of a small valid case."""
    return parts(made(**request))


class Drawn(NamedTuple):
    """A drawn case, and the reading of the loops that is the same."""

    request: dict[str, Any]
    reading: loops.Reading

    def memories(self, tensors: dict[str, Any], row: int) -> list[loops.Memory]:
        """The memories of a row for the loops."""
        given = self.request["parameters"]
        found = []
        if given["global"] is not None:
            found.append(memory(tensors, "global", row, given["global"]["span"], None))
        for i, each in enumerate(given["locals"]):
            found.append(memory(tensors, f"local{i}", row, each["span"], each["shard"]))
        return found


def drawn(number: int) -> Drawn:
    """Settings that the loops have words for: every memory has the same reading."""
    of = random.Random(number)
    rule = of.choice(["titans_lmm", "omega", "delta", "hebbian"])
    kind = of.choice(["sum_outer", "sum_outer", "orthogonal", "learned", "none"])
    projection: dict[str, Any] = {"kind": kind}
    if kind in ("sum_outer", "orthogonal"):
        projection["range"] = of.choice(["chunk", "shard", "sequence"])
        projection["own"] = of.choice(["inclusive", "exclusive"])
    norms = {"per_key": "each", "unit_keys_assumed": "none", "sum_of_norms": "sum"}
    if kind == "sum_outer":
        projection["norm"] = of.choice(list(norms))
        if of.random() < 0.25:
            projection |= {"range": "window", "window": of.choice([1, 2, 5])}
    momentum = (
        of.choice(["zero", "carry", "learned"]) if rule in ("titans_lmm", "omega") else "zero"
    )
    local = {
        "read": of.choice(["after", "before", "chunk_start"]),
        "base": of.choice(["chunk_start", "chunk_start", "running"]),
        "reset": of.choice(["before_write", "before_write", "instead_of_write"]),
        "reset_momentum": momentum,
        "chunk_origin": of.choice(["shard", "shard", "document"]),
        "writes": of.random() < 0.9,
        "projection": projection,
    }
    if local["read"] == "chunk_start":
        local["reset"] = "before_write"  # for which alone the loops have words
    spans, shards = of.choice([((2, 3), (4, 5)), ((1, 4), (3, 6)), ((3, 1), (7, 2))])
    count = of.choice([0, 1, 2])
    has_global = count == 0 or of.random() < 0.8
    read = of.choice(["chunk_start", "chunk_start", "after", "before", "none"])
    parameters: dict[str, Any] = {
        "rule": rule,
        "origin": of.choice([0, 1]),
        "global": {"span": of.choice([1, 3, 4]), "read": read} if has_global else None,
        "locals": [
            {"span": span, "shard": shard, **local}
            for span, shard in list(zip(spans, shards, strict=True))[:count]
        ],
    }
    convention = {}
    if rule == "omega":
        parameters["window"] = of.choice([1, 2, 3])
        convention = {"newton_schulz": "none"}
    request = {"parameters": parameters, "convention": convention, "tokens": 13, "seed": number}
    reading = loops.Reading(
        range=projection.get("window", projection.get("range", "chunk")),
        own=projection.get("own", "inclusive") == "inclusive",
        norm=norms[projection.get("norm", "per_key")],
        span=kind == "orthogonal",
        project=kind != "none",
        origin=parameters["origin"],
        absolute=local["chunk_origin"] == "document",
        carry=momentum == "carry",
        running=local["base"] == "running",
        lost=local["reset"] == "instead_of_write",
        still=not local["writes"],
        global_read={"chunk_start": "start"}.get(read, read),
        local_read={"chunk_start": "start"}.get(local["read"], local["read"]),
    )
    return Drawn(request, reading)


def memory(
    tensors: dict[str, Any], name: str, row: int, span: int, shard: int | None
) -> loops.Memory:
    """One memory of a row for the loops."""
    own = {}
    for each in ("k", "v", "q", "retain", "momentum", "step_size", "window_weights"):
        for key in (f"in/{name}/{each}", f"in/{each}"):
            if key in tensors:
                own[each] = tensors[key][row]
                break
    own["weights"] = own.pop("window_weights", None)
    first = tensors[f"in/{name}/M0"]
    S0 = tensors.get(f"in/{name}/S0")
    return loops.Memory(loops.Inputs(**own), _of_row(first, row), span, shard, _of_row(S0, row))


def _of_row(x: Any, row: int) -> Any:
    return x if x is None or x.ndim == 2 else x[row]


def cut(tensors: dict[str, np.ndarray], first: int, last: int) -> dict[str, np.ndarray]:
    """The tensors of some tokens."""
    found = {}
    for name, x in tensors.items():
        short = name.rpartition("/")[2]
        whole = name.startswith("in/state") or short in ("M0", "S0", "W_QK")
        axis = -2 if short in ("k", "v", "q", "y_bar", "window_weights") else -1
        found[name] = x if whole else np.take(x, range(first, last), axis=axis)
    return found


def resumed(results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state of results as inputs of the next call (TNTCASE-5)."""
    return {
        name.replace("out/", "in/", 1): x
        for name, x in results.items()
        if name.startswith("out/state/")
    }
