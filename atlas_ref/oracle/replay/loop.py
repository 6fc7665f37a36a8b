"""The sequential loop op by op, with a hook that returns the value of each op to the loop.

The hook of a trace returns the value that was computed. That of a replay returns the recorded
value, so that every op is evaluated on recorded inputs and the loop computes only the rest.
Specified in specs/replay.md (REPLAY-1 to REPLAY-6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import phi_of
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.replay import steps
from atlas_ref.oracle.replay.sequence import Sequence, Take, prepare, traced_of, windows
from atlas_ref.parts import feature_maps
from atlas_ref.parts.newton_schulz import coefficient_table
from atlas_ref.types import Array
from tape import ops


@dataclass
class LoopState:
    """Memory, momentum and reference between two tokens, the window's residuals and momenta."""

    M: Array
    S: Array
    reference: Array
    position: int
    residuals: Array
    momenta: Array


def run_ops(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    *,
    way: Arithmetic = PLAIN,
    begin: Callable[[int, LoopState], None] | None = None,
    chosen: tuple[Any, ...] = (),
) -> dict[str, Array]:
    """Run a case with the hook `take` at every op (CONV-29).

    Args:
        inputs: of the case, in the dtype of the arithmetic.
        take: called as take(op, t, compute, *args, counts=mask), where compute(*args) is the op;
            `counts` says which entries have an influence, None for all.
        way: how sums and products are rounded.
        begin: of a trace of chunks, called before each token with the state that it finds, which
            it may change.
        chosen: readings of a subject that has its own (DEEPCASE-14).

    Returns:
        results by their names in files, matrices as the loop has them.
    """
    of_chunks = {} if begin is None else {"begin": begin}
    return traced_of(case).run(case, inputs, take, way, chosen, **of_chunks)


def of_memory(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    way: Arithmetic,
    chosen: tuple[Any, ...] = (),
    *,
    begin: Callable[[int, LoopState], None] | None = None,
) -> dict[str, Array]:
    """One memory, token by token, its matrices d_out x d_phi (CONV-29)."""
    sequence = prepare(case, inputs, take, way)
    read, state = sequence.config.convention.read, _start(sequence, sequence.state)
    reads: list[Array] = []
    queries: Array = None
    waiting: list[int] = []  # tokens that read the last memory of their packed sequence
    for t, (keys, values) in enumerate(windows(sequence)):
        if sequence.reset[t]:
            reads += [_read(sequence, way, state.M, queries, each, take) for each in waiting]
            waiting, state = [], _start(sequence, sequence.fresh)
        if begin is not None:
            begin(t, state)
        if sequence.spans and (state.reference is None or sequence.starts_span(state.position)):
            state.reference = state.M
        before = state.M
        _write(sequence, way, state, t, keys, values, take)
        queries = sequence.queries() if t == 0 else queries
        if read == "call_end":
            waiting.append(t)
        else:
            memory = {"after": state.M, "before": before}.get(read, state.reference)
            reads.append(_read(sequence, way, memory, queries, t, take))
        if sequence.spans:
            state.position = sequence.position_after(state.position)
    reads += [_read(sequence, way, state.M, queries, each, take) for each in waiting]
    momentum = {} if state.S is None else {"out/S": state.S}
    return {"out/y": ops.stack(reads, axis=-2), "out/M": state.M, **momentum}


def _start(sequence: Sequence, state: Any) -> LoopState:
    """The state of the loop from that of a rule."""
    S = state.S if sequence.rule.has_momentum else None
    residuals = momenta = None
    if sequence.rule.has_window:
        residuals, momenta = state.residuals, state.momenta
    return LoopState(state.M, S, state.reference, state.position, residuals, momenta)


def of_newton_schulz(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    way: Arithmetic,
    chosen: tuple[Any, ...] = (),
) -> dict[str, Array]:
    """The rule newton_schulz: the iterates and the result, of matrices without tokens (CASE-10)."""
    settings = case.convention.newton_schulz_settings
    S = inputs["in/G"]
    X = _iterates(settings, way, S, None, take)
    return {"out/X": take("X", None, steps.finished, settings, way, X, S)}


def of_feature_map(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    way: Arithmetic,
    chosen: tuple[Any, ...] = (),
) -> dict[str, Array]:
    """The rule feature_map: rows lifted at once (CASE-11)."""
    settings, phi = case.header.feature_map, phi_of(inputs)
    return {"out/phi": take("phi", None, feature_maps.apply, settings, phi, inputs["in/x"])}


def _iterates(settings: Any, way: Arithmetic, S: Array, t: int | None, take: Take) -> Array:
    """X_n, with the hook at every iterate."""
    X = take("X0", t, steps.normalised, settings, way, S)
    for i in range(len(coefficient_table(settings))):
        X = take(f"X{i + 1}", t, steps.iterate, settings, way, X, i)
    return X


# -- one token -------------------------------------------------------------------------------------


