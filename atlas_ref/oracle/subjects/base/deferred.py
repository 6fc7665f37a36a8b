"""Functions of rooms above the subjects, each imported when it is called first."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def defer(place: str) -> Callable[..., Any]:
    """A function of the oracle by its place, `replay.loop:run`, that is imported when called."""
    module, name = place.split(":")

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(f"atlas_ref.oracle.{module}"), name)(
            *arguments, **named
        )

    return call
