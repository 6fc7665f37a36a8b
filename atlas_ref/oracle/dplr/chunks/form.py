"""Chunk forms of rule dplr as programs have them, and mistakes in them as data (VEC-24, DPLRCASE-25).

Inside a chunk every write is kept with the gates behind it, as products of those, and the memory
is made at its end.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from atlas_ref.oracle.dplr.chunks.tokens import Call
from atlas_ref.oracle.norms import round_to
from atlas_ref.types import Array
from tape import ops

#: A mistake that is the rule until a gate is 0.
DIVISION = "decay by division"

#: Mistakes and their words.
MISTAKES = {
    "state one chunk late": "a chunk starts from the state of the chunk before",
    "tail dropped": "a last chunk that is short is neither written nor read",
    "first memory not decayed": "a chunk's last memory keeps its first one undecayed",
    "first memory read too early": "a read lacks its own gate on the chunk's first memory",
    "first memory scaled once": "the scale of a query is left out for the chunk's first memory",
    "first memory erased in the other order": (
        "the erase of the chunk's first memory has the other order of gate and erase"
    ),
    "first memory not erased": "an erase does not find the chunk's first memory",
    "writes of the chunk not erased": "an erase finds the chunk's first memory alone",
    "own gate on own write": "a write is decayed by the gate of its own token",
    "own write erased": "an erase finds the write of its own step",
    "own write not read": "a read lacks the erases and writes of its own token",
    "inverse of first order": "an erase does not see what earlier erases of the chunk took",
    DIVISION: "decays inside a chunk are quotients of cumulated gates",
    "gates of silent tokens": "silent tokens decay the chunk's first memory",
    "gates copied onto padding": "the padding of the last chunk has the gate of the last token",
    "reset inside a chunk ignored": "a reset is seen at the start of a chunk alone",
    "gate at the last step": "a token decays before its last step in place of its first",
    "cumulated gates in bfloat16": "gates are multiplied up in bfloat16",
    "memory between chunks in bfloat16": "a chunk hands its last memory on in bfloat16",
    "dM dropped": "cotangents of the memory stop at a chunk",
    "first memory decayed twice": "a chunk's last memory has its first one decayed twice",
    "gates of the next head": "a chunk but the first has the gates of the next head",
    "memory of the next head": "a chunk but the first starts from the memory of the next head",
}

#: Mistakes that are mutants where a head has one gate: earlier targets were searched without (VEC-27).
YOUNGER = ("first memory decayed twice", "gates of the next head", "memory of the next head")

#: Mistakes that are named and are no mutants of a published set, and their words.
UNDECAYED = {
    "reads of writes undecayed": "reads see the writes of the chunk without the gates behind them",
    "erases of writes undecayed": "erases see the writes of the chunk without the gates behind them",
    "writes undecayed": "the chunk's last memory takes its writes without the gates behind them",
}


class Writes(NamedTuple):
    """The writes of a chunk so far, a row each, with the gates behind them.

    Attributes:
        keys, erased (L, n, d_in): keys, and vectors along which something was taken away.
        values, found (L, n, d_out): values, and what was found and taken away.
        bare_keys, bare_erased: keys and erased without gates.
    """

    keys: Array
    values: Array
    erased: Array
    found: Array
    bare_keys: Array
    bare_erased: Array

    def without_decay(self) -> Writes:
        """The writes without the gates behind them."""
        return self._replace(keys=self.bare_keys, erased=self.bare_erased)


def run(call: Call, size: int, wrong: str = "") -> tuple[Array, Array]:
    """Reads and the last memory, chunk by chunk; with a mistake by its name."""
    T = call.q.shape[-2]
    resets = np.nonzero(call.reset)[0].tolist()
    if wrong == "reset inside a chunk ignored":
        resets = [t for t in resets if t % size == 0]
    reads, M = [], call.M0
    for begin, end in itertools.pairwise(sorted({0, *resets, T})):
        M = before = call.M0
        for first in range(begin, end, size):
            last = min(first + size, end)
            start = before if wrong == "state one chunk late" and first > begin else M
            before = M
            if first > begin and wrong == "dM dropped":
                start = ops.stop_gradient(start)
            of_chunk, behind = call, first > begin and start.ndim > 2
            if behind and wrong == "memory of the next head":
                start = _next_head(start)
            if behind and wrong == "gates of the next head" and call.gate is not None:
                of_chunk = call._replace(gate=_next_head(call.gate))
            if first > begin and wrong == "memory between chunks in bfloat16":
                start = round_to(start, "bfloat16")
            if wrong == "tail dropped" and last - first < size:
                reads.append(ops.zeros_like(call.v, shape=_shape(call, last - first)))
                continue
            y, M = _chunk(of_chunk, range(first, last), start, size, wrong)
            reads.append(y)
    return ops.concatenate(reads, axis=-2), M


def _next_head(x: Array) -> Array:
    """What each head has, of the head behind it, and of the first for the last."""
    heads = np.arange(1, x.shape[-3] + 1) % x.shape[-3]
    return ops.index(x, (..., heads, slice(None), slice(None)))


def _shape(call: Call, count: int) -> tuple[int, ...]:
    return (*call.v.shape[:-2], count, call.v.shape[-1])


def _chunk(call: Call, tokens: range, M: Array, size: int, wrong: str) -> tuple[Array, Array]:
    """The reads of a chunk and its last memory, from its first."""
    lead, (d_out, d_in) = M.shape[:-2], M.shape[-2:]
    none = Writes(
        *(ops.zeros_like(M, shape=(*lead, 0, n)) for n in (d_in, d_out, d_in, d_out, d_in, d_in))
    )
    decayed = ops.zeros_like(M, shape=(*lead, d_in)) + np.ones((), M.dtype)  # of the first memory
    reads, writes, quotient = [], none, wrong == DIVISION
    for t in tokens:
        before, earlier = decayed, writes
        if call.active[t]:
            for j in range(call.steps):
                at = call.steps - 1 if wrong == "gate at the last step" else 0
                gate = call.gate_of(t) if j == at else None
                decayed, writes = _step(call, t, j, gate, decayed, writes, M, wrong)
        elif wrong == "gates of silent tokens" and call.gate is not None:
            decayed = decayed * call.gate_of(t)
        seen, kept = decayed, writes
        if wrong == "first memory read too early":
            seen = before
        if wrong == "own write not read":
            kept = Writes(*(x[..., : earlier.keys.shape[-2], :] for x in writes))
        if call.bonus is not None and call.active[t]:
            y = _answer(M, before, earlier, call.q[..., t, :], call, quotient, wrong)
            k, v = call.k[..., t, :], call.v[..., t, :]
            weight = ops.sum(call.bonus * k * call.q[..., t, :], axis=-1, keepdims=True)
            y = y + v * weight * call.scale
        else:
            y = _answer(M, seen, kept, call.q[..., t, :], call, quotient, wrong)
        reads.append(y)
    if wrong == "gates copied onto padding" and call.gate is not None:
        for _ in range(size - len(tokens)):
            gate = call.gate_of(tokens[-1])
            decayed = decayed * gate
            writes = _behind(writes, gate)
    return ops.stack(reads, axis=-2), _last(M, decayed, writes, quotient, wrong)


def _step(
    call: Call, t: int, j: int, gate: Array, c: Array, writes: Writes, M: Array, wrong: str
) -> tuple[Array, Writes]:
    """One erase and write: cumulated gates and the writes of the chunk behind them."""
    r = t * call.steps + j
    k, v = call.k[..., r, :], call.v[..., r, :]
    after = c if gate is None else c * gate
    if wrong == "cumulated gates in bfloat16":
        after = round_to(after, "bfloat16")
    quotient = wrong == DIVISION
    erased, found = ops.zeros_like(k), ops.zeros_like(v)
    if call.erase_read is not None:
        asked, erased = call.erase_read[..., r, :], call.erase_write[..., r, :]
        found = _find(call, gate, c, writes, M, asked, wrong)
        if wrong == "own write erased":
            found = found + v * ops.sum(k * asked, axis=-1, keepdims=True)
    if gate is not None and not quotient:
        writes = _behind(writes, gate)
    if quotient:  # the gates behind a write come at its use
        k, erased = k / after, erased / after
    if wrong == "own gate on own write" and gate is not None:
        k, erased = k * gate, erased * gate
    rows = (ops.expand_dims(x, -2) for x in (k, v, erased, found, k, erased))
    return after, Writes(
        *(ops.concatenate([x, row], axis=-2) for x, row in zip(writes, rows, strict=True))
    )


def _find(
    call: Call, gate: Array, c: Array, writes: Writes, M: Array, asked: Array, wrong: str
) -> Array:
    """What an erase finds: of the chunk's first memory, and of its writes so far."""
    bare = wrong == "erases of writes undecayed"
    writes = writes.without_decay() if bare else writes
    other = wrong == "first memory erased in the other order"
    decayed = asked if gate is None or not call.gate_first else asked * gate
    of_first = asked if gate is None or call.gate_first == other else asked * gate
    parts = []
    if wrong != "first memory not erased":
        parts.append(_product(M, c * of_first))
    if wrong != "writes of the chunk not erased":
        x = decayed * c if wrong == DIVISION else asked if bare else decayed
        parts.append(_weigh(writes.values, writes.keys, x))
        if wrong != "inverse of first order":
            parts.append(-_weigh(writes.found, writes.erased, x))
    return sum(parts[1:], parts[0]) if parts else ops.zeros_like(call.v[..., 0, :])


