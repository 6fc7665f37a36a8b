"""Malformed contents of files: bytes, lines, and the parts of a safetensors file."""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.values import ODD, Pairs, Raw, dumped, edited, odd, opened

#: Lengths of a header that no file has, or that are one off.
LENGTHS = (0, 1, 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 100_000_000, 100_000_001, 5_000_001)

#: Numbers that a tensor may hold and a rule seldom bears.
NUMBERS = (np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 1e-160, 1e160, -1.0, 0.0, 2.0, 1e30)

DTYPES = ("F64", "F32", "BF16", "F16", "BOOL", "U8", "I8", "I64", "U64", "C64", "F8_E4M3")
DTYPES += ("F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "f64", "")


def bytes_spoilt(random: Random, data: bytes) -> bytes:
    """Bytes flipped, cut, doubled, added, or all others."""
    content = bytearray(data)
    at = random.randrange(len(content) + 1)
    length = random.choice((1, 2, 8, 100, len(content)))
    match random.randrange(7):
        case 0:
            return bytes(content[:at])
        case 1:
            for _ in range(random.choice((1, 1, 3, 30))):
                if content:
                    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        case 2:
            del content[at : at + length]
        case 3:
            content[at:at] = content[at : at + length]
        case 4:
            content[at:at] = random.randbytes(random.choice((1, 8, 100)))
        case 5:
            content[at : at + length] = bytes(min(length, len(content) - at))
        case _:
            return random.choice((b"", b"\0", random.randbytes(64), b"\xff\xfe", b"{}", b"[]\n"))
    return bytes(content)


def json_spoilt(random: Random, data: bytes) -> bytes:
    """A JSON text after edits of its values, or of its bytes."""
    if random.random() < 0.2:
        return bytes_spoilt(random, data)
    try:
        return _encoded(edited(random, data.decode(), random.choice((1, 1, 2, 4))))
    except (ValueError, RecursionError):  # malformed already
        return bytes_spoilt(random, data)


def lines_spoilt(random: Random, data: bytes) -> bytes:
    """A text, or one JSON object a line, with lines that go, stand twice, move, or are edited."""
    lines = data.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines)) if lines else 0
        match random.randrange(6):
            case 0 if lines:
                del lines[at]
            case 1 if lines:
                lines.insert(random.randrange(len(lines)), lines[at])
            case 2 if lines and lines[at][:1] == b"{":
                lines[at] = json_spoilt(random, lines[at])
            case 3 if lines:
                word = _encoded(random.choice([each for each in ODD if isinstance(each, str)]))
                parts = lines[at].split(b" ")
                parts[random.randrange(len(parts))] = word
                lines[at] = b" ".join(parts)
            case 4 if lines:
                lines[at] = bytes_spoilt(random, lines[at])
            case _:
                lines.insert(at, _encoded(dumped(odd(random))))
    return b"\n".join(lines)


def tensors_spoilt(random: Random, data: bytes) -> bytes:
    """A safetensors file after some edits of its parts."""
    if random.random() < 0.2:
        return bytes_spoilt(random, data)
    length = int.from_bytes(data[:8], "little")
    try:
        entries, body = opened(json.loads(data[8 : 8 + length])), bytearray(data[8 + length :])
    except (ValueError, RecursionError):  # malformed already
        return bytes_spoilt(random, data)
    for _ in range(random.choice((1, 1, 2, 3))):
        choose = random.random()
        if choose < 0.35:
            _spoil_object(random, entries)
        elif choose < 0.55:
            _spoil_numbers(random, entries, body)
        elif choose < 0.9:
            _spoil_entry(random, entries, body)
        else:
            return _length_spoilt(random, _encoded(dumped(entries)), bytes(body))
    head = _encoded(dumped(entries))
    return struct.pack("<Q", len(head)) + head + bytes(body)


def _length_spoilt(random: Random, head: bytes, body: bytes) -> bytes:
    off = (len(head) + random.choice((-1, 1, 8, 1000))) % 2**64
    return struct.pack("<Q", random.choice((*LENGTHS, off, off))) + head + body


def _spoil_object(random: Random, entries: Pairs) -> None:
    """Edit the JSON object of a case, or the metadata that hold it."""
    place = next((each for each in entries if each[0] == "__metadata__"), None)
    if place is None or not isinstance(place[1], Pairs) or not place[1]:
        entries.append(["__metadata__", random.choice((odd(random), Pairs([["atlas_ref", "{}"]])))])
        return
    inside = place[1][0]
    if random.random() < 0.1 or not isinstance(inside[1], str) or isinstance(inside[1], Raw):
        place[1] = opened(json.loads('{"atlas_ref":""}')) if random.random() < 0.5 else odd(random)
        return
    try:
        inside[1] = edited(random, inside[1], random.choice((1, 1, 2, 3)))
    except (ValueError, RecursionError):  # an edit before this one left no JSON
        inside[1] = "{}"


