"""Mistakes of rule dplr that are tried last: each is named by what a program by hand returns."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.readings.early import first_wrong
from atlas_ref.oracle.identify.readings.judge import Judge
from atlas_ref.oracle.identify.readings.nodes import Node, observe_case
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.report.nearest import Nearest
from atlas_ref.oracle.report.report import Run
from atlas_ref.oracle.subjects.dplr import SUBJECT
from tests.oracle.identify.test_dplr_readings import CASES, planted

SEARCHED = SUBJECTS["dplr"].searched

T, K, V, H = 36, 3, 2, 3


def drawn(member: str = "kda", *, resets: tuple[int, ...] = (), **fields: Any) -> Case:
    """A case with a first memory and gates that leave something of old tokens."""
    sizes = {"tokens": T, "d_in": K, "d_out": V, "heads": H, "seed": 4, "cotangent": True} | fields
    case = new(Request(rule="dplr", draw=1, parameters={"member": member}, **sizes))
    draw, x = np.random.default_rng(7), dict(case.inputs)
    lead, d_in, d_out = x["in/v"].shape[:-2], x["in/k"].shape[-1], x["in/v"].shape[-1]
    x["in/retain"] = draw.uniform(0.8, 0.99, x["in/retain"].shape)
    x["in/M0"] = draw.standard_normal((*lead, d_out, d_in))
    if member == "momentum_delta":
        x["in/S0"] = draw.standard_normal(x["in/M0"].shape)
    if resets:
        x["in/reset"] = np.isin(np.arange(sizes["tokens"]), resets).astype(np.uint8)
    return make(case.header.plain(), x)


KDA, MOMENTUM, SQUARE = drawn(), drawn("momentum_delta"), drawn(d_out=K)
PACKED, PUSHED = drawn(resets=(9, 20)), drawn("momentum_delta", resets=(9, 20))
STATES = ("M0", "S0")


def tensor(case: Case, name: str) -> Any:
    return np.asarray(case.inputs[f"in/{name}"])


def part(case: Case, begin: int, end: int, **states: Any) -> dict[str, Any]:
    """Results of tokens alone, from other states than the case's where they are given."""
    inputs = {}
    for name, x in case.inputs.items():
        bare = name.removeprefix("in/")
        if bare in STATES or bare.endswith("_bar") or bare == "reset":
            continue
        axis = 1 if x.ndim > 1 and x.shape[1] == T else 0
        inputs[name] = np.take(x, range(begin, end), axis=axis)
    for name in STATES:
        if f"in/{name}" in case.inputs:
            inputs[f"in/{name}"] = states.get(name, tensor(case, name))
    return planted(make(case.header.plain(), inputs))


def joined(parts: list[dict[str, Any]], **last: Any) -> dict[str, Any]:
    return {**parts[-1], "y": np.concatenate([each["y"] for each in parts], axis=1), **last}


def lost(case: Case, *names: str) -> dict[str, Any]:
    """Calls of 16 tokens that lose some of the states."""
    parts = [part(case, 0, 16)]
    for begin in (16, 32):
        states = {f"{n}0": parts[-1][n] for n in ("M", "S") if n in parts[-1]}
        states |= {f"{n}0": np.zeros_like(states[f"{n}0"]) for n in names}
        parts.append(part(case, begin, min(begin + 16, T), **states))
    return joined(parts)


def again(case: Case) -> dict[str, Any]:
    return joined([part(case, begin, min(begin + 16, T)) for begin in (0, 16, 32)])


def narrow(case: Case) -> dict[str, Any]:
    parts, M = [], tensor(case, "M0")
    for begin in (0, 16, 32):
        parts.append(part(case, begin, min(begin + 16, T), M0=M))
        M = parts[-1]["M"].astype(ml_dtypes.bfloat16).astype(np.float64)
    return joined(parts, M=M)


def seen_back(case: Case) -> dict[str, Any]:
    """Chunks of 16 that see the chunk before them."""
    last = part(case, 16, T, M0=np.zeros((H, V, K)))
    first = part(case, 0, 32)
    return {"y": np.concatenate([first["y"], last["y"][:, 16:]], axis=1), "M": last["M"]}


