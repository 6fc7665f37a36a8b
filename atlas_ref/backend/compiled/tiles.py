"""Sums of products and transposes of small tiles in registers, for compiled loops (extra `fast`).

A panel is an array (rows, width), contiguous: as many columns as a cache line has numbers, 16 of
float32 or 8 of float64. A square is half as wide; its rows fill a register of AVX2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from atlas_ref.backend.compiled import SUM_BYTES
from atlas_ref.backend.compiled.lanes import (
    INDEX,
    ROUND_ONCE,
    Lanes,
    everywhere,
    indices,
    primitive,
)
from atlas_ref.backend.compiled.panels import PANEL_BYTES


def primitive_of_constants(typing: Callable[..., Any]) -> Any:
    """A primitive that sees the values of constants among its arguments."""
    return intrinsic(prefer_literal=True)(typing)


# -- sizes -----------------------------------------------------------------------------------------


@primitive
def width(typing: Any, panel: Any) -> Any:
    """Numbers of a row of a panel, and rows of a tile."""
    count = Lanes(panel.dtype, PANEL_BYTES).count
    return types.intp(panel), lambda *_: ir.Constant(ir.IntType(64), count)


@primitive
def side(typing: Any, panel: Any) -> Any:
    """Rows and columns of a square, which is transposed in registers; half of a tile's."""
    count = Lanes(panel.dtype, SUM_BYTES).count
    return types.intp(panel), lambda *_: ir.Constant(ir.IntType(64), count)


# -- sums of products ------------------------------------------------------------------------------


@primitive_of_constants
def zero_sums(typing: Any, panel: Any, rows: Any) -> Any:
    """Zeros for the sums of `rows` rows, a constant, by one panel."""
    vector, count = Lanes(panel.dtype, PANEL_BYTES), rows.literal_value
    kind = types.UniTuple(vector, count)  # type: ignore[no-untyped-call]  # Numba has no types

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(kind), None)

    return kind(panel, rows), code


@primitive
def add_products(typing: Any, sums: Any, left: Any, lane: Any, right: Any, k: Any) -> Any:
    """sums[n] + left[k, lane + n] right[k], for every n."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = _number(context, builder, signature, args, 1, 4, 2)
        row = _read(builder, _number(context, builder, signature, args, 3, 4), _of(sums, context))
        done = []
        for n, value in enumerate(_each(builder, args[0], sums.count)):
            factor = everywhere(builder, builder.load(_after(builder, first, n)), row.type)
            product = builder.fmul(factor, row, flags=ROUND_ONCE)
            done.append(builder.fadd(value, product, flags=ROUND_ONCE))
        return context.make_tuple(builder, sums, done)

    return sums(sums, left, lane, right, k), code


@primitive
def put(typing: Any, sums: Any, scale: Any, out: Any, row: Any) -> Any:
    """Write scale sums[n] into out[row + n], for every n."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _of(sums, context)
        factor = everywhere(builder, _cast(context, builder, sums, scale, args[1]), vector)
        to = _number(context, builder, signature, args, 2, 3)
        for n, value in enumerate(_each(builder, args[0], sums.count)):
            value = builder.fmul(factor, value, flags=ROUND_ONCE)
            _write(builder, value, _after(builder, to, n * vector.count))
        return context.get_dummy_value()

    return types.void(sums, scale, out, row), code


@primitive
def put_sum(typing: Any, sums: Any, scale: Any, out: Any, row: Any, other: Any, factor: Any) -> Any:
    """Write scale sums[n] + factor other[row + n] into out[row + n], for every n."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _of(sums, context)
        scales = everywhere(builder, _cast(context, builder, sums, scale, args[1]), vector)
        factors = everywhere(builder, _cast(context, builder, sums, factor, args[5]), vector)
        to = _number(context, builder, signature, args, 2, 3)
        origin = _number(context, builder, signature, args, 4, 3)
        for n, value in enumerate(_each(builder, args[0], sums.count)):
            beside = _read(builder, _after(builder, origin, n * vector.count), vector)
            beside = builder.fmul(factors, beside, flags=ROUND_ONCE)
            value = builder.fmul(scales, value, flags=ROUND_ONCE)
            value = builder.fadd(value, beside, flags=ROUND_ONCE)
            _write(builder, value, _after(builder, to, n * vector.count))
        return context.get_dummy_value()

    return types.void(sums, scale, out, row, other, factor), code


# -- squares ---------------------------------------------------------------------------------------


@primitive
def transpose_square(
    typing: Any, panel: Any, row: Any, lane: Any, out: Any, to_row: Any, to_lane: Any
) -> Any:
    """Write the transpose of the square at panel[row, lane] to out[to_row, to_lane]."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        origin = _number(context, builder, signature, args, 0, 1, 2)
        to = _number(context, builder, signature, args, 3, 4, 5)
        _write_square(
            builder, _transpose(builder, _read_square(context, builder, panel, origin)), to
        )
        return context.get_dummy_value()

    return types.void(panel, row, lane, out, to_row, to_lane), code


