"""Evaluate a case: its results by the spec, and their gradients.

Level token first projects; then both levels run the rule over the sequence. Specified in
specs/case.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError

from atlas_ref import backend
from atlas_ref.oracle.cases.case import (
    Case,
    CaseError,
    between,
    differentiable,
    make,
    named,
    require_supported,
)
from atlas_ref.oracle.cases.case import Unsupported as Unsupported
from atlas_ref.oracle.cases.inputs import (
    DTYPES,
    STORED,
    check_dtype,
    check_size,
    convert,
    round_inputs,
)
from atlas_ref.oracle.cases.tensor_spec import Position
from atlas_ref.oracle.cases.tensors import main_cotangent, main_result, seeds
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.types import Array, Frozen
from tape import ops, vjp

#: Results that a cotangent may weigh, and its name.
WEIGHED = {
    "out/y": "in/y_bar",
    "out/M": "in/M_bar",
    "out/S": "in/S_bar",
    "out/z": "in/z_bar",
    "out/A": "in/A_bar",
    "out/X": "in/X_bar",
    "out/phi": "in/phi_bar",
}


class Results(Frozen):
    """Results of a case.

    Attributes:
        tensors: `out/...` and, on request, `grad/...`.
        header: the case's header as a JSON object, with the phase that a continuation starts at.
        void: settings that cannot matter in this case, each with the reason.
    """

    tensors: dict[str, Any]
    header: dict[str, Any]
    void: dict[str, str]

    @property
    def not_finite(self) -> list[str]:
        """Results that overflowed, where the rule itself grows beyond float64."""
        return [name for name, value in self.tensors.items() if not np.isfinite(value).all()]


def evaluate(
    case: Case,
    *,
    grad: bool = False,
    dtype: str = "float64",
    convention: str | Mapping[str, Any] | None = None,
    form: str = "sequential",
    chunk: int | None = None,
) -> Results:
    """Results of a case, and their gradients by every floating input (CASE-12, CASE-14).

    Gradients are those of <y, y_bar> + <M, M_bar> + <S, S_bar>. Inputs are copied to the backend in
    use; results are NumPy's (BACKEND-8).

    Args:
        grad: also compute `grad/...`; needs in/y_bar (in/X_bar, in/phi_bar).
        dtype: arithmetic: float64, which is the truth, or float32; under bfloat16 and float16
            inputs and results are rounded to it around arithmetic in float32 (CASE-22).
        convention: evaluate under this convention instead of the case's.
        form: compute in this form; that of the case states how its results were computed, and the
            truth is sequential (CASE-29).
        chunk: tokens that the form takes at once; never changes results.

    Raises:
        CaseError: no cotangent, an unknown dtype or convention, a form that does not compute this
            case.
        Unsupported: a reserved rule.
    """
    require_supported(case)
    check_dtype(case.name, dtype)
    if convention is not None:
        case = under(case, convention)
    narrow = dtype not in DTYPES
    case = case if dtype == "float64" else round_inputs(case, dtype)
    _check_form(case, form, chunk)
    check_size(case)
    inputs = backend.device(convert(case, "float32" if narrow else dtype))
    bars = seeds(case.header, inputs)
    inputs, names = weighed_inputs(case, inputs) if grad else (inputs, [])
    subject, main = SUBJECTS[case.header.rule], main_result(case.header)
    loss = subject.loss(case.header) or main
    if grad and (why := subject.no_loss(case.header, inputs)):
        raise CaseError(f"{case.name}: {loss}: {why}")
    if grad and not bars.keys() & {main, loss}:
        raise CaseError(f"{case.name}: {main_cotangent(case.header)}: missing, gradients need it")
    after: list[Position] = []

    def forward(variables: dict[str, Array]) -> dict[str, Array]:
        outputs, position = results({**inputs, **variables}, case, form=form, chunk=chunk)
        after[:] = [position]
        return outputs

    try:
        with np.errstate(all="ignore"):  # what overflows shows in the results
            tensors = with_gradients(forward, inputs, names, bars) if grad else forward({})
    except ValidationError as error:  # a sequence computed from x is not finite
        raise named(case.name, error) from None
    except MemoryError as error:
        raise CaseError(f"{case.name}: needs more memory than there is: {error}") from None
    header = _header_out(case, after[0])
    if form != "sequential":
        header |= {"form": form} | ({} if chunk is None else {"chunk": chunk})
    kind = STORED[dtype] if narrow else None
    return Results.trusted(
        tensors={name: _read_only(value, kind) for name, value in tensors.items()},
        header=header,
        void=case.void,
    )


def weighed_inputs(case: Case, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """Inputs with the zeros that are added to results between, and the names that have a gradient.

    Source: CASE-14, LAYER-17.
    """
    names = differentiable(case)
    like = next(each for each in inputs.values() if each.dtype.kind not in "biu")
    zeros = {name: ops.zeros_like(like, shape=shape) for name, shape in between(case).items()}
    return {**inputs, **zeros}, [*names, *zeros]


def with_gradients(
    forward: Callable[[dict[str, Array]], dict[str, Array]],
    inputs: Mapping[str, Array],
    names: list[str],
    bars: Mapping[str, Array],
) -> dict[str, Array]:
    """Results and gradients by the inputs of these names (CASE-14).

    Args:
        bars: cotangents of results; the others have none, and whole numbers no derivative.
    """
    whole: dict[str, Array] = {}

    def floating(variables: dict[str, Array]) -> dict[str, Array]:
        out = forward(variables)
        whole.update({name: value for name, value in out.items() if value.dtype.kind in "biu"})
        return {name: value for name, value in out.items() if name not in whole}

    outputs, pullback = vjp(floating, {name: inputs[name] for name in names})
    seeds = {
        name: bars[name] if name in bars else np.zeros_like(value)
        for name, value in outputs.items()
    }
    (gradients,) = pullback(seeds)
    outputs = {**outputs, **whole}
    return outputs | {"grad/" + name.removeprefix("in/"): g for name, g in gradients.items()}


def _read_only(value: Array, kind: Any) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        host = backend.of(value).to_host(value)
        array = host if kind is None or host.dtype.kind in "biu" else host.astype(kind)
    array = array.view()
    array.flags.writeable = False
    return array


def under(case: Case, convention: str | Mapping[str, Any]) -> Case:
    """The same inputs under another convention: a preset, or axes that change the case's own.

    Raises:
        CaseError: the convention does not exist, or the inputs do not fit it.
    """
    case.require_one_memory("another convention")
    own = case.header.convention
    base = {"preset": own} if isinstance(own, str) else dict(own)
    if isinstance(convention, str) or "preset" in convention:
        base = {}
    changes = {"preset": convention} if isinstance(convention, str) else dict(convention)
    header = case.header.plain()
    header["convention"] = _merge(base, changes)
    return make(header, {**case.inputs, **case.recorded}, name=case.name)


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = {**base, **changes}
    if isinstance(base.get("newton_schulz"), Mapping) and isinstance(
        changes.get("newton_schulz"), Mapping
    ):
        merged["newton_schulz"] = {**base["newton_schulz"], **changes["newton_schulz"]}
    return merged


def _header_out(case: Case, after: Position) -> dict[str, Any]:
    """The header of a continuation: its positions (CASE-13, CASE-30, RECUR-13)."""
    header = case.header.plain()
    if moved := SUBJECTS[case.header.rule].continued(case):
        header["parameters"] = {**(header.get("parameters") or {}), **moved}
    if isinstance(after, list):
        header["levels"] = [
            level if position is None else {**level, "phase": position}
            for level, position in zip(header["levels"], after, strict=True)
        ]
    elif after is not None:
        header["phase"] = after
    if case.header.schedule is not None:
        tokens = case.inputs["in/x" if case.header.level == "token" else "in/k"].shape[-2]
        header["schedule"] = {
            **header["schedule"],
            "first_step": case.header.schedule.first_step + tokens,
        }
    return header


def _check_form(case: Case, form: str, chunk: int | None) -> None:
    """Refuse a form that does not compute this case (CHUNK-20)."""
    try:
        SUBJECTS[case.header.rule].check_form(case, form, chunk)
    except ValueError as error:
        raise CaseError(f"{case.name}: {error}") from None


def results(
    inputs: Mapping[str, Array], case: Case, *, form: str = "sequential", chunk: int | None = None
) -> tuple[dict[str, Array], Position]:
    """`out/...` of a case, and the position in the span after it (CASE-12, CASE-13).

    Inputs are arrays or tape variables.
    """
    return SUBJECTS[case.header.rule].evaluate(inputs, case, form, chunk)
