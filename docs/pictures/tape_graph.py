"""The tape of one write of the Delta rule as a graph.

It has an entry for every op and edges from its arguments, which cotangents follow in reverse.
"""

from __future__ import annotations

import html
import itertools
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.parts.gates import Gates
from atlas_ref.rules import delta
from docs.pictures import style
from tape.core import recording
from tape.variable import plain

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
    inputs = {
        "M": draw.standard_normal((2, 3)),
        "k": draw.standard_normal(3),
        "v": draw.standard_normal(2),
    }
    inputs |= {"retain": np.full((1, 1), 0.9), "step_size": np.full((1, 1), 0.5)}
    with recording() as tape:
        ops: list[tuple[str, Any]] = []
        tape.guard = lambda name, arguments, value: ops.append((name, value))
        x = {name: tape.variable(value) for name, value in inputs.items()}
        state = delta.start(config).replaced(M=x["M"])
        gates = Gates(
            retain=x["retain"],
            momentum=None,
            step_size=x["step_size"],
            step_size_memory=None,
            window_weights=None,
        )
        delta.update(config, state, x["k"], x["v"], gates)
        result = [Entry(name, np.shape(value), ()) for name, value in inputs.items()]
        for (name, value), edges in zip(ops, tape.entries[len(inputs) :], strict=True):
            flat = [
                each
                for parent, _ in edges
                for each in (parent if isinstance(parent, tuple) else (parent,))
                if each is not None
            ]
            result.append(Entry(name, np.shape(plain(value)), tuple(flat)))
    return result


def picture() -> str:
    """Entries in rows by their distance from the inputs; an edge over several rows goes between
    their boxes.
    """
    graph = entries()
    rows, ways = arranged(graph)
    place = {
        node: (row, column) for row, nodes in enumerate(rows) for column, node in enumerate(nodes)
    }
    width, height = WIDE * max(map(len, rows)), HIGH * len(rows)
    parts = [_edge([place[node] for node in way]) for way in ways]
    parts += [_box(i, each, place[i]) for i, each in enumerate(graph)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">'
    )
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto">'
    )
    arrow += f'<path d="M0 0L8 4L0 8z" fill="{style.TEXT}"/></marker></defs>'
    return style.finished(
        f"{head}{arrow}{''.join(parts)}</svg>",
        "tape",
        "The tape of one write of the Delta rule as a graph",
    )


def depths(graph: list[Entry]) -> list[int]:
    """The row of each entry; an input stands right before its first use."""
    depth: list[int] = []
    for each in graph:
        depth.append(1 + max((depth[parent] for parent in each.parents), default=-1))
    for i, each in enumerate(graph):
        if not each.parents:
            depth[i] = min(depth[j] for j, other in enumerate(graph) if i in other.parents) - 1
    return depth


def arranged(graph: list[Entry]) -> tuple[list[list[int]], list[list[int]]]:
    """Rows of nodes from left to right, and the nodes that each edge passes.

    Where an edge passes a row it has a node of its own.
    """
    depth = depths(graph)
    rows: list[list[int]] = [
        [i for i, row in enumerate(depth) if row == each] for each in range(max(depth) + 1)
    ]
    ways = []
    for i, entry in enumerate(graph):
        for parent in entry.parents:
            passed = list(range(len(depth), len(depth) + depth[i] - depth[parent] - 1))
            for down, node in enumerate(passed, depth[parent] + 1):
                depth.append(down)
                rows[down].append(node)
            ways.append([parent, *passed, i])
    near: dict[int, list[int]] = {node: [] for row in rows for node in row}
    for way in ways:
        for one, other in itertools.pairwise(way):
            near[one].append(other)
            near[other].append(one)
    for sweep in range(12):  # each node to the middle of its neighbours, downwards and upwards
        place = {node: column for row in rows for column, node in enumerate(row)}
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            row.sort(key=lambda node: sum(place[each] for each in near[node]) / len(near[node]))
            place |= {node: column for column, node in enumerate(row)}
    return rows, ways


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    return place[1] * WIDE + 10, place[0] * HIGH + 10


def _edge(way: list[tuple[int, int]]) -> str:
    """From the foot of the first box to the head of the last, straight down where it passes a
    row.
    """
    points = []
    for number, place in enumerate(way):
        x, y = _corner(place)
        points += [(x + BOX // 2, y)] if number else []
        points += [(x + BOX // 2, y + TALL)] if number < len(way) - 1 else []
    path = f"M{points[0][0]} {points[0][1]}"
    for number, ((a, b), (c, d)) in enumerate(itertools.pairwise(points)):
        path += f"L{c} {d}" if number % 2 else f"C{a} {b + 14} {c} {d - 18} {c} {d}"
    return (
        f'<path d="{path}" fill="none" stroke="{style.TEXT}" stroke-opacity="0.55" '
        'marker-end="url(#arrow)"/>'
    )


def _box(index: int, entry: Entry, place: tuple[int, int]) -> str:
    x, y = _corner(place)
    colour = style.COLOURS[0] if not entry.parents else style.COLOURS[1]
    words = html.escape(f"{index}  {entry.name} {'x'.join(map(str, entry.shape)) or 'number'}")
    box = (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="{TALL}" rx="5" fill="{colour}" '
        f'fill-opacity="0.18" stroke="{colour}"/>'
    )
    return (
        f'{box}<text x="{x + BOX / 2}" y="{y + 22}" text-anchor="middle" '
        f'fill="{style.TEXT}">{words}</text>'
    )
