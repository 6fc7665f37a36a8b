"""Readings of a TNT: every setting and every mistake is found in what a program returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.identify.answer import Identification
from atlas_ref.oracle.identify.deciding import deciding_case
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.readings.nodes import redrawn
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.program.derive.ops import places_of_ops
from atlas_ref.oracle.replay.loop import run_ops
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import Recorder, arithmetic_inputs
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.subjects.tnt import SUBJECT
from atlas_ref.oracle.tnt import program
from tests.support import tnt_cases
from tests.support.close import relative_error, reordered
from tests.truth import tnt_loops as loops

assert SUBJECT.searched is not None
SEARCHED = SUBJECT.searched

#: A program that adds in another order than the library.
WAY = Arithmetic("as a tree", "pairwise")
OTHER = Rounding(WAY, lambda x: x, lambda x: x, None)

REQUESTS: dict[str, dict[str, Any]] = {
    "one": {
        "tokens": 9,
        "d_in": 3,
        "d_out": 4,
        "heads": 1,
        "parameters": {"global": {"span": 4}, "locals": [{"span": 2, "shard": 4}]},
    },
    "resumed": {
        "tokens": 8,
        "d_in": 3,
        "d_out": 4,
        "heads": 1,
        "history": 3,
        "convention": {"newton_schulz": "none"},
        "parameters": {
            "rule": "omega",
            "window": 2,
            "origin": 1,
            "locals": [{"span": 2, "shard": 4}, {"span": 3, "shard": 5}],
        },
    },
}
CASES = {name: tnt_cases.made(**request, dtype="float32") for name, request in REQUESTS.items()}


#: A call with a window, and one with two documents, whose readings the literal loops state.
WINDOW: dict[str, Any] = {
    **REQUESTS["one"],
    "convention": {"newton_schulz": "none"},
    "parameters": {**REQUESTS["one"]["parameters"], "rule": "omega", "window": 2},
}
PACKED: dict[str, Any] = {
    **REQUESTS["one"],
    "reset": 5,
    "parameters": {"global": {"span": 4}, "locals": [{"span": 2, "shard": 3}]},
    "dtype": "float64",
}


def answered(case: Any, *chosen: Any) -> dict[str, Any]:
    """What a program with some readings returns in float32."""
    results = program.run(convert(case, "float32"), case, OTHER, chosen)
    return {name: np.asarray(x) for name, x in results.items()}


def shown(case: Any, kind: Any) -> list[Any]:
    """Readings that values show: those whose results are not the case's own."""
    inputs = convert(case, "float64")
    own = program.run(inputs, case, OTHER, ())
    found = []
    for each in kind(case):
        other = program.run(inputs, case, OTHER, (each,))
        same = own.keys() == other.keys() and all(
            other[name].shape == x.shape and relative_error(other[name], x) < 1e-5
            for name, x in own.items()
        )
        if not (each.grad or same):
            found.append(each)
    return found


def fits(answer: Identification, change: Any) -> bool:
    """Whether a change is the match, or one of the settings beside it."""
    if answer.verdict not in ("MATCH", "UNDECIDABLE"):
        return False
    if answer.from_own == dict(change):
        return True
    named = [dict(twin.changes) for twin in answer.twins]
    of_void = set(answer.void)
    return dict(change) in named or {f"{a}={v}" for a, v in change.items()} <= of_void


def same_function(case: Any, answer: Identification, each: Any) -> bool:
    """Whether the match is the reading in other words, such as a chunk longer than any shard."""
    inputs = redrawn(convert(case, "float64"))
    named = [one for one in SEARCHED.settings(case) if dict(one.change) == answer.from_own]
    want = program.run(inputs, case, OTHER, (each,))
    return answer.verdict == "MATCH" and any(
        all(relative_error(found[n], x) < 1e-12 for n, x in want.items())
        for one in named
        for found in [program.run(inputs, case, OTHER, (one,))]
    )


SETTINGS = [(name, each) for name, case in CASES.items() for each in shown(case, SEARCHED.settings)]
MISTAKES = [
    (name, each) for name, case in CASES.items() for each in shown(case, SEARCHED.departures)
]


@pytest.mark.clause("TNTCASE-12", "IDENT-7")
@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "each"), SETTINGS, ids=lambda each: getattr(each, "name", each))
def test_every_other_setting_is_found(name: str, each: Any) -> None:
    answer = identify(CASES[name], answered(CASES[name], each))
    found = fits(answer, each.change) or same_function(CASES[name], answer, each)
    assert found, (answer.verdict, answer.from_own, answer.void)
    assert not answer.own


