"""A TNT on balls: every memory a sequence of its rule, of which the reads are added (CERT-19).

Written from TNT-1 to TNT-6, TNT-11, TNT-13 and TNTCASE-3 to TNTCASE-5. The rules are those that
certify has for ordinary cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flint import arb

from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, mark, number, total
from atlas_ref.certify.run import Results, Sequence, State
from atlas_ref.certify.tnt.projection import Keys, Projection
from atlas_ref.certify.tnt.settings import Memory, Settings, settings_of
from atlas_ref.certify.tokens import Token

Index = tuple[int, ...]


class Run(NamedTuple):
    """The keys of a header that a sequence of the family reads."""

    rule: str
    window: int
    span: int
    phase: int | None
    feature_map: Any
    level: str = "projected"


class Own(Inputs):
    """The tensors of a case by the names that an ordinary case of one memory has (TNTCASE-3).

    Args:
        resumed: whether first matrices are those that a call before has left.
    """

    def __init__(self, inputs: Inputs, memory: str, resumed: bool) -> None:
        self.inputs, self.memory, self.resumed = inputs, memory, resumed

    def _named(self, name: str) -> str:
        last = name.removeprefix("in/")
        own, state = f"in/{self.memory}/{last}", f"in/state/{self.memory}/{last.removesuffix('0')}"
        if last in ("M0", "S0"):
            return state if self.resumed else own
        if last.startswith(("window_k", "window_v", "M_ref", "P")) or name in BEFORE:
            return state
        return own if own in self.inputs else name

    def __contains__(self, name: str) -> bool:
        return self._named(name) in self.inputs

    def shape(self, name: str) -> Index:
        return self.inputs.shape(self._named(name))

    def get(self, name: str, *index: int) -> Matrix:
        """The slice at an index; where a memory starts has leading axes that broadcast (TNT-2)."""
        key = self._named(name)
        if name in FIRST:
            front = self.inputs.shape(key)[:-2]
            own = index[len(index) - len(front) :]
            index = tuple(i if n > 1 else 0 for i, n in zip(own, front, strict=True))
        return self.inputs.get(key, *index)

    def optional(self, name: str, *index: int) -> Matrix | None:
        """The slice, None where the memory has no such tensor."""
        return self.get(name, *index) if name in self else None

    def flag(self, name: str, t: int, default: bool, index: tuple[int, ...] = ()) -> bool:
        """One entry of a mask of all memories."""
        return self.inputs.flag(name, t, default, index)

    def phi(self) -> dict[str, Matrix]:
        """No tensor of a feature map."""
        return {}


#: Tensors of where a memory starts, and those of a window from before the call.
FIRST = ("in/M0", "in/S0", "in/W_QK")
BEFORE = ("in/window_gate_before", "in/window_residual", "in/window_momentum")


class One:
    """One memory over the tokens of a call.

    Args:
        resumed: whether a call before has left its state.
        at: number of the first token.
    """

    def __init__(
        self, s: Settings, m: Memory, case: Sum, convention: Any, resumed: bool, at: int
    ) -> None:
        self.s, self.m, self.resumed = s, m, resumed
        self.convention = _convention(m, convention)
        self.header = Run(
            s.rule, s.window, m.span + (m.sum == "inclusive"), m.phase(at), case.header.feature_map
        )
        self.inputs, self.index = Own(case.inputs, m.name, False), case.index
        self.run = Sequence(self.header, self.convention, self.inputs, self.index)
        self.numbers = self._numbers(at)
        if m.base == "previous":
            pairs = zip(self.run.tokens, self.numbers, strict=True)
            self.run.tokens = [self._counted(*each) for each in pairs]
        learned = self.inputs.get("in/W_QK", *self.index) if m.kind == "learned" else None
        self.P = Projection(m, self.run.d_in, learned)

    def tokens(self, watch: Callable[[int], None]) -> tuple[list[Matrix], Results]:
        """The reads of every token, and the state behind them (TNT-11)."""
        reads, m = [], self.m
        state, keys = self._begin()
        for t, (token, at) in enumerate(zip(self.run.tokens, self.numbers, strict=True)):
            watch(t)
            if token.reset and t:
                state, keys = self._first(at), self.P.nothing()
            fresh = m.starts(at)
            if fresh:
                state = self._anew(state)
            start = state.M
            query = self.P.query(keys, at, token.k, token.q)
            seen = self._token(state, token, at, fresh)
            replaced = fresh and m.reset == "instead_of_write" and m.base != "previous"
            seen = start if replaced and m.read == "after" else seen
            if m.read != "none":
                reads.append(self.run.read(seen, token._replace(q=query)))
        left = {name.removeprefix("out/"): x for name, x in self.run.outputs(state).items()}
        left |= self.P.state(keys)
        return reads, {f"out/state/{m.name}/{name}": x for name, x in left.items()}

    def _numbers(self, at: int) -> list[int]:
        """The number of each token in its document (TNT-13)."""
        numbers: list[int] = []
        for t, token in enumerate(self.run.tokens):
            follows = numbers[-1] + 1 if t else at
            numbers.append(self.s.origin if token.reset and t else follows)
        return numbers

    # -- states ------------------------------------------------------------------------------------

    def _begin(self) -> tuple[State, Keys]:
        if not self.resumed:
            return self._first(self.numbers[0]), self.P.nothing()
        inputs = Own(self.inputs.inputs, self.m.name, True)
        before = Sequence(self.header, self.convention, inputs, self.index)
        return before.begin(), self.P.left(inputs, self.index)

    def _first(self, number: int) -> State:
        """The state where a document starts (TNT-13)."""
        state = self.run.fresh()
        state.position = self.m.phase(number)
        return state

    def _anew(self, before: State) -> State:
        """The state where a shard starts (TNT-4, TNT-5)."""
        state = self.run.fresh()
        if self.m.reset_momentum == "carry":
            state.S = before.S
        if self.m.chunk_origin == "document":
            state.start, state.position = before.start, before.position
        return state

    # -- one token ---------------------------------------------------------------------------------

    def _token(self, state: State, token: Token, number: int, fresh: bool) -> Matrix:
        """Write a token, twice where two chunks have it; the memory that it reads."""
        m = self.m
        lost = fresh and m.reset == "instead_of_write" and m.base != "previous"
        lost = lost and (m.base == "running" or m.span == 1)
        token = token._replace(active=m.writes and not lost)
        for _ in range(1 + m.twice(number)):
            self.run.begin_span(state)
            before = state.M
            self.run.push(state, token)
            self.run.write(state, token)
            self.run.advance(state)
        if m.read in ("chunk_start", "none"):
            assert state.start is not None  # set at the first token
            return state.start
        return state.M if m.read == "after" else before

    def _counted(self, token: Token, number: int) -> Token:
        """The token under the gates by which Eq 6 as printed counts gradients (TNT-5)."""
        m = self.m
        gates = {**token.gates, "momentum": number_of(m.place(number) > 0)}
        if m.reset == "instead_of_write":
            gates["step_size_memory"] = number_of(m.in_shard(number) > 0)
        return token._replace(gates=gates)


def number_of(mask: bool) -> Matrix:
    """1 or 0."""
    return number(arb(int(mask)))


def _convention(m: Memory, convention: Any) -> Any:
    """The convention of a memory's run (TNT-13)."""
    axes = {
        "reference": "running" if m.base == "running" else "chunk_start",
        "read": "chunk_start" if m.read == "none" else m.read,
        "span_origin": "first",
        "layout": "plain",
    }
    if m.base == "previous" and m.reset == "instead_of_write":
        axes["rate"] = "split"
    return convention.replaced(**axes)


