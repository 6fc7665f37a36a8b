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
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program.context import Rows, no_label
from atlas_ref.oracle.program.hook import Hook
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.parts.newton_schulz import coefficient_table
from atlas_ref.types import Array
from tape import ops

Tensors = Mapping[str, Array]


class Tokens(NamedTuple):
    """What a write looks at: its tokens oldest first, their weights, slow tensors and gates."""

    keys: Array
    values: Array
    weights: Array
    slow: Tensors
    gates: Mapping[str, Any]
    thresholds: Any = None


class Writer(NamedTuple):
    """The write of a memory function, whose ops go through a hook."""

    m: Function
    hook: Hook

    @property
    def s(self) -> Settings:
        settings: Settings = self.hook.context.settings
        return settings

    @property
    def rounding(self) -> Rounding:
        rounding: Rounding = self.hook.context.rounding
        return rounding

    def write(
        self, event: Write, W: Tensors, S: Tensors, reference: Tensors, rows: Tokens
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """W and S after a write."""
        s, c, r = self.s, self.s.c, rows.gates["retain"]
        reference = self._each_constant(reference)
        if c.decay == "before_error":
            reference = {
                name: matrices.times(steps.factor(r, rank(name)), x)
                for name, x in reference.items()
            }
        touch = self.rounding.touch
        reference = self.hook.part(
            "retention/seen", retentions.weights_of_function, s.retention, touch, reference
        )
        decays = ("in/retain",) if c.decay == "before_error" and r is not None else ()
        reference = {
            name: self._note(event, x, self._reference_op(name), *decays)
            for name, x in reference.items()
        }
        slow = self._each_constant(rows.slow)
        g = self._gradient(event, {**slow, **reference}, rows)
        h, second = self._steps(event, g, rows.gates)
        a, b = steps.rates(c, h, second)
        bound = self._clip(event, g)
        m, after = rows.gates["momentum"], dict[str, Array]()
        kept, moves = dict[str, Array](), dict[str, Array]()
        if s.deep_momentum:
            bounded = {name: bound(name) for name in s.fast}
            kept, moves = self._network(event, S, bounded, m, a)
        for name in s.fast:
            if s.deep_momentum:
                ahead = self._note(event, moves[name], "move/y")
                (U,) = self.constant(self._direction(event, name, ahead))
            else:
                kept[name], U = self._momentum_and_direction(
                    event, name, bound(name), S.get(name), m, a
                )
            before = self._note(event, W[name], f"W/{name}[t-1]")
            compute = self._after(event, rank(name))
            after[name] = self.hook(f"W/{name}", event.token, compute, before, U, b, r)
        return after, kept

    def _note(self, event: Write, value: Any, *names: str) -> Any:
        return self.hook.context.note(value, event.token, *names)

    def _reference_op(self, name: str) -> str:
        """The weights at which a write looks, by the name of their op."""
        return f"W/{name}[{'t-1' if self.s.c.reference == 'running' else 'start'}]"

    def _gradient_op(self, name: str) -> str:
        """The op that is a gradient within its bound."""
        return f"{'gradient' if self.s.clip == 'none' else 'clipped'}/{name}"

    def _gradient(self, event: Write, p: Tensors, rows: Tokens) -> dict[str, Array]:
        """g of every fast tensor, after the forward pass and the residual (DEEP-7)."""
        s, hook, touch = self.s, self.hook, self.rounding.touch
        place = Rows(event.token, len(event.rows), s.window)
        keys, values, weights = self.constant(rows.keys, rows.values, rows.weights)
        v = functions.apply(
            self.m,
            p,
            keys,
            lambda name, compute, *args: hook(f"write/{name}", place, compute, *args),
        )
        e = hook("residual", place, partial(steps.residual, s, touch, hook.part), v["y"], values)
        own = () if rows.thresholds is None else self.constant(rows.thresholds)
        gy = hook(
            "cotangent",
            place,
            partial(steps.cotangent, s, touch, hook.part),
            e,
            weights,
            *own,
        )
        every = functions.gradient(self.m, p, v, keys, gy, s.fast)
        between = [f"write/{name}" for name in functions.read_back(s.function, v)]
        sources = ("cotangent", *between, *map(self._reference_op, s.fast), "in/k[t-j]")
        shared = s.shares_memory and len(e.shape) > 2
        return {
            name: hook(
                f"gradient/{name}",
                event.token,
                lambda g: steps.over_rows(self.rounding.way, g) if shared else g,
                self._note(event, every[name], *sources),
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
        (size,) = self.constant(self.hook("norm", event.token, self._norm, *g.values()))
        second = None if second is None else second / (1.0 + size)
        return (
            self._note(event, h / (1.0 + size), "in/step_size", "norm"),
            self._note(event, second, "in/step_size_memory", "norm"),
        )

    def _norm(self, *g: Array) -> Array:
        return steps.norm(self.rounding.way, dict(zip(self.s.fast, g, strict=True)))

    def _clip(self, event: Write, g: dict[str, Array]) -> Callable[[str], Array]:
        """What bounds g of a fast tensor (DEEP-9)."""
        s, way = self.s, self.rounding.way
        if s.clip == "none":
            return lambda name: g[name]
        size = None
        if s.clip == "hard":
            names = [f"gradient/{name}" for name in g]
            size = self._note(event, self._norm(*g.values()), *names)

        def bound_tensor(name: str) -> Array:
            bounds = () if size is None else (size,)
            how = _soft if size is None else _hard
            compute = partial(how, way, s.clip_norm, rank(name))
            return self.hook(f"clipped/{name}", event.token, compute, *bounds, g[name])

        return bound_tensor

    def _network(
        self, event: Write, V: Tensors, g: Mapping[str, Array], m: Any, a: Any
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """V and the step of a network in the place of S (DEEP-37)."""
        s, r = self.s, self.rounding
        f = Function(s.deep_momentum.function, r.way, r.touch)

        before = self._each_constant(V)
        before = {name: self._note(event, x, f"S/{name}[t-1]") for name, x in before.items()}
        step = network.Step(s, f, self.hook, event.token)
        after, moves = step.run(before, g, m, a, [self._gradient_op(name) for name in g])
        return self._each_constant(after), self._each_constant(moves)

    def _momentum_and_direction(
        self, event: Write, name: str, g: Array, S: Any, m: Any, a: Any
    ) -> tuple[Array, Array]:
        """S and U of one tensor (DEEP-11, DEEP-12)."""
        s, way, axes = self.s, self.rounding.way, rank(name)
        bounded = self._gradient_op(name)
        own = self._note(event, -g if s.c.momentum_sign == "minus" else g, bounded)
        (before,) = self.constant(
            self._momentum_before(event, name, S, own) if m is not None else None
        )
        after = self.hook(f"S/{name}", event.token, self._momentum(axes), own, before, m, a)
        (after,) = self.constant(after)
        ahead = after
        if s.c.argument == "nesterov":
            ahead = steps.momentum(way, m, after, None, own, axes)
            gate = () if m is None else ("in/momentum",)
            ahead = self._note(event, ahead, f"S/{name}", bounded, *gate)
        (U,) = self.constant(self._direction(event, name, ahead))
        return after, U

    def _momentum(self, axes: int) -> Callable[..., Array]:
        way = self.rounding.way
        return lambda g, S, m, a: steps.momentum(way, m, S, a, g, axes)

    def _momentum_before(self, event: Write, name: str, S: Any, like: Array) -> Any:
        """S before a write: None where it is zero, unless somebody asks where it comes from."""
        if S is None and self.hook.context.label is not no_label:
            S = ops.zeros_like(like)
        return self._note(event, S, f"S/{name}[t-1]")

    def _after(self, event: Write, axes: int) -> Callable[..., Array]:
        """W after a write, from W before it, U, b and retain (DEEP-13)."""
        way, c, part = self.rounding.way, self.s.c, self.hook.part
        kind, touch = self.s.retention, self.rounding.touch
        if axes != 2 or kind.kind == "l2" or (kind.lag and not event.first):
            return lambda W, U, b, r: steps.weights(way, c, r, W, b, U, axes)

        def after(W: Array, U: Array, b: Any, r: Any) -> Array:
            decaying = part("retention/before", retentions.before, kind, touch, W)
            moved = steps.weights(way, c, r, decaying, b, U, axes)
            return part("retention/after", retentions.after, kind, touch, W, moved)

        return after

    def _direction(self, event: Write, name: str, ahead: Array) -> Array:
        """U of one tensor, the steps of Newton-Schulz one by one where they are ops (DEEP-12)."""
        s, rounding, axes, t = self.s, self.rounding, rank(name), event.token
        if self.hook.unasked or axes != 2 or not s.c.has_newton_schulz:
            return self.hook(f"U/{name}", t, partial(_direction, s, rounding, axes), ahead)
        way, settings = rounding.way, s.c.newton_schulz_settings
        X = self.hook(f"X0/{name}", t, lambda S: matrices.normalise(way, S, settings), ahead)
        for i, row in enumerate(coefficient_table(settings), start=1):
            X = self.hook(f"X{i}/{name}", t, partial(_polynomial, way, row), X)
        if settings.scale != "norm" and settings.guard != "return":
            ahead = self._note(event, ahead)  # of which the image of X_n takes nothing
        return self.hook(
            f"U/{name}", t, lambda X, S: matrices.newton_schulz(way, S, settings, X=X), X, ahead
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


def _hard(way: Arithmetic, bound: float, axes: int, size: Array, g: Array) -> Array:
    return steps.scale(way, steps.hard(bound, size), g, axes)


def _polynomial(way: Arithmetic, row: Any, X: Array) -> Array:
    return matrices.polynomial(way, X, row)


def _direction(s: Settings, rounding: Rounding, axes: int, S: Array) -> Array:
    def orthogonalise(S: Array) -> Array:
        return matrices.newton_schulz(
            rounding.way, rounding.argument(S), s.c.newton_schulz_settings
        )

    return steps.direction(s, rounding.way, S, axes, orthogonalise, rounding.touch)
