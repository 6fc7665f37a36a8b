"""Where published programs of a deep memory part: each axis is found in what the rule returns."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.deep import program
from atlas_ref.oracle.deep.program import SEARCHED
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS, Arithmetic
from atlas_ref.oracle.identify.answer import Identification
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.readings.judge import Judge
from atlas_ref.oracle.identify.readings.nodes import observe_case
from atlas_ref.oracle.program.run import exact
from atlas_ref.oracle.registry import SUBJECTS
from tests.support import deep_cases
from tests.support.remembered import remembered

__all__ = ["remembered"]

#: A program that adds in another order than the library.
OTHER = exact(Arithmetic("as a tree", "pairwise"))

POLYNOMIAL: dict[str, Any] = {
    "tokens": 7,
    "d_in": 3,
    "d_out": 3,
    "window_gate": True,
    "dtype": "float32",
    "convention": {"newton_schulz": {"steps": 5}},
    "parameters": {
        "memory": {
            "kind": "polynomial",
            "key_width": 2,
            "gated": True,
            "expansion": 2.0,
            "with_input": False,
        },
        "window_weights": {"kind": "decay", "base": 0.9},
        "chunk": 2,
        "window": 3,
        "fast": "all",
        "vectors": "unit",
        "adaptive": False,
    },
}
#: Documents of three tokens, the first of them begun before the call.
PACKED: dict[str, Any] = {
    "tokens": 8,
    "d_in": 3,
    "d_out": 3,
    "reset": 3,
    "history": 2,
    "dtype": "float32",
    "parameters": {
        "memory": {"kind": "mlp", "expansion": 2.0},
        "chunk": 2,
        "window": 3,
    },
}
#: Few tokens, whose gradients keep their size.
PLAIN: dict[str, Any] = {
    "tokens": 4,
    "d_in": 2,
    "d_out": 3,
    "heads": 1,
    "dtype": "float32",
    "convention": {"newton_schulz": "none"},
    "parameters": {"memory": {"kind": "mlp", "expansion": 1.0}},
}

#: Keys and queries that are normed, with an eps that shows.
NORMED: dict[str, Any] = PLAIN | {
    "convention": {"newton_schulz": "none", "k_norm": "l2", "q_norm": "rms", "norm_eps": 0.001}
}

HUBER: dict[str, Any] = {
    **PLAIN,
    "parameters": {**PLAIN["parameters"], "bias": {"kind": "huber", "threshold": 2.0}},
}

SIMPLEX: dict[str, Any] = {
    **PLAIN,
    "parameters": {**PLAIN["parameters"], "retention": {"kind": "kl"}},
}

#: Axis of the design -> the case, the setting, and its other values.
AXES: dict[str, tuple[dict[str, Any], str, tuple[Any, ...]]] = {
    "memory_mlp": (POLYNOMIAL, "parameters.memory.gated", (False,)),
    "memory_mlp, silu": (POLYNOMIAL, "parameters.memory.activation", ("silu",)),
    "gelu": (POLYNOMIAL, "parameters.memory.activation", ("gelu_tanh",)),
    "loss_output": (POLYNOMIAL, "parameters.memory.with_input", (True,)),
    "window_weights": (POLYNOMIAL, "parameters.window_weights", ({"kind": "ones"},)),
    "granularity": (POLYNOMIAL, "parameters.chunk", (1, 3, 7)),
    "window": (POLYNOMIAL, "parameters.window", (2, 7)),
    "read": (POLYNOMIAL, "read", ("before", "call_end")),
    "coupling": (POLYNOMIAL, "parameters.coupling", ("batch_shared",)),
    "ttl_phase": (POLYNOMIAL, "parameters.phase", ("off",)),
    "fast": (POLYNOMIAL, "parameters.fast", ("matrices", "mlp")),
    "vectors": (POLYNOMIAL, "parameters.vectors", ("frozen", "raw")),
    "reduction": (POLYNOMIAL, "parameters.reduction", ("mean",)),
    "reduction over features": (PLAIN, "gradient_scale", ("2/d_out",)),
    "momentum_reset": (PACKED, "parameters.momentum_reset", ("never", "batch")),
    "memory_reset": (PACKED, "parameters.memory_reset", ("never", "batch")),
    "outer_gradient": (
        PLAIN,
        "parameters.outer_gradient",
        ("first_order", "straight_through", "none"),
    ),
    "eps of norms": (NORMED, "norm_eps", (1e-6, 1e-4)),
    "guard of norms": (NORMED, "norm_guard", ("add", "clamp")),
    "rate": (PLAIN, "rate", ("momentum", "both")),
    "eta": (POLYNOMIAL, "parameters.adaptive", (True,)),
    "clip": (POLYNOMIAL, "parameters.clip", ("hard", "soft")),
    "ns steps": (POLYNOMIAL, "newton_schulz.steps", (10,)),
    "alpha in the box": (POLYNOMIAL, "gate", ("none",)),
    "retention": (
        PLAIN,
        "parameters.retention",
        (
            {"kind": "elastic_net"},
            {"kind": "sphere", "over": "row"},
            {"kind": "ftrl", "threshold": 0.01},
            {"kind": "lq", "link": "dual"},
        ),
    ),
    "retention, its own numbers": (
        SIMPLEX,
        "parameters.retention",
        ({"kind": "kl", "over": "row"}, {"kind": "kl", "size": 2.0}, {"kind": "lq"}),
    ),
    "bias": (
        PLAIN,
        "parameters.bias",
        (
            {"kind": "l1"},
            {"kind": "lp"},
            {"kind": "lp", "power": 4.0, "smoothing": "none"},
            {"kind": "huber"},
            {"kind": "huber", "form": "norm"},
            {"kind": "huber", "form": "coordinate", "quadratic": "whole"},
            {"kind": "kl"},
        ),
    ),
    "bias, its own numbers": (
        HUBER,
        "parameters.bias",
        (
            {"kind": "huber", "threshold": 5.0},
            {"kind": "huber", "form": "norm", "threshold": 2.0},
            {"kind": "huber", "threshold": 2.0, "quadratic": "whole"},
        ),
    ),
    "unfinished": (POLYNOMIAL, "parameters.unfinished", ("flush",)),
}
EVERY = [(axis, value) for axis, (_, _, values) in AXES.items() for value in values]


@functools.cache
def asked(request: str) -> Any:
    """The case of a request, one for all tests, whose searches share results."""
    return deep_cases.made(**json.loads(request))


def changed(header: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A header with another value of a setting."""
    fields: dict[str, Any] = json.loads(json.dumps(header))
    path = name.split(".") if name.startswith("parameters") else ["convention", *name.split(".")]
    inner = fields
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    return fields


