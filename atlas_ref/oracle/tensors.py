"""Which tensors a case may hold: names, axes, ranges, and when each is needed.

The table below is what the reader enforces, what `atlas-ref schema` prints and what specs/case.md explains.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from atlas_ref import feature_maps, window

if TYPE_CHECKING:
    from atlas_ref.conventions import Convention
    from atlas_ref.oracle.header import Header


#: Where a tensor of one level of a block stands: in/level0/M0, out/level2/M, grad/level1/param/W_K (CASE-32).
LEVEL = re.compile(r"^(in|out|grad)/level(\d+)/")


def bare(name: str) -> str:
    """The name that a level's tensor would have in a case of its own; other names as they are."""
    return LEVEL.sub(r"\1/", name)


class Tensor(NamedTuple):
    """One input tensor of a case.

    Attributes:
        axes: named axes; "..." are the leading axes, the same for every tensor that has them. "gate" stands for
            "... T" or, with one gate per output dimension, "... T d_out".
        need: "yes", or what stands in when it is absent.
        low, high: inclusive range; None for finite.
        mask: True for bool or uint8 of zeros and ones.
    """

    axes: str
    need: str = "yes"
    low: float | None = None
    high: float | None = None
    mask: bool = False


#: Cotangents: inputs that have no gradient themselves.
COTANGENTS = ("in/y_bar", "in/M_bar", "in/S_bar", "in/X_bar", "in/phi_bar")

#: Results of any rule, without `out/` (CASE-12).
RESULTS = ("y", "M", "S", "M_ref", "window_k", "window_v", "window_gate_before", "window_residual", "window_momentum", "X", "phi")

#: Tensors that stand for another by its logarithm.
LOGARITHMS = {"in/log_retain": "in/retain", "in/log_momentum": "in/momentum"}

#: Every input of the four rules at level projected, with the rules that have it.
PROJECTED: dict[str, tuple[str, Tensor]] = {
    "in/k": ("all", Tensor("... T d_in")),
    "in/v": ("all", Tensor("... T d_out")),
    "in/q": ("all", Tensor("... T d_in")),
    "in/retain": ("all", Tensor("gate", low=0.0, high=1.0)),
    "in/log_retain": ("all", Tensor("gate", "in/retain", high=0.0)),
    "in/momentum": ("omega titans_lmm", Tensor("gate", "0; then no in/S0 and no out/S", 0.0, 1.0)),
    "in/log_momentum": ("omega titans_lmm", Tensor("gate", "in/momentum", high=0.0)),
    "in/step_size": ("omega titans_lmm delta", Tensor("gate", low=0.0)),
    "in/step_size_memory": ("omega titans_lmm delta", Tensor("gate", "in/step_size; needed for rate split", 0.0)),
    "in/window_weights": ("omega", Tensor("... T c", "1/c")),
    "in/window_gate": ("omega", Tensor("... T", "in/window_weights")),
    "in/M0": ("all", Tensor("... d_out d_phi", "0")),
    "in/S0": ("omega titans_lmm", Tensor("... d_out d_phi", "0")),
    "in/window_k": ("omega", Tensor("... n d_in", "an empty window")),
    "in/window_v": ("omega", Tensor("... n d_out", "an empty window")),
    "in/window_gate_before": ("omega", Tensor("... n", "an empty window")),
    "in/window_residual": ("omega", Tensor("... n d_out", "an empty window")),
    "in/window_momentum": ("omega", Tensor("... m d_out d_phi", "0")),
    "in/M_ref": ("all", Tensor("... d_out d_phi", "in/M0: a span or call starts at the first token")),
    "in/active": ("all", Tensor("T", "1", mask=True)),
    "in/reset": ("all", Tensor("T", "0", mask=True)),
    "in/y_bar": ("all", Tensor("... T d_out", "no gradients")),
    "in/M_bar": ("all", Tensor("... d_out d_phi", "0")),
    "in/S_bar": ("omega titans_lmm", Tensor("... d_out d_phi", "0")),
}

