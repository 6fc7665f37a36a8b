"""Error over tolerance of every mutant and of every legal variant on a case (VEC-16, VEC-17)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.cases.inputs import round_inputs as stored
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.family.mistake import compute, see
from atlas_ref.oracle.family.mistakes import boundaries, chunked
from atlas_ref.oracle.judge.ensemble import evaluate as plainly
from atlas_ref.oracle.judge.tolerance import Tolerance, tolerances
from atlas_ref.oracle.norms import norms, round_to
from atlas_ref.vectors.inputs.properties import forms
from atlas_ref.vectors.mutants import erase_chunks, mutants, own

#: Formats in which a set is adequate.
FORMATS: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")

#: Gradients that a case has where its feature map is learned.
CONSTANTS = ("grad/phi/", "grad/proj")

Results = Mapping[str, np.ndarray[Any, Any]]

#: Legal ways to round that are none of the ensemble's members.
LEGAL = (
    Arithmetic("reordered: as a tree, transposed", "pairwise", transposed=True),
    Arithmetic("reordered: four partial sums", "lanes"),
    Arithmetic("reordered: last to first", "reverse"),
    Arithmetic("transposed Newton-Schulz and products", "library", transposed=True, early=True),
    Arithmetic("fused multiply-add, as a tree", "pairwise", fused=True, early=True),
    Arithmetic("fused multiply-add, transposed", "forward", fused=True, transposed=True),
    Arithmetic("float32 accumulation, term by term", "forward", early=True),
    Arithmetic("float64 accumulation", "wide"),
)


class Score(NamedTuple):
    """Errors of mutants and legal variants on a case, in multiples of the tolerance: PASS is up to
    2.

    Attributes:
        mutants, controls: name -> the worst over results; infinity for what is not finite or has
            another shape.
        hidden: results that are UNDECIDABLE in this format.
    """

    mutants: dict[str, float]
    controls: dict[str, float]
    hidden: list[str]


def score(case: Case, dtype: str) -> Score:
    """The score of mutants and legal variants on a case in a format.

    Args:
        case: as drawn; with cotangents, mistakes of the backward pass are mutants too.

    Raises:
        CaseError: a block of levels, of which there are no mutants.
    """
    if not own.has(case):
        case.require_one_memory("the kill matrix")
    case = stored(case, dtype)
    grad = any(name in case.inputs for name in ("in/y_bar", "in/X_bar", "in/phi_bar"))
    want = {
        name: value
        for name, value in evaluate(case, grad=grad).tensors.items()
        if not own.KEPT.fullmatch(name)
    }
    allowed = tolerances(case, dtype=dtype, only=list(want), results=want)
    judged = {name: ratio(results, want, allowed) for name, results in mutants.mutants(case, dtype)}
    passed = {
        name: ratio(results, want, allowed) for name, results in controls(case, dtype, grad=grad)
    }
    return Score(judged, passed, [name for name, each in allowed.items() if each.merged])


def ratio(results: Results, want: Results, allowed: Mapping[str, Tolerance]) -> float:
    """Error over tolerance, the worst over results and norms (TOL-1).

    It is infinite with a gradient of a constant, whose name is refused (VEC-25).
    """
    if any(name.startswith(CONSTANTS) and name not in want for name in results):
        return float("inf")
    return max(
        (_one(value, want[name], allowed[name]) for name, value in results.items() if name in want),
        default=0.0,
    )


def _one(got: Any, want: Any, allowed: Tolerance) -> float:
    if got.shape != want.shape:
        return float("inf")
    gap = np.asarray(got, np.float64) - want
    return norms(gap).over(allowed.norms) if np.isfinite(gap).all() else float("inf")


def controls(case: Case, dtype: str, *, grad: bool) -> Iterator[tuple[str, Results]]:
    """Legal variants, which must pass (VEC-17).

    They are legal ways to round, the rules in float32, the chunk form by hand, and every parallel
    form.
    """
    inputs = convert(case, "float32")
    for way in LEGAL:
        yield way.name, _rounded(plainly(case, inputs, way, grad=grad), dtype)
    yield "the rule in float32", _rounded(evaluate(case, dtype="float32", grad=grad).tensors, dtype)
    kernel = own.kernel(case, dtype) if own.has(case) else compute(case, None, dtype)
    yield "the kernel of the mutants", _rounded(kernel, dtype)
    at = see(case)
    if at is not None and chunked.made_in(at, ""):
        yield "the chunk form of the mutants", _rounded(chunked.results(case, "float32"), dtype)
    if erase_chunks.has(case):
        yield from erase_chunks.controls(case, dtype)
    if mutants.long(case):
        yield "calls of 64 tokens", _rounded(boundaries.run(case, 64, dtype="float32"), dtype)
    for form, chunk in forms(case):
        # a truth for float64: it sums every momentum anew from the first token
        if form == "kernel":
            continue
        yield (
            f"form {form}, chunk {chunk}",
            _rounded(
                evaluate(case, dtype="float32", grad=grad, form=form, chunk=chunk).tensors, dtype
            ),
        )


def _rounded(results: Results, dtype: str) -> dict[str, Any]:
    return {name: round_to(np.asarray(value), dtype) for name, value in results.items()}
