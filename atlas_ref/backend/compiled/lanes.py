"""Vectors of numbers that stay in registers, for compiled loops (extra `fast`).

A `Lanes` holds 128 bytes of float32 or float64, which LLVM splits into the registers of the
processor. Numba vectorises a loop only where LLVM finds it worth while; a loop over lanes is vector
code on every processor. Arrays have rows of one `Lanes`: (rows, 32) float32 or (rows, 16) float64,
contiguous. Products and sums may round once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

from atlas_ref.backend.compiled import LANES_BYTES, SUM_BYTES

ROUND_ONCE = ("contract",)
INDEX = ir.IntType(32)
#: Overflow makes an infinity, as in NumPy. Nothing is allocated, so references of arrays need no
#: counts.
SETTINGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that other compiled ones call."""
    made: Callable[P, R] = numba.njit(fastmath=set(ROUND_ONCE), **SETTINGS)(function)
    return made


def on_disk(
    function: Callable[P, R], arguments: Sequence[Any], *, allocates: bool = False
) -> Callable[P, R]:
    """Compile a function of these types to None, and keep the code on disk for the next process if
    possible.
    """
    settings = SETTINGS | {"fastmath": set(ROUND_ONCE), "_nrt": allocates}
    signature = types.void(*arguments)
    try:
        made = numba.njit(cache=True, **settings)(function)
        # else Numba asks for the stamp of the one file that the function is in
        made._cache._cache_file._source_stamp = _stamp(function)
        made.compile(signature)
    except Exception:  # no folder or no room to write to, or a damaged file
        made = numba.njit(**settings)(function)
        made.compile(signature)
    made.disable_compile()
    whole: Callable[P, R] = made
    return whole


def _stamp(function: Callable[..., Any]) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of all files that make the code of a function."""
    folders = {Path(__file__).parent, Path(function.__code__.co_filename).parent}
    files = sorted(path for folder in folders for path in folder.glob("*.py"))
    return tuple((path.name, (at := path.stat()).st_mtime_ns, at.st_size) for path in files)


def primitive(typing: Callable[..., Any]) -> Any:
    """A function of compiled code, of which `typing` says the type and writes the instructions."""
    return intrinsic(typing)


class Lanes(types.Type):
    """The Numba type of a vector."""

    def __init__(self, dtype: Any, size: int = LANES_BYTES) -> None:
        self.dtype = dtype
        self.count = 8 * size // dtype.bitwidth
        super().__init__(name=f"Lanes({dtype} x {self.count})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """A vector of LLVM."""

    def __init__(self, manager: Any, kind: Lanes) -> None:
        number = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
        vector = ir.VectorType(number, kind.count)
        super().__init__(manager, kind, vector)  # type: ignore[no-untyped-call]  # Numba has no types


# -- loads and stores ------------------------------------------------------------------------------


@primitive
def load(typing: Any, array: Any, row: Any) -> Any:
    """Row `row` of an array (rows, lanes)."""
    kind = Lanes(array.dtype)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load(context, builder, kind, _row(context, builder, signature, args))

    return kind(array, row), code


@primitive
def store(typing: Any, array: Any, row: Any, x: Any) -> Any:
    """Write row `row` of an array (rows, lanes)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(context, builder, x, args[2], _row(context, builder, signature, args))
        return context.get_dummy_value()

    return types.void(array, row, x), code


@primitive
def zeros(typing: Any, array: Any) -> Any:
    """A vector of zeros of the array's type."""
    kind = Lanes(array.dtype)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(kind), None)

    return kind(array), code


