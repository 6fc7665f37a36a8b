"""Certified results of a TNT: literal loops, fractions from the equations, planted mistakes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from atlas_ref.certify import certified, certify
from atlas_ref.certify.differences import differences
from atlas_ref.certify.evaluate import evaluate as balls
from atlas_ref.certify.tnt import projection, run, settings
from atlas_ref.oracle.cases.case import Case, Unsupported, make
from atlas_ref.oracle.evaluate import evaluate
from tests.support import tnt_cases
from tests.support.certified import assert_certified, assert_expected_is_certified
from tests.support.close import Tolerance, assert_close, relative_error
from tests.truth import tnt_loops as loops

#: Rounding of float64 that a few writes, with Newton-Schulz perhaps, magnify.
ROUNDED = Tolerance("ROUNDED", 1e-11)

GLOBAL = {"span": 3}
LOCALS: list[dict[str, Any]] = [{"span": 2, "shard": 4}, {"span": 3, "shard": 5}]

#: Name -> rule, convention, and parameters beside those above.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "forget": ("hebbian", {"gate": "forget"}, {}),
    "as printed": ("titans_lmm", {"gate": "none"}, {"preset": "paper-literal"}),
    "as printed, a window": (
        "omega",
        {"gate": "none", "newton_schulz": "none", "momentum_sign": "minus"},
        {"preset": "paper-literal"},
    ),
    "appendix C": ("delta", {"k_norm": "l2", "q_norm": "rms"}, {"preset": "paper-app-c"}),
    "nesterov": ("omega", {"newton_schulz": {"steps": 2, "argument": "nesterov"}}, {}),
    "written back": ("omega", {"newton_schulz": {"steps": 1, "argument": "written_back"}}, {}),
    "accumulated": ("omega", {"newton_schulz": {"steps": 1, "argument": "accumulated"}}, {}),
    "carry": (
        "omega",
        {"newton_schulz": "none", "window_at_boundary": "carry", "window_edge": "renormalise"},
        {"window": 3},
    ),
    "cut": (
        "omega",
        {"newton_schulz": "none", "window_at_boundary": "cut", "decay": "before_error"},
        {"window": 3},
    ),
    "a window of momenta": (
        "omega",
        {"newton_schulz": "none", "order": "momentum_then_window"},
        {"window": 3, "locals": [{**LOCALS[0], "reset_momentum": "carry"}, LOCALS[1]]},
    ),
    "signs": ("titans_lmm", {"rate": "split", "direction": "ascent", "value_sign": "plus"}, {}),
    "last keys": (
        "delta",
        {},
        {
            "global": None,
            "locals": [
                {**LOCALS[0], "projection": {"range": "window", "window": 1}},
                {
                    **LOCALS[1],
                    "projection": {
                        "range": "window",
                        "window": 3,
                        "own": "exclusive",
                        "norm": "sum_of_norms",
                    },
                },
            ],
        },
    ),
}


def named(name: str, **request: Any) -> Case:
    rule, convention, parameters = CASES[name]
    own = {"rule": rule, "global": GLOBAL, "locals": LOCALS, **parameters}
    sizes = {"tokens": 6, "d_in": 3, "d_out": 2, "heads": 1}
    return tnt_cases.made(convention=convention, parameters=own, **sizes | request)


def with_bars(case: Case) -> Case:
    """The case with cotangents of the state that it leaves."""
    draw = np.random.default_rng(1)
    bars = {
        name.replace("out/state/", "in/state_bar/"): draw.standard_normal(x.shape)
        for name, x in evaluate(case).tensors.items()
        if name.startswith("out/state/") and name.endswith(("/M", "/S"))
    }
    return make(case.header.plain(), {**case.inputs, **bars})


def agrees(case: Case) -> None:
    assert_certified(case, ROUNDED)


def looped(number: int, **more: Any) -> tuple[tnt_cases.Drawn, Case, list[loops.Result]]:
    """A drawn case without gates of its own, and the results of the literal loop, row by row."""
    drawn = tnt_cases.drawn(number)
    header, tensors = tnt_cases.some(**drawn.request | more)
    matrices = [tensors[name] for name in tensors if name.endswith("/W_QK")]
    reading = drawn.reading._replace(W_QK=matrices[0] if matrices else None)
    tensors |= {name: matrices[0] for name in tensors if name.endswith("/W_QK")}
    rows = range(len(tensors["in/k"]))
    want = [loops.paper(drawn.memories(tensors, row), reading) for row in rows]
    return drawn, make(header, tensors), want


@pytest.mark.clause("CERT-19")
@pytest.mark.parametrize("name", CASES)
def test_certified_results_are_those_of_the_rule(name: str) -> None:
    agrees(with_bars(named(name, reset=4)))


@pytest.mark.clause("CERT-19")
@pytest.mark.parametrize("name", CASES)
def test_certified_results_of_a_call_that_goes_on_are_those_of_the_rule(name: str) -> None:
    """The call before ends within a chunk, with the state that the case begins with."""
    agrees(named(name, history=3))


@pytest.mark.clause("CERT-19")
def test_a_case_with_every_kind_of_tensor_is_certified() -> None:
    agrees(tnt_cases.made(**tnt_cases.FULL))


# -- against loops and equations -------------------------------------------------------------------


@pytest.mark.clause("CERT-19")
@pytest.mark.sample(12)
@pytest.mark.parametrize("number", range(60))
def test_certified_results_are_those_of_literal_loops(number: int) -> None:
    _, case, want = looped(number, tokens=9)
    assert_close("y", certify(case).values["out/y"], [each.y for each in want], ROUNDED)


def fractions(x: Any) -> Any:
    """An array of fractions."""
    entries = [Fraction(float(each)) for each in np.ravel(x)]
    return np.array(entries, dtype=object).reshape(np.shape(x))


def floats(x: Any) -> Any:
    """Fractions as float64, each rounded once."""
    return np.array([float(each) for each in np.ravel(np.array(x))]).reshape(np.shape(x))


@pytest.mark.clause("CERT-5", "CERT-19")
def test_the_value_is_the_fraction_of_the_printed_loop_rounded_once() -> None:
    """The loop of specs/tnt.md under gates of Titans."""
    parameters = {"rule": "titans_lmm", "global": GLOBAL, "locals": LOCALS}
    case = tnt_cases.made(tokens=8, d_in=3, d_out=2, heads=1, parameters=parameters)
    x = {name[3:]: fractions(value) for name, value in case.inputs.items()}
    k, v, q, retain, momentum, step = (
        x[name][0] for name in ("k", "v", "q", "retain", "momentum", "step_size")
    )
    none = fractions(np.zeros((2, 3)))
    first = [x["local0/M0"], x["local1/M0"]]
    V, Z = x["global/M0"][0], x.get("global/S0", none[None])[0]
    W, S, R, P = [None, None], [none, none], [None, None], [None, None]
    reads = []
    for n in range(8):
        if n % 3 == 0:
            V_ref = V
        y = V_ref @ q[n]
        Z = momentum[n] * Z + step[n] * np.outer(V_ref @ k[n] - v[n], k[n])
        V = retain[n] * V - Z
        for i, (C, shard) in enumerate(((2, 4), (3, 5))):
            s = n % shard
            if s == 0:
                W[i], S[i] = first[i], none
            if s % C == 0:
                R[i], P[i] = W[i], fractions(np.zeros((3, 3)))
            S[i] = momentum[n] * S[i] + step[n] * np.outer(R[i] @ k[n] - v[n], k[n])
            W[i] = retain[n] * W[i] - S[i]
            P[i] = P[i] + np.outer(k[n], k[n]) / (k[n] @ k[n])
            y = y + W[i] @ (P[i] @ q[n])
        reads.append(y)
    found = certify(case).values
    assert np.array_equal(found["out/y"][0], floats(reads))
    want = {"global/M": V, "global/S": Z, "local0/M": W[0], "local1/S": S[1], "local1/P": P[1]}
    for name, value in want.items():
        assert np.array_equal(found[f"out/state/{name}"][0], floats(value))


@pytest.mark.clause("CERT-4", "CERT-19")
@pytest.mark.parametrize("number", [2, 6, 16])
def test_a_ball_leaves_out_the_neighbours_of_a_result_and_a_wide_one_holds_the_loop(
    number: int,
) -> None:
    _, case, want = looped(number, tokens=7)
    arrays = certified.exact(case)
    fine, wide = (balls(case.header, case.convention, arrays, bits=bits) for bits in (128, 45))
    loop = np.array([each.y for each in want])
    value = certify(case).values["out/y"]
    for place in np.ndindex(*value.shape):
        assert wide["out/y"][place].contains(float(loop[place]))
        for off in (np.inf, -np.inf):
            neighbour = float(np.nextafter(value[place], off))
            assert not fine["out/y"][place].contains(neighbour)


@pytest.mark.clause("CERT-11", "CERT-19")
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["as printed", "appendix C", "carry", "last keys"])
def test_differences_of_values_prove_every_derivative(name: str) -> None:
    case = with_bars(named(name, tokens=4, d_in=2, d_out=1))
    found = certify(case, grad=True)
    proved = list(differences(case, found))
    assert len(proved) == sum(x.size for n, x in found.values.items() if n.startswith("grad/"))
    assert [each for each in proved if not each.agrees] == []


@pytest.mark.clause("CERT-8", "CERT-19")
def test_a_rest_as_long_as_the_limit_is_left_open_and_others_are_decided() -> None:
    """The rest of (5, 4, 3) beside (1, 1, 2) is half of it; 1/6 has no end in binary."""
    moved = {"kind": "orthogonal", "range": "sequence", "dependent": 0.5}
    parameters = {"rule": "delta", "locals": [{**LOCALS[0], "projection": moved}]}
    case = tnt_cases.made(tokens=2, d_in=3, d_out=1, heads=1, parameters=parameters)

    def left_open(key: list[float]) -> bool:
        tensors = {**case.inputs, "in/k": np.array([[[1.0, 1.0, 2.0], key]])}
        found = certify(make(case.header.plain(), tensors), max_bits=256).unresolved
        return "out/state/local0/P" in found

    assert left_open([5.0, 4.0, 3.0])
    assert not left_open([2.0, 2.0, 4.0])
    assert not left_open([5.0, 4.0, 2.9])


# -- mistakes --------------------------------------------------------------------------------------


def _method(of: Any, name: str, method: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(of, name, method)


def _never(self: Any, *given: Any) -> bool:
    return False


def _late(self: Any, number: int) -> bool:
    return self.shard is not None and number % self.shard == 1


def _start_of_call(self: Any, before: Any) -> Any:
    state = ANEW(self, before)
    state.M = before.M
    return state


def _raw(self: Any, keys: Any, at: int, key: Any, query: Any) -> Any:
    return query


def _unscaled(self: Any, key: Any) -> Any:
    return key @ key.T


def _of_document(self: Any, number: int) -> int:
    return number % self.span


ANEW = run.One._anew

#: A mistake in the certified code -> the mistake.
MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no reset": _method(settings.Memory, "starts", _never),
    "a reset one token late": _method(settings.Memory, "starts", _late),
    "a reset to the memory before it": _method(run.One, "_anew", _start_of_call),
    "raw queries": _method(projection.Projection, "query", _raw),
    "keys of the whole document": _method(projection.Projection, "_empties", _never),
    "keys without their norm": _method(projection.Projection, "_outer", _unscaled),
    "keys of the chunk of the document": _method(settings.Memory, "place", _of_document),
}


@pytest.mark.clause("CERT-19")
@pytest.mark.parametrize("mistake", MUTANTS)
def test_a_planted_mistake_is_far_from_the_literal_loop(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worst() -> float:
        locals_ = [{"span": 2, "shard": 3}, {"span": 3, "shard": 5}]
        parameters = {"rule": "delta", "global": GLOBAL, "locals": locals_}
        header, tensors = tnt_cases.some(tokens=9, parameters=parameters)
        sizes = (("global", 3, None), ("local0", 2, 3), ("local1", 3, 5))
        found = certify(make(header, tensors)).values["out/y"]
        want = []
        for row in range(2):
            memories = [tnt_cases.memory(tensors, each[0], row, *each[1:]) for each in sizes]
            want.append(loops.paper(memories).y)
        return relative_error(want, found)

    assert worst() < 1e-14
    MUTANTS[mistake](monkeypatch)
    assert worst() > 1e-2


# -- refusals and use ------------------------------------------------------------------------------


@pytest.mark.clause("CERT-19")
@pytest.mark.parametrize(
    ("table", "name", "said"),
    [
        ("CASE", "window", "parameters.window: certify under 2"),
        ("GLOBAL", "writes", "parameters.global.writes: certify under False"),
        ("LOCAL", "shard", "parameters.locals.0.shard: certify under 4"),
        ("PROJECTION", "own", "parameters.locals.0.projection.own: certify under 'exclusive'"),
    ],
)
def test_a_setting_that_certify_does_not_have_is_refused_in_one_line(
    table: str, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locals_ = [{**LOCALS[0], "projection": {"own": "exclusive"}}]
    whole = {**GLOBAL, "writes": False}
    parameters = {"rule": "omega", "window": 2, "global": whole, "locals": locals_}
    case = tnt_cases.made(tokens=2, parameters=parameters)
    monkeypatch.delitem(getattr(settings, table), name)
    with pytest.raises(Unsupported, match=f"^new: {said} is not yet supported; tolerance mea"):
        certify(case)


@pytest.mark.clause("CERT-19")
def test_a_value_that_certify_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    local = {**LOCALS[0], "read": "before"}
    case = tnt_cases.made(tokens=2, parameters={"rule": "delta", "locals": [local]})
    monkeypatch.setitem(settings.LOCAL, "read", ("after",))
    with pytest.raises(
        Unsupported, match=r"parameters\.locals\.0\.read: certify under 'before' is"
    ):
        certify(case)


@pytest.mark.clause("CERT-19")
def test_deep_memories_in_a_tnt_are_refused_with_what_to_do_instead() -> None:
    """No case has them; a header that a later reader may accept is answered all the same."""
    header = named("forget").header
    header = header.replaced(parameters={**header.parameters, "rule": "deep_memory"})
    assert settings.refusal(header).endswith(
        "certify a memory by itself, as a case of rule deep_memory"
    )


@pytest.mark.clause("CERT-19", "VEC-6")
def test_expected_values_of_a_vector_are_the_certified_ones() -> None:
    case = named("appendix C")
    assert_expected_is_certified(case)