def _tensors(entries: Pairs) -> list[Any]:
    return [
        each
        for each in entries
        if each[0] != "__metadata__"
        and isinstance(each[1], Pairs)
        and [key for key, _ in each[1]] == ["dtype", "shape", "data_offsets"]
        and all(isinstance(value, list) for _, value in each[1][1:])
    ]


def _spoil_numbers(random: Random, entries: Pairs, body: bytearray) -> None:
    """Write odd numbers over some of a tensor's."""
    tensors = _tensors(entries)
    if not tensors:
        return
    (_, kind), _, (_, offsets) = random.choice(tensors)[1]
    if len(offsets) != 2 or not all(type(each) is int for each in offsets):
        return
    start, end = offsets
    if kind not in ("F64", "F32"):
        at = random.randrange(start, max(end, start + 1)) if start >= 0 else 0
        body[at : at + 1] = random.choice((b"\0", b"\1", b"\2", b"\x7f", b"\xff"))
        return
    size = 8 if kind == "F64" else 4
    with np.errstate(all="ignore"):
        number = np.array(random.choice(NUMBERS), f"<f{size}").tobytes()
    if random.random() < 0.2:
        body[start:end] = number * ((end - start) // size)
    elif end - start >= size:
        at = start + size * random.randrange((end - start) // size)
        body[at : at + size] = number


def _spoil_entry(random: Random, entries: Pairs, body: bytearray) -> None:
    """Give a tensor another name, dtype, shape or place, drop it, double it, or add one."""
    tensors = _tensors(entries)
    if not tensors:
        return
    entry = random.choice(tensors)
    (_, _), (_, shape), (_, offsets) = entry[1]
    match random.randrange(9):
        case 0:
            entry[0] = random.choice((str(odd(random)), entry[0] + "x", f"in/{odd(random)}"))
        case 1:
            entry[1][0][1] = random.choice((*DTYPES, odd(random)))
        case 2:
            entry[1][1][1] = _shape_spoilt(random, shape)
        case 3:
            near = [[each - 8, each] for each in offsets[:1] if type(each) is int]
            odd_end = [[each, odd(random)] for each in offsets[:1]]
            later = [[each + 8 for each in offsets if type(each) is int]]
            entry[1][2][1] = random.choice(
                [offsets[::-1], [0, 0], offsets[:1], *later, *near, *odd_end]
            )
        case 4:
            entries.remove(entry)
        case 5:
            entries.append([entry[0], opened(json.loads(dumped_or_empty(entry[1])))])
        case 6:
            numbers = random.choice((0, 1, 2, 6))
            _add(random, entries, body, str(random.choice(_NAMES)), numbers)
        case 7:  # the same numbers under two names
            entries.append([str(random.choice(_NAMES)), entry[1]])
        case _:
            entry[1].append([str(odd(random)), odd(random)])


_NAMES = ("in/active", "in/reset", "in/M0", "in/S0", "in/momentum", "in/log_retain", "in/M_bar")
_NAMES += ("in/window_k", "in/window_v", "in/x", "in/G", "in/proj", "in/phi/W", "in/logits")
_NAMES += ("out/y", "out/M", "grad/k", "trace/S", "trace/y", "chunk/M", "chunk/A", "in/M_ref")
_NAMES += ("in/step_size_memory", "in/window_weights", "in/param/W_K", "in/level0/param/W_K", "x")


def dumped_or_empty(value: Any) -> str:
    """The JSON text of a value, or an empty object where an edit left no JSON."""
    text = dumped(value)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "{}"
    return text


def _shape_spoilt(random: Random, shape: list[Any]) -> Any:
    return random.choice(
        (
            shape[::-1],
            [*shape, 1],
            shape[1:],
            [1] * 70,
            [0],
            [0, 2**63],
            [0, 2**64 - 1],
            [2**62, 4],
            [-1, *shape[1:]],
            [*shape[:-1], odd(random)],
            [*shape[:-1], shape[-1] + 1] if shape and type(shape[-1]) is int else shape,
            odd(random),
        )
    )


def _add(random: Random, entries: Pairs, body: bytearray, name: str, numbers: int) -> None:
    """Add a tensor of some random numbers in some dtype."""
    kind, size = random.choice((("F64", 8), ("F32", 4), ("BF16", 2), ("BOOL", 1), ("U8", 1)))
    start = len(body)
    body += bytes(random.randrange(2) for _ in range(numbers * size))
    shape = random.choice(([numbers], [1, numbers], [numbers, 1]))
    entries.append(
        [
            name,
            Pairs([["dtype", kind], ["shape", shape], ["data_offsets", [start, len(body)]]]),
        ]
    )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
