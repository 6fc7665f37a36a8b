"""One level of a block: a rule that writes once in a period, over the tokens of a call.

Where a level is frozen it costs no write: all tokens between two writes read the same memory at
once. Specified in specs/cms.md (CMS-2, CMS-4, CMS-5, CMS-16, CMS-17).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import FiniteFloat, model_validator

from atlas_ref import forms
from atlas_ref.forms import support
from atlas_ref.layers import projection
from atlas_ref.levels.pulse import Period
from atlas_ref.rules import RULES, Rule, rule_of
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Frozen
from tape import ops

if TYPE_CHECKING:
    RuleConfig = Any
else:
    RuleConfig = functools.reduce(operator.or_, (rule.Config for rule in RULES.values()))

#: Gate biases from the fastest level to the slowest; slower ones take the last (CMS-3, GATES-9).
RANKS: dict[str, tuple[float, ...]] = {
    "retain": (3.0, 4.0, 4.5, 5.0, 5.5, 6.0),
    "momentum": (1.5, 2.0, 2.5, 3.0, 3.5, 4.0),
    "step_size": (-4.6, -5.6, -6.6, -7.6, -8.6, -9.6),
}


def of_rank(place: int) -> dict[str, float]:
    """Biases of the gates of the level that is `place` levels slower than the fastest (CMS-3)."""
    return {name: biases[min(place, len(biases) - 1)] for name, biases in RANKS.items()}


class Biases(Frozen):
    """Initial biases of the gates of a level; None for those of its place among the levels (CMS-3).

    Attributes:
        retain: of the multiplier of M: for a forget gate the bias is its negative.
    """

    retain: FiniteFloat | None = None
    momentum: FiniteFloat | None = None
    step_size: FiniteFloat | None = None


class Level(Frozen):
    """A memory that writes at every `period`-th step and reads at all of them (CMS-2, CMS-17).

    Attributes:
        config: of the rule: its type decides the rule; feature map, window and convention are the
            level's own.
        period: steps between two writes.
        form, chunk: the form of long segments of writes, see `atlas_ref.forms`.
        biases: of the gates at the start.
    """

    config: RuleConfig
    period: Period = 1
    form: str = "sequential"
    chunk: int | None = None
    biases: Biases = Biases()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.config.d_model is None:
            raise ValueError("config: a level projects its tokens, so d_model is needed")
        if self.config.convention.rate == "split":
            raise ValueError("config: convention: rate split has no second rate at level token")
        gates = projection.gate_names(self.rule.gates, self.config.convention)
        for name, bias in self.biases:
            if bias is not None and name not in gates:
                raise ValueError(
                    f"biases: {name}: {self.rule.name} has no such gate, its gates are "
                    f"{', '.join(gates) or 'none'}"
                )
        support.require(self.rule.name, self.config.convention, self.form, self.chunk)
        return self

    @property
    def rule(self) -> Rule:
        """The rule whose configuration this level has."""
        return rule_of(self.config)

    def init(self, place: int, seed: int, *, dtype: Any) -> Any:
        """Parameters of the level that is `place` levels slower than the fastest (CMS-3)."""
        params = projection.init(self.config, seed)
        least = of_rank(place)
        changed = {}
        for name, gate in params.gates.__dict__.items():
            bias = getattr(self.biases, name)
            bias = least.get(name) if bias is None else bias
            if gate is None or bias is None:
                continue
            negative = name == "retain" and self.config.convention.gate == "forget"
            changed[name] = gate.replaced(b=np.full_like(gate.b, -bias if negative else bias))
        return projection.cast(params.replaced(gates=params.gates.replaced(**changed)), dtype)


def begins_chunk(level: Level, state: Any) -> bool:
    """Whether a span of the level begins with the next token (PULSE-10)."""
    span = level.config.span
    return span is not None and state.position % span == 0


def run_level(
    level: Level, params: Any, x: Array, state: Any, origin: Any, active: Array, reset: Array
) -> tuple[Any, Array]:
    """A level over the tokens of a call (CMS-4, CMS-5, CMS-8).

    Args:
        x (B, T, d_model): tokens.
        state: before the first token.
        origin: the state from which a document starts.
        active, reset (T,): plain booleans: where the level writes, where a document starts.

    Returns:
        state after the last token, y (B, H, T, d_out).
    """
    projection.check_params(level.config, params, x)
    projected = projection.project(level.config, params, x)
    return run_projected(level, projected, params.phi, state, origin, active, reset)


def run_projected(
    level: Level,
    projected: Mapping[str, Array | None],
    phi: Mapping[str, Array],
    state: Any,
    origin: Any,
    active: Array,
    reset: Array,
) -> tuple[Any, Array]:
    """A level over the keys, values, queries and gates of a call (CMS-4, CMS-5, CMS-8).

    Args:
        projected: fields of `Tokens` by name, each (B, H, T, ...) or None.
        phi: tensors of the feature map, by name.
        state, origin, active, reset: as in `run_level`.

    Returns:
        state after the last token, y (B, H, T, d_out).
    """

    def document(part: Mapping[str, Array | None], state: Any, tokens: slice) -> tuple[Any, Array]:
        return run_document(level, part, phi, state, active[tokens])

    return by_documents(level, projected, state, origin, reset, document)


def by_documents(
    level: Level,
    projected: Mapping[str, Array | None],
    state: Any,
    origin: Any,
    reset: Array,
    document: Callable[[Mapping[str, Array | None], Any, slice], tuple[Any, Array]],
) -> tuple[Any, Array]:
    """Run a call document by document, each from the state of the start (CMS-8).

    Args:
        projected, state, origin, reset: as in `run_projected`.
        document: (what was projected of its tokens, state, tokens) -> (state, y).

    Returns:
        state after the last token, y (B, H, T, d_out).
    """
    starts = [0, *np.nonzero(reset[1:])[0] + 1, len(reset)]
    reads = []
    for first, last in itertools.pairwise(starts):
        if reset[first]:
            state = level.rule.document(level.config, origin, state)
        part = of_tokens(projected, first, last)
        state, y = document(part, state, slice(first, last))
        reads.append(y)
    return state, reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def of_tokens(
    projected: Mapping[str, Array | None], first: int, last: int
) -> dict[str, Array | None]:
    """What was projected of some tokens of a call, each (B, H, last - first, ...) or None."""
    return {
        name: None if value is None else value[:, :, first:last]
        for name, value in projected.items()
    }


def run_document(
    level: Level,
    projected: Mapping[str, Array | None],
    phi: Mapping[str, Array],
    state: Any,
    active: Array,
) -> tuple[Any, Array]:
    """Run tokens without a document boundary: in the level's form, or sequentially where frozen
    tokens cost nothing (CMS-5, CMS-17).
    """
    always = bool(active.all())
    sparse = not always and memory_alone(level)
    tokens = Tokens(**projected, active=None if always else active)
    form, chunk = ("sequential", None) if sparse else (level.form, level.chunk)
    config = projection.of_computed(level.config)
    return forms.run(level.rule, config, tokens, state, form=form, chunk=chunk, phi=phi)


def memory_alone(level: Level) -> bool:
    """Whether a frozen token changes only the window, so that all between writes read at once."""
    c = level.config.convention
    return (
        c.read in ("after", "before")
        and not c.frozen_reference
        and not level.rule.averages_momenta(level.config)
    )
