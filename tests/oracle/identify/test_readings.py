"""Readings of deep memories: every setting and every mistake is found in what a program returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.deep import program
from atlas_ref.oracle.deep.functions import Function
from atlas_ref.oracle.deep.program import SEARCHED
from atlas_ref.oracle.deep.readings import listed
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.identify.answer import Identification
from atlas_ref.oracle.identify.deciding import deciding_case
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.stated import setting
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.program.derive.readings import context_of_case as seen_by
from atlas_ref.oracle.program.hook import hook_of
from atlas_ref.oracle.program.run import exact
from atlas_ref.parts.memory_functions import MemoryFunction
from tests.support import deep_cases
from tests.support.close import FINITE_DIFFERENCE, assert_close
from tests.support.plain_loops import PLAINLY
from tests.support.remembered import remembered
from tests.truth import deep_memory_loops as loops

__all__ = ["remembered"]

#: A program that adds in another order than the library.
OTHER = exact(Arithmetic("as a tree", "pairwise"))

REQUESTS: dict[str, dict[str, Any]] = {
    "mlp": {
        "tokens": 8,
        "d_in": 3,
        "reset": 5,
        "convention": {"newton_schulz": "none"},
        "parameters": {"chunk": 2, "window": 3, "memory": {"kind": "mlp", "expansion": 2.0}},
    },
    "polynomial": {
        "tokens": 6,
        "d_in": 3,
        "d_out": 4,
        "heads": 1,
        "window_gate": True,
        "history": 2,
        "parameters": {
            "memory": {"kind": "polynomial", "key_width": 3, "gated": True, "expansion": 1.0},
            "chunk": 2,
            "window": 4,
            "fast": "all",
            "vectors": "unit",
            "clip": "hard",
            "adaptive": True,
        },
    },
}
CASES = {name: deep_cases.made(**request, dtype="float32") for name, request in REQUESTS.items()}
#: Settings that differ from the case's own in gradients or not at all.
UNSEEN = ("parameters.outer_gradient", "reference=", "read=chunk_start")


def answered(case: Any, *chosen: Any) -> dict[str, Any]:
    """What a program with some readings returns in float32."""
    results = program.run(convert(case, "float32"), case, OTHER, chosen)
    return {name: np.asarray(x) for name, x in results.items()}


def seen(case: Any, kind: Any) -> list[Any]:
    """Readings that values show: those whose results are not the case's own."""
    own = program.run(convert(case, "float64"), case, PLAINLY)
    shown = []
    for each in kind(case):
        if each.grad or each.name.startswith(UNSEEN):
            continue
        other = program.run(convert(case, "float64"), case, PLAINLY, [each])
        if any(
            name not in other
            or other[name].shape != x.shape
            or np.linalg.norm(other[name] - x) > 1e-5 * np.linalg.norm(x)
            for name, x in own.items()
        ):
            shown.append(each)
    return shown


def fits(answer: Identification, change: Any) -> bool:
    """Whether a change is the match, or one of the settings beside it."""
    if answer.verdict not in ("MATCH", "UNDECIDABLE"):
        return False
    if answer.from_own == dict(change):
        return True
    ((axis, value),) = change.items()
    named = {f"{a}={v}" for twin in answer.twins for a, v in twin.changes.items()}
    return f"{axis}={value}" in {*named, *answer.void}


SETTINGS = [(name, each) for name, case in CASES.items() for each in seen(case, SEARCHED.settings)]
MISTAKES = [
    (name, each) for name, case in CASES.items() for each in seen(case, SEARCHED.departures)
]


@pytest.mark.clause("DEEPCASE-14", "IDENT-7", "PROG-5")
@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "each"), SETTINGS, ids=lambda each: getattr(each, "name", each))
def test_every_other_setting_is_found(name: str, each: Any) -> None:
    case = CASES[name]
    answer = identify(case, answered(case, each))
    assert fits(answer, each.change), (answer.verdict, answer.from_own, answer.void)
    assert not answer.own


@pytest.mark.clause("DEEPCASE-14", "IDENT-4")
def test_a_setting_that_equals_the_match_in_place_of_the_case_s_own_is_told() -> None:
    """No write: a chunk longer than every document, or a memory that is off."""
    case = CASES["mlp"]
    (off,) = [each for each in SEARCHED.settings(case) if each.name == "parameters.phase=off"]
    answer = identify(case, answered(case, off))
    assert answer.verdict == "MATCH"
    told = {f"{axis}={value}" for axis, value in answer.from_own.items()} | answer.void.keys()
    assert {"parameters.phase=off", "parameters.chunk=6", "parameters.chunk=7"} <= told


@pytest.mark.clause("DEEPCASE-14", "DEEPCASE-15", "IDENT-14", "PROG-4")
@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "each"), MISTAKES, ids=lambda each: getattr(each, "name", each))
def test_every_mistake_is_named(name: str, each: Any) -> None:
    case = CASES[name]
    answer = identify(case, answered(case, each))
    named = [departed.words for departed in answer.departures]
    assert each.words in named or answer.verdict != "NO MATCH", (answer.why, named)