class Sum:
    """A TNT at one leading index.

    Attributes:
        count: tokens of all its memories together.
        marks: of each token of a memory, its place in the sequence of all matrices.
    """

    def __init__(self, header: Any, convention: Any, inputs: Inputs, index: Index) -> None:
        self.header, self.convention, self.inputs, self.index = header, convention, inputs, index
        self.s = settings_of(header)
        self.T, self.d_out = inputs.shape("in/v")[-2:]
        self.count = self.T * len(self.s.memories)
        self.marks: list[int] = []

    def run(self, watch: Callable[[str, int], None] = lambda kind, done: None) -> Results:
        """Run every memory over its tokens, and add what they answer (TNT-1).

        Args:
            watch: called before each token of each memory with how many were done (CERT-16).
        """
        resumed = "in/state/position" in self.inputs and not self.inputs.flag("in/reset", 0, False)
        at = int(self.inputs.arrays["in/state/position"]) if resumed else self.s.origin
        answers: list[list[Matrix]] = []
        state: Results = {}
        for i, m in enumerate(self.s.memories):

            def token(t: int, first: int = i * self.T) -> None:
                watch("tokens", first + t)
                self.marks.append(mark())

            memory = One(self.s, m, self, self.convention, resumed, at)
            reads, left = memory.tokens(token)
            answers += [reads] if reads else []
            state |= left
        y = [total([each[t] for each in answers], self.d_out, 1) for t in range(self.T)]
        return {"out/y": y, **state}
