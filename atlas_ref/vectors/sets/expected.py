"""Expected values of a vector: certified, each the one float64 nearest to the number itself
(VEC-6).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import Case, CaseError

Values = dict[str, np.ndarray[Any, Any]]


def expected(case: Case, *, grad: bool) -> Values:
    """Results out/... of a case, each entry certified to be the nearest float64 (VEC-6).

    Args:
        grad: with the gradients grad/....

    Raises:
        CaseError: python-flint is not installed, or an entry lies too near the middle of two
            float64 to be decided.
    """
    certificate = certify(case, grad=grad)
    if certificate.unresolved:
        raise CaseError(
            f"{case.name}: {next(iter(certificate.unresolved))}: cannot be certified, so that "
            "it is no vector"
        )
    return {name: np.asarray(value, np.float64) for name, value in certificate.values.items()}
