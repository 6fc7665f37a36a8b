"""Faults in case files, and the proof that each is refused everywhere in the same one line."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import atlas_ref
from tests.support.casefiles import changed, some, written


class Bad(NamedTuple):
    """A fault: the change to a valid case, and the words of the refusal."""

    message: str
    header: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    base: dict[str, Any] = {}


def case_of(bad, folder):
    header, tensors = some(**bad.base)
    return written(
        folder / "bad.safetensors", changed(header, bad.header), changed(tensors, bad.tensors)
    )


def refused_everywhere(file, message, cli, folder):
    """Refusal through Python and every command: the same one line, exit code 2 and no output."""
    with pytest.raises(atlas_ref.CaseError) as refusal:
        atlas_ref.load(file)
    line = str(refusal.value)
    assert line.startswith(f"{file}: {message}")
    out = folder / "out.safetensors"
    for arguments in (
        ("show", file),
        ("eval", file, "-o", out),
        ("eval", file, "-o", out, "--grad"),
        ("check", file),
    ):
        ran = cli(*arguments)
        assert (ran.code, ran.out, ran.err) == (2, "", f"atlas-ref: {line}\n")
        assert [each.name for each in folder.iterdir()] == [file.name]
