"""Kernels of rule dplr that a user might hand over: a right one by hand, and one for each mistake.

Written from specs/dplr.md and the table of members in specs/dplr_cases.md; nothing of the package is
used. Numbers are float64 where the case's are, else float32, as kernels have it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]

#: Member -> how its erase comes from tensors; None for the tensors of the rule.
ERASES = {
    None: "given",
    "linear_attn_normalized": "none",
    **dict.fromkeys(("linear_attn", "retention", "simple_gla", "gla", "rwkv6"), "none"),
    "rwkv7": "kk",
    **dict.fromkeys(("delta", "gated_delta", "kda", "gated_delta_product"), "error"),
    **dict.fromkeys(("comba_decay_after_erase", "comba_decay_before_erase"), "error of erase_key"),
    **dict.fromkeys(("qwen3_next", "kimi_linear"), "error"),
    **dict.fromkeys(("precond_kda", "precond_gated_delta"), "error"),
    "momentum_delta": "momentum",
    "gdn2": "gates",
    **dict.fromkeys(("iplr", "dplr"), "alpha"),
}

BEFORE_ERROR = (
    *("gated_delta", "kda", "gated_delta_product", "gdn2", "comba_decay_before_erase"),
    *("qwen3_next", "kimi_linear", "precond_kda", "precond_gated_delta"),
)

#: Members that pairs are written along preconditioned keys by.
PRECONDITIONED = ("precond_kda", "precond_gated_delta")


def right(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """y and M of every member that this file knows."""
    return _run(case, inputs)


def decay_order(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """An erase that reads the decayed memory where it should not, and the reverse."""
    return _run(case, inputs, mistake="decay order")


def bare_key(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """An erase that reads with the key without its norm."""
    return _run(case, inputs, mistake="bare key")


def round_robin(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Value head i has key head i modulo their count."""
    return _run(case, inputs, mistake="round robin")