def _write(
    sequence: Sequence,
    way: Arithmetic,
    state: LoopState,
    t: int,
    keys: Array,
    values: Array,
    take: Take,
) -> None:
    """The write of token t, or at an inactive token what stays (CONV-32)."""
    if not sequence.active[t]:
        return _rest(sequence, way, state, t, keys, values, take)
    config, retain, (a, b) = sequence.config, sequence.retain[t], sequence.rates[t]
    if not (sequence.rule.has_error or sequence.rule.has_momentum):
        k, v = keys[..., 0, :], values[..., 0, :]
        state.M = take("M", t, steps.added, config, way, state.M, k, v, retain)
        return None
    residuals = _residuals(sequence, way, state, t, keys, values, retain, take)
    g = take("gradient", t, _gradient, sequence, way, residuals, t, keys)
    if not sequence.rule.has_momentum:
        state.M = take("M", t, steps.corrected, config, way, state.M, steps.times(a, g), b, retain)
        return None
    state.S = S = take("S", t, steps.momentum, config, way, state.S, g, a, sequence.momentum[t])
    if sequence.momentum_first:
        state.momenta = ops.concatenate(
            [state.momenta[..., 1:, :, :], ops.expand_dims(S, -3)], axis=-3
        )
        S = take("P", t, steps.window_sum, way, sequence.weights[t], state.momenta)
    U = _update(sequence, way, S, g, t, take) if sequence.rule.has_newton_schulz else S
    state.M = take("M", t, steps.moved, config, way, state.M, U, b, retain)
    if config.convention.argument == "written_back":
        state.S = U
    return None


def _rest(
    sequence: Sequence,
    way: Arithmetic,
    state: LoopState,
    t: int,
    keys: Array,
    values: Array,
    take: Take,
) -> None:
    """The rest at an inactive token, where M and S repeat (WINDOW-13, OMEGA-11).

    The residual that the window stores for it is computed without decay.
    """
    if state.residuals is not None:
        arrival = steps.residual(
            sequence.config, way, _reference(sequence, state), None, keys, values
        )[..., -1, :]
        state.residuals = ops.slide(state.residuals, arrival)
    if state.S is not None:
        state.S = take("S", t, _same, state.S)
    if state.momenta is not None:
        state.momenta = ops.concatenate(
            [state.momenta[..., 1:, :, :], ops.expand_dims(state.S, -3)], axis=-3
        )
    state.M = take("M", t, _same, state.M)


def _same(x: Array) -> Array:
    return x


def _reference(sequence: Sequence, state: LoopState) -> Array:
    """The memory of the residuals; None for the zero one, and for a rule without an error."""
    if not sequence.rule.has_error:
        return None
    reference = sequence.config.convention.reference
    nothing = dict.fromkeys(("zero", "surrogate"))
    return {"running": state.M, **nothing}.get(reference, state.reference)


def _residuals(
    sequence: Sequence,
    way: Arithmetic,
    state: LoopState,
    t: int,
    keys: Array,
    values: Array,
    retain: Array,
    take: Take,
) -> Array:
    """Residuals oldest first, zero where they have no influence: no such token, cut off, or its
    momentum alone counts.
    """
    convention = sequence.config.convention
    lags = np.arange(sequence.window)[::-1]
    older = (lags > state.position)[:, None] & convention.frozen_reference
    counts = sequence.exists[t][::-1][:, None]
    if sequence.momentum_first:
        counts = counts & (lags == 0)[:, None]
    elif convention.window_at_boundary == "cut":
        counts = counts & ~older
    by_lag = take(
        "residual",
        t,
        _by_lag,
        sequence,
        way,
        state,
        retain,
        keys,
        values,
        counts,
        older,
        counts=counts[::-1],
    )
    residuals = ops.where(counts, ops.flip(by_lag, -2), 0.0)
    if state.residuals is not None:
        state.residuals = ops.slide(state.residuals, residuals[..., -1, :])
    return residuals


def _by_lag(
    sequence: Sequence,
    way: Arithmetic,
    state: LoopState,
    retain: Array,
    keys: Array,
    values: Array,
    counts: Array,
    older: Array,
) -> Array:
    """The residual of every lag (OMEGA-4, WINDOW-13).

    Under carry, a token of an older span has the residual of its arrival.
    """
    residuals = steps.residual(
        sequence.config, way, _reference(sequence, state), retain, keys, values
    )
    if state.residuals is not None:
        residuals = ops.where(older, ops.slide(state.residuals, residuals[..., -1, :]), residuals)
    return ops.flip(ops.where(counts, residuals, 0.0), -2)


def _gradient(sequence: Sequence, way: Arithmetic, residuals: Array, t: int, keys: Array) -> Array:
    if sequence.momentum_first:
        return steps.gradient(sequence.config, way, residuals[..., -1:, :], None, keys[..., -1:, :])
    return steps.gradient(sequence.config, way, residuals, sequence.weights[t], keys)


def _update(sequence: Sequence, way: Arithmetic, S: Array, g: Array, t: int, take: Take) -> Array:
    """U from S (OMEGA-8)."""
    convention = sequence.config.convention
    if not convention.has_newton_schulz or convention.argument == "accumulated":
        return take("U", t, _same, S)
    settings = convention.newton_schulz_settings
    argument = steps.argument(sequence.config, way, S, g, sequence.momentum[t])
    return take(
        "U", t, steps.finished, settings, way, _iterates(settings, way, argument, t, take), argument
    )


def _read(
    sequence: Sequence, way: Arithmetic, M: Array, queries: Array, t: int, take: Take
) -> Array:
    """y_t from the memory that it reads, through Newton-Schulz on accumulated memories.

    Source: OMEGA-9, OMEGA-12.
    """
    convention = sequence.config.convention
    if convention.argument == "accumulated":
        settings = convention.newton_schulz_settings
        M = steps.finished(settings, way, _iterates(settings, way, M, t, take), M)
    return take("y", t, steps.read, way, M, queries[..., t, :])
