"""Properties of a case's numbers that the equivalence classes of specs/conventions.md depend on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.prepare import Prepared
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.types import Array


class Numbers:
    """Properties of a case's numbers that the clauses depend on."""

    def __init__(self, case: Case, inputs: Mapping[str, Array], convention: Convention) -> None:
        self.header, self.inputs, self.convention = case.header, inputs, convention
        self.rule = case.header.rule
        sequence = SUBJECTS[self.rule].has_tokens
        self.prepared = Prepared(case.header, inputs) if sequence else None
        self.active = (
            np.asarray(inputs["in/active"]).astype(bool) if "in/active" in inputs else None
        )

    def column(self, name: str) -> Array:
        """A gate at the active tokens, (..., tokens, 1 or d_out, 1), or None."""
        value = None if self.prepared is None else self.prepared.column(name, self.convention)
        return value if value is None or self.active is None else value[..., self.active, :, :]

    @property
    def tokens(self) -> int:
        return int(self.inputs["in/k" if "in/k" in self.inputs else "in/x"].shape[-2])

    @cached_property
    def covers_call(self) -> bool:
        """Whether no span of the header ends within the call, whichever its origin (CONV-47)."""
        h = self.header
        return h.span is not None and (h.phase or 1) + self.tokens <= h.span

    @cached_property
    def one_write_per_span(self) -> bool:
        """Whether every active token is the first active one of its span, for spans that start at
        the first token.
        """
        h = self.header
        if h.span is None or self.active is None:
            return False
        resets = (
            np.asarray(self.inputs["in/reset"]).astype(bool)
            if "in/reset" in self.inputs
            else np.zeros(self.tokens, bool)
        )
        position, written = h.phase or 0, h.phase is not None
        for reset, active in zip(resets, self.active, strict=True):
            position = 0 if reset else position
            written = written and position > 0
            if active and written:
                return False
            written, position = written or bool(active), (position + 1) % h.span
        return True

    @cached_property
    def has_one_reference(self) -> bool:
        """Whether the reference is the same at every token."""
        c = self.convention
        return c.reference == "call_start" or (c.reference == "chunk_start" and self.covers_call)

    def every(self, name: str, number: float) -> bool:
        """Whether a gate has one value at every active token."""
        value = self.column(name)
        return value is not None and bool(np.all(value == number))

    def zero(self, *names: str) -> bool:
        """Whether matrices are absent or zero."""
        return not any(name in self.inputs and np.any(self.inputs[name]) for name in names)

    @cached_property
    def half(self) -> bool:
        return self.every("retain", 0.5)

    @cached_property
    def no_decay(self) -> bool:
        """Whether nothing decays."""
        c, value = self.convention, self.column("retain")
        return c.gate == "none" or (
            value is not None and bool(np.all(value == (0.0 if c.gate == "forget" else 1.0)))
        )

    @cached_property
    def still(self) -> bool:
        """Whether there is no momentum."""
        return self.column("momentum") is None or self.every("momentum", 0.0)

    @cached_property
    def from_rest(self) -> bool:
        return self.zero("in/S0", "in/window_momentum")

    def constant(self, name: str) -> bool:
        """Whether a rate does not change with time."""
        value = self.column(name)
        return value is not None and bool(np.all(value == value[..., :1, :, :]))

    def scalar(self, name: str) -> bool:
        value = self.column(name)
        return value is not None and value.shape[-2] == 1

    def equal(self, name: str, other: str) -> bool:
        one, two = self.column(name), self.column(other)
        return one is not None and two is not None and bool(np.all(one == two))

    @cached_property
    def symmetric(self) -> bool:
        names = ("in/M0", "in/S0", "in/M_ref", "in/window_momentum")
        matrices = [self.inputs[name] for name in names if name in self.inputs]
        return all(
            m.shape[-1] == m.shape[-2] and bool(np.all(m == np.swapaxes(m, -1, -2)))
            for m in matrices
        ) or self.zero(*names)
