"""Numba's types of the arguments of the compiled loop over tokens; plain twin:
`atlas_ref.forms.chunked_plain`.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from atlas_ref.engine.compiled.arguments import Gates, How, Kept, Room, Tokens


def types_of(name: str, kind: Any, *, momentum: bool, rows: bool) -> tuple[Any, ...]:
    """Types of the arguments of "forward" or "backward" for a dtype; inputs are read-only.

    Args:
        momentum: whether there is a momentum.
        rows: whether gates have one number an output dimension.
    """
    number, flag, count = numba.from_dtype(kind), types.boolean, types.intp
    (row, rows_in, rows_out), states = (
        (
            types.Array(number, 1, "C", readonly=True),
            types.Array(number, 2, "C", readonly=True),
            types.Array(number, 2, "C"),
        ),
        types.Array(number, 3, "C"),
    )
    gate, d_gate = (rows_in, rows_out) if rows else (row, types.Array(number, 1, "C"))

    def of_fields(fields: tuple[Any, ...], name: Any) -> Any:
        if len(set(fields)) == 1:  # which Numba tells apart
            return types.NamedUniTuple(fields[0], len(fields), name)  # type: ignore[no-untyped-call]  # Numba has no types
        return types.NamedTuple(fields, name)  # type: ignore[no-untyped-call]  # Numba has no types

    tokens = of_fields((rows_in, rows_in, rows_in), Tokens)
    gates = of_fields((gate, gate, gate, gate, rows_in), Gates)
    how = of_fields((count, count, flag, flag, count, count), How)
    kept = of_fields((rows_out, states, states), Kept)
    room = of_fields((states, states, *[rows_out] * 4), Room)
    S = rows_out if momentum else types.none
    if name == "forward":
        return (tokens, gates, how, rows_out, S, rows_out, kept, room)
    d_tokens = of_fields((rows_out, rows_out, rows_out), Tokens)
    d_gates = of_fields((d_gate, d_gate, d_gate, d_gate, rows_out), Gates)
    return (tokens, gates, how, kept, rows_out, rows_in, rows_out, S, d_tokens, d_gates, room)
