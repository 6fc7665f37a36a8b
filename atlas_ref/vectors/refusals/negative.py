"""Files that must be refused, each made from a vector by the least mistake (VEC-11, VEC-12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.files import KEY
from atlas_ref.vectors.inputs.draw import drawn
from atlas_ref.vectors.inputs.targets import by_name, target_named, topic_named
from atlas_ref.vectors.refusals.repair import Step, changed, put
from atlas_ref.vectors.sets.encode import tensor_bytes

Tensors = Mapping[str, np.ndarray[Any, Any]]

#: Bytes that the truncated file lacks.
CUT = 5


class Negative(NamedTuple):
    """One file that must be refused.

    Attributes:
        base: target and topic of the vector that it is made from, drawn with seed 0.
        code, about: what is wrong, and the tensor or key that a message must name.
        wrong: the steps that spoil the vector.
        spoil: what is done to the bytes after that, and the step that undoes it.
    """

    name: str
    base: tuple[str, str]
    code: str
    about: str
    wrong: Callable[[Tensors], list[Step]]
    spoil: Callable[[bytes], tuple[bytes, Step]] | None = None


def _set(key: str, value: Any) -> Callable[[Tensors], list[Step]]:
    return lambda _: [{"op": "set", "key": key, "value": value}]


def _unset(key: str) -> Callable[[Tensors], list[Step]]:
    return lambda _: [{"op": "unset", "key": key}]


def _drop(name: str) -> Callable[[Tensors], list[Step]]:
    return lambda _: [{"op": "drop", "tensor": name}]


def _entry(name: str, *at: int, value: float) -> Callable[[Tensors], list[Step]]:
    return lambda _: [{"op": "entry", "tensor": name, "at": list(at), "value": value}]


def _put(
    name: str, make: Callable[[Tensors], np.ndarray[Any, Any]]
) -> Callable[[Tensors], list[Step]]:
    return lambda tensors: [put(name, make(tensors))]


def _cut(data: bytes) -> tuple[bytes, Step]:
    """The bytes without the last few."""
    return data[:-CUT], {"op": "append", "hex": data[-CUT:].hex()}


def _misnamed(data: bytes) -> tuple[bytes, Step]:
    """The metadata key with another last letter."""
    last = data.index(f'"{KEY}"'.encode()) + len(KEY)
    return data[:last] + b"g" + data[last + 1 :], {
        "op": "bytes",
        "at": last,
        "hex": data[last : last + 1].hex(),
    }


NEGATIVE = (
    Negative("unknown-key", ("delta", "square"), "unknown-key", "windw", _set("windw", 1)),
    Negative("unknown-version", ("delta", "square"), "unknown-value", "schema", _set("schema", 2)),
    Negative(
        "unknown-axis",
        ("delta", "square"),
        "unknown-key",
        "reed",
        _set("convention", {"reed": "after"}),
    ),
    Negative(
        "unknown-preset",
        ("delta", "square"),
        "unknown-value",
        "atlas-eq99",
        _set("convention", "atlas-eq99"),
    ),
    Negative(
        "unknown-axis-value",
        ("titans_lmm", "square"),
        "unknown-value",
        "read",
        _set("convention", {"read": "during"}),
    ),
    Negative("window-of-titans", ("titans_lmm", "square"), "contract", "window", _set("window", 2)),
    Negative(
        "newton-schulz-of-delta",
        ("delta", "square"),
        "contract",
        "newton_schulz",
        _set("convention", {"newton_schulz": {}}),
    ),
    Negative("no-span", ("delta-frozen", "square"), "contract", "span", _unset("span")),
    Negative("missing-values", ("delta", "square"), "missing-tensor", "in/v", _drop("in/v")),
    Negative(
        "missing-retain", ("hebbian", "square"), "missing-tensor", "in/retain", _drop("in/retain")
    ),
    Negative(
        "no-second-rate",
        ("titans_lmm-fla-momentum", "square"),
        "missing-tensor",
        "in/step_size_memory",
        _drop("in/step_size_memory"),
    ),
    Negative(
        "no-window-residuals",
        ("omega-atlas-rnn", "resumed"),
        "missing-tensor",
        "in/window_residual",
        _drop("in/window_residual"),
    ),
    Negative(
        "misnamed-keys",
        ("delta", "square"),
        "unknown-tensor",
        "in/keys",
        _put("in/keys", lambda tensors: tensors["in/k"]),
    ),
    Negative(
        "momentum-of-delta",
        ("delta", "square"),
        "forbidden-tensor",
        "in/momentum",
        _put("in/momentum", lambda tensors: tensors["in/retain"]),
    ),
    Negative(
        "second-rate-unasked",
        ("delta", "square"),
        "forbidden-tensor",
        "in/step_size_memory",
        _put("in/step_size_memory", lambda t: t["in/step_size"]),
    ),
    Negative(
        "gate-twice",
        ("hebbian", "square"),
        "forbidden-tensor",
        "in/retain",
        _put("in/log_retain", lambda tensors: -tensors["in/retain"]),
    ),
    Negative(
        "too-few-values",
        ("delta", "square"),
        "shape",
        "in/v",
        _put("in/v", lambda tensors: tensors["in/v"][:, :-1]),
    ),
    Negative(
        "memory-transposed",
        ("delta", "tall"),
        "shape",
        "in/M0",
        _put("in/M0", lambda tensors: np.swapaxes(tensors["in/M0"], -1, -2)),
    ),
    Negative(
        "window-too-long",
        ("omega-linear", "resumed"),
        "shape",
        "in/window_k",
        lambda t: [
            put(name, np.repeat(t[name], 2, axis=-2)) for name in ("in/window_k", "in/window_v")
        ],
    ),
    Negative(
        "whole-number-keys",
        ("delta", "square"),
        "dtype",
        "in/k",
        _put("in/k", lambda tensors: tensors["in/k"].astype(np.int32)),
    ),
    Negative(
        "query-not-a-number",
        ("delta", "square"),
        "not-finite",
        "in/q",
        _put("in/q", lambda tensors: _with_nan(tensors["in/q"])),
    ),
    Negative(
        "retain-above-1",
        ("delta", "square"),
        "range",
        "in/retain",
        _entry("in/retain", 0, 3, value=1.5),
    ),
    Negative(
        "momentum-below-0",
        ("titans_lmm", "square"),
        "range",
        "in/momentum",
        _entry("in/momentum", 1, 2, value=-0.25),
    ),
    Negative(
        "step-below-0",
        ("delta", "square"),
        "range",
        "in/step_size",
        _entry("in/step_size", 0, 0, value=-0.5),
    ),
    Negative(
        "active-is-2", ("delta", "pulsed"), "range", "in/active", _entry("in/active", 1, value=2)
    ),
    Negative("cut-short", ("delta", "square"), "format", "", lambda _: [], _cut),
    Negative(
        "metadata-misnamed", ("delta", "square"), "metadata", "atlas_ref", lambda _: [], _misnamed
    ),
)


def _with_nan(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    spoilt = x.copy()
    spoilt.flat[4] = np.nan
    return spoilt


def negative_named(name: str) -> Negative:
    """A file that must be refused, by its name."""
    return by_name("negative case", name, NEGATIVE)


def bases(negatives: Sequence[Negative]) -> list[tuple[str, str]]:
    """The vectors that files are made from, each once."""
    return list(dict.fromkeys(each.base for each in negatives))


def drawn_base(base: tuple[str, str]) -> Case:
    """The vector that a file is made from."""
    target = target_named(base[0])
    return drawn(target, topic_named(target, base[1]), 0)


class Made(NamedTuple):
    """The bytes of a negative case, and the steps that repair it."""

    data: bytes
    repair: list[Step]


def made(negative: Negative, header: Mapping[str, Any], tensors: Tensors) -> Made:
    """The bytes of a spoilt vector, and the steps that repair it."""
    wrong = negative.wrong(tensors)
    data = tensor_bytes(*changed(header, tensors, wrong))
    steps = [_undone(step, header, tensors) for step in wrong]
    if negative.spoil is None:
        return Made(data, steps)
    data, step = negative.spoil(data)
    return Made(data, [step, *steps])


def _undone(step: Step, header: Mapping[str, Any], tensors: Tensors) -> Step:
    if step["op"] in ("set", "unset"):
        key = step["key"]
        return (
            {"op": "set", "key": key, "value": header[key]}
            if key in header
            else {"op": "unset", "key": key}
        )
    name = step["tensor"]
    if name not in tensors:
        return {"op": "drop", "tensor": name}
    if step["op"] == "entry":
        value = tensors[name][tuple(step["at"])]
        return {"op": "entry", "tensor": name, "at": step["at"], "value": value.item()}
    return put(name, tensors[name])