def under(case: Any, name: str, value: Any) -> dict[str, np.ndarray]:
    """What the rule returns in float32 under another value of a setting."""
    inputs = dict(case.inputs)
    if (name, value) == ("parameters.memory.gated", False):
        del inputs["in/memory/W_value"]
    if (name, value) == ("gate", "none"):
        del inputs["in/retain"]
    other = atlas_ref.make(changed(case.header.plain(), name, value), inputs)
    grad = name == "parameters.outer_gradient"
    return dict(evaluate(other, dtype="float32", grad=grad).tensors)


def result(name: str) -> bool:
    """A result that every reading has, and every dtype."""
    return name.startswith(("out/y", "grad/")) or name.startswith("out/state/weights/")


def fits(answer: Identification, name: str, value: Any) -> bool:
    """Whether a value is the match, or said to be the same as the match in this case."""
    if answer.verdict not in ("MATCH", "UNDECIDABLE") or answer.own:
        return False
    if f"{name}={value}" in answer.void:
        return True
    told = [answer.from_own, *(twin.changes for twin in answer.twins)]
    return any(name in changes and _same(changes[name], value) for changes in told)


def _same(found: Any, value: Any) -> bool:
    """Whether a stated value is this one; objects state their defaults too."""
    return found == value or (isinstance(value, dict) and value.items() <= found.items())


@pytest.mark.clause("DEEPCASE-14", "IDENT-1", "IDENT-7")
@pytest.mark.sample(2)
@pytest.mark.parametrize(("axis", "value"), EVERY, ids=str)
def test_the_axis_on_which_a_program_parts_is_named(axis: str, value: Any) -> None:
    request, name, _ = AXES[axis]
    case = asked(json.dumps(request))
    mine = {key: x for key, x in under(case, name, value).items() if result(key)}
    own = evaluate(case, dtype="float32", grad=True).tensors
    if (name, value) != ("parameters.fast", "matrices"):  # a state of fewer tensors
        assert any(
            key not in own or np.linalg.norm(x - own[key]) > 1e-4 * np.linalg.norm(own[key])
            for key, x in mine.items()
        )
    answer = identify(case, mine)
    assert fits(answer, name, value), (answer.verdict, answer.from_own, answer.why)


