"""The subject newton_schulz: matrices without tokens, orthogonalised (CASE-10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Legal, Tensor
from atlas_ref.oracle.family import draw as family_draw
from atlas_ref.oracle.family import steps
from atlas_ref.oracle.subjects.base import facts, hooks
from atlas_ref.oracle.subjects.base.checked import check_inputs, header_convention
from atlas_ref.oracle.subjects.base.header import check_header
from atlas_ref.oracle.subjects.base.search import CONVENTIONS
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.parts.newton_schulz import newton_schulz
from atlas_ref.types import Array

TENSORS = {
    "in/G": Tensor("... d_out d_phi"),
    "in/X_bar": Tensor("... d_out d_phi", "no gradients"),
}


CLAUSES = {"out": "NS-1", "grad": "NS-20"}


def _legal(header: Any, convention: Any, names: set[str]) -> Legal:
    return {**TENSORS}, {}


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    return {"out/X": newton_schulz(inputs["in/G"], case.convention.newton_schulz_settings)}, None


def _plain(inputs: Mapping[str, Array], case: Case, rounding: Rounding) -> dict[str, Array]:
    return {
        "out/X": steps.newton_schulz(
            rounding.way, rounding.argument(inputs["in/G"]), case.convention.newton_schulz_settings
        )
    }


def _draw(
    request: Any, header: Any, generator: Any, d_phi: int
) -> tuple[dict[str, Array], tuple[int, ...]]:
    shape = (request.heads, request.d_out, request.d_in)
    return {"in/G": generator.standard_normal(shape)}, shape


def _shape(header: Any, inputs: Mapping[str, Any]) -> tuple[int, int]:
    rows, columns = inputs["in/G"].shape[-2:]
    return int(rows), int(columns)


SUBJECT = Subject(
    name="newton_schulz",
    cotangent="in/X_bar",
    clauses=CLAUSES,
    evaluate=_evaluate,
    plain=_plain,
    check_header=check_header,
    checked=lambda header, inputs: check_inputs(header, inputs, header_convention(header), _legal),
    clause=lambda header, name: facts.clause(CLAUSES, name),
    numbers=lambda header, inputs: 0,  # no more than the case has
    void=lambda case: facts.void(case, _shape(case.header, case.inputs)),
    result=lambda header: "out/X",
    legal=_legal,
    draw=_draw,
    argument="in/G",
    tensors=TENSORS,
    shape=_shape,
    has_axes=True,
    has_newton_schulz=True,
    has_convention=True,
    convention=header_convention,
    features=hooks.features,
    traced=hooks.NEWTON_SCHULZ,
    search=CONVENTIONS,
    drawing=family_draw.NEWTON_SCHULZ,
)
