"""Projection of queries onto the span of recent keys, by a matrix of keys that is never formed.

    q'_t = (P q_t + sum_j w[t,j] k_j (k_j . q_t)) / (n_0 + sum_j w[t,j] |k_j|^2 + eps)

Specified in specs/query_key.md.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from atlas_ref import backend
from atlas_ref.layers import checks
from atlas_ref.layers.projection import cast
from atlas_ref.rules.checks import check_count, generator, precision, require_floating
from atlas_ref.types import Array, Count, Dims, Frozen, check_array
from tape import ops, plain

#: Queries of a chunk: fewer waste fewer products, more make them larger.
CHUNK = 64

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Config(Frozen):
    """Settings of a projection of queries onto keys (QK-1 to QK-5).

    Attributes:
        d: length of a query and of a key, that of all heads together.
        window: c, the most keys that a query meets.
        keys_seen: strict, keys before the query's own; inclusive, its own and those before.
        decay: factor of a weight for each key that is newer.
        weights: decay_times_gate, gate alone, or decay alone, which takes no gates.
        powers: exact; float32, powers of decay rounded to float32 whatever the precision.
        persistent: learned, rows that are parameters; identity, a multiple of the unit matrix.
        rows: N of learned.
        identity_factor: P = identity_factor I.
        identity_size: n_0 = identity_size d.
        eps: added to the normaliser.
    """

    d: Count
    window: Count
    keys_seen: Literal["strict", "inclusive"] = "strict"
    decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    weights: Literal["decay_times_gate", "gate", "decay"] = "decay_times_gate"
    powers: Literal["exact", "float32"] = "exact"
    persistent: Literal["learned", "identity"] = "learned"
    rows: Count = 64
    identity_factor: Positive = 0.1
    identity_size: Positive = 0.01
    eps: Positive = 1e-6

    @property
    def gated(self) -> bool:
        """Whether each key brings a gate."""
        return self.weights != "decay"

    @property
    def newest(self) -> int:
        """Lag of the newest key that a query meets: 0 for its own, 1 for the one before it."""
        return 1 if self.keys_seen == "strict" else 0

    @property
    def earlier(self) -> int:
        """Keys before its own that a query meets, which a state holds (QK-7)."""
        return self.window - 1 + self.newest


class Params(Frozen):
    """Persistent rows, which the outer loop learns (QK-3).

    Attributes:
        keys (N, d): None under identity.
    """

    keys: Annotated[Array | None, Dims("N d", optional=True)] = None


class State(Frozen):
    """The last keys of a document and their gates, oldest first (QK-7).

    Attributes:
        keys (B, n, d): n at most `Config.earlier`.
        gates (B, n): None where keys bring none.
    """

    keys: Annotated[Array, Dims("B n d")]
    gates: Annotated[Array | None, Dims("B n", low=0.0, optional=True)] = None


#: Public code and its text, by name: settings of `Config` (QK-12).
PRESETS: dict[str, dict[str, Any]] = {
    "atlas-mag": {"keys_seen": "strict", "window": 256, "persistent": "identity"},
    "atlas-mag sequential": {
        "keys_seen": "strict",
        "window": 256,
        "persistent": "identity",
        "powers": "float32",
    },
    "atlas-mag text": {"keys_seen": "inclusive", "window": 256, "persistent": "learned"},
}


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Persistent rows from N(0, 0.02^2) (QK-3)."""
    draw = generator(seed)
    require_floating(dtype)
    if config.persistent == "identity":
        return Params()
    return cast(Params(keys=0.02 * draw.standard_normal((config.rows, config.d))), dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64) -> State:
    """The state before the first token: no key (QK-7)."""
    check_count("batch", batch)
    require_floating(dtype)
    zeros = backend.current().zeros((batch, 0, config.d), dtype)
    return State(keys=zeros, gates=zeros[..., 0] if config.gated else None)


