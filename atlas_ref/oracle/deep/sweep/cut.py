"""Smaller cases of a deep memory: fewer tokens, settings, tensors, rows and entries (SWEEP-13).

Every function yields candidates from a case, the boldest first; what is left of a tensor of the
memory is its first entries, and one that another function needs is drawn as halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep import parameters
from atlas_ref.oracle.deep.tensors import BAR, KINDS, MEMORY, SEQUENCE, STATE
from atlas_ref.oracle.drawing import Arrays, Candidate, Move, fewer, header_of, smaller
from atlas_ref.parts.deep_momentum import PREFIX

#: Tensors that a case may lack, those that need each other together.
OPTIONAL = (
    (STATE, BAR),
    (STATE,),
    (BAR,),
    *((f"{STATE}{kind}/", f"{BAR}{kind}/") for kind in KINDS),
    ("in/momentum", f"{STATE}momentum/", f"{BAR}momentum/"),
    ("in/window_gate", f"{STATE}token_gates"),
    (f"{STATE}token_gates",),
    ("in/threshold", f"{STATE}thresholds"),
    (f"{STATE}thresholds",),
    ("in/window_weights",),
    ("in/active",),
    ("in/reset",),
    ("in/y_bar", BAR),
)


def tokens(case: Case) -> Iterator[Candidate]:
    """The first token, halves, then all but one token."""
    T = case.inputs["in/k"].shape[-2]
    for keep in fewer(T):
        cut = {name: taken(name, x, "T", keep) for name, x in case.inputs.items()}
        yield Candidate(case.header.plain(), cut)


def settings(case: Case) -> Iterator[Candidate | None]:
    """Parameters and axes at their defaults, a linear memory, smaller numbers."""
    header = case.header.plain()
    own, axes = header.get("parameters", {}), header.get("convention", {})
    if "note" in header:
        yield _with(case, {key: value for key, value in header.items() if key != "note"})
    memory = own.get("memory", {"kind": "mlp"})
    others: list[dict[str, Any]] = [{"memory": {"kind": "linear"}}]
    others += [{"memory": {k: memory[k] for k in memory if k != key}} for key in memory]
    for change in others if memory != {"kind": "linear"} else ():
        yield _with(case, header | {"parameters": own | change})
    for key in own:
        if key != "memory":
            left = {name: value for name, value in own.items() if name != key}
            yield _with(case, header | {"parameters": left})
    for key in ("chunk", "window", "span"):
        for size in smaller(own.get(key) or 1):
            yield _with(case, header | {"parameters": own | {key: size}})
    plain = {"newton_schulz": "none"}
    if axes != plain:
        yield _with(case, header | {"convention": plain})
    for axis in axes if isinstance(axes, dict) else ():
        left = {name: value for name, value in axes.items() if name != axis}
        if axes[axis] != plain.get(axis):  # without Newton-Schulz is smaller than its default
            yield _with(case, header | {"convention": left})


def optional(case: Case) -> Iterator[Candidate]:
    """Without some tensors that a case may lack."""
    for beginnings in OPTIONAL:
        left = {name: x for name, x in case.inputs.items() if not name.startswith(beginnings)}
        if len(left) < len(case.inputs):
            yield Candidate(case.header.plain(), left)


def rows(case: Case) -> Iterator[Candidate]:
    """One row of the first leading axis; no such axis where it has one row."""
    lead = case.inputs["in/k"].shape[:-2]
    for keep in fewer(lead[0]) if lead and lead[0] > 1 else ():
        yield Candidate(case.header.plain(), _of_rows(case, partial(_kept, keep=keep)))
    if lead and lead[0] == 1:
        yield Candidate(case.header.plain(), _of_rows(case, lambda x: x[0]))


def widths(case: Case) -> Iterator[Candidate | None]:
    """Smaller keys, values, or both."""
    d_in, d_out = (case.inputs[name].shape[-1] for name in ("in/k", "in/v"))
    header = case.header.plain()
    for size in smaller(d_out):
        yield _with(case, header, d_out=size)
    for size in smaller(d_in):
        yield _with(case, header, d_in=size)
    for size in smaller(min(d_in, d_out)):
        yield _with(case, header, d_in=size, d_out=size)


#: All of them, in the order of SWEEP-7.
MOVES: tuple[Move, ...] = (
    tokens,
    settings,
    optional,
    rows,
    widths,
    tokens,
)


# -- parts -----------------------------------------------------------------------------------------


def _kept(x: Any, keep: Sequence[int]) -> Any:
    """Some rows of a tensor; the only one where rows share it."""
    return x if x.shape[0] == 1 else np.take(x, list(keep), axis=0)


def taken(name: str, x: Any, axis: str, keep: Sequence[int]) -> Any:
    """Some places of a named axis of a tensor of tokens; other tensors as they are."""
    words = SEQUENCE[name].axes.split() if name in SEQUENCE else []
    return np.take(x, list(keep), axis=words.index(axis) - len(words)) if axis in words else x


def _of_rows(case: Case, change: Callable[[Any], Any]) -> Arrays:
    """Tensors with their first leading axis changed, of those that have one."""
    lead = len(case.inputs["in/k"].shape) - 2
    shapes = _shapes(case.header, *(case.inputs[name].shape[-1] for name in ("in/k", "in/v")))
    found = {}
    for name, x in case.inputs.items():
        of_tokens = name in SEQUENCE and SEQUENCE[name].axes.startswith("...")
        of_rows = name not in SEQUENCE and x.ndim - len(shapes[_own(name, shapes)]) == lead
        found[name] = change(x) if of_tokens or of_rows else x
    return found


def _own(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The tensor that an input belongs to: of the memory, or of a network behind its prefix."""
    momentum = name.startswith((f"{STATE}momentum/", f"{BAR}momentum/"))
    bare = name.removeprefix(MEMORY)
    for prefix in (f"{place}{kind}/" for place in (STATE, BAR) for kind in KINDS):
        bare = bare.removeprefix(prefix)
    networked = momentum and any(each.startswith(PREFIX) for each in shapes)
    return PREFIX + bare if networked else bare


