"""Somebody's results from a file, checked to be about the case (IDENT-1)."""

from __future__ import annotations

import os
from typing import Any

from atlas_ref.oracle.case import Case, CaseError, load_results
from atlas_ref.oracle.inputs import same


def results_of(case: Case, path: str | os.PathLike[str]) -> dict[str, Any]:
    """`out/...` and `grad/...` of a result file.

    Raises:
        CaseError: not such a file, of another rule, computed from other inputs, or without results.
    """
    name = os.fspath(path)
    header, tensors = load_results(name)
    if header.rule != case.header.rule:
        raise CaseError(f"{name}: rule {header.rule}, but {case.name} is a case of {case.header.rule}")
    for key, value in tensors.items():
        if key.startswith("in/") and not same(value, case.inputs.get(key)):
            raise CaseError(f"{name}: {key}: differs from that of {case.name}, so these are results of another case")
    found = {key: value for key, value in tensors.items() if key.startswith(("out/", "grad/"))}
    if not found:
        raise CaseError(f"{name}: no out/... or grad/... tensor, so there is nothing to identify")
    return found
