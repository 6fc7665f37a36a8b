"""A TNT as plain runs of the family, which its own schedule cuts and asks (TOL-3).

It shares no code with `atlas_ref.forms.tnt`, nor with the rules, and agrees with them in float64.
Written from specs/tnt.md (TNT-1 to TNT-6, TNT-11, TNT-13).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.family import family, prepare, steps
from atlas_ref.oracle.family.state import Outputs
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.tnt import projection
from atlas_ref.oracle.tnt.projection import Held, Rounds
from atlas_ref.oracle.tnt.settings import Memory, Run, Settings
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array
from tape import ops

#: Tensors that every memory shares, or that one has for itself.
TOKENS = (
    "k",
    "v",
    "q",
    "retain",
    "momentum",
    "step_size",
    "step_size_memory",
    "window_weights",
    "window_gate",
)

Tensors = Mapping[str, Array]


def computed(op: str, t: int, value: Array) -> Array:
    """The value of an op as it is."""
    return value


class Means(NamedTuple):
    """How a TNT is computed: its rounding, and the hook of every op."""

    rounding: Rounding
    take: family.Values = computed


class State(NamedTuple):
    """A memory between two tokens, by the names of an ordinary case (TNT-11).

    Attributes:
        tensors: M, S, M_ref, window_k, window_v, ...: those that there are.
        phase: of the next token in its span.
    """

    tensors: dict[str, Array]
    phase: int


def run(s: Settings, inputs: Tensors, means: Means) -> dict[str, Array]:
    """The results of a case, `out/...` (TNTCASE-5).

    Args:
        inputs: `in/...` of the case, arrays or tape variables.
    """
    T = inputs["in/k"].shape[-2]
    reset = np.zeros(T, bool)
    if "in/reset" in inputs:
        reset = np.asarray(inputs["in/reset"]).astype(bool)
    starts = [0, *(t for t in range(1, T) if reset[t]), T]
    resumes = "in/state/position" in inputs and not reset[0]
    number = int(inputs["in/state/position"]) if resumes else s.origin
    numbers = [number, *(number + t if s.counts_on else s.origin for t in starts[1:-1])]
    total: Any = None
    out: dict[str, Array] = {}
    moved: dict[str, list[Array]] = {}
    for m in (*s.memories[1:], *s.memories[:1]) if _asks_others(s) else s.memories:
        own, reads = of_memory(inputs, m.name), []
        ends = [0, T] if m.one_document else starts
        for i, (first, last) in enumerate(itertools.pairwise(ends)):
            document = _Document(s, m, own, inputs, means, first, last, numbers[i])
            y, state = document.results(resumed=resumes and i == 0, moved=moved)
            reads.append(y)
        out |= {f"out/state/{m.name}/{name}": x for name, x in state.items()}
        total = _sum(total, None if m.read == "none" else _joined(reads))
    y = ops.zeros_like(inputs["in/v"]) if total is None else total
    if s.combine == "mean":
        y = y * (1.0 / max(1, sum(m.read != "none" for m in s.memories)))
    y = ops.stack([means.take("y", t, y[..., t, :]) for t in range(T)], axis=-2)
    position = np.asarray(numbers[-1] + T - starts[-2], np.int64)
    ordered = {f"out/state/{m.name}/": m for m in s.memories}
    state = {n: x for key in ordered for n, x in out.items() if n.startswith(key)}
    return {"out/y": y, "out/state/position": position, **state}


def _asks_others(s: Settings) -> bool:
    return any(m.asks for m in s.memories)


def _sum(a: Array, b: Array) -> Array:
    return b if a is None else a if b is None else a + b


def _joined(reads: list[Array]) -> Array:
    return reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def of_memory(inputs: Tensors, name: str) -> dict[str, Array]:
    """The tensors of a memory without its name: its own, and those that all share (TNTCASE-3)."""
    shared = {each: inputs[f"in/{each}"] for each in TOKENS if f"in/{each}" in inputs}
    prefix = f"in/{name}/"
    own = {each.removeprefix(prefix): x for each, x in inputs.items() if each.startswith(prefix)}
    return {**shared, **own}


def has_momentum(m: Memory, own: Mapping[str, Any], rule: str) -> bool:
    """Whether a memory carries a momentum: a gate brings it, or base previous (TNT-5)."""
    return FAMILY[rule].has_momentum and ("momentum" in own or m.base == "previous")


def phase(m: Memory, number: int) -> int:
    """Place of a token in the span of its run (TNT-3, TNT-5)."""
    if m.sum == "inclusive":  # whose last token is written again by the next chunk
        return 0 if number == 0 else (number - 1) % m.span + 1
    return int(m.place(number))


class _Document:
    """The tokens of one document in one memory (TNT-13)."""

    def __init__(
        self,
        s: Settings,
        m: Memory,
        own: dict[str, Array],
        inputs: Tensors,
        means: Means,
        first: int,
        last: int,
        number: int,
    ) -> None:
        self.s, self.m, self.inputs, self.means = s, m, inputs, means
        self.first, self.T, self.number = first, last - first, number
        self.own = {each: own[each] for each in own if each not in TOKENS} | {
            each: _cut(each, own[each], first, last) for each in TOKENS if each in own
        }
        self.k = self.own["k"]
        self.lead = self.k.shape[:-2]
        c = s.c.replaced(reference="chunk_start", read=_read_of(m), span_origin="first")
        c = c.replaced(layout=type(c)().layout)
        if m.base == "running":
            c = c.replaced(reference="running")
        if m.base == "previous" and m.reset == "instead_of_write":
            c = c.replaced(rate="split")
        self.c = c

    def results(
        self, *, resumed: bool, moved: dict[str, list[Array]]
    ) -> tuple[Any, dict[str, Array]]:
        """What the memory answers, None where nothing reads it, and its state (TNT-11)."""
        m, rounds = self.m, Rounds(self.means.rounding.way, self.means.rounding.touch)
        held = projection.nothing(m, self.k, self.lead)
        if resumed:
            held = projection.of_inputs(self.inputs, m, held)
        k = ops.stop_gradient(self.k) if m.held == "keys" else self.k
        queries, held = projection.moved(
            m, k, self.own["q"], held, self.number, rounds, self._moved, self.own.get("W_QK")
        )
        queries = ops.stop_gradient(queries) if m.held == "whole" else queries
        moved.setdefault(m.name, []).append(queries)
        if m.asks:  # which may cut the tokens into other documents
            queries = _joined(moved[m.asks])[..., self.first : self.first + self.T, :]
        state = self._resumed() if resumed else self._anew(None)
        reads = []
        for first, last in self._runs():
            fresh = self._begins(first)
            if fresh:
                state = self._anew(state)
            elif self._takes_late(first):
                state = state._replace(tensors=state.tensors | {"M_ref": state.tensors["M"]})
            y, state = self._run(first, last, state, queries, fresh=fresh)
            reads.append(y)
        kept = {name: getattr(held, name) for name in projection.names(m.projection)}
        return None if m.read == "none" else _joined(reads), {**state.tensors, **kept}

    def _moved(self, t: int, x: Array) -> Array:
        return self.means.take(f"{self.m.name}/projected", self.first + t, x)

    def _runs(self) -> Iterator[tuple[int, int]]:
        """First and last tokens of the runs between resets (TNT-4)."""
        starts = [t for t in range(1, self.T) if self._begins(t) or self._takes_late(t)]
        return itertools.pairwise([0, *starts, self.T])

    def _begins(self, t: int) -> bool:
        """Whether the memory starts anew before a token (TNT-4)."""
        m = self.m
        short = m.whole and m.shard is not None and t > 0 and t + m.shard > self.T
        return bool(m.starts(self.number + t)) and not short

    def _takes_late(self, t: int) -> bool:
        """Whether the memory before a token passes for that at the start of its chunk."""
        return self.m.late_start and bool(self.m.place(self.number + t) == 1)

    # -- states ------------------------------------------------------------------------------------

    def _resumed(self) -> State:
        prefix = f"in/state/{self.m.name}/"
        names = [name for name in self.inputs if name.startswith(prefix)]
        tensors = {name.removeprefix(prefix): self.inputs[name] for name in names}
        tensors = {name: x for name, x in tensors.items() if name not in Held._fields}
        return State(tensors, phase(self.m, self.number))

    def _anew(self, before: State | None) -> State:
        """The memory where a document or a shard starts (TNT-2, TNT-4)."""
        m, tensors = self.m, {"M": self._whole("M0")}
        if m.held_start and before is not None:
            tensors["M"] = ops.stop_gradient(tensors["M"])
        if has_momentum(m, self.own, self.s.rule):
            tensors["S"] = self._whole("S0")
            if before is not None and m.reset_momentum == "carry":
                tensors["S"] = before.tensors.get("S", tensors["S"])
        if before is not None and m.keeps_window:
            tensors |= {each: x for each, x in before.tensors.items() if "window" in each}
        if before is None or m.chunk_origin == "shard":
            return State(tensors, phase(self.m, self.number) if before is None else 0)
        if "M_ref" in before.tensors:
            tensors["M_ref"] = before.tensors["M_ref"]
        return State(tensors, before.phase)

    def _whole(self, name: str) -> Array:
        """A first matrix of each row; zero where there is none."""
        shape = (*self.lead, self.own["v"].shape[-1], self.k.shape[-1])
        given = self.own.get(name)
        if given is None:
            return ops.zeros_like(self.k, shape=shape)
        return ops.broadcast_to(given, shape)

    # -- one run -----------------------------------------------------------------------------------

    def _run(
        self, first: int, last: int, state: State, queries: Array, *, fresh: bool
    ) -> tuple[Array, State]:
        """Tokens between two resets as an ordinary run."""
        m, T = self.m, last - first
        numbers = self.number + np.arange(first, last)
        given = {
            name: _cut(name, self.own[name], first, last) for name in TOKENS if name in self.own
        }
        given["q"] = queries[..., first:last, :]
        if m.base == "previous":
            given |= self._counted(numbers)
        lost = m.reset == "instead_of_write" and fresh and m.base != "previous"
        active = np.full(T, m.writes)
        if not m.tail:
            end = self.number + self.T
            active &= numbers < end - m.place(end)
        if lost and (m.base == "running" or m.span == 1):
            active[0] = False
        rows, span = np.arange(T), m.span
        if m.sum == "inclusive":
            rows = np.repeat(rows, 1 + ((numbers % span == 0) & (numbers > 0)))
            span += 1
            given = {name: _picked(name, x, rows) for name, x in given.items()}
            active = active[rows]
        tensors = {f"in/{name}": x for name, x in given.items()} | _starting(state)
        tensors["in/active"] = active
        header = Run(self.s.rule, self.s.window, span, state.phase)
        outputs = self._family(header, tensors, rows + first, lost=lost, first=state.tensors["M"])
        y = outputs.y
        if len(rows) > T:  # the last of the times a token stands there
            y = y[..., np.append(rows[1:] != rows[:-1], True).nonzero()[0], :]
        return y, self._after(state, outputs, given, header, len(rows))

    def _counted(self, numbers: Any) -> dict[str, Array]:
        """The gates by which Eq 6 as printed counts gradients (TNT-5)."""
        m = self.m
        masks = {"momentum": m.place(numbers) > 0}
        if m.reset == "instead_of_write":
            masks["step_size_memory"] = m.in_shard(numbers) > 0
        ones = ops.ones_like(self.k, shape=(*self.lead, len(numbers)))
        return {name: ones * mask.astype(ones.dtype) for name, mask in masks.items()}

    def _family(
        self, header: Run, tensors: dict[str, Array], rows: Any, *, lost: bool, first: Array
    ) -> Outputs:
        rounding, c = self.means.rounding, self.c
        prepared = prepare.Prepared(header, tensors, way=rounding.way, touch=rounding.touch)

        def orthogonalise(S: Array, t: int) -> Array:
            argument = rounding.argument(S)
            return steps.newton_schulz(rounding.way, argument, c.newton_schulz_settings)

        def values(op: str, t: int, x: Array) -> Array:
            if op == "read":
                return first if lost and t == 0 and self.m.read == "after" else x
            extra = t + 1 < len(rows) and rows[t] == rows[t + 1]  # the same token follows again
            if extra and op == "y":
                return x
            name = f"{self.m.name}/extra/{op}" if extra else f"{self.m.name}/{op}"
            return self.means.take(name, self.first + int(rows[t]), x)

        return family.run(
            prepare.structure(c, header),
            prepared.stack([c]),
            orthogonalise,
            way=rounding.way,
            store=rounding.store,
            hook=family.value_hook(values),
        )

    def _after(
        self, before: State, outputs: Outputs, given: Tensors, header: Run, count: int
    ) -> State:
        """What the next run finds, in the signs of the case (TNT-11)."""
        sign = -1.0 if self.c.momentum_sign == "minus" else 1.0
        tensors = {"M": outputs.M}
        if has_momentum(self.m, self.own, self.s.rule):
            tensors["S"] = outputs.S * sign
        if outputs.M_ref is not None:
            tensors["M_ref"] = outputs.M_ref
        if self.s.window > 1:
            tensors |= self._window(before.tensors, outputs, given, sign)
        return State(tensors, (before.phase + count) % header.span)

    def _window(
        self, before: Tensors, outputs: Outputs, given: Tensors, sign: float
    ) -> dict[str, Array]:
        """The last tokens of the run, and of the call before it, which a later write sees."""
        most = self.s.window - 1

        def tail(old: str, rows: Array, axis: int) -> Array:
            both = [before[old], rows] if old in before else [rows]
            whole = ops.concatenate(both, axis=axis)
            kept = slice(max(0, whole.shape[axis] - most), None)
            return whole[(..., kept, *[slice(None)] * (-axis - 1))]

        found = {name: tail(name, given[name[7:]], -2) for name in ("window_k", "window_v")}
        n = found["window_k"].shape[-2]
        if "window_gate" in given:
            found["window_gate_before"] = tail("window_gate_before", given["window_gate"], -1)
        if outputs.residuals is not None:
            found["window_residual"] = outputs.residuals[..., -n:, :]
        if outputs.momenta is not None:
            found["window_momentum"] = outputs.momenta[..., -n:, :, :] * sign
        return found


def _read_of(m: Memory) -> str:
    """The axis `read` of a memory that is read, or not (TNT-3)."""
    return "chunk_start" if m.read == "none" else m.read


def _axis(name: str) -> int:
    """Axis of the tokens of a tensor, from the end."""
    return -2 if name in ("k", "v", "q", "window_weights") else -1


def _cut(name: str, x: Array, first: int, last: int) -> Array:
    return x[(..., slice(first, last), *[slice(None)] * (-_axis(name) - 1))]


def _picked(name: str, x: Array, rows: Any) -> Array:
    return ops.index(x, (..., rows, *[slice(None)] * (-_axis(name) - 1)))


def _starting(state: State) -> dict[str, Array]:
    """The state before a run by the names that an ordinary case has for it (CONV-34)."""
    named = {"M": "in/M0", "S": "in/S0"}
    return {named.get(name, f"in/{name}"): x for name, x in state.tensors.items()}
