"""The format in which a program keeps the state of rule dplr, declared by the case, DPLRCASE-14."""

from __future__ import annotations

from typing import Any

import jsonschema
import ml_dtypes
import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.inputs import round_inputs as stored
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.report.nearest import Nearest
from atlas_ref.oracle.schema.schema import case_schema
from tests.support.close import ANALYTIC, EXACT, assert_close

pytestmark = pytest.mark.clause("DPLRCASE-14")

KINDS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
T = 24
SIZES = {"tokens": T, "d_in": 6, "d_out": 5, "heads": 2, "seed": 5}


def drawn(**parameters: Any) -> Case:
    """A case of KDA in float32 with a first memory of numbers of bfloat16."""
    case = new(Request(rule="dplr", draw=1, parameters={"member": "kda", **parameters}, **SIZES))
    M = np.random.default_rng(3).standard_normal((2, 5, 6)).astype(ml_dtypes.bfloat16)
    return stored(case.replaced(inputs={**case.inputs, "in/M0": M.astype(np.float64)}), "float32")


def kernel(case: Case, kept: Any, every: int, dtype: Any = np.float32) -> dict[str, Any]:
    """KDA token by token, as a kernel that keeps its state in `kept` between blocks of tokens."""
    k, v, q, w, beta, M = (
        np.asarray(case.inputs[f"in/{name}"], dtype)
        for name in ("k", "v", "q", "retain", "beta", "M0")
    )
    reads = []
    for t in range(T):
        M = w[:, t, None, :] * M
        found = np.einsum("hoi,hi->ho", M, k[:, t])
        change = beta[:, t, None] * (v[:, t] - found)
        M = M + change[:, :, None] * k[:, t, None, :]
        after = M
        if (t + 1) % every == 0 or t + 1 == T:
            M = M.astype(kept).astype(dtype)
        reads.append(np.einsum("hoi,hi->ho", after, q[:, t]) / np.sqrt(dtype(6)))
    return {"out/y": np.stack(reads, axis=1), "out/M": M}


def verdicts(case: Case, results: dict[str, Any], **settings: Any) -> dict[str, str]:
    rows = atlas_ref.check(case, source=lambda _: Answer(results), **settings)
    return {row.tensor: row.verdict for row in rows}


@pytest.mark.parametrize("every", [1, 4, 7, T])
@pytest.mark.parametrize("kept", ["bfloat16", "float16"])
def test_a_kernel_that_keeps_its_state_as_declared_passes_and_fails_undeclared(
    kept: str, every: int
) -> None:
    declared, plain = drawn(state_dtype=kept, state_every=every), drawn()
    results = kernel(plain, KINDS[kept], every)
    assert set(verdicts(declared, results).values()) == {"PASS"}
    assert verdicts(plain, results)["out/M"] == "WRONG"
    assert set(verdicts(plain, kernel(plain, np.float32, 1)).values()) == {"PASS"}


@pytest.mark.clause("DPLRCASE-24")
@pytest.mark.parametrize(("kept", "every"), [("bfloat16", 1), ("float16", 1), ("bfloat16", 16)])
def test_a_state_in_a_narrow_format_is_named(kept: str, every: int) -> None:
    case = drawn()
    results = kernel(case, KINDS[kept], every)
    done = checked(case, source=lambda _: Answer(results))
    assert {row.tensor: row.verdict for row in done.rows}["out/M"] == "WRONG"
    assert Nearest().words(done, done.rows) == f"passes with --state-dtype {kept}"


@pytest.mark.clause("DPLRCASE-24")
def test_an_error_of_the_size_of_a_format_is_not_named_after_it() -> None:
    """Nor is a mistake of a kernel that rounds as well."""
    case = drawn()
    near = {name: x * np.float32(1.001) for name, x in kernel(case, np.float32, 1).items()}
    late = case.replaced(inputs={**case.inputs, "in/beta": np.roll(case.inputs["in/beta"], 1, 1)})
    for results in (near, kernel(late, ml_dtypes.bfloat16, 1)):
        done = checked(case, source=lambda _, given=results: Answer(given))
        assert "state" not in Nearest().words(done, done.rows)
    stated = checked(
        case, source=lambda _: Answer(kernel(case, np.float16, 1)), state_dtype="float32"
    )
    assert "state" not in Nearest().words(stated, stated.rows)


