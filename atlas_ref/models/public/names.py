"""Tensors of public code and the parameters of ours that hold their numbers, as tables.

A tensor of public code is a parameter of ours in another shape. Its axes may come in another order,
several tensors may follow each other in one parameter, and one tensor may hold several parameters.
All of that is data: a public project is a table, and this file carries every table out in both
directions. Specified in specs/language_model.md (MODEL-10).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.models.shapes import Needed, check_tensors, refuse
from atlas_ref.types import Array
from tape import ops
from tape.nested import flatten


class Name(NamedTuple):
    """One tensor of public code, and its place among our parameters (MODEL-10).

    Attributes:
        axes: its axes, in words for sizes; a number stands for itself.
        field: the place of our parameter as the tape names it, `.blocks[{i}].memory.W_out`, with
            `{i}` for the layer. Several places, with a space between them: it holds the numbers of
            each, one after another. The same place in several rows: their numbers follow each other
            in it, in the order of the table. "": no parameter, but a setting or nothing.
        low: least value; None for any finite one.
        trained: False for a buffer, which is a parameter here and has no gradient there.
        order: its axes in the order in which our numbers run, (1, 0) for a transpose; () as it is.
        when: the setting that it needs, by the name of an attribute; "" for none.
        unread: whether public code keeps it and reads it nowhere: it may be missing, and the gradient
            of one that is trained is 0.
        copy_of: the tensor that it is another name for: it may be missing, and differs nowhere.
    """

    axes: str
    field: str = ""
    low: float | None = None
    trained: bool = True
    order: tuple[int, ...] = ()
    when: str = ""
    unread: bool = False
    copy_of: str = ""


#: Public name -> tensor, in the order of the public code.
Table = dict[str, Name]


# -- tables ----------------------------------------------------------------------------------------


def rows(table: Table, settings: Any) -> Table:
    """The rows of a table that settings have."""
    return {
        name: each for name, each in table.items() if not each.when or getattr(settings, each.when)
    }


def under(table: Table, name: str, place: str = "") -> Table:
    """A table as the part of a larger one: what stands before its names and before its places."""
    return {
        name + own: each._replace(
            field=" ".join(place + field for field in each.field.split()),
            copy_of=each.copy_of and name + each.copy_of,
        )
        for own, each in table.items()
    }


def repeated(table: Table, layers: int) -> Table:
    """A table with a number in place of `{i}`: all rows for layer 0, then all for 1, ..."""
    return {
        name.replace("{i}", str(i)): each._replace(
            field=each.field.replace("{i}", str(i)), copy_of=each.copy_of.replace("{i}", str(i))
        )
        for i in range(layers)
        for name, each in table.items()
    }


def shape(axes: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of axes in words."""
    return tuple(int(axis) if axis.isdigit() else sizes[axis] for axis in axes.split())


# -- both directions -------------------------------------------------------------------------------


def check(table: Table, sizes: Mapping[str, int], tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that are not those of a table (MODEL-11).

    Args:
        sizes: the length of each axis, by the word for it.

    Raises:
        ValueError: names tensors that are missing, unknown, misshapen, of another dtype, not finite,
            too small, or no copy of what they should be.
    """
    present = {
        name: each
        for name, each in table.items()
        if name in tensors or not (each.unread or each.copy_of)
    }
    needed = {name: Needed(shape(each.axes, sizes)) for name, each in present.items()}
    check_tensors(needed, tensors)
    refuse(
        [
            f"{name}: no entry may be {'negative' if each.low == 0 else f'below {each.low:g}'}"
            for name, each in present.items()
            if each.low is not None and (tensors[name] < each.low).any()
        ]
    )
    refuse(
        [
            f"{name}: differs from {each.copy_of}, which it is another name for"
            for name, each in present.items()
            if each.copy_of and not np.array_equal(tensors[name], tensors[each.copy_of])
        ]
    )


def parameters(template: Any, table: Table, tensors: Mapping[str, Array]) -> Any:
    """Our parameters from public tensors, arrays or variables (MODEL-10).

    Args:
        template: parameters of the same settings, for their shapes alone.
        tensors: of the shapes of the table, which `check` compares.

    Raises:
        KeyError: a tensor is missing, or the template has no such place.
        ValueError: a parameter that no tensor of the table holds, or in which too few are.
    """
    leaves, places, build = flatten(template, "params")
    counts = {place: math.prod(leaf.shape) for leaf, place in zip(leaves, places, strict=True)}
    parts: dict[str, list[Array]] = {place: [] for place in places}
    for name, each in table.items():
        fields = each.field.split()
        if fields:
            own, axes = tensors[name], tuple(range(len(each.order)))
            own = ops.moveaxis(own, each.order, axes) if each.order else own
            for field, part in zip(fields, _divided(own, [counts[f] for f in fields]), strict=True):
                parts[field].append(part)
    for place, its in parts.items():
        if not its:
            raise ValueError(f"params{place}: no tensor of the public code holds it")
    return build(
        [
            ops.reshape(_joined(parts[place]), leaf.shape)
            for leaf, place in zip(leaves, places, strict=True)
        ]
    )


def tensors_of(params: Any, table: Table, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Public tensors of our parameters, or of their gradient: the inverse of `parameters`
    (MODEL-10).

    Args:
        sizes: the length of each axis, by the word for it.

    Returns:
        those that are parameters, and copies of them.
    """
    leaves, places, _ = flatten(params, "params")
    own = dict(zip(places, leaves, strict=True))
    taken: Counter[str] = Counter()
    result: dict[str, Array] = {}
    for name, each in table.items():
        fields = each.field.split()
        if fields:
            its = shape(each.axes, sizes)
            count = math.prod(its)
            parts = [own[field] for field in fields]
            if len(fields) == 1 and count < math.prod(parts[0].shape):
                first = taken[each.field]
                taken[each.field] += count
                parts = [ops.reshape(parts[0], (-1,))[first : first + count]]
            axes = tuple(range(len(its)))
            numbers = ops.reshape(_joined(parts), tuple(its[i] for i in each.order or axes))
            result[name] = ops.moveaxis(numbers, axes, each.order) if each.order else numbers
    copies = {name: result[each.copy_of] for name, each in table.items() if each.copy_of}
    return result | copies


def _divided(tensor: Array, counts: list[int]) -> list[Array]:
    """A tensor in parts of so many numbers; one part is the tensor itself."""
    if len(counts) == 1:
        return [tensor]
    flat, ends = ops.reshape(tensor, (-1,)), np.cumsum(counts)
    return [flat[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _joined(parts: list[Array]) -> Array:
    """Numbers of parts, one after another; those of one part in its shape."""
    if len(parts) == 1:
        return parts[0]
    return ops.concatenate([ops.reshape(each, (-1,)) for each in parts], axis=0)