@pytest.mark.clause("TNTCASE-13", "IDENT-14")
@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "each"), MISTAKES, ids=lambda each: getattr(each, "name", each))
def test_every_mistake_is_found_or_is_a_setting(name: str, each: Any) -> None:
    answer = identify(CASES[name], answered(CASES[name], each))
    words = [one.words for one in answer.departures]
    another = answer.verdict in ("MATCH", "UNDECIDABLE") and not answer.own
    assert each.words in words or another, (answer, words)


@pytest.mark.clause("TNTCASE-12")
@pytest.mark.parametrize("name", CASES)
def test_own_results_match_the_case(name: str) -> None:
    answer = identify(CASES[name], answered(CASES[name]), depth=1)
    assert (answer.verdict, answer.own) == ("MATCH", True)


@pytest.mark.sample(2)
@pytest.mark.clause("TNTCASE-12")
@pytest.mark.host("literal loops of the tests")
@pytest.mark.parametrize(
    ("change", "own"),
    [
        ({"range": "shard"}, {"parameters.locals.0.projection.range": "shard"}),
        ({"norm": "none"}, {"parameters.locals.0.projection.norm": "unit_keys_assumed"}),
        ({"project": False}, {"parameters.locals.0.projection.kind": "none"}),
        ({"own": False}, {"parameters.locals.0.projection.own": "exclusive"}),
        ({"running": True}, {"parameters.locals.0.base": "running"}),
        ({"lost": True}, {"parameters.locals.0.reset": "instead_of_write"}),
        ({"carry": True}, {"parameters.locals.0.reset_momentum": "carry"}),
        ({"origin": 1}, {"parameters.origin": 1}),
        ({"global_read": "after"}, {"parameters.global.read": "after"}),
        ({"local_read": "before"}, {"parameters.locals.0.read": "before"}),
    ],
)
def test_loops_with_another_reading_are_named(change: Any, own: Any) -> None:
    case = CASES["one"]
    tensors = convert(case, "float64")
    memories = [
        tnt_cases.memory(tensors, "global", 0, 4, None),
        tnt_cases.memory(tensors, "local0", 0, 2, 4),
    ]
    y = loops.paper(memories, loops.Reading(**change)).y[None]
    answer = identify(case, {"out/y": y})
    assert answer.verdict == "MATCH"
    assert answer.from_own == own


@pytest.mark.clause("TNTCASE-12")
def test_the_presets_are_named_and_the_plain_program_agrees_with_ours_under_them() -> None:
    case = tnt_cases.made(**{**REQUESTS["one"], "convention": {"gate": "none"}, "dtype": "float64"})
    inputs = {n: x for n, x in case.inputs.items() if n not in ("in/momentum", "in/global/S0")}
    case = case.replaced(inputs=inputs)
    found = SEARCHED.presets(case)
    assert found.keys() == {"paper", "paper-literal", "paper-app-c"}
    assert found["paper"] == []
    for name in ("paper-literal", "paper-app-c"):
        parameters = {**case.header.parameters, "preset": name}
        stated = case.replaced(header=case.header.replaced(parameters=parameters))
        want = evaluate(stated).tensors
        got = program.run(inputs, case, OTHER, found[name])
        assert got.keys() == want.keys()
        for each, x in want.items():
            assert relative_error(got[each], x) < reordered(64).bound, each  # type: ignore[operator]
        answer = identify(case, {"out/y": np.asarray(want["out/y"], np.float32)})
        assert (answer.verdict, answer.preset) == ("MATCH", name)


