"""Results under test, checked against their case (IDENT-1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, differentiable
from atlas_ref.oracle.cases.masks import refuse_rows
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array


class Observation(NamedTuple):
    """Results under test in float64, and the format that they were computed in.

    Attributes:
        values: what conventions are ranked by; gradients: those that a fit must explain as well.
        dtypes: the format of each.
        unused: results that no convention changes, or that are not compared here.
    """

    values: dict[str, Array]
    gradients: dict[str, Array]
    dtypes: dict[str, str]
    unused: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """The narrowest format."""
        return min(self.dtypes.values(), key=lambda name: FORMATS[name][1])


def observe(case: Case, mine: Mapping[str, Any], dtype: str | None) -> Observation:
    """Check results under test against a case (IDENT-1).

    Raises:
        CaseError: masks by row, nothing to compare, a name that is no result of the case, another shape, a dtype
            that is no float.
    """
    from atlas_ref.oracle.schema.schema import result_names  # which asks every subject

    refuse_rows(case, "identify")
    names = {*result_names()} | {
        "grad/" + name.removeprefix("in/") for name in differentiable(case)
    }
    shapes = _shapes(case)
    values: dict[str, Array] = {}
    gradients: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    unused: list[str] = []
    for name, array in mine.items():
        if name not in names:
            raise CaseError(
                f"{case.name}: {name}: not a result of this case; it has {', '.join(shapes)}"
            )
        array = np.asarray(array)
        if array.dtype.name not in FORMATS:
            raise CaseError(
                f"{case.name}: {name}: dtype {array.dtype.name}, one of {', '.join(FORMATS)} "
                "is needed"
            )
        if name not in shapes:
            unused.append(name)
            continue
        if array.shape not in shapes[name]:
            raise CaseError(
                f"{case.name}: {name}: shape {array.shape}, expected "
                f"{' or '.join(map(str, shapes[name]))}"
            )
        (gradients if name.startswith("grad/") else values)[name] = array.astype(np.float64)
        dtypes[name] = dtype or array.dtype.name
    if not dtypes:
        raise CaseError(
            f"{case.name}: none of the results that conventions are told apart by: "
            f"{', '.join(shapes)}"
        )
    if gradients and not any(name in case.inputs for name in ("in/y_bar", "in/X_bar")):
        raise CaseError(f"{case.name}: in/y_bar: missing, gradients need it")
    return Observation(values, gradients, dtypes, tuple(unused))


def _shapes(case: Case) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The shapes that each result may have, matrices in either layout."""
    inputs, h, subject = case.inputs, case.header, SUBJECTS[case.header.rule]
    grads: dict[str, tuple[tuple[int, ...], ...]] = {
        "grad/" + name.removeprefix("in/"): (inputs[name].shape,) for name in differentiable(case)
    }
    if not subject.has_axes:
        raise CaseError(f"{case.name}: the rule {h.rule} has no axis to identify")
    if not subject.has_tokens:
        return {subject.result(h): (inputs[subject.argument].shape,)} | grads
    of = facts(case)
    if h.level == "token":
        lead: tuple[int, ...] = (inputs["in/x"].shape[0], inputs["in/param/W_K"].shape[0])
    else:
        lead = inputs["in/k"].shape[:-2]
    matrix = tuple(dict.fromkeys([(*lead, of.d_out, of.d_phi), (*lead, of.d_phi, of.d_out)]))
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "out/y": ((*lead, of.tokens, of.d_out),),
        "out/M": matrix,
    }
    if (
        of.names & {"in/momentum", "in/log_momentum", "in/param/W_momentum"}
        and FAMILY[h.rule].has_momentum
    ):
        shapes["out/S"] = matrix
    return shapes | {"out/M_ref": matrix} | grads