def _answer(
    M: Array, c: Array, writes: Writes, q: Array, call: Call, quotient: bool, wrong: str
) -> Array:
    """A read of the chunk's first memory and of its writes."""
    writes = writes.without_decay() if wrong == "reads of writes undecayed" else writes
    first = _product(M, c * q)
    x = q * c if quotient else q
    rest = _weigh(writes.values, writes.keys, x) - _weigh(writes.found, writes.erased, x)
    scale = 1.0 if wrong == "first memory scaled once" else call.scale
    return first * scale + rest * call.scale


def _last(M: Array, c: Array, writes: Writes, quotient: bool, wrong: str) -> Array:
    """The last memory of a chunk, from its first and its writes."""
    writes = writes.without_decay() if wrong == "writes undecayed" else writes
    ahead = (writes.keys, writes.erased)
    keys, erased = (ops.expand_dims(c, -2) * x if quotient else x for x in ahead)
    added = ops.swapaxes(writes.values, -1, -2) @ keys
    added = added - ops.swapaxes(writes.found, -1, -2) @ erased
    if wrong == "first memory not decayed":
        return added + M
    c = c * c if wrong == "first memory decayed twice" else c
    return added + M * ops.expand_dims(c, -2)


def _behind(writes: Writes, gate: Array) -> Writes:
    """Writes with one more gate behind them."""
    wide = ops.expand_dims(gate, -2)
    return writes._replace(keys=writes.keys * wide, erased=writes.erased * wide)


def _product(M: Array, x: Array) -> Array:
    return (M @ ops.expand_dims(x, -1))[..., 0]


def _weigh(values: Array, keys: Array, x: Array) -> Array:
    """sum_i values_i (keys_i . x)."""
    scores = keys @ ops.expand_dims(x, -1)
    return (ops.swapaxes(values, -1, -2) @ scores)[..., 0]
