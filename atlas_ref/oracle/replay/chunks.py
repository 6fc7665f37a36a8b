"""Tensors of chunk kernels as ops of the loop: initial states, residuals by column and the
triangular matrix.

chunk/M and chunk/S are the states before the first token of each chunk. chunk/E has the residuals
of a chunk, and chunk/A is the unit lower triangular matrix of the exact form. Specified in
specs/replay.md (REPLAY-19 to REPLAY-22).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.inputs import STORED
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.family.state import Inputs, Structure, windows
from atlas_ref.oracle.replay.sequence import leading
from atlas_ref.oracle.subjects.memory import GATE_NAMES
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array
from tape import ops

#: The tensors, in the order in which a chunk computes them, with their clauses.
NAMES = {"chunk/A": "EXACT-2", "chunk/S": "CHUNK-8", "chunk/M": "CHUNK-8", "chunk/E": "CHUNK-6"}


class Chunks(NamedTuple):
    """Chunks of a call: `size` tokens at most, never across a reset or the start of a span.

    Attributes:
        starts: first token of each chunk, then the number of tokens.
        fresh: whether a chunk starts from the initial state of the case.
    """

    size: int
    starts: tuple[int, ...]
    fresh: tuple[bool, ...]

    @property
    def number(self) -> int:
        return len(self.fresh)

    def of(self, t: int) -> int:
        """The chunk of a token."""
        return int(np.searchsorted(self.starts, t, side="right")) - 1


def chunks(case: Case, size: int) -> Chunks:
    """Cut a case into chunks (CHUNK-14, REPLAY-19)."""
    T = case.inputs["in/x" if case.header.level == "token" else "in/k"].shape[-2]
    reset = (
        np.asarray(case.inputs["in/reset"]).astype(bool)
        if "in/reset" in case.inputs
        else np.zeros(T, bool)
    )
    segments, position, starts, fresh = _segment_starts(case, T, reset), 0, [], []
    for t in range(T):
        position = 0 if t in segments else position
        if position % size == 0:
            starts.append(t)
            fresh.append(t == 0 or bool(reset[t]))
        position += 1
    return Chunks(size, (*starts, T), tuple(fresh))


def _segment_starts(case: Case, T: int, reset: np.ndarray[Any, Any]) -> set[int]:
    """Tokens at which a packed sequence or a span starts."""
    starts = {0, *np.nonzero(reset)[0].tolist()}
    convention, span = case.convention, case.header.span
    if (
        span is None
        or convention.reference == "call_start"
        or "chunk_start" not in (convention.reference, convention.read)
    ):
        return starts
    first = 1 % span if convention.span_origin == "multiple" else 0
    position = first if case.header.phase is None else case.header.phase
    for t in range(T):
        position = first if reset[t] else position
        if position == 0:
            starts.add(t)
        position = (position + 1) % span
    return starts


# -- recorded values -------------------------------------------------------------------------------


def unroll(
    case: Case,
    name: str,
    value: Any,
    cut: Chunks,
    shapes: Mapping[str, tuple[int, ...]],
    label: str,
) -> tuple[Array, str]:
    """A chunk tensor in float64 and per token or chunk, and its dtype.

    Returns:
        chunk/M, chunk/S: (L, chunks, d_out, d_phi). chunk/E: (L, T, c, d_out), as trace/residual.
            chunk/A: (L, T, ..., rows
        of the token, columns).

    Raises:
        CaseError: a tensor that this case does not have, another shape, a dtype that is not
            floating.
    """
    array = np.asarray(value)
    if array.dtype.name not in STORED:
        raise CaseError(
            f"{label}: {name}: dtype {array.dtype.name}, {', '.join(STORED)} are needed"
        )
    refused = _refusal(case, name, shapes)
    if refused:
        raise CaseError(f"{label}: {name}: {refused}")
    expected = _shape(case, name, cut, shapes)
    if array.shape != expected:
        raise CaseError(
            f"{label}: {name}: shape {array.shape}, expected {expected} for "
            f"{_number(cut.number, 'chunk')} of {_number(cut.size, 'token')}"
        )
    wide, kind = array.astype(np.float64), array.dtype.name
    if name in ("chunk/M", "chunk/S"):
        return (wide.swapaxes(-1, -2) if case.convention.layout == "transposed" else wide), kind
    return (_rows_of_A if name == "chunk/A" else _rows_of_E)(case, wide, cut, shapes), kind


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _refusal(case: Case, name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    convention, running = case.convention, case.convention.reference == "running"
    if name not in NAMES:
        return f"not a tensor of chunks; they are {', '.join(NAMES)}"
    if name == "chunk/S" and "S" not in shapes:
        return f"{case.header.rule} has no momentum"
    if name in ("chunk/A", "chunk/E") and "residual" not in shapes:
        return f"{case.header.rule} has no residual"
    if name == "chunk/A" and (not running or convention.has_newton_schulz):
        return "the exact form alone has it: reference running, without Newton-Schulz"
    if name == "chunk/A" and "S" in shapes and convention.momentum_kind == "delta_momentum":
        return "momentum_kind delta_momentum is known only with each gradient, so no chunk has it"
    if name == "chunk/A" and convention.memory_ceiling != "none":
        return "no chunk of memories under memory_ceiling is affine in the one before it"
    decays = (
        not running
        and convention.decay == "before_error"
        and convention.reference not in ("zero", "surrogate")
    )
    if name == "chunk/E" and decays and case.header.window > 1 and "P" not in shapes:
        return (
            "under a frozen reference with decay before_error a column has no residual of its own "
            "(CHUNK-10)"
        )
    return ""


def _lead(case: Case, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    return shapes["phi_k"][: leading(case)]


def _shape(
    case: Case, name: str, cut: Chunks, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    lead, M = _lead(case, shapes), shapes["M"][-2:]
    if name in ("chunk/M", "chunk/S"):
        return (*lead, cut.number, *M)
    rows = cut.size * places(case)
    if name == "chunk/A":
        per_dimension = (shapes["residual"][-1],) if _per_dimension(case) else ()
        return (*lead, cut.number, *per_dimension, rows, rows)
    history = (
        0
        if case.convention.reference == "running" or _momentum_first(case)
        else case.header.window - 1
    )
    return (*lead, cut.number, history + rows, shapes["residual"][-1])


def _momentum_first(case: Case) -> bool:
    return FAMILY[case.header.rule].has_window and case.convention.order == "momentum_then_window"


def places(case: Case) -> int:
    """Unknowns of a token: one per lag under the running reference, else one.

    Source: EXACT-3, EXACT-11.
    """
    return (
        case.header.window
        if case.convention.reference == "running" and not _momentum_first(case)
        else 1
    )


def _per_dimension(case: Case) -> bool:
    if case.header.level == "token":
        return any(
            case.inputs[f"in/param/W_{g}"].shape[-2] > 1
            for g in GATE_NAMES
            if f"in/param/W_{g}" in case.inputs
        )
    gates = (
        "in/retain",
        "in/log_retain",
        "in/momentum",
        "in/log_momentum",
        "in/step_size",
        "in/step_size_memory",
    )
    return any(
        case.inputs[name].ndim == case.inputs["in/k"].ndim for name in gates if name in case.inputs
    )


def _rows_of_A(
    case: Case, wide: Array, cut: Chunks, shapes: Mapping[str, tuple[int, ...]]
) -> Array:
    """(L, chunks, ..., rows, columns) -> (L, T, ..., rows of a token, columns)."""
    lead, c = len(_lead(case, shapes)), places(case)
    rows = []
    for t in range(cut.starts[-1]):
        i = cut.of(t)
        row = (t - cut.starts[i]) * c
        rows.append(np.moveaxis(wide, lead, 0)[i][..., row : row + c, :])
    return np.stack(rows, axis=lead)


def _rows_of_E(
    case: Case, wide: Array, cut: Chunks, shapes: Mapping[str, tuple[int, ...]]
) -> Array:
    """(L, chunks, rows, d_out) -> (L, T, c, d_out) by lag, 0 where the other order has no row."""
    lead, c = len(_lead(case, shapes)), case.header.window
    by_chunk = np.moveaxis(wide, lead, 0)
    rows = []
    for t in range(cut.starts[-1]):
        i = cut.of(t)
        own, at = by_chunk[i], t - cut.starts[i]
        if _momentum_first(case):
            row = np.pad(own[..., at : at + 1, :], [(0, 0)] * lead + [(0, c - 1), (0, 0)])
        elif places(case) == c:
            row = own[..., at * c : (at + 1) * c, :]
        else:
            row = own[..., at : at + c, :][..., ::-1, :]  # columns run from the oldest token
        rows.append(row)
    return np.stack(rows, axis=lead)


# -- expected values -------------------------------------------------------------------------------


def initial(case: Case, inputs: Mapping[str, Array], name: str, like: Array) -> Array:
    """M_0 or S_0 of the call, d_out x d_phi; zero without a tensor."""
    matrix = inputs.get(f"in/{name}0")
    if matrix is None:
        return np.zeros_like(like)
    return matrix.swapaxes(-1, -2) if case.convention.layout == "transposed" else matrix


def system(case: Case, structure: Structure, inputs: Inputs, way: Arithmetic, cut: Chunks) -> Array:
    """The triangular system of every chunk, by the rows of each token (EXACT-1 to EXACT-3,
    EXACT-11).

        L = I + tril(D' * Phi Phi^T)

    Chunks of fewer tokens are padded to full ones.

    Returns:
        (..., T, G, rows of a token, columns), G one, or one per output dimension.
    """
    c = places(case)
    rows = windows(structure, inputs, inputs.keys, inputs.window_keys, way)
    keys = [ops.flip(each, -2)[..., :c, :] for each in rows]  # by lag
    blocks = []
    for i in range(cut.number):
        tokens = range(cut.starts[i], cut.starts[i + 1])
        columns = np.concatenate([keys[t] for t in tokens], axis=-2)
        before = _rows(structure, inputs, tokens, c)
        for n, t in enumerate(tokens):
            scores = way.matmul(keys[t], columns.swapaxes(-1, -2))  # (..., c, columns)
            earlier = np.arange(columns.shape[-2]) < n * c
            # block has shape (..., G, c, columns)
            block = np.where(earlier, before[n][..., None, :] * scores[..., None, :, :], 0.0)
            block = block + np.eye(c, columns.shape[-2], n * c, dtype=block.dtype)
            padding = [(0, 0)] * (block.ndim - 1) + [(0, cut.size * c - block.shape[-1])]
            blocks.append(np.pad(block, padding))
    return np.stack(blocks, axis=-4)


def _rows(structure: Structure, inputs: Inputs, tokens: range, c: int) -> list[Array]:
    """D'_t over the columns of a chunk, (..., G, columns), for each of its tokens.

    Source: CHUNK-4, CHUNK-11, EXACT-1.
    """
    s, lead = inputs.scale, (*inputs.keys.shape[:-2], 1)
    D: Array = np.zeros((*lead, len(tokens) * c), inputs.keys.dtype)
    X, own, rows = D, list[Array](), list[Array]()
    for n, t in enumerate(tokens):
        r, m, a, b = _gates(inputs, t)
        rows.append(D if inputs.decay is None else r * D)
        unit = np.zeros((*lead, len(tokens) * c), D.dtype)
        unit[..., n * c : (n + 1) * c] = 1.0
        weights: Array = None  # by lag
        if inputs.weights is not None:
            weights = inputs.weights[..., t, ::-1, 0]
        if structure.order == "momentum_then_window":
            own.append(m * (own[-1] if own else D * 0.0) + s * a * unit)
            entering = sum(
                weights[..., j, None, None] * own[-1 - j]
                for j in range(min(structure.window, len(own)))
            )
            D = r * D + b * entering
            continue
        w = unit if weights is None else unit * 0.0
        if weights is not None:
            w[..., n * c : (n + 1) * c] = np.where(inputs.exists[t], weights, 0.0)[..., None, :]
        X = m * X + a * (s * w)
        D = r * D + b * X
    return rows


def _gates(inputs: Inputs, t: int) -> tuple[Any, Any, Any, Any]:
    """r, m, a, b of a token; 1, 1, 0, 0 at an inactive one (CHUNK-2).

    The factor a of a gradient in an average has its share 1 - m (CONV-64).
    """
    if not inputs.active[t]:
        return 1.0, 1.0, 0.0, 0.0
    momentum = None if inputs.S0 is None else inputs.momentum
    columns = (inputs.retain, momentum, inputs.a, inputs.b, inputs.share)
    r, m, a, b, share = (
        absent if column is None else column[..., t, :, :]
        for column, absent in zip(columns, (1.0, 0.0, 1.0, 1.0, 1.0), strict=True)
    )
    return r, m, share * a, b
