"""Mistakes about tokens and gates of a deep memory (DEEPCASE-15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.oracle.deep.readings.conditions import (
    again,
    chunks,
    holds,
    rows,
    several,
    tokens,
    writes,
)
from atlas_ref.oracle.deep.settings import Settings
from atlas_ref.oracle.program.changes import Change, Inputs, change_tensor, copy_tensor, late
from atlas_ref.oracle.program.hook import Op
from atlas_ref.oracle.program.mistakes import both
from atlas_ref.oracle.program.reading import Around, Reading
from atlas_ref.types import Array
from tape import ops


def without_prefix(*beginnings: str) -> Change:
    """A case without tensors whose names begin so."""
    return lambda inputs: {n: x for n, x in inputs.items() if not n.startswith(beginnings)}


def of_settings(change: Callable[[Inputs, Settings], Inputs]) -> Around:
    """Inputs that are changed by the settings of the case."""
    return lambda compute, context, inputs: compute(change(inputs, context.settings))


def _first_row(x: Array) -> Array:
    return ops.concatenate([x[:1]] * x.shape[0], axis=0)


def of_first_row(*beginnings: str) -> Change:
    """A case whose rows all have the first row's part of some tensors."""
    return lambda inputs: {
        name: _first_row(x) if name.startswith(beginnings) else x for name, x in inputs.items()
    }


def late_gate(x: Array) -> Array:
    """Numbers of tokens one token late, the first twice."""
    return late(x, -1)


def late_row(x: Array) -> Array:
    """Rows of tokens one token late, the first twice."""
    return late(x, -2)


def _early(x: Array) -> Array:
    return ops.concatenate([x[..., 1:, :], ops.zeros_like(x[..., :1, :])], axis=-2)


def _over_chunk(name: str, how: str) -> Around:
    """A gate over the tokens of the chunk that ends at each token: their product, sum or mean."""

    def change(inputs: Inputs, settings: Settings) -> Inputs:
        gate = inputs[name]
        parts = [_shift_gate(gate, lag) for lag in range(min(settings.chunk, gate.shape[-1]))]
        total = parts[0]
        for each in parts[1:]:
            total = total * each if how == "product" else total + each
        return {**inputs, name: total / len(parts) if how == "mean" else total}

    return of_settings(change)


def _shift_gate(gate: Array, lag: int) -> Array:
    """A gate some tokens late, the first one in place of those before."""
    if not lag:
        return gate
    first = [gate[..., :1]] * min(lag, gate.shape[-1])
    return ops.concatenate([*first, gate[..., : gate.shape[-1] - lag]], axis=-1)


def _from_oldest(op: Op, count: int) -> Any:
    """The first lags of a window that runs from its oldest token."""
    return op(op.context.settings.window)[::-1][:count]


TOKENS: tuple[Reading, ...] = (
    Reading(
        "values one token early",
        "keys had the values of the next token",
        matters=tokens,
        inputs=change_tensor("in/v", _early),
    ),
    Reading(
        "keys one token late",
        "values had the keys of the token before",
        matters=tokens,
        inputs=change_tensor("in/k", late_row),
    ),
    Reading(
        "query one token late",
        "tokens read with the query before",
        matters=lambda context: context.tokens > 1,
        inputs=change_tensor("in/q", late_row),
    ),
    Reading("key read", "tokens read with their keys", inputs=copy_tensor("in/k", "in/q")),
    Reading(
        "query written",
        "queries were written in place of keys",
        matters=writes,
        inputs=copy_tensor("in/q", "in/k"),
    ),
    *(
        Reading(
            f"{name} of the token before",
            f"{name} gates were one token late",
            matters=both(holds(f"in/{name}"), tokens, again if name == "momentum" else writes),
            inputs=change_tensor(f"in/{name}", late_gate),
        )
        for name in ("retain", "momentum", "step_size", "window_gate")
    ),
    *(
        Reading(
            f"{name} of the first row",
            f"all rows had the {name} gates of the first",
            matters=both(holds(f"in/{name}"), rows, again if name == "momentum" else writes),
            inputs=of_first_row(f"in/{name}"),
        )
        for name in ("retain", "momentum", "step_size")
    ),
    Reading(
        "momentum for retain",
        "the momentum gate multiplied the weights",
        matters=both(holds("in/retain"), holds("in/momentum")),
        inputs=copy_tensor("in/momentum", "in/retain"),
    ),
    Reading(
        "retain for momentum",
        "the retain gate multiplied the momentum",
        matters=lambda context: (
            both(holds("in/retain"), holds("in/momentum"))(context) and again(context)
        ),
        inputs=copy_tensor("in/retain", "in/momentum"),
    ),
    Reading(
        "retain of every token",
        "weights decayed by the product of the retain gates of a chunk",
        matters=both(holds("in/retain"), chunks),
        around=_over_chunk("in/retain", "product"),
    ),
    Reading(
        "steps of every token",
        "a write had the sum of the step sizes of its chunk",
        matters=both(holds("in/step_size"), chunks),
        around=_over_chunk("in/step_size", "sum"),
    ),
    Reading(
        "momentum averaged over a chunk",
        "a write had the mean momentum gate of its chunk",
        matters=both(holds("in/momentum"), chunks, again),
        around=_over_chunk("in/momentum", "mean"),
    ),
    Reading(
        "window weights of the token before",
        "a write had the window weights of the token before",
        matters=both(holds("in/window_weights"), tokens),
        inputs=change_tensor("in/window_weights", late_row),
    ),
    Reading(
        "window weights reversed",
        "weights by lag ran from the oldest token",
        matters=lambda context: (
            several(context)
            and "in/window_weights" not in context.inputs
            and context.settings.by_lag != context.settings.by_lag[::-1]
        ),
        ops={"lags": _from_oldest},
    ),
    Reading(
        "given window weights reversed",
        "given weights by lag ran from the oldest token",
        matters=both(holds("in/window_weights"), several),
        inputs=change_tensor("in/window_weights", lambda x: ops.flip(x, -1)),
    ),
    Reading(
        "window_gate ignored",
        "tokens brought no weight",
        matters=holds("in/window_gate"),
        inputs=without_prefix("in/window_gate", "in/state/token_gates"),
    ),
)
