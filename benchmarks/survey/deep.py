"""The readings behind memories of several layers that learn at test time.

Each package is asked one drawn case of the rule deep_memory for each of some settings, in float64,
values and gradients. `check` compares them with ours; `identify` searches the readings of
DEEPCASE-14 without looking at the adapter's.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.deep import program
from atlas_ref.oracle.deep.readings import listed
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.identify.answer import Identification
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.stated import setting
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.program.run import exact
from atlas_ref.oracle.sources.sources import respond
from benchmarks.survey.catalogue import helper, version

ADAPTER, WIDTH, TOKENS, HEADS, SEED = "of_deep_memories", 5, 10, 2, 11
DTYPE = "float64"
#: A difference up to this is that of rounding.
ROUNDING = 1e-12

TITANS, TITANS_MEMORY, UNOFFICIAL, HELD = (
    "titans_pytorch",
    "titans_memory",
    "titans_unofficial",
    "titans_unofficial_without_biases",
)


class Asked(NamedTuple):
    """A function of the adapter under settings that its package leaves free.

    Attributes:
        function: of the adapter.
        words: the settings, as the table shows them.
        parameters, convention: of them, as a case states them.
        window_gate: whether each token brings a weight of the window.
        graded: whether gradients are asked for.
    """

    function: str
    words: str
    parameters: dict[str, Any]
    convention: dict[str, Any] = {}
    window_gate: bool = False
    graded: bool = True


def _mlp(depth: int, **more: Any) -> dict[str, Any]:
    return {"memory": {"depth": depth, "expansion": 2.0, **more}}


def _titans(words: str, parameters: dict[str, Any], **convention: Any) -> Asked:
    return Asked(TITANS, words, parameters, convention, window_gate=True)


NORMED = _mlp(2, residual_norm=True)

ASKED: tuple[Asked, ...] = (
    _titans(
        "one with norm, chunk 4, renewed never",
        _mlp(1, residual_norm=True) | {"chunk": 4},
        reference="call_start",
    ),
    _titans("two, chunk 1, renewed every token", _mlp(2) | {"chunk": 1}),
    _titans("two with norm, chunk 4, renewed every chunk", NORMED | {"chunk": 4}),
    _titans(
        "two with norm, chunk 2, renewed every 4 tokens",
        NORMED | {"chunk": 2, "span": 4},
        reference="chunk_start",
    ),
    _titans("two with norm, chunk 4, renewed never", NORMED | {"chunk": 4}, reference="call_start"),
    _titans(
        "three with norm, chunk 4, renewed every chunk",
        _mlp(3, residual_norm=True) | {"chunk": 4},
    ),
    _titans("two, chunk 4, spectral_norm_surprises", _mlp(2) | {"chunk": 4}, newton_schulz={}),
    _titans(
        "two with norm, chunk 4, max_grad_norm 0.5",
        NORMED | {"chunk": 4, "clip": "soft", "clip_norm": 0.5},
    ),
    Asked(TITANS_MEMORY, "two, chunks of 1", _mlp(2)),
    Asked(TITANS_MEMORY, "three, chunks of 1", _mlp(3)),
    Asked(TITANS_MEMORY, "two, one chunk", _mlp(2), {"read": "call_end"}),
    Asked(UNOFFICIAL, "two, no clipping", {"memory": {"depth": 2, "expansion": 1.0}}),
    Asked(HELD, "two, no clipping", {"memory": {"depth": 2, "expansion": 1.0}}),
    Asked(HELD, "three, no clipping", {"memory": {"depth": 3, "expansion": 1.0}}),
    Asked(
        HELD,
        "two, max_grad_norm 1",
        {"memory": {"depth": 2, "expansion": 1.0}, "clip": "hard", "clip_norm": 1.0},
        graded=False,  # biases held at 0 leave gradients of norm 0, where a root has no derivative
    ),
)


def drawn(asked: Asked, implementation: Any) -> Case:
    """A case under what the package computes, with cotangents of its reads.

    Keys and queries of titans-unofficial are unit vectors, since it makes them so.
    """
    parameters, convention = implementation.own(asked.parameters, asked.convention)
    case = new(
        Request(
            rule="deep_memory",
            draw=1,
            parameters=parameters,
            convention=convention,
            tokens=TOKENS,
            d_in=WIDTH,
            d_out=WIDTH,
            heads=HEADS,
            seed=SEED,
            cotangent=asked.graded,
            window_gate=asked.window_gate,
        )
    )
    inputs = dict(case.inputs)
    if asked.function in (UNOFFICIAL, HELD):
        for name in ("in/k", "in/q"):
            length = np.linalg.norm(inputs[name], axis=-1, keepdims=True)
            inputs[name] = inputs[name] / length
    return make(case.header.plain(), inputs, name="drawn")


def answered(case: Case, implementation: Any) -> dict[str, Any]:
    """Its results by the names of a case."""
    inputs = {name.removeprefix("in/"): np.array(value) for name, value in case.inputs.items()}
    results = implementation(case.header.plain(), inputs)
    return {n if n.startswith("grad/") else f"out/{n}": value for n, value in results.items()}


@functools.cache
def found() -> dict[str, Any]:
    """A row for every function and its settings, as JSON can hold them."""
    sizes = {"tokens": TOKENS, "width": WIDTH, "rows": HEADS}
    return {**sizes, "found": [row(each) for each in ASKED]}


def row(asked: Asked) -> dict[str, Any]:
    """What one function was found to compute under some settings."""
    implementation = getattr(helper(ADAPTER), asked.function)
    said = {
        "package": implementation.package,
        "version": version(implementation.package),
        "label": implementation.label,
        "settings": asked.words,
    }
    if not said["version"]:
        return said | {"missing": f"{implementation.package} is not installed (extra bench)"}
    case = drawn(asked, implementation)
    rows = check(case, source=functools.partial(respond, implementation), dtype=DTYPE)
    kinds = {"values": "out/", "gradients": "grad/"}
    errors = {
        kind: [each.error or 0.0 for each in rows if each.tensor.startswith(start)]
        for kind, start in kinds.items()
    }
    passed = sum(each.verdict == "PASS" for each in rows)
    answer = answered(case, implementation)
    result = identify(case, answer, dtype=DTYPE)
    relu = size(under_relu(case, answer)) if asked.function in (UNOFFICIAL, HELD) else ""
    return said | {
        "stated": _stated(case),
        "passed": [passed, len(rows)],
        **{kind: size(max(each)) if each else "" for kind, each in errors.items()},
        "verdict": result.verdict,
        "searched": result.searched,
        "nearest": "" if result.own or result.match is None else _changes(result),
        "departure": result.departures[0].words if result.departures else "",
        "relu": relu,
    }


def under_relu(case: Case, answer: dict[str, Any]) -> float:
    """The largest relative difference of its values from ours as if the activation were relu."""
    relu = [each for each in listed.MISTAKES if each.name == "relu"]
    ours = program.run(case.inputs, case, exact(PLAIN), relu)
    values = {name: each for name, each in answer.items() if name.startswith("out/")}
    return max(
        float(np.linalg.norm(ours[name] - each) / np.linalg.norm(each))
        for name, each in values.items()
    )


def size(error: float) -> str:
    """Rounding by its power of ten, a difference in percent, what is between by its digits."""
    if error <= ROUNDING:
        return f"1e{math.floor(math.log10(error)) + 1}" if error else "0"
    return f"{100 * error:.0f} %" if error >= 0.005 else f"{error:.0e}"


def _stated(case: Case) -> str:
    """What a case states, without sizes and what every one of these has."""
    header = case.header.plain()
    parameters = dict(header["parameters"])
    memory = parameters.pop("memory")
    words = {n: memory[n] for n in ("activation", "residual_norm") if n in memory}
    shown = {n: x for n, x in parameters.items() if (n, x) != ("clip", "none")}
    words |= {n: " ".join(x) if n == "fast" and x != "all" else x for n, x in shown.items()}
    return " ".join([setting(header["convention"]), *([setting(words)] if words else [])])


def _changes(result: Identification) -> str:
    """What the nearest reading changes."""
    return setting(result.from_own)
