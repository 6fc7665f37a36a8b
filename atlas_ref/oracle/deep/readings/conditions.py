"""What decides whether a mistake of a deep memory can be made in a case."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atlas_ref.oracle.deep.readings.reading import Seen
from atlas_ref.oracle.deep.schedule import Begin, Read, Refresh, Write


def writes(at: Seen) -> bool:
    """Whether anything is written."""
    return bool(at.plan.writes)


def several(at: Seen) -> bool:
    """Whether some write looks at several tokens."""
    return any(len(each.rows) > 1 for each in at.plan.writes)


def again(at: Seen) -> bool:
    """Whether a write sees the momentum of another one, or of a call before."""
    before = any(name.startswith("in/state/momentum/") for name in at.inputs)
    for event in at.plan.events:
        if isinstance(event, Begin) and event.momentum:
            before = False
        elif isinstance(event, Write):
            if before:
                return True
            before = True
    return False


def of_kind(kind: str) -> Callable[[Seen], bool]:
    """A memory function of a kind, which something is written to."""
    return lambda at: at.s.function.kind == kind and writes(at)


def with_norm(at: Seen) -> bool:
    """A layer norm inside the function."""
    f = at.s.function
    return (f.kind == "polynomial" or f.residual_norm) and writes(at)


def activated(at: Seen) -> bool:
    """An activation inside the function, behind a matrix that is written."""
    f = at.s.function
    inner = {"W_1", "W_in", "W_down"} & set(at.s.fast)
    return (f.kind == "polynomial" or (f.kind == "mlp" and f.depth > 1)) and bool(inner)


def squared(at: Seen) -> bool:
    """Products of two entries."""
    return at.s.function.kind == "polynomial" and at.s.function.degree == 2


def holds(*names: str) -> Callable[[Seen], bool]:
    """A case that has tensors of these names, or that begin so."""
    return lambda at: any(name.startswith(names) for name in at.inputs) and writes(at)


def both(*conditions: Callable[[Seen], bool]) -> Callable[[Seen], bool]:
    """All of some conditions."""
    return lambda at: all(each(at) for each in conditions)


def chunks(at: Seen) -> bool:
    """Chunks of several tokens."""
    return at.s.chunk > 1 and writes(at)


def tokens(at: Seen) -> bool:
    """Several tokens in the call."""
    return at.tokens > 1 and writes(at)


def rows(at: Seen) -> bool:
    """Several rows, each with a memory of its own or not."""
    lead = at.inputs["in/k"].shape[:-2]
    return bool(lead) and lead[0] > 1 and writes(at)


def silent(at: Seen) -> bool:
    """A silent token at which a write would be due."""
    active = at.inputs.get("in/active")
    if active is None or not at.s.writes:
        return False
    every = at._replace(
        case=at.case.replaced(inputs={n: x for n, x in at.inputs.items() if n != "in/active"})
    )
    return len(every.plan.writes) > len(at.plan.writes)


def documents(at: Seen) -> bool:
    """A document that starts behind the first token."""
    reset = at.inputs.get("in/reset")
    return reset is not None and bool(np.any(reset[1:])) and writes(at)


def later(at: Seen) -> bool:
    """A write behind the first start of a document."""
    if not documents(at):
        return False
    start = int(np.nonzero(at.inputs["in/reset"][1:])[0][0]) + 1
    return any(each.token >= start for each in at.plan.writes)


def resumed(at: Seen) -> bool:
    """A reference from before that a write or a read looks at."""
    frozen = at.s.c.reference != "running"
    for event in at.plan.events:
        if isinstance(event, Refresh):
            return False
        if (isinstance(event, Write) and frozen) or (
            isinstance(event, Read) and event.of == "reference"
        ):
            return any(name.startswith("in/state/reference/") for name in at.inputs)
    return False


def first_weights_seen(at: Seen) -> bool:
    """Weights from before that stay for a write or a read, before a document begins anew."""
    if not any(name.startswith("in/state/weights/") for name in at.inputs):
        return False
    first = at.plan.events[0]
    return not (isinstance(first, Begin) and first.memory)
