"""TNT token by token: the paper's reading, its equations as printed, App C, and NL_Hecate's clones.

Takes float64 or complex128 and never conjugates, so that a complex step passes through. Nothing
here is shared with the package under test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray


class Inputs(NamedTuple):
    """What a memory is given of T tokens.

    Attributes:
        k, q (T, d), v (T, d_v).
        retain, momentum (T,): None for 1, for no momentum.
        step_size (T,): None for a rule without an error, M <- retain M + v k^T.
        weights (T, c): of the window by lag; None for one token of weight 1.
        query_gate (T,): g of (1 - g) q + g P q; None for P q.
        read_gate (T,): factor of the read; None for 1.
    """

    k: Array
    v: Array
    q: Array
    retain: Array | None = None
    momentum: Array | None = None
    step_size: Array | None = None
    weights: Array | None = None
    query_gate: Array | None = None
    read_gate: Array | None = None


class Memory(NamedTuple):
    """A memory: where it starts, its chunk C, and its shard S (None for the global one).

    Attributes:
        first (d_v, d): V_0 or W_init.
        S0 (d_v, d): the momentum to which a reset returns; None for 0.
    """

    inputs: Inputs
    first: Array
    chunk: int
    shard: int | None = None
    S0: Array | None = None


class Reading(NamedTuple):
    """What the paper leaves open, by words of this file; the defaults are the consistent reading.

    Attributes:
        range: keys of P since the chunk's start, the shard's, the sequence's; or a number of keys.
        own: whether a query meets its own key.
        norm: "each", "none" or "sum": divide k k^T by |k|^2, by 1, or their sum by that of |k|^2.
        span: P is the projector onto the span of the keys.
        W_QK: a matrix in the place of P.
        project: whether queries of locals are moved at all.
        origin: number of the first token.
        absolute: chunks of a local memory are counted from the origin, through resets.
        carry: the momentum goes on over a reset.
        running: the reference of a local memory is the memory before each token.
        lost: the reset takes the place of the first token's write, which a later token of its chunk
            sees.
        still: whether local memories write nothing.
        global_still: whether the global one writes nothing.
        late_start: the memory at the start of a chunk is taken after its first write.
        keeps_window: a window goes on over a reset.
        global_read, local_read: "start" of the chunk, "before" or "after" the write, or "none"; the
            memory after the last token of the "chunk", or of the "call", known when all are written.
        of_global: how queries of the global memory are moved; None for raw ones.
    """

    range: Any = "chunk"
    own: bool = True
    norm: str = "each"
    span: bool = False
    W_QK: Any = None
    project: bool = True
    origin: int = 0
    absolute: bool = False
    carry: bool = False
    running: bool = False
    lost: bool = False
    still: bool = False
    global_still: bool = False
    late_start: bool = False
    keeps_window: bool = False
    global_read: str = "start"
    local_read: str = "after"
    of_global: Any = None


class Result(NamedTuple):
    """Reads (T, d_v), and M and S of each memory after the last token."""

    y: Array
    M: list[Array]
    S: list[Array]


def paper(memories: list[Memory], r: Reading = Reading()) -> Result:  # noqa: B008
    """The loop that the spec defines: Eq 5, Eq 6 with the base of Eq 3, Eqs 7 and 15."""
    T = len(memories[0].inputs.k)
    n = len(memories)
    M = [m.first for m in memories]
    S = [m.first * 0 if m.S0 is None else m.S0 for m in memories]
    ref = [m.first for m in memories]
    begin = [0] * n  # first token of the window: the document's, or the shard's
    out: list[Any] = [np.zeros(memories[0].inputs.v.shape[1]) for _ in range(T)]
    written_by: list[list[Array]] = [[] for _ in memories]  # each memory after each token
    for t in range(T):
        number = t + r.origin
        for i, m in enumerate(memories):
            before = M[i]
            new = m.shard is not None and number % m.shard == 0
            if new:
                M[i] = before = m.first
                if not (r.carry and t > 0):
                    S[i] = m.first * 0 if m.S0 is None else m.S0
                begin[i] = begin[i] if r.keeps_window else t
            place = number if m.shard is None or r.absolute else number % m.shard
            if place % m.chunk == 0 or t == 0 or (r.late_start and place % m.chunk == 1):
                ref[i] = M[i]
            R = M[i] if r.running and m.shard is not None else ref[i]
            idle = r.global_still if m.shard is None else r.still
            if not (idle or (new and r.lost and (m.chunk == 1 or r.running))):
                M[i], S[i] = written(m.inputs, t, begin[i], R, M[i], S[i])
            written_by[i].append(M[i])
            how = r.global_read if m.shard is None else r.local_read
            after = before if new and r.lost else M[i]
            seen = {"start": ref[i], "before": before, "after": after}
            if how in seen:
                out[t] = out[t] + factor(m, t) * (seen[how] @ asked(m, t, r))
    for i, m in enumerate(memories):
        how = r.global_read if m.shard is None else r.local_read
        for t in range(T if how in ("chunk", "call") else 0):
            last = T - 1 if how == "call" else last_of_chunk(m, t, T, r)
            out[t] = out[t] + factor(m, t) * (written_by[i][last] @ asked(m, t, r))
    return Result(np.array(out), M, S)


def last_of_chunk(m: Memory, t: int, T: int, r: Reading) -> int:
    """The token before the next start of a chunk, or of a shard; the last one of the call."""
    for later in range(t + 1, T):
        place = (later + r.origin) % (m.shard or T + r.origin + 1)
        if place % m.chunk == 0:
            return later - 1
    return T - 1


def factor(m: Memory, t: int) -> Any:
    """What the read of a memory is multiplied by."""
    return 1.0 if m.inputs.read_gate is None else m.inputs.read_gate[t]


def asked(m: Memory, t: int, r: Reading) -> Array:
    """The query of token t as the memory gets it."""
    q, how = m.inputs.q[t], r
    if m.shard is None:
        how = Reading(project=False) if r.of_global is None else r.of_global
    if not how.project:
        return q
    how = how._replace(origin=r.origin)
    if m.inputs.query_gate is None:
        return moved(m, t, how)
    g = m.inputs.query_gate[t]
    return (1 - g) * q + g * moved(m, t, how)


def written(x: Inputs, t: int, begin: int, R: Array, M: Array, S: Array) -> tuple[Array, Array]:
    """M and S after the write of token t at the reference R."""
    g = 0
    for lag in range(1 if x.weights is None else x.weights.shape[1]):
        j = t - lag
        if j < begin:
            break
        weight = 1.0 if x.weights is None else x.weights[t, lag]
        error = -x.v[j] if x.step_size is None else R @ x.k[j] - x.v[j]
        g = g + weight * np.outer(error, x.k[j])
    step = g if x.step_size is None else x.step_size[t] * g
    S = step if x.momentum is None else x.momentum[t] * S + step
    return (M if x.retain is None else x.retain[t] * M) - S, S


def moved(m: Memory, t: int, r: Reading) -> Array:
    """P q of token t, from a matrix that is formed for it alone."""
    if r.W_QK is not None:
        return r.W_QK @ m.inputs.q[t]
    rows = [m.inputs.k[j] for j in met(m, t, r)]
    d = m.inputs.k.shape[1]
    P = np.zeros((d, d), m.inputs.k.dtype)
    if r.span:
        for u in basis(rows):
            P = P + np.outer(u, u)
        return P @ m.inputs.q[t]
    total = 0.0
    for k in rows:
        if k @ k == 0:
            continue
        P = P + np.outer(k, k) / (k @ k if r.norm == "each" else 1.0)
        total = total + k @ k
    if r.norm == "sum" and total != 0:
        P = P / total
    return P @ m.inputs.q[t]


def met(m: Memory, t: int, r: Reading) -> list[int]:
    """Tokens whose keys P of token t holds."""
    last = t if r.own else t - 1
    if isinstance(r.range, int):
        return list(range(max(0, last - r.range + 1), last + 1))
    number = t + r.origin
    if m.shard is None:  # never reset
        back = {"chunk": number % m.chunk, "sequence": t}[r.range]
        return list(range(max(0, t - back), last + 1))
    place = number if r.absolute else number % m.shard
    back = {"chunk": place % m.chunk, "shard": number % m.shard, "sequence": t}[r.range]
    return list(range(max(0, t - back), last + 1))


def basis(rows: list[Array]) -> list[Array]:
    """Gram-Schmidt; a row that the ones before it span is left out."""
    found: list[Array] = []
    for row in rows:
        rest = row
        for _ in range(2):
            for u in found:
                rest = rest - u * (u @ rest)
        if np.sqrt(np.real(rest @ rest)) > 1e-9 * np.sqrt(np.real(row @ row)):
            found.append(rest / np.sqrt(rest @ rest))
    return found


def gradient(x: Inputs, t: int, R: Array) -> Array:
    """eta_t grad L(f(R, k_t), v_t)."""
    assert x.step_size is not None
    return x.step_size[t] * np.outer(R @ x.k[t] - x.v[t], x.k[t])


def printed(memories: list[Memory], *, doubled: bool = True, base: str = "previous") -> Result:
    """Eqs 5, 6 and 7 word by word, no gates: xi(i, j) = i - (i mod j), tokens from 0.

    W_xi and V_nC inside a sum are the memories before the write of token xi.

    Args:
        doubled: Eq 5 sums to the token (n+1)C_G itself.
        base: of Eq 6, W_(t-1) as printed ("previous"), or W_xi as in Eq 3 ("chunk").
    """
    T = len(memories[0].inputs.k)
    y: list[Any] = [np.zeros(memories[0].inputs.v.shape[1]) for _ in range(T)]
    ends = []
    for m in memories:
        x, C = m.inputs, m.chunk
        if m.shard is None:
            V = m.first
            for start in range(0, T, C):
                for t in range(start, min(start + C, T)):
                    y[t] = y[t] + V @ x.q[t]
                last = start + C + 1 if doubled else start + C
                V = V - sum(gradient(x, t, V) for t in range(start, min(last, T)))
            ends.append(V)
            continue
        W, before = m.first, [m.first] * T
        for t in range(T):
            xi = t - t % C
            if t % m.shard == 0:  # Eq 6, first case: no write; W_xi of this chunk is W_init
                before[t] = W = m.first
            else:
                before[t] = W
                total = sum(gradient(x, tau, before[xi]) for tau in range(xi, t + 1))
                W = (W if base == "previous" else before[xi]) - total
            P: Any = 0
            for tau in range(xi, t + 1):
                P = P + np.outer(x.k[tau], x.k[tau]) / (x.k[tau] @ x.k[tau])
            y[t] = y[t] + W @ (P @ x.q[t])
        ends.append(W)
    return Result(np.array(y), ends, [])


def implicit(x: Inputs, first: Array) -> Array:
    """Eq 6 at C = 1 with W_xi = W_t, the memory that it defines: reads (T, d_v) of one local.

    W_t = W_(t-1) - eta_t g(W_t), solved as a linear system for W_t.
    """
    W, out = first, []
    assert x.step_size is not None
    for t in range(len(x.k)):
        A = np.eye(x.k.shape[1]) + x.step_size[t] * np.outer(x.k[t], x.k[t])
        W = np.linalg.solve(A.T, (W + x.step_size[t] * np.outer(x.v[t], x.k[t])).T).T
        out.append(W @ x.q[t])
    return np.array(out)


def app_c(memories: list[Memory]) -> Result:
    """Appendix C: M_t = k k^T at a shard's first token, else M_(t-1) + k k^T; read f(W_t, M_t q_t).

    Memories are written as in `paper`; shards are counted so that the first has S tokens.
    """
    written_only = [m._replace(inputs=m.inputs) for m in memories]
    T = len(memories[0].inputs.k)
    y = [np.zeros(memories[0].inputs.v.shape[1])] * T
    ends, momenta = [], []
    for m in written_only:
        x, W, S, P, begin = m.inputs, m.first, m.first * 0, np.zeros((1, 1)), 0
        R = W
        for t in range(T):
            place = t if m.shard is None else t % m.shard
            if m.shard is not None and place == 0:
                W, S, P, begin = m.first, m.first * 0, np.outer(x.k[t], x.k[t]), t
            elif m.shard is not None:
                P = P + np.outer(x.k[t], x.k[t])
            if place % m.chunk == 0:
                R = W
            W, S = written(x, t, begin, R, W, S)
            y[t] = y[t] + (R @ x.q[t] if m.shard is None else W @ (P @ x.q[t]))
        ends.append(W)
        momenta.append(S)
    return Result(np.array(y), ends, momenta)


def clones(
    x: Inputs,
    V: Array,
    *,
    shard: int,
    chunk: int,
    summary: str = "mean",
    W_summary: Array | None = None,
    stopped: Array | None = None,
    flush: bool = True,
) -> tuple[Array, list[Array]]:
    """NL_Hecate's tnt_forward: reads (T, d), and the global memory after each shard.

    Args:
        stopped (n, d, d): what clones are made of, in place of V after each shard: its values where
            gradients do not pass.
        flush: whether a shard that the call ends counts as one.
    """
    T, out, states = len(x.k), [], [V]
    for start in range(0, T, shard):
        stop = min(start + shard, T)
        source = V if stopped is None else stopped[len(states) - 1]
        W = source
        for t in range(start, stop):
            if (t - start) % chunk == 0:
                W, S, begin = source, source * 0, t
            W, S = written(x, t, begin, W, W, S)
            out.append(W @ x.q[t])
        if stop - start < shard and not flush:
            break
        reads = out[start:stop]
        if summary == "last":
            V = W
        else:
            if summary == "mean":
                s = sum(reads) / len(reads)
            else:
                assert W_summary is not None
                query = W_summary @ (sum(V[i] for i in range(len(V))) / len(V))
                scores = np.array([read @ query for read in reads]) / np.sqrt(len(query))
                e = np.exp(scores - np.max(np.real(scores)))
                s = sum(e[i] / e.sum() * reads[i] for i in range(len(reads)))
            V = 0.95 * V + np.outer(s, s)
        states.append(V)
    return np.array(out), states
