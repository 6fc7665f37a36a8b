"""Make a set from its plan: inputs from seeds, values certified, the same bytes on every machine
(VEC-9).

build("v1", "vectors/v1", jobs=2)
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter, model_validator

import atlas_ref
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.sweep.lines import Task, holds
from atlas_ref.oracle.sweep.log import Log
from atlas_ref.oracle.sweep.modes import Result, Work
from atlas_ref.oracle.sweep.split import places
from atlas_ref.oracle.sweep.tasks import Line, Tasks
from atlas_ref.types import Frozen
from atlas_ref.vectors.inputs import large
from atlas_ref.vectors.inputs.properties import forms, properties
from atlas_ref.vectors.mutants import mutants
from atlas_ref.vectors.refusals import negative
from atlas_ref.vectors.sets import encode, manifest, plan
from atlas_ref.vectors.sets.expected import Values, expected
from atlas_ref.vectors.sets.schema import manifest_schema

Files = dict[str, bytes]

#: Key of the first line of a log, and the name of its work.
LOG, WHAT = "atlas_ref_vectors", "a set of vectors"


class Tensor(Frozen):
    """Certified numbers of a result."""

    shape: list[Annotated[int, Field(ge=0)]]
    numbers: list[Annotated[float, Field(allow_inf_nan=False)]]

    @model_validator(mode="after")
    def _whole(self) -> Tensor:
        if math.prod(self.shape) != len(self.numbers):
            raise ValueError(f"{len(self.numbers)} numbers for the shape {self.shape}")
        return self


class Logged(Task):
    """The line of a case."""

    task: Literal["certify", "base", "large"]
    values: dict[str, Tensor]


VALUES = TypeAdapter(Logged)


class Certifying(NamedTuple):
    """The plan of the tasks that certify the values of a set.

    Task `certify` N has the values of vector N; `base` N and `large` N have those of the other
    cases.
    """

    plan: plan.Plan

    def perform(self, source: Any, kind: str, number: int) -> Result:
        """Certified values of one case."""
        if kind == "large":
            return expected(
                large.drawn_large(large.large_named(self.plan.large[number]))[0], grad=False
            )
        if kind == "base":
            return expected(negative.drawn_base(_bases(self.plan)[number]), grad=False)
        entry = self.plan.vectors[number]
        return expected(entry.case(), grad=entry.parts()[1].grad)


def build(
    name: str,
    out: str | os.PathLike[str],
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: Progress = unwatched,
) -> dict[str, int]:
    """Make a set and put it in a folder, whole or not at all (VEC-9).

    Args:
        name: of a plan.
        out: a new or empty folder, or one that holds a set, which is replaced.
        jobs, scheduler: processes, or a Dask scheduler in their place, as for `sweep`.
        resume: a log; what it holds must be what is computed.

    Returns:
        name -> bytes of every file.

    Raises:
        CaseError: no such plan, python-flint is missing, a folder that holds something else, a log
            of another set, or with other values than are computed.
    """
    place = _place(Path(out))
    set_plan = plan.load(name)
    with ExitStack() as stack:
        described = {"version": atlas_ref.__version__, "plan": _identity(set_plan)}
        log = (
            None
            if resume is None
            else stack.enter_context(
                Log(resume, described, key=LOG, what=WHAT, holds=holds(VALUES))
            )
        )
        work = Work(Certifying(set_plan), None)
        # what is published is certified in this run: a log can be written by anybody
        run = Tasks(work, _line, jobs, scheduler, log, progress, proved=True)
        values = [_values(line) for line in run.lines("certify", range(len(set_plan.vectors)))]
        bases = [_values(line) for line in run.lines("base", range(len(_bases(set_plan))))]
        sizes = [_values(line) for line in run.lines("large", range(len(set_plan.large)))]
    files = _files(set_plan, values, bases, sizes)
    _replace(place, files)
    return {file: len(data) for file, data in files.items()}


def _identity(set_plan: plan.Plan) -> str:
    """One line that identifies a plan: it differs where the plan does."""
    return (
        f"{set_plan.set} {set_plan.version}, SHA-256 "
        f"{manifest.digest(encode.json_bytes(set_plan.model_dump(mode='json')))[:16]}"
    )


def _bases(set_plan: plan.Plan) -> list[tuple[str, str]]:
    return negative.bases([negative.negative_named(name) for name in set_plan.negative])


def _line(result: Values) -> Line:
    return {
        "values": {
            name: {"shape": list(value.shape), "numbers": value.ravel().tolist()}
            for name, value in result.items()
        }
    }


def _values(line: Mapping[str, Any]) -> Values:
    return {
        name: np.array(each["numbers"], np.float64).reshape(each["shape"])
        for name, each in line["values"].items()
    }


def _files(
    set_plan: plan.Plan, values: list[Values], bases: list[Values], sizes: list[Values]
) -> Files:
    files: Files = {}
    vectors = []
    for entry, results in zip(set_plan.vectors, values, strict=True):
        case = entry.case()
        vectors.append(_vector(entry, case))
        files[vectors[-1]["file"]] = encode.tensor_bytes(_header(case), {**case.inputs, **results})
    negatives = _negatives(set_plan, dict(zip(_bases(set_plan), bases, strict=True)), files)
    larges = []
    for name, results in zip(set_plan.large, sizes, strict=True):
        one = large.large_named(name)
        file = f"large/{one.name}.json"
        files[file] = encode.json_bytes(_large(one, results))
        larges.append({"name": one.name, "file": file, "rule": one.rule})
    killed = {
        name for entry in set_plan.vectors for names in entry.kills.values() for name in names
    }
    contents = {
        "format": 1,
        "set": set_plan.set,
        "version": set_plan.version,
        "values": "certified",
    }
    contents |= {"vectors": vectors, "negative": negatives, "large": larges}
    checked = manifest.Manifest.model_validate(
        contents | {"mutants": {name: mutants.words(name) for name in killed}}
    ).plain()
    files[manifest.MANIFEST] = encode.json_bytes(checked)
    files[manifest.SCHEMA] = encode.json_bytes(manifest_schema())
    files[manifest.SUMS] = manifest.sums(files)
    return files


def _negatives(
    set_plan: plan.Plan, bases: Mapping[tuple[str, str], Values], files: Files
) -> list[dict[str, Any]]:
    """Add the files that must be refused to `files`, and return their entries of the manifest."""
    entries = []
    for each in map(negative.negative_named, set_plan.negative):
        case = negative.drawn_base(each.base)
        spoilt = negative.made(each, _header(case), {**case.inputs, **bases[each.base]})
        file = f"negative/{each.name}.safetensors"
        files[file] = spoilt.data
        entries.append(
            {
                "name": each.name,
                "file": file,
                "code": each.code,
                "about": each.about,
                "repair": spoilt.repair,
            }
        )
    return entries


def _header(case: Case) -> dict[str, Any]:
    """The JSON object of a vector: its set states the axis of gates, in the manifest (GATES-15)."""
    return {key: value for key, value in case.header.plain().items() if key != "gate_axis"}


def _large(one: large.Large, values: Values) -> dict[str, Any]:
    case, recipes = large.drawn_large(one)
    results = {name: large.summary(name, value, one.seed) for name, value in values.items()}
    return {
        "name": one.name,
        "header": _header(case),
        "tensors": recipes,
        "seed": one.seed,
        "results": results,
    }


def _vector(entry: plan.Entry, case: Case) -> dict[str, Any]:
    return {
        "name": entry.name,
        "file": f"cases/{entry.name}.safetensors",
        "rule": case.header.rule,
        "target": entry.target,
        "topic": entry.topic,
        "seed": entry.seed,
        "grad": entry.parts()[1].grad,
        "properties": properties(case),
        "forms": [{"form": form, "chunk": chunk} for form, chunk in forms(case)],
        "splits": places(case),
        "kills": {dtype: list(names) for dtype, names in entry.kills.items()},
    }


def _place(out: Path) -> Path:
    """The folder, behind any link, if a set may be put there.

    Raises:
        CaseError: it holds something else, beside a set too, or its parent does not exist.
    """
    try:
        return _free(out)
    except OSError as error:  # a name that no folder can have
        raise CaseError(f"{out}: cannot be written: {error.strerror or error}") from None


def _free(out: Path) -> Path:
    place = Path(os.path.realpath(out))
    if os.path.lexists(place) and not os.path.isdir(place):  # a link that leads to itself, too
        raise CaseError(f"{out}: is no folder")
    if out.is_dir() and any(out.iterdir()):
        if not (out / manifest.MANIFEST).is_file():
            raise CaseError(f"{out}: holds something else than a set; a new folder is needed")
        manifest.load(out)
        if strange := manifest.strangers(out):
            raise CaseError(
                f"{out}: holds {strange[0]}, which is no part of a set and would be lost; a new "
                "folder is needed"
            )
    if not out.parent.is_dir():
        raise CaseError(f"{out}: the folder {out.parent} does not exist")
    return place


def _replace(out: Path, files: Files) -> None:
    """Write every file under a temporary folder, which then replaces `out`.

    Nothing is left behind if it cannot.
    """
    _place(out)  # again: somebody may have put a file there since the work began
    try:
        with tempfile.TemporaryDirectory(
            prefix=".atlas-ref-", dir=out.parent, ignore_cleanup_errors=True
        ) as room:
            new, old = Path(room, "new"), Path(room, "old")
            for name, data in files.items():
                path = new / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            if out.exists():
                os.replace(out, old)
            try:
                os.replace(new, out)
            except BaseException:  # a signal too
                if old.exists():
                    os.replace(old, out)
                raise
    except OSError as error:
        raise CaseError(f"{out}: cannot be written: {error.strerror or error}") from None
