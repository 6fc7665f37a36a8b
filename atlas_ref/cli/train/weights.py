"""Weights of the sources of text in words of an option, with or without their names.

Specified in specs/train.md (TRAIN-16).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

NEEDED = "--weights: numbers between commas are needed, as in 0.4,0.5,0.1 or a:0.4,b:0.6"


def parsed(text: str) -> list[float] | dict[str, float]:
    """Numbers between commas or blanks; by name where each is `NAME:0.4`.

    Raises:
        ValueError: what is no number, a name twice, names beside numbers that have none.
    """
    parts = [part.rpartition(":") for part in text.replace(",", " ").split()]
    try:
        numbers = [float(number) for _, _, number in parts]
    except ValueError:
        numbers = []
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{NEEDED}, found {text!r}")
    names = [name.rstrip("/") for name, colon, _ in parts if colon]
    if not names:
        return numbers
    if len(names) < len(parts):
        raise ValueError(f"{NEEDED}: all of them have names or none has, found {text!r}")
    if (twice := [name for name, count in Counter(names).items() if count > 1]) != []:
        raise ValueError(f"--weights: {twice[0]} has two weights")
    return dict(zip(names, numbers, strict=True))


def of_sources(given: Mapping[str, Any], before: Any = None) -> list[float]:
    """The weights of an option in the order of the sources, which their names say (TRAIN-5).

    Args:
        given: options by the settings they give; `weights` is of `parsed`.
        before: settings of the run that goes on or that a new one begins with; None for none.

    Raises:
        ValueError: names a source that has no weight, or a weight of no source.
    """
    weights = given["weights"]
    if not isinstance(weights, dict):
        return list(weights)
    names = _sources(given, before)
    known = {short: name for name in names for short in (name, os.path.basename(name))}
    several = Counter(os.path.basename(name) for name in names)
    found: dict[str, float] = {}
    for name, number in weights.items():
        if name not in known or (several[name] > 1 and name not in names):
            raise ValueError(f"--weights: {name} is no source; sources are {', '.join(names)}")
        if known[name] in found:
            raise ValueError(f"--weights: {known[name]} has two weights")
        found[known[name]] = number
    if (left := [name for name in names if name not in found]) != []:
        raise ValueError(f"--weights: {left[0]} has none; sources are {', '.join(names)}")
    return [found[name] for name in names]


def _sources(given: Mapping[str, Any], before: Any) -> Sequence[str]:
    """Names of the sources: subsets of a mixture, all of it unless some are chosen, or paths."""
    from atlas_ref.messages import no_such
    from atlas_ref.train.data import MIXTURES

    def setting(name: str) -> Any:
        return given.get(name) or (getattr(before.text, name) if before is not None else None)

    mixture = setting("mixture")
    if mixture is None:
        return [path.rstrip("/") for path in setting("paths") or ()]
    if mixture not in MIXTURES:
        raise ValueError(no_such("mixture", mixture, MIXTURES))
    return list(setting("subsets") or MIXTURES[mixture])
