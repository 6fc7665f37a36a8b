"""Check a set: every byte, every key, every value against ours in float64, every refusal and its
repair (VEC-15).

It needs no ball arithmetic: the values in the files were certified when the set was made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError, load
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.arrays import TOLERANCE, relative_error
from atlas_ref.oracle.norms import ulp
from atlas_ref.vectors.inputs import large
from atlas_ref.vectors.inputs.draw import exact
from atlas_ref.vectors.refusals.codes import CODES, code_of
from atlas_ref.vectors.refusals.repair import repaired
from atlas_ref.vectors.sets import encode, manifest
from atlas_ref.vectors.sets.contents import contents
from atlas_ref.vectors.sets.recipe import load_large
from atlas_ref.vectors.sets.schema import manifest_schema


class Agreement(NamedTuple):
    """The distance of our float64 evaluation from a certified tensor.

    Attributes:
        error: ||ours - certified|| / ||certified||.
        ulps: the largest error of an entry, in units in the last place of the tensor's largest
            entry.
    """

    vector: str
    tensor: str
    error: float
    ulps: float


class Verified(NamedTuple):
    """The outcome of verifying a set.

    Attributes:
        problems: one line each; none where the set is what it says.
        agreements: of every tensor of every vector.
    """

    folder: str
    version: str
    counts: dict[str, int]
    problems: list[str]
    agreements: list[Agreement]

    @property
    def exit_code(self) -> int:
        """1 where there is a problem."""
        return 1 if self.problems else 0

    @property
    def worst(self) -> Agreement | None:
        """The tensor in which we are furthest from the certified value, in units in the last
        place.
        """
        return max(self.agreements, key=lambda each: each.ulps, default=None)


def verify(folder: Path, *, progress: Progress = unwatched) -> Verified:
    """Check a set (VEC-15).

    Raises:
        CaseError: the folder holds no set, or its manifest cannot be read.
    """
    sums = manifest.read_sums(folder)
    problems = list(_bytes(folder, sums))
    try:
        listing = manifest.load(folder)
    except CaseError as error:
        if not problems:
            raise
        return Verified(str(folder), "", {}, [*problems, str(error)], [])
    problems += _listed(folder, listing, sums)
    spoilt = {line.removeprefix(f"{folder}: ").split(": ")[0] for line in problems}
    agreements: list[Agreement] = []
    total = len(manifest.files_of(listing))
    for number, (kind, each) in enumerate(_parts(listing)):
        progress("verify", number, total)
        if each.file in spoilt:
            continue
        try:
            if kind == "vectors":
                agreements += _vector(folder, each)
            else:
                (_negative if kind == "negative" else _large)(folder, each)
        except CaseError as error:
            problems.append(str(error))
    problems += [
        (
            f"{folder}: {each.vector}: {each.tensor}: ours is {each.error:.3g} from the certified "
            f"values, at most {TOLERANCE:g} is expected"
        )
        for each in agreements
        if not each.error <= TOLERANCE
    ]
    counts = {kind: len(getattr(listing, kind)) for kind in ("vectors", "negative", "large")}
    return Verified(str(folder), listing.version, counts, problems, agreements)


def _parts(listing: manifest.Manifest) -> Iterator[tuple[str, Any]]:
    for kind in ("vectors", "negative", "large"):
        for each in getattr(listing, kind):
            yield kind, each


def _bytes(folder: Path, sums: dict[str, str]) -> Iterator[str]:
    """Problems of files that are missing, or whose digest is another."""
    for name, digest in sums.items():
        try:
            data = contents(folder, name)
        except FileNotFoundError:
            yield f"{folder}: {name}: missing; {manifest.SUMS} lists it"
            continue
        except CaseError as error:
            yield str(error)
            continue
        if manifest.digest(data) != digest:
            yield (
                f"{folder}: {name}: its SHA-256 is {manifest.digest(data)[:12]}..., "
                f"{manifest.SUMS} says {digest[:12]}..."
            )


def _listed(folder: Path, listing: manifest.Manifest, sums: dict[str, str]) -> Iterator[str]:
    """Problems of files that one of folder, manifest and digests lacks, and of a schema that is not
    ours.
    """
    named = {*manifest.files_of(listing), manifest.MANIFEST, manifest.SCHEMA}
    for name in sorted(named - sums.keys()):
        yield f"{folder}: {name}: no digest in {manifest.SUMS}"
    for name in sorted(sums.keys() - named):
        yield f"{folder}: {name}: not in {manifest.MANIFEST}"
    # not rglob, which early versions of Python 3.11 end at a link with an impossible target
    walked = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    files = (path for path in walked if os.path.isfile(path))
    there = {path.relative_to(folder).as_posix() for path in files}
    for name in sorted(there - named - sums.keys() - {manifest.SUMS}):
        yield f"{folder}: {name}: neither in {manifest.MANIFEST} nor in {manifest.SUMS}"
    if manifest.SCHEMA not in there:
        return
    try:
        schema = contents(folder, manifest.SCHEMA)
    except CaseError:
        return  # told where its digest is checked, or its absence there
    if schema != encode.json_bytes(manifest_schema()):
        yield f"{folder}: {manifest.SCHEMA}: is not the schema of format {listing.format}"


def _vector(folder: Path, vector: manifest.Vector) -> list[Agreement]:
    case = load(folder / vector.file)
    if case.header.rule != vector.rule:
        raise CaseError(
            f"{folder}: {vector.file}: rule {case.header.rule}, {manifest.MANIFEST} says "
            f"{vector.rule}"
        )
    for name, value in case.inputs.items():
        if value.dtype.kind == "f" and not exact(value):
            raise CaseError(
                f"{folder}: {vector.file}: {name}: holds a number that bfloat16 or float16 does not"
            )
    evaluated = evaluate(case, grad=vector.grad).tensors
    ours = {name: x for name, x in evaluated.items() if x.dtype.kind == "f"}  # no whole number
    if set(ours) != set(case.recorded):
        lost = sorted(set(ours) ^ set(case.recorded))
        raise CaseError(f"{folder}: {vector.file}: {lost[0]}: results are not those of the case")
    for name, value in case.recorded.items():
        _check_certified(f"{folder}: {vector.file}: {name}", value, ours[name])
    return [_agreement(vector.name, name, ours[name], case.recorded[name]) for name in ours]


def _check_certified(where: str, value: Any, ours: Any) -> None:
    """Refuse recorded results that no certified ones can be (VEC-1)."""
    if value.dtype != np.float64 or value.shape != ours.shape:
        raise CaseError(
            f"{where}: float64 of shape {list(ours.shape)} is needed, found {value.dtype} "
            f"{list(value.shape)}"
        )
    if not np.isfinite(value).all():
        raise CaseError(f"{where}: an entry is not finite")


def _agreement(vector: str, tensor: str, ours: Any, certified: Any) -> Agreement:
    place = ulp(float(np.max(np.abs(certified), initial=0.0)), "float64")
    ulps = float(np.max(np.abs(ours - certified), initial=0.0)) / place
    return Agreement(vector, tensor, relative_error(ours, certified), ulps)


def _negative(folder: Path, negative: manifest.Negative) -> None:
    """Check that a file is refused with its code, and passes once it is repaired (VEC-11,
    VEC-12).
    """
    path = folder / negative.file
    if negative.code not in CODES:
        raise CaseError(
            f"{folder}: {negative.file}: code {negative.code!r} does not exist; codes are "
            f"{', '.join(CODES)}"
        )
    try:
        load(path)
    except CaseError as error:
        said = str(error).removeprefix(f"{path}: ")
        if code_of(error) != negative.code or negative.about not in said:
            want = f"{negative.code} about {negative.about!r}"
            raise CaseError(
                f"{folder}: {negative.file}: is refused as {code_of(error)} ({said}), "
                f"expected {want}"
            ) from None
    else:
        raise CaseError(f"{folder}: {negative.file}: is accepted, expected {negative.code}")
    data = contents(folder, negative.file)
    case = repaired(data, negative.repair, f"{folder}: {negative.file}")
    _passes(folder, negative.file, case)


def _passes(folder: Path, file: str, case: Case) -> None:
    ours = evaluate(case, grad=any(name.startswith("grad/") for name in case.recorded)).tensors
    for name, value in case.recorded.items():
        same = name in ours and value.dtype == np.float64 and value.shape == ours[name].shape
        if not (same and relative_error(ours[name], value) <= TOLERANCE):
            raise CaseError(f"{folder}: {file}: {name}: does not pass after its repair")


def _large(folder: Path, one: manifest.Large) -> None:
    """Check that our results have the recorded norms and projections (VEC-13)."""
    case, recipe = load_large(folder / one.file)
    if case.header.rule != one.rule:
        raise CaseError(
            f"{folder}: {one.file}: rule {case.header.rule}, {manifest.MANIFEST} says {one.rule}"
        )
    ours = evaluate(case).tensors
    if lost := sorted(set(ours) ^ set(recipe["results"])):
        raise CaseError(f"{folder}: {one.file}: {lost[0]}: results are not those of the case")
    for name, want in recipe["results"].items():
        distance = large.apart(large.summary(name, ours[name], recipe["seed"]), want)
        if not distance <= 1.0:
            raise CaseError(
                f"{folder}: {one.file}: {name}: ours is {distance:.3g} times further from "
                f"what is recorded than {large.AGREE:g}"
            )