def decays_every_step(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Every step of a token decays."""
    return _run(case, inputs, mistake="every step")


def cumulated_logs(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Gates as differences of cumulative sums of their logs, in float32."""
    return _run(case, inputs, mistake="cumulated logs")


def resets_to_zero(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """A reset that forgets the first memory."""
    return _run(case, inputs, mistake="reset to zero")


def late_by_64(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Chunks of 64 tokens that start from the memory of the chunk before."""
    return _run(case, inputs, mistake="late chunk")


def bare_divisor(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Normalised reads whose divisor has the query without its scale."""
    return _run(case, inputs, mistake="bare divisor")


def uncentred(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Preconditioned keys whose log of A has no centre."""
    return _run(case, inputs, mistake="no centre")


def late_momentum(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """A memory that moves by the momentum of before its token."""
    return _run(case, inputs, mistake="late momentum")


MISTAKES = (
    late_momentum,
    uncentred,
    bare_divisor,
    decay_order,
    bare_key,
    round_robin,
    decays_every_step,
    cumulated_logs,
    resets_to_zero,
    late_by_64,
)


def _run(case: dict[str, Any], inputs: Tensors, mistake: str = "") -> Tensors:
    own = case.get("parameters") or {}
    member = own.get("member")
    if member not in ERASES:
        raise NotImplementedError(f"member {member}")
    kind = inputs["v"].dtype
    wide = np.float64 if kind == np.float64 else np.float32
    x = {name: z if z.dtype.kind in "biu" else z.astype(wide) for name, z in inputs.items()}
    steps, scale = own.get("steps", 1), own.get("query_scale", "")
    k, q = _normed(own, member, x)
    bare, along = x["k"], k
    if member in PRECONDITIONED:
        along, A = _preconditioned(x, k, 0.0 if mistake == "no centre" else 0.2)
        along = _spread(along, own.get("groups", 1), mistake == "round robin")
    if (groups := own.get("groups", 1)) > 1:
        k, q, bare = (_spread(z, groups, mistake == "round robin") for z in (k, q, bare))
    gate = _gates(member, x, mistake == "cumulated logs")
    before = own.get("decay", "before_error" if member in BEFORE_ERROR else "after_error")
    before = (before == "before_error") != (mistake == "decay order")
    turned = own.get("state_layout") == "(d_in, d_out)"
    M = x.get("M0", np.zeros((*x["v"].shape[:-2], x["v"].shape[-1], k.shape[-1]), wide))
    M = first = M.swapaxes(-1, -2) if turned and "M0" in x else M
    if scale == "":
        scale = 1 if member in (None, "rwkv7") else "1/sqrt(d_in)"
    z = sums = x.get("z0", np.zeros((*x["v"].shape[:-2], k.shape[-1]), wide))
    S = x.get("S0", np.zeros_like(M))
    S = first_S = S.swapaxes(-1, -2) if turned and "S0" in x else S
    reads, starts = [], [M]
    for t in range(q.shape[-2]):
        if mistake == "late chunk" and t and t % 64 == 0:
            starts.append(M)
            M = starts[-2]
        if "reset" in x and x["reset"][t]:
            M = first * 0 if mistake == "reset to zero" else first
            z, S = sums, first_S
        old, active = M, "active" not in x or x["active"][t]
        if member == "momentum_delta" and active:
            decayed, last = M if gate is None else M * gate[..., t, None, :], S
            error = _times(decayed if before else M, x["erase_key"][..., t, :]) - x["v"][..., t, :]
            change = (x["eta"][..., t, None] * error)[..., :, None] * k[..., t, None, :]
            S = np.exp(x["log_momentum"][..., t, None, None]) * S + change
            moves = last if mistake == "late momentum" else S
            M = decayed - x["beta"][..., t, None, None] * moves
        rows = range(t * steps, (t + 1) * steps) if active and member != "momentum_delta" else ()
        for j in rows:
            decays = gate is not None and (j % steps == 0 or mistake == "every step")
            decayed = M * gate[..., t, None, :] if decays else M
            key = bare if mistake == "bare key" else k
            write_key = along[..., j, :] if member in PRECONDITIONED else k[..., j, :]
            pair = _erase(ERASES[member], x, write_key, key[..., j, :], j)
            if pair is not None:
                found = _times(decayed if before else M, pair[0])
                decayed = decayed - (pair[2] * found)[..., :, None] * pair[1][..., None, :]
            z = z + k[..., j, :]
            M = decayed + _value(ERASES[member], x, j)[..., :, None] * write_key[..., None, :]
        seen = M
        if "bonus" in x:
            own_pair = x["v"][..., t, :, None] * (x["bonus"] * k[..., t, :])[..., None, :]
            seen = old + own_pair if active else old
        y = _times(seen, q[..., t, :])
        y = y if scale == 1 else y / np.sqrt(wide(k.shape[-1]))
        if member == "linear_attn_normalized":
            share = np.sum(z * q[..., t, :], axis=-1, keepdims=True)
            factor = 1 if scale == 1 or mistake == "bare divisor" else np.sqrt(wide(k.shape[-1]))
            y = y / (share / factor + wide(1e-10))
        reads.append(y)
    found = {"y": np.stack(reads, axis=-2).astype(kind), "M": M.swapaxes(-1, -2) if turned else M}
    found |= {"z": z} if member == "linear_attn_normalized" else {}
    if member == "momentum_delta":
        found["S"] = S.swapaxes(-1, -2) if turned else S
    return found | ({"A": A} if member in PRECONDITIONED else {})


def _preconditioned(x: Tensors, k: np.ndarray, centre: float) -> list[np.ndarray]:
    """Keys under running sums of their squares, and the last of these."""
    A = first = x.get("A0", np.zeros((*k.shape[:-2], k.shape[-1]), k.dtype))
    keys = []
    for t in range(k.shape[-2]):
        A = first if "reset" in x and x["reset"][t] else A
        if "active" not in x or x["active"][t]:
            gate = np.exp(x["log_retain_precond"][..., t, None])
            A = gate * A + x["beta_precond"][..., t, None] * k[..., t, :] ** 2
        r = np.log(A + A.dtype.type(1e-6)) + A.dtype.type(centre)
        keys.append(k[..., t, :] * A.dtype.type(1.5) ** (-r / (1 + np.abs(r))))
    return [np.stack(keys, axis=-2), A]


def _times(M: np.ndarray, z: np.ndarray) -> np.ndarray:
    return (M @ z[..., None])[..., 0]


def _normed(own: dict[str, Any], member: Any, x: Tensors) -> list[np.ndarray]:
    """Keys and queries under their norms."""
    default = "l2" if member in ("qwen3_next", "kimi_linear", "precond_gated_delta") else "none"
    found = []
    for name in ("k", "q"):
        z = x[name]
        if own.get(f"{name}_norm", default) == "l2":
            square = np.sum(z * z, axis=-1, keepdims=True)
            if member == "precond_gated_delta":
                z = z / np.maximum(np.sqrt(square), z.dtype.type(1e-12))
            else:
                z = z / np.sqrt(square + z.dtype.type(own.get("norm_eps", 1e-6)))
        found.append(z)
    return found


def _spread(z: np.ndarray, groups: int, modulo: bool) -> np.ndarray:
    """Rows of key heads for value heads."""
    if groups == 1:
        return z
    heads = np.arange(z.shape[-3] * groups)
    return np.take(z, heads % z.shape[-3] if modulo else heads // groups, axis=-3)


def _gates(member: Any, x: Tensors, cumulated: bool) -> Any:
    """Gates (..., T, d_in or 1), None for 1."""
    if member == "retention":
        lead, T = x["v"].shape[:-2], x["q"].shape[-2]
        gates = (1.0 - 2.0 ** (-5.0 - np.arange(lead[-1] if lead else 1))).astype(x["v"].dtype)
        return np.broadcast_to(gates[:, None, None] if lead else gates[0], (*lead, T, 1))
    gate = x.get("retain")
    if "log_retain" in x:
        log = x["log_retain"]
        axis = -1 if log.ndim < x["v"].ndim else -2
        with np.errstate(invalid="ignore", over="ignore"):
            if cumulated:
                total = np.cumsum(log.astype(np.float32), axis=axis, dtype=np.float32)
                rest = np.diff(total, axis=axis, prepend=np.float32(0))
                log = rest.astype(log.dtype)
            gate = np.exp(log)
    if gate is None:
        return None
    return gate[..., None] if gate.ndim < x["v"].ndim else gate


def _erase(kind: str, x: Tensors, k: np.ndarray, read: np.ndarray, j: int) -> Any:
    """What the erase of a row reads, along which vector it takes that away, and how much of it.

    None for no erase.
    """

    def row(name: str) -> np.ndarray:
        return x[name][..., j, :]

    if kind.startswith("error"):
        asked = row("erase_key") if kind.endswith("erase_key") else read
        return asked, k, _rate(x, j)
    if kind == "gates":
        return row("erase_gate") * read, k, 1
    if kind == "alpha":
        return -row("alpha"), row("beta"), 1
    if kind == "kk":
        return row("kk"), row("kk") * row("a"), 1
    if "erase_read" not in x:
        return None
    return row("erase_read"), row("erase_write"), row("erase_scale") if "erase_scale" in x else 1


def _rate(x: Tensors, j: int) -> np.ndarray:
    """The step size of a row, or of each of its values."""
    beta = x["beta"]
    return beta[..., j, :] if beta.ndim == x["v"].ndim else beta[..., j, None]


def _value(kind: str, x: Tensors, j: int) -> np.ndarray:
    """The value of a row as it is written."""
    v = x["v"][..., j, :]
    if kind.startswith("error"):
        return _rate(x, j) * v
    return x["write_gate"][..., j, :] * v if kind == "gates" else v
