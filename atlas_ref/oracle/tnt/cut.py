"""Smaller cases of a TNT: fewer memories, plainer settings, tensors that fit (SWEEP-15).

Every function yields candidates from a case, the boldest first. What is left of a tensor is its
first entries, of a window or of the keys from before the last ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.drawing import Arrays, Candidate, fewer, header_of, smaller, without
from atlas_ref.oracle.program.derive import moves
from atlas_ref.oracle.tnt import projection, tensors
from atlas_ref.oracle.tnt.settings import Settings, stated_settings
from atlas_ref.oracle.tnt.tensors import BAR, HELD, STATE
from atlas_ref.oracle.tnt.tokens import of_memory
from atlas_ref.rules import FAMILY

#: The projection that is smaller than the default.
UNMOVED = {"kind": "none"}

#: Tensors of one memory.
OF_ONE = re.compile(r"in/(global|local\d+)/\w+")

#: The convention that is smaller than the default of omega.
PLAIN = {"newton_schulz": "none"}


def memories(case: Case) -> Iterator[Candidate | None]:
    """Fewer local memories, and no global one."""
    own = case.header.plain()["parameters"]
    count = len(own.get("locals") or ())
    if count and own.get("global") is not None:
        yield _with(case, own | {"global": None})
        yield _with_locals(case, own, ())
    for keep in fewer(count):
        yield _with_locals(case, own, keep)


def settings(case: Case) -> Iterator[Candidate | None]:
    """Parameters, settings of memories and axes at their defaults, and smaller numbers."""
    header = case.header.plain()
    own, axes = header["parameters"], header.get("convention", {})
    for key in ("preset", "origin", "window"):
        if key in own:
            yield _with(case, without(own, key))
    for size in smaller(own.get("window", 1)):
        yield _with(case, own | {"window": size})
    if own.get("global") is not None:
        for changed in _plainer(own["global"]):
            yield _with(case, own | {"global": changed})
    for i, local in enumerate(own.get("locals") or ()):
        for changed in _plainer(local):
            rest = [changed if i == j else each for j, each in enumerate(own["locals"])]
            yield _with(case, own | {"locals": rest})
    orthogonal = FAMILY[own.get("rule", "titans_lmm")].has_newton_schulz
    for each in moves.conventions(axes, PLAIN if orthogonal else {}):
        yield _with(case, own, convention=each)


def optional(case: Case) -> Iterator[Sequence[str]]:
    """Tensors that a case may lack, those that need each other together."""
    yield from ((STATE, BAR), (STATE,), (BAR,), ("in/y_bar", BAR), ("in/reset",))
    yield from (("in/window_weights",), ("in/window_gate",))
    yield from ((name,) for name in case.inputs if OF_ONE.fullmatch(name))
    yield [name for name in case.inputs if name.endswith("/momentum")]


# -- settings --------------------------------------------------------------------------------------


def _plainer(memory: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A memory with fewer settings, a query that is not moved, and smaller numbers."""
    sizes = {key: memory[key] for key in ("span", "shard") if key in memory}
    moved = {} if "shard" not in memory else {"projection": UNMOVED}
    if memory != sizes | moved:
        yield sizes | moved
    if "projection" in memory and memory["projection"] != UNMOVED:
        yield {**memory, **moved}
        for key in memory["projection"]:
            left = without(memory["projection"], key)
            yield without(memory, "projection") | ({"projection": left} if left else {})
    elif moved and "projection" not in memory:
        yield {**memory, **moved}
    for key in memory:
        if key not in ("span", "shard", "projection"):
            yield without(memory, key)
    for key, size in sizes.items():
        for each in smaller(size):
            yield {**memory, key: each}


def _with_locals(case: Case, own: Mapping[str, Any], keep: Sequence[int]) -> Candidate | None:
    """The case with some of its local memories, which are numbered anew."""
    places = {f"local{i}": f"local{n}" for n, i in enumerate(keep)}
    found: Arrays = {}
    for name, x in case.inputs.items():
        words = name.split("/")
        place = next((n for n, word in enumerate(words) if re.fullmatch(r"local\d+", word)), None)
        if place is not None:
            if words[place] not in places:
                continue
            words[place] = places[words[place]]
        found["/".join(words)] = x
    kept = [own["locals"][i] for i in keep]
    given = without(own, "locals") | ({"locals": kept} if kept else {})
    return fit(case, moves.fields(case, parameters=given), found)


def _with(case: Case, own: Mapping[str, Any], **changed: Any) -> Candidate | None:
    """The case with these parameters, and keys of the header beside them."""
    return fit(case, moves.fields(case, parameters=dict(own), **changed), case.inputs)


# -- tensors ---------------------------------------------------------------------------------------


def fit(case: Case, fields: dict[str, Any], inputs: Mapping[str, Any]) -> Candidate | None:
    """Tensors made to fit a header; None where they do not exist."""
    try:
        s = stated_settings(header_of(case, fields))
        allowed, _ = tensors.table(s, inputs)
    except ValueError:
        return None
    found = {name: _trim_history(s, name, x) for name, x in inputs.items() if name in allowed}
    if not _whole(s, found):
        found = {name: x for name, x in found.items() if not name.startswith(STATE)}
    return Candidate(fields, found)


def _whole(s: Settings, found: Arrays) -> bool:
    """Whether a state has everything that its settings need."""
    if f"{STATE}position" not in found:
        return True
    return all(
        f"{STATE}{m.name}/{name}" in found
        for m in s.memories
        for name, need in tensors.state_tensors(s, m, of_memory(found, m.name)).items()
        if need == "yes"
    )


def _trim_history(s: Settings, name: str, x: Any) -> Any:
    """Weights of the window, its tokens from before and keys from before, as many as are seen."""
    short = name.rpartition("/")[2]
    if short == "window_weights":
        return x[..., : s.window]
    if not name.startswith(STATE) or short not in HELD:
        return x
    words = HELD[short].split()
    if "n" in words:
        axis = words.index("n") - len(words) + x.ndim
        return np.take(x, range(max(0, x.shape[axis] - s.window + 1), x.shape[axis]), axis=axis)
    if short == "P_keys":
        m = next(each for each in s.memories if each.name == name.split("/")[2])
        return x[..., max(0, x.shape[-2] - projection.reach(m.projection)) :, :]
    return x


#: All of them, in the order of SWEEP-7.
MOVES = moves.of(moves.Smaller(tensors.axes, optional, (memories, settings), fit))
