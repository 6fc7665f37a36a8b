"""The model of manifest.json, in which no key is unknown (VEC-1, VEC-8), and the version of a set
(VEC-20).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.storage.files import unique
from atlas_ref.types import Frozen
from atlas_ref.vectors.sets.contents import text

MANIFEST, SUMS, SCHEMA = "manifest.json", "SHA256SUMS", "manifest.schema.json"
FOLDERS = ("cases", "negative", "large")

Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+(-[a-z0-9_]+)*$")]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
PLACE = r"^(cases|negative|large)/[A-Za-z0-9_-]+\.(safetensors|json)$"
Place = Annotated[str, Field(pattern=PLACE)]
Count = Annotated[int, Field(ge=1)]
Kills = dict[Literal["float32", "bfloat16"], list[str]]


def both_formats(kills: Kills) -> Kills:
    """The kills as they are, if neither format is left out."""
    for dtype in ("float32", "bfloat16"):
        if dtype not in kills:
            raise ValueError(f"{dtype}: missing")
    return kills


def repeated(names: Iterable[str]) -> str | None:
    """The first name that stands twice."""
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            return name
        earlier.add(name)
    return None


class _Part(Frozen):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Form(_Part):
    """A parallel form in which the vector has the same results, and a chunk that does not divide
    its tokens.
    """

    form: str
    chunk: Count


class Vector(_Part):
    """One case with certified results.

    Attributes:
        target, topic, seed: the origin of its inputs.
        properties: those by which it shows mistakes, in the words of VEC-5.
        forms: forms that compute it.
        splits: tokens before which the call may be cut in two (CONV-38).
        kills: dtype -> mutants that it rejects.
    """

    name: Name
    file: Place
    rule: str
    target: Name
    topic: Name
    seed: Annotated[int, Field(ge=0)]
    grad: bool
    properties: list[str]
    forms: list[Form]
    splits: list[Count]
    kills: Kills

    @field_validator("kills")
    @classmethod
    def _both(cls, kills: Kills) -> Kills:
        return both_formats(kills)


class Negative(_Part):
    """A file that must be refused, and the least change that makes it a case that passes.

    Attributes:
        code: of VEC-11. about: the tensor or key that a message must name.
        repair: steps of VEC-12, in order.
    """

    name: Name
    file: Place
    code: str
    about: str
    repair: list[dict[str, Any]]


class Large(_Part):
    """A case that is made from a seed, with its expected results in its file (VEC-13)."""

    name: Name
    file: Place
    rule: str


class Manifest(_Part):
    """manifest.json.

    Attributes:
        format: of sets; version: of this one, MAJOR.MINOR.PATCH.
        mutants: name -> the mistake in words.
    """

    format: Literal[1]
    set: Name
    version: Version
    values: Literal["certified"]
    vectors: list[Vector]
    negative: list[Negative]
    large: list[Large]
    mutants: dict[str, str]

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        for kind in ("vectors", "negative", "large"):
            if twice := repeated(each.name for each in getattr(self, kind)):
                raise ValueError(f"{kind}: {twice!r} stands twice")
        for each in self.vectors:
            for dtype, names in each.kills.items():
                if strange := next((name for name in names if name not in self.mutants), None):
                    raise ValueError(
                        f"vectors: {each.name}: kills.{dtype}: {strange!r} is none of mutants"
                    )
        return self

    def plain(self) -> dict[str, Any]:
        """The manifest as JSON holds it."""
        return self.model_dump(mode="json")


def load(folder: Path) -> Manifest:
    """The manifest of a set.

    Raises:
        CaseError: no set, no JSON, a key that does not exist or is missing, a value of another
            kind.
    """
    path, data = folder / MANIFEST, text(folder, MANIFEST)
    try:
        return Manifest.model_validate_json(json.dumps(json.loads(data, object_pairs_hook=unique)))
    except ValidationError as error:
        raise CaseError(f"{path}: {first_problem(error)}") from None
    except (ValueError, RecursionError) as error:
        raise CaseError(f"{path}: not JSON: {' '.join(str(error).split())}") from None


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sums(files: dict[str, bytes]) -> bytes:
    """The text of SHA256SUMS, as `sha256sum -c` reads it: names as their bytes on disk."""
    lines = (f"{digest(files[name])}  {name}\n" for name in sorted(files))
    return "".join(lines).encode(errors="surrogateescape")


def read_sums(folder: Path) -> dict[str, str]:
    """The digests of SHA256SUMS, by the name of the file.

    Raises:
        CaseError: no such file, or a line that is not a digest and a name.
    """
    path = folder / SUMS
    digests: dict[str, str] = {}
    for number, line in enumerate(text(folder, SUMS).splitlines(), 1):
        match = re.fullmatch(r"([0-9a-f]{64})  ([A-Za-z0-9_./-]+)", line)
        if match is None or match[2] in digests:
            raise CaseError(
                f"{path}: line {number}: a digest and a name of its own are needed, found "
                f"{line[:80]!r}"
            )
        digests[match[2]] = match[1]
    return digests


def strangers(folder: Path) -> list[str]:
    """What a folder holds that no set has: other names, links, devices, further folders (VEC-1)."""
    names = []
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            inside = path.relative_to(folder).as_posix()
            known = (
                inside in FOLDERS
                if name in folders
                else inside in (MANIFEST, SCHEMA, SUMS) or re.fullmatch(PLACE, inside)
            )
            if path.is_symlink() or not known or not (path.is_dir() or path.is_file()):
                names.append(inside)
    return sorted(names)


def files_of(manifest: Manifest) -> list[str]:
    """Every file that the manifest names (VEC-1)."""
    parts: list[Vector | Negative | Large] = [
        *manifest.vectors,
        *manifest.negative,
        *manifest.large,
    ]
    return [each.file for each in parts]
