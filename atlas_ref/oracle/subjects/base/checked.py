"""Inputs of a case by the table of its tensors: their names, shapes and numbers (CASE-6, CASE-16)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from atlas_ref.conventions import Convention, effective, resolve
from atlas_ref.forms.support import require
from atlas_ref.oracle.cases.gate_axis import gate_axes
from atlas_ref.oracle.cases.levels import with_schedule
from atlas_ref.oracle.cases.masks import MASKS, mask_axes
from atlas_ref.oracle.cases.tensor_spec import Legal, Tensor
from atlas_ref.oracle.cases.values import check_values
from atlas_ref.parts import feature_maps
from atlas_ref.types import bind_dims

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case


def header_convention(header: Any) -> Convention:
    """The convention of a header, resolved for its rule and level."""
    return resolve(header.convention, rule=header.rule, level=header.level)


def check_inputs(
    header: Any,
    inputs: Mapping[str, Any],
    convention: Convention,
    legal: Callable[[Any, Any, set[str]], Legal],
    *,
    sizes: Mapping[str, Any] = {},
    check: Callable[[Any, Mapping[str, Any]], None] = lambda header, inputs: None,
) -> dict[str, Any]:
    """The inputs in the order of the table.

    Args:
        convention: that of the header.
        legal: tensors of a case, from (header, convention in force, names present).
        sizes: of axes that settings fix, each with the setting.
        check: refuses what shapes do not say, before numbers are looked at.

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    in_force = effective(convention, rule=header.rule)
    inputs = with_schedule(header, inputs)
    table, refused = legal(header, in_force, set(inputs))
    _check_names(header, inputs, table, refused)
    _check_shapes(header, inputs, table, dict(sizes))
    check(header, inputs)
    ordered = {key: inputs[key] for key in table if key in inputs}
    for key, value in ordered.items():
        check_values(key, value, table[key])
    return ordered


def check_form(case: Case, form: str, chunk: int | None) -> None:
    """Refuse a form that does not compute the rule under its convention (CHUNK-20)."""
    require(case.header.rule, case.convention, form, chunk)


def _check_names(
    header: Any, inputs: Mapping[str, Any], table: dict[str, Tensor], refused: dict[str, str]
) -> None:
    if not inputs:
        raise ValueError(
            "no in/... tensor: these are results or an empty file, and a case needs inputs"
        )
    for key in inputs:
        if key in refused:
            raise ValueError(f"{key}: not part of this case: {refused[key]}")
        if key not in table:
            raise ValueError(
                f"{key}: unknown tensor for rule {header.rule}, level {header.level}; it has "
                f"{', '.join(table)}"
            )
    stands_in = {"in/retain": "in/log_retain", "in/momentum": "in/log_momentum"}
    for key, tensor in table.items():
        if tensor.need == "yes" and key not in inputs and stands_in.get(key) not in inputs:
            raise ValueError(f"{key}: missing, axes {_in_words(tensor.axes)} are needed")


def _in_words(axes: str) -> str:
    """Axes of a tensor as messages name them."""
    if axes == "gate":
        return "(..., T) or (..., T, d_out)"
    return f"({', '.join(axes.split())})"


def _check_shapes(
    header: Any, inputs: Mapping[str, Any], table: Mapping[str, Tensor], sizes: dict[str, Any]
) -> None:
    """Match every tensor with its axes, the most basic first: messages blame the later one."""
    for key in table:
        if key not in inputs:
            continue
        if key in MASKS and mask_axes(key, inputs[key], sizes):
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
