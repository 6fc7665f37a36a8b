"""One level of a block: a rule with its period, and its run over a call in which it writes now and then.

Where a level is frozen it costs no write: the driver below goes from one write to the next and lets all the tokens in
between read the same memory at once. Specified in specs/cms.md (CMS-2, CMS-4, CMS-5, CMS-16, CMS-17).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from atlas_ref.parallel import run as parallel
from atlas_ref.parallel import support
from atlas_ref.rules import delta, hebbian, omega, run, titans_lmm
from atlas_ref.rules.agreement import check_call
from atlas_ref.types import Array, Frozen
from tape import ops

MODULES: dict[str, Any] = {"omega": omega, "titans_lmm": titans_lmm, "delta": delta, "hebbian": hebbian}

#: Gate biases from the fastest level to the slowest; slower ones take the last (CMS-3, GATES-9).
RETAIN = (3.0, 4.0, 4.5, 5.0)
STEP_SIZE = (-4.6, -5.6, -6.6, -7.6)


class Biases(Frozen):
    """Where the gates of a level start; None for what its place among the levels says (CMS-3).

    Attributes:
        retain: of the multiplier of M: for a forget gate the bias is its negative.
    """

    retain: FiniteFloat | None = None
    momentum: FiniteFloat | None = None
    step_size: FiniteFloat | None = None


class Level(Frozen):
    """A memory that writes at every `period`-th step and reads at all of them (CMS-2, CMS-17).

    Attributes:
        config: of the rule: its type says which rule, its feature map, window and convention are the level's own.
        period: steps between two writes.
        form, chunk: in which form long stretches of writes are computed, see `atlas_ref.parallel`.
        biases: where the gates start.
    """

    config: omega.Config | titans_lmm.Config | delta.Config | hebbian.Config
    period: Annotated[int, Field(ge=1)] = 1
    form: str = "sequential"
    chunk: int | None = None
    biases: Biases = Biases()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.config.d_model is None:
            raise ValueError("config: a level projects its tokens, so d_model is needed")
        if self.config.convention.rate == "split":
            raise ValueError("config: convention: rate split has no second rate at level token")
        gates = run.gate_names(self.module.RULE.gates, self.config.convention)
        for name, bias in self.biases:
            if bias is not None and name not in gates:
                raise ValueError(f"biases: {name}: {self.rule} has no such gate, its gates are {', '.join(gates) or 'none'}")
        support.require(self.rule, self.config.convention, self.form, self.chunk)
        return self

    @property
    def rule(self) -> str:
        """Name of the rule."""
        return type(self.config).__module__.rpartition(".")[2]

    @property
    def module(self) -> Any:
        """The rule's module: its Params, State, init, start and RULE."""
        return MODULES[self.rule]

    def init(self, place: int, seed: int, *, dtype: Any) -> Any:
        """Parameters of the level that is `place` levels slower than the fastest (CMS-3)."""
        params = self.module.init(self.config, seed)
        least = {"retain": RETAIN[min(place, 3)], "step_size": STEP_SIZE[min(place, 3)], "momentum": None}
        changed = {}
        for name, gate in params.gates.__dict__.items():
            bias = getattr(self.biases, name)
            bias = least[name] if bias is None else bias
            if gate is None or bias is None:
                continue
            negative = name == "retain" and self.config.convention.gate == "forget"
            changed[name] = gate.replaced(b=np.full_like(gate.b, -bias if negative else bias))
        return run.cast(params.replaced(gates=params.gates.replaced(**changed)), dtype)


def run_level(level: Level, params: Any, x: Array, state: Any, origin: Any, active: Array, reset: Array) -> tuple[Any, Array]:
    """A level over the tokens of a call (CMS-4, CMS-5, CMS-8).

    Args:
        x (B, T, d_model): tokens.
        state: before the first token.
        origin: what a document starts from.
        active, reset (T,): plain booleans: where the level writes, where a document starts.

    Returns:
        state after the last token, y (B, H, T, d_out).
    """
    run.check_params(level.config, params, x)
    projected = run.project(level.config, params, x)
    phi = getattr(params, "phi", {})
    starts = [0, *np.nonzero(reset[1:])[0] + 1, len(reset)]
    reads = []
    for first, last in itertools.pairwise(starts):
        part = {name: None if value is None else value[:, :, first:last] for name, value in projected.items()}
        if reset[first]:
            state = level.module.restart(level.config, origin)
        state, y = _document(level, part, state, active[first:last], phi)
        reads.append(y)
    return state, reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def _document(level: Level, projected: Mapping[str, Array], state: Any, active: Array, phi: Mapping[str, Array]) -> tuple[Any, Array]:
    """A stretch without a document boundary: in the level's form if it always writes, from write to write if it does not."""
    rule, config = level.module.RULE, level.config
    if active.all():
        return parallel.run(rule, config, run.Tokens(**projected), state, form=level.form, chunk=level.chunk, phi=phi)
    if _memory_alone(level):
        return _from_write_to_write(level, run.Tokens(**projected), state, active, phi)
    tokens = run.Tokens(**projected, active=active)
    return parallel.run(rule, config, tokens, state, form=level.form, chunk=level.chunk, phi=phi)


def _memory_alone(level: Level) -> bool:
    """Whether a frozen token leaves everything as it is but the window, so that many of them can be taken at once."""
    c = level.config.convention
    keeps_momenta = level.rule == "omega" and c.order == "momentum_then_window"
    return c.read in ("after", "before") and not c.frozen_reference and not keeps_momenta  # else positions in a span move too


def _from_write_to_write(level: Level, tokens: run.Tokens, state: Any, active: Array, phi: Mapping[str, Array]) -> tuple[Any, Array]:
    """The sequential run, in which all tokens that meet the same memory read it at once: the same bits (CMS-5)."""
    rule = level.module.RULE
    config: Any = level.config
    check_call(rule, config, tokens, state)
    keys, queries = run.features(config, tokens, phi)
    queries = ops.moveaxis(queries, -2, 0)  # (T, B, H, d_phi)
    gates = run.gates_by_token(config, tokens, state)
    entering = list(rule.enter(config, state, keys, tokens.v))
    T = len(active)
    writes = np.nonzero(active)[0].tolist()
    later = 1 if config.convention.read == "before" else 0  # the writing token itself reads what was there before
    starts = [t + later for t in writes]
    filled = getattr(state, "filled", None)
    reads = [rule.read(config, state, queries[: starts[0] if starts else T])] if later or not active[0] else []
    with run.short_buffers():
        for t, first, last in zip(writes, starts, [*starts, T][1:], strict=True):
            state = rule.write(config, state, *entering[t], gates[t])
            if first < last:
                reads.append(rule.read(config, state, queries[first:last]))
    if not active[-1]:
        state = rule.rest(config, state, *entering[-1])
    if filled is not None:
        state = state.replaced(filled=min(filled + T, config.window))
    y = ops.moveaxis(ops.concatenate(reads, axis=0), 0, -2)
    return run.settled(run.with_token_gates(config, tokens, state)), y
