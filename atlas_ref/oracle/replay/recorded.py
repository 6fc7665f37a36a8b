"""Recorded ops: the trace tensors of a file, checked against the case and brought into one form.

Specified in specs/replay.md (REPLAY-9, REPLAY-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.header import Header
from atlas_ref.oracle.cases.inputs import STORED, convert, same
from atlas_ref.oracle.replay.chunks import NAMES, Chunks, unroll
from atlas_ref.oracle.replay.loop import run_ops
from atlas_ref.oracle.replay.ops import tokens_of
from atlas_ref.oracle.replay.sequence import traced_of
from atlas_ref.oracle.replay.trace import Recorder, in_layout
from atlas_ref.types import Array

#: A result that stands for an op where the trace leaves it out.
STANDS_FOR = {"out/y": "y", "out/X": "X", "out/phi": "phi"}

#: Header keys that a trace and its case must share: they fix shapes and the meaning of a token.
SHARED = ("rule", "level", "window", "span", "feature_map")

#: Formats from the widest to the narrowest.
WIDEST_FIRST = ("float64", "float32", "float16", "bfloat16")


class Unread(ValueError):
    """A reading has an op at a token, or in a shape, that the trace does not have."""


class Recorded(NamedTuple):
    """One recorded op.

    Attributes:
        tensor: its name in the file, trace/S or out/y.
        op: S, or chunk/M.
        values: in float64; (L, T, ...) with matrices as d_out x d_phi.
        dtype: format of its file.
        labels: tokens of the axis of tokens: the first of each chunk, those that write; None for
            all of them.
        into: the op of the loop that has these values, or the state that starts with them; "" for
            none.
    """

    tensor: str
    op: str
    values: np.ndarray[Any, Any]
    dtype: str
    labels: tuple[int, ...] | None = None
    into: str = ""

    def of(self, place: int, lead: int) -> Array:
        """The values at one place of the axis of tokens."""
        return self.values[(slice(None),) * lead + (place,)]

    def at(self, t: int, lead: int) -> Array:
        """The values at a token.

        Raises:
            Unread: none are recorded there.
        """
        if self.labels is None:
            return self.of(t, lead)
        if t not in self.labels:
            raise Unread(f"{self.tensor}: nothing is recorded at token {t}")
        return self.of(self.labels.index(t), lead)


def recorded_ops(
    case: Case, mine: Mapping[str, Any], cut: Chunks | None, *, label: str = "trace"
) -> dict[str, Recorded]:
    """The recorded ops by name.

    Those of chunks come first, then the others in the order of the loop, then adjoints from the
    last op to the first.

    Args:
        cut: how chunk tensors are cut; None where the size of a chunk is unknown.
        label: what messages call `mine`: the name of its file.

    Raises:
        CaseError: an op that the case does not have, another shape, a dtype that is not floating,
            chunk tensors without the size of a chunk, inputs that differ from the case's.
    """
    _check_inputs(case, mine, label)
    shapes = op_shapes(case)
    by_name: dict[str, Recorded] = {}
    for tensor, value in mine.items():
        kind, _, name = tensor.partition("/")
        op = name if kind in ("trace", "trace_grad") else STANDS_FOR.get(tensor)
        if op is None or (tensor in STANDS_FOR and f"trace/{op}" in mine):
            continue
        if op not in shapes:
            raise CaseError(
                f"{label}: {tensor}: not an op of this case; it has {', '.join(shapes)}"
            )
        one = _one(tensor, op, value, shapes[op], case, label)
        by_name[tensor if kind == "trace_grad" else op] = (
            one._replace(op=tensor, into="") if kind == "trace_grad" else one
        )
    chunked = {
        name: _chunk_op(case, name, value, cut, shapes, label)
        for name, value in mine.items()
        if name.startswith("chunk/")
    }
    order = [
        *(name for name in NAMES if name in chunked),
        *shapes,
        *(f"trace_grad/{op}" for op in reversed(shapes)),
    ]
    return {name: (chunked | by_name)[name] for name in order if name in chunked or name in by_name}


def _chunk_op(
    case: Case,
    name: str,
    value: Any,
    cut: Chunks | None,
    shapes: Mapping[str, tuple[int, ...]],
    label: str,
) -> Recorded:
    """A tensor of a chunk kernel (REPLAY-19)."""
    if not traced_of(case).has_chunks:
        raise CaseError(f"{label}: {name}: the rule {case.header.rule} has no chunks")
    if cut is None:
        raise CaseError(
            f"{label}: {name}: how many tokens a chunk has is not said; the header key chunk "
            "is needed"
        )
    values, dtype = unroll(case, name, value, cut, shapes, label)
    if name in ("chunk/M", "chunk/S"):
        return Recorded(name, name, values, dtype, cut.starts[:-1], name.removeprefix("chunk/"))
    return Recorded(name, name, values, dtype, into="residual" if name == "chunk/E" else "")


def _one(
    tensor: str, op: str, value: Any, shape: tuple[int, ...], case: Case, label: str
) -> Recorded:
    array = np.asarray(value)
    if array.dtype.name not in STORED:
        raise CaseError(
            f"{label}: {tensor}: dtype {array.dtype.name}, {', '.join(STORED)} are needed"
        )
    if array.shape != shape:
        raise CaseError(f"{label}: {tensor}: shape {array.shape}, expected {shape}")
    return Recorded(
        tensor,
        op,
        np.asarray(in_layout(case, op, array.astype(np.float64))),
        array.dtype.name,
        labels=tokens_of(case, op),
        into=op,
    )


def op_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """The shape of `trace/OP` for every op, in the order of the loop."""
    recorder = Recorder(case)
    with np.errstate(all="ignore"):
        run_ops(case, convert(case, "float64"), recorder)
    return {name: value.shape for name, value in recorder.tensors().items()}


def _check_inputs(case: Case, mine: Mapping[str, Any], label: str) -> None:
    """Refuse a trace with inputs other than the case's, which may be rounded to its format."""
    for name, value in mine.items():
        if not name.startswith("in/"):
            continue
        if name not in case.inputs:
            raise CaseError(
                f"{label}: {name}: the case has no such input; this is the trace of another case"
            )
        own, other = case.inputs[name], np.asarray(value)
        if own.shape != other.shape:
            raise CaseError(
                f"{label}: {name}: shape {other.shape}, the case has {own.shape}; this is the "
                "trace of another case"
            )
        if not same(other, own):
            raise CaseError(
                f"{label}: {name}: not the numbers of the case; this is the trace of another case"
            )


def check_header(case: Case, header: Header, label: str) -> None:
    """Refuse a trace whose header says that it belongs to another case.

    Raises:
        CaseError: names the key and both values.
    """
    for key in SHARED:
        own, other = getattr(case.header, key), getattr(header, key)
        if own != other:
            raise CaseError(
                f"{label}: {key}: {_show(other)}, the case has {_show(own)}; this is the "
                "trace of another case"
            )


def _show(value: Any) -> str:
    return str(getattr(value, "kind", value))


def narrowest(trace: Mapping[str, Recorded]) -> str:
    """The narrowest format among recorded tensors, from which their arithmetic follows."""
    return max((each.dtype for each in trace.values()), key=WIDEST_FIRST.index)
