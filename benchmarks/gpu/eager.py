"""The same formulas in plain PyTorch: the dual form, with the backward left to autograd.

Coefficients come from the recurrences of CHUNK-4, one row after the other for all heads and chunks
at once; the frozen form reads from masked scores (CHUNK-7), the exact one solves its unit
triangular systems (EXACT-2, EXACT-3) for all chunks at once and lets only the states follow one
another. No kernel is fused, nothing is compiled, and only autograd keeps arrays for the backward.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from atlas_ref.parts.newton_schulz import coefficient_table
from benchmarks.public import module

Tensor = Any
CHUNK = 64


class Given(NamedTuple):
    """A sequence with what its convention says about single tokens applied.

    Attributes:
        k, v, q (heads, T, d): keys, values, scaled queries.
        retain, momentum, rate_in, rate_out (heads, T): r, m (None: no momentum), a, b.
        weights (heads, T, c): by lag, 0 where there is no token.
    """

    k: Tensor
    v: Tensor
    q: Tensor
    retain: Tensor
    momentum: Tensor
    rate_in: Tensor
    rate_out: Tensor
    weights: Tensor


class Coefficients(NamedTuple):
    """Factors of a chunk, for every row t and, first, for the row before.

    The shapes are D (.., C + 1, K), X_C (.., K), n_C, c, f (.., C + 1).
    """

    D: Tensor
    last: Tensor
    n: Tensor
    c: Tensor
    f: Tensor


def reads(memory: Any, x: dict[str, Tensor], chunk: int = CHUNK) -> Tensor:
    """Reads (heads, T, d) of one of `benchmarks.memories`, from its inputs as tensors; T is a
    multiple of the chunk.
    """
    convention = memory.config.convention
    given = _given(memory, x)
    if convention.reference == "running":
        return exact(given, chunk, before_error=convention.decay == "before_error")
    anew = convention.reference == "chunk_start"
    chunk = memory.config.span if anew else chunk
    if convention.has_newton_schulz:
        return frozen_newton_schulz(given, chunk, convention.newton_schulz_settings)
    return frozen(given, chunk, anew=anew, before=convention.read == "before")


def _given(memory: Any, x: dict[str, Tensor]) -> Given:
    torch = module("torch")
    convention, k = memory.config.convention, x["k"]
    one = torch.ones_like(k[..., 0])
    h = x["step_size"]
    rates = {
        "momentum": (h, one),
        "memory": (one, h),
        "both": (h, h),
        "split": (h, x.get("step_size_memory")),
    }
    rate_in, rate_out = rates[convention.rate]
    c = getattr(memory.config, "window", 1)
    weights = torch.full((*one.shape, c), 1.0 / c, dtype=k.dtype, device=k.device)
    if "window_gate" in x:
        gate = torch.nn.functional.pad(x["window_gate"], (c - 1, 0))
        weights = gate.unfold(-1, c, 1).flip(-1)  # (heads, T, c), by lag
    scale = (
        1.0 / math.sqrt(k.shape[-1])
        if convention.query_scale == "1/sqrt(d_in)"
        else float(convention.query_scale)
    )
    return Given(
        k,
        x["v"],
        x["q"] * scale,
        x.get("retain", one),
        x.get("momentum"),
        rate_in,
        rate_out,
        weights,
    )


def _chunks(given: Given, chunk: int) -> Given:
    """Every sequence as (heads, chunks, C, ...)."""
    return Given(*(None if each is None else each.unflatten(1, (-1, chunk)) for each in given))


def _columns(rows: Tensor, chunk: int, window: int) -> Tensor:
    """Rows of the c - 1 tokens before each chunk and of the chunk.

    (heads, T, d) -> (heads, chunks, C + c - 1, d)
    """
    padded = module("torch").nn.functional.pad(rows, (0, 0, window - 1, 0))
    return padded.unfold(1, chunk + window - 1, chunk).transpose(-1, -2)


def _banded(weights: Tensor) -> Tensor:
    """Weights by lag (.., C, c) as rows over the columns of a chunk.

    The result is (.., C, C + c - 1), and row t begins at column t.
    """
    C, c = weights.shape[-2:]
    skewed = module("torch").nn.functional.pad(weights.flip(-1), (0, C)).flatten(-2)
    return skewed[..., :-C].unflatten(-1, (C, C + c - 1))


def _by_place(weights: Tensor) -> Tensor:
    """Weights by lag (.., C, c) as rows over places (t, lag): (.., C, C c)."""
    each = module("torch").eye(weights.shape[-2], dtype=weights.dtype, device=weights.device)
    return (each[:, :, None] * weights[..., :, None, :]).flatten(-2)


def _coefficients(given: Given, rows: Tensor) -> Coefficients:
    """CHUNK-4, row after row, for all heads and chunks at once."""
    torch = module("torch")
    X, D = torch.zeros_like(rows[..., 0, :]), torch.zeros_like(rows[..., 0, :])
    n = c = torch.ones_like(given.retain[..., 0])
    f = torch.zeros_like(n)
    masks, starts, momenta = [D], [c], [f]
    for t in range(rows.shape[-2]):
        a, b, r = (each[..., t] for each in (given.rate_in, given.rate_out, given.retain))
        fresh = a[..., None] * rows[..., t, :]
        if given.momentum is None:
            X, n = fresh, torch.zeros_like(n)
        else:
            m = given.momentum[..., t]
            X, n = m[..., None] * X + fresh, m * n
        D, c, f = r[..., None] * D + b[..., None] * X, r * c, r * f - b * n
        masks.append(D)
        starts.append(c)
        momenta.append(f)
    return Coefficients(
        torch.stack(masks, -2), X, n, torch.stack(starts, -1), torch.stack(momenta, -1)
    )


def _zero(k: Tensor, v: Tensor) -> Tensor:
    return k.new_zeros((k.shape[0], v.shape[-1], k.shape[-1]))


def frozen(given: Given, chunk: int, *, anew: bool, before: bool) -> Tensor:
    """Reads from masked scores under a frozen reference.

    The reference is the memory at the start of each chunk (`anew`), or at the start of the call,
    which is 0.
    """
    torch = module("torch")
    window = given.weights.shape[-1]
    keys, values = (_columns(rows, chunk, window) for rows in (given.k, given.v))
    parts = _chunks(given, chunk)
    found = _coefficients(parts, _banded(parts.weights))
    rows = slice(0, -1) if before else slice(1, None)
    masked = found.D[..., rows, :] * (parts.q @ keys.transpose(-1, -2))
    starts, momenta = (each[..., rows, None] for each in (found.c, found.f))
    ends = (found.D[..., -1, :, None] * keys, found.last[..., None] * keys)
    M, S = _zero(given.k, given.v), _zero(given.k, given.v)
    reads = []
    for j in range(keys.shape[1]):
        E = keys[:, j] @ M.mT - values[:, j] if anew else -values[:, j]
        q = parts.q[:, j]
        reads.append(starts[:, j] * (q @ M.mT) + momenta[:, j] * (q @ S.mT) - masked[:, j] @ E)
        c, f, n = (each[:, j, None, None] for each in (found.c[..., -1], found.f[..., -1], found.n))
        M, S = c * M + f * S - E.mT @ ends[0][:, j], n * S + E.mT @ ends[1][:, j]
    return torch.cat(reads, 1)


def exact(given: Given, chunk: int, *, before_error: bool) -> Tensor:
    """The running rule by one unit lower triangular system a chunk.

    The system is solved for its three right sides before any state is known.
    """
    torch = module("torch")
    window = given.weights.shape[-1]
    keys, values = (_places(_columns(rows, chunk, window), window) for rows in (given.k, given.v))
    parts = _chunks(given, chunk)
    found = _coefficients(parts, _by_place(parts.weights))
    decay = parts.retain if before_error else torch.ones_like(parts.retain)
    D, c, f = (
        (decay[..., None] if each.ndim == 4 else decay) * _but_last(each)
        for each in (found.D, found.c, found.f)
    )
    D, c, f = (each.repeat_interleave(window, -2 if each.ndim == 4 else -1) for each in (D, c, f))
    L = D * (keys @ keys.mT)  # row t of D' is 0 from place t on, so L - I is strictly lower
    right = torch.cat([c[..., None] * keys, f[..., None] * keys, values], -1)
    # takes the diagonal for ones
    solved = torch.linalg.solve_triangular(L, right, upper=False, unitriangular=True)
    from_M, from_S, from_v = solved.split([keys.shape[-1], keys.shape[-1], values.shape[-1]], -1)
    masked = found.D[..., 1:, :] * (parts.q @ keys.mT)
    ends = (found.D[..., -1, :, None] * keys, found.last[..., None] * keys)
    M, S = _zero(given.k, given.v), _zero(given.k, given.v)
    reads = []
    for j in range(keys.shape[1]):
        E = from_M[:, j] @ M.mT + from_S[:, j] @ S.mT - from_v[:, j]
        q = parts.q[:, j]
        reads.append(
            found.c[:, j, 1:, None] * (q @ M.mT)
            + found.f[:, j, 1:, None] * (q @ S.mT)
            - masked[:, j] @ E
        )
        c_end, f_end, n_end = (
            each[:, j, None, None] for each in (found.c[..., -1], found.f[..., -1], found.n)
        )
        M, S = c_end * M + f_end * S - E.mT @ ends[0][:, j], n_end * S + E.mT @ ends[1][:, j]
    return torch.cat(reads, 1)


def _but_last(each: Tensor) -> Tensor:
    """Rows of the times before: all but the last."""
    return each[..., :-1, :] if each.ndim == 4 else each[..., :-1]


def _places(columns: Tensor, window: int) -> Tensor:
    """Rows of places (t, lag), the newest lag first.

    (.., C + c - 1, d) -> (.., C c, d)
    """
    return columns.unfold(-2, window, 1).flip(-1).transpose(-1, -2).flatten(-3, -2)


def frozen_newton_schulz(given: Given, chunk: int, settings: Any) -> Tensor:
    """All momenta of a span at once, through Newton-Schulz as one batch, then the memories one
    after another.
    """
    torch = module("torch")
    window = given.weights.shape[-1]
    keys, values = (_columns(rows, chunk, window) for rows in (given.k, given.v))
    parts = _chunks(given, chunk)
    X, n = _momenta(parts, _banded(parts.weights))
    M, S = _zero(given.k, given.v), _zero(given.k, given.v)
    reads = []
    for j in range(keys.shape[1]):
        E = keys[:, j] @ M.mT - values[:, j]
        momenta = (
            n[:, j, :, None, None] * S[:, None]
            + (X[:, j, :, :, None] * E[:, None]).mT @ keys[:, j, None]
        )
        written = parts.rate_out[:, j, :, None, None] * newton_schulz(momenta, settings)
        for t in range(chunk):
            M = parts.retain[:, j, t, None, None] * M - written[:, t]
            reads.append((M @ parts.q[:, j, t, :, None])[..., 0])
        S = momenta[:, -1]
    return torch.stack(reads, 1)


def _momenta(given: Given, rows: Tensor) -> tuple[Tensor, Tensor]:
    """X (.., C, K) and n (.., C) of CHUNK-4."""
    torch = module("torch")
    X, n = torch.zeros_like(rows[..., 0, :]), torch.ones_like(given.retain[..., 0])
    found, decays = [], []
    for t in range(rows.shape[-2]):
        m = given.momentum[..., t]
        X, n = m[..., None] * X + given.rate_in[..., t, None] * rows[..., t, :], m * n
        found.append(X)
        decays.append(n)
    return torch.stack(found, -2), torch.stack(decays, -1)


def newton_schulz(S: Tensor, settings: Any) -> Tensor:
    """Newton-Schulz on a batch of square matrices.

    X <- a X + (b A + c A A) X,    A = X X^T,    from S over its norm
    """
    X = S / (S.norm(dim=(-2, -1), keepdim=True) * settings.norm_factor + settings.eps)
    for a, b, c in coefficient_table(settings):
        A = X @ X.mT
        X = a * X + (b * A + c * (A @ A)) @ X
    return X
