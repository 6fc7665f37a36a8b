"""Programs of rule dplr with one mistake each, head by head in matrices, by the clauses' words.

The gate is a matrix on the right of M, the erase I - a b^T one too; nothing is shared with the
library. Real or complex: a part that is held fixed loses its imaginary part, so that complex steps
give the gradient without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.truth import momentum_delta

Inputs = Mapping[str, Any]


def run(inputs: Inputs, own: Any, mistake: str = "") -> dict[str, Any]:
    """y (H, T, d_out) and M (H, d_out, d_in) of inputs by their bare names, one batch of heads.

    Args:
        own: settings in force: erase, decay, scale, steps, groups, k_norm, q_norm, eps, second.
    """
    if own.second == "S":
        return dict(zip("yMS", momentum_delta.run(inputs, own, mistake), strict=True))
    x = {name: np.asarray(value) for name, value in inputs.items()}
    held = mistake.removesuffix(" held")
    if held != mistake and held in x:
        x[held] = x[held].real
    heads = x["v"].shape[0]
    made = [_head(_of_head(x, own, h, mistake), own, mistake) for h in range(heads)]
    M = np.stack([each[1] for each in made])
    M = M.swapaxes(-1, -2) if mistake == "M transposed" else M
    M = M.real if mistake == "last held" else M
    found = {"y": np.stack([each[0] for each in made]), "M": M}
    firsts = made
    if own.second == "A":  # of key heads
        firsts = made[: heads // own.groups] if mistake == "round robin" else made[:: own.groups]
    return found | {name: np.stack([each[2][name] for each in firsts]) for name in made[0][2]}


#: Tensors of key heads.
OF_KEYS = ("k", "q", "log_retain_precond", "beta_precond", "A0")


def _of_head(x: Inputs, own: Any, h: int, mistake: str) -> dict[str, Any]:
    key_head = h // own.groups
    if mistake == "round robin":
        key_head = h % (x["v"].shape[0] // own.groups)
    found = {}
    for name, value in x.items():
        if name in ("active", "reset") or (name == "bonus" and value.ndim == 1):
            found[name] = value
        else:
            found[name] = value[key_head if name in OF_KEYS else h]
            if name in OF_KEYS and mistake == "heads held" and h % own.groups:
                found[name] = found[name].real + 0j
    return found


def _unit(z: Any, kind: str, own: Any, mistake: str) -> Any:
    if kind == "none":
        return z
    length = np.sqrt(np.sum(z * z) + (0.0 if own.floor else own.eps))
    if mistake == "eps outside the root":
        length = np.sqrt(np.sum(z * z)) + own.eps
    length = own.floor if length.real < own.floor else length
    if mistake == "eps outside the root":
        length = np.sqrt(np.sum(z * z)) + own.eps
    return z / (length.real if mistake == "norm held" else length)


def _gate(x: Inputs, t: int, mistake: str) -> Any:
    """The gates of the channels at a token."""
    T, d_in = len(x["q"]), x["k"].shape[-1]
    if mistake == "gate forgotten" or not {"retain", "log_retain"} & x.keys():
        return np.ones(d_in)
    t = {"gate late": max(t - 1, 0), "gate early": min(t + 1, T - 1)}.get(mistake, t)
    if "log_retain" in x:
        log = x["log_retain"][t]
        log = np.full(d_in, log.mean()) if mistake == "mean gate" else log
        others = {"log as gate": log, "log of base 2": 2.0**log}
        others["exp of base 2"] = np.exp(log * np.log2(np.e))
        gate = others.get(mistake, np.exp(log))
        if mistake == "log held":
            gate = gate.real + 1j * log.imag
    else:
        gate = np.exp(x["retain"][t]) if mistake == "gate as log" else x["retain"][t]
    gate = np.ones(d_in) * gate
    if mistake == "gate of channel 0":
        gate = np.full(d_in, gate[0])
    if mistake == "mean gate":
        gate = np.full(d_in, gate.mean())
    gate = gate * gate if mistake == "gate twice" else gate
    return gate.real if mistake == "gate held" else gate


def _vectors(x: Inputs, own: Any, j: int, mistake: str) -> tuple[Any, ...]:
    """Key, value that is written, what the erase reads with, and along which vector it takes."""
    bare, v = x["k"][j], x["v"][j]
    k = _unit(bare, own.k_norm, own, mistake)
    k = own.scale * k if mistake == "scale of keys" else k
    power = {"beta forgotten": 0, "beta twice": 2}.get(mistake, 1)
    if own.erase == "error":
        beta = x["beta"][j] ** power * (2.0 if mistake == "beta doubled" else 1.0)
        own_key = x["erase_key"][j] if "erase_key" in x else k
        asked = {"erase of bare key": bare, "erase of key": k}.get(mistake, own_key)
        if "written" in x:
            asked = x["written"] if mistake == "erase of written key" else asked
            k = x["written"]
        write = 1.0 if mistake == "write without beta" else beta
        erase = 1.0 if mistake == "erase without beta" else beta
        if mistake == "mean beta":
            write = erase = np.full(len(v), x["beta"][j].mean())
        if mistake == "beta on keys":
            return beta * k, v, asked, beta * k
        if np.ndim(erase):  # a factor for each value
            return k, write * v, asked, k, erase
        return k, write * v, asked, erase * k
    if own.erase == "gates":
        write = x["write_gate"][j] ** _power("write_gate", mistake)
        erase = x["erase_gate"][j] ** _power("erase_gate", mistake)
        if mistake == "erase crossed":
            return k, write * v, k, erase * k
        return k, write * v, erase * (bare if mistake == "erase of bare key" else k), k
    if own.erase == "alpha":
        a, b = x["alpha"][j], x["beta"][j]
        a, b = (b, a) if mistake == "in/alpha exchanged" else (a, b)
        return k, v, -a, b
    if own.erase == "kk":
        rate = x["a"][j] ** _power("a", mistake)
        if mistake == "erase crossed":
            return k, v, x["kk"][j] * rate, x["kk"][j]
        return k, v, x["kk"][j], x["kk"][j] * rate
    if "erase_read" in x:
        a, b = x["erase_read"][j], x["erase_write"][j]
        a, b = (b, a) if mistake == "in/erase_read exchanged" else (a, b)
        if "erase_scale" in x and mistake != "erase_scale forgotten":
            return k, v, a, b, x["erase_scale"][j]
        return k, v, a, b
    return k, v, np.zeros_like(k), np.zeros_like(k)


def _power(name: str, mistake: str) -> int:
    return {f"{name} forgotten": 0, f"{name} twice": 2}.get(mistake, 1)


def _token(x: Inputs, own: Any, t: int, M: Any, mistake: str, steps: int | None = None) -> Any:
    """The memory after the steps of one token, or after the first of them."""
    rows = list(range(t * own.steps, t * own.steps + (steps or own.steps)))
    for place, j in enumerate(rows[::-1] if mistake == "steps reversed" else rows):
        j_of_key = max(j - 1, 0) if mistake == "in/k late" else j
        of_row = _vectors({**x, "k": x["k"][[j_of_key] * len(x["k"])]}, own, j, mistake)
        k, v, a, b = of_row[:4]
        a = a.real if mistake == "erase_read held" else a
        scale = np.diag(of_row[4] if len(of_row) > 4 else np.ones(len(v)))
        decays = place == 0 or mistake == "gate at steps"
        gate = _gate(x, t, mistake) if decays else np.ones(len(k))
        sign = {"no erase": 0.0, "erase adds": -1.0}.get(mistake, 1.0)
        decayed = np.diag(gate) @ M if mistake == "gate on rows" else M @ np.diag(gate)
        if mistake == "gate after erase":
            M = (M - scale @ np.outer(M @ a, b)) @ np.diag(gate) + np.outer(v, k)
        elif mistake == "gate after write":
            M = (M - scale @ np.outer(M @ a, b) + np.outer(v, k)) @ np.diag(gate)
        elif mistake == "late erase":
            M = decayed + np.outer(v, k)
            M = M - scale @ np.outer(M @ a, b)
        else:
            found = (M if own.decay == "after_error" else decayed) @ a
            found = found.real if mistake == "erase held" else found
            M = decayed - sign * scale @ np.outer(found, b) + np.outer(v, k)
    return M


def _preconditioned(x: Inputs, own: Any, t: int, A: Any, mistake: str) -> tuple[Any, Any]:
    """The sum of squares after a token, and its key under it."""
    k = _unit(x["k"][max(t - 1, 0) if mistake == "in/k late" else t], own.k_norm, own, mistake)
    w = 1.0 if mistake == "A without decay" else np.exp(x["log_retain_precond"][t])
    after = w * A + (1.0 if mistake == "beta_precond forgotten" else x["beta_precond"][t]) * k**2
    if mistake == "key as it is":
        return after, k
    of = A if mistake == "squares of before" else after
    r = np.log(of + 1e-6) + (0.0 if mistake == "no centre" else 0.2)
    factor = 1.5 ** (-r / (1 + np.sign(r.real) * r))
    return after, k * (factor.real if mistake == "preconditioner held" else factor)


def _divisor(x: Inputs, own: Any, t: int, sums: tuple[Any, Any], q: Any, mistake: str) -> Any:
    """What a normalised read is divided by, from the sums of keys before and after its token."""
    if mistake == "not divided":
        return 1.0
    z = sums[0] if mistake in ("sum of before", "read before") else sums[1]
    found = (1.0 if mistake == "normaliser without scale" else own.scale) * (z @ q) + 1e-10
    if mistake == "normaliser at least 1" and found.real < 1:
        return 1.0
    return found.real if mistake == "normaliser held" else found


def _head(x: Inputs, own: Any, mistake: str) -> tuple[Any, Any, dict[str, Any]]:
    T, d_in, d_out = len(x["q"]), x["k"].shape[-1], x["v"].shape[-1]
    M0 = x.get("M0", np.zeros((d_out, d_in)))
    M0 = {"M0 ignored": 0.0 * M0, "M0 transposed": M0.T}.get(mistake, M0)
    z0 = x.get("z0", np.zeros(d_in)) * (0.0 if mistake == "z0 ignored" else 1.0)
    A0 = x.get("A0", np.zeros(d_in)) * (0.0 if mistake == "A0 ignored" else 1.0)
    M, z, A, reads = M0, z0, A0, []
    late = {"reset late": -1, "reset early": 1}.get(mistake, 0)
    for t in range(T):
        marked = "reset" in x and 0 <= t + late < T and x["reset"][t + late]
        arrived = M
        if marked and mistake != "reset ignored":
            M, z, A = (f * (0.0 if mistake == "reset to zero" else 1.0) for f in (M0, z0, A0))
            M = M0 + 1j * arrived.imag if mistake == "reset held" else M
        M, z, A = (f.real if mistake == "memory held" and t else f for f in (M, z, A))
        before, sum_before = M, z
        writes = "active" not in x or x["active"][t] or mistake == "active ignored"
        if writes:
            own_x = x
            if own.second == "A":
                A, key = _preconditioned(x, own, t, A, mistake)
                own_x = {**x, "written": key}
            M = _token(own_x, own, t, M, mistake)
            for j in range(t * own.steps, (t + 1) * own.steps):
                own_key = x["k"][max(j - 1, 0) if mistake == "in/k late" else j]
                z = z + _unit(own_key, own.k_norm, own, mistake)
        elif mistake == "gate when silent":
            M = M @ np.diag(_gate(x, t, mistake))
        seen = M
        if mistake == "read of first step" and writes:
            seen = _token(own_x, own, t, before, mistake, steps=1)
        elif mistake == "read before":
            seen = before
        elif mistake == "read decayed":
            seen = before @ np.diag(_gate(x, t, mistake))
        elif "bonus" in x and writes and mistake != "bonus forgotten":
            u = {"bonus of 0": 0.0, "bonus of 1": 1.0}.get(mistake, x["bonus"])
            k = _unit(x["k"][max(t - 1, 0) if mistake == "in/k late" else t], own.k_norm, own, "")
            decayed = before @ np.diag(_gate(x, t, mistake))
            read = {"bonus late": M, "bonus decayed": decayed}.get(mistake, before)
            seen = read + np.outer(x["v"][t], u * k)
        q = _unit(x["q"][max(t - 1, 0) if mistake == "in/q late" else t], own.q_norm, own, mistake)
        y = _read(seen, q, own, mistake)
        if own.second == "z":
            y = y / _divisor(x, own, t, (sum_before, z), q, mistake)
        reads.append(y)
    last = before if mistake == "M early" else M
    return np.stack(reads), last, {"z": {"z": z}, "A": {"A": A}}.get(own.second, {})


def _read(M: Any, q: Any, own: Any, mistake: str) -> Any:
    if mistake == "scale held":
        return M @ (own.scale * q.real + 1j * q.imag)
    factors = {"scale twice": own.scale**2, "scale of d_out": len(M) ** -0.5, "scale of keys": 1.0}
    return factors.get(mistake, own.scale) * (M @ q)
