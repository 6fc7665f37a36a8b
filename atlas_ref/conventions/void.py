"""Axes whose value cannot matter in a case, each with the reason (CONV-3)."""

from __future__ import annotations

from atlas_ref.conventions.axes import AXES, Convention


def effective(convention: Convention, *, rule: str) -> Convention:
    """The convention without a reference that nothing reads (HEBBIAN-5).

    hebbian has no error, so that only read chunk_start needs a reference.
    """
    if rule == "hebbian" and convention.read != "chunk_start":
        return convention.replaced(reference="running")
    return convention


def void_axes(
    convention: Convention,
    *,
    rule: str,
    window: int = 1,
    span: int | None = None,
    phase: int | None = None,
    tokens: int = 0,
    history: int = 0,
    resets: bool = False,
    gated: bool = False,
    shape: tuple[int, int] = (0, 0),
) -> dict[str, str]:
    """Axes whose value cannot matter in this case, each with the reason (CONV-3); also
    "newton_schulz.KEY".

    Args:
        history: initial window tokens, before whose end there is a boundary.
        resets: whether packed sequences may start inside the call, which take their positions from
            span_origin.
        gated: whether tokens bring their own window weight.
        shape: (d_out, d_phi).
    """
    c = convention
    void: dict[str, str] = {}
    if c.has_newton_schulz:
        if c.newton_schulz_settings.coefficients != "polar_express":
            void["newton_schulz.lower_bound"] = "only polar_express reads it"
        if shape[0] <= shape[1]:
            void["newton_schulz.transpose"] = "the matrix is not tall"
    if rule in ("newton_schulz", "feature_map"):
        steps = {
            axis: f"the rule {rule} has no such step"
            for axis in AXES
            if axis != "newton_schulz" or rule == "feature_map"
        }
        return steps | void
    if rule == "hebbian":
        no_error = ["decay", "gradient_scale", "rate", "momentum_sign", "direction", "value_sign"]
        no_error += ["momentum_kind", "step_bounds"]
        void |= dict.fromkeys(no_error, "hebbian has no error and no rate")
        if c.read != "chunk_start":
            void["reference"] = "hebbian has no error, and no read needs a span"
        c = effective(c, rule=rule)
    if rule == "delta":
        void |= dict.fromkeys(["momentum_sign", "momentum_kind"], "delta has no momentum")
    if c.reference == "zero":
        void["decay"] = "the reference is zero"
    if c.reference == "surrogate" and "reference" not in void:
        void |= dict.fromkeys(["decay", "value_sign"], "a learned vector stands for the residual")
    if c.gate == "none":
        void["decay"] = "nothing decays"
        void["retain_bounds"] = "there is no retain gate"
    if c.rate == "none":
        void["step_bounds"] = "there is no step size"
    if c.reference != "chunk_start" and c.read != "chunk_start":
        void["span_origin"] = "nothing is refreshed by spans"
    elif c.reference == "call_start":
        void["span_origin"] = "the reference lasts the whole call"
    elif span == 1:
        void["span_origin"] = "every token starts a span"
    elif phase is not None and not resets:
        void["span_origin"] = "phase says where the first token stands in its span"
    if c.q_norm == "none" and c.k_norm == "none":
        void |= dict.fromkeys(["norm_place", "norm_eps", "norm_guard"], "there is no norm")
    if window == 1:
        void |= dict.fromkeys(["window_at_boundary", "window_edge"], "the window is one token")
        if rule != "omega":
            void["order"] = "the window is one token of weight one"
    elif c.order == "momentum_then_window":
        void |= dict.fromkeys(["window_at_boundary", "window_edge"], "the window sums momenta")
    else:
        if gated:
            void["window_edge"] = "a missing token's weight is 0"
        elif history == window - 1 and not resets:
            void["window_edge"] = "the window is full from the first token on"
        if not c.frozen_reference:
            void["window_at_boundary"] = "the reference is not frozen"
        elif history == 0 and (
            c.reference == "call_start" or _first_span_covers(c, span, phase, tokens, resets)
        ):
            void["window_at_boundary"] = "the first span covers the call"
    return void


def _first_span_covers(
    c: Convention, span: int | None, phase: int | None, tokens: int, resets: bool
) -> bool:
    """Whether no span ends within a call of chunk_start, nor within a packed sequence of it
    (CONV-47).
    """
    if span is None:
        return False
    starts = [] if phase is None else [phase]
    if phase is None or resets:
        starts.append(1 % span if c.span_origin == "multiple" else 0)
    return max(starts) + tokens <= span