def window(case: Case, count: int) -> dict[str, Any]:
    """Reads of the last tokens alone."""
    reads, found = [], {}
    for t in range(T):
        since = max(0, t - count + 1)
        states = {"M0": np.zeros((H, V, K))} if since else {}
        found = part(case, since, t + 1, **states)
        reads.append(found["y"][:, -1])
    return {**found, "y": np.stack(reads, axis=1)}


def late(case: Case) -> dict[str, Any]:
    """Chunks of 16 that start from the state of the chunk before."""
    first = part(case, 0, 16)
    second = part(case, 16, 32)
    return joined([first, second, part(case, 32, T, M0=first["M"])])


def padded(case: Case, gate: float | None) -> dict[str, Any]:
    """The memory after twelve copies of the last token, under a gate of their own or its gate."""
    found, x = planted(case), {}
    for name, value in case.inputs.items():
        bare = name.removeprefix("in/")
        if bare in STATES or bare.endswith("_bar"):
            continue
        more = np.repeat(value[:, -1:], 12, axis=1)
        if bare == "retain" and gate is not None:
            more = np.full_like(more, gate)
        x[name] = np.concatenate([value, more], axis=1)
    x["in/M0"] = tensor(case, "M0")
    return {**found, "M": planted(make(case.header.plain(), x))["M"]}


def sequences(case: Case, **states: Any) -> dict[str, Any]:
    """Packed sequences, each with states of its own: (begin, results before) -> state."""
    parts: list[dict[str, Any]] = []
    for begin, end in ((0, 9), (9, 20), (20, T)):
        entered = {n: f(begin, parts[-1]) for n, f in states.items()} if parts else {}
        parts.append(part(case, begin, end, **entered))
    return joined(parts)


def other(case: Case, **tensors: Any) -> dict[str, Any]:
    return planted(case, **tensors)


def swapped(case: Case) -> dict[str, Any]:
    """The delta rule with k - M^T v in the place of v - M k."""
    x = {n.removeprefix("in/"): np.asarray(v) for n, v in case.inputs.items()}
    M, reads = x["M0"], []
    for t in range(T):
        M = M * x["retain"][:, t, None, :]
        error = x["k"][:, t] - np.einsum("hoi,ho->hi", M, x["v"][:, t])
        M = M + np.einsum("h,ho,hi->hoi", x["beta"][:, t], error, x["k"][:, t])
        reads.append(np.einsum("hoi,hi->ho", M, x["q"][:, t]) / np.sqrt(K))
    return {"y": np.stack(reads, axis=1), "M": M}


def rolled(x: Any, start: int = 0) -> Any:
    return np.concatenate([x[:, :start], np.roll(x, 1, axis=0)[:, start:]], axis=1)


def scaled(case: Case, name: str, factor: float) -> dict[str, Any]:
    found = planted(case)
    return {**found, name: factor * found[name]}


def summed(case: Case, factor: float) -> dict[str, Any]:
    """What is left of the first memory once more, by a first memory that is twice as large."""
    return {**planted(case), "M": planted(case, M0=2 * tensor(case, "M0"))["M"]}


def decayed(case: Case) -> dict[str, Any]:
    gates = tensor(case, "retain")

    def first(begin: int, before: Any) -> Any:
        since = begin // 16 * 16
        return tensor(case, "M0") * np.prod(gates[:, since:begin], axis=1)[:, None, :]

    return sequences(case, M0=first)


