"""Mistakes of the forward pass, each made before or easily made (VEC-16)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atlas_ref.oracle.family import departures
from atlas_ref.oracle.family.mistake import Mistake, Seen
from atlas_ref.oracle.family.state import Inputs
from atlas_ref.rules import names_with
from atlas_ref.types import Array
from tape import ops


def _always(at: Seen) -> bool:
    return True


def _has_window(at: Seen) -> bool:
    return at.structure.window > 1 and at.tokens + at.history > 1


def _window_history(at: Seen) -> int:
    """Initial window tokens that a gradient looks at; momentum_then_window keeps momenta in their
    place.
    """
    return at.history if at.structure.order == "window_then_momentum" else 0


def _has(name: str) -> Callable[[Seen], bool]:
    return lambda at: getattr(at.inputs, name) is not None


def _change(name: str, change: Callable[[Array], Array]) -> Callable[[Inputs], Inputs]:
    return lambda inputs: inputs._replace(**{name: change(getattr(inputs, name))})


def _later(x: Array) -> Array:
    """Columns or rows one token late: token t has those of token t - 1, the first keeps its own."""
    return ops.concatenate([x[..., :1, :, :], x[..., :-1, :, :]], axis=-3)


def _ahead(x: Array) -> Array:
    """Rows one token early, zero after the last."""
    return ops.concatenate([x[..., 1:, :], ops.zeros_like(x[..., :1, :])], axis=-2)


def _of_first_head(behind: int) -> Callable[[Array], Array]:
    """Every head's array replaced by the first one's; `behind` axes stand behind that of heads."""

    def change(x: Array) -> Array:
        first = x[(..., slice(0, 1), *[slice(None)] * behind)]
        return ops.concatenate([first] * x.shape[-behind - 1], axis=-behind - 1)

    return change


def _per_head(name: str) -> Callable[[Seen], bool]:
    def applies(at: Seen) -> bool:
        value = getattr(at.inputs, name)
        return (
            at.heads > 1 and value is not None and len(value.shape) == len(at.inputs.keys.shape) + 1
        )

    return applies


def _row_wise(name: str) -> Callable[[Seen], bool]:
    return lambda at: (
        getattr(at.inputs, name) is not None and getattr(at.inputs, name).shape[-2] > 1
    )


def _drop_oldest(weights: Array) -> Array:
    return ops.concatenate([ops.zeros_like(weights[..., :1, :]), weights[..., 1:, :]], axis=-2)


def _drop_newest(weights: Array) -> Array:
    return ops.concatenate([weights[..., :-1, :], ops.zeros_like(weights[..., -1:, :])], axis=-2)


def _first_rows(name: str) -> Mistake:
    return Mistake(
        f"{name} of the first output dimension",
        f"one {name} gate for all output dimensions",
        _row_wise(name),
        inputs=_change(name, lambda x: x[..., :1, :]),
        said=f"all output dimensions had the {name} gate of the first",
    )


def _inactive(at: Seen) -> bool:
    return not bool(at.inputs.active.all())


def _decaying(inputs: Inputs) -> Inputs:
    """Inputs under which an inactive token writes nothing and decays all the same."""
    rest = inputs.active.reshape(-1, 1, 1)
    one = ops.ones_like(inputs.retain, shape=(len(inputs.active), 1, 1))

    def gate(x: Array, value: float) -> Array:
        return ops.where(rest, one if x is None else x, value * one)

    momentum = {} if inputs.momentum is None else {"momentum": gate(inputs.momentum, 1.0)}
    return inputs._replace(
        a=gate(inputs.a, 0.0), b=gate(inputs.b, 0.0), active=np.ones_like(inputs.active), **momentum
    )


def _resets(at: Seen) -> bool:
    return bool(at.inputs.reset[1:].any())


MISTAKES: tuple[Mistake, ...] = (
    # the window
    Mistake(
        "window off by one",
        "the oldest token of the window is left out",
        _has_window,
        inputs=_change("weights", _drop_oldest),
    ),
    Mistake(
        "window without its newest",
        "the window ends before the token itself",
        _has_window,
        inputs=_change("weights", _drop_newest),
    ),
    Mistake(
        "window weights reversed",
        "weights by lag are read from the oldest token",
        _has_window,
        inputs=_change("weights", lambda x: ops.flip(x, -2)),
    ),
    Mistake(
        "window weights of the token before",
        "token t uses the weights of time t - 1",
        lambda at: _has_window(at) and at.tokens > 1 and at.case.header.level == "projected",
        inputs=_change("weights", _later),
    ),
    Mistake(
        "weights ignored",
        "every window token counts 1/c",
        _has_window,
        inputs=_change("weights", lambda x: ops.ones_like(x) / x.shape[-2]),
    ),
    Mistake(
        "initial window ignored",
        "a call starts with an empty window",
        lambda at: _window_history(at) > 0,
        case=departures.without_window,
    ),
    Mistake(
        "initial window reversed",
        "initial window tokens are read newest first",
        lambda at: _window_history(at) > 1,
        inputs=lambda inputs: inputs._replace(
            window_keys=ops.flip(inputs.window_keys, -2),
            window_targets=ops.flip(inputs.window_targets, -2),
        ),
    ),
    Mistake(
        "padding leaks a future token",
        "keys and values are one token ahead",
        lambda at: at.tokens > 1,
        inputs=lambda inputs: inputs._replace(
            keys=_ahead(inputs.keys), targets=_ahead(inputs.targets)
        ),
        whole=True,
    ),
    # states
    departures.M0,
    departures.S0,
    Mistake(
        "M0 of the first head",
        "every head starts from the first head's memory",
        lambda at: at.heads > 1,
        inputs=_change("M0", _of_first_head(2)),
    ),
    departures.REFERENCE,
    Mistake(
        "initial momenta ignored",
        "a call starts with no momenta",
        _has("momenta"),
        case=departures.without_window,
    ),
    Mistake(
        "residuals ignored",
        "a call starts with stored residuals of zero",
        _has("residuals"),
        inputs=_change("residuals", ops.zeros_like),
    ),
    departures.PHASE,
    Mistake(
        "span one longer",
        "spans are a token too long",
        lambda at: at.structure.span is not None and at.structure.frozen == "chunk_start",
        structure=lambda s: s._replace(span=(s.span or 0) + 1),
    ),
    # gates
    Mistake(
        "retain of the first head",
        "every head uses the first head's retain gate",
        _per_head("retain"),
        inputs=_change("retain", _of_first_head(3)),
    ),
    Mistake(
        "retain of the token before",
        "retain gates are one token late",
        lambda at: _has("retain")(at) and at.tokens > 1,
        inputs=_change("retain", _later),
    ),
    Mistake(
        "momentum of the token before",
        "momentum gates are one token late",
        lambda at: at.momentum and at.tokens > 1,
        inputs=_change("momentum", _later),
    ),
    Mistake(
        "retain left out",
        "the memory never decays",
        _has("retain"),
        inputs=lambda inputs: inputs._replace(retain=None, decay=None),
    ),
    Mistake(
        "momentum left out",
        "momentum is 1 at every token",
        lambda at: at.momentum,
        inputs=_change("momentum", ops.ones_like),
    ),
    Mistake(
        "momentum for retain",
        "the momentum gate multiplies the memory",
        lambda at: at.momentum and _has("retain")(at),
        inputs=lambda inputs: inputs._replace(retain=inputs.momentum),
    ),
    Mistake(
        "retain for momentum",
        "the retain gate multiplies the momentum",
        lambda at: at.momentum and _has("retain")(at),
        inputs=lambda inputs: inputs._replace(momentum=inputs.retain),
    ),
    Mistake(
        "momentum as an average",
        "the gradient is multiplied by one minus the momentum",
        lambda at: at.momentum,
        inputs=lambda inputs: inputs._replace(
            a=(1.0 - inputs.momentum) if inputs.a is None else inputs.a * (1.0 - inputs.momentum)
        ),
    ),
    _first_rows("retain"),
    _first_rows("momentum"),
    Mistake(
        "retain by columns",
        "gates per output dimension multiply columns of the memory",
        lambda at: _row_wise("retain")(at) and at.square,
        inputs=_change("retain", lambda x: x.swapaxes(-1, -2)),
    ),
    # pulses and resets
    departures.PULSES,
    Mistake(
        "inactive tokens decay",
        "an inactive token writes nothing and the memory decays",
        lambda at: _inactive(at) and _has("retain")(at),
        inputs=_decaying,
    ),
    Mistake(  # with the weights of a gated window as they are
        "resets ignored",
        "a packed sequence goes on from the one before",
        _resets,
        inputs=lambda inputs: inputs._replace(reset=np.zeros_like(inputs.reset)),
    ),
    Mistake(
        "resets one late",
        "a packed sequence starts at its second token",
        _resets,
        inputs=lambda inputs: inputs._replace(reset=np.concatenate([[False], inputs.reset[:-1]])),
    ),
    # the write and the read
    Mistake(
        "value transposed with key",
        "the outer product is k e^T",
        lambda at: at.square and at.case.header.rule in names_with("has_error"),
        touch={"gradient": lambda g: g.swapaxes(-1, -2)},
    ),
    Mistake(
        "memory read transposed",
        "y = M^T q",
        lambda at: at.square,
        touch={"read": lambda M: M.swapaxes(-1, -2)},
    ),
    Mistake(
        "memory transposed in the residual",
        "e = M^T k - v",
        lambda at: at.square and at.structure.reference != "zero",
        touch={"reference": lambda M: M.swapaxes(-1, -2)},
    ),
    Mistake(
        "residual divided by d_out",
        "the loss is a mean over components",
        lambda at: at.structure.reference != "zero",
        touch={"residual": lambda e: e / e.shape[-1]},
    ),
    Mistake(
        "residual clipped",
        "residuals are clipped to [-1, 1]",
        lambda at: at.structure.reference != "zero",
        touch={"residual": lambda e: ops.minimum(ops.maximum(e, -1.0), 1.0)},
    ),
    Mistake(
        "gradient of one head in all",
        "heads share their gradient",
        lambda at: at.heads > 1,
        touch={"gradient": _of_first_head(2)},
    ),
    Mistake(
        "query one token late",
        "y_t reads with q_(t-1)",
        lambda at: at.tokens > 1,
        inputs=_change(
            "queries", lambda x: ops.concatenate([x[..., :1, :], x[..., :-1, :]], axis=-2)
        ),
    ),
    Mistake(
        "key read",
        "y = M k",
        lambda at: at.inputs.keys.shape == at.inputs.queries.shape,
        inputs=lambda inputs: inputs._replace(queries=inputs.keys),
    ),
)
