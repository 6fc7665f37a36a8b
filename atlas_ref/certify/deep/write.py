"""One write of a deep memory on balls: loss, clip, momentum, direction, weights (CERT-17).

Written from DEEP-7 to DEEP-13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flint import arb

from atlas_ref.certify.deep import biases, network, retentions
from atlas_ref.certify.deep.functions import Function
from atlas_ref.certify.deep.network import flat
from atlas_ref.certify.functions import inverse
from atlas_ref.certify.matrix import Matrix, each, norm, sane, scaled, stacked, total
from atlas_ref.certify.newton_schulz import newton_schulz

Tensors = Mapping[str, Matrix]

#: The guard beside a norm: the float64 nearest to the printed decimal (CERT-3).
GUARD = 1e-8

#: Parameters of DEEPCASE-2 that a case may leave out.
DEFAULTS: dict[str, Any] = {
    "memory": {"kind": "mlp"},
    "chunk": 1,
    "window": None,
    "span": None,
    "bias": {"kind": "l2"},
    "retention": {"kind": "l2"},
    "window_weights": {"kind": "ones"},
    "reduction": "sum",
    "coupling": "per_sample",
    "fast": "matrices",
    "vectors": "frozen",
    "clip": "none",
    "clip_norm": 1.0,
    "adaptive": False,
    "outer_gradient": "full",
    "phase": "both",
    "training": True,
    "unfinished": "wait",
    "memory_reset": "sequence",
    "momentum_reset": "sequence",
    "deep_momentum": None,
}


class Pair(NamedTuple):
    """A token that a write looks at: its key after its norm, value, and the weight it brought."""

    key: Matrix
    value: Matrix
    gate: Matrix | None
    threshold: Matrix | None = None


class Gates(NamedTuple):
    """Gates of a write; None for 1."""

    retain: Matrix | None
    momentum: Matrix | None
    step: Matrix | None
    second: Matrix | None


def fast(chosen: Any, shapes: Mapping[str, tuple[int, ...]], vectors: str) -> list[str]:
    """Tensors that a write moves (DEEP-3)."""
    inner = ("W", "W_in", "W_value", "W_out")
    wanted = {
        "all": list(shapes),
        "matrices": [name for name in shapes if len(shapes[name]) == 2],
        "mlp": [name for name in shapes if name in inner or name[2:].isdigit()],
    }.get(chosen if isinstance(chosen, str) else "", chosen)
    return [
        name
        for name in shapes
        if name in wanted and (len(shapes[name]) == 2 or vectors != "frozen")
    ]


class Writer:
    """Writes of a case.

    Args:
        parameters: of DEEPCASE-2, defaults filled in.
        convention: in force.
    """

    def __init__(self, parameters: Mapping[str, Any], convention: Any, function: Function) -> None:
        self.s, self.c, self.m = parameters, convention, function
        self.shapes = function.shapes()
        self.fast = fast(parameters["fast"], self.shapes, parameters["vectors"])
        self.cut = parameters["outer_gradient"] != "full"
        own = parameters["deep_momentum"]
        entries = sum(math.prod(self.shapes[name]) for name in self.fast)
        self.network = None if own is None else network.network(own, entries)
        self.carried = [] if self.network is None else list(self.network[0].shapes())

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that a call brings, of the network behind `momentum/`."""
        if self.network is not None and name.startswith("momentum/"):
            return self.network[0].shapes()[name.removeprefix("momentum/")]
        return self.shapes[name]

    def write(
        self,
        W: Tensors,
        S: Tensors,
        reference: Tensors,
        rows: Sequence[tuple[Tensors, Sequence[Pair], Sequence[Matrix]]],
        gates: Gates,
        *,
        first: bool = True,
    ) -> tuple[dict[str, Matrix], dict[str, Matrix]]:
        """W and S after a write.

        Args:
            rows: of each row that shares the memory: slow tensors, pairs and their weights.
            first: whether the write is the first of its span (DEEP-39).
        """
        if self.c.decay == "before_error" and gates.retain is not None:
            reference = {name: scaled(gates.retain, x) for name, x in reference.items()}
        g = self._gradient(reference, rows)
        step, second = gates.step, gates.second
        if self.s["adaptive"] and step is not None:
            divisor = inverse(self._constant(self._norm(g)).plus(arb(1)))
            step = scaled(divisor, step)
            second = None if second is None else scaled(divisor, second)
        a, b = {
            "momentum": (step, None),
            "memory": (None, step),
            "both": (step, step),
            "split": (step, second),
            "none": (None, None),
        }[self.c.rate]
        after_S, moves = self._carried(S, self._clipped(g), gates.momentum, a)
        after_W = {}
        for name in self.fast:
            ahead, own = moves[name]
            moved = _times(b, self._constant(self._direction(name, ahead, own, gates.momentum)))
            down = (self.c.momentum_sign == "plus") == (self.c.direction == "descent")
            after_W[name] = sane(self._retained(name, gates.retain, W[name], moved, down, first))
        return after_W, after_S

    def _carried(
        self, S: Tensors, g: Tensors, m: Matrix | None, a: Matrix | None
    ) -> tuple[dict[str, Matrix], dict[str, tuple[Matrix, Matrix]]]:
        """S after a write, and what moves each tensor beside its signed gradient (DEEP-11, DEEP-37)."""
        minus = self.c.momentum_sign == "minus"
        signed = {name: -x if minus else x for name, x in g.items()}
        if self.network is not None and m is not None:
            V = {name: self._constant(x) for name, x in S.items()}
            after, moves = network.step(self.network, V, g, m, a, minus=minus)
            kept = {name: sane(self._constant(x)) for name, x in after.items()}
            return kept, {name: (self._constant(x), signed[name]) for name, x in moves.items()}
        kept = {}
        for name, own in signed.items():
            entering = _times(a, own)
            if m is not None and name in S:
                entering = scaled(m, S[name]) + entering
            kept[name] = self._constant(entering)
        return kept, {name: (x, signed[name]) for name, x in kept.items()}

    def _retained(
        self, name: str, retain: Any, W: Matrix, moved: Matrix, down: bool, first: bool
    ) -> Matrix:
        """W after a write, of a matrix what its retention makes of it (DEEP-13, DEEP-30)."""
        own = self.s["retention"]
        linear = own.get("lag", False) and not first
        if own["kind"] == "l2" or len(self.shapes[name]) != 2 or linear:
            return _times(retain, W) - moved if down else _times(retain, W) + moved
        before = _times(retain, retentions.decaying(own, W))
        return retentions.kept(own, W, before - moved if down else before + moved)

    def mapped(self, weights: Tensors) -> dict[str, Matrix]:
        """The fast tensors with which the function computes (DEEP-33)."""
        own = self.s["retention"]
        return {
            name: retentions.mapped(own, x) if len(self.shapes[name]) == 2 else x
            for name, x in weights.items()
        }

    def _constant(self, x: Matrix) -> Matrix:
        """The matrix without its parents, unless the outer gradient is full (DEEP-19)."""
        return Matrix(x.value) if self.cut else x

    def _gradient(
        self, reference: Tensors, rows: Sequence[tuple[Tensors, Sequence[Pair], Sequence[Matrix]]]
    ) -> dict[str, Matrix]:
        """g of every fast tensor (DEEP-7)."""
        scale = self.c.gradient_scale
        factor = arb(2) / self.m.d_out if scale == "2/d_out" else arb(scale)
        if self.s["reduction"] == "mean":
            factor = factor / (len(rows) * len(rows[0][1]))
        reference = self.mapped(reference)
        terms: dict[str, list[Matrix]] = {name: [] for name in self.fast}
        for slow, pairs, weights in rows:
            p = {**slow, **reference}
            for pair, weight in zip(pairs, weights, strict=True):
                v = self.m.apply(p, pair.key)
                bias, plus = self.s["bias"], self.c.value_sign == "plus"
                e = biases.error(bias, v["y"], pair.value, plus=plus)
                slope = biases.half_slope(bias, e, pair.threshold)
                gy = scaled(weight, slope).times(factor)
                for name, x in self.m.gradient(p, v, gy, self.fast).items():
                    terms[name].append(x)
        return {name: total(each, each[0].rows, each[0].columns) for name, each in terms.items()}

    def _norm(self, g: Tensors) -> Matrix:
        """|g| over all fast tensors."""
        return norm(stacked([flat(x) for x in g.values()]))

    def _clipped(self, g: dict[str, Matrix]) -> dict[str, Matrix]:
        """g within its bound (DEEP-9)."""
        bound = arb(self.s["clip_norm"])
        if self.s["clip"] == "hard":
            factor = each(
                self._norm(g),
                lambda z: (bound / (z + arb(GUARD))).min(arb(1)),
                lambda z: _hard_slope(bound, z + arb(GUARD)),
            )
            return {name: scaled(factor, x) for name, x in g.items()}
        if self.s["clip"] == "soft":
            return {name: _soft(bound, x) for name, x in g.items()}
        return g

    def _direction(self, name: str, S: Matrix, own: Matrix, m: Matrix | None) -> Matrix:
        """U (DEEP-12)."""
        settings = self.c.newton_schulz
        if settings != "none" and settings.argument == "nesterov":
            S = own + S if m is None else own + scaled(m, S)
        if len(self.shapes[name]) == 2:
            return S if settings == "none" else newton_schulz(S, settings)
        if self.s["vectors"] == "unit":
            return scaled(inverse(norm(S).plus(arb(GUARD))), S)
        return S


def _times(factor: Matrix | None, x: Matrix) -> Matrix:
    return x if factor is None else scaled(factor, x)


def _hard_slope(bound: arb, size: arb) -> arb:
    """The derivative of min(1, bound / size); both answers where a ball holds the corner."""
    if size < bound:
        return arb(0)
    slope = -bound / (size * size)
    return slope if size > bound else slope * arb(0.5, 0.5)


def _soft(bound: arb, g: Matrix) -> Matrix:
    """g at the length (bound / 2) (1 + tanh(2 |g| / bound)); zero as it is."""
    size = norm(g)
    if size.value[0, 0].is_zero():
        return g
    length = each(
        size,
        lambda z: bound / 2 * (1 + (2 * z / bound).tanh()),
        lambda z: 1 - (2 * z / bound).tanh() ** 2,
    )
    return scaled(scaled(inverse(size), length), g)