def _shapes(header: Any, d_in: int, d_out: int) -> Mapping[str, tuple[int, ...]]:
    shapes: Mapping[str, tuple[int, ...]] = parameters.config(header, d_in, d_out).tensors
    return shapes


def _with(
    case: Case, fields: Mapping[str, Any], *, d_in: int = 0, d_out: int = 0
) -> Candidate | None:
    """The case with other keys and sizes, its tensors made to fit; None where they do not exist."""
    d_in = d_in or case.inputs["in/k"].shape[-1]
    d_out = d_out or case.inputs["in/v"].shape[-1]
    kept = {key: value for key, value in fields.items() if value not in ({}, None)}
    try:
        header = header_of(case, kept)
        of = parameters.config(header, d_in, d_out)
        shapes = of.tensors
    except ValueError:
        return None
    position = int(case.inputs.get(f"{STATE}position", 0))
    before = case.inputs.get(f"{STATE}values", np.zeros((0, 1))).shape[-2]
    held = range(max(0, before - (of.window - 1) - position % int(of.chunk)), before)
    tensors: Arrays = {}
    for name, x in case.inputs.items():
        if name in SEQUENCE:
            for axis, keep in (("d_in", range(d_in)), ("d_out", range(d_out)), ("n", held)):
                x = taken(name, x, axis, keep)
            tensors[name] = x
        elif _own(name, shapes) in shapes:
            tensors[name] = _corner(x, shapes[_own(name, shapes)])
    for name, shape in shapes.items():
        if name not in case.inputs and f"{MEMORY}{name}" not in tensors:
            tensors[f"{MEMORY}{name}"] = np.full(shape, 0.5, case.inputs["in/k"].dtype)
    return Candidate(kept, tensors)


def _corner(x: Any, shape: tuple[int, ...]) -> Any:
    """The first entries of a tensor along its own axes."""
    return x[(..., *(slice(0, size) for size in shape))]
