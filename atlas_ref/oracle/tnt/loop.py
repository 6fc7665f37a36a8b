"""A TNT memory by memory and document by document, and the sum of what they answer (TOL-3).

It shares no code with `atlas_ref.forms.tnt`, nor with the rules, and agrees with them in float64.
Written from specs/tnt.md (TNT-1, TNT-13).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial, reduce
from operator import add

import numpy as np

from atlas_ref.oracle.program.context import no_label
from atlas_ref.oracle.program.hook import Hook
from atlas_ref.oracle.program.program import Results
from atlas_ref.oracle.tnt.context import TntContext
from atlas_ref.oracle.tnt.document import Document
from atlas_ref.oracle.tnt.settings import Settings
from atlas_ref.oracle.tnt.tokens import TOKENS, Tensors, join_rows, of_memory
from atlas_ref.types import Array
from tape import ops


def results(context: TntContext, hook: Hook) -> Results:
    """The reads and the state of a case (TNTCASE-5)."""
    s: Settings = context.settings
    inputs, T = _label_inputs(context), context.tokens
    reset = np.zeros(T, bool)
    if "in/reset" in inputs:
        reset = np.asarray(inputs["in/reset"]).astype(bool)
    starts = [0, *(t for t in range(1, T) if reset[t]), T]
    resumes = context.resumes and not reset[0]
    number = context.number if resumes else s.origin
    numbers = [number, *(number + t if s.counts_on else s.origin for t in starts[1:-1])]
    reads: dict[str, Array] = {}
    out: dict[str, Array] = {}
    moved: dict[str, list[Array]] = {}
    for m in (*s.memories[1:], *s.memories[:1]) if _asks_others(s) else s.memories:
        own, each = of_memory(inputs, m.name), []
        ends = [0, T] if m.one_document else starts
        for i, (first, last) in enumerate(itertools.pairwise(ends)):
            document = Document(hook, m, own, inputs, first, last, numbers[i])
            y, state = document.results(resumed=resumes and i == 0, moved=moved)
            each.append(y)
        out |= {f"state/{m.name}/{name}": x for name, x in state.items()}
        reads |= {} if m.read == "none" else {m.name: join_rows(each)}
    position = np.asarray(numbers[-1] + T - starts[-2], np.int64)
    ordered = [f"state/{m.name}/" for m in s.memories]
    state = {n: x for key in ordered for n, x in out.items() if n.startswith(key)}
    return {"y": _total(hook, reads), "state/position": position, **state}


def _label_inputs(context: TntContext) -> Tensors:
    """Inputs of which ops are made, under their names: tensors of tokens, and matrices of queries."""
    if context.label is no_label:
        return context.inputs
    found = dict(context.inputs)
    for each in (*TOKENS, "W_QK"):
        for name in context.inputs:
            if name.rpartition("/")[2] == each:
                found[name] = context.label(found[name], (name,), None)
    return found


def _total(hook: Hook, reads: Mapping[str, Array]) -> Array:
    """The sum of the reads of all memories (TNT-1)."""
    context, rows = hook.context, []
    none = ops.zeros_like(context.inputs["in/v"][..., 0, :])
    for t in range(context.tokens):
        each = [context.label(y[..., t, :], (f"{m}/y",), t) for m, y in reads.items()]
        rows.append(hook("y", t, partial(_sum, none), *each))
    return ops.stack(rows, axis=-2)


def _sum(none: Array, *each: Array) -> Array:
    return reduce(add, each) if each else none


def _asks_others(s: Settings) -> bool:
    return any(m.asks for m in s.memories)
