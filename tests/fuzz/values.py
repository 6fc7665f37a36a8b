"""Odd values, and edits of JSON that take a good text to a malformed one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from atlas_ref.conventions import AXES, PRESETS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.schema.schema import axis_values
from atlas_ref.parts import feature_maps, window

#: Colour, a title, a C1 command, delete, text from right to left, markup of a table, a zero.
HOSTILE = "\x1b[31m\x1b]0;x\x07\x9b2J\x7f\u202e\r[bold]\n"


class Raw(str):
    """A piece of JSON that is written as it is."""


class Pairs(list[Any]):
    """The entries of an object as [key, value], so that a key can stand twice."""


#: Words of the format, so that an edit makes what a reader takes for granted as well as nonsense.
WORDS = (
    *SUBJECTS,
    *PRESETS,
    *AXES,
    *(word for axis in AXES for word in axis_values(axis)),
    *feature_maps.TENSORS,
    *window.TENSORS,
    *("projected", "token", "chunkwise", "exact", "scan", "kernel", "masked", "ttl", "kind", "of"),
    *("F64", "F32", "BF16", "F16", "BOOL", "U8", "I64", "C64", "F8_E4M3", "F4", "float32"),
    *("in/k", "in/v", "in/q", "in/retain", "in/S0", "out/y", "grad/k", "trace/S", "chunk/A", "y"),
    *("in/levels/0", "in/level9/x", "window", "span", "phase", "schedule", "levels", "note"),
)

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.0, 1.0, 1e308, 5e-324, 1e-9),
    *(2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**17, 10**18, -(2**63)),
    *(Raw("NaN"), Raw("-Infinity"), Raw("1e999"), Raw("-1e400"), Raw("1" * 5000), Raw("1.0")),
    *(Raw("[" * 99 + "]" * 99), Raw("[" * 120 + "]" * 120), Raw("[" * 100_000 + "]" * 100_000)),
    *(Raw('{"a":' * 2000 + "1" + "}" * 2000), Raw("01"), Raw(""), Raw("'x'"), Raw("[1,]")),
    *("", " ", "x", "1", "nan", "/", "..", "../../x", "/dev/zero", "x" * 5000, HOSTILE, "\ud800"),
    *("\0", "é", "\U0001f600", "a\nb", "{case}", "null", "2030-01-01", "0001-01-01", "ffff"),
    *([], {}, [[]], [None], [0], [1, 2, 3], [0.5, -1], {"": None}, {"kind": "product", "of": []}),
)


def odd(random: Random) -> Any:
    """A value that is seldom right, or a word of the format."""
    return random.choice(WORDS) if random.random() < 0.3 else random.choice(ODD)


def edited(random: Random, text: str, edits: int = 1) -> str:
    """A JSON text after some edits."""
    tree = opened(json.loads(text))
    for _ in range(edits):
        tree = _edit(random, tree)
    return dumped(tree)


def opened(value: Any) -> Any:
    """A JSON value whose objects are `Pairs`."""
    if isinstance(value, dict):
        return Pairs([key, opened(each)] for key, each in value.items())
    return [opened(each) for each in value] if isinstance(value, list) else value


def dumped(value: Any) -> str:
    """The JSON text of a value that may hold `Raw` and `Pairs`."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        value = opened(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{dumped(each)}" for key, each in value) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dumped, value)) + "]"
    return json.dumps(value)


def _containers(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Pairs):
        yield tree
        for _, value in tree:
            yield from _containers(value)
    elif isinstance(tree, list):
        yield tree
        for value in tree:
            yield from _containers(value)


def _edit(random: Random, tree: Any) -> Any:
    """One edit: an entry goes, stands twice, moves, is renamed, or has another value."""
    places = [each for each in _containers(tree) if each]
    if not places or random.random() < 0.03:
        return odd(random)
    place = random.choice(places)
    at = random.randrange(len(place))
    named = isinstance(place, Pairs)
    match random.randrange(8):
        case 0:
            del place[at]
        case 1:
            place.append(list(place[at]) if named else place[at])
        case 2 if named:
            place[at][0] = str(odd(random))
        case 3 if named:
            place.append([str(odd(random)), odd(random)])
        case 4:
            other = random.choice(random.choice(places))
            value = other[1] if isinstance(other, list) and len(other) == 2 else other
            # a copy, so that no place holds itself
            place[at] = [place[at][0], Raw(dumped(value))] if named else Raw(dumped(value))
        case _:
            old = place[at][1] if named else place[at]
            new = _near(random, old)
            place[at] = [place[at][0], new] if named else new
    return tree


def _near(random: Random, old: Any) -> Any:
    """A value near the old one, or an odd one."""
    if random.random() < 0.4:
        if isinstance(old, bool):
            return not old
        if isinstance(old, int | float):
            return random.choice((old + 1, old - 1, -old, old * 2, float(old), str(old)))
        if isinstance(old, str):
            return random.choice((old[:-1], old + "x", old.upper(), old * 2, random.choice(WORDS)))
    return odd(random)
