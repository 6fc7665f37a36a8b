"""Every quantity of a program of rule dplr, head by head and number by number, by the clauses' words.

Nothing is shared with the library. Numbers are real or complex, so that a quantity that is moved by
an imaginary step gives its adjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.truth import momentum_delta

#: Called with an op, its head, its token and its value; the value with which the program goes on.
Take = Callable[[str, int, int, Any], Any]


def run(inputs: Mapping[str, Any], own: Any, take: Take, mistake: str = "") -> tuple[Any, ...]:
    """y (H, T, d_out), M (H, d_out, d_in) and a second state, of inputs by their bare names.

    Args:
        own: settings in force: erase, order, scale, steps, groups, k_norm, q_norm, eps, second.
        take: the hook at every quantity; keys and queries under a norm have the head of keys.
    """
    if own.second == "S":
        return momentum_delta.run(inputs, own, mistake, take)
    heads = range(inputs["v"].shape[0])
    each = [_Head(inputs, own, h, take, mistake).run() for h in heads]
    y, M, *others = (np.stack(part) for part in zip(*each, strict=True))
    if own.second == "A":  # of key heads
        heads_of = [key_head(h, own, len(inputs["k"])) for h in heads]
        others = [others[0][[heads_of.index(i) for i in range(len(inputs["k"]))]]]
    return y, M, *others


def collected(inputs: Mapping[str, Any], own: Any, shapes: Mapping[str, Any], mistake: str = ""):
    """Every op in the shapes (heads, tokens, ...), 0 where nothing is computed."""
    found = {name: np.zeros(shape) for name, shape in shapes.items()}

    def take(op: str, h: int, t: int, value: Any) -> Any:
        if op in found:
            found[op][h, t] = value
        return value

    run(inputs, own, take, mistake)
    return found


def adjoint(inputs: Mapping[str, Any], own: Any, bars: Mapping[str, Any], op: str, shape: Any):
    """The derivative of what the cotangents weigh by each number of an op, by complex steps."""
    slopes = np.zeros(shape)
    for place in np.ndindex(shape):

        def take(name: str, h: int, t: int, value: Any, place: Any = place) -> Any:
            if (name, h, t) != (op, *place[:2]):
                return value
            moved = np.array(value, complex)
            moved[place[2:]] += 1e-30j
            return moved

        y, M, *others = run(inputs, own, take)
        total = np.sum(bars["y"] * y) + np.sum(bars["M"] * M)
        if others:
            total = total + np.sum(bars[own.second] * others[0])
        slopes[place] = np.imag(total) / 1e-30
    return slopes


#: Tensors and ops of key heads.
OF_KEYS = ("k", "q", "log_retain_precond", "beta_precond", "A0", "A_bar")


def key_head(h: int, own: Any, heads: int) -> int:
    """The key head of value head h, of so many key heads."""
    robin = getattr(own, "group_order", "blocks") == "round_robin"
    return h % heads if robin else h // own.groups


class _Head:
    """One value head."""

    def __init__(self, x: Any, own: Any, h: int, take: Take, mistake: str) -> None:
        self.own, self.mistake, self.h = own, mistake, h
        heads = x["k"].shape[0]
        self.key_head = h % heads if mistake == "round robin" else key_head(h, own, heads)
        self.x = {
            name: value if name in ("active", "reset") else value[self._of(name, value)]
            for name, value in x.items()
        }
        self.hook = take

    def _of(self, name: str, value: Any) -> Any:
        if name == "bonus" and value.ndim == 1:
            return slice(None)
        by_memory = name == "q" and getattr(self.own, "query_groups", 1) > 1
        return self.key_head if name in OF_KEYS and not by_memory else self.h

    def _take(self, op: str, t: int, value: Any, step: int | None = None) -> Any:
        head = self.key_head if op in (*OF_KEYS, "A", "written_key") else self.h
        name = op if step is None or self.own.steps == 1 else f"step{step}/{op}"
        return self.hook(name, head, t, value)

    def run(self) -> tuple[Any, ...]:
        x, own = self.x, self.own
        first = x.get("M0", np.zeros((x["v"].shape[-1], x["k"].shape[-1])))
        z0 = x.get("z0", np.zeros(x["k"].shape[-1]))
        A0 = x.get("A0", np.zeros(x["k"].shape[-1]))
        M, z, A, reads = first, z0, A0, []
        for t in range(len(x["q"])):
            if "reset" in x and x["reset"][t]:
                M, z, A = first, z0, A0
            keys = [self._unit("k", t, x["k"][t * own.steps + s], s) for s in range(own.steps)]
            q, gate, before = self._unit("q", t, x["q"][t]), self._gate(t), M
            writes = "active" not in x or x["active"][t]
            as_if = not writes and getattr(own, "masked_read", "") == "written"
            self.written = None
            if own.second == "A":
                A, self.written = self._preconditioned(t, keys[0], A, writes, as_if)
            for s, k in enumerate(keys):
                M = self._row(t, s, k, gate, M) if writes else self._take("M", t, M, s)
            divisor, z_before = 1.0, z
            if own.second == "z":
                for s, k in enumerate(keys):
                    z = self._take("z", t, z + k if writes else z, s)
                of = sum(keys, z_before) if as_if else z
                divisor = self._take("normaliser", t, own.scale * (of @ q) + 1e-10)
            y = self._read(t, keys[0], q, before, M, writes)
            if as_if:
                y = self._as_if(t, keys, q, gate, before)
            y = y / divisor
            if not writes and getattr(own, "masked_read", "") == "zero":
                y = 0.0 * y
            reads.append(self._take("y", t, y))
        seconds = {"z": (z,), "A": (A,)}.get(own.second, ())
        return (np.stack(reads), M, *seconds)

    def _as_if(self, t: int, keys: Any, q: Any, gate: Any, before: Any) -> Any:
        """What the query would read had the token been written, which is no op of its own."""
        hook, M = self.hook, before
        self.hook = lambda op, head, token, value: value
        for s, k in enumerate(keys):
            M = self._row(t, s, k, gate, M)
        y = self._read(t, keys[0], q, before, M, True)
        self.hook = hook
        return y

    def _preconditioned(self, t: int, k: Any, A: Any, writes: Any, as_if: Any) -> tuple[Any, Any]:
        x = self.x
        moved = np.exp(x["log_retain_precond"][t]) * A + x["beta_precond"][t] * k**2
        A = self._take("A", t, moved if writes else A)
        r = np.log((moved if as_if else A) + 1e-6) + 0.2
        r = 0.0 * r if self.mistake == "key as it is" else r
        return A, self._take("written_key", t, k * 1.5 ** (-r / (1 + np.sign(r.real) * r)))

    def _unit(self, name: str, t: int, z: Any, step: int | None = None) -> Any:
        if getattr(self.own, f"{name}_norm") == "none":
            return z
        return self._take(name, t, z / np.sqrt(np.sum(z * z) + self.own.eps), step)

    def _gate(self, t: int) -> Any:
        x = self.x
        if "log_gate" in x:  # of a formula, which its own loop has computed
            return self._take("gate", t, np.exp(self._take("log_gate", t, x["log_gate"][t])))
        if "log_retain" in x:
            return self._take("gate", t, np.exp(x["log_retain"][t]))
        if "retain" in x:
            return self._take("gate", t, x["retain"][t])
        if self.own.by_head:
            return self._take("gate", t, 1.0 - 2.0 ** (-5 - self.h))
        return None

    def _row(self, t: int, s: int, k: Any, gate: Any, M: Any) -> Any:
        x, own, j = self.x, self.own, t * self.own.steps + s
        decayed = M
        if gate is not None and (s == 0 or self.mistake == "gate at steps"):
            w = gate[:, None] if self.mistake == "gate on rows" else gate
            decayed = self._take("decayed", t, M * w, s)
        v = x["v"][j]
        late = (own.order == "after_error") != (self.mistake == "other order")
        of = M if late else decayed
        if own.erase == "error":
            a = x["erase_key"][j] if "erase_key" in x else k
            a = x["k"][j] if self.mistake == "bare key" else a
            found = self._take("found", t, of @ self._take("erase_read", t, a, s), s)
            beta = x["beta"][j]
            erased = found if self.mistake == "erase without beta" else beta * found
            written = v if self.mistake == "write without beta" else beta * v
            change = self._take("change", t, written - erased, s)
            along = k if self.written is None else self.written
            return self._take("M", t, decayed + np.outer(change, along), s)
        vectors = self._vectors(j, k)
        if vectors is not None:
            a, b = (
                self._take(f"erase_{n}", t, z, s)
                for n, z in zip(("read", "write"), vectors, strict=True)
            )
            found = self._take("found", t, of @ a, s)
            decayed = decayed - np.outer(
                x["erase_scale"][j] * found if "erase_scale" in x else found, b
            )
        if own.erase == "gates":
            v = self._take("value", t, x["write_gate"][j] * v, s)
        return self._take("M", t, decayed + np.outer(v, k), s)

    def _vectors(self, j: int, k: Any) -> Any:
        x = self.x
        if self.own.erase == "gates":
            return x["erase_gate"][j] * k, k
        if self.own.erase == "alpha":
            return -x["alpha"][j], x["beta"][j]
        if self.own.erase == "kk":
            return x["kk"][j], x["kk"][j] * x["a"][j]
        return (x["erase_read"][j], x["erase_write"][j]) if "erase_read" in x else None

    def _read(self, t: int, k: Any, q: Any, before: Any, M: Any, writes: Any) -> Any:
        seen = M
        if "bonus" in self.x and writes:
            of = M if self.mistake == "bonus late" else before
            seen = of + np.outer(self.x["v"][t], self.x["bonus"] * k)
        scale = self.own.scale**2 if self.mistake == "scale twice" else self.own.scale
        return scale * (seen @ q)
