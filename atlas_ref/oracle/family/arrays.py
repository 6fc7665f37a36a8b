"""The arrays of a case under one convention: its sequence, gates, rates, weights and matrices.

Every axis that is only a number is part of an array. Written from the clauses of
specs/conventions.md (CONV-4 to CONV-25, CONV-34 to CONV-36).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.family.steps import times
from atlas_ref.parts import feature_maps, gates, window
from atlas_ref.parts.norms import keys_normalised
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array
from tape import ops


def norm_settings(c: Convention, kind: str) -> tuple[Any, ...]:
    """What the norm of keys or of queries depends on (CONV-24)."""
    return (kind,) if kind == "none" else (kind, c.norm_eps, c.norm_guard)


def learns(c: Convention) -> bool:
    """Whether a learned vector stands for the residual, which then needs no memory (SURROGATE-3)."""
    return c.reference == "surrogate"


class Arrays:
    """The arrays of a case under a convention; what many conventions share is computed once.

    The numbers of M0, S0 and the other matrices are read in the layout and momentum_sign of each
    convention.

    Args:
        header: of the case.
        inputs: tensors of one dtype, or tape variables; masks as they are.
        way: the arithmetic of the projections.
        touch: changes keys and queries before and after their map, and computed gates. Members of
            the ensemble put the rounding of functions there that have no products to reorder.
    """

    def __init__(
        self,
        header: Any,
        inputs: Mapping[str, Array],
        *,
        way: Arithmetic = PLAIN,
        touch: Callable[[Array], Array] = lambda x: x,
    ) -> None:
        self.header, self.inputs, self.way, self.touch = header, inputs, way, touch
        self.rule = FAMILY[header.rule]
        self.arrays: dict[Any, Array] = {}
        self.phi = {
            name.removeprefix("in/phi/"): value
            for name, value in inputs.items()
            if name.startswith("in/phi/")
        }
        if "in/proj" in inputs:
            self.phi["proj"] = inputs["in/proj"]

    # -- the sequence, at either level -------------------------------------------------------------

    def _mask(self, name: str, absent: bool) -> Array:
        T = self.inputs["in/k" if "in/k" in self.inputs else "in/x"].shape[-2]
        return (
            np.full(T, absent)
            if name not in self.inputs
            else np.asarray(self.inputs[name]).astype(bool)
        )

    def _gating(self, c: Convention) -> tuple[Any, ...]:
        """The settings that computed gates depend on: the key's norm, where it comes before phi."""
        token = self.header.level == "token"
        return (
            norm_settings(c, c.k_norm if c.norm_place == "before_phi" else "none") if token else ()
        )

    def _project_tokens(self, name: str) -> Array:
        key = ("projected", name)
        if key not in self.arrays:
            x = ops.expand_dims(self.inputs["in/x"], 1)
            self.arrays[key] = self.way.matmul(x, ops.transpose(self.inputs[f"in/param/{name}"]))
        return self.arrays[key]

    def k(self, c: Convention) -> Array:
        return self._project_tokens("W_K") if self.header.level == "token" else self.inputs["in/k"]

    def v(self, c: Convention) -> Array:
        return self._project_tokens("W_V") if self.header.level == "token" else self.inputs["in/v"]

    def _keys(self, c: Convention) -> Array:
        return self._map(self.k(c), c.k_norm, c)

    def _queries(self, c: Convention) -> Array:
        q = self._project_tokens("W_Q") if self.header.level == "token" else self.inputs["in/q"]
        mapped = self._map(q, c.q_norm, c)
        return mapped if c.query_scale == 1.0 else mapped * (1.0 / math.sqrt(q.shape[-1]))

    def _map(self, x: Array, norm: str, c: Convention) -> Array:
        feature_map = self.header.feature_map
        if feature_map.kind == "identity":
            return x if norm == "none" else self.touch(keys_normalised(x, norm, c))
        if c.norm_place == "before_phi":
            x = keys_normalised(x, norm, c)
            return self.touch(feature_maps.apply(feature_map, self.phi, self.touch(x)))
        mapped = feature_maps.apply(feature_map, self.phi, self.touch(x))
        return self.touch(keys_normalised(mapped, norm, c))

    def _aim(self, c: Convention) -> tuple[Any, ...]:
        """The settings that targets depend on."""
        if not (learns(c) and self.rule.has_error):
            return (c.value_sign,)
        return (
            "surrogate",
            *norm_settings(c, c.k_norm if c.norm_place == "before_phi" else "none"),
        )

    def _targets(self, k: Array, v: Array, c: Convention) -> Array:
        """Targets, of which a residual subtracts; minus a learned residual (CONV-10, SURROGATE-3)."""
        if not self.rule.has_error:
            return v
        if learns(c):
            return -self._surrogate(k, v, c)
        return -v if c.value_sign == "plus" else v

    def _surrogate(self, k: Array, v: Array, c: Convention) -> Array:
        """W silu([k; v]), of projections of its own where the case has them (SURROGATE-2)."""
        W = self.inputs["in/param/W_surrogate"]
        if "in/param/W_K_surrogate" in self.inputs:
            k, v = self._project_tokens("W_K_surrogate"), self._project_tokens("W_V_surrogate")
        elif c.norm_place == "before_phi":
            k = self.touch(keys_normalised(k, c.k_norm, c)) if c.k_norm != "none" else k
        z = ops.concatenate([k, v], axis=-1)
        return self.way.matmul(self.touch(z * ops.sigmoid(z)), ops.transpose(W))

    # -- gates, rates, weights ---------------------------------------------------------------------

    def column(self, name: str, c: Convention) -> Array:
        """A gate as (..., T, 1 or d_out, 1); None where the case has none."""
        value = self._compute(name, c) if self.header.level == "token" else self._input(name)
        bounds = {"retain": c.retain_bounds, "step_size": c.step_bounds}  # CONV-66
        value = gates.bounded(value, bounds.get(name, "none"))
        if value is None:
            return None
        return gates.as_column(value, per_dimension=len(value.shape) == len(self.k(c).shape))

    def _input(self, name: str) -> Array:
        if f"in/log_{name}" in self.inputs:
            return ops.exp(self.inputs[f"in/log_{name}"])
        return self.inputs.get(f"in/{name}")

    def _compute(self, name: str, c: Convention) -> Array:
        if f"in/param/W_{name}" not in self.inputs:
            return None
        key = ("gate", name, *self._gating(c))
        if key not in self.arrays:
            params = gates.GateSet(
                **{
                    name: gates.GateParams.trusted(
                        W=self.inputs[f"in/param/W_{name}"], b=self.inputs[f"in/param/b_{name}"]
                    )
                }
            )
            k = keys_normalised(self.k(c), self._gating(c)[0], c)
            self.arrays[key] = self.touch(gates.compute(params, k, self.v(c))[name])
        return self.arrays[key]

    def _retain(self, c: Convention) -> Array:
        value = None if c.gate == "none" else self.column("retain", c)
        return value if value is None else gates.multiplier(value, c.gate)

    def _decay(self, c: Convention) -> Array:
        return self._retain(c) if c.decay == "before_error" else None

    def _a(self, c: Convention) -> Array:
        """The factor of the gradient in S; under momentum_kind average 1 - m is part of it."""
        a, share = self._step(c), self._share(c)
        return share if a is None else times(share, a)

    def _step(self, c: Convention) -> Array:
        """The step size of the gradient in S (CONV-7)."""
        gated = c.rate in ("momentum", "both", "split") and self.rule.has_error
        return self.column("step_size", c) if gated else None

    def _share(self, c: Convention) -> Array:
        """The share 1 - m of the gradient under momentum_kind average (CONV-64)."""
        if c.momentum_kind != "average" or not self.rule.has_momentum:
            return None
        m = self.column("momentum", c)
        return None if m is None else 1.0 - m

    def _b(self, c: Convention) -> Array:
        if not self.rule.has_error:
            return None
        b = self.column("step_size", c) if c.rate in ("memory", "both") else None
        b = self.column("step_size_memory", c) if c.rate == "split" else b
        if c.direction == "descent":
            return b
        return -b if b is not None else -ops.ones_like(self.k(c)[..., :1, None])

    def _number(self, c: Convention) -> float:
        if not self.rule.has_error:
            return 1.0
        return 2.0 / self.v(c).shape[-1] if isinstance(c.gradient_scale, str) else c.gradient_scale

    def _momentum_first(self, c: Convention) -> bool:
        return self.rule.has_window and c.order == "momentum_then_window"

    def _has_scale(self, c: Convention) -> bool:
        """Whether gradient_scale is a factor beside the window weights."""
        return self._momentum_first(c)

    def _scale(self, c: Convention) -> Array:
        if not self._has_scale(c):
            return None
        return ops.ones_like(self.k(c), shape=(1, 1)) * self._number(c)

    def _weights(self, c: Convention) -> Array:
        """(..., T, c, 1), oldest first, with edge and gradient_scale (CONV-15)."""
        weights = self._by_lag(c)
        if (
            self.rule.has_window
            and c.window_edge == "renormalise"
            and self.header.window > 1
            and not self._momentum_first(c)
        ):
            weights = window.renormalised(weights, self._exists())
        s = 1.0 if self._has_scale(c) else self._number(c)
        return ops.expand_dims(ops.flip(weights if s == 1.0 else s * weights, -1), -1)

    def _by_lag(self, c: Convention) -> Array:
        k, size = self.k(c), self.header.window
        T = k.shape[-2]
        if not self.rule.has_window:
            return ops.ones_like(k, shape=(T, 1))
        weights, gate = self._window_tensors(c)
        if gate is not None:
            brought = window.gate_by_lag(
                gate, window=size, before=self.inputs.get("in/window_gate_before")
            )
            if "in/reset" in self.inputs:
                brought = ops.where(self._exists(), brought, 0.0)
            weights = brought if weights is None else weights * brought
        if weights is None:
            return ops.ones_like(k, shape=(T, size)) * (1.0 / size)
        return weights + ops.zeros_like(k, shape=(T, 1)) if weights.shape[-2] != T else weights

    def _window_tensors(self, c: Convention) -> tuple[Array, Array]:
        """Weights by lag and one for each token, either None where there is none (WINDOW-3, WINDOW-6)."""
        kind = self.header.window_weights if self.header.level == "token" else None
        if kind is None:
            return self.inputs.get("in/window_weights"), self.inputs.get("in/window_gate")
        own = {
            name.removeprefix("in/param/"): value
            for name, value in self.inputs.items()
            if name.startswith("in/param/window_")
        }
        heads = self.inputs["in/param/W_K"].shape[0]
        weights = window.by_lag(kind, own, window=self.header.window, heads=heads, like=self.k(c))
        return weights, window.by_token(kind, own, self.inputs["in/x"])

    def _exists(self) -> Array:
        """Plain booleans (T, c): whether the token at each lag exists in its packed sequence."""
        history = self.inputs["in/window_k"].shape[-2] if "in/window_k" in self.inputs else 0
        counts = []
        for fresh in self._mask("in/reset", False):
            history = 0 if fresh else history
            counts.append(history)
            history += 1
        return np.arange(self.header.window)[None, :] <= np.array(counts)[:, None]

    # -- matrices ----------------------------------------------------------------------------------

    def _matrix(self, name: str, c: Convention) -> Array:
        if name in self.inputs:
            return (
                ops.transpose(self.inputs[name]) if c.layout == "transposed" else self.inputs[name]
            )
        k, d_out = self.k(c), self.v(c).shape[-1]
        d_phi = feature_maps.d_phi(self.header.feature_map, k.shape[-1], self.phi)
        return ops.zeros_like(k, shape=(*k.shape[:-2], d_out, d_phi))

    def _ceiling(self, c: Convention) -> Array:
        """The greatest norm of M, (1, 1): infinite without one (CONV-67)."""
        kind = np.zeros(0, self.k(c).dtype).real.dtype
        return np.full(
            (1, 1), np.inf if isinstance(c.memory_ceiling, str) else c.memory_ceiling, kind
        )

    def _S0(self, c: Convention) -> Array:
        S = self._matrix("in/S0", c)
        return -S if c.momentum_sign == "minus" else S

    def _momenta(self, c: Convention) -> Array:
        Z = self._matrix("in/window_momentum", c)
        return -Z if c.momentum_sign == "minus" else Z