def undecayed(case: Case, *of: str) -> dict[str, Any]:
    """Chunks of 16 with their writes beside what is left of the first memory, by hand."""
    x = {n.removeprefix("in/"): np.asarray(v) for n, v in case.inputs.items()}
    y, last = np.zeros_like(x["v"]), []
    for h in range(H):
        M = x["M0"][h]
        for begin in range(0, T, 16):
            start, rows = M, []
            for t in range(begin, min(begin + 16, T)):
                gate, k = x["retain"][h, t], x["k"][h, t]
                M = M * gate
                rest = start * np.prod(x["retain"][h, begin : t + 1], axis=0)
                found = (rest + sum(rows) if "erases" in of else M) @ k
                change = x["beta"][h, t] * (x["v"][h, t] - found)
                M = M + np.outer(change, k)
                rows.append(np.outer(change, k))
                seen = rest + sum(rows) if "reads" in of else M
                y[h, t] = seen @ x["q"][h, t] / np.sqrt(K)
            M = rest + sum(rows) if "writes" in of else M
        last.append(M)
    return {"y": y, "M": np.stack(last)}


M0, RETAIN, BETA = tensor(KDA, "M0"), tensor(KDA, "retain"), tensor(KDA, "beta")

#: Words of a mistake, the case, and what a program by hand returns that makes it.
PLANTS = [
    ("out/y was multiplied by 1/sqrt(d_out)", KDA, lambda: scaled(KDA, "y", V**-0.5)),
    ("out/M was multiplied by 2", KDA, lambda: scaled(KDA, "M", 2.0)),
    ("in/M0 was multiplied by 2", KDA, lambda: other(KDA, M0=2 * M0)),
    ("in/v was multiplied by 1/2", KDA, lambda: other(KDA, v=tensor(KDA, "v") / 2)),
    (
        "in/beta was under a sigmoid once more",
        KDA,
        lambda: other(KDA, beta=1 / (1 + np.exp(-BETA))),
    ),
    ("what is left of in/M0 was added to out/M once more", KDA, lambda: summed(KDA, 2.0)),
    ("in/M0 was that of the first head for all", KDA, lambda: other(KDA, M0=M0[[0, 0, 0]])),
    ("in/M0 was that of the head counted from the last", KDA, lambda: other(KDA, M0=M0[::-1])),
    (
        "in/retain from token 8 on was that of the head before",
        KDA,
        lambda: other(KDA, retain=rolled(RETAIN, 8)),
    ),
    ("in/beta was that of the head before", KDA, lambda: other(KDA, beta=rolled(BETA))),
    ("the momentum was lost every 16 tokens", MOMENTUM, lambda: lost(MOMENTUM, "S")),
    ("the memory was lost every 16 tokens", KDA, lambda: lost(KDA, "M")),
    ("the memory was the first one again every 16 tokens", KDA, lambda: again(KDA)),
    ("the memory was rounded to bfloat16 every 16 tokens", KDA, lambda: narrow(KDA)),
    (
        "chunks of 16 tokens read the chunk before them and no earlier one",
        KDA,
        lambda: seen_back(KDA),
    ),
    ("a token read the last 16 tokens alone", KDA, lambda: window(KDA, 16)),
    (
        "in chunks of 16 a chunk starts from the state of the chunk before",
        KDA,
        lambda: late(KDA),
    ),
    (
        "a last chunk of 16 was filled up with copies of the last token",
        KDA,
        lambda: padded(KDA, 1.0),
    ),
    (
        "a last chunk of 16 was filled up with copies of the last token and its gate",
        KDA,
        lambda: padded(KDA, None),
    ),
    (
        "in chunks of 16 reads see the writes of the chunk without the gates behind them",
        KDA,
        lambda: undecayed(KDA, "reads"),
    ),
    (
        "in chunks of 16 erases see the writes of the chunk without the gates behind them",
        KDA,
        lambda: undecayed(KDA, "erases"),
    ),
    (
        "in chunks of 16 the chunk's last memory takes its writes without the gates behind them",
        KDA,
        lambda: undecayed(KDA, "writes"),
    ),
    ("out/M lacked the last 4 tokens", KDA, lambda: {**planted(KDA), "M": part(KDA, 0, 32)["M"]}),
    ("out/M was in/M0", KDA, lambda: {**planted(KDA), "M": M0}),
    (
        "the momentum ran on through a reset",
        PUSHED,
        lambda: sequences(PUSHED, S0=lambda begin, before: before["S"]),
    ),
    (
        "the memory ran on through a reset, its momentum did not",
        PUSHED,
        lambda: sequences(PUSHED, M0=lambda begin, before: before["M"]),
    ),
    (
        "a sequence decayed its first memory from the start of a chunk of 16 on",
        PACKED,
        lambda: decayed(PACKED),
    ),
    (
        "in/k and in/v were exchanged",
        SQUARE,
        lambda: other(SQUARE, k=tensor(SQUARE, "v"), v=tensor(SQUARE, "k")),
    ),
    ("the erase read the memory the other way round, k - M^T v", SQUARE, lambda: swapped(SQUARE)),
]


