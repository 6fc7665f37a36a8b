"""Cases of a TNT against literal loops: every result, every gradient, calls that go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.features import features
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge import ensemble
from tests.support import tnt_cases
from tests.support.close import assert_close, reordered
from tests.truth import tnt_loops as loops

pytestmark = pytest.mark.host("literal loops of the tests")

LOOSE = reordered(64, amplification=20.0)


def looped(case: tnt_cases.Drawn, tensors: dict[str, Any]) -> list[loops.Result]:
    """The loops' results, one for each row."""
    found = []
    for row in range(len(tensors["in/k"])):
        reading = case.reading
        matrices = [tensors[n] for n in tensors if n.endswith("/W_QK")]
        if matrices:
            reading = reading._replace(W_QK=matrices[0])
        found.append(loops.paper(case.memories(tensors, row), reading))
    return found


def named(case: tnt_cases.Drawn) -> list[str]:
    given = case.request["parameters"]
    first = ["global"] if given["global"] is not None else []
    return [*first, *(f"local{i}" for i in range(len(given["locals"])))]


def drawn(number: int, **more: Any) -> tuple[tnt_cases.Drawn, Any, dict[str, Any]]:
    case = tnt_cases.drawn(number)
    header, tensors = tnt_cases.some(**case.request | more)
    shared = next((tensors[n] for n in tensors if n.endswith("/W_QK")), None)
    tensors |= {n: shared for n in tensors if n.endswith("/W_QK")}
    return case, header, tensors


@pytest.mark.clause("TNTCASE-1", "TNTCASE-2", "TNTCASE-3", "TNTCASE-4", "TNTCASE-5")
@pytest.mark.parametrize("number", range(60))
def test_results_of_a_case_and_of_calls_that_go_on_are_those_of_loops(number: int) -> None:
    case, header, tensors = drawn(number)
    want = looped(case, tensors)
    cuts = np.random.default_rng(number).choice(np.arange(1, 13), 2, replace=False)
    first, state, reads = 0, {}, []
    results: dict[str, Any] = {}
    for last in (*sorted(cuts.tolist()), 13):
        part = tnt_cases.cut(tensors, first, last)
        results = evaluate(atlas_ref.make(header, part | state)).tensors
        reads.append(results["out/y"])
        state, first = tnt_cases.resumed(results), last
    assert_close("y", np.concatenate(reads, -2), np.array([each.y for each in want]), LOOSE)
    for i, name in enumerate(named(case)):
        for key, place in (("M", 1), ("S", 2)):
            if f"out/state/{name}/{key}" in results:
                end = np.array([each[place][i] for each in want])
                assert_close(f"{name}/{key}", results[f"out/state/{name}/{key}"], end, LOOSE)
    assert int(results["out/state/position"]) == 13 + case.reading.origin
    assert ("out/state/global/S" in results) == (
        "in/momentum" in tensors and "global" in named(case)
    )


@pytest.mark.clause("TNTCASE-6")
@pytest.mark.parametrize("number", range(60, 84))
def test_gradients_of_a_case_are_complex_steps_of_loops(number: int) -> None:
    case, header, tensors = drawn(number)
    rng = np.random.default_rng(number)
    results = evaluate(atlas_ref.make(header, tensors)).tensors
    bars = {"out/y": tensors["in/y_bar"]}
    for name, x in results.items():
        if name.startswith("out/state/") and name.endswith(("/M", "/S")):
            bars[name] = rng.standard_normal(x.shape)
            tensors[name.replace("out/state/", "in/state_bar/")] = bars[name]
    found = evaluate(atlas_ref.make(header, tensors), grad=True).tensors
    floating = {n for n, x in tensors.items() if x.dtype.kind == "f" and "_bar" not in n}
    assert {n for n in found if n.startswith("grad/")} == {f"grad/{n[3:]}" for n in floating}
    for name in sorted(floating):
        way = rng.standard_normal(tensors[name].shape)
        matrices = {n for n in floating if n.endswith("/W_QK")} if "/W_QK" in name else {name}
        moved = {**tensors, **{n: tensors[n] + 1e-30j * way for n in matrices}}
        ends = looped(case, moved)
        total = sum(np.sum(bars["out/y"][row] * end.y) for row, end in enumerate(ends))
        for i, memory in enumerate(named(case)):
            for key, place in (("M", 1), ("S", 2)):
                bar = bars.get(f"out/state/{memory}/{key}")
                if bar is not None:
                    total += sum(np.sum(bar[row] * end[place][i]) for row, end in enumerate(ends))
        slope = np.imag(total) * 1e30
        got = sum(float(np.sum(found[f"grad/{n[3:]}"] * way)) for n in matrices)
        size = np.linalg.norm(way) * sum(np.linalg.norm(found[f"grad/{n[3:]}"]) for n in matrices)
        assert abs(got - slope) <= 1e-12 * max(size, 1e-6), name


