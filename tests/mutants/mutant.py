"""A mutant: a place in the package, a change of its code, and the tests that must reject it."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
        name: of the mutant.
        what: the mistake in words.
        place: "module:attribute", the attribute dotted where it is inside an object.
        change: the attribute -> its replacement.
        tests: the tests named for it; each must reject it.
    """

    name: str
    what: str
    place: str
    change: Change
    tests: tuple[str, ...]

    def found(self) -> tuple[Any, str]:
        """The object that has the attribute, and the attribute's name."""
        module, _, path = self.place.partition(":")
        *outer, last = path.split(".")
        holder: Any = importlib.import_module(module)
        for name in outer:
            holder = getattr(holder, name)
        return holder, last

    def apply(self) -> None:
        """Replace the attribute in this process."""
        holder, last = self.found()
        original = getattr(holder, last)
        replacement = self.change(original)
        if isinstance(self.change, Edited):
            return
        if replacement is original:
            raise ValueError(f"{self.name}: {self.place} is replaced by itself")
        setattr(holder, last, replacement)


@dataclass(frozen=True)
class Edited:
    """The function with `old` in its text replaced by `new`, wherever it was imported to."""

    old: str
    new: str

    def text(self, function: Any) -> tuple[Any, str]:
        """The function under an op or a cache, and its text once it is edited."""
        bare = inspect.unwrap(getattr(function, "function", function))
        text = textwrap.dedent(inspect.getsource(bare))
        if text.count(self.old) != 1:
            raise ValueError(
                f"{bare.__module__}.{bare.__qualname__}: {text.count(self.old)} places read "
                f"{self.old!r}, one is needed"
            )
        return bare, text.replace(self.old, self.new)

    def __call__(self, function: Any) -> Any:
        bare, text = self.text(function)
        tree = ast.parse(text)
        tree.body[0].decorator_list = []  # type: ignore[attr-defined]
        # inherits this file's deferred annotations
        code = compile(tree, f"<mutant of {bare.__qualname__}>", "exec")
        namespace: dict[str, Any] = {}
        exec(code, bare.__globals__, namespace)
        bare.__code__ = namespace[bare.__name__].__code__
        if hasattr(function, "cache_clear"):
            function.cache_clear()
        return function


def constant(value: Any) -> Change:
    return lambda original: value
