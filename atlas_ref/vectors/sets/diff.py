"""Differences of two sets: metadata, cases added and removed, tensors and by how much they changed
(VEC-19).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from atlas_ref.oracle.cases import files
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.cases.json_text import decode
from atlas_ref.oracle.norms import FORMATS, ulp
from atlas_ref.storage.files import read_bytes
from atlas_ref.vectors.sets import manifest
from atlas_ref.vectors.sets.contents import contents

#: Kinds of files of a set.
KINDS = ("vectors", "negative", "large")


class Change(NamedTuple):
    """One difference.

    Attributes:
        kind: metadata, vectors, negative or large.
        name: of the case, "" for metadata.
        what: added, removed or changed.
        details: one line per tensor or key, for what changed.
    """

    kind: str
    name: str
    what: str
    details: list[str]


def diff(old: Path, new: Path) -> list[Change]:
    """Every difference between two sets, none if they hold the same bytes.

    Raises:
        CaseError: a folder that holds no set, or a file that cannot be read.
    """
    sums = manifest.read_sums(old), manifest.read_sums(new)
    manifests = manifest.load(old), manifest.load(new)
    changes = []
    lines = _keys(_metadata(manifests[0]), _metadata(manifests[1]))
    lines += (
        [] if _bytes(old, manifest.SCHEMA) == _bytes(new, manifest.SCHEMA) else ["schema changed"]
    )
    lines += [
        f"{manifest.SUMS}: another digest of {name}, whose bytes are the same"
        for name in sorted(sums[0].keys() & sums[1].keys())
        if sums[0][name] != sums[1][name] and _bytes(old, name) == _bytes(new, name)
    ]
    if lines:
        changes.append(Change("metadata", "", "changed", lines))
    for kind in KINDS:
        before, after = ({each.name: each for each in getattr(one, kind)} for one in manifests)
        for name in sorted({*before, *after}):
            if name not in after or name not in before:
                changes.append(Change(kind, name, "removed" if name in before else "added", []))
                continue
            a, b = before[name], after[name]
            details = _keys(a.model_dump(mode="json"), b.model_dump(mode="json"))
            if _bytes(old, a.file) != _bytes(new, b.file):
                read = _json if kind == "large" else _tensors
                details += read(old / a.file, new / b.file)
            if details:
                changes.append(Change(kind, name, "changed", details))
    return changes


def _bytes(folder: Path, name: str) -> bytes:
    """A file as it is, without a look at SHA256SUMS.

    Raises:
        CaseError: it cannot be read.
    """
    try:
        return contents(folder, name)
    except FileNotFoundError:
        raise CaseError(f"{folder / name}: cannot be read: No such file or directory") from None


def _metadata(listing: manifest.Manifest) -> dict[str, Any]:
    return {key: value for key, value in listing.plain().items() if key not in KINDS}


def _keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Differences of two JSON objects, of lists of words as words gained and lost."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        a, b, name = old.get(key), new.get(key), prefix + key
        if a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += _keys(a, b, f"{name}.")
        elif _words(a) and _words(b):
            lines += _gained_and_lost(name, a, b)
        else:
            lines.append(f"{name}: {_short(a)} -> {_short(b)}")
    return lines


def _gained_and_lost(name: str, old: list[str], new: list[str]) -> list[str]:
    lines = [f"{name}: gained {each}" for each in new if each not in old]
    lines += [f"{name}: lost {each}" for each in old if each not in new]
    return lines or [f"{name}: in another order"]


def _words(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _short(value: Any) -> str:
    if value is None:
        return "absent"
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."


def _json(old: Path, new: Path) -> list[str]:
    try:
        a, b = (decode(read_bytes(path)) for path in (old, new))
    except ValueError as error:
        raise CaseError(f"{old.name}: cannot be read: {error}") from None
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        raise CaseError(f"{old.name}: cannot be read: a JSON object is needed")
    return _keys(a, b)


def _tensors(old: Path, new: Path) -> list[str]:
    """Tensors added, removed or changed, with the largest change; keys of the header."""
    one, two = _read(old), _read(new)
    if one is None or two is None:
        return ["bytes changed"]
    (text, before), (other, after) = one, two
    lines = _keys(text, other, "header.")
    for name in sorted({*before, *after}):
        if name not in after or name not in before:
            lines.append(f"{name}: {'removed' if name in before else 'added'}")
        else:
            lines += _tensor(name, before[name], after[name])
    return lines or ["the same numbers in other bytes"]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Header and tensors; None where the file is none, as some that must be refused are."""
    try:
        text, tensors = files.read(str(path))
        header = decode(text)
    except ValueError:
        return None
    return (header, tensors) if isinstance(header, dict) else None


def _tensor(name: str, old: Any, new: Any) -> Iterator[str]:
    if old.dtype != new.dtype or old.shape != new.shape:
        yield f"{name}: {old.dtype} {list(old.shape)} -> {new.dtype} {list(new.shape)}"
        return
    a, b = old.astype(np.float64), new.astype(np.float64)
    apart = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not apart.any():
        return
    with np.errstate(all="ignore"):
        gap = np.where(apart, np.abs(a - b), 0.0)
    place = tuple(
        int(i)
        for i in np.unravel_index(int(np.argmax(np.where(np.isnan(gap), np.inf, gap))), gap.shape)
    )
    size = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
    units = (
        f", {gap[place] / ulp(size, old.dtype.name):.3g} units in the last place"
        if old.dtype.name in FORMATS
        else ""
    )
    yield (
        f"{name}: {int(apart.sum())} of {a.size} entries, most at {list(place)}: {a[place]!r} -> "
        f"{b[place]!r}{units}"
    ).replace("np.float64", "")


def told(changes: Sequence[Change]) -> list[str]:
    """Lines for a reader."""
    lines = []
    for change in changes:
        where = f"{change.kind}: {change.name}: " if change.name else f"{change.kind}: "
        lines += (
            [f"{where}{change.what}"]
            if not change.details
            else [f"{where}{line}" for line in change.details]
        )
    return lines