@pytest.mark.clause("TNTCASE-13")
@pytest.mark.host("literal loops of the tests")
def test_a_short_tail_that_is_passed_over_is_what_loops_of_other_tokens_give() -> None:
    """Of 9 tokens: the global chunk and the shard of the last one have that token alone."""
    case = CASES["one"]
    tensors = convert(case, "float64")
    every = {one.name: one for one in SEARCHED.departures(case)}
    whole, start = tnt_cases.memory(tensors, "global", 0, 4, None), 4
    local = tnt_cases.memory(tensors, "local0", 0, 2, 4)
    right = loops.paper([whole, local])
    tail = program.run(tensors, case, OTHER, [every["global without tail"]])
    first = loops.paper([_some(whole, slice(8)), _some(local, slice(8))])
    assert relative_error(tail["out/state/global/M"][0], first.M[0]) < 1e-12
    assert relative_error(tail["out/y"][0], right.y) < 1e-12
    assert relative_error(first.M[0], right.M[0]) > 1e-3
    short = program.run(
        tensors, case, OTHER, [every["local0 was not reset for a last shard that is short"]]
    )
    of_shard = loops.paper([_some(local, slice(start, None))._replace(shard=9)])
    of_global = loops.paper([whole])
    want = of_global.y[start:] + of_shard.y
    assert relative_error(short["out/y"][0, start:], want) < 1e-12
    assert relative_error(short["out/y"][0, :start], right.y[:start]) < 1e-12
    assert relative_error(right.y[start:], want) > 1e-3


@pytest.mark.clause("TNTCASE-13")
@pytest.mark.host("literal loops of the tests")
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("global start of chunk late", {"late_start": True}),
        ("local0 start of chunk late", {"late_start": True}),
        ("local0 window kept", {"keeps_window": True}),
    ],
)
def test_a_memory_with_one_mistake_is_what_loops_with_it_give(name: str, mistake: Any) -> None:
    case = CASES["one"] if "late_start" in mistake else tnt_cases.made(**WINDOW)
    tensors = convert(case, "float64")
    memories = {
        "global": tnt_cases.memory(tensors, "global", 0, 4, None),
        "local0": tnt_cases.memory(tensors, "local0", 0, 2, 4),
    }
    (each,) = [one for one in SEARCHED.departures(case) if one.name == name]
    found = program.run(tensors, case, OTHER, [each])["out/y"][0]
    wrong = name.split()[0]
    want = sum(
        loops.paper([m], loops.Reading(**(mistake if of == wrong else {}))).y
        for of, m in memories.items()
    )
    assert relative_error(found, want) < 1e-12
    assert relative_error(loops.paper(list(memories.values())).y, want) > 1e-3


@pytest.mark.clause("TNTCASE-13", "IDENT-14")
@pytest.mark.host("literal loops of the tests")
@pytest.mark.parametrize("name", ["in/reset ignored", "numbers kept", "global kept", "local0 kept"])
def test_documents_that_are_not_told_apart_are_named(name: str) -> None:
    case = tnt_cases.made(**PACKED)
    tensors = convert(case, "float64")
    memories = {
        "global": tnt_cases.memory(tensors, "global", 0, 4, None),
        "local0": tnt_cases.memory(tensors, "local0", 0, 2, 3),
    }
    first, second = slice(None, 5), slice(5, None)

    def in_documents(m: loops.Memory, origin: int = 0) -> Any:
        rest = loops.paper([_some(m, second)], loops.Reading(origin=origin)).y
        return np.concatenate([loops.paper([_some(m, first)]).y, rest])

    whole = {of: loops.paper([m]).y for of, m in memories.items()}
    apart = {of: in_documents(m) for of, m in memories.items()}
    want = {
        "in/reset ignored": sum(whole.values()),
        "numbers kept": sum(in_documents(m, 5) for m in memories.values()),
        "global kept": whole["global"] + apart["local0"],
        "local0 kept": apart["global"] + whole["local0"],
    }[name]
    assert relative_error(sum(apart.values()), evaluate(case).tensors["out/y"][0]) < 1e-12
    (each,) = [one for one in SEARCHED.departures(case) if one.name == name]
    found = program.run(tensors, case, OTHER, [each])["out/y"]
    assert relative_error(found[0], want) < 1e-12
    assert relative_error(sum(apart.values()), want) > 1e-3
    answer = identify(case, {"out/y": want[None]}, depth=1)
    assert each.words in [one.words for one in answer.departures]


