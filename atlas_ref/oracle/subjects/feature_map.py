"""The subject feature_map: rows lifted by a map, alone (CASE-11)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Legal, Tensor, phi_of, phi_tensors
from atlas_ref.oracle.family import draw as family_draw
from atlas_ref.oracle.subjects.base import facts, hooks
from atlas_ref.oracle.subjects.base.checked import check_inputs, header_convention
from atlas_ref.oracle.subjects.base.header import check_header
from atlas_ref.oracle.subjects.base.search import CONVENTIONS
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.parts import feature_maps
from atlas_ref.types import Array

TENSORS = {"in/x": Tensor("... d_in"), "in/phi_bar": Tensor("... d_phi", "no gradients")}


CLAUSES = {"out": "PHI-1", "grad": "PHI-16", "trace_grad": "CASE-14"}


def _legal(header: Any, convention: Any, names: set[str]) -> Legal:
    return {**TENSORS, **phi_tensors(header)}, {}


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    return {
        "out/phi": feature_maps.apply(case.header.feature_map, phi_of(inputs), inputs["in/x"])
    }, None


def _plain(inputs: Mapping[str, Array], case: Case, rounding: Rounding) -> dict[str, Array]:
    mapped = feature_maps.apply(
        case.header.feature_map, phi_of(inputs), rounding.touch(inputs["in/x"])
    )
    return {"out/phi": rounding.touch(mapped)}


def _draw(
    request: Any, header: Any, generator: Any, d_phi: int
) -> tuple[dict[str, Array], tuple[int, ...]]:
    return {"in/x": generator.standard_normal((request.heads, request.d_in))}, (
        request.heads,
        d_phi,
    )


SUBJECT = Subject(
    name="feature_map",
    cotangent="in/phi_bar",
    clauses=CLAUSES,
    evaluate=_evaluate,
    plain=_plain,
    check_header=partial(check_header, has_feature_map=True),
    checked=lambda header, inputs: check_inputs(header, inputs, header_convention(header), _legal),
    clause=lambda header, name: facts.clause(CLAUSES, name),
    numbers=facts.numbers,
    needs=facts.needs,
    void=lambda case: facts.void(case, (0, 0)),
    result=lambda header: "out/phi",
    legal=_legal,
    draw=_draw,
    argument="in/x",
    tensors=TENSORS,
    shape=lambda header, inputs: (0, 0),
    has_feature_map=True,
    has_convention=True,
    convention=header_convention,
    features=hooks.features,
    traced=hooks.FEATURE_MAP,
    search=CONVENTIONS,
    drawing=family_draw.FEATURE_MAP,
)
