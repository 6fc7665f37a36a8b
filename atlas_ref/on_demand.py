"""A table whose names are known at once, and whose values are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class OnDemand(Mapping[str, T], Generic[T]):
    """Name -> value of a module that is imported the first time that the value is read.

    To iterate, to count and to ask whether a name is known imports nothing; `values` and `items`
    import all of it.

    Attributes:
        loaded: values that were read so far.
    """

    def __init__(self, modules: Mapping[str, str], read: Callable[[Any, str], T]) -> None:
        """Name the modules.

        Args:
            modules: name -> module, as text.
            read: (module, name) -> the value.
        """
        self.loaded: dict[str, T] = {}
        self._modules = dict(modules)
        self._read = read

    def __getitem__(self, name: str) -> T:
        if name not in self.loaded:
            self.loaded[name] = self._read(import_module(self._modules[name]), name)
        return self.loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)
