"""The first setting in which a model of ours is not one of public code.

Specified in specs/language_model.md (MODEL-12).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from atlas_ref.messages import shown


def difference(
    found: Any, want: Any, project: str, *, free: Collection[str] = (), where: str = ""
) -> str:
    """The first setting in which two descriptions differ, or nothing (MODEL-12).

    Args:
        found, want: of `checkpoint.described`: of a model, and of the one that the project has.
        free: keys of settings that change no result, or that a tensor holds.
    """
    if isinstance(found, dict) and isinstance(want, dict) and found.keys() == want.keys():
        parts = [(f"{where}.{key}", found[key], want[key]) for key in found if key not in free]
    elif isinstance(found, list) and isinstance(want, list) and len(found) == len(want):
        parts = [(f"{where}.{i}", a, b) for i, (a, b) in enumerate(zip(found, want, strict=True))]
    else:
        tags = [
            next((each[key] for key in ("rule", "kind") if key in each), "other keys")
            if isinstance(each, dict)
            else each
            for each in (found, want)
        ]
        same = type(found) is type(want) and found == want
        a, b = (each if isinstance(each, str) else shown(each) for each in tags)
        return "" if same else f"{where.removeprefix('.')}: {a}, {project} has {b}"
    texts = (difference(a, b, project, free=free, where=place) for place, a, b in parts)
    return next((text for text in texts if text), "")