@pytest.mark.sample(8)
@pytest.mark.clause("DPLRCASE-25", "IDENT-17")
@pytest.mark.parametrize(("words", "case", "plant"), PLANTS, ids=[each[0] for each in PLANTS])
def test_a_mistake_that_is_tried_last_is_named(words, case, plant):
    mine = {f"out/{name}": np.asarray(x) for name, x in plant().items()}
    answer = identify(case, mine, depth=1)
    assert answer.verdict == "NO MATCH"
    assert words in [each.words for each in answer.departures], [
        each.words for each in answer.departures
    ]


RAW = make(
    {"schema": 1, "rule": "dplr", "parameters": {"member": "kda", "gate_formula": "softplus"}},
    {
        **{n: x for n, x in KDA.inputs.items() if n not in ("in/retain", "in/y_bar")},
        "in/gate_input": np.where(
            np.arange(T)[:, None] % 7 == 3,
            95.0,
            np.random.default_rng(1).standard_normal((H, T, K)),
        ),
        "in/gate_log_rate": np.array([-4.0, -3.0, -3.5]),
        "in/gate_bias": np.random.default_rng(2).standard_normal((H, K)),
    },
)


def of_gates(bias: Any, *, overflows: bool = False) -> dict[str, Any]:
    z = tensor(RAW, "gate_input") + bias[:, None, :]
    size = np.logaddexp(0.0, z)
    if overflows:
        with np.errstate(over="ignore"):
            size = np.log(np.float32(1) + np.exp(z.astype(np.float32))).astype(np.float64)
    gates = np.exp(-np.exp(tensor(RAW, "gate_log_rate"))[:, None, None] * size)
    return planted(KDA, retain=gates)


@pytest.mark.clause("DPLRCASE-25")
@pytest.mark.parametrize(
    ("words", "mine"),
    [
        (
            "in/gate_bias was one number a head, the first of its memory in a row",
            lambda b: of_gates(np.repeat(b.ravel()[:H, None], K, axis=1)),
        ),
        ("in/gate_bias was that of the first head for all", lambda b: of_gates(b[[0, 0, 0]])),
        (
            "softplus was log(1 + e^x) in float32, where e^x overflows",
            lambda b: of_gates(b, overflows=True),
        ),
    ],
)
def test_a_bias_that_is_read_by_another_stride_is_named(words, mine):
    found = {f"out/{n}": x.astype(np.float32) for n, x in mine(tensor(RAW, "gate_bias")).items()}
    answer = identify(RAW, found, depth=1)
    assert words in [each.words for each in answer.departures], answer.departures


def batched() -> Case:
    """Two rows of the batch with two heads each."""
    draw, lead = np.random.default_rng(5), (2, 2)
    x = {
        "in/k": draw.standard_normal((*lead, 7, 3)),
        "in/q": draw.standard_normal((*lead, 7, 3)),
        "in/v": draw.standard_normal((*lead, 7, 2)),
        "in/retain": draw.uniform(0.5, 0.9, (*lead, 7, 3)),
        "in/beta": draw.uniform(0.2, 0.8, (*lead, 7)),
        "in/M0": draw.standard_normal((*lead, 2, 3)),
        "in/y_bar": draw.standard_normal((*lead, 7, 2)),
        "in/M_bar": draw.standard_normal((*lead, 2, 3)),
    }
    return make({"schema": 1, "rule": "dplr", "parameters": {"member": "kda"}}, x)


