"""The packages that are asked, their pins, and the functions of each: packages.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parent / "packages.toml"

#: Keys of a package and of an entry in the data.
PACKAGE_KEYS = {"pins", "python", "alone", "program", "note", "functions"}
ENTRY_KEYS = {"entry", "target", "settings", "dtype", "note"}

#: The precision that a function is asked in where its entry does not say.
DTYPE = "float32"


class Entry(NamedTuple):
    """A function of a package, and what of it is asked.

    Attributes:
        adapter: `module:function` of examples/adapters, which answers cases; of a package of npm the
            folder of its program, and a name.
        entry: the public function, as its package names it.
        target: a rule, or `dplr-MEMBER`: whose vectors it is asked.
        settings: what the adapter states beside the target, in words.
        dtype: the precision that it is asked in.
        note: what else there is to know, for the table.
    """

    adapter: str
    entry: str
    target: str
    settings: str = ""
    dtype: str = DTYPE
    note: str = ""


class Package(NamedTuple):
    """A public package and its environment.

    Attributes:
        pins: lines of a requirements file; the first is the package itself.
        python: the version of the interpreter, as 3.12; any where empty.
        alone: whether it is installed without what it asks for of Python and other packages: the
            other pins are what it gets.
        program: a file of examples/adapters that Node runs, of a package of npm; else empty.
        note: about all of its entries, for the table.
    """

    name: str
    pins: tuple[str, ...]
    entries: tuple[Entry, ...]
    python: str = ""
    alone: bool = False
    program: str = ""
    note: str = ""

    @property
    def pinned(self) -> str:
        """The version that its pin asks for."""
        return self.pins[0].partition("==")[2].partition(" ")[0]


def packages(path: Path = DATA) -> tuple[Package, ...]:
    """Every package of the data, in the order of the table.

    Raises:
        ValueError: a key that is not known, a package without a pin of itself, or without functions.
    """
    found = tomllib.loads(path.read_text())
    return tuple(_package(name, row) for name, row in found.items())


def chosen(every: Sequence[Package], names: Sequence[str]) -> tuple[Package, ...]:
    """Those whose name is asked for; all where none is.

    Raises:
        ValueError: a name that no package has.
    """
    known = [package.name for package in every]
    for name in names:
        if name not in known:
            raise ValueError(f"{name}: no such package; there are {', '.join(known)}")
    return tuple(package for package in every if not names or package.name in names)


def _package(name: str, row: Mapping[str, Any]) -> Package:
    if wrong := set(row) - PACKAGE_KEYS:
        raise ValueError(f"{name}: {', '.join(sorted(wrong))}: no such key of a package")
    pins = tuple(row.get("pins", ()))
    if not pins or not pins[0].startswith(f"{name}=="):
        raise ValueError(f"{name}: its first pin is {name}==VERSION, found {list(pins)}")
    if loose := [pin for pin in pins if "==" not in pin]:
        raise ValueError(f"{name}: {loose[0]}: a pin has ==")
    entries = tuple(_entry(name, adapter, each) for adapter, each in row["functions"].items())
    if not entries:
        raise ValueError(f"{name}: it has no function")
    own = {key: row[key] for key in ("python", "alone", "program", "note") if key in row}
    return Package(name, pins, entries, **own)


def _entry(package: str, adapter: str, row: Mapping[str, Any]) -> Entry:
    if wrong := set(row) - ENTRY_KEYS:
        raise ValueError(f"{package}, {adapter}: {', '.join(sorted(wrong))}: no such key")
    if missing := {"entry", "target"} - set(row):
        raise ValueError(f"{package}, {adapter}: it has no {', '.join(sorted(missing))}")
    return Entry(adapter, **row)
