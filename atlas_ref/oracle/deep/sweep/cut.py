"""Smaller cases of a deep memory: plainer settings, and tensors that fit them (SWEEP-13).

Candidates come the boldest first; what is left of a tensor of the memory is its first entries, and
one that another function needs is drawn as halves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep import parameters
from atlas_ref.oracle.deep.tensors import BAR, KINDS, MEMORY, SEQUENCE, STATE
from atlas_ref.oracle.drawing import Arrays, Candidate, Names, header_of, in_words, smaller, without
from atlas_ref.oracle.program.derive import moves
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


def settings(case: Case) -> Iterator[Candidate | None]:
    """Parameters and axes at their defaults, a linear memory, smaller numbers."""
    header = case.header.plain()
    own, axes = header.get("parameters", {}), header.get("convention", {})
    memory = own.get("memory", {"kind": "mlp"})
    plainer = [{"kind": "linear"}, *(without(memory, key) for key in memory)]
    changed = [own | {"memory": each} for each in plainer if memory != plainer[0]]
    changed += [without(own, key) for key in own if key != "memory"]
    for key in ("chunk", "window", "span"):
        changed += [own | {key: size} for size in smaller(own.get(key) or 1)]
    for each in changed:
        yield fit(case, moves.fields(case, parameters=each), case.inputs)
    for each in moves.conventions(axes, {"newton_schulz": "none"}):
        yield fit(case, moves.fields(case, convention=each), case.inputs)


def fit(case: Case, fields: dict[str, Any], inputs: Mapping[str, Any]) -> Candidate | None:
    """Tensors made to fit a header and the sizes of keys; None where they do not exist."""
    try:
        of = parameters.config(header_of(case, fields), *_sizes(inputs))
        shapes: Mapping[str, tuple[int, ...]] = of.tensors
    except ValueError:
        return None
    position = int(inputs.get(f"{STATE}position", 0))
    most, found = of.window - 1 + position % int(of.chunk), Arrays()
    for name, x in inputs.items():
        if name in SEQUENCE:
            words = SEQUENCE[name].axes.split()
            axis = words.index("n") - len(words) if "n" in words else 0
            held = range(max(0, x.shape[axis] - most), x.shape[axis]) if axis else ()
            found[name] = np.take(x, list(held), axis=axis) if axis else x
        elif (own := _own(name, shapes)) in shapes:
            found[name] = x[(..., *(slice(0, size) for size in shapes[own]))]
    for name, shape in shapes.items():
        if name not in inputs and f"{MEMORY}{name}" not in found:
            found[f"{MEMORY}{name}"] = np.full(shape, 0.5, inputs["in/k"].dtype)
    return Candidate(fields, found)


def axes(case: Case) -> Names:
    """Names of the axes of each input; those of a tensor of the memory have none."""
    rank, inputs = case.inputs["in/k"].ndim - 2, case.inputs
    shapes = parameters.config(case.header, *_sizes(inputs)).tensors
    found = {}
    for name, x in inputs.items():
        if name in SEQUENCE:
            found[name] = in_words(SEQUENCE[name].axes, x, rank)
        else:
            own = len(shapes[_own(name, shapes)])
            found[name] = (*in_words("", x[(..., *[0] * own)], rank), *[""] * own)
    return found


def _sizes(inputs: Mapping[str, Any]) -> tuple[int, int]:
    return inputs["in/k"].shape[-1], inputs["in/v"].shape[-1]


def _own(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The tensor that an input belongs to: of the memory, or of a network behind its prefix."""
    momentum = name.startswith((f"{STATE}momentum/", f"{BAR}momentum/"))
    bare = name.removeprefix(MEMORY)
    for prefix in (f"{place}{kind}/" for place in (STATE, BAR) for kind in KINDS):
        bare = bare.removeprefix(prefix)
    networked = momentum and any(each.startswith(PREFIX) for each in shapes)
    return PREFIX + bare if networked else bare


#: All of them, in the order of SWEEP-7.
MOVES = moves.of(moves.Smaller(axes, lambda case: OPTIONAL, (settings,), fit, prefixes=True))
