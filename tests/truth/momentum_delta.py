"""The delta rule with momentum, head by head and token by token, with a hook and with mistakes.

Nothing is shared with the library. Real or complex: a part that is held fixed loses its imaginary
part, so that complex steps give the gradient without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Take = Callable[[str, int, int, Any], Any]

#: Tensors of key heads.
OF_KEYS = ("k", "q")

#: What a log is read as.
LOGS: dict[str, Callable[[Any], Any]] = {
    "no momentum": lambda log: 0.0,
    "momentum of 1": lambda log: 1.0,
    "momentum of base 2": lambda log: 2.0**log,
}


def same(op: str, head: int, token: int, value: Any) -> Any:
    return value


def run(inputs: Mapping[str, Any], own: Any, mistake: str = "", take: Take = same) -> Any:
    """y (H, T, d_out), M and S (H, d_out, d_in) of inputs by their bare names.

    Args:
        own: settings in force: order, scale, groups, k_norm, q_norm, eps.
    """
    x = {name: np.asarray(value) for name, value in inputs.items()}
    heads = range(len(x["v"]))
    each = [_Head(x, own, h, mistake, take).run() for h in heads]
    return tuple(np.stack(part) for part in zip(*each, strict=True))


class _Head:
    """One value head."""

    def __init__(self, x: Any, own: Any, h: int, mistake: str, take: Take) -> None:
        self.own, self.h, self.mistake, self.hook = own, h, mistake, take
        keys = len(x["k"])
        robin = "round robin" in (mistake, getattr(own, "group_order", "").replace("_", " "))
        self.key_head = h % keys if robin else h // own.groups
        self.x = {}
        for name, value in x.items():
            if name in ("active", "reset"):
                self.x[name] = value
            else:
                by_memory = name == "q" and getattr(own, "query_groups", 1) > 1
                self.x[name] = value[self.key_head if name in OF_KEYS and not by_memory else h]
                if name in OF_KEYS and mistake == "heads held" and h % own.groups:
                    self.x[name] = self.x[name].real + 0j

    def take(self, op: str, t: int, value: Any) -> Any:
        return self.hook(op, self.key_head if op in OF_KEYS else self.h, t, value)

    def run(self) -> tuple[Any, Any, Any]:
        x, said = self.x, self.mistake
        T, d_in, d_out = len(x["q"]), x["k"].shape[-1], x["v"].shape[-1]
        zeros = np.zeros((d_out, d_in))
        M0 = x.get("M0", zeros) * (0.0 if said == "M0 ignored" else 1.0)
        M0 = M0.T if said == "M0 transposed" else M0
        S0 = x.get("S0", zeros) * (0.0 if said == "S0 ignored" else 1.0)
        S0 = S0.T if said == "M0 transposed" else S0
        M, S, reads = M0, S0, []
        late = {"reset late": -1, "reset early": 1}.get(said, 0)
        for t in range(T):
            marked = "reset" in x and 0 <= t + late < T and x["reset"][t + late]
            if marked and said != "reset ignored":
                M, S = (0.0 * M0, 0.0 * S0) if said == "reset to zero" else (M0, S0)
            M, S = (M.real, S.real) if said == "memory held" and t else (M, S)
            before, S_before, gate = M, S, self.gate(t, said)
            k = self.unit("k", t, x["k"][max(t - 1, 0) if said == "in/k late" else t])
            q = self.unit("q", t, x["q"][max(t - 1, 0) if said == "in/q late" else t])
            if "active" not in x or x["active"][t] or said == "active ignored":
                M, S = self.token(t, M, S, gate, k)
            else:
                M = M * gate if said == "gate when silent" else M
                S, M = self.take("S", t, S), self.take("M", t, M)
            seen = {"read before": before, "read decayed": before * gate}.get(said, M)
            scale = self.own.scale ** (2 if said == "scale twice" else 1)
            scale = d_out**-0.5 if said == "scale of d_out" else scale
            masked = getattr(self.own, "masked_read", "memory")
            if "active" in x and not x["active"][t] and masked != "memory":
                hook, self.hook = self.hook, same
                as_if = self.token(t, before, S_before, gate, k)[0]
                seen, self.hook = (0.0 if masked == "zero" else 1.0) * as_if, hook
            reads.append(self.take("y", t, scale * (seen @ q)))
        M, turned = before if said == "M early" else M, said == "M transposed"
        return np.stack(reads), M.T if turned else M, S.T if turned else S

    def token(self, t: int, M: Any, S: Any, gate: Any, k: Any) -> tuple[Any, Any]:
        """M and S after a token that is active."""
        x, said, late = self.x, self.mistake, self.mistake == "gate after write"
        decayed = M if late else self.take("decayed", t, M * gate)
        of = decayed if self.own.order == "before_error" else M
        p = k if said == "erase of key" else x["erase_key"][t]
        found = of @ p
        found = found.real if said == "erase held" else found
        found = self.take("found", t, found)
        found = {"no erase": 0.0 * found, "erase adds": -found}.get(said, found)
        eta, beta = x["eta"][t], x["beta"][t]
        eta = eta.real if said == "eta held" else eta
        eta, beta = (beta, eta) if said == "rates exchanged" else (eta, beta)
        eta = eta ** {"eta forgotten": 0, "eta twice": 2}.get(said, 1)
        beta = beta ** {"beta forgotten": 0, "beta twice": 2}.get(said, 1)
        change = self.take("change", t, eta * (found - x["v"][t]))
        mu = self.take("momentum", t, LOGS.get(said, np.exp)(x["log_momentum"][t]))
        sign = -1.0 if said == "momentum negative" else 1.0
        share = 1.0 - mu if said == "momentum average" else 1.0
        old = S
        S = S.real if said == "momentum held" and t else S
        S = self.take("S", t, mu * S + sign * share * np.outer(change, k))
        M = decayed - sign * beta * (old if said == "momentum late" else S)
        return self.take("M", t, M * gate if late else M), S

    def gate(self, t: int, said: str) -> Any:
        """The gates of key channels at a token, or of values as a column."""
        x, T = self.x, len(self.x["q"])
        name = "log_retain" if "log_retain" in x else "retain"
        if said == "gate forgotten" or name not in x:
            return 1.0
        at = {"gate late": max(t - 1, 0), "gate early": min(t + 1, T - 1)}.get(said, t)
        raw = x[name][at]
        raw = np.full_like(raw, raw[0]) if said == "gate of channel 0" else raw
        raw = np.full_like(raw, raw.mean()) if said == "mean gate" else raw
        if name == "log_retain":
            others = {"log as gate": raw, "log of base 2": 2.0**raw}
            others["exp of base 2"] = np.exp(raw * np.log2(np.e))
            gate = others.get(said, np.exp(raw))
            gate = gate.real + 1j * raw.imag if said == "log held" else gate
        else:
            gate = np.exp(raw) if said == "gate as log" else raw
        gate = gate * gate if said == "gate twice" else gate
        gate = self.take("gate", t, gate.real if said == "gate held" else gate)
        return gate[:, None] if said == "gate on rows" else gate

    def unit(self, name: str, t: int, z: Any) -> Any:
        """A key or query under its norm."""
        if getattr(self.own, f"{name}_norm") == "none":
            return z
        length = np.sqrt(np.sum(z * z) + self.own.eps)
        return self.take(name, t, z / (length.real if self.mistake == "norm held" else length))
