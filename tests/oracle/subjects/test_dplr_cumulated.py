"""Kernels of rule dplr that cumulate logs of gates, declared by the case, DPLRCASE-15."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.forms.dplr import tolerance
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.inputs import round_inputs as stored
from atlas_ref.oracle.deep import functions
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Rounding
from tests.support import cumulated_chunks
from tests.support.close import EXACT, assert_close

pytestmark = pytest.mark.clause("DPLRCASE-15")

T, K, V, CHUNK = 48, 6, 5, 16


def one(log: float) -> Any:
    """Gentle gates, and one token in 20 with a log of `log`."""

    def logs(draw: Any) -> Any:
        g = -0.01 * np.abs(draw.standard_normal((2, T, K)))
        g[:, 4::20] = log
        return g

    return logs


GATES: dict[str, Any] = {
    "log-uniform": lambda draw: draw.uniform(np.log(2.0**-13), 0.0, (2, T, K)),
    "one of -10": one(-10.0),
    "one of -100": one(-100.0),
    "one of -1000": one(-1000.0),
    "one of -10000": one(-10000.0),
}


def drawn(gates: str, seed: int = 0, dtype: str = "float32", **parameters: Any) -> Case:
    """A case of KDA with keys of norm 1, and logs of gates."""
    draw = np.random.default_rng(seed)
    k, q = (draw.standard_normal((2, T, K)) for _ in range(2))
    inputs = {
        "in/k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "in/q": q / np.linalg.norm(q, axis=-1, keepdims=True),
        "in/v": draw.standard_normal((2, T, V)),
        "in/beta": draw.uniform(0.0, 1.0, (2, T)),
        "in/log_retain": GATES[gates](draw),
    }
    header = {"schema": 1, "rule": "dplr", "parameters": {"member": "kda", **parameters}}
    return stored(make(header, inputs), dtype)


def kernel(case: Case, chunk: int = CHUNK, dtype: Any = np.float32) -> dict[str, Any]:
    """Results of the chunk form with exponentials of differences of cumulated logs."""
    k, v, q, beta, logs = (
        np.asarray(case.inputs[f"in/{name}"], dtype)
        for name in ("k", "v", "q", "beta", "log_retain")
    )
    reads, memories = [], []
    for h in range(2):
        step = beta[h, :, None]
        tokens = {"k": k[h], "v": step * v[h], "q": q[h] / np.sqrt(dtype(K))}
        tokens |= {"erase_read": k[h], "erase_write": step * k[h]}
        y, M = cumulated_chunks.run(tokens, logs[h], chunk)
        reads.append(y)
        memories.append(M)
    return {"out/y": np.stack(reads), "out/M": np.stack(memories)}


def verdicts(case: Case, results: dict[str, Any]) -> dict[str, str]:
    rows = atlas_ref.check(case, source=lambda _: Answer(results))
    return {row.tensor: row.verdict for row in rows}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gates", GATES)
def test_a_kernel_that_cumulates_logs_passes_where_that_is_declared(gates: str, seed: int) -> None:
    case = drawn(gates, seed, log_chunk=CHUNK)
    assert set(verdicts(case, kernel(case)).values()) == {"PASS"}


@pytest.mark.clause("DPLRCASE-23")
@pytest.mark.parametrize("gates", ["one of -1000", "one of -10000"])
def test_it_passes_by_a_declaration_that_is_named_and_is_wrong_where_the_chunk_is_a_token(
    gates: str,
) -> None:
    case = drawn(gates)
    results = kernel(case)
    rows = atlas_ref.check(case, source=lambda _: Answer(results))
    assert {row.verdict for row in rows} == {"PASS"}
    words = "passes with parameters.log_chunk=16 declared (DPLRCASE-23)"
    assert words in {row.why for row in rows}
    # by the tolerance of the case alone it is beyond what PASS and MARGINAL allow
    bound = tolerances(case, dtype="float32")["out/y"]
    gap = results["out/y"] - evaluate(case).tensors["out/y"]
    assert np.abs(gap).max() > 4 * bound.max
    assert verdicts(drawn(gates, log_chunk=1), results)["out/y"] == "WRONG"


@pytest.mark.clause("DPLRCASE-23")
@pytest.mark.parametrize("gates", GATES)
def test_no_declaration_lets_a_mistake_pass(gates: str) -> None:
    """Step sizes or gates one token late, a kernel that overflows, and an error in float64."""
    case = drawn(gates)
    for name in ("in/beta", "in/log_retain"):
        late = np.roll(case.inputs[name], 1, axis=1)
        wrong = kernel(case.replaced(inputs={**case.inputs, name: late}))
        assert verdicts(case, wrong)["out/y"] == "WRONG", name
    right = kernel(case)
    assert verdicts(case, {**right, "out/y": np.full_like(right["out/y"], np.nan)})["out/y"] == (
        "WRONG"
    )
    # twice the declared tolerance is what PASS is by a declaration of the case, and not without it
    bound = tolerances(drawn(gates, log_chunk=128), dtype="float32")["out/y"]
    moved = {"out/y": (evaluate(case).tensors["out/y"] + 1.5 * bound.max).astype(np.float32)}
    assert verdicts(case, moved)["out/y"] != "PASS"
    wide = {"out/y": evaluate(case).tensors["out/y"] * (1 + 1e-7)}
    assert verdicts(case, wide)["out/y"] == "WRONG"


@pytest.mark.parametrize("gates", GATES)
def test_a_mistake_is_wrong_under_the_declaration_too(gates: str) -> None:
    """Step sizes one token late, gates one token late, and a log gate that is off by a thousandth."""
    case = drawn(gates, log_chunk=CHUNK)
    for name, change in (
        ("in/beta", lambda x: np.roll(x, 1, axis=1)),
        ("in/log_retain", lambda x: np.roll(x, 1, axis=1)),
        ("in/log_retain", lambda x: np.where(x > -1.0, x - 0.05, x)),
    ):
        wrong = case.replaced(inputs={**case.inputs, name: change(case.inputs[name])})
        assert verdicts(case, kernel(wrong))["out/y"] == "WRONG", name


@pytest.mark.parametrize("gates", GATES)
def test_the_tolerance_is_within_a_few_times_of_what_dplr_16_states(gates: str) -> None:
    """Measured on the case, and stated from the largest cumulated log alone."""
    case = drawn(gates, log_chunk=CHUNK)
    ours = evaluate(case).tensors
    stated = tolerance.of_cumulated_logs(case.inputs["in/log_retain"], CHUNK)
    for name, bound in tolerances(case, dtype="float32").items():
        size = float(np.sqrt(np.mean(ours[name] ** 2)))
        assert bound.rms / size < 2 * stated, name
        off = np.linalg.norm(kernel(case)[name] - ours[name]) / np.linalg.norm(ours[name])
        assert off < stated, name


@pytest.mark.parametrize("channels", [True, False], ids=["channels", "one number"])
@pytest.mark.parametrize("name", ["in/log_retain", "in/retain"])
def test_gates_are_exponentials_of_differences_of_sums_in_float32(
    name: str, channels: bool
) -> None:
    """By hand: sums start anew at a reset and at each chunk, and a silent token adds nothing."""
    declared, plain = drawn("one of -10", log_chunk=5), drawn("one of -10")
    active, reset = (np.arange(T) % 4 != 2), np.isin(np.arange(T), (7, 30))
    given = np.asarray(
        plain.inputs["in/log_retain"] if channels else plain.inputs["in/log_retain"][..., 0]
    )
    given = given.astype(np.float32) if name == "in/log_retain" else np.exp(given, dtype=np.float32)
    logs = given if name == "in/log_retain" else np.log(given)
    gates, since, total = [], 0, np.float32(0)
    for t in range(T):
        since = 0 if reset[t] or since == 5 else since
        before = total if since else np.float32(0)
        total = before + logs[:, t] if active[t] else before + 0 * logs[:, t]
        gates.append(np.exp(total - before))
        since += 1
    others = {
        each: np.asarray(x, np.float32)
        for each, x in plain.inputs.items()
        if each != "in/log_retain"
    }
    others |= {"in/active": active.astype(np.uint8), "in/reset": reset.astype(np.uint8)}
    rounding = Rounding(PLAIN, functions.same, functions.same, None)
    got = SUBJECTS["dplr"].plain({**others, name: given}, declared, rounding)
    by_hand = {**others, "in/retain": np.stack(gates, axis=1)}
    for each, want in SUBJECTS["dplr"].plain(by_hand, plain, rounding).items():
        assert_close(each, got[each], want, EXACT)


def test_results_of_the_rule_are_the_same_whatever_is_declared() -> None:
    case, plain = drawn("one of -1000", log_chunk=CHUNK), drawn("one of -1000")
    for name, value in evaluate(plain).tensors.items():
        assert_close(name, evaluate(case).tensors[name], value, EXACT)


def test_a_gate_of_0_is_refused_and_without_gates_the_declaration_is_void() -> None:
    case = drawn("one of -100", log_chunk=4)
    header, logs = case.header.plain(), np.array(case.inputs["in/log_retain"])
    logs[1, 3, 2] = -np.inf
    words = (
        r"in/log_retain: entries must not be that of a gate of 0 under parameters\.log_chunk = 4"
    )
    with pytest.raises(atlas_ref.CaseError, match=words + r", found -inf at \(1, 3, 2\)"):
        make(header, {**case.inputs, "in/log_retain": logs})
    others = {name: x for name, x in case.inputs.items() if name != "in/log_retain"}
    with pytest.raises(atlas_ref.CaseError, match=r"in/retain: entries must not be that"):
        make(header, {**others, "in/retain": np.exp(logs)})
    void = evaluate(make(header, others)).void
    assert void == {"parameters.log_chunk": "there is no tensor of gates"}
    with pytest.raises(atlas_ref.CaseError, match=r"parameters\.log_chunk"):
        make({**header, "parameters": {"member": "kda", "log_chunk": 0}}, dict(case.inputs))
