"""One document in one memory of a TNT: plain runs of the family between resets (TOL-3).

It shares no code with `atlas_ref.forms.tnt`, nor with the rules. Written from specs/tnt.md (TNT-2 to
TNT-6, TNT-11, TNT-13).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import under
from atlas_ref.oracle.family import family, prepare, steps
from atlas_ref.oracle.family.state import Outputs
from atlas_ref.oracle.program.hook import Hook, same
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.tnt import projection, writes
from atlas_ref.oracle.tnt.projection import Held, Rounds
from atlas_ref.oracle.tnt.settings import Memory, Run
from atlas_ref.oracle.tnt.tokens import TOKENS, Tensors, cut, has_momentum, join_rows, pick_rows
from atlas_ref.types import Array
from tape import ops


class State(NamedTuple):
    """A memory between two tokens, by the names of an ordinary case (TNT-11).

    Attributes:
        tensors: M, S, M_ref, window_k, window_v, ...: those that there are.
        phase: of the next token in its span.
    """

    tensors: dict[str, Array]
    phase: int


class Document:
    """The tokens of one document in one memory (TNT-13).

    Beside its ops a reading may wrap two points: MEMORY/keys, those of which a projection is made, and
    MEMORY/restart, the memory with which a shard starts anew.
    """

    def __init__(
        self,
        hook: Hook,
        m: Memory,
        own: dict[str, Array],
        inputs: Tensors,
        first: int,
        last: int,
        number: int,
    ) -> None:
        self.hook, self.m, self.inputs = hook, m, inputs
        self.s = s = hook.context.settings
        self.rounding: Rounding = hook.context.rounding
        self.known = writes.ops_of_memory(s, m)
        self.first, self.T, self.number = first, last - first, number
        self.own = {each: own[each] for each in own if each not in TOKENS} | {
            each: cut(each, own[each], first, last) for each in TOKENS if each in own
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
        m, rounds = self.m, Rounds(self.rounding.way, self.rounding.touch)
        held = projection.nothing(m, self.k, self.lead)
        if resumed:
            held = projection.of_inputs(self.inputs, m, held)
        k = self.hook.point(f"{m.name}/keys", self.first, same, self.k)
        queries, held = projection.move_queries(
            m, k, self.own["q"], held, self.number, rounds, self._move_query, self.own.get("W_QK")
        )
        moved.setdefault(m.name, []).append(queries)
        if m.asks:  # which may cut the tokens into other documents
            queries = join_rows(moved[m.asks])[..., self.first : self.first + self.T, :]
        state = self._resume() if resumed else self._anew(None)
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
        return None if m.read == "none" else join_rows(reads), {**state.tensors, **kept}

    def _move_query(self, t: int, x: Array) -> Array:
        """A query that was moved, by keys so far or a matrix of its own (TNT-7)."""
        if self.hook.quiet:
            return x
        k, q, W = self.k[..., t, :], self.own["q"][..., t, :], self.own.get("W_QK")
        of = (q, W) if self.m.projection.kind == "learned" else (k, q)
        return self.hook(f"{self.m.name}/projected", self.first + t, lambda *each: x, *of)

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

    def _resume(self) -> State:
        before = under(self.inputs, f"in/state/{self.m.name}/")
        tensors = {name: x for name, x in before.items() if name not in Held._fields}
        return State(tensors, self.m.phase(self.number))

    def _anew(self, before: State | None) -> State:
        """The memory where a document or a shard starts (TNT-2, TNT-4)."""
        m, tensors = self.m, {"M": self._whole("M0")}
        if before is not None:
            tensors["M"] = self.hook.point(f"{m.name}/restart", self.first, same, tensors["M"])
        if has_momentum(m, self.own, self.s.rule):
            tensors["S"] = self._whole("S0")
            if before is not None and m.reset_momentum == "carry":
                tensors["S"] = before.tensors.get("S", tensors["S"])
        if before is not None and m.keeps_window:
            tensors |= {each: x for each, x in before.tensors.items() if "window" in each}
        if before is None or m.chunk_origin == "shard":
            return State(tensors, self.m.phase(self.number) if before is None else 0)
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
            name: cut(name, self.own[name], first, last) for name in TOKENS if name in self.own
        }
        given["q"] = queries[..., first:last, :]
        if m.base == "previous":
            given |= self._counting_gates(numbers)
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
            given = {name: pick_rows(name, x, rows) for name, x in given.items()}
            active = active[rows]
        tensors = {f"in/{name}": x for name, x in given.items()} | _starting(state)
        tensors["in/active"] = active
        header = Run(self.s.rule, self.s.window, span, state.phase)
        outputs = self._family(header, tensors, rows + first, lost=lost, first=state.tensors["M"])
        y = outputs.y
        if len(rows) > T:  # the last of the times a token stands there
            y = y[..., np.append(rows[1:] != rows[:-1], True).nonzero()[0], :]
        return y, self._after(state, outputs, given, header, len(rows))

    def _counting_gates(self, numbers: Any) -> dict[str, Array]:
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
        rounding, c = self.rounding, self.c
        prepared = prepare.Prepared(header, tensors, way=rounding.way, touch=rounding.touch)
        arrays = prepared.stack([c])

        def orthogonalise(S: Array, t: int) -> Array:
            argument = rounding.argument(S)
            return steps.newton_schulz(rounding.way, argument, c.newton_schulz_settings)

        replaced = first if lost and self.m.read == "after" else None
        hook: family.Hook | None = None
        if replaced is not None or not self.hook.quiet:
            places = (self.first + rows).tolist()
            hook = writes.Ops(self.hook, self.m, self.known, places, replaced)
            before = tensors["in/window_k"].shape[-2] if "in/window_k" in tensors else 0
            exists = writes.exist(len(places), self.s.window, before)
            arrays = arrays._replace(exists=exists)
        return family.run(
            prepare.structure(c, header),
            arrays,
            orthogonalise,
            way=rounding.way,
            store=rounding.store,
            hook=hook,
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


def _starting(state: State) -> dict[str, Array]:
    """The state before a run by the names that an ordinary case has for it (CONV-34)."""
    named = {"M": "in/M0", "S": "in/S0"}
    return {named.get(name, f"in/{name}"): x for name, x in state.tensors.items()}
