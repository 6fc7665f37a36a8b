"""A deep memory as a plain loop over its events, in any legal arithmetic (TOL-3).

It shares no code with the rule and agrees with it in float64. Every value passes through a hook,
which records it, or puts what somebody recorded in its place. Written from specs/deep_memory.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.deep import functions, schedule, steps
from atlas_ref.oracle.deep.functions import Function
from atlas_ref.oracle.deep.schedule import Begin, Plan, Read, Refresh, Write
from atlas_ref.oracle.deep.settings import Settings, rank
from atlas_ref.oracle.family import steps as matrices
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.types import Array
from tape import opaque, ops

Tensors = Mapping[str, Array]

#: Gates of a write.
GATES = ("retain", "momentum", "step_size", "step_size_memory")

#: A place of an op: the number of a write, or tokens from first to before last.
Place = int | tuple[int, int]


def computed(op: str, place: Place, compute: Callable[..., Array], *args: Any) -> Array:
    """The value of an op as it is: the hook of a loop in which nothing is recorded or replaced."""
    return compute(*args)


class Rounding(NamedTuple):
    """How the loop rounds.

    Attributes:
        way: arithmetic of sums and products.
        touch: of functions that have none.
        argument: of every argument of Newton-Schulz.
        store: of W and S after each write.
    """

    way: Arithmetic = PLAIN
    touch: Callable[[Array], Array] = functions.same
    argument: Callable[[Array], Array] = functions.same
    store: Callable[[Array], Array] = functions.same


PLAINLY = Rounding()


def run(
    s: Settings,
    inputs: Tensors,
    rounding: Rounding = PLAINLY,
    hook: Callable[..., Array] = computed,
    function: Function | None = None,
) -> dict[str, Array]:
    """The results of a case, `out/...` (DEEPCASE-6).

    Args:
        inputs: `in/...` of the case, arrays or tape variables.
        function: the memory function, where it is not that of the settings.
    """
    return _Loop(s, inputs, rounding, hook, function).results()


class _Loop:
    """One call: its tokens, its memory W, S and reference, and its reads."""

    def __init__(
        self, s: Settings, inputs: Tensors, rounding: Rounding, hook: Any, function: Any
    ) -> None:
        self.s, self.inputs, self.rounding, self.hook = s, inputs, rounding, hook
        self.m = function or Function(s.function, rounding.way, rounding.touch)
        k = inputs["in/k"]
        self.lead, self.tokens = k.shape[:-2], k.shape[-2]
        self.keys = self._held("keys", steps.normed(k, s.c.k_norm, rounding.touch), -2)
        self.values = self._held("values", inputs["in/v"], -2)
        self.queries = steps.normed(inputs["in/q"], s.c.q_norm, rounding.touch)
        if s.c.query_scale != 1.0:
            self.queries = self.queries * (1.0 / np.sqrt(k.shape[-1]).item())
        self.before = self.keys.shape[-2] - self.tokens
        self.gates = inputs.get("in/window_gate")
        if self.gates is not None:
            self.gates = self._held("token_gates", self.gates, -1)
        self.plan = self._planned()
        memory = _named(inputs, "in/memory/")
        self.slow = {name: x for name, x in memory.items() if name not in s.fast}
        self.first = {name: self._of_rows(memory[name], rank(name)) for name in s.fast}
        self.W = self.start = _named(inputs, "in/state/weights/") or self.first
        self.S: dict[str, Any] = _named(inputs, "in/state/momentum/")
        self.reference = _named(inputs, "in/state/reference/")
        self.document: dict[str, Array] = self.W
        self.reads: list[Array] = []

    def _held(self, name: str, own: Array, axis: int) -> Array:
        """Tokens of the call behind those from before it; a weight that is not there is 1."""
        held = self.inputs.get(f"in/state/{name}")
        if held is None and (keys := self.inputs.get("in/state/keys")) is not None:
            held = ops.ones_like(own, shape=(*self.lead, keys.shape[-2]))
        return own if held is None else ops.concatenate([held, own], axis=axis)

    def _planned(self) -> Plan:
        def mask(name: str, value: bool) -> list[bool]:
            given = self.inputs.get(name)
            return [value] * self.tokens if given is None else [bool(each) for each in given]

        return schedule.planned(
            self.s,
            active=mask("in/active", True),
            reset=mask("in/reset", False),
            held=self.before,
            position=int(self.inputs.get("in/state/position", 0)),
            referenced=any(name.startswith("in/state/reference/") for name in self.inputs),
        )

    def _of_rows(self, tensor: Array, axes: int) -> Array:
        """W_0 of each memory: of each row, or of all that share one (DEEP-6)."""
        own = tensor.shape[len(tensor.shape) - axes :]
        lead = (1, *self.lead[1:]) if self.s.shared and self.lead else self.lead
        return ops.broadcast_to(tensor, (*lead, *own))

    # -- events ------------------------------------------------------------------------------------

    def results(self) -> dict[str, Array]:
        """Every result, after all events."""
        for event in self.plan.events:
            if isinstance(event, Begin):
                self.W = self.first if event.memory else self._seen(self.W)
                self.S = {} if event.momentum else self.S
                self.document = self.W
            elif isinstance(event, Refresh):
                self.reference = self.W
            elif isinstance(event, Write):
                self._write(event)
            else:
                self._read(event)
        out = {"out/y": ops.concatenate(self.reads, axis=-2) if self.reads[1:] else self.reads[0]}
        return out | self._state()

    def _read(self, event: Read) -> None:
        seen = self._seen(self.W if event.of == "weights" else self.reference)
        place = (event.first, event.last)
        queries = self.queries[..., event.first : event.last, :]
        values = functions.apply(
            self.m,
            {**self.slow, **seen},
            queries,
            lambda name, compute, *args: self.hook(
                "y" if name == "y" else f"read/{name}", place, compute, *args
            ),
        )
        self.reads.append(values["y"])

    def _write(self, event: Write) -> None:
        s, way, n = self.s, self.rounding.way, event.number
        gates = {name: self._gate(name, event.token) for name in GATES}
        gates["retain"] = steps.retained(s.c, gates["retain"])
        rows = [each + self.before for each in reversed(event.rows)]
        place = slice(rows[0], rows[-1] + 1)
        keys, values = self._constant(self.keys[..., place, :], self.values[..., place, :])
        (weights,) = self._constant(self._weights(event, place))
        reference = self.reference if s.c.reference != "running" else self.W
        reference = dict(zip(reference, self._constant(*reference.values()), strict=True))
        if s.c.decay == "before_error":
            reference = {
                name: matrices.times(steps.factor(gates["retain"], rank(name)), x)
                for name, x in reference.items()
            }
        slow = dict(zip(self.slow, self._constant(*self.slow.values()), strict=True))
        g = self._gradient(n, {**slow, **reference}, keys, values, weights)
        h, second = gates["step_size"], gates["step_size_memory"]
        if s.adaptive and h is not None:
            size = self.hook("norm", n, lambda *g: steps.norm(way, _by_name(s, g)), *g.values())
            (size,) = self._through(size)
            h, second = h / (1.0 + size), None if second is None else second / (1.0 + size)
        a, b = steps.rates(s.c, h, second)
        g = self._clipped(n, g)
        S, W = {}, {}
        for name in s.fast:
            S[name], U = self._moved(n, name, g[name], gates["momentum"], a)
            W[name] = self.hook(
                f"W/{name}", n, self._after(rank(name)), gates["retain"], self.W[name], b, U
            )
        self.S, self.W = S, W

    def _after(self, axes: int) -> Callable[..., Array]:
        """W after a write, from retain, W before it, b and U (DEEP-13)."""
        way, c, store = self.rounding.way, self.s.c, self.rounding.store
        return lambda r, W, b, U: store(steps.weights(way, c, r, W, b, U, axes))

    def _gradient(
        self, n: int, p: dict[str, Array], keys: Array, values: Array, weights: Array
    ) -> dict[str, Array]:
        """g of every fast tensor, after the forward pass and the residual (DEEP-7)."""
        s, hook = self.s, self.hook
        v = functions.apply(
            self.m,
            p,
            keys,
            lambda name, compute, *args: hook(f"write/{name}", n, compute, *args),
        )
        e = hook("residual", n, lambda y, v: steps.residual(s.c, y, v), v["y"], values)
        gy = steps.cotangent(s, e, weights)
        every = functions.gradient(self.m, p, v, keys, gy, s.fast)
        shared = s.shared and len(e.shape) > 2
        return {
            name: hook(
                f"gradient/{name}",
                n,
                lambda g: steps.over_rows(self.rounding.way, g) if shared else g,
                every[name],
            )
            for name in s.fast
        }

    def _clipped(self, n: int, g: dict[str, Array]) -> dict[str, Array]:
        """g within its bound (DEEP-9)."""
        s, way = self.s, self.rounding.way
        if s.clip == "none":
            return g
        share = steps.hard(s.clip_norm, steps.norm(way, g)) if s.clip == "hard" else None

        def bounded(g: Array, axes: int) -> Array:
            if share is None:
                return steps.soft(way, s.clip_norm, g, axes)
            return matrices.times(steps.factor(share, axes), g)

        return {
            name: self.hook(f"clipped/{name}", n, bounded, each, rank(name))
            for name, each in g.items()
        }

    def _moved(self, n: int, name: str, g: Array, m: Any, a: Any) -> tuple[Array, Array]:
        """S and U of one tensor (DEEP-11, DEEP-12)."""
        s, way, axes = self.s, self.rounding.way, rank(name)
        own = -g if s.c.momentum_sign == "minus" else g
        (before,) = self._constant(self.S.get(name))
        S = self.hook(
            f"S/{name}",
            n,
            lambda m, S, a, g: self.rounding.store(steps.momentum(way, m, S, a, g, axes)),
            m,
            before,
            a,
            own,
        )
        (S,) = self._through(S)
        ahead = steps.momentum(way, m, S, None, own, axes) if s.c.argument == "nesterov" else S
        U = self.hook(
            f"U/{name}",
            n,
            lambda x: steps.direction(s, way, x, axes, self._orthogonalised, self.rounding.touch),
            ahead,
        )
        (U,) = self._through(U)
        return S, U

    def _orthogonalised(self, S: Array) -> Array:
        settings = self.s.c.newton_schulz_settings
        return matrices.newton_schulz(self.rounding.way, self.rounding.argument(S), settings)

    # -- parts -------------------------------------------------------------------------------------

    def _gate(self, name: str, token: int) -> Any:
        """A gate of a write, the mean of the rows that share a memory (DEEP-13)."""
        gate = self.inputs.get(f"in/{name}")
        if gate is None:
            return None
        own = gate[..., token]
        if not self.s.shared or not own.shape:
            return own
        return steps.over_rows(self.rounding.way, own) / own.shape[0]

    def _weights(self, event: Write, place: slice) -> Array:
        """Weights of the tokens of a write, oldest first (DEEP-7)."""
        n, like = len(event.rows), self.keys
        lags = self.inputs.get("in/window_weights")
        if lags is None:
            lags = ops.ones_like(like, shape=(self.s.window,)) * np.asarray(
                self.s.by_lag, np.dtype(like.dtype)
            )
        else:
            lags = lags[..., event.token, :]
        if self.s.c.window_edge == "renormalise" and self.gates is None and n < self.s.window:
            whole, present = (
                ops.sum(each, axis=-1, keepdims=True) for each in (lags, lags[..., :n])
            )
            empty = ops.equal(present, 0.0)
            lags = lags * ops.where(empty, 1.0, whole / ops.where(empty, 1.0, present))
        weights = ops.flip(lags[..., :n], -1)
        return weights if self.gates is None else weights * self.gates[..., place]

    def _constant(self, *arrays: Any) -> list[Any]:
        """Arguments of a gradient, without a derivative unless the outer gradient is full."""
        if self.s.outer_gradient == "full":
            return list(arrays)
        return [None if each is None else ops.stop_gradient(each) for each in arrays]

    _through = _constant

    def _seen(self, weights: dict[str, Array]) -> dict[str, Array]:
        """Weights as reads see them, by the outer gradient (DEEP-20, DEEP-21)."""
        kind = self.s.outer_gradient
        if kind == "none":
            return {name: ops.stop_gradient(x) for name, x in weights.items()}
        if kind == "straight_through":
            return {name: _straight(self.document[name], x) for name, x in weights.items()}
        return weights

    # -- results -----------------------------------------------------------------------------------

    def _state(self) -> dict[str, Array]:
        """What a next call starts from (DEEPCASE-6)."""
        out: dict[str, Any] = {}
        cut = self.s.outer_gradient in ("straight_through", "none")
        kinds = {"weights": self._seen(self.W)}
        if "in/momentum" in self.inputs:
            kinds["momentum"] = self.S or {
                name: ops.zeros_like(x) for name, x in self.first.items()
            }
        if self.s.frozen:
            kinds["reference"] = self.reference
        for kind, tensors in kinds.items():
            for name, x in tensors.items():
                stopped = cut and kind != "weights"
                out[f"out/state/{kind}/{name}"] = ops.stop_gradient(x) if stopped else x
        held = [each + self.before for each in self.plan.held]
        if held:
            place = slice(held[0], held[-1] + 1)
            out["out/state/keys"] = self.keys[..., place, :]
            out["out/state/values"] = self.values[..., place, :]
            if self.gates is not None:
                out["out/state/token_gates"] = self.gates[..., place]
        return out | {"out/state/position": np.asarray(self.plan.position, np.int64)}


def _by_name(s: Settings, g: Sequence[Array]) -> dict[str, Array]:
    return dict(zip(s.fast, g, strict=True))


def _named(inputs: Tensors, prefix: str) -> dict[str, Array]:
    return {
        name.removeprefix(prefix): value
        for name, value in inputs.items()
        if name.startswith(prefix)
    }


def _straight(source: Array, value: Array) -> Array:
    if source is value:
        return value
    return _passed(ops.broadcast_to(source, value.shape), ops.stop_gradient(value))


_passed = opaque(
    lambda source, value: source + ops.stop_gradient(value - source),
    lambda source, value: (value, None),
    lambda kept, g: (g, None),
    value=lambda source, value: value,
)