@pytest.mark.clause("TNTCASE-3", "TNTCASE-5")
@pytest.mark.parametrize("number", range(100, 108))
def test_memories_with_tensors_of_their_own_and_documents_are_those_of_loops(number: int) -> None:
    case, header, tensors = drawn(number)
    rng = np.random.default_rng(number)
    for name in named(case):
        for key in ("q", "v", "step_size"):
            if f"in/{key}" in tensors:
                own = tensors[f"in/{key}"]
                tensors[f"in/{name}/{key}"] = own * rng.uniform(0.5, 1.0, own.shape)
    tensors["in/reset"] = np.zeros(13, np.uint8)
    tensors["in/reset"][7] = 1
    results = evaluate(atlas_ref.make(header, tensors)).tensors
    plain = {n: x for n, x in tensors.items() if n != "in/reset"}
    parts = [looped(case, tnt_cases.cut(plain, *each)) for each in ((0, 7), (7, 13))]
    want = np.concatenate([np.array([each.y for each in part]) for part in parts], axis=-2)
    assert_close("y", results["out/y"], want, LOOSE)
    assert int(results["out/state/position"]) == 6 + case.reading.origin


@pytest.mark.clause("TNTCASE-2")
def test_presets_are_the_printed_equations_and_what_is_stated_goes_before_them() -> None:
    parameters = {
        "preset": "paper-literal",
        "global": {"span": 4},
        "locals": [{"span": 2, "shard": 4}],
    }
    request = {"parameters": parameters, "convention": {"gate": "none"}, "tokens": 11}
    header, tensors = tnt_cases.some(**request)
    memories = [
        tnt_cases.memory(tensors, "global", 0, 4, None),
        tnt_cases.memory(tensors, "local0", 0, 2, 4),
    ]
    tensors.pop("in/global/S0", None)
    y = evaluate(atlas_ref.make(header, tensors)).tensors["out/y"]
    assert_close("literal", y[0], loops.printed(memories).y, LOOSE)
    parameters = parameters | {"global": {"span": 4, "sum": "exclusive"}}
    stated = evaluate(atlas_ref.make({**header, "parameters": parameters}, tensors)).tensors[
        "out/y"
    ]
    assert_close("exclusive", stated[0], loops.printed(memories, doubled=False).y, LOOSE)
    header, tensors = tnt_cases.some(
        parameters={"preset": "paper-app-c", "locals": [{"span": 2, "shard": 4}]}, tokens=11
    )
    y = evaluate(atlas_ref.make(header, tensors)).tensors["out/y"]
    want = loops.app_c([tnt_cases.memory(tensors, "local0", 0, 2, 4)]).y
    assert_close("app c", y[0], want, LOOSE)


#: Requests for what the loops have no words for: two programs of ours must agree there.
OTHERS: dict[str, dict[str, Any]] = {
    "full": tnt_cases.FULL,
    "newton_schulz": {
        "parameters": {"rule": "omega", "global": {"span": 3}, "locals": [{"span": 2, "shard": 5}]},
        "history": 3,
    },
    "literal": {
        "parameters": {
            "preset": "paper-literal",
            "global": {"span": 3},
            "locals": [{"span": 2, "shard": 4}],
        },
        "convention": {"gate": "none"},
        "history": 4,
        "tokens": 11,
    },
    "norms and signs": {
        "convention": {
            "k_norm": "l2",
            "q_norm": "l2",
            "momentum_sign": "minus",
            "decay": "before_error",
        },
        "history": 6,
    },
    **{
        f"window {boundary} {order}": {
            "parameters": {
                "rule": "omega",
                "window": 3,
                "global": {"span": 4},
                "locals": [{"span": 2, "shard": 6}],
            },
            "convention": {"window_at_boundary": boundary, "order": order, "newton_schulz": "none"},
            "history": 3,
            "window_gate": boundary == "carry",
        }
        for boundary in ("recompute", "carry", "cut")
        for order in ("window_then_momentum", "momentum_then_window")
    },
}


@pytest.mark.clause("TNTCASE-7", "TOL-3")
@pytest.mark.parametrize("name", OTHERS)
def test_the_plain_program_agrees_in_results_and_gradients(name: str) -> None:
    case = tnt_cases.made(**OTHERS[name])
    want = evaluate(case, grad=True).tensors
    found = ensemble.exact(case, grad=True)
    assert found.keys() == want.keys()
    for each, x in want.items():
        assert_close(each, found[each], x, reordered(64, amplification=100.0))


