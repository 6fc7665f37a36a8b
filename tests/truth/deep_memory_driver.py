"""Rows and their memories on the way through all calls of a memory that learns at test time.

Settings are those of `deep_memory_loops`, where the rule stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.truth import bias_loops, retention_loops
from tests.truth import deep_memory_functions as functions
from tests.truth import deep_memory_write as steps

Array = np.ndarray
Tensors = dict[str, Any]

DEFAULTS: Tensors = {
    "memory": {},
    "chunk": 1,
    "window": None,
    "window_decay": 1.0,
    "bias": {"kind": "l2"},
    "reduction": "sum",
    "coupling": "per_sample",
    "read": "completed",
    "unfinished": "wait",
    "memory_reset": "sequence",
    "momentum_reset": "sequence",
    "phase": "both",
}


class Group:
    """Rows that share a memory, and its state.

    Attributes:
        rows: their numbers.
        fixed: tensors that no write changes.
        W, S, ref: the memory, its momentum, and the memory where gradients are taken.
        writes: since the document began.
        waiting: tokens of the unfinished chunk.
        pairs: of the last window tokens, oldest first: a list over rows of (k, v, weight).
    """

    def __init__(self, rows: list[int], tensors: Tensors, s: Tensors, f: functions.Function):
        one = {name: _of_row(name, a, rows[0]) for name, a in tensors.items()}
        read = {name: one[name] for name in functions.names(f, one)}
        fast = steps.fast_names(read, s["fast"], s["vectors"])
        self.rows, self.one, self.s = rows, one, s
        self.fixed = {name: a for name, a in read.items() if name not in fast}
        self.first = {name: read[name] for name in fast}
        zero = {name: 0.0 * a for name, a in self.first.items()}
        self.zero = {name: one.get(f"momentum/{name}", zero[name]) for name in fast}
        if s["deep_momentum"] is not None:
            own = [name for name in one if name.startswith("momentum/")]
            self.zero = {name.removeprefix("momentum/"): one[name] for name in own}
        self.W, self.S, self.ref = self.first, self.zero, self.first
        self.writes, self.waiting = 0, 0
        self.pairs: list[Any] = []

    def begin(self, memory: bool, momentum: bool) -> None:
        """Begin a document, from W_0 and S_0 where asked."""
        self.W = self.first if memory else self.W
        self.S = self.zero if momentum else self.S
        self.ref, self.writes, self.waiting, self.pairs = self.W, 0, 0, []

    def parameters(self) -> Tensors:
        return self.fixed | mapped(self.s, self.W)


def mapped(s: Tensors, fast: Tensors) -> Tensors:
    """The fast tensors with which the function computes."""
    return {
        name: retention_loops.seen(a, **s["retention"]) if np.ndim(a) == 2 else a
        for name, a in fast.items()
    }


def _of_row(name: str, tensor: Any, row: int) -> Array:
    """A tensor, or that of a row where each has its own."""
    tensor, last = np.asarray(tensor), name.rpartition("momentum/")[2]
    rank = 0 if last == "read_scale" else 1 if last.endswith(("gain", "bias")) else 2
    return tensor[row] if tensor.ndim > rank else tensor


def complete(settings: Tensors) -> Tensors:
    """Settings with their defaults."""
    s = DEFAULTS | steps.DEFAULTS | settings
    s = {"span": s["chunk"]} | s
    unknown = set(s) - {*DEFAULTS, *steps.DEFAULTS, "span", "outer_gradient"}
    if unknown:
        raise ValueError(f"settings: unknown {sorted(unknown)}")
    s["window"] = s["chunk"] if s["window"] is None else s["window"]
    if s["span"] not in (None, "call") and s["span"] % s["chunk"]:
        raise ValueError(f"span {s['span']} is no multiple of chunk {s['chunk']}")
    return s


class Driver:
    """Rows and their memories on the way through all calls.

    Attributes:
        reading: of each token (b, t) the tensors that it read.
        log: of each write what `steps.write` returned beside the state.
        constant: such a log, whose updates are written instead; or None.
    """

    def __init__(
        self,
        s: Tensors,
        tensors: Tensors,
        k: Array,
        v: Array,
        q: Array,
        gates: Tensors,
        reset: Any,
        training: bool,
    ):
        (B, T), shared = k.shape[:2], s["coupling"] == "batch_shared"
        self.s, self.f = s, functions.Function(**s["memory"])
        self.k, self.v, self.q = k, v, q
        self.reset = np.zeros((B, T), bool) if reset is None else np.asarray(reset, bool)
        own = gates.get("threshold", s["bias"].get("threshold", 1.0))
        self.thresholds = np.broadcast_to(np.asarray(own), (B, T))
        gates = {name: a for name, a in gates.items() if name != "threshold"}
        self.gates = steps.of_tokens(gates, B, T)
        if shared and not all(np.array_equal(row, self.reset[0]) for row in self.reset):
            raise ValueError("reset: rows of one memory begin documents together")
        if shared and any(np.ndim(a) == 2 for n, a in gates.items() if n != "window_gate"):
            raise ValueError("gates: rows of one memory share retain, momentum and step_size")
        rows = [list(range(B))] if shared else [[b] for b in range(B)]
        self.groups = [Group(each, tensors, s, self.f) for each in rows]
        self.writing = {"both": True, "train": training, "infer": not training, "off": False}[
            s["phase"]
        ]
        self.reading: dict[tuple[int, int], Tensors] = {}
        self.log: list[Any] = []
        self.constant: Any = None

    def call(self, first: int, last: int) -> None:
        """Write and read the tokens from first to before last."""
        for group in self.groups:
            memory, momentum = (
                self.s[f"{name}_reset"] == "batch" for name in ("memory", "momentum")
            )
            if memory:
                group.begin(True, momentum)
            group.S = group.zero if momentum else group.S
            if self.s["span"] == "call":
                group.ref = group.W
            start = first
            for t in range(first, last):
                if self.reset[group.rows[0], t]:
                    self.close(group, start, t)
                    start = t
                    group.begin(
                        *(self.s[f"{name}_reset"] == "sequence" for name in ("memory", "momentum"))
                    )
                before = group.parameters()
                if self.writing:
                    self.take(group, t)
                after = group.parameters()
                for b in group.rows:
                    self.reading[b, t] = before if self.s["read"] == "chunk_start" else after
            self.close(group, start, last)

    def take(self, group: Group, t: int) -> None:
        """Put a token into the window, and write where it ends its chunk."""
        weights = self.gates["window_gate"]
        limits = self.thresholds
        new = [(self.k[b, t], self.v[b, t], weights[b, t], limits[b, t]) for b in group.rows]
        group.pairs = [*group.pairs, new][-self.s["window"] :]
        group.waiting += 1
        if group.waiting == self.s["chunk"]:
            self.write(group, t)

    def close(self, group: Group, start: int, last: int) -> None:
        """End a call, or its part of a document."""
        if self.s["unfinished"] == "flush" and group.waiting and last > start:
            self.write(group, last - 1)
        if self.s["read"] == "call_end":
            for b in group.rows:
                for t in range(start, last):
                    self.reading[b, t] = group.parameters()

    def write(self, group: Group, t: int) -> None:
        g = self.loss_gradient(group)
        gates = {name: a[group.rows[0], t] for name, a in self.gates.items()}
        fixed = None if self.constant is None else self.constant[len(self.log)]
        span, lag = self.s["span"], self.s["retention"].get("lag", False)
        first = lag and group.writes % (span // self.s["chunk"]) == 0
        group.W, group.S, kept = steps.write(self.s, group.W, group.S, g, gates, fixed, first=first)
        group.ref = group.W if first else group.ref
        self.log.append(kept)
        group.writes, group.waiting = group.writes + 1, 0
        if span not in (None, "call") and group.writes % (span // self.s["chunk"]) == 0:
            group.ref = group.W

    def loss_gradient(self, group: Group) -> Tensors:
        """Of the window's loss by the fast tensors, at the reference."""
        p, count = group.fixed | mapped(self.s, group.ref), len(group.pairs)
        total = {name: 0.0 * a for name, a in group.W.items()}
        share = 1.0 / (len(group.rows) * count) if self.s["reduction"] == "mean" else 1.0
        for place, row in enumerate(group.pairs):
            for key, want, gate, limit in row:
                weight = self.s["window_decay"] ** (count - 1 - place) * gate * share
                if self.s["reduction"] == "features":
                    weight = weight / len(want)
                bias = {**self.s["bias"], "threshold": limit}
                slope = bias_loops.slope(functions.value(p, key, self.f), want, **bias)
                g, _ = functions.gradient(p, key, weight * slope, self.f)
                total = {name: a + g[name] for name, a in total.items()}
        return total

    def reads(self) -> Array:
        B, T = self.q.shape[:2]
        return np.array(
            [
                [functions.value(self.reading[b, t], self.q[b, t], self.f) for t in range(T)]
                for b in range(B)
            ]
        )

    def state(self) -> Tensors:
        of = {b: group for group in self.groups for b in group.rows}
        groups = [of[b] for b in range(len(of))]
        result: Tensors = {}
        for kind, each in (
            ("memory", [g.W for g in groups]),
            ("momentum", [g.S for g in groups]),
            ("reference", [g.ref for g in groups]),
        ):
            result |= {f"{kind}/{n}": np.array([row[n] for row in each]) for n in each[0]}
        result["writes"] = np.array([g.writes for g in groups])
        result["waiting"] = np.array([g.waiting for g in groups])
        kept = self.s["window"] - 1
        for i, name in enumerate(("keys", "values", "weights")):
            result[name] = [
                np.array(
                    [each[g.rows.index(b)][i] for each in g.pairs[max(0, len(g.pairs) - kept) :]]
                )
                for b, g in enumerate(groups)
            ]
        return result
