"""The tape of one write of the Delta rule: an entry for every op, edges from its arguments, and the way cotangents take back."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.gates import Gates
from atlas_ref.rules import delta
from docs.pictures import style
from tape.core import plain, recording

WIDE, HIGH, BOX, TALL = 176, 58, 150, 34


class Entry(NamedTuple):
    """An entry of the list: what it is, the shape of its value, and the entries it comes from."""

    name: str
    shape: tuple[int, ...]
    parents: tuple[int, ...]


def entries() -> list[Entry]:
    """One write, recorded: inputs first, then ops in the order of execution (TAPE-1)."""
    config = delta.Config(d_in=3, d_out=2, convention=resolve({"gate": "retain"}, rule="delta"))
    draw = np.random.default_rng(0)
    inputs = {"M": draw.standard_normal((2, 3)), "k": draw.standard_normal(3), "v": draw.standard_normal(2)}
    inputs |= {"retain": np.full((1, 1), 0.9), "step_size": np.full((1, 1), 0.5)}
    with recording() as tape:
        ops: list[tuple[str, Any]] = []
        tape.guard = lambda name, arguments, value: ops.append((name, value))
        x = {name: tape.variable(value) for name, value in inputs.items()}
        state = delta.start(config).replaced(M=x["M"])
        gates = Gates(retain=x["retain"], momentum=None, step_size=x["step_size"], step_size_memory=None, window_weights=None)
        delta.update(config, state, x["k"], x["v"], gates)
        found = [Entry(name, np.shape(value), ()) for name, value in inputs.items()]
        for (name, value), edges in zip(ops, tape.entries[len(inputs) :], strict=True):
            flat = [each for parent, _ in edges for each in (parent if isinstance(parent, tuple) else (parent,)) if each is not None]
            found.append(Entry(name, np.shape(plain(value)), tuple(flat)))
    return found


def picture() -> str:
    """Entries in rows by their distance from the inputs."""
    found = entries()
    depth: list[int] = []
    for each in found:
        depth.append(1 + max((depth[parent] for parent in each.parents), default=-1))
    for i, each in enumerate(found):  # an input stands right before what uses it first
        if not each.parents:
            depth[i] = min(depth[j] for j, other in enumerate(found) if i in other.parents) - 1
    rows: dict[int, int] = {}
    place = []
    for column in depth:
        place.append((column, rows.get(column, 0)))
        rows[column] = rows.get(column, 0) + 1
    width, height = WIDE * max(rows.values()), HIGH * (max(depth) + 1)
    parts = [_edge(place[parent], place[i]) for i, each in enumerate(found) for parent in each.parents]
    parts += [_box(i, each, place[i]) for i, each in enumerate(found)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">'
    arrow = '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    arrow += f'<path d="M0 0L8 4L0 8z" fill="{style.TEXT}"/></marker></defs>'
    return style.finished(f"{head}{arrow}{''.join(parts)}</svg>", "tape", "The tape of one write of the Delta rule as a graph")


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    return place[1] * WIDE + 10, place[0] * HIGH + 10


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x, y), (to_x, to_y) = _corner(start), _corner(end)
    a, b, c, d = x + BOX // 2, y + TALL, to_x + BOX // 2, to_y
    path = f"M{a} {b}C{a} {b + 18} {c} {d - 22} {c} {d}"
    return f'<path d="{path}" fill="none" stroke="{style.TEXT}" stroke-opacity="0.55" marker-end="url(#arrow)"/>'


def _box(index: int, entry: Entry, place: tuple[int, int]) -> str:
    x, y = _corner(place)
    colour = style.COLOURS[0] if not entry.parents else style.COLOURS[1]
    words = html.escape(f"{index}  {entry.name} {'x'.join(map(str, entry.shape)) or 'number'}")
    box = f'<rect x="{x}" y="{y}" width="{BOX}" height="{TALL}" rx="5" fill="{colour}" fill-opacity="0.18" stroke="{colour}"/>'
    return f'{box}<text x="{x + BOX / 2}" y="{y + 22}" text-anchor="middle" fill="{style.TEXT}">{words}</text>'