@pytest.mark.sample(2)
@pytest.mark.clause("TNTCASE-7")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["full", "newton_schulz"])
def test_own_results_pass_and_changed_ones_do_not(name: str, dtype: str) -> None:
    case = tnt_cases.made(**OTHERS[name])
    results = evaluate(case, grad=True, dtype=dtype).tensors
    rows = atlas_ref.check(case.replaced(recorded=results), dtype=dtype)
    assert {row.verdict for row in rows} == {"PASS"}
    assert len(rows) == len(results)
    wrong = dict(results)
    wrong["out/y"] = (np.asarray(results["out/y"], np.float64) * 1.1).astype(results["out/y"].dtype)
    rows = atlas_ref.check(case.replaced(recorded=wrong), dtype=dtype)
    verdicts = {row.tensor: row.verdict for row in rows}
    assert verdicts.pop("out/y") == "WRONG"
    assert set(verdicts.values()) == {"PASS"}


@pytest.mark.clause("TNTCASE-11")
def test_a_form_computes_the_same_and_one_that_cannot_is_refused() -> None:
    case = tnt_cases.made(tokens=11)
    a, b = (evaluate(case, form=form).tensors for form in ("sequential", "chunkwise"))
    assert_close("y", b["out/y"], a["out/y"], LOOSE)
    accumulated = {"newton_schulz": {"argument": "accumulated"}}
    other = tnt_cases.made(
        parameters={"rule": "omega", "global": {"span": 2}}, convention=accumulated
    )
    with pytest.raises(atlas_ref.CaseError, match="scan"):
        evaluate(other, form="scan")


@pytest.mark.clause("TNTCASE-8")
def test_a_new_case_has_a_state_of_a_document_that_was_before_it() -> None:
    assert tnt_cases.made().header.parameters == {
        "global": {"span": 4},
        "locals": [{"span": 2, "shard": 4}],
    }
    case = tnt_cases.made(**tnt_cases.FULL)
    assert int(case.inputs["in/state/position"]) == 6
    assert case.inputs["in/state/local1/P_keys"].shape[-2] == 2
    later = tnt_cases.made(**{**tnt_cases.FULL, "draw": 2})
    bars = {name: x.shape for name, x in later.inputs.items() if "/state_bar/" in name}
    assert {shape[-2:] for shape in bars.values()} == {(2, 3)}
    assert {name.split("/")[2] for name in bars} == {"global", "local0", "local1", "local2"}
    with pytest.raises(atlas_ref.CaseError, match="pulse: every token of a TNT writes"):
        tnt_cases.made(pulse=2)


@pytest.mark.clause("TNTCASE-6")
def test_settings_without_effect_and_features_are_told() -> None:
    local = {
        "span": 2,
        "shard": 4,
        "chunk_origin": "document",
        "projection": {"kind": "none", "own": "exclusive"},
    }
    case = tnt_cases.made(parameters={"locals": [local]}, convention={"layout": "transposed"})
    own = "parameters.locals.0"
    assert case.void.keys() == {"layout", f"{own}.projection.own", f"{own}.chunk_origin"}
    changed = {**local, "chunk_origin": "shard", "projection": {"kind": "none"}}
    header = {**case.header.plain(), "parameters": {"locals": [changed]}, "convention": "spec"}
    other = atlas_ref.make(header, case.inputs)
    assert other.void == {}
    assert_close("y", evaluate(other).tensors["out/y"], evaluate(case).tensors["out/y"], LOOSE)
    assert set(features(tnt_cases.made(**tnt_cases.FULL))) == {
        "reset",
        "heads",
        "rectangular",
        "state",
        "history",
        "resumed",
        "span",
        "window",
        "weights",
        "momentum",
        "gradient",
    }


@pytest.mark.clause("TNTCASE-3", "TNT-2")
@pytest.mark.parametrize("own", ["M0", "S0", "W_QK"])
def test_tensors_of_a_start_may_have_unlike_leading_axes(own: str) -> None:
    """One tensor of a memory's start has a matrix for each row, the others one for all rows."""
    local = {"span": 2, "shard": 3, "reset_momentum": "learned", "projection": {"kind": "learned"}}
    header, tensors = tnt_cases.some(parameters={"locals": [local]}, tokens=7)
    name = f"in/local0/{own}"
    scale = np.array([1.0, 0.5])[:, None, None]
    made = atlas_ref.make(header, tensors | {name: scale * tensors[name]})
    mixed = evaluate(made, grad=True).tensors
    for row in range(2):
        alone = {n: x[row] if x.shape[:1] == (2,) else x for n, x in tensors.items()}
        alone[name] = scale[row] * tensors[name]
        want = evaluate(atlas_ref.make(header, alone), grad=True).tensors
        assert_close("y", mixed["out/y"][row], want["out/y"], LOOSE)
        assert_close(own, mixed[f"grad/local0/{own}"][row], want[f"grad/local0/{own}"], LOOSE)
