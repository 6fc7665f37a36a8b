"""A server by hand in plain loops, of five rules, with faults that public code has had.

It shares no code with the oracle. `serve(case, inputs, fault)` makes one fault of `FAULTS`.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import ml_dtypes
import numpy as np

#: Fault -> the rule that it is planted in, and a part of the words by which it has to be named.
FAULTS = {
    "snapshot shares memory": ("gated_delta", "a snapshot was no copy"),
    "draft keeps everything": ("gated_delta", "behind a draft were of all drafted tokens"),
    "draft keeps one less": ("kda", "the token before the last that was kept"),
    "draft rolls the window back alone": ("gated_delta", "the memory behind a draft was of all"),
    "prefill forgets the window": ("gated_delta", "the window was lost in calls of several"),
    "prefill forgets the memory": ("kda", "the memory was lost in calls of several tokens"),
    "short call pads the window": ("gated_delta", "a call shorter than the window left zeros"),
    "window one late": ("kda", "the window was of before the last token"),
    "memory of a block": ("kda", "of the last whole block of 4 tokens"),
    "dirty slot": ("gated_delta", "the last owner of a slot"),
    "packed from the first": ("gated_delta", "all requests of a packed call started from"),
    "right pads decay": ("gated_delta", "padding behind tokens decayed"),
    "left pads enter": ("gated_delta", "padding in front of tokens entered"),
    "positions restart": ("titans", "positions began again in every call"),
    "momentum dropped": ("titans", "S was not in the cache"),
    "packed window leaks": ("kda", "went on from the window of the one before"),
    "shift restarts": ("rwkv7", "the window was lost between calls"),
    "prefill transposes": ("rwkv7", "left transposed behind a prefill"),
    "narrow snapshots": ("mamba2", "snapshots were kept in bfloat16"),
    "decode without limits": ("mamba2", "calls of one token took steps without"),
}


class Server:
    """Requests in slots; each slot is a dict of M, S, window and the position."""

    def __init__(self, case: dict[str, Any], inputs: dict[str, Any], fault: str) -> None:
        self.case, self.x, self.fault = case["parameters"], inputs, fault
        self.slots: list[dict[str, Any]] = []
        self.of: dict[int, int] = {}
        self.idle: list[int] = []
        self.seen: dict[int, int] = {}
        self.copies: dict[str, Any] = {}
        self.y: list[Any] = []
        self.out: dict[str, Any] = {}

    # -- one token ---------------------------------------------------------------------------------

    def token(self, s: dict[str, Any], row: dict[str, Any], alone: bool) -> Any:
        c, heads, di, do = self.case, self.case["heads"], self.case["d_in"], self.case["d_out"]
        x = row["x"]
        if c.get("conv"):
            lines = np.vstack([s["window"], x])
            x = np.array([lines[:, i] @ self.x["conv_w"][i] for i in range(len(x))])
            x = x / (1 + np.exp(-x)) if c.get("conv_silu", True) else x
            s["window"] = lines[1:]
        y = np.zeros((heads, do))
        for h in range(heads):
            q, k = x[h * di : (h + 1) * di], x[(heads + h) * di : (heads + h + 1) * di]
            v = x[2 * heads * di + h * do : 2 * heads * di + (h + 1) * do]
            if c.get("qk_norm"):
                q, k = (z / np.sqrt(z @ z + 1e-6) for z in (q, k))
            if c.get("rope"):
                q, k = self.turn(q, s["at"]), self.turn(k, s["at"])
            y[h] = self.write(s, {n: z[h] for n, z in row.items() if n != "x"}, h, q, k, v, alone)
        s["at"] += 1
        return y

    def turn(self, z: Any, at: int) -> Any:
        half, out = len(z) // 2, z.copy()
        for i in range(half):
            angle = at / 10000 ** (2 * i / len(z))
            pair = complex(z[i], z[i + half]) * complex(np.cos(angle), np.sin(angle))
            out[i], out[i + half] = pair.real, pair.imag
        return out

    def write(self, s: Any, g: Any, h: int, q: Any, k: Any, v: Any, alone: bool) -> Any:
        c, M = self.case, s["M"][h]
        if c["member"] in ("gated_delta", "kda"):
            M = M * np.exp(g["g"])
            M = M + g["beta"] * np.outer(v - M @ k, k)
        elif c["member"] == "rwkv7":
            kk = k / np.sqrt(k @ k + 1e-6)
            M = M * np.exp(g["g"]) - np.outer(M @ kk, g["a"] * kk) + np.outer(v, k)
        elif c["member"] == "titans":
            s["S"][h] = g["mu"] * s["S"][h] + g["eta"] * np.outer(v - M @ k, k)
            M = np.exp(g["g"]) * M + s["S"][h]
        else:
            dt = np.log1p(np.exp(g["dt_raw"] + self.x["dt_bias"][h]))
            if not (alone and self.fault == "decode without limits"):
                dt = min(max(dt, c.get("dt_min", 0.0)), c.get("dt_max", np.inf))
            M = np.exp(-np.exp(self.x["A_log"][h]) * dt) * M + dt * np.outer(v, k)
        s["M"][h] = M
        skip = self.x["D"][h] * v if c["member"] == "mamba2" else 0
        return c.get("scale", 1.0) * (M @ q) + skip

    # -- one call ----------------------------------------------------------------------------------

    def call(self, r: int, rows: list[Any], kept: int, op: str) -> None:
        """Rows of one request; the state that is left is that after `kept` of them."""
        s, n, fault = deepcopy(self.slots[self.of[r]]), len(rows), self.fault
        if fault == "shift restarts" or (n > 1 and fault == "prefill forgets the window"):
            s["window"] = s["window"] * 0
        if n > 1 and fault == "prefill forgets the memory":
            s["M"] = s["M"] * 0
        if fault == "positions restart":
            s["at"] = 0
        after = [deepcopy(s)]
        for row in rows:
            self.y.append(self.token(s, row, n == 1))
            after.append(deepcopy(s))
        left = after[kept]
        if op == "draft":
            left = after[n] if fault == "draft keeps everything" else left
            left = after[max(kept - 1, 0)] if fault == "draft keeps one less" else left
            if fault == "draft rolls the window back alone":
                left = {**after[n], "window": left["window"]}
        elif fault == "memory of a block" and n > 4:
            left = {**left, "M": after[n - n % 4]["M"]}
        columns = self.case.get("conv", 0) - 1
        if kept == n and 1 < n < columns and fault == "short call pads the window":
            left["window"] = np.vstack([left["window"][:-n] * 0, left["window"][-n:]])
        if kept == n and n > 1 and fault == "window one late":
            left = {**left, "window": after[n - 1]["window"]}
        if op == "prefill" and fault == "prefill transposes":
            left["M"] = np.swapaxes(left["M"], 1, 2).copy()
        self.leave(r, left)
        self.seen[r] += kept

    def leave(self, r: int, s: dict[str, Any]) -> None:
        if self.fault == "momentum dropped":
            s["S"] = s["S"] * 0
        self.slots[self.of[r]] = s

    def begin(self, r: int) -> None:
        c = self.case
        shape = (c["heads"], c["d_out"], c["d_in"])
        s: dict[str, Any] = {"M": np.zeros(shape), "at": 0}
        if c["member"] == "titans":
            s["S"] = np.zeros(shape)
        if c.get("conv"):
            s["window"] = np.zeros((c["conv"] - 1, self.x["x"].shape[-1]))
        if self.idle:
            slot = self.idle.pop()
            if self.fault == "dirty slot":
                s["M"] = self.slots[slot]["M"]
            self.slots[slot] = s
        else:
            slot = len(self.slots)
            self.slots.append(s)
        self.of[r], self.seen[r] = slot, 0

    def rows(self, r: int, n: int) -> list[Any]:
        a, names = self.seen[r], self.gates()
        return [
            {"x": self.x["x"][r, t], **{g: self.x[g][r, :, t] for g in names}}
            for t in range(a, a + n)
        ]

    def gates(self) -> list[str]:
        return [g for g in ("g", "beta", "a", "mu", "eta", "dt_raw") if g in self.x]

    def drafts(self, rows: list[int]) -> list[Any]:
        return [{g: self.x[f"draft_{g}"][i] for g in ("x", *self.gates())} for i in rows]

    def pad(self) -> dict[str, Any]:
        """What stands in a pad."""
        return {g: self.x[f"pad_{g}"] for g in ("x", *self.gates())}

    # -- steps -------------------------------------------------------------------------------------

    def several(self, step: dict[str, Any]) -> list[int]:
        """A call of one or more requests."""
        one = isinstance(step["r"], int)
        requests = [step["r"]] if one else step["r"]
        counts = step.get("n", [1] * len(requests))
        counts = [counts] if one else counts
        for r in requests:
            if r not in self.of:
                self.begin(r)
        leads = deepcopy(self.slots[self.of[requests[0]]])
        ahead = None
        for r, n in zip(requests, counts, strict=True):
            s, pads = self.slots[self.of[r]], step.get("width", n) - n
            if step["op"] == "packed" and n and self.fault == "packed from the first":
                self.slots[self.of[r]] = {**s, "M": leads["M"]}
            if step["op"] == "packed" and n and ahead and self.fault == "packed window leaks":
                self.slots[self.of[r]] = {**s, "window": ahead["window"]}
            if pads and step["side"] == "left" and self.fault == "left pads enter":
                for _ in range(pads):
                    self.token(self.slots[self.of[r]], self.pad(), alone=False)
            self.call(r, self.rows(r, n), n, step["op"])
            s = self.slots[self.of[r]]
            if pads and step["side"] == "right" and self.fault == "right pads decay":
                s["M"] = s["M"] * np.exp(pads * self.pad()["g"])[:, None, None]
            ahead = deepcopy(s) if n else ahead
        return requests

    def run(self) -> dict[str, Any]:
        for i, step in enumerate(self.case["schedule"]):
            op, r, left = step["op"], step["r"], []
            if op == "draft":
                self.call(r, self.drafts(step["rows"]), step["accept"], op)
                left = [r]
            elif op == "snapshot":
                self.snapshot(step["name"], r)
            elif op == "restore":
                self.restore(step, r)
                left = [r]
            elif op == "free":
                self.idle.append(self.of.pop(r))
            else:
                left = self.several(step)
            for each in left:
                s = self.slots[self.of[each]]
                found = {n: np.array(z) for n, z in s.items() if n != "at"}
                self.out |= {f"state{i}/r{each}/{n}": z for n, z in found.items()}
        return {"y": np.array(self.y), **self.out}

    def snapshot(self, name: str, r: int) -> None:
        s = deepcopy(self.slots[self.of[r]])
        if self.fault == "narrow snapshots":
            s["M"] = s["M"].astype(ml_dtypes.bfloat16).astype(np.float64)
        self.copies[name] = self.of[r] if self.fault == "snapshot shares memory" else s

    def restore(self, step: dict[str, Any], r: int) -> None:
        s = self.copies[step["name"]]
        s = deepcopy(self.slots[s] if isinstance(s, int) else s)
        if r not in self.of:
            self.begin(r)
        self.leave(r, s)
        self.seen[r] = step["at"]


def serve(case: dict[str, Any], inputs: dict[str, Any], fault: str = "") -> dict[str, Any]:
    """Reads and states of a schedule."""
    return Server(case, inputs, fault).run()