def test_a_kernel_that_rounds_more_often_than_declared_is_wrong_in_its_reads() -> None:
    """What it rounds between the declared tokens is no rounding of the declared kernel."""
    seldom = drawn(state_dtype="bfloat16", state_every=T)
    results = kernel(seldom, ml_dtypes.bfloat16, 1)
    assert verdicts(seldom, results)["out/y"] == "WRONG"
    often = drawn(state_dtype="bfloat16")
    assert set(verdicts(often, results).values()) == {"PASS"}


def test_a_mistake_is_wrong_under_a_declared_format_too() -> None:
    case = drawn(state_dtype="bfloat16", state_every=8)
    late = case.replaced(inputs={**case.inputs, "in/beta": np.roll(case.inputs["in/beta"], 1, 1)})
    found = verdicts(case, kernel(late, ml_dtypes.bfloat16, 8))
    assert found == {"out/y": "WRONG", "out/M": "WRONG"}


def test_the_option_stands_before_the_declaration() -> None:
    case = drawn(state_dtype="bfloat16")
    results = kernel(case, ml_dtypes.bfloat16, 1)
    assert verdicts(case, results)["out/M"] == "PASS"
    assert verdicts(case, results, state_dtype="float32")["out/M"] == "WRONG"
    bounds = [
        tolerances(case, dtype="float32", **more)["out/M"].max
        for more in (
            {},
            {"state_dtype": "bfloat16"},
            {"state_dtype": "float16"},
            {"state_dtype": "float32"},
        )
    ]
    assert bounds[0] == bounds[1] > bounds[2] > 4 * bounds[3]


def test_tolerances_follow_how_often_the_state_is_rounded() -> None:
    of = [
        tolerances(drawn(state_dtype="bfloat16", state_every=n), dtype="float32")["out/y"].rms
        for n in (1, 4, 12, T)
    ]
    assert of == sorted(of, reverse=True)
    assert of[0] > 1.3 * of[1] > 1.3 * of[2]
    without = tolerances(drawn(), dtype="float32")["out/y"].rms
    assert of[3] > without


def literal(case: Case, every: int) -> dict[str, Any]:
    """The members' loop in float64 by hand: two steps a token, silent tokens, resets."""
    x = {name.removeprefix("in/"): np.asarray(value) for name, value in case.inputs.items()}
    first = M = x["M0"]
    reads, since = [], 0
    for t in range(T):
        if x["reset"][t]:
            M, since = first, 0
        for r in (2 * t, 2 * t + 1) if x["active"][t] else ():
            M = M * x["retain"][:, t, None, :] if r % 2 == 0 else M
            found = np.einsum("hoi,hi->ho", M, x["k"][:, r])
            change = x["beta"][:, r, None] * (x["v"][:, r] - found)
            M = M + change[:, :, None] * x["k"][:, r, None, :]
        since += 1
        if since % every == 0 or t + 1 == T:
            M = M.astype(ml_dtypes.bfloat16).astype(np.float64)
        reads.append(np.einsum("hoi,hi->ho", M, x["q"][:, t]) / np.sqrt(6.0))
    return {"out/y": np.stack(reads, axis=1), "out/M": M}


@pytest.mark.parametrize("every", [1, 3, 5, T])
def test_the_state_is_rounded_behind_every_so_many_tokens_of_a_packed_sequence(every: int) -> None:
    settings = {"state_dtype": "bfloat16", "state_every": every, "steps": 2}
    request = Request(
        rule="dplr", parameters={"member": "kda", **settings}, pulse=3, reset=10, **SIZES
    )
    case = new(request)
    M = np.random.default_rng(3).standard_normal((2, 5, 6))
    case = case.replaced(inputs={**case.inputs, "in/M0": M})
    inputs = {name: np.asarray(value) for name, value in case.inputs.items()}
    got = ensemble.evaluate(case, inputs, PLAIN, state_dtype="bfloat16")
    for name, want in literal(case, every).items():
        assert_close(name, got[name], want, ANALYTIC)


