"""Trace of a case: every quantity of the sequential loop, token by token, and its adjoint.

Specified in specs/replay.md (REPLAY-1 to REPLAY-8) and specs/case.md (CASE-15).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle import evaluate
from atlas_ref.oracle.cases.case import Case, CaseError, refuse, require_supported
from atlas_ref.oracle.cases.inputs import STORED, check_dtype, check_size, convert, round_inputs
from atlas_ref.oracle.cases.masks import refuse_rows
from atlas_ref.oracle.cases.tensors import seeds
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.loop import run_ops
from atlas_ref.oracle.replay.ops import is_matrix, ops_of, tokens_of
from atlas_ref.oracle.replay.sequence import leading
from atlas_ref.types import Array
from tape import vjp


def trace(
    case: Case, *, grad: bool = False, dtype: str = "float64"
) -> dict[str, np.ndarray[Any, Any]]:
    """Every quantity of the sequential loop (REPLAY-1).

    Args:
        grad: also the adjoints, `trace_grad/OP`: the derivative of what the cotangents weigh by the
            quantity, everything after it following and everything before it fixed (REPLAY-7).
        dtype: float64, float32, or bfloat16 or float16 for inputs and traced tensors of that format
            around float32 arithmetic.

    Returns:
        `trace/OP` (L, T, ...) in the order of the loop, then `trace_grad/OP`.

    Raises:
        CaseError: no cotangent, an unknown dtype, an input that the dtype cannot hold.
        Unsupported: a reserved rule.
    """
    require_traced(case, "a trace")
    check_dtype(case.name, dtype)
    check_size(case)
    inputs = arithmetic_inputs(case, dtype)
    recorder = Recorder(case)
    with np.errstate(all="ignore"):
        run_ops(case, inputs, recorder)
        tensors = {f"trace/{name}": value for name, value in recorder.tensors().items()}
        if grad:
            tensors |= _adjoints(case, inputs, tensors)
        return {
            name: np.ascontiguousarray(value.astype(STORED[dtype]))
            for name, value in tensors.items()
        }


def require_traced(case: Case, what: str) -> None:
    """Refuse a reserved rule, a rule without a trace, and a block of levels.

    Args:
        what: asked for, such as "a trace".

    Raises:
        Unsupported: names the rule.
        CaseError: a block, sequences, or a rule that other commands take.
    """
    require_supported(case)
    case.require_one_call(what)
    if SUBJECTS[case.header.rule].traced is None:
        refuse(case, what)
    refuse_rows(case, what)


def add_trace(
    case: Case,
    results: evaluate.Results,
    *,
    grad: bool = False,
    dtype: str = "float64",
    convention: str | Mapping[str, Any] | None = None,
) -> evaluate.Results:
    """Results with the trace beside them, and the ops under the header key `trace`.

    The trace is that of the sequential loop under every form.
    """
    case = case if convention is None else evaluate.under(case, convention)
    tensors = {**results.tensors, **trace(case, grad=grad, dtype=dtype)}
    return results.replaced(tensors=tensors, header=results.header | {"trace": header_trace(case)})


def arithmetic_inputs(case: Case, dtype: str) -> dict[str, Any]:
    """Inputs as the arithmetic takes them: float64, or rounded to the format in float32."""
    return convert(round_inputs(case, dtype), "float64" if dtype == "float64" else "float32")


class Recorder:
    """A hook that stores the value of every op and returns it to the loop."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.lead = leading(case)
        self.values: dict[str, dict[int | None, Any]] = {}

    def __call__(
        self, op: str, t: int | None, compute: Callable[..., Array], *args: Any, counts: Any = None
    ) -> Array:
        value = compute(*args)
        self.values.setdefault(op, {})[t] = value
        return value

    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """(L, T, ...) per op in the order of the loop.

        Matrices have the case's layout; an inactive token without a value has 0.
        """
        return {
            op.name: in_layout(self.case, op.name, self._tensor(op.name))
            for op in ops_of(self.case)
        }

    def _tensor(self, name: str) -> np.ndarray[Any, Any]:
        values = self.values.get(name, {})
        if None in values:
            return np.asarray(values[None])
        zeros = np.zeros_like(next(iter(values.values()))) if values else self._zeros(name)
        tokens = tokens_of(self.case, name)
        if tokens is None:
            tokens = tuple(range(self.case.inputs[first(self.case)].shape[-2]))
        return np.stack([values.get(t, zeros) for t in tokens], axis=self.lead)

    def _zeros(self, name: str) -> np.ndarray[Any, Any]:
        """Zeros of the shape of an op, for a case without any active token."""
        M = next(iter(self.values["M"].values()))
        return (
            np.zeros_like(M, shape=(*M.shape[:-2], self.case.header.window, M.shape[-2]))
            if name == "residual"
            else np.zeros_like(M)
        )


def first(case: Case) -> str:
    """The tensor that has the tokens."""
    return "in/x" if case.header.level == "token" else "in/k"


def in_layout(case: Case, name: str, value: Array) -> Array:
    """A value to or from the layout of files; `transposed` transposes matrices."""
    matrix: Array = (
        np.swapaxes(value, -1, -2)
        if case.convention.layout == "transposed" and is_matrix(name)
        else value
    )
    return matrix


def _adjoints(case: Case, inputs: Mapping[str, Array], values: Mapping[str, Any]) -> dict[str, Any]:
    """Derivatives by a probe of zeros that is added to every quantity where it is computed.

    Source: REPLAY-7.
    """
    bars = seeds(case.header, inputs)
    if not bars.keys() & {"out/y", "out/X", "out/phi"}:
        raise CaseError(
            f"{case.name}: {SUBJECTS[case.header.rule].cotangent}: missing, gradients need it"
        )
    lead = (slice(None),) * leading(case)
    tokens = range(case.inputs[first(case)].shape[-2]) if first(case) in case.inputs else range(0)

    def places(op: str) -> Sequence[int]:
        own = tokens_of(case, op)
        return tokens if own is None else own

    def forward(probes: dict[str, Array]) -> dict[str, Array]:
        def take(
            op: str, t: int | None, compute: Callable[..., Array], *args: Any, counts: Any = None
        ) -> Array:
            probe = probes[op] if t is None else probes[op][(*lead, places(op).index(t))]
            return compute(*args) + probe

        results = run_ops(case, inputs, take)
        return {name: value for name, value in results.items() if name in bars}

    probes = {
        name.removeprefix("trace/"): np.zeros_like(in_layout(case, name.removeprefix("trace/"), v))
        for name, v in values.items()
    }
    _, backward = vjp(forward, probes)
    weights = {
        name: in_layout(case, "M", bar) if name in ("out/M", "out/S") else bar
        for name, bar in bars.items()
    }
    (gradients,) = backward(weights)
    return {
        f"trace_grad/{name}": in_layout(case, name, np.asarray(g)) for name, g in gradients.items()
    }


def header_trace(case: Case) -> list[dict[str, Any]]:
    """The value of the header key `trace`: ops in order, each with its inputs (REPLAY-2)."""
    return [{"op": op.name, "inputs": list(op.inputs)} for op in ops_of(case)]
