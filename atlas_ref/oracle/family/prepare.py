"""Preparation of a case under some conventions for the family's loop.

Every axis that is only a number becomes an array. Conventions of one `Structure` are stacked along
an axis in front; an array that all of them share is kept once. Written from the clauses of
specs/conventions.md (CONV-4 to CONV-25, CONV-34 to CONV-36).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atlas_ref.conventions import Convention, effective
from atlas_ref.oracle.family.arrays import Arrays, learns, norm_settings
from atlas_ref.oracle.family.state import Inputs, Structure
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array


def structure(convention: Convention, header: Any) -> Structure:
    """The settings of control flow under a convention (CONV-11 to CONV-16, CONV-30)."""
    c = effective(convention, rule=header.rule)
    frozen = "none"
    if c.frozen_reference or c.read == "chunk_start":
        frozen = "call_start" if c.reference == "call_start" else "chunk_start"
    first = c.order == "window_then_momentum" or not FAMILY[header.rule].has_window
    bounded = c.frozen_reference and header.window > 1 and first
    counted = c.span_origin == "multiple" and c.reference != "call_start"
    return Structure(
        window=header.window,
        reference=c.reference if FAMILY[header.rule].has_error and not learns(c) else "zero",
        frozen=frozen,
        read=c.read,
        order="window_then_momentum" if first else "momentum_then_window",
        argument=c.argument if c.has_newton_schulz else "none",
        fades=c.momentum_kind == "delta_momentum",
        boundary=c.window_at_boundary if bounded else "recompute",
        span=header.span,
        first=1 % header.span if counted and header.span is not None else 0,
        phase=header.phase,
    )


class Prepared(Arrays):
    """The arrays of a case, computed once per variant and stacked on demand."""

    def stack(self, conventions: Sequence[Convention]) -> Inputs:
        """The inputs of the loop for conventions of one structure; one alone adds no axis."""
        many = len(conventions) > 1
        c = conventions[0]
        lead = len(self.k(c).shape) - 2

        def variants(
            make: Callable[[Convention], Array], key: Callable[[Convention], Any], core: int
        ) -> Array:
            """An array of each convention, computed once per key, `core` axes at the end."""
            keys = [key(each) for each in conventions]
            for each, name in zip(conventions, keys, strict=True):
                if name not in self.arrays:
                    self.arrays[name] = make(each)
            distinct = list(dict.fromkeys(keys))
            arrays = [self.arrays[name] for name in distinct]
            if all(each is None for each in arrays):
                return None
            if not many:
                return arrays[0]
            arrays = [
                np.ones((1,) * core, self.k(c).dtype) if each is None else each for each in arrays
            ]
            arrays = [
                each.reshape((1,) * (lead + core - each.ndim) + each.shape) for each in arrays
            ]
            if len(distinct) == 1:
                return arrays[0][None]
            place = {name: i for i, name in enumerate(distinct)}
            return np.stack(np.broadcast_arrays(*arrays))[[place[name] for name in keys]]

        def mapping(each: Convention) -> tuple[Any, ...]:
            return (each.norm_place, *norm_settings(each, each.k_norm))

        def per_token(name: str, make: Callable[[Convention], Array], *more: str) -> Array:
            return variants(
                make,
                lambda each: (name, *self._gating(each), *(getattr(each, axis) for axis in more)),
                3,
            )

        first = c.order == "window_then_momentum" or not self.rule.has_window
        present = self.inputs
        return Inputs(
            keys=variants(self._keys, lambda each: ("keys", *mapping(each)), 2),
            targets=variants(
                lambda each: self._targets(self.k(each), self.v(each), each),
                lambda each: ("targets", *self._aim(each)),
                2,
            ),
            queries=variants(
                self._queries,
                lambda e: ("queries", e.norm_place, e.query_scale, *norm_settings(e, e.q_norm)),
                2,
            ),
            retain=per_token("retain", self._retain, "gate", "retain_bounds"),
            decay=per_token("decay", self._decay, "gate", "retain_bounds", "decay"),
            momentum=per_token("momentum", lambda each: self.column("momentum", each)),
            a=per_token("a", self._a, "rate", "step_bounds", "momentum_kind"),
            b=per_token("b", self._b, "rate", "step_bounds", "direction"),
            weights=variants(
                self._weights,
                lambda each: (
                    "weights",
                    each.window_edge,
                    each.gradient_scale if first else 1.0,
                    first,
                ),
                3,
            ),
            scale=variants(self._scale, lambda each: ("scale", each.gradient_scale, first), 2),
            M0=variants(
                lambda each: self._matrix("in/M0", each), lambda each: ("M0", each.layout), 2
            ),
            S0=None
            if not self.rule.has_momentum
            else variants(self._S0, lambda e: ("S0", e.layout, e.momentum_sign), 2),
            window_keys=None
            if "in/window_k" not in present
            else variants(
                lambda each: self._map(present["in/window_k"], each.k_norm, each),
                lambda e: ("window_k", *mapping(e)),
                2,
            ),
            window_targets=None
            if "in/window_v" not in present
            else variants(
                lambda each: self._targets(present["in/window_k"], present["in/window_v"], each),
                lambda each: ("window_v", *self._aim(each)),
                2,
            ),
            residuals=None
            if "in/window_residual" not in present
            else variants(lambda _: present["in/window_residual"], lambda _: ("residual",), 2),
            momenta=None
            if first or "in/window_momentum" not in present
            else variants(self._momenta, lambda e: ("momenta", e.layout, e.momentum_sign), 3),
            reference=None
            if "in/M_ref" not in present
            else variants(
                lambda each: self._matrix("in/M_ref", each), lambda each: ("M_ref", each.layout), 2
            ),
            active=self._mask("in/active", True),
            reset=self._mask("in/reset", False),
            ceiling=None
            if all(each.memory_ceiling == "none" for each in conventions)
            else variants(self._ceiling, lambda each: ("ceiling", each.memory_ceiling), 2),
        )
