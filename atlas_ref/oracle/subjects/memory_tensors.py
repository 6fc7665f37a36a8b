"""Tensors of a case of a memory: names, axes, ranges, and when each is needed.

The reader enforces the tables below, `atlas-ref schema` prints them and specs/case.md explains
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.oracle.cases.tensor_spec import LOGARITHMS, Legal, Tensor, phi_tensors
from atlas_ref.parts import window
from atlas_ref.rules import FAMILY, names_with

#: Weights of a learned residual, and the projections of its own pair (SURROGATE-4).
SURROGATE = "in/param/W_surrogate"
OWN_PAIR = ("in/param/W_K_surrogate", "in/param/W_V_surrogate")

#: Every input of a rule at level projected, with the fact of the rules that have it.
PROJECTED: dict[str, tuple[str, Tensor]] = {
    "in/k": ("all", Tensor("... T d_in")),
    "in/v": ("all", Tensor("... T d_out")),
    "in/q": ("all", Tensor("... T d_in")),
    "in/retain": ("all", Tensor("gate", low=0.0, high=1.0)),
    "in/log_retain": ("all", Tensor("gate", "in/retain", high=0.0)),
    "in/momentum": ("has_momentum", Tensor("gate", "0; then no in/S0 and no out/S", 0.0, 1.0)),
    "in/log_momentum": ("has_momentum", Tensor("gate", "in/momentum", high=0.0)),
    "in/step_size": ("has_error", Tensor("gate", low=0.0)),
    "in/step_size_memory": (
        "has_error",
        Tensor("gate", "in/step_size; needed for rate split", 0.0),
    ),
    "in/window_weights": ("has_window", Tensor("... T c", "1/c")),
    "in/window_gate": ("has_window", Tensor("... T", "in/window_weights")),
    SURROGATE: ("has_error", Tensor("d_out d_kv", "only reference surrogate has one")),
    "in/M0": ("all", Tensor("... d_out d_phi", "0")),
    "in/S0": ("has_momentum", Tensor("... d_out d_phi", "0")),
    "in/window_k": ("has_window", Tensor("... n d_in", "an empty window")),
    "in/window_v": ("has_window", Tensor("... n d_out", "an empty window")),
    "in/window_gate_before": ("has_window", Tensor("... n", "an empty window")),
    "in/window_residual": ("has_window", Tensor("... n d_out", "an empty window")),
    "in/window_momentum": ("has_window", Tensor("... m d_out d_phi", "0")),
    "in/M_ref": (
        "all",
        Tensor("... d_out d_phi", "in/M0: a span or call starts at the first token"),
    ),
    "in/active": ("all", Tensor("T", "1", mask=True)),
    "in/reset": ("all", Tensor("T", "0", mask=True)),
    "in/y_bar": ("all", Tensor("... T d_out", "no gradients")),
    "in/M_bar": ("all", Tensor("... d_out d_phi", "0")),
    "in/S_bar": ("has_momentum", Tensor("... d_out d_phi", "0")),
}

#: What replaces keys, values, queries and gates at level token.
TOKEN: dict[str, tuple[str, Tensor]] = {
    "in/x": ("all", Tensor("B T d_model")),
    "in/param/W_K": ("all", Tensor("H d_in d_model")),
    "in/param/W_V": ("all", Tensor("H d_out d_model")),
    "in/param/W_Q": ("all", Tensor("H d_in d_model")),
    "in/param/W_retain": ("all", Tensor("H n_retain d_kv")),
    "in/param/b_retain": ("all", Tensor("H n_retain")),
    "in/param/W_momentum": ("has_momentum", Tensor("H n_momentum d_kv", "momentum 0")),
    "in/param/b_momentum": ("has_momentum", Tensor("H n_momentum", "momentum 0")),
    "in/param/W_step_size": ("has_error", Tensor("H n_step_size d_kv")),
    "in/param/b_step_size": ("has_error", Tensor("H n_step_size")),
    OWN_PAIR[0]: ("has_error", Tensor("H d_in d_model", "in/param/W_K, with W_V_surrogate")),
    OWN_PAIR[1]: ("has_error", Tensor("H d_out d_model", "in/param/W_V, with W_K_surrogate")),
}

#: What level token computes from in/x.
COMPUTED_AT_TOKEN = {
    "in/k",
    "in/v",
    "in/q",
    "in/retain",
    "in/log_retain",
    "in/momentum",
    "in/log_momentum",
    "in/step_size",
    "in/step_size_memory",
    "in/window_weights",
    "in/window_gate",
}


def legal(header: Any, convention: Any, names: set[str]) -> Legal:
    """Tensors that this case may hold, and the reasons against other names.

    Args:
        names: present, since some tensors are needed only beside others.

    Returns:
        name -> tensor, name -> the rule that an illegal but known name breaks.
    """
    allowed: dict[str, Tensor] = {}
    refused: dict[str, str] = {}
    token = header.level == "token"
    for name, (fact, tensor) in (TOKEN | PROJECTED if token else PROJECTED).items():
        if header.rule not in rules_with(fact):
            refused[name] = (
                f"{header.rule} has none; it belongs to {' and '.join(rules_with(fact))}"
            )
        elif token and name in COMPUTED_AT_TOKEN:
            refused[name] = "level token computes it from in/x"
        else:
            allowed[name] = _in_layout(name, tensor, convention, token)
    for name in TOKEN if not token else ():
        refused[name] = "it belongs to level token"
    if token and header.window_weights is not None:
        allowed |= {
            f"in/param/{name}": Tensor(axes)
            for name, axes in window.tensors(header.window_weights).items()
        }
    allowed |= phi_tensors(header)
    _by_convention(header, convention, names, allowed, refused)
    return allowed, refused


def rules_with(fact: str) -> tuple[str, ...]:
    """Names of the rules that have a fact; of every rule for "all"."""
    return tuple(FAMILY) if fact == "all" else names_with(fact)


def _in_layout(name: str, tensor: Tensor, convention: Any, token: bool) -> Tensor:
    axes = tensor.axes
    if name == SURROGATE and token:
        return tensor._replace(axes=f"H {axes}")
    if convention.layout == "transposed" and axes.endswith("d_out d_phi"):
        axes = axes.removesuffix("d_out d_phi") + "d_phi d_out"
    return tensor._replace(axes=axes.replace("...", "B H") if token else axes)


def _by_convention(
    header: Any,
    convention: Any,
    present: set[str],
    allowed: dict[str, Tensor],
    refused: dict[str, str],
) -> None:
    """Move tensors that this convention forbids to `refused`, and mark those that are needed."""

    def refuse(reason: str, *names: str) -> None:
        for name in names:
            if allowed.pop(name, None) is not None:
                refused[name] = reason

    def require(*names: str) -> None:
        for name in names:
            if name in allowed:
                allowed[name] = allowed[name]._replace(need="yes")

    if convention.gate == "none":
        refuse(
            "gate none has no retain gate",
            "in/retain",
            "in/log_retain",
            "in/param/W_retain",
            "in/param/b_retain",
        )
    if convention.rate == "none":
        refuse(
            "rate none has no step size",
            "in/step_size",
            "in/param/W_step_size",
            "in/param/b_step_size",
        )
    _surrogate_tensors(header, convention, present, refuse, require)
    if convention.rate == "split":
        require("in/step_size_memory")
    else:
        refuse(
            f"rate {convention.rate} has one rate; it belongs to rate split", "in/step_size_memory"
        )
    for log, name in LOGARITHMS.items():
        if log in present:
            refuse(f"{log} stands in its place", name)
    if not present & {
        "in/momentum",
        "in/log_momentum",
        "in/param/W_momentum",
        "in/param/b_momentum",
    }:
        refuse("it needs a momentum gate", "in/S0", "in/S_bar")
    if present & {"in/param/W_momentum", "in/param/b_momentum"}:
        require("in/param/W_momentum", "in/param/b_momentum")
    if "in/window_gate" in present:
        refuse("in/window_gate stands in its place", "in/window_weights")
    if not (convention.frozen_reference or convention.read == "chunk_start"):
        refuse("the reference is not frozen and no read needs the start of a span", "in/M_ref")
    first = convention.order == "window_then_momentum"
    if first:
        refuse("it belongs to order momentum_then_window", "in/window_momentum")
    if not (
        first
        and convention.window_at_boundary == "carry"
        and convention.frozen_reference
        and header.window > 1
    ):
        refuse(
            "it belongs to window_at_boundary carry with a frozen reference", "in/window_residual"
        )
    if not (
        "in/window_gate" in present
        or (header.window_weights is not None and window.uses_gate(header.window_weights))
    ):
        refuse("no token brings a weight here", "in/window_gate_before")
    if present & {"in/window_k", "in/window_v"}:
        require("in/window_k", "in/window_v", "in/window_residual", "in/window_gate_before")
    else:
        refuse(
            "it needs in/window_k and in/window_v", "in/window_residual", "in/window_gate_before"
        )


def _surrogate_tensors(
    header: Any,
    convention: Any,
    present: set[str],
    refuse: Callable[..., None],
    require: Callable[..., None],
) -> None:
    """Tensors of a learned residual: W is needed, both projections of a pair or none (SURROGATE-4)."""
    if convention.reference != "surrogate":
        reason = f"reference {convention.reference} has none; it belongs to reference surrogate"
        return refuse(reason, SURROGATE, *OWN_PAIR)
    require(SURROGATE)
    if header.window > 1:
        refuse("a surrogate with a pair of its own looks at one token", *OWN_PAIR)
    elif present & set(OWN_PAIR):
        require(*OWN_PAIR)
    return None
