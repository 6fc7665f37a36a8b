"""Arrays of a case for its loop, where projections, gates, weights and features are ops.

Specified in specs/replay.md (REPLAY-1 to REPLAY-6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.family.prepare import Prepared, structure
from atlas_ref.oracle.family.state import Inputs, Structure
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Traced
from atlas_ref.parts import window
from atlas_ref.parts.norms import key_of_gates
from atlas_ref.types import Array
from tape import ops, plain

#: The hook at every op: (op, token or None for all tokens at once, function that computes it, its
#: arguments, counts=which entries have an influence) -> the value with which the loop continues.
Take = Callable[..., Array]

#: The ops that level token computes from in/x, in this order.
PROJECTED = ("k", "v", "q", "retain", "momentum", "step_size", "window_weights", "window_gate")


def traced_of(case: Case) -> Traced:
    """The loop of a case, op by op; `trace.require_traced` refuses a case without one."""
    traced = SUBJECTS[case.header.rule].traced
    assert traced is not None
    return traced


def leading(case: Case) -> int:
    """The number of leading axes of a case's tensors."""
    return traced_of(case).leading(case)


class TracedArrays(Prepared):
    """The arrays of a case as its clauses print them, with the hook at every op.

    S and the momenta have the sign of the case, and the factors of one op stand apart.

    Args:
        take: the hook, see `Take`.
        way: the arithmetic of projections, gates and a learned residual.
    """

    def __init__(
        self, case: Case, inputs: Mapping[str, Array], take: Take, way: Arithmetic
    ) -> None:
        super().__init__(case.header, inputs, way=way)
        self.take, self.token = take, case.header.level == "token"
        if self.token:
            self._project(case.convention)

    def stack(self, conventions: Sequence[Convention]) -> Inputs:
        """The inputs of the loop for one convention."""
        (c,) = conventions
        inputs = super().stack(conventions)
        sign = -ops.ones_like(inputs.M0, shape=(1, 1)) if self._subtracts(c) else None
        return inputs._replace(share=self._share(c), sign=sign, exists=self._exists())

    def _project(self, c: Convention) -> None:
        """Keys, values, queries and gates from in/x (CONV-28, GATES-7)."""
        x = ops.expand_dims(self.inputs["in/x"], 1)  # (B, 1, T, d_model)
        for name in ("k", "v", "q"):
            W = ops.transpose(self.inputs[f"in/param/W_{name.upper()}"])
            value = self.take(name, None, self.way.matmul, x, W)
            self.arrays["projected", f"W_{name.upper()}"] = value
        pair = ops.concatenate([key_of_gates(self.k(c), c), self.v(c)], axis=-1)
        for name in ("retain", "momentum", "step_size"):
            if f"in/param/W_{name}" in self.inputs:
                value = self.take(name, None, self._gate, name, pair)
                self.arrays["gate", name, *self._gating(c)] = value

    def _gate(self, name: str, pair: Array) -> Array:
        """A gate from key and value (GATES-7)."""
        W, b = self.inputs[f"in/param/W_{name}"], self.inputs[f"in/param/b_{name}"]
        z = self.way.matmul(pair, ops.transpose(W)) + ops.expand_dims(b, -2)
        value = ops.softplus(z) if name == "step_size" else ops.sigmoid(z)
        return value[..., 0] if W.shape[-2] == 1 else value

    # -- keys, queries, targets --------------------------------------------------------------------

    def _keys(self, c: Convention) -> Array:
        return self.take("phi_k", None, super()._keys, c)

    def _queries(self, c: Convention) -> Array:
        return self.take("phi_q", None, super()._queries, c)

    def _map(self, x: Array, norm: str, c: Convention) -> Array:
        """Norm and feature map; a row that is not finite stays that and spoils no other."""
        finite = np.isfinite(plain(x)).all(axis=-1, keepdims=True)
        if finite.all():
            return super()._map(x, norm, c)
        return ops.where(finite, super()._map(ops.where(finite, x, 0.0), norm, c), np.nan)

    def _surrogate(self, k: Array, v: Array, c: Convention) -> Array:
        if k is not self.k(c):  # of tokens before the call
            return super()._surrogate(k, v, c)
        return self.take("surrogate", None, super()._surrogate, k, v, c)

    # -- weights, rates, signs ---------------------------------------------------------------------

    def _has_scale(self, c: Convention) -> bool:
        return self.rule.has_error

    def _weights(self, c: Convention) -> Array:
        return super()._weights(c) if self.rule.has_window else None

    def _window_tensors(self, c: Convention) -> tuple[Array, Array]:
        weights, gate = super()._window_tensors(c)
        if not self.token:
            return weights, gate
        k, size = self.k(c), self.header.window
        if weights is None and gate is None:
            weights = window.by_lag(window.Uniform(), {}, window=size, heads=1, like=k)
        if weights is not None:
            weights = weights + ops.zeros_like(k, shape=(*k.shape[:-1], 1))
            weights = self.take("window_weights", None, _same, weights)
        return weights, None if gate is None else self.take("window_gate", None, _same, gate)

    def _subtracts(self, c: Convention) -> bool:
        """Whether S subtracts the gradient (CONV-8)."""
        return self.rule.has_momentum and c.momentum_sign == "minus"

    def _sign(self, x: Array, c: Convention) -> Array:
        """A rate, None for 1, with the sign of the gradient in S."""
        if not self._subtracts(c):
            return x
        return -ops.ones_like(self.k(c)[..., :1, None]) if x is None else -x

    def _a(self, c: Convention) -> Array:
        return self._sign(self._step(c), c)

    def _b(self, c: Convention) -> Array:
        return self._sign(super()._b(c), c)

    def _S0(self, c: Convention) -> Array:
        return self._matrix("in/S0", c)

    def _momenta(self, c: Convention) -> Array:
        return self._matrix("in/window_momentum", c)


def _same(x: Array) -> Array:
    return x


def prepare(
    case: Case, inputs: Mapping[str, Array], take: Take, way: Arithmetic
) -> tuple[Structure, Inputs]:
    """What decides the control flow of a case, and the arrays of its loop."""
    c = case.convention
    return structure(c, case.header), TracedArrays(case, inputs, take, way).stack([c])
