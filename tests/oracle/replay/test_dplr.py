"""Traces of cases of rule dplr against literal loops, and the first wrong op of a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr import parameters
from atlas_ref.oracle.dplr.program import PROGRAM
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.program.derive.ops import Graph
from atlas_ref.oracle.program.run import exact, run
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.sequence import traced_of
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.subjects.dplr import SUBJECT
from tests.support.close import ANALYTIC, assert_close
from tests.support.dplr_cases import of_case
from tests.support.replayed import assert_first_wrong, assert_listed
from tests.truth import dplr_trace as literal


def made(member: str | None = None, *, logs: bool = False, events: bool = True, **fields: Any):
    """A case of two key heads, with a first memory; silent tokens and a reset unless told."""
    chosen = fields.pop("parameters", {}) | ({} if member is None else {"member": member})
    start = fields.pop("start", True)
    sizes = {"tokens": 5, "d_in": 3, "d_out": 3, "heads": 2, "seed": 5, "cotangent": True}
    sizes |= {"pulse": 2, "reset": 3} if events else {}
    case = new(Request(rule="dplr", draw=1, parameters=chosen, **sizes | fields))
    x = dict(case.inputs)
    if events:
        x["in/active"] = np.array([1, 1, 0, 1, 1], np.uint8)
    draw = np.random.default_rng(6)
    shape = (*x["in/v"].shape[:-2], x["in/v"].shape[-1], x["in/k"].shape[-1])
    if parameters.parse(case.header).state_layout == "(d_in, d_out)":
        shape = (*shape[:-2], shape[-1], shape[-2])
    if start:
        x |= {"in/M0": draw.standard_normal(shape), "in/M_bar": draw.standard_normal(shape)}
    if start and parameters.parse(case.header).of.second == "z":
        sums = (*x["in/v"].shape[:-2], x["in/k"].shape[-1])
        x |= {"in/z0": draw.uniform(0.0, 1.0, sums), "in/z_bar": draw.standard_normal(sums)}
    if start and parameters.parse(case.header).of.second == "S":
        x |= {name: draw.standard_normal(shape) for name in ("in/S0", "in/S_bar")}
    if start and parameters.parse(case.header).of.second == "A":
        squares = (*x["in/k"].shape[:-2], x["in/k"].shape[-1])
        x |= {"in/A0": draw.uniform(0.0, 1.0, squares), "in/A_bar": draw.standard_normal(squares)}
    if "in/retain" in x:
        x["in/retain"] = draw.uniform(0.3, 0.9, x["in/retain"].shape)
    if logs:
        x["in/log_retain"] = np.log(x.pop("in/retain"))
    return make(case.header.plain(), x)


def by_value(member: str | None, **fields: Any) -> Any:
    """A case whose erase has a factor for each value."""
    case = made(member, **fields)
    factors = np.random.default_rng(8).uniform(0.2, 1.0, case.inputs["in/v"].shape)
    name = "in/erase_scale" if member is None else "in/beta"
    return make(case.header.plain(), {**case.inputs, name: factors})


KEYS = {"k_norm": "l2", "norm_eps": 0.01}
CASES = {
    "rule": made(d_out=2, parameters={"state_layout": "(d_in, d_out)"}),
    "kda": made("kda", parameters={"groups": 2, **KEYS}, logs=True),
    "qwen3_next": made("qwen3_next", parameters={"groups": 2}),
    "comba": made("comba_decay_after_erase"),
    "product": made("gated_delta_product", parameters={"steps": 2, **KEYS}),
    "rwkv6": made("rwkv6"),
    "rwkv7": made("rwkv7"),
    "gdn2": made("gdn2", d_out=4),
    "dplr": made("dplr"),
    "delta": made("delta"),
    "values": by_value("delta", d_out=4),
    "rows": by_value(None, parameters={"decay": "before_error"}),
    "retention": made("retention"),
    "robin": made("precond_kda", parameters={"groups": 2, "group_order": "round_robin"}),
    "written": made("kda", parameters={"masked_read": "written", **KEYS}, logs=True),
    "moved": made("momentum_delta", parameters={"masked_read": "written"}),
    "summed": made("linear_attn_normalized", parameters={"masked_read": "written"}),
    "keyed": made("precond_kda", parameters={"masked_read": "written"}),
    "zero": made("rwkv6", parameters={"masked_read": "zero"}),
    "squares": made("precond_kda", parameters={"groups": 2, **KEYS}),
    "momentum": made("momentum_delta", parameters={"groups": 2, **KEYS}, logs=True, d_out=2),
    "turned": made(
        "momentum_delta",
        parameters={"decay": "before_error", "state_layout": "(d_in, d_out)"},
        d_out=2,
    ),
    "normalised": made("linear_attn_normalized", parameters={"groups": 2, "steps": 2, **KEYS}),
    "plain": made("kda", parameters={"state_layout": "(d_in, d_out)"}, events=False, start=False),
}
NUDGED = ("rule", "product", "normalised", "momentum")
OPS = [(name, op) for name in CASES for op, _, _ in traced_of(CASES[name]).ops(CASES[name])]


def turned(case: Any, op: str, value: Any) -> Any:
    """A matrix from the layout of the case to (d_out, d_in), or back."""
    layout = parameters.parse(case.header).state_layout
    matrix = op.rpartition("/")[2] in PROGRAM.matrices and layout == "(d_in, d_out)"
    return value.swapaxes(-1, -2) if matrix else value


def planted(case: Any, mistake: str = "", kind: Any = np.float32) -> dict[str, Any]:
    """The trace of the loop of the tests with one mistake."""
    shapes = {n[6:]: turned(case, n[6:], z).shape for n, z in trace(case).items()}
    found = literal.collected(*of_case(case), shapes, mistake)
    return {f"trace/{op}": turned(case, op, z).astype(kind) for op, z in found.items()}


@pytest.mark.clause("DPLRCASE-11", "REPLAY-1", "REPLAY-7")
@pytest.mark.parametrize("name", CASES)
def test_every_op_and_its_adjoint_are_those_of_loops(name: str) -> None:
    case = CASES[name]
    x, own = of_case(case)
    bars = {"y": x["y_bar"], "M": x.get("M_bar", 0.0), "z": x.get("z_bar", 0.0)}
    bars |= {name: x.get(f"{name}_bar", 0.0) for name in ("A", "S")}
    recorded, wanted = trace(case, grad=True), planted(case, kind=float)
    assert set(recorded) == set(wanted) | {n.replace("trace/", "trace_grad/") for n in wanted}
    for op in (n[6:] for n in wanted):
        assert_close(op, recorded[f"trace/{op}"], wanted[f"trace/{op}"], ANALYTIC)
        got = turned(case, op, recorded[f"trace_grad/{op}"])
        assert_close(op, got, literal.adjoint(x, own, bars, op, got.shape), ANALYTIC)
    assert_close("y", recorded["trace/y"], evaluate(case).tensors["out/y"], ANALYTIC)


@pytest.mark.clause("DPLRCASE-11", "REPLAY-2")
@pytest.mark.parametrize("name", CASES)
def test_the_listed_ops_are_those_that_are_computed(name: str) -> None:
    assert_listed(CASES[name])


@pytest.mark.clause("DPLRCASE-11")
def test_a_case_without_an_active_token_has_the_memory_and_reads_alone() -> None:
    case = CASES["kda"]
    silent = make(case.header.plain(), {**case.inputs, "in/active": np.zeros(5, np.uint8)})
    assert [op for op, _, _ in traced_of(silent).ops(silent)] == ["k", "gate", "M", "y"]
    M = trace(silent)["trace/M"]
    assert np.array_equal(M, np.repeat(case.inputs["in/M0"][:, None], 5, axis=1))


@pytest.mark.clause("DPLRCASE-11", "REPLAY-2")
@pytest.mark.parametrize(
    ("name", "op", "inputs"),
    [
        ("keyed", "A", ("A[t-1]",)),
        ("keyed", "written_key", ("A", "in/k")),
        ("summed", "z", ("z[t-1]",)),
        ("rwkv6", "y", ("M[t-1]", "in/q")),
    ],
)
def test_where_no_token_is_active_nothing_of_a_write_is_an_input(
    name: str, op: str, inputs: tuple[str, ...]
) -> None:
    """But where a masked token reads as if it had been written: that is no case of these."""
    x = {**CASES[name].inputs, "in/active": np.zeros(5, np.uint8)}
    header = CASES[name].header.plain()
    header["parameters"] = {**header["parameters"], "masked_read": "memory"}
    case = make(header, x)
    found = {each: sources for each, sources, _ in traced_of(case).ops(case)}
    assert found[op] == inputs


@pytest.mark.clause("DPLRCASE-11", "REPLAY-2")
def test_an_op_has_the_inputs_that_the_loop_hands_it() -> None:
    """A mistake of the loop, which takes another key, is another input of the op that reads it."""
    graph, case = Graph(), CASES["comba"]
    settings, rounding = parameters.parse(case.header), exact(PLAIN)
    found = [each for each in SUBJECT.searched.departures(case) if each.name == "erase of key"]
    hooks = {"take": graph.take, "label": graph.label}
    run(PROGRAM, settings, case.inputs, rounding, found, **hooks)
    assert graph.sources("erase_read") == ("in/k",)
    assert {op: given for op, given, _ in traced_of(case).ops(case)}["erase_read"] == (
        "in/erase_key",
    )


@pytest.mark.clause("DPLRCASE-12", "REPLAY-12", "REPLAY-23")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_a_right_trace_and_its_adjoints_pass(name: str, dtype: str) -> None:
    case = CASES[name]
    for row in replay(case, trace(case, dtype=dtype, grad=True), dtype=dtype):
        assert (row.verdict, row.gap) == ("PASS", ()), row


@pytest.mark.clause("DPLRCASE-12", "REPLAY-11", "REPLAY-15")
@pytest.mark.parametrize(("name", "op"), [(n, op) for n, op in OPS if n in NUDGED])
def test_an_op_that_is_off_is_the_first_wrong_one(name: str, op: str) -> None:
    assert_first_wrong(CASES[name], op)


BONUS = "as if the bonus was added to a read after the write"
MOVED = "as if the memory moved by the momentum of before its token"
PLANTED = [
    ("plain", "other order", "found", 1, "parameters.decay=after_error"),
    ("kda", "other order", "found", 0, "parameters.decay=after_error"),
    ("kda", "bare key", "erase_read", 0, "as if the erase read with the key without its norm"),
    ("plain", "erase without beta", "change", 1, "as if the erase had no in/beta"),
    ("kda", "write without beta", "change", 0, "as if the write had no in/beta"),
    ("plain", "gate on rows", "decayed", 1, "as if the gate was on value channels"),
    ("plain", "scale twice", "y", 0, "as if the scale of a query was applied twice"),
    ("product", "gate at steps", "step1/found", 0, "as if every step of a token decayed"),
    ("rwkv6", "bonus late", "y", 0, BONUS),
    (
        "squares",
        "key as it is",
        "written_key",
        0,
        "as if pairs were written along keys as they are",
    ),
    ("momentum", "momentum late", "M", 0, MOVED),
    ("momentum", "momentum average", "S", 0, "as if S was a running average"),
    ("kda", "round robin", "erase_read", 0, "as if value heads took key heads round robin"),
]


@pytest.mark.clause("DPLRCASE-12", "REPLAY-15", "REPLAY-16")
@pytest.mark.parametrize(("name", "mistake", "op", "token", "words"), PLANTED)
def test_a_planted_mistake_is_named_at_its_token(
    name: str, mistake: str, op: str, token: int, words: str
) -> None:
    first = first_wrong(replay(CASES[name], planted(CASES[name], mistake)))
    assert first is not None
    assert (first.op, first.token, first.verdict) == (op, token, "WRONG")
    assert words in first.nearest.split(" or ")


@pytest.mark.clause("DPLRCASE-12", "REPLAY-16")
def test_transposed_states_are_named_by_their_layout() -> None:
    case = CASES["plain"]
    mine = planted(case)
    mine |= {name: mine[name].swapaxes(-1, -2) for name in ("trace/M", "trace/decayed")}
    first = first_wrong(replay(case, mine))
    assert first is not None
    assert (first.op, first.token) == ("M", 0)
    assert first.nearest == "parameters.state_layout=(d_out, d_in)"


@pytest.mark.clause("DPLRCASE-12", "REPLAY-16", "REPLAY-23")
@pytest.mark.parametrize(
    ("drop", "op", "words"),
    [
        ("gate", "trace_grad/gate", "as if no gradient went through the gate"),
        ("found", "trace_grad/decayed", "as if no gradient went through what the erase found"),
    ],
)
def test_a_dropped_part_of_the_backward_is_named(drop: str, op: str, words: str) -> None:
    """A backward by hand: what a later token finds, or the gate, has no adjoint."""
    case = CASES["plain"]
    mine = trace(case, grad=True)
    x, own = of_case(case)
    if drop == "gate":
        mine["trace_grad/gate"] = np.zeros_like(mine["trace_grad/gate"])
    else:
        mine["trace_grad/M"], mine["trace_grad/decayed"] = backward_without_erase(x, own)
        del mine["trace_grad/erase_read"], mine["trace_grad/change"], mine["trace_grad/found"]
        del mine["trace_grad/gate"]
    first = first_wrong(replay(case, mine))
    assert first is not None
    assert (first.op, first.verdict) == (op, "WRONG")
    assert first.token == 4
    assert words in first.nearest.split(" or ")


def backward_without_erase(x: Any, own: Any) -> tuple[Any, Any]:
    """Adjoints of memories and decayed memories (H, T, d_in, d_out), the erase left out."""
    heads, T, d_in = x["q"].shape
    M_bar = np.zeros((heads, T, d_in, x["v"].shape[-1]))
    decayed_bar = M_bar.copy()
    for h in range(heads):
        carry = np.zeros(M_bar.shape[2:])
        for t in reversed(range(T)):
            carry = carry + own.scale * np.outer(x["q"][h, t], x["y_bar"][h, t])
            M_bar[h, t] = decayed_bar[h, t] = carry
            carry = x["retain"][h, t][:, None] * carry
    return M_bar, decayed_bar


@pytest.mark.clause("DPLRCASE-12", "REPLAY-9", "REPLAY-14", "REPLAY-17")
def test_the_command_names_the_first_wrong_op(cli: Any, tmp_path: Any) -> None:
    case = CASES["plain"]
    file, mine = tmp_path / "case.safetensors", tmp_path / "mine.safetensors"
    atlas_ref.save(file, case.header, case.inputs)
    assert cli("eval", file, "-o", mine, "--trace", "--grad").code == 0
    assert cli("replay", file, "--trace", mine).code == 0
    some = {n: planted(case, "other order")[n] for n in ("trace/M", "trace/y")}
    atlas_ref.save(mine, case.header, some)
    ran = cli("replay", file, "--trace", mine, "--no-nearest")
    assert ran.code == 1
    assert "token 1, M, index" in ran.out
    assert "gate, decayed, erase_read, found, change: not recorded" in ran.out
    with pytest.raises(atlas_ref.CaseError, match="trace/S: not an op of this case"):
        replay(case, {"trace/S": mine})
