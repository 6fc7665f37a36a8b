"""Certified results: a second implementation of the rules in ball arithmetic, rounded once to
float64.

It shares no code with the NumPy path, only the parsed case: header, convention and input tensors as
data. Needs python-flint (extra `certify`). Specified in specs/certify.md.
"""

from __future__ import annotations

import importlib.util

from atlas_ref.certify.results import Certified, Unresolved
from atlas_ref.messages import Progress, install, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError

__all__ = ["Certified", "Unresolved", "certify", "require_flint"]


def require_flint() -> None:
    """Refuse in one line where python-flint is not installed (CERT-14).

    Raises:
        CaseError: it is not installed; the message names the extra that brings it.
    """
    if importlib.util.find_spec("flint") is None:
        raise CaseError(f"certify needs python-flint, which is not installed: {install('certify')}")


def certify(
    case: Case, *, grad: bool = False, max_bits: int = 16384, progress: Progress = unwatched
) -> Certified:
    """The float64 nearest to every result of a case, each proved by a ball that rounds to it alone.

    Args:
        grad: also every entry of `grad/NAME`, the derivative of <y, y_bar> + <M, M_bar> + <S,
            S_bar> (CASE-14).
        max_bits: precision beyond which entries are reported as unresolved, with both neighbours.
        progress: called with the work under way, its tokens done and all of them.

    Returns:
        values, bits and unresolved per tensor, and for larger cases directional derivatives.

    Raises:
        CaseError: python-flint is not installed; no cotangent for gradients; max_bits below 2.
        Unsupported: a reserved rule.

    Source: CERT-1 to CERT-10, CERT-16.
    """
    require_flint()
    # imported here, so that the package and its message load without python-flint
    from atlas_ref.certify import certified

    if max_bits < 2:
        raise CaseError(f"max_bits: must be at least 2, found {max_bits}")
    return certified.certify(case, grad=grad, max_bits=max_bits, progress=progress)
