"""Find a set: a folder that holds one, or the name of one that is shipped (VEC-14).

Shipped sets lie in `vectors/` of the repository, and beside this module where the package was built
from it.
"""

from __future__ import annotations

import os
from pathlib import Path

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.vectors.sets.manifest import MANIFEST

HERE = Path(__file__).parents[1]
SHIPPED = (HERE / "data", HERE.parents[1] / "vectors")


def shipped() -> dict[str, Path]:
    """Sets that came with the package, by name."""
    return {
        path.parent.name: path.parent
        for place in reversed(SHIPPED)
        for path in sorted(place.glob(f"*/{MANIFEST}"))
    }


def folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a set.

    Raises:
        CaseError: neither a shipped set nor a folder that holds one.
    """
    path = Path(name)
    if os.fspath(name) in shipped():
        return shipped()[os.fspath(name)]
    if os.path.isfile(path / MANIFEST):  # False, too, for a name that is too long
        return path
    names = ", ".join(shipped()) or "none"
    what = (
        f"is a folder without {MANIFEST}"
        if os.path.isdir(path)
        else "is neither a folder nor a shipped set"
    )
    raise CaseError(f"set {os.fspath(name)!r} {what}; shipped sets: {names}")