ROWS = batched()
TIMED = ("grad/k", "grad/q", "grad/v", "grad/retain", "grad/beta")


def first_alone(names: Any, change: Any) -> Any:
    """Gradients of which rows of the batch past the first are changed."""

    def changed(found: dict[str, Any]) -> dict[str, Any]:
        return {n: np.concatenate([found[n][:1], change(found[n])]) for n in names}

    return changed


SLOPES = [
    ("grad/beta was doubled", lambda g: {"grad/beta": 2 * g["grad/beta"]}),
    ("no gradient went to in/v", lambda g: {"grad/v": 0 * g["grad/v"]}),
    (
        "grad/retain was that of its log",
        lambda g: {"grad/retain": g["grad/retain"] * ROWS.inputs["in/retain"]},
    ),
    ("grad/q was of the other sign", lambda g: {"grad/q": -g["grad/q"]}),
    (
        "gradients of rows of the batch past the first were one token late",
        first_alone(TIMED, lambda x: np.roll(x[1:], 1, axis=2)),
    ),
    (
        "gradients of rows of the batch past the first were zero",
        first_alone(TIMED, lambda x: 0 * x[1:]),
    ),
    (
        "gradients and states of rows of the batch past the first were those of the first",
        first_alone((*TIMED, "grad/M0"), lambda x: x[:1]),
    ),
]


@pytest.mark.sample(3)
@pytest.mark.clause("DPLRCASE-25", "IDENT-18")
@pytest.mark.parametrize(("words", "change"), SLOPES, ids=[each[0] for each in SLOPES])
def test_gradients_that_are_wrong_alone_are_named(words, change):
    right = evaluate(ROWS, grad=True).tensors
    answer = identify(ROWS, {**right, **change(right)}, depth=1)
    found = [each.words for each in answer.departures]
    assert words in found, found


@pytest.mark.clause("DPLRCASE-25", "IDENT-18")
def test_the_gradient_of_a_step_size_that_lacks_the_erase_is_named():
    """By hand: beta of the erase is another tensor, that of a rule with vectors of an erase."""
    x = {name: np.asarray(value) for name, value in ROWS.inputs.items()}
    apart = {n: v for n, v in x.items() if n != "in/beta"} | {
        "in/v": x["in/beta"][..., None] * x["in/v"],
        "in/erase_read": x["in/k"],
        "in/erase_write": x["in/beta"][..., None] * x["in/k"],
    }
    settings = {"decay": "before_error", "query_scale": "1/sqrt(d_in)"}
    of_rule = make({"schema": 1, "rule": "dplr", "parameters": settings}, apart)
    slope = np.sum(evaluate(of_rule, grad=True).tensors["grad/v"] * x["in/v"], axis=-1)
    right = evaluate(ROWS, grad=True).tensors
    answer = identify(ROWS, {**right, "grad/beta": slope}, depth=1)
    words = "the gradient of in/beta lacked what the erase took away"
    assert words in [each.words for each in answer.departures]


@pytest.mark.clause("IDENT-17", "IDENT-18")
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_every_mistake_of_the_list_computes_a_case_of_every_kind(name):
    """None raises, none changes a shape, and one of the backward pass leaves values as they are."""
    case = CASES[name]
    right = evaluate(case, grad=True).tensors
    for each in SUBJECT.searched.further(case):
        found = ensemble.exact(case, grad=each.grad, plain=_plain(each))
        for result, value in found.items():
            assert np.shape(value) == np.shape(right[result]), (each.name, result)
        if each.grad:
            assert all(
                np.allclose(found[n], right[n], rtol=1e-9, atol=1e-12) for n in found if "out" in n
            ), each.name


def _plain(each: Any) -> ensemble.Plain:
    return lambda inputs, case, rounding: SUBJECT.searched.run(inputs, case, rounding, (each,))


