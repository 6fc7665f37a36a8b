"""Pulse and Conductor: the steps at which each level writes.

    level l writes at step s    if and only if    s mod period_l = 0

Specified in specs/pulse.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.types import Array, Count, Frozen, Phase, Pulse

#: Steps between two active ones of a level; none is too large (PULSE-2).
Period = Annotated[int, Field(ge=1)]
#: Periods of four levels, from the fastest to the slowest (PULSE-2).
PERIODS = (1, 8, 64, 512)

Unit = Literal["token", "call"]

#: Settings that a saved conductor must share with the one that it is restored into (PULSE-9).
SETTINGS = ("periods", "first_step", "per", "call_tokens")


def schedule(periods: Sequence[int], step: int, tokens: int) -> Array:
    """Masks (T, k) of the levels that write at each of the next tokens (PULSE-2, PULSE-6).

    Args:
        step: number of the first of these tokens.
    """
    active = np.zeros((tokens, len(periods)), bool)
    for level, period in enumerate(periods):
        active[-step % period :: period, level] = (
            True  # from the first multiple on; no step is too large for it
        )
    return active


class Conductor(Frozen):
    """The counter of steps, which makes their pulses (PULSE-3 to PULSE-9).

    Frozen like all data here: to advance is to make the next one. Only `restored` makes one with a
    smaller step.

    Attributes:
        periods: of the levels.
        first_step: number of the first step: 0, every level writes at the first token; 1, each
            waits for its period.
        per: the unit of a step: a token, or a whole call.
        call_tokens: with steps per call, the tokens of a call: a level with a period of at most so
            many writes in every call. None where periods count calls.
        phase: of the pulses.
        step: number of the next step.
        tokens: tokens that were driven so far.
    """

    periods: Annotated[tuple[Period, ...], Field(min_length=1)] = PERIODS
    first_step: Annotated[int, Field(ge=0, le=1)] = 0
    per: Unit = "token"
    call_tokens: Count | None = None
    phase: Phase = "build"
    step: Annotated[int, Field(ge=0)] = 0
    tokens: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _starts_at_the_first_step(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = {"step": data.get("first_step", 0), **data}
        return (
            {**fields, "periods": tuple(fields["periods"])}
            if isinstance(fields.get("periods"), list)
            else fields
        )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.per == "token" and self.call_tokens is not None:
            raise ValueError("call_tokens: belongs to steps per call, but a step is a token here")
        gone = self.step - self.first_step
        if gone < 0 or (gone != self.tokens if self.per == "token" else gone > self.tokens):
            raise ValueError(
                f"step: {self.step} from {self.first_step} after {self.tokens} tokens, with a "
                f"step per {self.per}"
            )
        return self

    @property
    def pulse(self) -> Pulse:
        """The pulse of the step that comes next (PULSE-4)."""
        return Pulse(step=self.step, active=tuple(self._row.tolist()), phase=self.phase)

    @property
    def _row(self) -> Array:
        return np.array(self._covered) | schedule(self.periods, self.step, 1)[0]

    @property
    def _covered(self) -> list[bool]:
        """Levels that a call covers."""
        return [
            self.call_tokens is not None and period <= self.call_tokens for period in self.periods
        ]

    @property
    def always(self) -> bool:
        """Whether some level writes at every step."""
        return 1 in self.periods or any(self._covered)

    def schedule(self, tokens: int) -> Array:
        """Masks (T, k) of the levels that write at each of the next tokens, for a parallel form.

        Source: PULSE-6.
        """
        if self.per == "token":
            return schedule(self.periods, self.step, tokens)
        return np.broadcast_to(self._row, (tokens, len(self.periods)))

    def advanced(self, tokens: int = 1) -> Conductor:
        """The conductor after some tokens: one step each, or one step where it is a call (PULSE-3,
        PULSE-5).

        Raises:
            ValueError: fewer than one token.
        """
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"tokens: {tokens!r}, expected a whole number of tokens, at least 1")
        return self.replaced(
            step=self.step + (tokens if self.per == "token" else 1), tokens=self.tokens + tokens
        )

    def tick(self, *observers: Callable[[Pulse], Any], tokens: int = 1) -> Conductor:
        """Observe, then advance: all observers see the pulse of a step before the counter moves
        (PULSE-4).

        Where a step is a token they see every token's pulse. An error of an observer leaves the
        step as it was.
        """
        if self.per == "call" or tokens == 1:
            for observer in observers:
                observer(self.pulse)
            return self.advanced(tokens)
        after = self.advanced(tokens)
        for t in range(tokens):
            for observer in observers:
                observer(self.replaced(step=self.step + t).pulse)
        return after

    def in_phase(self, phase: Phase) -> Conductor:
        """The conductor in another phase (PULSE-8)."""
        return Conductor(**{**self.__dict__, "phase": phase})

    @property
    def average_active(self) -> float:
        """The mean number of levels that write at a token, sum_l 1 / period_l (PULSE-7).

        It is 1.14 for the default periods. With steps per call, levels that a call covers count 1.
        """
        return sum(
            1.0 if covered else 1.0 / period
            for covered, period in zip(self._covered, self.periods, strict=True)
        )

    def saved(self) -> dict[str, Any]:
        """Everything that `restored` needs except the phase, as a JSON object (PULSE-9)."""
        values = {name: getattr(self, name) for name in (*SETTINGS, "step", "tokens")}
        return {**values, "periods": list(self.periods)}

    def restored(self, saved: Mapping[str, Any], *, tokens: int | None = None) -> Conductor:
        """This conductor at the step of a saved one (PULSE-9).

        Args:
            saved: the result of `saved`.
            tokens: number of tokens of the stream so far, if it is known; it must be that of the
                conductor.

        Raises:
            ValueError: a key that is missing or unknown, a setting that differs, a step that the
                tokens do not make, or a stream that stands elsewhere.
        """
        own = self.saved()
        for key in sorted(own.keys() ^ saved.keys()):
            raise ValueError(
                f"{key}: {'missing' if key in own else 'unknown'} in the saved conductor"
            )
        for key in SETTINGS:
            if saved[key] != own[key]:
                raise ValueError(
                    f"{key}: {saved[key]} in the saved conductor, {own[key]} in this one"
                )
        if tokens is not None and tokens != saved["tokens"]:
            raise ValueError(
                f"tokens: the saved conductor stands after {saved['tokens']}, the stream "
                f"after {tokens}"
            )
        return Conductor(**{**saved, "phase": self.phase})