def test_results_of_the_rule_are_the_same_whatever_is_declared() -> None:
    case, plain = drawn(state_dtype="float16", state_every=3), drawn()
    for name, value in evaluate(plain).tensors.items():
        assert_close(name, evaluate(case).tensors[name], value, EXACT)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"state_dtype": "float8"}, r"parameters\.state_dtype"),
        ({"state_dtype": "float64"}, r"parameters\.state_dtype"),
        ({"state_every": 0}, r"parameters\.state_every"),
        ({"state_every": 1.5}, r"parameters\.state_every"),
    ],
    ids=str,
)
def test_another_format_or_count_is_refused_by_the_reader_and_the_schema(
    parameters: dict[str, Any], message: str
) -> None:
    case = drawn()
    header = case.header.plain()
    header["parameters"] |= parameters
    with pytest.raises(atlas_ref.CaseError, match=message):
        make(header, dict(case.inputs))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(header, case_schema())
    header["parameters"] |= {"state_dtype": "bfloat16", "state_every": 64}
    jsonschema.validate(header, case_schema())


def with_second(case: Case, kept: Any) -> dict[str, Any]:
    """momentum_delta, normalised reads or preconditioned KDA, whose states are in `kept`."""
    x = {name[3:]: np.asarray(value, np.float32) for name, value in case.inputs.items()}
    k, v, q, scale = x["k"], x["v"], x["q"], np.float32(6**-0.5)
    M, S, z, A = (np.zeros((2, *shape), np.float32) for shape in ((5, 6), (5, 6), (6,), (6,)))
    member, reads = (case.header.parameters or {})["member"], []
    for t in range(T):
        own = k[:, t]
        if member == "momentum_delta":
            error = np.einsum("hoi,hi->ho", M, x["erase_key"][:, t]) - v[:, t]
            change = (x["eta"][:, t, None] * error)[:, :, None] * own[:, None, :]
            S = np.exp(x["log_momentum"][:, t])[:, None, None] * S + change
            M = M * x["retain"][:, t, None, :] - x["beta"][:, t, None, None] * S
        elif member == "precond_kda":
            A = np.exp(x["log_retain_precond"][:, t, None]) * A
            A = A + x["beta_precond"][:, t, None] * own * own
            A = A.astype(kept).astype(np.float32)
            r = np.log(A + np.float32(1e-6)) + np.float32(0.2)
            M = M * x["retain"][:, t, None, :]
            error = x["beta"][:, t, None] * (v[:, t] - np.einsum("hoi,hi->ho", M, own))
            along = own * np.float32(1.5) ** (-r / (1 + np.abs(r)))
            M = M + error[:, :, None] * along[:, None, :]
        else:
            z, M = z + own, M + v[:, t, :, None] * own[:, None, :]
        M, S, z = (state.astype(kept).astype(np.float32) for state in (M, S, z))
        y = scale * np.einsum("hoi,hi->ho", M, q[:, t])
        share = scale * np.sum(z * q[:, t], axis=-1, keepdims=True) + np.float32(1e-10)
        reads.append(y / share if member == "linear_attn_normalized" else y)
    states = {"out/M": M, "out/S": S, "out/z": z, "out/A": A}
    own_states = {"momentum_delta": "MS", "precond_kda": "MA", "linear_attn_normalized": "Mz"}
    kept_states = {name: states[name] for name in (f"out/{each}" for each in own_states[member])}
    return {"out/y": np.stack(reads, axis=1), **kept_states}


@pytest.mark.clause("DPLRCASE-14", "DPLR-19", "DPLR-20", "DPLR-21")
@pytest.mark.parametrize("member", ["momentum_delta", "precond_kda", "linear_attn_normalized"])
def test_a_second_state_in_a_narrow_format_passes_where_it_is_declared(member: str) -> None:
    def case(**declared: Any) -> Case:
        request = Request(rule="dplr", draw=1, parameters={"member": member, **declared}, **SIZES)
        return stored(new(request), "float32")

    declared, plain = case(state_dtype="bfloat16"), case()
    narrow = with_second(declared, ml_dtypes.bfloat16)
    assert set(verdicts(declared, narrow).values()) == {"PASS"}
    assert "WRONG" in verdicts(plain, narrow).values()
    assert set(verdicts(plain, with_second(plain, np.float32)).values()) == {"PASS"}
