"""One write of a deep memory in any legal arithmetic, op by op (DEEP-7 to DEEP-13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from atlas_ref.oracle.deep import functions, network, retentions, steps
from atlas_ref.oracle.deep.functions import Function
from atlas_ref.oracle.deep.schedule import Write
from atlas_ref.oracle.deep.settings import Settings, rank
from atlas_ref.oracle.family import steps as matrices
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.parts.newton_schulz import coefficient_table
from atlas_ref.types import Array
from tape import ops

Tensors = Mapping[str, Array]


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


class Rows(NamedTuple):
    """What a write looks at: its tokens oldest first, their weights, slow tensors and gates."""

    keys: Array
    values: Array
    weights: Array
    slow: Tensors
    gates: Mapping[str, Any]
    thresholds: Any = None


class Writer(NamedTuple):
    """The write of some settings.

    Attributes:
        hook: called with the op, the write, the op's function and its arguments.
        iterates: whether each step of Newton-Schulz is an op.
    """

    s: Settings
    m: Function
    rounding: Rounding
    hook: Callable[..., Array]
    iterates: bool

    def write(
        self, event: Write, W: Tensors, S: Tensors, reference: Tensors, rows: Rows
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """W and S after a write."""
        s, c, r = self.s, self.s.c, rows.gates["retain"]
        reference = self._each_constant(reference)
        if c.decay == "before_error":
            reference = {
                name: matrices.times(steps.factor(r, rank(name)), x)
                for name, x in reference.items()
            }
        seen = s.parts.get("seen", retentions.seen)
        reference = seen(s.retention, self.rounding.touch, reference)
        slow = self._each_constant(rows.slow)
        g = self._gradient(event, {**slow, **reference}, rows)
        h, second = self._steps(event, g, rows.gates)
        a, b = steps.rates(c, h, second)
        g = self._clipped(event, g)
        m, after = rows.gates["momentum"], {}
        kept, moves = self._network(event, S, g, m, a) if s.deep_momentum else ({}, {})
        for name in s.fast:
            if s.deep_momentum:
                (U,) = self.constant(self._direction(event, name, moves[name]))
            else:
                kept[name], U = self._moved(event, name, g[name], S.get(name), m, a)
            after[name] = self.hook(
                f"W/{name}", event, self._after(event, rank(name)), r, W[name], b, U
            )
        return after, kept

    def _gradient(self, event: Write, p: Tensors, rows: Rows) -> dict[str, Array]:
        """g of every fast tensor, after the forward pass and the residual (DEEP-7)."""
        s, hook = self.s, self.hook
        keys, values, weights = self.constant(rows.keys, rows.values, rows.weights)
        v = functions.apply(
            self.m,
            p,
            keys,
            lambda name, compute, *args: hook(f"write/{name}", event, compute, *args),
        )
        touch = self.rounding.touch
        e = hook("residual", event, lambda y, v: steps.residual(s, touch, y, v), v["y"], values)
        own = () if rows.thresholds is None else self.constant(rows.thresholds)
        gy = hook(
            "cotangent",
            event,
            lambda e, w, *d: steps.cotangent(s, touch, e, w, *d),
            e,
            weights,
            *own,
        )
        every = functions.gradient(self.m, p, v, keys, gy, s.fast)
        shared = s.shared and len(e.shape) > 2
        return {
            name: hook(
                f"gradient/{name}",
                event,
                lambda g: steps.over_rows(self.rounding.way, g) if shared else g,
                every[name],
            )
            for name in s.fast
        }

    def _steps(
        self, event: Write, g: Mapping[str, Array], gates: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """The step sizes of a write, divided by 1 + |g| where they adapt (DEEP-10)."""
        h, second = gates["step_size"], gates["step_size_memory"]
        if not self.s.adaptive or h is None:
            return h, second
        (size,) = self.constant(self.hook("norm", event, self._norm, *g.values()))
        return h / (1.0 + size), None if second is None else second / (1.0 + size)

    def _norm(self, *g: Array) -> Array:
        return steps.norm(self.rounding.way, dict(zip(self.s.fast, g, strict=True)))

    def _clipped(self, event: Write, g: dict[str, Array]) -> dict[str, Array]:
        """g within its bound (DEEP-9)."""
        s, way = self.s, self.rounding.way
        if s.clip == "none":
            return g
        if s.clip == "soft":
            return {
                name: self.hook(
                    f"clipped/{name}",
                    event,
                    partial(_soft, way, s.clip_norm, rank(name)),
                    each,
                )
                for name, each in g.items()
            }
        size = self._norm(*g.values())
        return {
            name: self.hook(
                f"clipped/{name}", event, partial(_hard, way, s.clip_norm, rank(name)), each, size
            )
            for name, each in g.items()
        }

    def _network(
        self, event: Write, V: Tensors, g: Mapping[str, Array], m: Any, a: Any
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """V and the step of a network in the place of S (DEEP-37)."""
        s, r = self.s, self.rounding
        f = Function(s.deep_momentum.function, r.way, r.touch)

        def op(name: str, compute: Callable[..., Array], *args: Any) -> Array:
            return self.hook(name, event, compute, *args)

        before = self._each_constant(V)
        after, moves = network.step(s, f, op, r.store, before, g, m, a)
        return self._each_constant(after), self._each_constant(moves)

    def _moved(
        self, event: Write, name: str, g: Array, S: Any, m: Any, a: Any
    ) -> tuple[Array, Array]:
        """S and U of one tensor (DEEP-11, DEEP-12)."""
        s, way, axes = self.s, self.rounding.way, rank(name)
        own = -g if s.c.momentum_sign == "minus" else g
        (before,) = self.constant(S)
        after = self.hook(f"S/{name}", event, self._momentum(axes), m, before, a, own)
        (after,) = self.constant(after)
        ahead = after
        if s.c.argument == "nesterov":
            ahead = steps.momentum(way, m, after, None, own, axes)
        (U,) = self.constant(self._direction(event, name, ahead))
        return after, U

    def _momentum(self, axes: int) -> Callable[..., Array]:
        way, store = self.rounding.way, self.rounding.store
        return lambda m, S, a, g: store(steps.momentum(way, m, S, a, g, axes))

    def _after(self, event: Write, axes: int) -> Callable[..., Array]:
        """W after a write, from retain, W before it, b and U (DEEP-13)."""
        way, c, store = self.rounding.way, self.s.c, self.rounding.store
        kind, touch, parts = self.s.retention, self.rounding.touch, self.s.parts
        decaying = parts.get("before", retentions.before)
        left = parts.get("after", retentions.after)
        if axes != 2 or kind.kind == "l2" or (kind.lag and not event.first):
            return lambda r, W, b, U: store(steps.weights(way, c, r, W, b, U, axes))

        def after(r: Any, W: Array, b: Any, U: Array) -> Array:
            moved = steps.weights(way, c, r, decaying(kind, touch, W), b, U, axes)
            return store(left(kind, touch, W, moved))

        return after

    def _direction(self, event: Write, name: str, ahead: Array) -> Array:
        """U of one tensor, the steps of Newton-Schulz one by one where they are ops (DEEP-12)."""
        s, rounding, axes = self.s, self.rounding, rank(name)
        if not (self.iterates and axes == 2 and s.c.has_newton_schulz):
            compute = partial(_direction, s, rounding, axes)
            return self.hook(f"U/{name}", event, compute, ahead)
        way, settings = rounding.way, s.c.newton_schulz_settings
        X = self.hook(f"X0/{name}", event, lambda S: matrices.normalise(way, S, settings), ahead)
        for i, row in enumerate(coefficient_table(settings), start=1):
            X = self.hook(f"X{i}/{name}", event, partial(_polynomial, way, row), X)
        return self.hook(
            f"U/{name}",
            event,
            lambda X, S: matrices.newton_schulz(way, S, settings, X=X),
            X,
            ahead,
        )

    def constant(self, *arrays: Any) -> Sequence[Any]:
        """Arrays without a derivative, unless the outer gradient is full (DEEP-19)."""
        if self.s.outer_gradient == "full":
            return arrays
        return [None if each is None else ops.stop_gradient(each) for each in arrays]

    def _each_constant(self, tensors: Tensors) -> dict[str, Array]:
        return dict(zip(tensors, self.constant(*tensors.values()), strict=True))


def _soft(way: Arithmetic, bound: float, axes: int, g: Array) -> Array:
    return steps.soft(way, bound, g, axes)


def _hard(way: Arithmetic, bound: float, axes: int, g: Array, size: Array) -> Array:
    return steps.scaled(way, steps.hard(bound, size), g, axes)


def _polynomial(way: Arithmetic, row: Any, X: Array) -> Array:
    return matrices.polynomial(way, X, row)


def _direction(s: Settings, rounding: Rounding, axes: int, S: Array) -> Array:
    def orthogonalised(S: Array) -> Array:
        return matrices.newton_schulz(
            rounding.way, rounding.argument(S), s.c.newton_schulz_settings
        )

    return steps.direction(s, rounding.way, S, axes, orthogonalised, rounding.touch)
