"""Products of matrices by square tiles, for compiled loops (extra `fast`).

A matrix is held as panels (panels, rows, width): as many columns as a cache line has numbers, 16 of
float32 or 8 of float64, its rows and columns padded by zeros to whole tiles. A product reads both
factors row by row, so it is left^T right; the sums of a few rows by one panel stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from atlas_ref.backend.compiled.lanes import INDEX, ROUND_ONCE, SUM_BYTES, Lanes, compiled
from atlas_ref.backend.compiled.panels import PANEL_BYTES
from atlas_ref.types import Array

#: Rows whose sums a product holds at once: of two registers each, 12 of the 16 of AVX2, and for
#: what is left of a tile 8, which still hide the latency of a multiply-add.
MANY, FEW = 6, 4


# -- primitives ------------------------------------------------------------------------------------


@intrinsic
def width(typing: Any, panel: Any) -> Any:
    """Numbers of a row of a panel, and rows of a tile."""
    count = Lanes(panel.dtype, PANEL_BYTES).count
    return types.intp(panel), lambda *_: ir.Constant(ir.IntType(64), count)


@intrinsic
def side(typing: Any, panel: Any) -> Any:
    """Rows and columns of a square, which is transposed in registers; half of a tile's."""
    count = Lanes(panel.dtype, SUM_BYTES).count
    return types.intp(panel), lambda *_: ir.Constant(ir.IntType(64), count)


@intrinsic(prefer_literal=True)
def zero_sums(typing: Any, panel: Any, rows: Any) -> Any:
    """Zeros for the sums of `rows` rows, a constant, by one panel."""
    kind = types.UniTuple(Lanes(panel.dtype, PANEL_BYTES), rows.literal_value)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(kind), None)

    return kind(panel, rows), code


@intrinsic
def add_products(typing: Any, sums: Any, left: Any, lane: Any, right: Any, k: Any) -> Any:
    """sums[n] + left[k, lane + n] right[k], for every n."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = _number(context, builder, signature, args, 1, 4, 2)
        row = _read(builder, _number(context, builder, signature, args, 3, 4), _of(sums, context))
        done = []
        for n, value in enumerate(cgutils.unpack_tuple(builder, args[0], sums.count)):
            factor = _everywhere(builder, builder.load(_after(builder, first, n)), row.type)
            product = builder.fmul(factor, row, flags=ROUND_ONCE)
            done.append(builder.fadd(value, product, flags=ROUND_ONCE))
        return context.make_tuple(builder, sums, done)

    return sums(sums, left, lane, right, k), code


@intrinsic
def put(typing: Any, sums: Any, scale: Any, out: Any, row: Any) -> Any:
    """Write scale sums[n] into out[row + n], for every n."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _of(sums, context)
        factor = _everywhere(builder, _cast(context, builder, sums, scale, args[1]), vector)
        to = _number(context, builder, signature, args, 2, 3)
        for n, value in enumerate(cgutils.unpack_tuple(builder, args[0], sums.count)):
            value = builder.fmul(factor, value, flags=ROUND_ONCE)
            _write(builder, value, _after(builder, to, n * vector.count))
        return context.get_dummy_value()

    return types.void(sums, scale, out, row), code


@intrinsic
def put_sum(typing: Any, sums: Any, scale: Any, out: Any, row: Any, other: Any, factor: Any) -> Any:
    """Write scale sums[n] + factor other[row + n] into out[row + n], for every n."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _of(sums, context)
        scales = _everywhere(builder, _cast(context, builder, sums, scale, args[1]), vector)
        factors = _everywhere(builder, _cast(context, builder, sums, factor, args[5]), vector)
        to = _number(context, builder, signature, args, 2, 3)
        origin = _number(context, builder, signature, args, 4, 3)
        for n, value in enumerate(cgutils.unpack_tuple(builder, args[0], sums.count)):
            beside = _read(builder, _after(builder, origin, n * vector.count), vector)
            beside = builder.fmul(factors, beside, flags=ROUND_ONCE)
            value = builder.fmul(scales, value, flags=ROUND_ONCE)
            value = builder.fadd(value, beside, flags=ROUND_ONCE)
            _write(builder, value, _after(builder, to, n * vector.count))
        return context.get_dummy_value()

    return types.void(sums, scale, out, row, other, factor), code


@intrinsic
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


@intrinsic
def add_transposes(
    typing: Any, panel: Any, row: Any, lane: Any, other: Any, at_row: Any, at_lane: Any
) -> Any:
    """Add the transpose of the square at other[at_row, at_lane] to that at panel[row, lane]; the
    first becomes the transpose of the sum.
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


