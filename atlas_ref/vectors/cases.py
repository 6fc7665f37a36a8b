"""The cases of a set as `check` and the pytest plugin take them (VEC-14)."""

from __future__ import annotations

from pathlib import Path

from atlas_ref.oracle.case import Case
from atlas_ref.oracle.case import load as load_case
from atlas_ref.vectors import locate, manifest
from atlas_ref.vectors.verify import load_large


def paths(name: str, *, large: bool = False) -> list[Path]:
    """Files of a set's vectors, in the order of its manifest; of larger cases instead, which record no results.

    Raises:
        CaseError: no such set.
    """
    folder = locate.folder(name)
    found = manifest.load(folder)
    parts: list[manifest.Vector] | list[manifest.Large] = found.large if large else found.vectors
    return [folder / each.file for each in parts]


def load(path: Path) -> Case:
    """A case file; a larger case of a set where it is a recipe.

    Raises:
        CaseError: it is neither.
    """
    return load_large(path)[0] if path.suffix == ".json" else load_case(path)
