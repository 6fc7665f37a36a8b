"""A sequence on balls: resets, spans, pulses, reads, and the state of a continuation (CONV-27 to
CONV-37, CASE-12).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atlas_ref.certify.feature_maps import mapped
from atlas_ref.certify.functions import normalised, shortened
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, mark, sane, zeros
from atlas_ref.certify.rules import WRITES, Write, multiplier, read
from atlas_ref.certify.tokens import Token, learned, tokens_of
from atlas_ref.certify.window import Held, residual

#: A result of one sequence: a matrix, or a list of columns or matrices that stand along a new first
#: axis.
Results = dict[str, "Matrix | list[Matrix]"]


@dataclass
class State:
    """The state that one token hands to the next.

    Attributes:
        M, S: memory; momentum in the case's momentum_sign, Z under momentum_then_window.
        start: M_ref, or the memory at the start of the span; None until a first token sets it.
        position: p(t) of the next token.
        held: window tokens, oldest first.
        momenta: earlier Z, oldest first.
    """

    M: Matrix
    S: Matrix
    start: Matrix | None
    position: int
    held: list[Held] = field(default_factory=list)
    momenta: list[Matrix] = field(default_factory=list)


class Sequence:
    """One sequence of a case.

    Args:
        index: its place in the leading axes.

    Attributes:
        count: number of its tokens.
        marks: of each token that was written, its place in the sequence of all matrices.
    """

    def __init__(
        self, header: Any, convention: Any, inputs: Inputs, index: tuple[int, ...]
    ) -> None:
        self.header, self.convention, self.inputs, self.index = header, convention, inputs, index
        self.rule, self.c = header.rule, header.window
        self.phi = inputs.phi()
        self.tokens = tokens_of(header, convention, inputs, index)
        self.count = len(self.tokens)
        self.marks: list[int] = []
        first = self.tokens[0]
        self.d_in, self.d_out = first.k.rows, first.v.rows
        self.d_phi = self.features(first.k, convention.k_norm).rows
        self.frozen = self.rule != "hebbian" and convention.reference in (
            "chunk_start",
            "call_start",
        )
        self.spans = self.frozen or convention.read == "chunk_start"
        self.once = convention.reference == "call_start"
        self.order_first = self.rule != "omega" or convention.order == "window_then_momentum"
        self.bounded = self.rule == "omega" and self.c > 1 and self.frozen and self.order_first
        self.carries = self.bounded and convention.window_at_boundary == "carry"

    def features(self, x: Matrix, norm: str) -> Matrix:
        """phi with its norm before or after it (CONV-24, CONV-35)."""
        c, kind = self.convention, self.header.feature_map
        if c.norm_place == "before_phi":
            return mapped(kind, self.phi, normalised(x, norm, c))
        return normalised(mapped(kind, self.phi, x), norm, c)

    # -- starting ----------------------------------------------------------------------------------

    def matrix(self, name: str, *more: int) -> Matrix:
        """A matrix of the case as d_out x d_phi, exact zeros where there is none (CONV-25)."""
        matrix = self.inputs.optional(name, *self.index, *more)
        if matrix is None:
            return zeros(self.d_out, self.d_phi)
        return self.laid(matrix)

    def laid(self, matrix: Matrix) -> Matrix:
        """A matrix converted to or from the layout of the file."""
        return matrix.T if self.convention.layout == "transposed" else matrix

    def fresh(self) -> State:
        """The first state of a packed sequence, without phase, reference and window (CONV-33)."""
        counted = (
            self.convention.span_origin == "multiple"
            and not self.once
            and self.header.span is not None
        )
        return State(
            self.matrix("in/M0"), self.matrix("in/S0"), None, 1 % self.header.span if counted else 0
        )

    def begin(self) -> State:
        """The state before the first token of the call (CONV-30, CONV-31, CONV-34)."""
        state, inputs = self.fresh(), self.inputs
        if "in/M_ref" in inputs:
            state.start = self.matrix("in/M_ref")
        if self.header.phase is not None:
            state.position = self.header.phase
        for i in range(inputs.shape("in/window_k")[-2] if "in/window_k" in inputs else 0):
            at = (*self.index, i)
            k, v = inputs.get("in/window_k", *at), inputs.get("in/window_v", *at)
            gate, error = (
                inputs.optional("in/window_gate_before", *at),
                inputs.optional("in/window_residual", *at),
            )
            residual_learned = learned(self.header, self.convention, inputs, self.index, k, v)
            phi = self.features(k, self.convention.k_norm)
            state.held.append(Held(k, v, phi, gate, error, residual_learned))
        for i in range(
            inputs.shape("in/window_momentum")[-3] if "in/window_momentum" in inputs else 0
        ):
            state.momenta.append(self.matrix("in/window_momentum", i))
        if state.momenta and "momentum" not in self.tokens[0].gates:
            # without S in the case this is Z_0, which an inactive first token repeats (OMEGA-11)
            state.S = state.momenta[-1]
        return state

    # -- one token ---------------------------------------------------------------------------------

    def reference(self, state: State) -> Matrix:
        """M_ref (CONV-12)."""
        kind = "running" if self.rule == "hebbian" else self.convention.reference
        if kind in ("zero", "surrogate"):
            return zeros(self.d_out, self.d_phi)
        if kind == "running":
            return state.M
        assert state.start is not None  # set at the first token
        return state.start

    def begin_span(self, state: State) -> None:
        """Take the memory before the token as that of the span's start, where a span starts
        (CONV-31).
        """
        if self.spans and (state.start is None or (not self.once and state.position == 0)):
            state.start = state.M

    def push(self, state: State, token: Token) -> None:
        """Append the token to the window, active or not (OMEGA-3), under carry with its residual
        (WINDOW-13).
        """
        phi, error = self.features(token.k, self.convention.k_norm), None
        if self.carries:
            retain = multiplier(self.convention, token) if token.active else None
            error = residual(self.convention, self.reference(state), retain, phi, token.v)
        state.held = [*state.held, Held(token.k, token.v, phi, token.gate, error, token.learned)][
            -self.c :
        ]

    def write(self, state: State, token: Token) -> None:
        """Write the token by its rule, and append the momentum to the window of momenta
        (OMEGA-11, CONV-67).
        """
        if token.active:
            position = state.position if self.bounded else None
            reference = self.reference(state)
            write = Write(
                self.convention,
                token,
                state.M,
                state.S,
                reference,
                state.held,
                state.momenta,
                position,
            )
            M, state.S = WRITES[self.rule](write)
            state.M = sane(shortened(M, self.convention.memory_ceiling))
        if not self.order_first:
            state.momenta = [*state.momenta, state.S][-(self.c - 1) :] if self.c > 1 else []

    def advance(self, state: State) -> None:
        """Set p(t + 1) (CONV-30)."""
        state.position += 1
        if not self.once and self.header.span is not None:
            state.position %= self.header.span

    # -- the run -----------------------------------------------------------------------------------

    def run(self, watch: Callable[[str, int], None] = lambda kind, done: None) -> Results:
        """Run every token in turn (CONV-29), then the reads.

        Args:
            watch: called before each write and read with how many were done (CERT-16).
        """
        state = self.begin()
        memories: list[Matrix] = []
        waiting = 0  # tokens that read the last memory of their packed sequence
        for token in self.tokens:
            watch("tokens", len(self.marks))
            self.marks.append(mark())
            if token.reset:
                memories += [state.M] * waiting
                state, waiting = self.fresh(), 0
            self.begin_span(state)
            before = state.M
            self.push(state, token)
            self.write(state, token)
            if self.convention.read == "call_end":
                waiting += 1
            elif self.convention.read == "chunk_start":
                assert state.start is not None  # set at the first token
                memories.append(state.start)
            else:
                memories.append(state.M if self.convention.read == "after" else before)
            self.advance(state)
        memories += [state.M] * waiting
        reads: list[Matrix] = []
        for memory, token in zip(memories, self.tokens, strict=True):
            watch("reads", len(reads))
            reads.append(self.read(memory, token))
        return {"out/y": reads, **self.outputs(state)}

    def read(self, memory: Matrix, token: Token) -> Matrix:
        return read(
            self.convention, memory, self.features(token.q, self.convention.q_norm), self.d_in
        )

    def outputs(self, state: State) -> Results:
        """The final state, with all that a continuation needs (CASE-12)."""
        results: Results = {"out/M": self.laid(state.M)}
        if self.rule in ("omega", "titans_lmm") and "momentum" in self.tokens[0].gates:
            results["out/S"] = self.laid(state.S)
        if self.spans and state.start is not None:
            results["out/M_ref"] = self.laid(state.start)
        if self.rule == "omega" and self.c > 1:
            results |= self.window_outputs(state)
        return results

    def window_outputs(self, state: State) -> Results:
        """The last c - 1 pairs, with their gates, residuals and momenta (WINDOW-25)."""
        last = state.held[-(self.c - 1) :]
        results: Results = {
            "out/window_k": [each.k for each in last],
            "out/window_v": [each.v for each in last],
        }
        gates = [each.gate for each in last if each.gate is not None]
        if self.tokens[0].gate is not None:
            results["out/window_gate_before"] = gates
        if self.carries:
            results["out/window_residual"] = [
                each.residual for each in last if each.residual is not None
            ]
        if not self.order_first:
            results["out/window_momentum"] = [self.laid(each) for each in state.momenta]
        return results