@pytest.mark.clause("DPLRCASE-25")
def test_a_key_of_a_momentum_without_a_gradient_of_its_write_has_none():
    """The error reads with in/erase_key, so that a key is in the write alone."""
    header = {**CASES["moved"].header.plain(), "parameters": {"member": "momentum_delta"}}
    case = make(header, CASES["moved"].inputs)
    (each,) = [one for one in SUBJECT.searched.further(case) if one.name == "key of write held"]
    own = ensemble.exact(case, grad=True)
    held = ensemble.exact(case, grad=True, plain=_plain(each))
    assert np.any(own["grad/k"])
    assert not np.any(held["grad/k"])
    assert all(np.array_equal(own[n], held[n]) for n in own if n != "grad/k")


@pytest.mark.clause("IDENT-17")
def test_noise_is_named_after_nothing():
    draw = np.random.default_rng(9)
    found = planted(KDA)
    mine = {f"out/{n}": x + 0.01 * draw.standard_normal(x.shape) for n, x in found.items()}
    answer = identify(KDA, mine, depth=1)
    assert (answer.verdict, answer.departures) == ("NO MATCH", ())
    assert not answer.explains_half


@pytest.mark.clause("IDENT-17")
def test_the_first_wrong_token_rules_most_mistakes_out():
    late_one = {f"out/{n}": x for n, x in planted(KDA, retain=rolled(RETAIN, 20)).items()}
    judge = Judge(KDA, observe_case(KDA, late_one, None), SEARCHED)
    assert first_wrong(judge, Node("", (), 0)) is None  # it would save less than half of a search
    moved = {f"out/{n}": x for n, x in planted(KDA, retain=rolled(RETAIN, 8)).items()}
    start = first_wrong(Judge(KDA, observe_case(KDA, moved, None), SEARCHED), Node("", (), 0))
    assert start is not None
    assert start.value.shape[-2] == 9
    left = [each.name for each in SUBJECT.searched.further(KDA) if start.explains((each,))]
    assert "in/retain from token 8 on was that of the head before" in left
    assert "in/retain was that of the head before" not in left
    assert len(left) < 40


def strong() -> Case:
    """Gates of which one, of token 20 and the second head, closes."""
    logs = np.log(RETAIN)
    logs[1, 20, 0] = -95.0
    x = {n: v for n, v in KDA.inputs.items() if n not in ("in/retain", "in/y_bar")}
    return make(KDA.header.plain(), {**x, "in/log_retain": logs})


def apart(case: Case) -> dict[str, Any]:
    """A kernel in chunks of 16 that multiplies by e^(G_i - G_last) and e^(G_last - G_j)."""
    logs, y = np.float32(tensor(case, "log_retain")), planted(case)["y"].astype(np.float32)
    for h in range(H):
        for begin in range(0, T, 16):
            G = np.cumsum(logs[h, begin : begin + 16], axis=0)
            with np.errstate(over="ignore", invalid="ignore"):
                pair = np.exp(G - G[-1])[:, None] * np.exp(G[-1] - G)[None]
            if not np.isfinite(pair).all():
                y[h, begin:] = np.nan
    return {"out/y": y}


@pytest.mark.clause("DPLRCASE-25")
def test_what_overflows_is_told_where_just_that_is_not_finite():
    case = strong()
    mine = apart(case)
    assert np.isfinite(mine["out/y"]).any(axis=(1, 2)).all()
    assert np.isnan(mine["out/y"]).any()
    done = checked(case, source=lambda _: Answer(mine), dtype="float32")
    words = Nearest().words(done, done.rows)
    assert words == (
        "e^(G_i - G_last) overflows in chunks of 16, with G the logs of gates summed from the start "
        "of a chunk: results are not finite just where it does"
    )
    run = Run()
    run.add(done)
    assert [each.nearest for each in run.report().failures] == [words]
    # other tokens, or others that are wrong, are explained by nothing
    moved = {"out/y": np.roll(mine["out/y"], 1, axis=0)}
    wrong = {"out/y": np.where(np.isnan(mine["out/y"]), np.nan, 2 * mine["out/y"])}
    for given in (moved, wrong):
        done = checked(case, source=lambda _, given=given: Answer(given), dtype="float32")
        assert Nearest().words(done, done.rows) == ""