@pytest.mark.clause("TNTCASE-13")
@pytest.mark.host("literal loops of the tests")
@pytest.mark.parametrize(
    ("part", "before", "of"),
    [
        ("M_ref", 5, {}),
        ("S", 4, {}),
        ("window", 4, {"rule": "omega", "window": 2}),
    ],
)
def test_a_part_of_the_state_that_is_lost_is_what_a_call_without_it_gives(
    part: str, before: int, of: Any
) -> None:
    """The loops start with their first memory as that of the chunk, and with an empty window."""
    parameters = {"global": {"span": 4}, **of}
    convention = {"newton_schulz": "none"} if of else {}
    sizes = {"tokens": 7, "d_in": 3, "d_out": 4, "heads": 1, "cotangent": False}
    request = {**sizes, "history": before, "parameters": parameters, "convention": convention}
    case = tnt_cases.made(**request, dtype="float64")
    tensors = convert(case, "float64")
    m = tnt_cases.memory(tensors, "global", 0, 4, None)
    M, S = (tensors[f"in/state/global/{name}"][0] for name in ("M", "S"))
    m = m._replace(first=M, S0=None if part == "S" else S)
    (each,) = [
        one for one in SEARCHED.departures(case) if one.name == f"in/state/global/{part} ignored"
    ]
    found = program.run(tensors, case, OTHER, [each])["out/y"][0]
    want = loops.paper([m], loops.Reading(origin=before)).y
    assert relative_error(found, want) < 1e-12
    assert relative_error(evaluate(case).tensors["out/y"][0], want) > 1e-3


def _some(memory: loops.Memory, tokens: slice) -> loops.Memory:
    """A memory that is given some tokens alone."""
    cut = {name: None if x is None else x[tokens] for name, x in memory.inputs._asdict().items()}
    return memory._replace(inputs=loops.Inputs(**cut))


@pytest.mark.clause("TNTCASE-13")
@pytest.mark.parametrize("name", ["local0 keys held", "local0 whole held", "local0 start held"])
def test_a_part_of_the_backward_that_is_held_fixed_is_named(name: str) -> None:
    case = CASES["one"]
    (each,) = [one for one in SEARCHED.departures(case) if one.name == name]

    def plain(inputs: Any, case: Any, rounding: Any) -> Any:
        return program.run(inputs, case, rounding, (each,))

    found = ensemble.members(case, "float32", grad=True, plain=plain)
    results = next(iter(found.values()))
    mine = {n: x for n, x in results.items() if n.startswith("grad/") or n == "out/y"}
    answer = identify(case, mine, depth=1)
    assert each.words in [one.words for one in answer.departures]


@pytest.mark.clause("TNTCASE-12", "IDENT-8")
def test_a_deciding_case_separates_two_readings() -> None:
    case = CASES["one"]
    (each,) = [r for r in SEARCHED.settings(case) if r.name == "parameters.origin=1"]
    trial = deciding_case(case, [(), (each,)])
    assert trial is not None
    assert trial.header.parameters == case.header.parameters


@pytest.mark.clause("TNTCASE-10", "REPLAY-16")
@pytest.mark.parametrize(
    ("name", "op", "words"),
    [
        (
            "parameters.locals.0.projection.norm=unit_keys_assumed",
            "local0/projected",
            "parameters.locals.0.projection.norm=unit_keys_assumed",
        ),
        ("local0 was never reset", "local0/residual", "as if local0 was never reset"),
        ("mean of reads", "y", "as if the reads were averaged"),
        ("momentum for retain", "global/M", "as if the momentum gate multiplied the memory"),
    ],
)
def test_the_reading_that_explains_a_trace_is_named(name: str, op: str, words: str) -> None:
    case = CASES["one"]
    every = [*SEARCHED.settings(case), *SEARCHED.departures(case)]
    (each,) = [one for one in every if one.name == name]
    assert SEARCHED.keeps(case, each)
    recorder = Recorder(case)
    run_ops(case, arithmetic_inputs(case, "float32"), recorder, way=WAY, chosen=(each,))
    recorded = {f"trace/{o}": x.astype(np.float32) for o, x in recorder.tensors().items()}
    first = first_wrong(replay(case, recorded))
    assert first is not None
    assert first.op == op
    assert words in first.nearest.split(" or ")


@pytest.mark.clause("TNTCASE-10", "REPLAY-16")
@pytest.mark.parametrize("name", CASES)
def test_a_reading_keeps_the_ops_of_a_case_where_it_computes_the_same_at_the_same_tokens(
    name: str,
) -> None:
    case, places = CASES[name], places_of_ops(program.program_and_settings)
    every = [*SEARCHED.settings(case), *SEARCHED.departures(case)]
    kept = {each.name for each in every if SEARCHED.keeps(case, each)}
    same = {each.name for each in every if places(case, [each]) == places(case)}
    assert same < kept < {each.name for each in every}
    assert {each.rpartition(" ")[2] for each in kept - same} == {"tail"}