#: What replaces keys, values, queries and gates at level token.
TOKEN: dict[str, tuple[str, Tensor]] = {
    "in/x": ("all", Tensor("B T d_model")),
    "in/param/W_K": ("all", Tensor("H d_in d_model")),
    "in/param/W_V": ("all", Tensor("H d_out d_model")),
    "in/param/W_Q": ("all", Tensor("H d_in d_model")),
    "in/param/W_retain": ("all", Tensor("H n_retain d_kv")),
    "in/param/b_retain": ("all", Tensor("H n_retain")),
    "in/param/W_momentum": ("omega titans_lmm", Tensor("H n_momentum d_kv", "momentum 0")),
    "in/param/b_momentum": ("omega titans_lmm", Tensor("H n_momentum", "momentum 0")),
    "in/param/W_step_size": ("omega titans_lmm delta", Tensor("H n_step_size d_kv")),
    "in/param/b_step_size": ("omega titans_lmm delta", Tensor("H n_step_size")),
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


def phi_tensors(header: Header) -> dict[str, Tensor]:
    """Tensors of the case's feature map."""
    names = feature_maps.TENSORS.get(header.feature_map.kind, {})
    return {"in/proj" if name == "proj" else f"in/phi/{name}": Tensor(axes) for name, axes in names.items()}


def legal(header: Header, convention: Convention, given: set[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What this case may hold, and why it may not hold the rest.

    Args:
        given: names present, since some tensors are needed only beside others.

    Returns:
        name -> tensor, name -> the rule that an illegal but known name breaks.
    """
    if header.rule == "newton_schulz":
        return {"in/G": Tensor("... d_out d_phi"), "in/X_bar": Tensor("... d_out d_phi", "no gradients")}, {}
    if header.rule == "feature_map":
        return {"in/x": Tensor("... d_in"), "in/phi_bar": Tensor("... d_phi", "no gradients"), **phi_tensors(header)}, {}
    allowed: dict[str, Tensor] = {}
    refused: dict[str, str] = {}
    token = header.level == "token"
    for name, (rules, tensor) in (TOKEN | PROJECTED if token else PROJECTED).items():
        if rules != "all" and header.rule not in rules.split():
            refused[name] = f"{header.rule} has none; it belongs to {' and '.join(rules.split())}"
        elif token and name in COMPUTED_AT_TOKEN:
            refused[name] = "level token computes it from in/x"
        else:
            allowed[name] = _in_layout(name, tensor, convention, token)
    for name in TOKEN if not token else ():
        refused[name] = "it belongs to level token"
    if token and header.rule == "omega" and header.window_weights is not None:
        allowed |= {f"in/param/{name}": Tensor(axes) for name, axes in window.tensors(header.window_weights).items()}
    allowed |= phi_tensors(header)
    _by_convention(header, convention, given, allowed, refused)
    return allowed, refused


def _in_layout(name: str, tensor: Tensor, convention: Convention, token: bool) -> Tensor:
    axes = tensor.axes
    if convention.layout == "transposed" and axes.endswith("d_out d_phi"):
        axes = axes.removesuffix("d_out d_phi") + "d_phi d_out"
    return tensor._replace(axes=axes.replace("...", "B H") if token else axes)


def _by_convention(header: Header, convention: Convention, given: set[str], allowed: dict[str, Tensor], refused: dict[str, str]) -> None:
    """Move tensors that this convention forbids to `refused`, and settle which are needed."""

    def refuse(reason: str, *names: str) -> None:
        for name in names:
            if allowed.pop(name, None) is not None:
                refused[name] = reason

    def require(*names: str) -> None:
        for name in names:
            if name in allowed:
                allowed[name] = allowed[name]._replace(need="yes")

    if convention.gate == "none":
        refuse("gate none has no retain gate", "in/retain", "in/log_retain", "in/param/W_retain", "in/param/b_retain")
    if convention.rate == "none":
        refuse("rate none has no step size", "in/step_size", "in/param/W_step_size", "in/param/b_step_size")
    if convention.rate == "split":
        require("in/step_size_memory")
    else:
        refuse(f"rate {convention.rate} has one rate; it belongs to rate split", "in/step_size_memory")
    for log, name in LOGARITHMS.items():
        if log in given:
            refuse(f"{log} stands in its place", name)
    if not given & {"in/momentum", "in/log_momentum", "in/param/W_momentum", "in/param/b_momentum"}:
        refuse("it needs a momentum gate", "in/S0", "in/S_bar")
    if given & {"in/param/W_momentum", "in/param/b_momentum"}:
        require("in/param/W_momentum", "in/param/b_momentum")
    if "in/window_gate" in given:
        refuse("in/window_gate stands in its place", "in/window_weights")
    if not (convention.frozen_reference or convention.read == "chunk_start"):
        refuse("the reference is not frozen and no read needs the start of a span", "in/M_ref")
    first = convention.order == "window_then_momentum"
    if first:
        refuse("it belongs to order momentum_then_window", "in/window_momentum")
    if not (first and convention.window_at_boundary == "carry" and convention.frozen_reference and header.window > 1):
        refuse("it belongs to window_at_boundary carry with a frozen reference", "in/window_residual")
    if not ("in/window_gate" in given or (header.window_weights is not None and window.uses_gate(header.window_weights))):
        refuse("no token brings a weight here", "in/window_gate_before")
    if given & {"in/window_k", "in/window_v"}:
        require("in/window_k", "in/window_v", "in/window_residual", "in/window_gate_before")
    else:
        refuse("it needs in/window_k and in/window_v", "in/window_residual", "in/window_gate_before")