def _everywhere(builder: Any, x: Any, vector: Any) -> Any:
    """A number in every lane."""
    none = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(none, x, INDEX(0))
    return builder.shuffle_vector(first, none, _indices([0] * vector.count))


def _indices(places: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(INDEX, len(places)), list(places))


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
                rows[n] = builder.shuffle_vector(*pair, _indices(upper))
                rows[n + step] = builder.shuffle_vector(*pair, _indices(lower))
        step *= 2
    return rows


# -- products --------------------------------------------------------------------------------------


def _rows_of_product(rows: int) -> Callable[..., None]:
    """A function for the sums of `rows` rows of a product by one panel."""

    @compiled
    def rows_of_product(
        scale: Any,
        left: Array,
        lane: int,
        right: Array,
        inner: int,
        factor: Any,
        other: Array,
        out: Array,
        row: int,
    ) -> None:
        sums = zero_sums(left, rows)
        for k in range(inner):
            sums = add_products(sums, left, lane, right, k)
        if factor == 0:  # and the other may hold anything
            put(sums, scale, out, row)
        else:
            put_sum(sums, scale, out, row, other, factor)

    return rows_of_product


_many, _few = _rows_of_product(MANY), _rows_of_product(FEW)


@compiled
def product(
    scale: Any,
    left: Array,
    right: Array,
    inner: int,
    factor: Any,
    other: Array,
    out: Array,
    rows: int,
    symmetric: bool,
) -> None:
    """out = scale left^T right + factor other, whose first `rows` rows are wanted.

    Args:
        left (panels, inner, width), right (panels, inner, width).
        inner: terms of each sum; rows of padding beyond them are not read.
        other: not read where factor is 0; `out` itself is allowed.
        symmetric: whether the result is known to be, so that half of its tiles are copies.
    """
    of_tile = width(left[0])
    for p in range(-(-rows // of_tile)):
        first = p * of_tile
        end = min(rows - first, of_tile)
        for q in range(p if symmetric else 0, len(right)):
            lane = 0
            while lane < end:
                rest, row = end - lane, first + lane
                if rest <= FEW or MANY < rest <= 2 * FEW:
                    _few(scale, left[p], lane, right[q], inner, factor, other[q], out[q], row)
                    lane += FEW
                else:
                    _many(scale, left[p], lane, right[q], inner, factor, other[q], out[q], row)
                    lane += MANY
            if symmetric and q > p:
                _transpose_tile(out[q], first, out[p], q * of_tile)


@compiled
def transpose(panels: Array, out: Array) -> None:
    """Write the transpose of a matrix."""
    of_tile = width(out[0])
    for q in range(len(panels)):
        for p in range(len(out)):
            _transpose_tile(panels[q], p * of_tile, out[p], q * of_tile)


@compiled
def add_transpose(panels: Array) -> None:
    """X <- X + X^T."""
    of_square = side(panels[0])
    for i in range(2 * len(panels)):
        for j in range(i, 2 * len(panels)):
            one, two = panels[j // 2], panels[i // 2]
            of_one, of_two = j % 2 * of_square, i % 2 * of_square
            add_transposes(one, i * of_square, of_one, two, j * of_square, of_two)


@compiled
def _transpose_tile(panel: Array, row: int, out: Array, to_row: int) -> None:
    of_square = side(panel)
    for i in range(2):
        for j in range(2):
            across, down = i * of_square, j * of_square
            transpose_square(panel, row + across, down, out, to_row + down, across)


# -- panels and plain matrices ---------------------------------------------------------------------


@compiled
def enter(x: Array, panels: Array) -> None:
    """Write a matrix (rows, columns) into panels, and zeros beyond it."""
    rows, columns = x.shape
    of_tile = width(panels[0])
    panels[:] = 0
    for q in range(len(panels)):
        first = q * of_tile
        for i in range(rows):
            for lane in range(min(of_tile, columns - first)):
                panels[q, i, lane] = x[i, first + lane]


@compiled
def leave(panels: Array, x: Array) -> None:
    """Write panels into a matrix (rows, columns)."""
    rows, columns = x.shape
    of_tile = width(panels[0])
    for q in range(len(panels)):
        first = q * of_tile
        for i in range(rows):
            for lane in range(min(of_tile, columns - first)):
                x[i, first + lane] = panels[q, i, lane]
