"""What the loop of rule dplr runs on beside what every loop does, and steps of a row (DPLRCASE-11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.program.context import Context, select
from atlas_ref.oracle.subjects.subject import Touch
from atlas_ref.types import Array

#: The gate, or its log.
GATES = ("in/log_retain", "in/retain")

#: Tensors with a row or number for each token, however many steps it has.
TOKENS = ("in/q", *GATES)


class DplrContext(Context):
    """A context that knows the gate, the erase and the axes of a case of rule dplr.

    Its inputs are keys and queries of value heads under their norm, once these are made.
    """

    __slots__ = ()

    @property
    def has_mask(self) -> bool:
        """Whether some token is not active in some row."""
        return "in/active" in self.inputs and not np.all(self.inputs["in/active"])

    @property
    def gate(self) -> str:
        """The tensor of the gate; "" where there is none."""
        return next((name for name in GATES if name in self.inputs), "")

    @property
    def gate_word(self) -> str:
        """The tensor of the gate, or what a formula makes, in messages."""
        return self.gate if self.settings.gate_formula is None else "the log gate"

    @property
    def has_gates(self) -> bool:
        return self.settings.of.gated == "heads" or bool(self.gate)

    @property
    def by_channel(self) -> bool:
        """Whether each key channel has a gate of its own."""
        return bool(self.gate) and self.behind(self.gate) == 1

    @property
    def erases(self) -> bool:
        return self.settings.of.erase not in ("none", "given") or self.has("erase_read")

    @property
    def square(self) -> bool:
        return bool(self.inputs["in/k"].shape[-1] == self.inputs["in/v"].shape[-1])

    def behind(self, name: str) -> int:
        """One axis of channels, or none of a number for each row."""
        return int(len(self.inputs[name].shape) == len(self.inputs["in/v"].shape))

    def store(self, t: int) -> Touch | None:
        """The rounding of a state after token t to a narrow format; None elsewhere (DPLRCASE-14)."""
        if self.rounding.store is None:
            return None
        rows, first = self.first_tokens(t)
        due = np.array([self.settings.rounds(t, int(each), self.tokens) for each in first.flat])
        if due.all() == due.any():
            return self.rounding.store if due.all() else None
        store, mask = self.rounding.store, due.reshape(*rows, 1)
        return lambda x: select(mask, lambda: store(x), x)

    def first_tokens(self, t: int) -> tuple[tuple[int, ...], Array]:
        """Axes of rows that start apart, and for each the first token of the sequence of a token."""
        reset = np.asarray(self.inputs.get("in/reset", np.zeros(self.tokens)))
        places = np.where(reset[..., : t + 1], np.arange(t + 1), 0)
        return reset.shape[:-1], places.max(axis=-1)


def shapes(inputs: Mapping[str, Any], settings: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of states and reads in the layout of the rule (DPLRCASE-4)."""
    k, v = inputs["in/k"].shape, inputs["in/v"].shape
    memory = (*v[:-2], v[-1], k[-1])
    return {
        "y": (*inputs["in/q"].shape[:-1], v[-1]),
        "M": memory,
        "S": memory,
        "z": (*v[:-2], k[-1]),
        "A": (*k[:-2], k[-1]),
    }


# -- steps of a row --------------------------------------------------------------------------------


def decay(M: Array, gate: Array) -> Array:
    """M diag(w), with one gate for each channel or one for all."""
    channels = len(gate.shape) == len(M.shape) - 1
    return (gate[..., None, :] if channels else gate[..., None, None]) * M


def found_in(context: Context, M: Array, read: Array) -> Array:
    """M a, what an erase finds."""
    return context.arithmetic.matmul(M, read[..., None])[..., 0]


def plus(context: Context, M: Array, x: Array, y: Array) -> Array:
    """M + x y^T."""
    return context.arithmetic.scaled_sum(x[..., :, None], y[..., None, :], M)


def erase_row(context: Context, M: Array, found: Array, write: Array, scale: Array) -> Array:
    """M - diag(e) found b^T; a scale of None is 1."""
    return plus(context, M, -(found if scale is None else scale * found), write)


def of_rows(rate: Array, v: Array) -> Array:
    """A step size beside the values of its row: one for all, or one for each."""
    return rate if len(rate.shape) == len(v.shape) else rate[..., None]