def _row(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The place of a row of lanes."""
    return _place(context, builder, signature, args, Lanes(signature.args[0].dtype).count)


def _place(context: Any, builder: Any, signature: Any, args: Any, stride: int) -> Any:
    """The place of number `index * stride` of a contiguous array."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    index = context.cast(builder, args[1], signature.args[1], types.intp)
    return builder.gep(array.data, [builder.mul(index, index.type(stride))])


def _load(context: Any, builder: Any, kind: Lanes, place: Any, first: int = 0) -> Any:
    """The vector that starts `first` numbers after a place."""
    vector = context.get_value_type(kind)
    place = builder.gep(place, [INDEX(first)]) if first else place
    place = builder.bitcast(place, vector.as_pointer())
    return builder.load(place, align=kind.dtype.bitwidth // 8)


def _store(context: Any, builder: Any, kind: Lanes, x: Any, place: Any) -> None:
    place = builder.bitcast(place, context.get_value_type(kind).as_pointer())
    builder.store(x, place, align=kind.dtype.bitwidth // 8)


# -- arithmetic ------------------------------------------------------------------------------------


def _operation(name: str) -> Any:
    """An operation of two vectors, or of one and a number, which then stands in every lane."""

    @primitive
    def operation(typing: Any, a: Any, b: Any) -> Any:
        kind = a if isinstance(a, Lanes) else b

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = (
                x if isinstance(each, Lanes) else _spread(context, builder, kind, each, x)
                for x, each in zip(args, signature.args, strict=True)
            )
            return getattr(builder, name)(*values, flags=ROUND_ONCE)

        return kind(a, b), code

    return operation


def _spread(context: Any, builder: Any, kind: Lanes, of: Any, x: Any) -> Any:
    """A number in every lane."""
    x = context.cast(builder, x, of, kind.dtype)
    return everywhere(builder, x, context.get_value_type(kind))


def everywhere(builder: Any, x: Any, vector: Any) -> Any:
    """A number of LLVM in every lane of a vector."""
    none = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(none, x, INDEX(0))
    return builder.shuffle_vector(first, none, indices([0] * vector.count))


def indices(places: Sequence[int]) -> Any:
    """The lanes that a shuffle takes, as a constant of LLVM."""
    return ir.Constant(ir.VectorType(INDEX, len(places)), list(places))


def _register(symbol: Any, name: str) -> None:
    operation = _operation(name)

    @overload(symbol, strict=False)
    def of_lanes(a: Any, b: Any) -> Any:
        if isinstance(a, Lanes) or isinstance(b, Lanes):
            return lambda a, b: operation(a, b)
        return None


for _symbol, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _register(_symbol, _name)


@primitive
def rows_at_once(typing: Any, array: Any) -> Any:
    """Rows that `add_row_sums` takes at once."""
    count = Lanes(array.dtype, SUM_BYTES).count
    return types.intp(array), lambda *_: ir.Constant(ir.IntType(64), count)


# -- sums ------------------------------------------------------------------------------------------


@primitive
def total(typing: Any, x: Any) -> Any:
    """The sum of all lanes, by halves."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, count = args[0], x.count
        while count > 1:
            count //= 2
            none = ir.Constant(value.type, ir.Undefined)
            halves = (
                builder.shuffle_vector(value, none, indices(range(first, first + count)))
                for first in (0, count)
            )
            value = builder.fadd(*halves)
        return builder.extract_element(value, INDEX(0))

    return x.dtype(x), code


@primitive
def add_row_sums(typing: Any, array: Any, row: Any, x: Any, out: Any) -> Any:
    """Add sum_j array[row + n, j] x[j] to out[row + n], for the n of one register.

    Lanes are summed by quarters, then by neighbours.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _add_row_sums(context, builder, signature, args, [(2, 3)])
        return context.get_dummy_value()

    return types.void(array, row, x, out), code


@primitive
def add_two_row_sums(
    typing: Any, array: Any, row: Any, x: Any, out: Any, x_2: Any, out_2: Any
) -> Any:
    """`add_row_sums` of two vectors, with one pass over the rows."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _add_row_sums(context, builder, signature, args, [(2, 3), (4, 5)])
        return context.get_dummy_value()

    return types.void(array, row, x, out, x_2, out_2), code


@primitive
def add_sums_and_products(
    typing: Any, array: Any, row: Any, x: Any, out: Any, x_2: Any, out_2: Any, by: Any, out_3: Any
) -> Any:
    """`add_two_row_sums`, and of the rows times those of the array `by`, with one pass."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _add_row_sums(context, builder, signature, args, [(2, 3), (4, 5), (6, 7)])
        return context.get_dummy_value()

    return types.void(array, row, x, out, x_2, out_2, by, out_3), code


def _add_row_sums(
    context: Any, builder: Any, signature: Any, args: Any, pairs: Sequence[tuple[int, int]]
) -> None:
    """Add row sums for pairs of a vector or an array and an array, by their places in the
    arguments.
    """
    lanes = signature.args[pairs[0][0]]
    part = Lanes(lanes.dtype, SUM_BYTES)
    firsts = range(0, lanes.count, part.count)
    place = _row(context, builder, signature, args)
    factors = [_quarters(context, builder, signature, args, x, part, firsts) for x, _ in pairs]
    sums: list[list[Any]] = [[] for _ in pairs]
    for n in range(part.count):
        first = n * lanes.count
        row = [_load(context, builder, part, place, first + each) for each in firsts]
        for of_vector, factor in zip(sums, factors, strict=True):
            each = factor(first)
            value = builder.fmul(row[0], each[0], flags=ROUND_ONCE)
            for y, x in zip(row[1:], each[1:], strict=True):
                value = builder.fadd(value, builder.fmul(y, x, flags=ROUND_ONCE), ROUND_ONCE)
            of_vector.append(value)
    for (_, out), vectors in zip(pairs, sums, strict=True):
        types_of, values = (signature.args[out], signature.args[1]), (args[out], args[1])
        place = _place(context, builder, signature.return_type(*types_of), values, 1)
        before = _load(context, builder, part, place)
        total_of_each = _sums_of_each(builder, vectors)
        _store(context, builder, part, builder.fadd(before, total_of_each), place)


def _quarters(
    context: Any, builder: Any, signature: Any, args: Any, x: int, part: Lanes, firsts: Any
) -> Callable[[int], list[Any]]:
    """The registers of a vector, the same for every row, or of a row of an array."""
    if isinstance(signature.args[x], Lanes):
        none = ir.Constant(args[x].type, ir.Undefined)
        registers = [
            builder.shuffle_vector(args[x], none, indices(range(f, f + part.count))) for f in firsts
        ]
        return lambda first: registers
    types_of, values = (signature.args[x], signature.args[1]), (args[x], args[1])
    place = _row(context, builder, signature.return_type(*types_of), values)
    return lambda first: [_load(context, builder, part, place, first + each) for each in firsts]


def _sums_of_each(builder: Any, vectors: list[Any]) -> Any:
    """The sums of as many vectors as each has numbers, in their order.

    Shuffles stay within the halves of a register of AVX2 until the last step.
    """
    count = vectors[0].type.count
    half = count // 2
    while len(vectors) > 2:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        places = [
            [
                which * count + lane + 2 * n + odd
                for lane in (0, half)
                for which in (0, 1)
                for n in range(half // 2)
            ]
            for odd in (0, 1)
        ]
        vectors = [
            builder.fadd(*(builder.shuffle_vector(a, b, indices(each)) for each in places))
            for a, b in pairs
        ]
    a, b = vectors
    low, high = ([lane + w * count + n for w in (0, 1) for n in range(half)] for lane in (0, half))
    return builder.fadd(*(builder.shuffle_vector(a, b, indices(each)) for each in (low, high)))
