"""A case of a deep memory on balls: documents, chunks, reads, and the state behind them (CERT-17).

Written from DEEP-5 to DEEP-8, DEEP-14 to DEEP-21 and DEEPCASE-3 to DEEPCASE-7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flint import arb

from atlas_ref.certify.deep.biases import DEFAULTS as OF_BIAS
from atlas_ref.certify.deep.functions import Function
from atlas_ref.certify.deep.write import DEFAULTS, Gates, Pair, Writer
from atlas_ref.certify.functions import inverse, normalised
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, mark, number, scaled, total

Index = tuple[int, ...]
Watch = Callable[[str, int], None]


class Row:
    """The tokens of one row: pairs from before the call and of it, queries, slow tensors."""

    def __init__(
        self, inputs: Inputs, convention: Any, index: Index, bias: Mapping[str, Any]
    ) -> None:
        self.inputs, self.c, self.index = inputs, convention, index
        self.threshold = bias.get("threshold", OF_BIAS["threshold"])
        self.T = inputs.shape("in/k")[-2]
        self.before = inputs.shape("in/state/keys")[-2] if "in/state/keys" in inputs else 0
        self.held = [self._held(i) for i in range(self.before)]
        self.pairs = [self._pair(t) for t in range(self.T)]

    def _held(self, i: int) -> Pair:
        at = (*self.index, i)
        gate = self.inputs.optional("in/state/token_gates", *at)
        if gate is None and "in/window_gate" in self.inputs:
            gate = number(arb(1))
        threshold = self.inputs.optional("in/state/thresholds", *at)
        if threshold is None and "in/threshold" in self.inputs:
            threshold = number(arb(self.threshold))
        keys, values = (self.inputs.get(f"in/state/{name}", *at) for name in ("keys", "values"))
        return Pair(keys, values, gate, threshold)

    def _pair(self, t: int) -> Pair:
        at = (*self.index, t)
        return Pair(
            normalised(self.inputs.get("in/k", *at), self.c.k_norm, self.c),
            self.inputs.get("in/v", *at),
            self.inputs.optional("in/window_gate", *at),
            self.inputs.optional("in/threshold", *at),
        )

    def pair(self, token: int) -> Pair:
        """A pair by its number, those from before the call negative."""
        return self.pairs[token] if token >= 0 else self.held[token]

    def query(self, t: int) -> Matrix:
        q = normalised(self.inputs.get("in/q", *self.index, t), self.c.q_norm, self.c)
        if self.c.query_scale == "1/sqrt(d_in)":
            return q.times(1 / arb(q.rows).sqrt())
        return q.times(arb(self.c.query_scale))


class Memory:
    """One memory, and the rows that read and write it.

    Args:
        at: its place in the leading axes of a state.
        indices: those of its rows.
    """

    def __init__(self, writer: Writer, inputs: Inputs, at: Index, indices: Sequence[Index]) -> None:
        self.writer, self.inputs, self.at = writer, inputs, at
        self.s, self.c = writer.s, writer.c
        lead = inputs.shape("in/k")[:-2]
        self.lead = (1, *lead[1:]) if self._shared(lead) else lead
        self.rows = [Row(inputs, writer.c, index, writer.s["bias"]) for index in indices]
        self.slow = [
            {name: self._first(name, index) for name in writer.shapes if name not in writer.fast}
            for index in indices
        ]
        self.first = {name: self._first(name, at) for name in writer.fast}
        self.W = self._state("weights") or self.first
        self.network = {name: self._first(f"momentum/{name}", at) for name in writer.carried}
        self.S = self._state("momentum") or self.network
        self.reference = self._state("reference")
        self.source = self.W
        self.reads: list[list[Matrix]] = [[] for _ in indices]
        self.position = int(inputs.arrays.get("in/state/position", 0))
        self.known = list(range(-self.rows[0].before, 0))
        self.frozen = self.c.reference != "running" or self.c.read == "chunk_start"

    def _shared(self, lead: Index) -> bool:
        return self.s["coupling"] == "batch_shared" and bool(lead)

    def _first(self, name: str, index: Index) -> Matrix:
        """in/memory/NAME of a row, whose leading axes broadcast (DEEPCASE-4)."""
        key = f"in/memory/{name}"
        front = self.inputs.shape(key)[: len(self.inputs.shape(key)) - len(self.writer.shape(name))]
        own = index[len(index) - len(front) :]
        return self.inputs.get(key, *(i if n > 1 else 0 for i, n in zip(own, front, strict=True)))

    def _state(self, kind: str) -> dict[str, Matrix]:
        key = f"in/state/{kind}/"
        networked = kind == "momentum" and self.writer.network is not None
        return {
            name: self.inputs.get(key + name, *self.at)
            for name in (self.writer.carried if networked else self.writer.fast)
            if key + name in self.inputs
        }

    # -- the call ----------------------------------------------------------------------------------

    def run(self, watch: Watch, marks: list[int]) -> None:
        """Every token in turn (DEEP-14)."""
        inputs, T = self.inputs, self.rows[0].T
        if self.s["memory_reset"] == "batch":
            self.known, self.position, self.reference = [], 0, {}
        resets = (self.s["memory_reset"], self.s["momentum_reset"])
        if "batch" in resets:
            self._begin(*(each == "batch" for each in resets))
        waiting = 0
        for t in range(T):
            watch("tokens", t)
            marks.append(mark())
            if inputs.flag("in/reset", t, False):
                self._begin(*(each != "never" for each in resets))
                self.known, self.position, self.reference = [], 0, {}
            self._refresh()
            self.known.append(t)
            self.position += 1
            waiting += 1
            ends = t + 1 == T or inputs.flag("in/reset", t + 1, False)
            due = self.position % self.s["chunk"] == 0
            if self.c.read in ("before", "chunk_start"):
                self._read(t, self.W if self.c.read == "before" else self.reference)
            if self.c.read == "after" and not due:
                self._read(t, self.W)
            flushed = self.s["unfinished"] == "flush" and ends
            if self._writes() and inputs.flag("in/active", t, True) and (due or flushed):
                self._write(t)
            if self.c.read == "after" and due:
                self._read(t, self.W)
            if self.c.read == "call_end" and ends:
                for each in range(t + 1 - waiting, t + 1):
                    self._read(each, self.W)
            waiting = 0 if ends else waiting
        if self.s["unfinished"] == "flush":
            self.position += -self.position % self.s["chunk"]

    def _begin(self, memory: bool, momentum: bool) -> None:
        """W and S anew, or as they are (DEEP-16)."""
        self.W = self.first if memory else self._seen(self.W)
        self.S = self.network if momentum else self.S
        self.source = self.W

    def _refresh(self) -> None:
        """The reference where a span starts (DEEP-8)."""
        spans = self.c.reference != "call_start" and self.s["span"]
        if self.frozen and (not self.reference or (spans and self.position % self.s["span"] == 0)):
            self.reference = dict(self.W)

    def _writes(self) -> bool:
        phase = self.s["phase"]
        return bool(phase == "both" or phase == ("train" if self.s["training"] else "infer"))

    def _write(self, t: int) -> None:
        tokens = self.known[-self.s["window"] :]
        rows = [
            (slow, [row.pair(i) for i in tokens], self._weights(row, t, tokens))
            for slow, row in zip(self.slow, self.rows, strict=True)
        ]
        reference = self.W if self.c.reference == "running" else self.reference
        gates = Gates(*(self._gate(name, t) for name in GATES))
        if gates.retain is not None and self.c.gate == "forget":
            gates = gates._replace(retain=number(arb(1)) - gates.retain)
        if self.writer.s["outer_gradient"] in ("straight_through", "none"):
            W = {name: Matrix(x.value) for name, x in self.W.items()}
            gates = _cut(gates)
        else:
            W = dict(self.W)
        span = self.s["span"]
        first = bool(span) and (self.position - 1) % span < self.s["chunk"]
        self.W, self.S = self.writer.write(W, self.S, reference, rows, gates, first=first)
        if first and self.s["retention"].get("lag", False):
            self.reference = dict(self.W)

    def _gate(self, name: str, t: int) -> Matrix | None:
        """A gate of a write, the mean of the rows that share the memory (DEEP-13)."""
        own = [self.inputs.optional(f"in/{name}", *row.index, t) for row in self.rows]
        given = [each for each in own if each is not None]
        if not given or (name == "retain" and self.c.gate == "none"):
            return None
        return total(given, 1, 1).times(arb(1) / len(given))

    def _weights(self, row: Row, t: int, tokens: Sequence[int]) -> list[Matrix]:
        """Weights of the tokens of a write, oldest first (DEEP-7)."""
        c, n = self.s["window"], len(tokens)
        key = "in/window_weights"
        if key in self.inputs:
            lags = [self.inputs.get(key, *row.index, t, lag) for lag in range(c)]
        else:
            count = c if self.c.window_edge == "renormalise" else n
            lags = [number(_by_lag(self.s["window_weights"], lag, c)) for lag in range(count)]
        gates = [row.pair(i).gate for i in tokens]
        if self.c.window_edge == "renormalise" and gates[0] is None and n < c:
            whole, present = total(lags, 1, 1), total(lags[:n], 1, 1)
            if not present.value[0, 0].is_zero():
                share = scaled(inverse(present), whole)
                lags = [scaled(share, each) for each in lags]
        return [
            lag if gate is None else scaled(gate, lag)
            for lag, gate in zip(lags[:n][::-1], gates, strict=True)
        ]

    # -- what is seen of it ------------------------------------------------------------------------

    def _seen(self, W: Mapping[str, Matrix]) -> dict[str, Matrix]:
        """Weights as reads see them, by the outer gradient (DEEP-20, DEEP-21)."""
        kind = self.s["outer_gradient"]
        if kind == "none":
            return {name: Matrix(x.value) for name, x in W.items()}
        if kind == "straight_through":
            return {
                name: x
                if x is self.source[name]
                else Matrix(x.value, (self.source[name], lambda g: g))
                for name, x in W.items()
            }
        return dict(W)

    def _read(self, t: int, W: Mapping[str, Matrix]) -> None:
        seen = self.writer.mapped(self._seen(W))
        for row, slow, reads in zip(self.rows, self.slow, self.reads, strict=True):
            reads.append(self.writer.m.apply({**slow, **seen}, row.query(t))["y"])

    def state(self) -> Iterator[tuple[str, Matrix]]:
        """The state of weights behind the call, by name of the result (DEEPCASE-6)."""
        kinds: dict[str, Mapping[str, Matrix]] = {"weights": self._seen(self.W)}
        if "in/momentum" in self.inputs:
            zeros = {name: x - x for name, x in self.first.items()}
            kinds["momentum"] = self.S or {n: Matrix(x.value) for n, x in zeros.items()}
        if self.frozen:
            kinds["reference"] = self.reference
        cut = self.s["outer_gradient"] in ("straight_through", "none")
        for kind, tensors in kinds.items():
            for name, x in tensors.items():
                stopped = cut and kind != "weights"
                yield f"out/state/{kind}/{name}", Matrix(x.value) if stopped else x

    def kept(self) -> list[int]:
        """Tokens that the next call still sees, oldest first."""
        count = self.s["window"] - 1 + self.position % self.s["chunk"]
        return self.known[max(0, len(self.known) - count) :]


GATES = ("retain", "momentum", "step_size", "step_size_memory")


def _cut(gates: Gates) -> Gates:
    return Gates(*(None if each is None else Matrix(each.value) for each in gates))


def _by_lag(kind: Mapping[str, Any], lag: int, c: int) -> arb:
    """The weight of a lag, 1 where the tokens alone bring one (WINDOW-3 to WINDOW-6)."""
    if kind["kind"] == "product":
        product = arb(1)
        for each in kind["of"]:
            product = product * _by_lag(each, lag, c)
        return product
    if kind["kind"] == "uniform":
        return arb(1) / c
    return arb(kind["base"]) ** lag if kind["kind"] == "decay" else arb(1)


def memories(header: Any, convention: Any, inputs: Inputs) -> list[Memory]:
    """The memories of a case, each with the rows that share it."""
    s = {**DEFAULTS, **(header.parameters or {})}
    s["window"] = s["window"] or s["chunk"]
    d_in, d_out = (inputs.shape(name)[-1] for name in ("in/k", "in/v"))
    writer = Writer(s, convention, Function(s["memory"], d_in, d_out))
    lead = inputs.shape("in/k")[:-2]
    if s["coupling"] != "batch_shared" or not lead:
        return [Memory(writer, inputs, at, [at]) for at in np.ndindex(*lead)]
    return [
        Memory(writer, inputs, (0, *rest), [(i, *rest) for i in range(lead[0])])
        for rest in np.ndindex(*lead[1:])
    ]
