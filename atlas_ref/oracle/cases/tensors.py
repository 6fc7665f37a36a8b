"""Tensors that a case may hold, from its subject, and the results of all subjects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.cases.gate_axis import gate_axes
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.memory_tensors import COMPUTED_AT_TOKEN, LOGARITHMS, PROJECTED, TOKEN
from atlas_ref.oracle.subjects.subject import LEVEL, Legal, Tensor, bare, of_call
from atlas_ref.parts import feature_maps
from atlas_ref.parts.window import uses_gate
from atlas_ref.rules import FAMILY
from atlas_ref.types import bind_dims
from tape import ops

#: Cotangents: inputs that have no gradient themselves.
COTANGENTS = (
    "in/y_bar",
    "in/M_bar",
    "in/S_bar",
    "in/z_bar",
    "in/A_bar",
    "in/K_bar",
    "in/h_bar",
    "in/G_bar",
    "in/bias_bar",
    "in/X_bar",
    "in/phi_bar",
)

#: Cotangents of the final state of a layer begin so, and those of turned queries and keys.
STATE_BAR = "in/state_bar/"
TURNED_BARS = ("in/q_bar", "in/k_bar", "in/v_bar")

#: Results of any rule, without `out/` (CASE-12).
RESULTS = (
    "y",
    "M",
    "S",
    "M_ref",
    "window_k",
    "window_v",
    "window_gate_before",
    "window_residual",
    "window_momentum",
    "X",
    "phi",
)


def legal(header: Any, convention: Any, names: set[str]) -> Legal:
    """Tensors that this case may hold, and the reasons against other names.

    Args:
        names: present, since some tensors are needed only beside others.

    Returns:
        name -> tensor, name -> the rule that an illegal but known name breaks.
    """
    return SUBJECTS[header.rule].legal(header, convention, names)


def is_cotangent(name: str) -> bool:
    """Whether an input is a cotangent of a result."""
    own = of_call(bare(name))
    return own in COTANGENTS or name in TURNED_BARS or name.startswith(STATE_BAR)


def weighed(cotangent: str) -> str:
    """The result a cotangent weighs: `in/M_bar` -> `out/M`, also with `level1/` before M."""
    return "out/" + cotangent.removeprefix("in/").replace("_bar", "", 1)


def seeds(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The cotangent of each result that has one; a loss that needs none has 1 (CASE-14, LAYER-8)."""
    own = SUBJECTS[header.rule].own
    others = {} if own is None else own.weighs(header)
    bars = {
        result: value
        for name, value in inputs.items()
        if is_cotangent(name)
        for result in others.get(name, (weighed(name),))
    }
    if own is not None and (loss := own.loss(header)):
        floating = (value for value in inputs.values() if value.dtype.kind not in "biu")
        bars[loss] = ops.ones_like(next(floating), shape=())
    return bars


def main_cotangent(header: Any) -> str:
    """The cotangent without which there are no gradients: that of the main result."""
    own, main = SUBJECTS[header.rule].own, main_result(header)
    for name, results in ({} if own is None else own.weighs(header)).items():
        if main in results:
            return name
    return f"in/{main.removeprefix('out/')}_bar"


def main_result(header: Any) -> str:
    """The result whose absence is a verdict."""
    subject = SUBJECTS[header.rule]
    return subject.result if subject.own is None else subject.own.result(header)


def tokens(inputs: Mapping[str, Any]) -> int:
    """Number of tokens of a case; of rows without tokens it counts for nothing.

    Rows of a feature map may have no leading axes (CASE-11).
    """
    x = inputs.get("in/k", inputs.get("in/x"))
    return 0 if x is None or x.ndim < 2 else int(x.shape[-2])


def history(inputs: Mapping[str, Any]) -> int:
    """Number of tokens that the window holds before the first of the call."""
    return int(inputs["in/window_k"].shape[-2]) if "in/window_k" in inputs else 0