@primitive
def add_transposes(
    typing: Any, panel: Any, row: Any, lane: Any, other: Any, at_row: Any, at_lane: Any
) -> Any:
    """Add to the square at panel[row, lane] the transpose of that at other[at_row, at_lane].

    The other becomes the transpose of the sum.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = _number(context, builder, signature, args, 0, 1, 2)
        two = _number(context, builder, signature, args, 3, 4, 5)
        turned = _transpose(builder, _read_square(context, builder, panel, two))
        kept = _read_square(context, builder, panel, one)
        done = [builder.fadd(a, b) for a, b in zip(kept, turned, strict=True)]
        _write_square(builder, done, one)
        _write_square(builder, _transpose(builder, done), two)
        return context.get_dummy_value()

    return types.void(panel, row, lane, other, at_row, at_lane), code


# -- instructions ----------------------------------------------------------------------------------


def _of(sums: Any, context: Any) -> Any:
    """The vector of LLVM for one row of sums."""
    return context.get_value_type(sums.dtype)


def _each(builder: Any, values: Any, count: int) -> list[Any]:
    return [builder.extract_value(values, n) for n in range(count)]


def _cast(context: Any, builder: Any, sums: Any, of: Any, x: Any) -> Any:
    return context.cast(builder, x, of, sums.dtype.dtype)


def _number(
    context: Any,
    builder: Any,
    signature: Any,
    args: Any,
    which: int,
    row: int,
    lane: int | None = None,
) -> Any:
    """The place of a number of the panel in args[which]; row and lane are arguments too."""
    panel = signature.args[which]
    array = context.make_array(panel)(context, builder, args[which])
    count = Lanes(panel.dtype, PANEL_BYTES).count
    place = context.cast(builder, args[row], signature.args[row], types.intp)
    place = builder.mul(place, place.type(count))
    if lane is not None:
        place = builder.add(
            place, context.cast(builder, args[lane], signature.args[lane], types.intp)
        )
    return builder.gep(array.data, [place])


def _after(builder: Any, place: Any, count: int) -> Any:
    return builder.gep(place, [INDEX(count)])


def _read(builder: Any, place: Any, vector: Any) -> Any:
    size = 4 if isinstance(vector.element, ir.FloatType) else 8
    return builder.load(builder.bitcast(place, vector.as_pointer()), align=size)


def _write(builder: Any, value: Any, place: Any) -> None:
    size = 4 if isinstance(value.type.element, ir.FloatType) else 8
    builder.store(value, builder.bitcast(place, value.type.as_pointer()), align=size)


def _read_square(context: Any, builder: Any, panel: Any, place: Any) -> list[Any]:
    """The rows of a square."""
    kind, stride = Lanes(panel.dtype, SUM_BYTES), Lanes(panel.dtype, PANEL_BYTES).count
    vector = context.get_value_type(kind)
    return [_read(builder, _after(builder, place, n * stride), vector) for n in range(kind.count)]


def _write_square(builder: Any, rows: Sequence[Any], place: Any) -> None:
    stride = len(rows) * PANEL_BYTES // SUM_BYTES
    for n, row in enumerate(rows):
        _write(builder, row, _after(builder, place, n * stride))


def _transpose(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """The transpose of a square: for each power of two, blocks off the diagonal change places."""
    rows, count = list(rows), len(rows)
    step = 1
    while step < count:
        upper = [lane if not lane & step else count + lane - step for lane in range(count)]
        lower = [count + lane if lane & step else lane + step for lane in range(count)]
        for n in range(count):
            if not n & step:
                pair = rows[n], rows[n + step]
                rows[n] = builder.shuffle_vector(*pair, indices(upper))
                rows[n + step] = builder.shuffle_vector(*pair, indices(lower))
        step *= 2
    return rows