@pytest.mark.sample(1)
@pytest.mark.clause("DEEPCASE-15", "IDENT-14")
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("key read", "tokens read with their keys"),
        ("query written", "queries were written in place of keys"),
        ("window_gate ignored", "tokens brought no weight"),
        ("norm in float32", "layer norms were computed in float32"),
    ],
)
def test_tensors_and_precisions_that_a_program_exchanges_are_named(
    mistake: str, words: str
) -> None:
    case = asked(json.dumps({**POLYNOMIAL, "dtype": "float64"}))
    (each,) = [one for one in SEARCHED.departures(case) if one.name == mistake]
    results = program.run(convert(case, "float64"), case, OTHER, [each])
    mine = {name: np.asarray(x) for name, x in results.items() if result(name)}
    answer = identify(case, mine)
    assert words in [departed.words for departed in answer.departures], answer.why


@pytest.mark.clause("DEEPCASE-15")
def test_a_precision_is_known_in_whatever_order_its_sums_are() -> None:
    """Orders differ by a unit of float32, as far as float32 is from float64: a library has one."""
    case = asked(json.dumps({**POLYNOMIAL, "dtype": "float64"}))
    (each,) = [one for one in SEARCHED.departures(case) if one.narrow]
    for way in MEMBERS:
        results = program.run(convert(case, "float64"), case, exact(way), [each])
        seen = observe_case(case, {n: np.asarray(x) for n, x in results.items() if result(n)}, None)
        judge = Judge(case, seen, SUBJECTS["deep_memory"].searched)
        assert judge.distance([each])[0] < 1e-12 < 1e-9 < judge.distance([])[0], way.name


@pytest.mark.clause("DEEPCASE-14", "IDENT-6")
def test_axes_that_one_case_cannot_tell_apart_are_said_to_be_so() -> None:
    request = {**POLYNOMIAL, "tokens": 2, "window_gate": False}
    request["parameters"] = {**POLYNOMIAL["parameters"], "window": 2, "fast": "matrices"}
    request["parameters"] |= {"vectors": "frozen"}
    case = deep_cases.made(**request)
    mine = {n: x for n, x in under(case, "parameters.reduction", "mean").items() if result(n)}
    answer = identify(case, mine)
    told = {*answer.from_own, *answer.undecided}
    told |= {name for twin in answer.twins for name in twin.changes}
    # Newton-Schulz takes a factor of the gradient away, so that a mean is a sum
    assert answer.verdict in ("MATCH", "UNDECIDABLE")
    assert {"parameters.reduction", "gradient_scale"} <= {*told, *answer.void}


@pytest.mark.slow
@pytest.mark.clause("DEEPCASE-14", "IDENT-1", "CASE-26")
def test_the_command_names_the_axis(cli: Any, tmp_path: Path) -> None:
    case = deep_cases.made(**POLYNOMIAL)
    file, mine = tmp_path / "case.safetensors", tmp_path / "mine.safetensors"
    atlas_ref.save(file, case.header, case.inputs)
    atlas_ref.save(mine, case.header, under(case, "parameters.clip", "soft"))
    ran = cli("identify", file, "--out", mine)
    assert ran.code == 3  # the eps of Newton-Schulz, among others, is left open
    assert "parameters.clip" in ran.out
    assert "soft" in ran.out
    as_json = cli("identify", file, "--out", mine, "--json")
    assert as_json.json["from_own"] == {"parameters.clip": "soft"}
    atlas_ref.save(mine, case.header, evaluate(case, dtype="float32").tensors)
    assert cli("identify", file, "--out", mine).code in (0, 3)


#: A case in whose ensemble nothing rounds as much as between the rule and the plain loop.
QUIET: dict[str, Any] = {
    "tokens": 9,
    "cotangent": True,
    "convention": {"newton_schulz": "none", "reference": "chunk_start"},
    "parameters": {
        "memory": {"kind": "linear"},
        "span": 4,
        "bias": {"kind": "lp", "power": 3},
        "retention": {"kind": "lq", "power": 4, "link": "mirror"},
    },
}


@pytest.mark.clause("DEEPCASE-14")
def test_what_check_passes_in_float64_fits() -> None:
    """Its gradient by momentum is 2.3 measured tolerances off, and 1e-15 of its size."""
    case = deep_cases.made(**QUIET)
    mine = evaluate(case, grad=True).tensors
    answer = identify(case, mine)
    assert (answer.verdict, answer.own) == ("MATCH", True)
    wrong = {name: x * (1 + 1e-11) if name == "grad/momentum" else x for name, x in mine.items()}
    assert identify(case, wrong, depth=0).verdict == "NO MATCH"
