"""The axes of a convention with their legal values and defaults.

Specified, with the equations behind every value, in specs/conventions.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Frozen

Finite = Annotated[float, Field(allow_inf_nan=False)]

#: The least eps of a norm, whose square float32 still holds (CONV-24).
LEAST_EPS = 1e-15
NormEps = Annotated[float, Field(ge=LEAST_EPS, allow_inf_nan=False)]

#: A length that no memory exceeds after a write (CONV-67).
Ceiling = Literal["none"] | Annotated[float, Field(gt=0, allow_inf_nan=False)]

#: Least and greatest value of a gate (CONV-66).
Bounds = Literal["none"] | tuple[Finite, Finite]


class Convention(Frozen):
    """One choice on every axis; the defaults are the preset `spec` of a rule at level projected
    (CONV-1).

    What depends on the rule - newton_schulz, rate, gate - is set by `resolve`.
    """

    gate: Literal["retain", "forget", "none"] = Field(
        "retain",
        description="what the retain gate's value is: the share of M kept, the share forgotten, or no "
        "gate (r = 1)",
    )
    decay: Literal["after_error", "before_error"] = Field(
        "after_error", description="whether the error uses M_ref or r_t M_ref"
    )
    gradient_scale: Finite | Literal["2/d_out"] = Field(
        1.0,
        description="factor s of the gradient: 1 for the loss |e|^2 / 2, 2 for |e|^2, 2/d_out for its "
        "mean; any number",
    )
    rate: Literal["momentum", "memory", "both", "split", "none"] = Field(
        "momentum",
        description="where the learning rate enters: (a, b) = (h, 1), (1, h), (h, h), (h, h'), (1, 1)",
    )
    momentum_sign: Literal["plus", "minus"] = Field(
        "plus", description="S holds +gradient and M subtracts, or S holds the negative and M adds"
    )
    momentum_kind: Literal["sum", "average", "delta_momentum"] = Field(
        "sum",
        description="what S is: a fading sum of gradients; an average of them, into which "
        "(1 - momentum) a g enters; a sum that forgets more the larger a gradient is",
    )
    retain_bounds: Bounds = Field(
        "none", description="least and greatest value of the retain gate, before the axis gate"
    )
    step_bounds: Bounds = Field("none", description="least and greatest value of the step size")
    memory_ceiling: Ceiling = Field(
        "none",
        description="greatest Frobenius norm of M after a write, to which a longer M is shortened; the "
        "derivative is that of a write without it",
    )
    direction: Literal["descent", "ascent"] = Field(
        "descent",
        description="ascent moves M the other way: an error of print, kept so that it can be named",
    )
    value_sign: Literal["minus", "plus"] = Field(
        "minus", description="residual M phi - v, or M phi + v: an error of print, kept likewise"
    )
    read: Literal["after", "before", "chunk_start", "call_end"] = Field(
        "after",
        description="the memory that y_t reads: M_t, M_(t-1), that of the span's start, or the last one "
        "(not causal)",
    )
    reference: Literal["running", "chunk_start", "call_start", "zero", "surrogate"] = Field(
        "running",
        description="the memory in the error: M_(t-1), that of the span's start, that of the call's "
        "start, or zero; surrogate: a learned vector instead of the error",
    )
    span_origin: Literal["first", "multiple"] = Field(
        "first",
        description="spans start at the first token, or at multiples of the span counted from 1",
    )
    window_at_boundary: Literal["recompute", "carry", "cut"] = Field(
        "recompute",
        description="older window tokens after a span's start: new reference, residual of their own span, "
        "or dropped",
    )
    window_edge: Literal["truncate", "renormalise"] = Field(
        "truncate",
        description="before the window is full: weights stay, or grow so that their sum stays",
    )
    order: Literal["window_then_momentum", "momentum_then_window"] = Field(
        "window_then_momentum", description="which of the two sums is the inner one"
    )
    newton_schulz: NewtonSchulz | Literal["none"] = Field(
        "none",
        description="settings of Newton-Schulz (Omega's default is an object with all defaults), or none",
    )
    query_scale: Finite | Literal["1/sqrt(d_in)"] = Field(
        1.0, description="factor of phi(q): 1 or 1/sqrt(d_in)"
    )
    q_norm: Literal["none", "l2", "rms"] = Field("none", description="norm of the query")
    k_norm: Literal["none", "l2", "rms"] = Field("none", description="norm of the key")
    norm_place: Literal["before_phi", "after_phi"] = Field(
        "before_phi", description="whether norms come before or after the feature map"
    )
    norm_eps: NormEps = Field(1e-6, description="eps of both norms; any number from 1e-15")
    norm_guard: Literal["root", "add", "clamp"] = Field(
        "root",
        description="how the eps enters: x / sqrt(n^2 + eps), x / (n + eps) or x / max(n, eps)",
    )
    layout: Literal["plain", "transposed"] = Field(
        "plain", description="memory in files as d_out x d_phi, or as its transpose"
    )

    @property
    def has_newton_schulz(self) -> bool:
        return isinstance(self.newton_schulz, NewtonSchulz)

    @property
    def newton_schulz_settings(self) -> NewtonSchulz:
        """The settings, where there is Newton-Schulz."""
        if not isinstance(self.newton_schulz, NewtonSchulz):
            raise ValueError("convention: newton_schulz is none")
        return self.newton_schulz

    @property
    def argument(self) -> str:
        """The argument of Newton-Schulz; "S" without Newton-Schulz."""
        return self.newton_schulz.argument if isinstance(self.newton_schulz, NewtonSchulz) else "S"

    @property
    def frozen_reference(self) -> bool:
        return self.reference in ("chunk_start", "call_start")


class OpenGate(Convention):
    """A convention whose gate nobody stated, of a rule whose default depends on the level.

    Computed gates take the one that stands here, that of level token; given gates are refused
    (CONV-4).
    """

    def replaced(self, **changes: Any) -> Any:
        """A copy with some axes changed; one whose gate is among them is no longer open."""
        kind = Convention if "gate" in changes else OpenGate
        return kind.trusted(**{**self.__dict__, **changes})


AXES: tuple[str, ...] = tuple(Convention.model_fields)
NEWTON_SCHULZ_KEYS: tuple[str, ...] = tuple(NewtonSchulz.model_fields)
