"""The subject newton_schulz: matrices without tokens, orthogonalised (CASE-10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Legal, Tensor
from atlas_ref.oracle.family import steps
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.parts.newton_schulz import newton_schulz
from atlas_ref.types import Array

TENSORS = {
    "in/G": Tensor("... d_out d_phi"),
    "in/X_bar": Tensor("... d_out d_phi", "no gradients"),
}


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


SUBJECT = Subject(
    name="newton_schulz",
    result="out/X",
    cotangent="in/X_bar",
    clauses={"out": "NS-1", "grad": "NS-20"},
    legal=_legal,
    evaluate=_evaluate,
    plain=_plain,
    draw=_draw,
    argument="in/G",
    tensors=TENSORS,
    has_newton_schulz=True,
)
