"""What cases of a TNT are drawn from: memories, conventions, tensors and regimes (SWEEP-15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.forms import tnt
from atlas_ref.oracle import drawn_axes, regimes
from atlas_ref.oracle.drawing import Arrays, Change, Drawing, Space
from atlas_ref.oracle.tnt import cut, parameters, tensors
from atlas_ref.oracle.tnt.settings import Settings, stated_settings
from atlas_ref.oracle.tnt.tokens import TOKENS
from atlas_ref.rules import FAMILY, names_with

#: Settings of a local memory; None leaves one to the preset.
_LOCAL: dict[str, tuple[Any, ...]] = {
    "span": (1, 2, 3, 4, 5, 8),
    "shard": (1, 2, 3, 4, 5, 6, 8, 16, 40),
    "base": (*(None,) * 4, "chunk_start", "previous", "running"),
    "read": (*(None,) * 3, "after", "before", "chunk_start"),
    "reset": (*(None,) * 3, "before_write", "instead_of_write"),
    "reset_momentum": (None, None, "zero", "carry", "learned"),
    "chunk_origin": (None, None, "shard", "document"),
    "writes": (*(None,) * 7, False),
    "projection.kind": ("none", None, None, None, "sum_outer", "orthogonal", "learned"),
    "projection.range": (None, None, "chunk", "shard", "sequence", "window"),
    "projection.window": (1, 2, 3, 5, 40),
    "projection.own": (None, "inclusive", "exclusive"),
    "projection.norm": (None, None, "per_key", "unit_keys_assumed", "sum_of_norms"),
    "projection.dependent": (None, None, 1e-3),
}

#: The parameter rule, that of a case which leaves it open first; its name is that of the case itself.
_USUAL = parameters.Parameters.model_fields["rule"].default
_RULES = (_USUAL, *(name for name in FAMILY if name != _USUAL))

#: Local memories of a case, at most.
MOST = 3

#: Values that a case is drawn from, in the order of drawing; the first is the plainest.
SPACE: dict[str, tuple[Any, ...]] = {
    "tokens": (1, 2, 3, 5, 7, 8, 9, 13, 16, 17),
    "d_in": (1, 2, 3, 4, 5),
    "d_out": (1, 2, 3, 4, 5),
    "heads": (1, 2, 3),
    "memory": _RULES,
    "window": (1, 1, 2, 3, 5),
    "preset": ("paper", "paper", *tnt.PRESETS),
    "origin": (0, 0, 1),
    "global": (True, True, True, False),
    "locals": (1, 1, 2, MOST, 0),
    "global.span": (1, 2, 3, 4, 7, 40),
    "global.read": (*(None,) * 3, "chunk_start", "after", "before", "none"),
    "global.sum": (*(None,) * 3, "exclusive", "inclusive"),
    "global.writes": (*(None,) * 7, False),
    **{f"locals.{i}.{name}": values for i in range(MOST) for name, values in _LOCAL.items()},
    "history": (0, 0, 1, 3, 6),
    "reset": (0, 0, 4, 5),
    "window_gate": (False, False, True),
    "own": ("nothing", "nothing", "queries", "keys", "gates"),
    "starts": ("shared", "shared", "rows", "absent"),
    "state_bar": (False, True),
    "dtype": ("float64", "float32", "bfloat16", "float16"),
}

#: Names above that are fields of a request, and those that say which tensors a case has.
OF_REQUEST = ("tokens", "d_in", "d_out", "heads", "history", "reset", "window_gate", "dtype")
OF_TENSORS = ("own", "starts", "state_bar")

#: Settings of Newton-Schulz that are drawn.
_NEWTON_SCHULZ: Space = {
    key: drawn_axes.NEWTON_SCHULZ[key] for key in ("coefficients", "steps", "eps", "guard")
} | {"argument": ("S", "nesterov")}

#: Axes that TNT sets for each memory, or that change nothing of it.
IDLE = ("layout", *parameters.SET)


def convention(draw: np.random.Generator) -> dict[str, Any]:
    """A preset or none, up to three axes changed, in half of the cases without Newton-Schulz."""
    preset = drawn_axes.preset(draw, 0.25)
    changes: dict[str, Any] = {} if preset == "spec" else {"preset": preset}
    changes |= drawn_axes.axes(draw, idle=IDLE)
    return changes | {"newton_schulz": drawn_axes.newton_schulz(draw, _NEWTON_SCHULZ)}


def request(fields: dict[str, Any], choices: Space, long: bool) -> dict[str, Any]:
    """Fields of a request from drawn ones, which are made to fit unless they are fixed."""
    drawn = _Fitted(fields, choices)
    drawn.fit()
    plain = {name: drawn[name] for name in fields if name not in SPACE}
    kept = {name: drawn[name] for name in (*OF_REQUEST, *OF_TENSORS)}
    return plain | kept | {"parameters": drawn.parameters()}


class _Fitted(dict[str, Any]):
    """Drawn fields that are changed to agree with each other where none of them is fixed."""

    def __init__(self, fields: Mapping[str, Any], choices: Space) -> None:
        super().__init__(fields)
        self.choices = choices
        self.memories = [f"locals.{i}" for i in range(_number(fields["locals"]))]

    def put(self, name: str, value: Any) -> None:
        """Another value for a name that is not fixed."""
        if name not in self.choices:
            self[name] = value

    def fit(self) -> None:
        """What the rule, the preset and the settings of each memory leave possible."""
        if not self.memories:
            self.put("global", True)
        if self["preset"] == "paper-literal" and not self._rule("has_momentum"):
            self.put("memory", _USUAL)
            self.put("preset", self["preset"] if self._rule("has_momentum") else "paper")
        if not self._rule("has_window"):
            self.put("window", 1)
            self.put("window_gate", False)
        for name in self.memories:
            self._fit_local(name)
        self._fit_counting()
        if "convention" not in self.choices and not self._rule("has_newton_schulz"):
            self["convention"] = {
                k: x for k, x in self["convention"].items() if k != "newton_schulz"
            }

    def _rule(self, fact: str) -> bool:
        return self["memory"] in names_with(fact)

    def _of_preset(self, kind: str, name: str) -> Any:
        preset = self["preset"]
        known = tnt.PRESETS.get(preset, {}) if isinstance(preset, str) else {}
        return known.get(kind, {}).get(name)

    def _fit_local(self, name: str) -> None:
        """Momenta that the rule has, and axes that the kind of a projection reads."""
        if not self._rule("has_momentum"):
            self.put(f"{name}.reset_momentum", None)
            if self[f"{name}.base"] == "previous":
                self.put(f"{name}.base", None)
        kind = self[f"{name}.projection.kind"]
        if kind in ("none", "learned"):
            for axis in ("range", "own", "norm"):
                self.put(f"{name}.projection.{axis}", None)
        if kind == "orthogonal":
            self.put(f"{name}.projection.norm", None)
            if self[f"{name}.projection.range"] == "window":
                self.put(f"{name}.projection.range", None)
        else:
            self.put(f"{name}.projection.dependent", None)
        if self[f"{name}.projection.range"] != "window":
            self.put(f"{name}.projection.window", None)

    def _fit_counting(self) -> None:
        """The convention under which sum inclusive and base previous are defined (TNT-3, TNT-5)."""
        axes: dict[str, Any] = {}
        summed = self["global.sum"] or self._of_preset("global", "sum")
        if self["global"] and summed == "inclusive":
            axes["gate"] = "none"
            self.put("global.read", None)
        for name in self.memories:
            if (self[f"{name}.base"] or self._of_preset("local", "base")) == "previous":
                axes |= {"gate": "none", "rate": "momentum", "newton_schulz": "none"}
                self.put(f"{name}.chunk_origin", None)
        if axes:
            self.put("window", 1)
            self.put("window_gate", False)
            if "convention" not in self.choices:
                self["convention"] = {**self["convention"], **axes}

    def parameters(self) -> dict[str, Any]:
        """The parameters of the case."""
        found: dict[str, Any] = {
            name: self[name]
            for name in ("window", "preset", "origin")
            if name in self.choices or self[name] != SPACE[name][0]
        }
        if "memory" in self.choices or self["memory"] != SPACE["memory"][0]:
            found["rule"] = self["memory"]
        if self["global"] or not self.memories:  # none of both is refused
            found["global"] = self._memory("global") if self["global"] else None
        if self.memories:
            found["locals"] = [self._memory(name) for name in self.memories]
        return found

    def _memory(self, name: str) -> dict[str, Any]:
        """The settings of one memory, those of its projection in an object."""
        found: dict[str, Any] = {}
        for key, value in self.items():
            if key.startswith(f"{name}.") and value is not None:
                words = key.removeprefix(f"{name}.").split(".")
                of = found.setdefault(words[0], {}) if len(words) > 1 else found
                of[words[-1]] = value
        return found


def _number(value: Any) -> int:
    """How many local memories are asked for; none for anything else than a number of them."""
    return value if isinstance(value, int) and 0 <= value <= MOST else 0


def dress(
    inputs: Arrays, fields: Mapping[str, Any], header: Any, generator: np.random.Generator
) -> None:
    """Tensors that a memory has for itself, other starts, and cotangents of the state."""
    s = stated_settings(header)
    last = s.memories[-1].name
    if fields["own"] != "nothing":
        _own(inputs, fields["own"], last, generator)
    start = f"in/{last}/M0"
    if fields["starts"] == "absent":
        del inputs[start]
    elif fields["starts"] == "rows" and last != "global":
        shape = (*inputs["in/k"].shape[:-2], *inputs[start].shape)
        inputs[start] = 0.3 * generator.standard_normal(shape)
    if fields["state_bar"]:
        _bars(inputs, s, generator)


def _own(inputs: Arrays, kind: Any, memory: str, generator: np.random.Generator) -> None:
    """Queries, keys or gates of one memory; its gates are those of all, the last token first."""
    if kind in ("queries", "keys"):
        short = "q" if kind == "queries" else "k"
        shape = inputs[f"in/{short}"].shape
        inputs[f"in/{memory}/{short}"] = generator.standard_normal(shape) / np.sqrt(shape[-1])
        return
    for name in TOKENS:
        if name not in ("k", "v", "q") and f"in/{name}" in inputs:
            axis = -2 if name == "window_weights" else -1
            inputs[f"in/{memory}/{name}"] = np.flip(inputs[f"in/{name}"], axis)


def _bars(inputs: Arrays, s: Settings, generator: np.random.Generator) -> None:
    """Cotangents of the memories and momenta that are left."""
    shape = (*inputs["in/k"].shape[:-2], inputs["in/v"].shape[-1], inputs["in/k"].shape[-1])
    for name in tensors.table(s, inputs)[0]:
        if name.startswith(tensors.BAR):
            inputs[name] = generator.standard_normal(shape)


def _empty(inputs: Arrays, draw: np.random.Generator) -> None:
    """The start of a document, from memories of zeros."""
    first = [name for name in inputs if name.endswith("/M0")]
    for name in (*first, *(name for name in inputs if name.startswith(tensors.STATE))):
        del inputs[name]


#: Regimes of the inputs of a TNT: those of a sequence, in every memory.
REGIMES: dict[str, Change] = {**regimes.SEQUENCES, "empty": _empty}

#: What a sweep draws of this rule, and how a case of it becomes smaller.
DRAWING = Drawing(
    space=SPACE,
    request=request,
    convention=convention,
    tensors=dress,
    of_tensors=OF_TENSORS,
    closed=("global", "locals", *OF_TENSORS),
    regimes=REGIMES,
    moves=cut.MOVES,
)
