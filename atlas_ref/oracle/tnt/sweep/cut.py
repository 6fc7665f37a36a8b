"""Smaller cases of a TNT: fewer tokens, memories, settings, tensors, rows and entries (SWEEP-15).

Every function yields candidates from a case, the boldest first. What is left of a tensor is its
first entries, of a window or of the keys from before the last ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.drawing import Arrays, Candidate, Move, fewer, header_of, smaller, without
from atlas_ref.oracle.tnt import projection, tensors
from atlas_ref.oracle.tnt.settings import Settings, stated_settings
from atlas_ref.oracle.tnt.tensors import AXES, BAR, FIRST, HELD, SEQUENCE, STATE
from atlas_ref.oracle.tnt.tokens import of_memory
from atlas_ref.rules import FAMILY

#: The projection that is smaller than the default.
UNMOVED = {"kind": "none"}

#: The convention that is smaller than the default of omega.
PLAIN = {"newton_schulz": "none"}


def tokens(case: Case) -> Iterator[Candidate]:
    """The first token, halves, then all but one token."""
    for keep in fewer(case.inputs["in/k"].shape[-2]):
        yield _taken(case, {"T": keep})


def memories(case: Case) -> Iterator[Candidate | None]:
    """Fewer local memories, and no global one."""
    own = case.header.plain()["parameters"]
    count = len(own.get("locals") or ())
    if count and own.get("global") is not None:
        yield _fitted(case, own | {"global": None})
        yield _with_locals(case, own, ())
    for keep in fewer(count):
        yield _with_locals(case, own, keep)


def settings(case: Case) -> Iterator[Candidate | None]:
    """Parameters, settings of memories and axes at their defaults, and smaller numbers."""
    header = case.header.plain()
    own, axes = header["parameters"], header.get("convention", {})
    if "note" in header:
        yield Candidate(without(header, "note"), dict(case.inputs))
    for key in ("preset", "origin", "window"):
        if key in own:
            yield _fitted(case, without(own, key))
    for size in smaller(own.get("window", 1)):
        yield _fitted(case, own | {"window": size})
    if own.get("global") is not None:
        for changed in _plainer(own["global"]):
            yield _fitted(case, own | {"global": changed})
    for i, local in enumerate(own.get("locals") or ()):
        for changed in _plainer(local):
            rest = [changed if i == j else each for j, each in enumerate(own["locals"])]
            yield _fitted(case, own | {"locals": rest})
    plain = PLAIN if _is_omega(own) else {}
    if axes != plain:
        yield _fitted(case, own, convention=plain)
    for axis in axes if isinstance(axes, dict) else ():
        if axes[axis] != plain.get(axis):
            yield _fitted(case, own, convention=without(axes, axis))


def optional(case: Case) -> Iterator[Candidate | None]:
    """Without some tensors that a case may lack."""
    of_one = [(name,) for name in case.inputs if re.fullmatch(r"in/(global|local\d+)/\w+", name)]
    for beginnings in (
        (STATE, BAR),
        (STATE,),
        (BAR,),
        ("in/y_bar", BAR),
        ("in/reset",),
        ("in/window_weights",),
        ("in/window_gate",),
        *of_one,
    ):
        left = {name: x for name, x in case.inputs.items() if not name.startswith(beginnings)}
        if len(left) < len(case.inputs):
            yield Candidate(case.header.plain(), left)
    still = {name: x for name, x in case.inputs.items() if not name.endswith("/momentum")}
    if len(still) < len(case.inputs):
        yield _fitted(case, case.header.plain()["parameters"], of=still)


def rows(case: Case) -> Iterator[Candidate]:
    """One row of the first leading axis; no such axis where there is one row."""
    lead = case.inputs["in/k"].shape[:-2]
    for keep in fewer(lead[0]) if lead else ():
        found = {
            name: np.take(x, list(keep), axis=0) if _front(name, x) and len(x) > 1 else x
            for name, x in case.inputs.items()
        }
        yield Candidate(case.header.plain(), found)
    if lead and lead[0] == 1:
        found = {name: x[0] if _front(name, x) else x for name, x in case.inputs.items()}
        yield Candidate(case.header.plain(), found)


def widths(case: Case) -> Iterator[Candidate]:
    """Smaller keys, values, or both."""
    d_in, d_out = (case.inputs[name].shape[-1] for name in ("in/k", "in/v"))
    for keep in fewer(d_out):
        yield _taken(case, {"d_out": keep})
    for keep in fewer(d_in):
        yield _taken(case, {"d_in": keep})
    for size in smaller(min(d_in, d_out)):
        yield _taken(case, {"d_in": range(size), "d_out": range(size)})


#: All of them, in the order of SWEEP-7.
MOVES: tuple[Move, ...] = (tokens, memories, settings, optional, rows, widths, tokens)


# -- settings --------------------------------------------------------------------------------------


def _is_omega(own: Mapping[str, Any]) -> bool:
    """Whether the rule of the memories has Newton-Schulz by default."""
    return bool(FAMILY[own.get("rule", "titans_lmm")].has_newton_schulz)


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
    fields = {**without(own, "locals"), **({"locals": kept} if kept else {})}
    return _fitted(case, fields, of=found)


def _fitted(
    case: Case, own: Mapping[str, Any], *, convention: Any = None, of: Arrays | None = None
) -> Candidate | None:
    """The case with these parameters, its tensors made to fit; None where they do not exist.

    Args:
        convention: other axes; None for those of the case.
        of: its tensors; None for all.
    """
    fields = case.header.plain() | {"parameters": dict(own)}
    if convention is not None:
        fields = without(fields, "convention") | ({"convention": convention} if convention else {})
    found = dict(case.inputs if of is None else of)
    try:
        header = header_of(case, fields)
        s = stated_settings(header)
        allowed, _ = tensors.table(s, found)
    except ValueError:
        return None
    found = {name: _held(s, name, x) for name, x in found.items() if name in allowed}
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
        for name, need in tensors.kept(s, m, of_memory(found, m.name)).items()
        if need == "yes"
    )


def _held(s: Settings, name: str, x: Any) -> Any:
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


# -- axes ------------------------------------------------------------------------------------------


def _axes(name: str) -> list[str]:
    """Names of the axes of a tensor behind the leading ones."""
    short = name.rpartition("/")[2]
    if name in SEQUENCE:
        axes = SEQUENCE[name].axes
    elif name.startswith((STATE, BAR)):
        axes = HELD[short]
    else:
        axes = FIRST[short] if short in FIRST else AXES[short].axes
    return [word for word in axes.split() if word != "..."]


def _front(name: str, x: Any) -> bool:
    """Whether a tensor has leading axes."""
    return bool(x.ndim > len(_axes(name)))


def _taken(case: Case, places: Mapping[str, Sequence[int]]) -> Candidate:
    """Some places of named axes, in every tensor that has them."""
    found = {}
    for name, x in case.inputs.items():
        words = _axes(name)
        for place, word in enumerate(words):
            if word in places:
                x = np.take(x, list(places[word]), axis=place - len(words) + x.ndim)
        found[name] = x
    return Candidate(case.header.plain(), found)


__all__ = ["MOVES", "memories", "optional", "rows", "settings", "tokens", "widths"]