def gated(header: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether tokens bring a weight of their own to the window."""
    weights = header.window_weights
    return "in/window_gate" in inputs or (weights is not None and uses_gate(weights))


def memory_shape(header: Any, inputs: Mapping[str, Any]) -> tuple[int, int]:
    """(d_out, d_phi) of the memory, or of the argument of Newton-Schulz; (0, 0) of neither."""
    subject = SUBJECTS[header.rule]
    if subject.needs_newton_schulz:
        rows, columns = inputs[subject.argument].shape[-2:]
        return int(rows), int(columns)
    if not subject.has_tokens:
        return 0, 0
    k, v, axis = (
        ("in/k", "in/v", -1)
        if header.level == "projected"
        else ("in/param/W_K", "in/param/W_V", -2)
    )
    if k not in inputs:  # of hgrn, whose state is no matrix (RECUR-3)
        return 0, 0
    phi = {
        name.rsplit("/", 1)[1]: value
        for name, value in inputs.items()
        if name.startswith("in/phi/") or name == "in/proj"
    }
    d_phi = feature_maps.d_phi(header.feature_map, inputs[k].shape[axis], phi)
    return int(inputs[v].shape[axis]), d_phi


def axes_in_words(axes: str) -> str:
    """Axes of a tensor as messages name them."""
    if axes == "gate":
        return "(..., T) or (..., T, d_out)"
    return f"({', '.join(axes.split())})"


def check_shapes(header: Any, inputs: Mapping[str, Any], table: Mapping[str, Tensor]) -> None:
    """Match every tensor with its axes, the most basic first: messages blame the later one.

    Raises:
        ValueError: names the tensor or setting, what was found and what is needed.
    """
    sizes: dict[str, Any] = {}
    if header.rule in FAMILY:
        sizes |= {"c": (header.window, "window"), **feature_maps.stated_sizes(header.feature_map)}
    for key in table:
        if key not in inputs:
            continue
        shape, axes = inputs[key].shape, table[key].axes
        axes = gate_axes(key, inputs) if axes == "gate" else axes
        if (
            "d_phi" in axes
            and "d_phi" not in sizes
            and "in/phi/W" not in table
            and "in/proj" not in table
            and "d_in" in sizes
        ):
            sizes["d_phi"] = (
                feature_maps.d_phi(header.feature_map, sizes["d_in"][0]),
                f"feature_map {header.feature_map.kind}",
            )
        bind_dims(key, shape, axes, sizes)
        if key in ("in/proj", "in/x", "in/k", "in/phi/H"):
            sizes = feature_maps.sketched(header.feature_map, sizes) | sizes
        if key in ("in/param/W_V", "in/v") and "d_in" in sizes:
            sizes["d_kv"] = (sizes["d_in"][0] + sizes["d_out"][0], "d_in + d_out")
    for axis, (size, by) in sizes.items():
        for each in size if isinstance(size, tuple) else (size,):
            if each < 1 and axis not in ("n", "m"):
                raise ValueError(f"{by}: axis {axis} has size 0, at least 1 is needed")
        if axis in ("n", "m") and size > header.window - 1:
            raise ValueError(
                f"{by}: {size} initial window tokens, at most window - 1 = {header.window - 1} fit"
            )
        if axis.startswith("n_") and size not in (1, sizes["d_out"][0]):
            raise ValueError(
                f"{by}: {size} gates, expected 1 or one per output dimension, {sizes['d_out'][0]}"
            )


__all__ = [
    "COMPUTED_AT_TOKEN",
    "COTANGENTS",
    "LEVEL",
    "LOGARITHMS",
    "PROJECTED",
    "RESULTS",
    "TOKEN",
    "Tensor",
    "axes_in_words",
    "bare",
    "check_shapes",
    "gated",
    "history",
    "is_cotangent",
    "legal",
    "main_cotangent",
    "main_result",
    "memory_shape",
    "seeds",
    "tokens",
    "weighed",
]
