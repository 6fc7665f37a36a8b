"""Mistakes about tokens and gates of a deep memory (DEEPCASE-15)."""

from __future__ import annotations

from collections.abc import Callable

from atlas_ref.oracle.deep.readings.conditions import (
    again,
    both,
    chunks,
    holds,
    rows,
    several,
    tokens,
    writes,
)
from atlas_ref.oracle.deep.readings.reading import Inputs, Reading
from atlas_ref.oracle.deep.settings import Settings
from atlas_ref.types import Array
from tape import ops


def without(inputs: Inputs, *beginnings: str) -> Inputs:
    """Tensors whose names begin otherwise."""
    return {name: x for name, x in inputs.items() if not name.startswith(beginnings)}


def ignored(*beginnings: str) -> Callable[[Inputs, Settings], Inputs]:
    """A case without tensors whose names begin so."""
    return lambda inputs, s: without(inputs, *beginnings)


def _first_row(x: Array) -> Array:
    return ops.concatenate([x[:1]] * x.shape[0], axis=0)


def of_first_row(*beginnings: str) -> Callable[[Inputs, Settings], Inputs]:
    """A case whose rows all have the first row's part of some tensors."""
    return lambda inputs, s: {
        name: _first_row(x) if name.startswith(beginnings) else x for name, x in inputs.items()
    }


def changed(name: str, change: Callable[[Array], Array]) -> Callable[[Inputs, Settings], Inputs]:
    """A case with another value of a tensor."""
    return lambda inputs, s: {**inputs, name: change(inputs[name])}


def late(axis: int) -> Callable[[Array], Array]:
    """Entries one token late, the first twice."""

    def change(x: Array) -> Array:
        behind = (slice(None),) * (-axis - 1)
        first, rest = x[(..., slice(0, 1), *behind)], x[(..., slice(0, -1), *behind)]
        return ops.concatenate([first, rest], axis=axis)

    return change


def _early(x: Array) -> Array:
    return ops.concatenate([x[..., 1:, :], ops.zeros_like(x[..., :1, :])], axis=-2)


def _renamed(name: str, source: str) -> Callable[[Inputs, Settings], Inputs]:
    return lambda inputs, s: {**inputs, name: inputs[source]}


def _over_chunk(name: str, how: str) -> Callable[[Inputs, Settings], Inputs]:
    """A gate over the tokens of the chunk that ends at each token: their product, sum or mean."""

    def change(inputs: Inputs, s: Settings) -> Inputs:
        gate = inputs[name]
        parts = [_shifted(gate, lag) for lag in range(min(s.chunk, gate.shape[-1]))]
        total = parts[0]
        for each in parts[1:]:
            total = total * each if how == "product" else total + each
        return {**inputs, name: total / len(parts) if how == "mean" else total}

    return change


def _shifted(gate: Array, lag: int) -> Array:
    """A gate some tokens late, the first one in place of those before."""
    if not lag:
        return gate
    first = [gate[..., :1]] * min(lag, gate.shape[-1])
    return ops.concatenate([*first, gate[..., : gate.shape[-1] - lag]], axis=-1)


def _reversed_weights(s: Settings) -> Settings:
    return s._replace(kind=tuple(reversed(s.by_lag)))


TOKENS: tuple[Reading, ...] = (
    Reading(
        "values one token early",
        "keys had the values of the next token",
        made_in=tokens,
        inputs=changed("in/v", _early),
    ),
    Reading(
        "keys one token late",
        "values had the keys of the token before",
        made_in=tokens,
        inputs=changed("in/k", late(-2)),
    ),
    Reading(
        "query one token late",
        "tokens read with the query before",
        made_in=lambda at: at.tokens > 1,
        inputs=changed("in/q", late(-2)),
    ),
    Reading("key read", "tokens read with their keys", inputs=_renamed("in/q", "in/k")),
    Reading(
        "query written",
        "queries were written in place of keys",
        made_in=writes,
        inputs=_renamed("in/k", "in/q"),
    ),
    *(
        Reading(
            f"{name} of the token before",
            f"{name} gates were one token late",
            made_in=both(holds(f"in/{name}"), tokens, again if name == "momentum" else writes),
            inputs=changed(f"in/{name}", late(-1)),
        )
        for name in ("retain", "momentum", "step_size", "window_gate")
    ),
    *(
        Reading(
            f"{name} of the first row",
            f"all rows had the {name} gates of the first",
            made_in=both(holds(f"in/{name}"), rows, again if name == "momentum" else writes),
            inputs=of_first_row(f"in/{name}"),
        )
        for name in ("retain", "momentum", "step_size")
    ),
    Reading(
        "momentum for retain",
        "the momentum gate multiplied the weights",
        made_in=both(holds("in/retain"), holds("in/momentum")),
        inputs=_renamed("in/retain", "in/momentum"),
    ),
    Reading(
        "retain for momentum",
        "the retain gate multiplied the momentum",
        made_in=lambda at: both(holds("in/retain"), holds("in/momentum"))(at) and again(at),
        inputs=_renamed("in/momentum", "in/retain"),
    ),
    Reading(
        "retain of every token",
        "weights decayed by the product of the retain gates of a chunk",
        made_in=both(holds("in/retain"), chunks),
        inputs=_over_chunk("in/retain", "product"),
    ),
    Reading(
        "steps of every token",
        "a write had the sum of the step sizes of its chunk",
        made_in=both(holds("in/step_size"), chunks),
        inputs=_over_chunk("in/step_size", "sum"),
    ),
    Reading(
        "momentum averaged over a chunk",
        "a write had the mean momentum gate of its chunk",
        made_in=both(holds("in/momentum"), chunks, again),
        inputs=_over_chunk("in/momentum", "mean"),
    ),
    Reading(
        "window weights of the token before",
        "a write had the window weights of the token before",
        made_in=both(holds("in/window_weights"), tokens),
        inputs=changed("in/window_weights", late(-2)),
    ),
    Reading(
        "window weights reversed",
        "weights by lag ran from the oldest token",
        made_in=lambda at: (
            several(at)
            and "in/window_weights" not in at.inputs
            and at.s.by_lag != at.s.by_lag[::-1]
        ),
        settings=_reversed_weights,
    ),
    Reading(
        "given window weights reversed",
        "given weights by lag ran from the oldest token",
        made_in=both(holds("in/window_weights"), several),
        inputs=changed("in/window_weights", lambda x: ops.flip(x, -1)),
    ),
    Reading(
        "window_gate ignored",
        "tokens brought no weight",
        made_in=holds("in/window_gate"),
        inputs=ignored("in/window_gate", "in/state/token_gates"),
    ),
)
