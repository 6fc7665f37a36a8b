"""Rows of panels as vectors, and their exponential, for compiled loops (extra `fast`).

A panel is an array (rows, width), as in `atlas_ref.backend.compiled.tiles`; a row is a vector.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from atlas_ref.backend.compiled.lanes import ROUND_ONCE, Lanes, _place, primitive
from atlas_ref.backend.compiled.panels import PANEL_BYTES
from atlas_ref.backend.compiled.tiles import _number, _read, _write


class Digits(NamedTuple):
    """Numbers of an exponential.

    Attributes:
        bits, mantissa: of a number, and of them those after the point.
        terms: of the series of exp on +-log(2)/2, of which the next is beyond the last place.
        low: below which the result is 0, before it would lose digits.
        high: log(2) without its last digits, so that a product with a small whole number is exact.
    """

    bits: int
    mantissa: int
    terms: int
    low: float
    high: float


DIGITS = {
    32: Digits(32, 23, 8, -87.0, 0.693359375),
    64: Digits(64, 52, 14, -708.0, 0.6931471803691238),
}


@primitive
def row_of(typing: Any, panel: Any, row: Any) -> Any:
    """Row `row` of a panel."""
    kind = Lanes(panel.dtype, PANEL_BYTES)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _read(
            builder,
            _number(context, builder, signature, args, 0, 1),
            context.get_value_type(kind),
        )

    return kind(panel, row), code


@primitive
def put_row(typing: Any, panel: Any, row: Any, x: Any) -> Any:
    """Write a vector into row `row` of a panel."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write(builder, args[2], _number(context, builder, signature, args, 0, 1))
        return context.get_dummy_value()

    return types.void(panel, row, x), code


@primitive
def part_of(typing: Any, line: Any, first: Any) -> Any:
    """The numbers of a contiguous array of one axis from `first` on, as many as a row has."""
    kind = Lanes(line.dtype, PANEL_BYTES)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature, args, 1)
        return _read(builder, place, context.get_value_type(kind))

    return kind(line, first), code


@primitive
def put_part(typing: Any, line: Any, first: Any, x: Any) -> Any:
    """Write a vector into a contiguous array of one axis, from `first` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write(builder, args[2], _place(context, builder, signature, args, 1))
        return context.get_dummy_value()

    return types.void(line, first, x), code


@primitive
def larger(typing: Any, a: Any, b: Any) -> Any:
    """The larger of two vectors, lane by lane; nan where the first is nan."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[1], args[0])

    return a(a, b), code


@primitive
def by_sign(typing: Any, x: Any, negative: Any, other: Any) -> Any:
    """`negative` in the lanes where x is below 0, else `other`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(args[0].type, None)
        below = builder.fcmp_ordered("<", args[0], zero)
        return builder.select(below, args[1], args[2])

    return x(x, negative, other), code


@primitive
def quotient(typing: Any, a: Any, b: Any) -> Any:
    """a / b, lane by lane."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fdiv(*args)

    return a(a, b), code


@primitive
def exponential(typing: Any, x: Any) -> Any:
    """exp(x), lane by lane, for x at most 0: 2^n times the series of the rest; 0 far below.

    A large number is added and taken away again to round to a whole n, whose bits then stand last.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        digits, vector = DIGITS[x.dtype.bitwidth], context.get_value_type(x)
        integers = ir.VectorType(ir.IntType(digits.bits), x.count)

        def every(value: float) -> Any:
            return ir.Constant(vector, [value] * x.count)

        def times(a: Any, b: Any, c: Any) -> Any:
            return builder.fadd(builder.fmul(a, b, flags=ROUND_ONCE), c, flags=ROUND_ONCE)

        small = builder.fcmp_ordered("<", args[0], every(digits.low))
        value = builder.select(small, every(digits.low), args[0])
        shift = every(1.5 * 2.0**digits.mantissa)
        shifted = times(value, every(1.0 / math.log(2.0)), shift)
        n = builder.fsub(shifted, shift)
        rest = times(n, every(-digits.high), value)
        rest = times(n, every(digits.high - math.log(2.0)), rest)
        series = every(1.0 / math.factorial(digits.terms - 1))
        for k in range(digits.terms - 2, -1, -1):
            series = times(series, rest, every(1.0 / math.factorial(k)))
        places = ir.Constant(integers, [digits.mantissa] * x.count)
        power = builder.shl(builder.bitcast(shifted, integers), places)
        result = builder.bitcast(builder.add(builder.bitcast(series, integers), power), vector)
        result = builder.select(small, every(0.0), result)
        return builder.select(builder.fcmp_unordered("uno", args[0], args[0]), args[0], result)

    return x(x), code
