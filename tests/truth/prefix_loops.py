"""Blocks whose persistent tokens stand before a document, as plain loops over the whole document.

Titans (2501.00663) Eqs 21-31: the sequence is [p; x], and what comes of p is left out. No state and
no call: row t is computed from all rows of the document up to t. Parameters as in block_loops, the
tokens p (P, D) under attention.persist_tokens.
"""

from __future__ import annotations

import math

import numpy as np

from tests.truth import block_loops as blocks
from tests.truth import memory_layer_loops as layer
from tests.truth.block_loops import Block, Parameters, below, projected, weighed
from tests.truth.layer_loops import norm, rotary

Array = np.ndarray


def document(x: Array, p: Parameters, b: Block) -> Array:
    """A MAG, MAL or MAC block over the tokens x (T, D) of one document."""
    return {"mag": mag, "mal": mal, "mac_segments": mac}[b.kind](x, p, b)


def tokens_before(p: Parameters) -> Array:
    return p["attention.persist_tokens"]


def remembered(z: Array, p: Parameters, b: Block) -> Array:
    """The memory layer over all of [p; x], from no memory."""
    start = blocks.start(b, p).memory
    return layer.memory(z, below(p, "memory."), b.memory, start)[0]


def attended(z: Array, P: int, p: Parameters, b: Block) -> Array:
    """Attention of the rows of z = [p; x] after the first P, (T, D).

    Row t sees row s of its past in the window; under visible always the first P too.
    """
    H, freqs = b.memory.heads, p["rotary_emb.freqs"]
    rows = [projected(norm(row, "rms", b.eps, "add", p["norm.weight"]), p, H) for row in z]
    out = []
    for t in range(P, len(z)):
        first = t - b.window + int(b.counts_self)
        seen = [s for s in range(t + 1) if s >= first or (b.visible == "always" and s < P)]
        heads = []
        for h in range(H):
            q = rotary(rows[t][0, h], t, freqs, b.pairs)
            keys = [rotary(rows[s][1, h], s, freqs, b.pairs) for s in seen]
            heads.append(weighed(q, keys, [rows[s][2, h] for s in seen]))
        out.append(p["to_out.weight"] @ np.concatenate(heads))
    return np.array(out)


def mag(x: Array, p: Parameters, b: Block) -> Array:
    P = len(tokens_before(p))
    z = np.concatenate([tokens_before(p), x])
    a = attended(z, P, below(p, "attention."), b)
    x = blocks.mixed(x, a, remembered(z, p, b)[P:], p, b)
    return x + blocks.feed_forward(x, below(p, "ff."), b)


def mal(x: Array, p: Parameters, b: Block) -> Array:
    P = len(tokens_before(p))
    z = np.concatenate([tokens_before(p), x])
    z = z + remembered(z, p, b)
    between = b.order == "memory_ff_attention_ff"
    if between:
        z = z + blocks.feed_forward(z, below(p, "ff_pre."), b)
    x = z[P:] + attended(z, P, below(p, "attention."), b)
    return x + blocks.feed_forward(x, below(p, "ff_post." if between else "ff."), b)


def mac(x: Array, p: Parameters, b: Block) -> Array:
    """Segments of C tokens: p at positions 0 .. P-1, h_j at P + j, x_j at P + C + j."""
    state, rows = blocks.start(b, p), []
    memory, tail = state.memory, state.tail
    for begin in range(0, len(x), b.segment):
        before, reads = memory.S, []
        for i, token in enumerate(x[begin : begin + b.segment]):
            h, tail = blocks.frozen(token, below(p, "memory."), b.memory, before, tail)
            reads.append(h)
            y = in_segment(reads, x[begin : begin + i + 1], p, b)
            m, memory = blocks.answered(y, below(p, "memory."), b.memory, memory, before)
            rows.append(blocks.mixed(token[None], y[None], m[None], p, b)[0])
    out = np.array(rows)
    return out + blocks.feed_forward(out, below(p, "ff."), b)


def in_segment(reads: list[Array], tokens: Array, p: Parameters, b: Block) -> Array:
    """Attention of a segment's last token so far over p, reads and tokens, (D,)."""
    own, H, C, i = below(p, "attention."), b.memory.heads, b.segment, len(tokens) - 1
    P = len(tokens_before(p))
    every = [*tokens_before(p), *reads, *tokens]
    at = [*range(P), *(P + j for j in range(i + 1)), *(P + C + j for j in range(i + 1))]
    freqs, scale = own["rotary_emb.freqs"], own["norm.weight"]
    rows = [projected(norm(row, "rms", b.eps, "add", scale), own, H) for row in every]
    heads = []
    for h in range(H):
        keys = [rotary(row[1, h], s, freqs, b.pairs) for row, s in zip(rows, at, strict=True)]
        q = rotary(rows[-1][0, h], at[-1], freqs, b.pairs)
        scores = [np.sum(q * key) / math.sqrt(len(q)) for key in keys]
        top = max(np.real(score) for score in scores)
        weights = [np.exp(score - top) for score in scores]
        value = sum(w * row[2, h] for w, row in zip(weights, rows, strict=True))
        heads.append(value / sum(weights))
    return own["to_out.weight"] @ np.concatenate(heads)