@pytest.mark.clause("DEEPCASE-14")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_right_results_match_the_case_itself(name: str, dtype: str) -> None:
    case = CASES[name]
    mine = evaluate(case, dtype=dtype).tensors
    answer = identify(case, {"out/y": mine["out/y"]}, depth=1)
    assert answer.own
    assert answer.verdict in ("MATCH", "UNDECIDABLE")
    assert answer.match is not None
    assert answer.exit_code in (0, 3)


@pytest.mark.clause("DEEPCASE-14")
def test_two_settings_at_once_are_found_by_their_combination() -> None:
    case = CASES["mlp"]
    by_name = {each.name: each for each in SEARCHED.settings(case)}
    pair = [by_name["read=before"], by_name["parameters.memory.activation=gelu_tanh"]]
    answer = identify(case, answered(case, *pair))
    assert answer.verdict == "MATCH"
    assert answer.from_own == {
        "read": "before",
        "parameters.memory.activation": "gelu_tanh",
    }
    assert answer.match is not None
    words = setting(answer.match.convention)
    assert words == "newton_schulz=none read=before parameters.memory.activation=gelu_tanh"
    assert identify(case, answered(case, *pair), depth=1).verdict == "NO MATCH"


@pytest.mark.clause("DEEPCASE-14", "DEEP-22", "DEEP-34")
@pytest.mark.parametrize("preset", ["atlas-mag", "titans-pytorch", "moneta", "yaad", "memora"])
def test_a_preset_is_named(preset: str) -> None:
    case = deep_cases.made(
        tokens=6,
        d_in=3,
        convention={"newton_schulz": "none"},
        parameters={
            "memory": {"kind": "mlp", "residual_norm": True, "expansion": 1.0},
            "chunk": 3,
            "window": 3,
        },
        d_out=3,
        dtype="float32",
    )
    if preset == "memora":
        assert preset not in SEARCHED.presets(case)  # some weights have no logarithm
        case = case.replaced(inputs={n: abs(x) if "W_" in n else x for n, x in case.inputs.items()})
    chosen = SEARCHED.presets(case)[preset]
    answer = identify(case, answered(case, *chosen))
    assert answer.verdict in ("MATCH", "UNDECIDABLE")
    assert answer.preset == preset
    assert answer.from_own == {a: v for each in chosen for a, v in each.change.items()}


@pytest.mark.sample(1)
@pytest.mark.clause("DEEPCASE-14", "IDENT-3")
@pytest.mark.parametrize("gradient", ["first_order", "straight_through", "none"])
def test_gradients_tell_the_outer_gradient(gradient: str) -> None:
    request = {**REQUESTS["mlp"], "cotangent": True}
    case = deep_cases.made(**request)
    own = {**request["parameters"], "outer_gradient": gradient}
    other = deep_cases.made(**{**request, "parameters": own})
    mine = evaluate(other, grad=True, dtype="float32").tensors
    for names in (("out/y", "grad/k", "grad/memory/W_1"), ("grad/memory/W_1", "grad/k")):
        answer = identify(case, {name: mine[name] for name in names})
        assert answer.verdict == "MATCH"
        assert answer.from_own == {"parameters.outer_gradient": gradient}


@pytest.mark.clause("DEEPCASE-14", "DEEPCASE-15")
@pytest.mark.parametrize(
    "name", ["values held fixed", "momentum not carried back", "slope held fixed"]
)
def test_a_mistake_of_the_backward_pass_is_named_by_gradients(name: str) -> None:
    case = deep_cases.made(**{**REQUESTS["mlp"], "cotangent": True})
    (each,) = [one for one in SEARCHED.departures(case) if one.name == name]
    wrong = ensemble.exact(
        case,
        grad=True,
        plain=lambda inputs, case, rounding: program.run(inputs, case, rounding, (each,)),
    )
    names = ("out/y", "grad/k", "grad/memory/W_1", "grad/momentum", "grad/v")
    answer = identify(case, {key: np.asarray(wrong[key], np.float32) for key in names})
    assert each.words in [departed.words for departed in answer.departures]