def apply(
    config: Config,
    params: Params,
    state: State,
    q: Array,
    k: Array,
    gate: Array | None = None,
    *,
    reset: Array | None = None,
) -> tuple[State, Array]:
    """Project each query onto the keys of its window (QK-1).

    Args:
        q, k (B, T, d): queries and keys, all heads of a token one after the other, turned by
            their positions or not (QK-6).
        gate (B, T): weight of each key, at least 0; None under weights decay.
        reset (T,): True where a document starts; no query meets a key of another one.

    Returns:
        state with the last keys, projected queries (B, T, d).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    starts = _check(config, params, state, q, k, gate, reset)
    keys = ops.concatenate([state.keys, k], axis=-2)
    gates = None if gate is None else ops.concatenate([state.gates, gate], axis=-1)
    first = _first_rows(state.keys.shape[-2], starts, q.shape[-2])
    y = projected(config, params, q, keys, gates, first)
    return State.trusted(**_kept(config, keys, gates, int(first[-1]))), y


def projected(
    config: Config,
    params: Params,
    q: Array,
    keys: Array,
    gates: Array | None,
    first: Any,
    *,
    chunk: int = CHUNK,
) -> Array:
    """Projected queries, chunk by chunk, on arguments that were checked (QK-10).

    Args:
        q (B, T, d): queries; the last T of the keys are those of their tokens.
        keys (B, n + T, d), gates (B, n + T): n rows of earlier calls first.
        first (T,): for each query the first of these rows that is of its document.
        chunk: queries of a chunk.

    Returns:
        (B, T, d).
    """
    T = q.shape[-2]
    n, by_lag = keys.shape[-2] - T, powers(config, keys.shape[-2])
    tops, sizes = [], []
    for low in range(0, T, chunk):
        high = min(low + chunk, T)
        rows = slice(max(0, n + low - config.earlier), n + high)
        lag = np.arange(n + low, n + high)[:, None] - np.arange(rows.start, rows.stop)
        seen = (lag >= config.newest) & (lag <= config.earlier)
        seen &= np.arange(rows.start, rows.stop) >= first[low:high, None]
        weights = by_lag[np.clip(lag - config.newest, 0, len(by_lag) - 1)]
        weights = np.where(seen, weights, 0.0).astype(precision(q))
        u = None if gates is None else gates[:, None, rows]
        top, size = _sums(q[:, low:high], keys[:, rows], u, weights, seen)
        tops.append(top)
        sizes.append(size)
    top, size = (ops.concatenate(each, axis=-2) for each in (tops, sizes))
    P_q, n_0 = _persistent(config, params, q)
    return (P_q + top) / (n_0 + size + config.eps)


def _sums(q: Array, k: Array, u: Array | None, weights: Any, seen: Any) -> tuple[Array, Array]:
    """Of queries of a chunk: sum_j w k_j (k_j . q), and sum_j w |k_j|^2 (QK-1).

    A row that a query does not meet is left out before its product, whatever its size (QK-9).

    Args:
        u (B, 1, rows): gates.
        weights, seen (queries, rows): of the host.
    """
    place = backend.of(q).from_host
    w, seen = place(weights), place(seen)
    w = w if u is None else w * u
    scores = ops.where(seen, q @ ops.transpose(k), 0.0)
    squares = ops.where(seen, ops.expand_dims(ops.sum(k * k, axis=-1), -2), 0.0)
    return (w * scores) @ k, ops.sum(w * squares, axis=-1, keepdims=True)


def plain_projected(
    config: Config, params: Params, q: Array, keys: Array, gates: Array | None, first: Any
) -> Array:
    """The same, token by token: the twin of `projected` (QK-10)."""
    T = q.shape[-2]
    n, by_lag = keys.shape[-2] - T, powers(config, keys.shape[-2]).astype(precision(q))
    P_q, n_0 = _persistent(config, params, q)
    results = []
    for t in range(T):
        last = n + t - config.newest
        rows = slice(max(int(first[t]), last - config.window + 1), last + 1)
        k = keys[:, rows]
        w = backend.of(q).from_host(by_lag[: k.shape[-2]][::-1].copy())
        w = w if gates is None else w * gates[:, rows]
        score = ops.sum(k * q[:, t : t + 1], axis=-1)
        top = P_q[:, t] + ops.sum(ops.expand_dims(w * score, -1) * k, axis=-2)
        size = n_0 + ops.sum(w * ops.sum(k * k, axis=-1), axis=-1, keepdims=True)
        results.append(top / (size + config.eps))
    return ops.stack(results, axis=-2)


def powers(config: Config, keys: int | None = None) -> np.ndarray[Any, Any]:
    """Weight of the i-th newest key without its gate, (c,): decay^i, or 1 (QK-4).

    Args:
        keys: how many keys there are; weights of as many are enough.
    """
    count = config.window if keys is None else min(config.window, keys)
    if config.weights == "gate":
        return np.ones(count)
    table = config.decay ** np.arange(count)
    return table.astype(np.float32).astype(np.float64) if config.powers == "float32" else table


def _persistent(config: Config, params: Params, q: Array) -> tuple[Array, Any]:
    """P q and n_0 (QK-3)."""
    if params.keys is None:
        return config.identity_factor * q, config.identity_size * config.d
    K = params.keys
    return (q @ ops.transpose(K)) @ K, ops.sum(K * K)


# -- persistent memory -----------------------------------------------------------------------------


def persistent_matrix(config: Config, params: Params) -> np.ndarray[Any, Any]:
    """P (d, d) on the host, symmetric to the last bit, a row after the other (QK-3, QK-11).

    Sums go in the order of the rows and no product is fused, so every machine has the same bits.
    """
    if params.keys is None:
        return config.identity_factor * np.eye(config.d)
    keys = np.asarray(backend.host(plain(params.keys)))
    P = np.zeros((config.d, config.d), keys.dtype)
    for row in keys:
        P += np.multiply.outer(row, row)
    return P


def fingerprint(config: Config, params: Params) -> str:
    """SHA-256 of P, 64 hexadecimal digits: whether two places hold the same memory (QK-11)."""
    P = persistent_matrix(config, params)
    return hashlib.sha256(np.ascontiguousarray(P, P.dtype.newbyteorder("<")).tobytes()).hexdigest()


# -- calls -----------------------------------------------------------------------------------------


def _first_rows(n: int, starts: Any, T: int) -> np.ndarray[Any, Any]:
    """For each query the first row of its document, of n earlier rows and T (QK-8)."""
    first = checks.document_starts(starts, T)
    return np.where(first < 0, 0, n + first)


def _kept(config: Config, keys: Array, gates: Array | None, first: int) -> dict[str, Any]:
    """The last rows of the document that goes on, as arrays of their own (QK-7)."""
    rows = slice(max(first, keys.shape[-2] - config.earlier), keys.shape[-2])
    u = None if gates is None else ops.concatenate([gates[:, rows]], axis=-1)
    return {"keys": ops.concatenate([keys[:, rows]], axis=-2), "gates": u}


def _check(
    config: Config, params: Params, state: State, q: Array, k: Array, gate: Any, reset: Any
) -> Any:
    """Refuse arguments that contradict the settings (NORM-2)."""
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    for name, x in (("q", q), ("k", k)):
        check_array(name, x, Dims("..."))
        if len(x.shape) != 3 or x.shape[-1] != config.d or x.shape[-2] == 0:
            raise ValueError(
                f"{name}: shape {x.shape}, expected (batch, tokens, {config.d}) with at least one "
                "token"
            )
    checks.check_shape("k", k, q.shape, "those of q")
    for name, array in (("gate", gate), ("state.gates", state.gates)):
        but = f"weights {config.weights} {'need' if config.gated else 'take no'} gates"
        checks.check_presence(name, array, config.gated, but)
    if gate is not None:
        check_array("gate", gate, Dims("...", low=0.0))
        checks.check_shape("gate", gate, q.shape[:2], "batch, tokens")
    B, n = q.shape[0], state.keys.shape[-2]
    checks.check_shape("state.keys", state.keys, (B, n, config.d), "batch, n, d")
    if n > config.earlier:
        raise ValueError(f"state.keys: {n} rows, expected at most {config.earlier}")
    but = f"persistent is {config.persistent}"
    checks.check_presence("params.keys", params.keys, config.persistent != "identity", but)
    if params.keys is not None:
        checks.check_shape("params.keys", params.keys, (config.rows, config.d), "rows, d")
    arrays = {"k": k, "gate": gate, "params.keys": params.keys}
    arrays |= {"state.keys": state.keys, "state.gates": state.gates}
    checks.check_precision(q, arrays, "q")
    return checks.check_reset(reset, q.shape[-2])
