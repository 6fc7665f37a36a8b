"""The cases of a set as `check` and the pytest plugin take them (VEC-14)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from atlas_ref.messages import meant, no_such
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.case import load as load_case
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.vectors.sets import locate, manifest

#: Folders of a set whose files can be compared.
KINDS = ("cases", "large")


def selected(
    names: Sequence[str], *, large: bool = False, targets: Sequence[str] = ()
) -> list[Path]:
    """Files of the vectors of sets, each set in the order of its manifest.

    Args:
        large: files of the larger cases behind them, which record no results.
        targets: vectors of these alone, and larger cases of their rules; all when empty.

    Raises:
        CaseError: no such set, or a target that none of them has.
    """
    known: dict[str, str] = {}
    for name in names:
        known |= rules(name)
    for target in targets:
        if target not in known:
            what = ", ".join(f"set {name!r}" for name in names)
            parts = _members(target, known)
            why = (
                f"target {target!r} is not one; its members are {', '.join(parts)}"
                if parts
                else no_such("target", target, known)
            )
            raise CaseError(f"{what}: {why}")
    return [
        path
        for name in names
        for part in ([False, True] if large else [False])
        for path in paths(name, large=part, targets=targets)
    ]


def _members(target: str, known: Iterable[str]) -> list[str]:
    """Targets of one word more: dplr-kda of dplr."""
    return [each for each in known if each.startswith(f"{target}-")]


def about_members(names: Sequence[str], targets: Sequence[str]) -> str:
    """Which targets the members of these have, "" where none has some that is not taken (VEC-14)."""
    known = {target: rule for name in names for target, rule in rules(name).items()}
    words = []
    for target in targets:
        if target not in known or not SUBJECTS[known[target]].has_parameters:
            continue  # other targets of a rule without members are conventions of it
        parts = [each for each in dict.fromkeys(_members(target, known)) if each not in targets]
        if parts:
            words.append(f"members of {target}, each a target: {', '.join(parts)}")
    return "; ".join(words)


def rules(name: str) -> dict[str, str]:
    """Target -> rule of a set."""
    return {each.target: each.rule for each in manifest.load(locate.folder(name)).vectors}


def paths(name: str, *, large: bool = False, targets: Sequence[str] = ()) -> list[Path]:
    """Files of a set's vectors, in the order of its manifest.

    Args:
        large: files of the larger cases instead.
        targets: those of them that the set has; all when empty.

    Raises:
        CaseError: no such set.
    """
    folder = locate.folder(name)
    listing = manifest.load(folder)
    if large:
        own = {each.rule for each in listing.vectors if each.target in targets}
        return [folder / each.file for each in listing.large if not targets or each.rule in own]
    return [folder / each.file for each in listing.vectors if not targets or each.target in targets]


def longest(files: Iterable[Path]) -> int:
    """Tokens of the longest of these cases; 0 where none has a sequence."""
    return max((length(load(path)) for path in files), default=0)


def length(case: Case) -> int:
    """Tokens of a case, 0 of one without a sequence."""
    name = "in/x" if case.header.level == "token" else "in/k"
    return int(case.inputs[name].shape[-2]) if name in case.inputs else 0


def reach(
    most: int, names: Sequence[str], targets: Sequence[str] = (), *, option: str = "--set"
) -> str:
    """How long the longest case of a run was, and the shipped sets that have longer ones; "" where
    nothing has tokens (VEC-14).

    Args:
        most: tokens of that case.
        names: of the sets that were run.
        option: that takes another set.
    """
    longer = [
        name
        for name in locate.shipped()
        if name not in names and longest(paths(name, targets=targets)) > most
    ]
    words = f"at most {most} tokens" if most != 1 else "1 token"
    more = f"; longer: {' '.join(f'{option} {name}' for name in longer)}" if longer else ""
    return words + more if most else ""


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
    files = {path.stem: path for kind in KINDS for path in sorted((folder / kind).glob("*"))}
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
    if path.suffix != ".json":
        return load_case(path)
    from atlas_ref.vectors.sets.recipe import load_large  # all that draws a larger case

    return load_large(path)[0]
