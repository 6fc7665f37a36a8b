"""What decides whether a mistake of a deep memory can be made in a case."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.schedule import Begin, Read, Refresh, Write
from atlas_ref.oracle.program.changes import without


def writes(context: DeepContext) -> bool:
    """Whether anything is written."""
    return bool(context.plan.writes)


def several(context: DeepContext) -> bool:
    """Whether some write looks at several tokens."""
    return any(len(each.rows) > 1 for each in context.plan.writes)


def again(context: DeepContext) -> bool:
    """Whether a write sees the momentum of another one, or of a call before."""
    before = context.begins("in/state/momentum/")
    for event in context.plan.events:
        if isinstance(event, Begin) and event.momentum:
            before = False
        elif isinstance(event, Write):
            if before:
                return True
            before = True
    return False


def of_kind(kind: str) -> Callable[[DeepContext], bool]:
    """A memory function of a kind, which something is written to."""
    return lambda context: context.settings.function.kind == kind and writes(context)


def with_norm(context: DeepContext) -> bool:
    """A layer norm inside the function."""
    f = context.settings.function
    return (f.kind == "polynomial" or f.residual_norm) and writes(context)


def has_activation(context: DeepContext) -> bool:
    """An activation inside the function, behind a matrix that is written."""
    f = context.settings.function
    inner = {"W_1", "W_in", "W_down"} & set(context.settings.fast)
    return (f.kind == "polynomial" or (f.kind == "mlp" and f.depth > 1)) and bool(inner)


def has_products(context: DeepContext) -> bool:
    """Products of two entries."""
    f = context.settings.function
    return bool(f.kind == "polynomial" and f.degree == 2)


def holds(*names: str) -> Callable[[DeepContext], bool]:
    """A case that has tensors of these names, or that begin so."""
    return lambda context: context.begins(*names) and writes(context)


def chunks(context: DeepContext) -> bool:
    """Chunks of several tokens."""
    return context.settings.chunk > 1 and writes(context)


def tokens(context: DeepContext) -> bool:
    """Several tokens in the call."""
    return context.tokens > 1 and writes(context)


def rows(context: DeepContext) -> bool:
    """Several rows, each with a memory of its own or not."""
    lead = context.inputs["in/k"].shape[:-2]
    return bool(lead) and lead[0] > 1 and writes(context)


def silent(context: DeepContext) -> bool:
    """A silent token at which a write would be due."""
    active = context.inputs.get("in/active")
    if active is None or not context.settings.writes:
        return False
    every = context._replace(inputs=without("in/active")(dict(context.inputs)))
    return len(every.plan.writes) > len(context.plan.writes)


def documents(context: DeepContext) -> bool:
    """A document that starts behind the first token."""
    reset = context.inputs.get("in/reset")
    return reset is not None and bool(np.any(reset[1:])) and writes(context)


def later(context: DeepContext) -> bool:
    """A write behind the first start of a document."""
    if not documents(context):
        return False
    start = int(np.nonzero(context.inputs["in/reset"][1:])[0][0]) + 1
    return any(each.token >= start for each in context.plan.writes)


def sees_first_reference(context: DeepContext) -> bool:
    """A reference from before that a write or a read looks at."""
    frozen = context.settings.c.reference != "running"
    for event in context.plan.events:
        if isinstance(event, Refresh):
            return False
        if (isinstance(event, Write) and frozen) or (
            isinstance(event, Read) and event.of == "reference"
        ):
            return context.begins("in/state/reference/")
    return False


def sees_first_weights(context: DeepContext) -> bool:
    """Weights from before that stay for a write or a read, before a document begins anew."""
    if not context.begins("in/state/weights/"):
        return False
    first = context.plan.events[0]
    return not (isinstance(first, Begin) and first.memory)
