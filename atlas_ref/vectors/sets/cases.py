"""The cases of a set as `check` and the pytest plugin take them (VEC-14)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from atlas_ref.messages import meant
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.case import load as load_case
from atlas_ref.vectors.sets import locate, manifest
from atlas_ref.vectors.sets.recipe import load_large

#: Folders of a set whose files can be compared.
KINDS = ("cases", "large")


def paths(name: str, *, large: bool = False, targets: Sequence[str] = ()) -> list[Path]:
    """Files of a set's vectors, in the order of its manifest.

    Args:
        large: files of the larger cases instead, which record no results.
        targets: vectors of these alone, and larger cases of their rules; all when empty.

    Raises:
        CaseError: no such set, or no such target.
    """
    folder = locate.folder(name)
    listing = manifest.load(folder)
    rules = {each.target: each.rule for each in listing.vectors}
    for target in targets:
        if target not in rules:
            raise CaseError(
                f"set {name!r}: target {target!r} does not exist; targets are {', '.join(rules)}"
                f"{meant(target, rules)}"
            )
    if large:
        return [
            folder / each.file
            for each in listing.large
            if not targets or each.rule in {rules[target] for target in targets}
        ]
    return [folder / each.file for each in listing.vectors if not targets or each.target in targets]


def identity(path: Path) -> str | None:
    """The id of a vector of a shipped set by its file: `v1:delta-rows`; None for other files."""
    place = Path(os.path.realpath(path)).parent  # which no link that leads to itself stops
    return next(
        (
            f"{name}:{path.stem}"
            for name, folder in locate.shipped().items()
            if place.parent == folder.resolve() and place.name in KINDS
        ),
        None,
    )


def place(word: str) -> Path:
    """The file that an id or a path means, an existing file first.

    Raises:
        CaseError: the id of no vector of a shipped set.
    """
    name, colon, vector = word.partition(":")
    if not colon or os.path.exists(word) or name not in locate.shipped():
        return Path(word)
    folder = locate.folder(name)
    files = {path.stem: path for kind in KINDS for path in sorted((folder / kind).iterdir())}
    if vector not in files:
        raise CaseError(
            f"{word}: set {name!r} has no vector {vector!r} (atlas-ref vectors list {name} shows "
            f"them){meant(vector, files)}"
        )
    return files[vector]


def load(path: Path) -> Case:
    """A case file; a larger case of a set where it is a recipe.

    Raises:
        CaseError: it is neither.
    """
    return load_large(path)[0] if path.suffix == ".json" else load_case(path)