@pytest.mark.clause("DEEPCASE-14")
@pytest.mark.host("plain loops of the tests")
def test_a_program_by_other_hands_is_identified() -> None:
    """The loops of the tests, which read before the write and clip what they add up."""
    case = CASES["mlp"]
    inputs = convert(case, "float64")
    settings = {
        "memory": {"kind": "mlp", "activation": "gelu_erf"},
        "chunk": 2,
        "window": 3,
        "read": "chunk_start",
        "clip": "hard",
        "clip_norm": 1.0,
        "reduction": "mean",
    }
    tensors = {name: inputs[f"in/memory/{name}"] for name in ("W_1", "W_2")}
    gates = {name: inputs[f"in/{name}"] for name in ("retain", "momentum", "step_size")}
    reset = np.tile(inputs["in/reset"].astype(bool), (2, 1))
    tokens = (inputs["in/k"], inputs["in/v"], inputs["in/q"])
    y, after = loops.run(settings, tensors, *tokens, gates, reset=reset)
    mine = {"out/y": y, **{f"out/state/weights/{n}": after[f"memory/{n}"] for n in tensors}}
    answer = identify(case, mine)
    assert answer.verdict == "MATCH", answer.why
    assert answer.from_own == {
        "read": "before",
        "parameters.reduction": "mean",
        "parameters.clip": "hard",
    }


@pytest.mark.clause("DEEPCASE-14", "IDENT-6")
def test_what_this_case_cannot_decide_is_told_and_a_case_that_decides_is_made() -> None:
    case = deep_cases.made(tokens=2, parameters={"chunk": 2}, dtype="float32")
    mine = evaluate(case, dtype="float32").tensors
    answer = identify(case, {"out/y": mine["out/y"]}, depth=1)
    assert answer.verdict == "UNDECIDABLE"
    assert answer.own
    assert "parameters.window" in answer.undecided or "newton_schulz.eps" in answer.undecided
    chosen = [each for each in answer.fits if len(each) <= 1][:3]
    deciding = deciding_case(case, chosen, dtype="float32")
    if deciding is not None:
        reads = [program.run(convert(deciding, "float64"), deciding, PLAINLY, c) for c in chosen]
        for place, one in enumerate(reads):
            for other in reads[place + 1 :]:
                gap = np.linalg.norm(one["out/y"] - other["out/y"])
                assert gap > 1e-6 * np.linalg.norm(one["out/y"])


@pytest.mark.clause("DEEPCASE-14", "IDENT-6")
def test_a_case_that_decides_tells_chunks_and_windows_apart() -> None:
    case = deep_cases.made(tokens=2, parameters={"chunk": 4}, dtype="float32")
    by_name = {each.name: each for each in SEARCHED.settings(case)}
    assert "parameters.window=5" not in by_name  # beyond the tokens of the case
    settings = [(), (by_name["parameters.reduction=mean"],), (by_name["parameters.clip=hard"],)]
    deciding = deciding_case(case, settings, dtype="float32")
    assert deciding is not None
    assert deciding.inputs["in/k"].shape[-2] > 2
    assert deciding.header.parameters == case.header.parameters


@pytest.mark.clause("DEEPCASE-14", "IDENT-1")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "none of the results that readings are told apart by: out/y, "),
        ({"out/M": np.zeros(3)}, "out/M: not a result of this case; it has out/y, "),
        ({"out/y": np.zeros((2, 8, 2))}, r"out/y: shape \(2, 8, 2\), expected \(2, 8, 3\)"),
        ({"out/y": np.zeros((2, 8, 3), int)}, "out/y: dtype int64, one of float64, "),
        ({"grad/k": np.zeros((2, 8, 3))}, "in/y_bar: missing, gradients need it"),
    ],
)
def test_results_of_another_case_are_refused(change: Any, words: str) -> None:
    case = (
        deep_cases.made(**REQUESTS["mlp"], cotangent=False) if "grad/k" in change else CASES["mlp"]
    )
    with pytest.raises(atlas_ref.CaseError, match=words):
        identify(case, change)


@pytest.mark.clause("DEEPCASE-14", "IDENT-1")
def test_a_result_that_is_not_finite_is_named_by_its_place() -> None:
    case = CASES["mlp"]
    y = evaluate(case).tensors["out/y"].copy()
    y[1, 2, 0] = np.nan
    answer = identify(case, {"out/y": y})
    assert (answer.verdict, answer.exit_code) == ("NOT FINITE", 1)
    assert "out/y: nan at (1, 2, 0)" in answer.why


@pytest.mark.parametrize("name", ["relu", "quick gelu"])
def test_a_program_with_another_activation_has_its_derivative_too(name: str) -> None:
    """A mistake that names another activation is that of a program whose gradient is right.

    Its slope is the difference quotient of a G(a), away from the kink.
    """
    (found,) = (each for each in listed.MISTAKES if each.name == name)
    settings = REQUESTS["mlp"]["parameters"]["memory"]
    hook = hook_of(seen_by(program.program_and_settings, CASES["mlp"]), {}, (found,))
    m = Function(MemoryFunction(**settings), part=hook.part)
    a, h = np.array([-2.1, -0.7, -0.1, 0.3, 1.2, 2.6]), 1e-5
    act = [x * m.share(x) for x in (a + h, a - h)]
    assert_close("slope", m.slope(a, m.share(a)), (act[0] - act[1]) / (2 * h), FINITE_DIFFERENCE)
