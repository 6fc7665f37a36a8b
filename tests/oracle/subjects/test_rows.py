"""Masks by row of rules of the family: every row of a batch gives what it gives by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref import forms
from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import CaseError, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.replay.replay import replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.sweep import split
from atlas_ref.rules import RULES, omega, sequence
from tests.support import plain_loops
from tests.support.close import ANALYTIC, Tolerance, assert_close, assert_differs

ROUNDED = Tolerance("ROUNDED", 1e-12)

#: Rows padded in front, padded behind, whole, and as the first; each with starts of its own.
ACTIVE = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1] * 6, [0, 0, 1, 1, 1, 1]], np.uint8)
RESET = np.array([[0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0], [0] * 6, [0, 0, 0, 1, 0, 0]], np.uint8)

NO = {"newton_schulz": "none"}

#: Rule, settings of a case, and forms that compute it.
CASES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("hebbian", {}, ("exact", "scan", "kernel", "chunkwise", "atlas_parallel")),
    ("delta", {}, ("exact", "scan", "kernel")),
    ("titans_lmm", {}, ("exact", "scan", "kernel")),
    ("omega", {"window": 3, "history": 2, "convention": NO}, ("exact", "scan", "kernel")),
    ("omega", {"window": 2, "span": 2, "convention": {"reference": "chunk_start"}},
     ("chunkwise", "atlas_parallel", "kernel")),
    ("omega", {"window": 3, "convention": {"order": "momentum_then_window", **NO}}, ("exact", "kernel")),
    ("omega", {"window": 3, "convention": {"window_edge": "renormalise", **NO}}, ("exact", "scan")),
    ("omega", {"window": 2, "convention": {"newton_schulz": {"steps": 3}}}, ("kernel",)),
    ("omega", {"window": 2, "window_gate": True, "convention": NO}, ("exact", "kernel")),
    ("titans_lmm", {"per_dimension_gates": True, "convention": {"layout": "transposed"}}, ("exact",)),
    ("titans_lmm", {"level": "token"}, ("exact", "scan")),
    ("omega", {"level": "token", "window": 3, "convention": NO}, ("exact",)),
]  # fmt: skip

#: Tensors without an axis of rows.
SHARED = ("in/param/", "in/phi/", "in/proj")


def drawn(rule: str, settings: dict[str, Any], **masks: Any) -> Any:
    """A case of four rows, each with masks of its own."""
    own = {"batch": 4, "heads": 2, "tokens": 6, "cotangent": True, "d_in": 3, "d_out": 2}
    case = new(Request(rule=rule, **{**own, **settings}))
    masks = {"in/active": ACTIVE, "in/reset": RESET, **masks}
    return make(
        case.header.plain(), {**case.inputs, **{n: x for n, x in masks.items() if x is not None}}
    )


def row(case: Any, number: int) -> Any:
    """A row of a case as a case of its own."""
    token = case.header.level == "token"

    def of(name: str, x: Any) -> Any:
        if name.startswith(SHARED):
            return x
        masked = name in ("in/active", "in/reset")
        one = x[number : number + 1] if token and not masked else x[number]
        return one

    return make(case.header.plain(), {n: of(n, x) for n, x in case.inputs.items()})


def assert_rows(case: Any, **form: Any) -> dict[str, Any]:
    """A case gives what each of its rows gives, and of what they share the sum; its results."""
    ours = evaluate(case, grad=True, **form).tensors
    each = [evaluate(row(case, i), grad=True, **form).tensors for i in range(4)]
    token = case.header.level == "token"
    for name, value in ours.items():
        parts = [one[name] for one in each]
        shared = f"in/{name.removeprefix('grad/')}".startswith(SHARED)
        want = sum(parts) if shared else np.concatenate(parts) if token else np.stack(parts)
        assert_close(name, value, want, ROUNDED)
    assert {"out/y", "out/M"} <= ours.keys()
    return dict(ours)


@pytest.mark.clause("CONV-68", "CASE-7")
@pytest.mark.parametrize(("rule", "settings", "others"), CASES)
def test_a_row_of_a_batch_is_what_it_is_alone_in_every_form(
    rule: str, settings: dict[str, Any], others: tuple[str, ...]
) -> None:
    case = drawn(rule, settings)
    ours = assert_rows(case)
    for form in others:
        assert_rows(case, form=form)
        assert_rows(case, form=form, chunk=2)
    of_all = make(
        case.header.plain(), {**case.inputs, "in/active": ACTIVE[0], "in/reset": RESET[0]}
    )
    assert_differs("y", ours["out/y"], evaluate(of_all).tensors["out/y"], 1e-4)


@pytest.mark.clause("CONV-68")
@pytest.mark.parametrize("seed", range(6))
def test_drawn_masks_are_those_of_the_rows(seed: int) -> None:
    """One mask by row beside one of all rows, rows that share theirs, and starts at the first token."""
    draw = np.random.default_rng(seed)
    reset = (draw.uniform(size=(4, 6)) < 0.4).astype(np.uint8)
    active = (draw.uniform(size=(4, 6)) < 0.6).astype(np.uint8)
    reset[3] = reset[1]
    which = {"in/active": active if seed % 3 else None, "in/reset": reset if seed % 2 else None}
    if all(x is None for x in which.values()):
        which["in/active"] = np.repeat(active[:1], 4, axis=0)
    assert_rows(drawn("omega", {"window": 3, "history": 1}, **which))


def literal(x: dict[str, Any], window: int) -> tuple[Any, Any, Any]:
    """Reads, last memories and momenta of Omega, number by number (OMEGA-2 to OMEGA-6)."""
    batch, heads, T, d_out = x["in/v"].shape
    d_in = x["in/k"].shape[-1]
    y = np.zeros((batch, heads, T, d_out), complex)
    last_M, last_S = (np.zeros((batch, heads, d_out, d_in), complex) for _ in range(2))
    for b in range(batch):
        for h in range(heads):
            M, S = x["in/M0"][b, h] + 0j, x["in/S0"][b, h] + 0j
            held: list[int] = []
            for t in range(T):
                if x["in/reset"][b, t]:
                    M, S, held = x["in/M0"][b, h] + 0j, x["in/S0"][b, h] + 0j, []
                held = [*held, t][-window:]
                if x["in/active"][b, t]:
                    g = np.zeros((d_out, d_in), complex)
                    for i in held:
                        k, v = x["in/k"][b, h, i], x["in/v"][b, h, i]
                        weight = x["in/window_weights"][b, h, t, t - i]
                        for m in range(d_out):
                            error = sum(M[m, n] * k[n] for n in range(d_in)) - v[m]
                            for n in range(d_in):
                                g[m, n] += weight * error * k[n]
                    S = x["in/momentum"][b, h, t] * S + x["in/step_size"][b, h, t] * g
                    M = x["in/retain"][b, h, t] * M - S
                for m in range(d_out):
                    y[b, h, t, m] = sum(M[m, n] * x["in/q"][b, h, t, n] for n in range(d_in))
            last_M[b, h], last_S[b, h] = M, S
    return y, last_M, last_S


PLAIN = {
    "newton_schulz": "none",
    "gate": "retain", "direction": "descent", "gradient_scale": 1.0, "rate": "momentum",
    "momentum_sign": "plus", "decay": "after_error", "reference": "running",
    "k_norm": "none", "q_norm": "none", "query_scale": 1.0, "read": "after",
}  # fmt: skip


@pytest.mark.clause("CONV-68", "OMEGA-13")
def test_values_and_gradients_are_those_of_a_loop_over_numbers() -> None:
    case = drawn("omega", {"window": 3, "convention": PLAIN})
    ours, x = evaluate(case, grad=True).tensors, dict(case.inputs)
    for name, value in zip(("out/y", "out/M", "out/S"), literal(x, 3), strict=True):
        assert_close(name, ours[name], value.real, ANALYTIC)
    draw = np.random.default_rng(3)
    names = [name for name in x if f"grad/{name[3:]}" in ours]
    assert {"in/M0", "in/S0", "in/k", "in/window_weights"} <= {*names}
    for name in names:
        along = draw.standard_normal(x[name].shape)
        found = literal({**x, name: x[name] + 1e-30j * along}, 3)
        bars = (x["in/y_bar"], x["in/M_bar"], x["in/S_bar"])
        slope = sum(np.sum(bar * z) for bar, z in zip(bars, found, strict=True)).imag / 1e-30
        assert_close(name, np.sum(ours[f"grad/{name[3:]}"] * along), slope, ANALYTIC)


@pytest.mark.clause("CONV-68", "CASE-7", "TOL-3", "CERT-13")
@pytest.mark.parametrize(("rule", "settings", "others"), CASES[1:6] + CASES[-2:])
def test_the_plain_loop_and_certified_results_are_the_rule(
    rule: str, settings: dict[str, Any], others: tuple[str, ...]
) -> None:
    case = drawn(rule, settings)
    ours = evaluate(case, grad=True).tensors
    plain = plain_loops.SUBJECTS[rule].plain
    for name, value in plain(case.inputs, case, plain_loops.PLAINLY).items():
        assert_close(name, value, ours[name], ANALYTIC)
    for name, value in certify(case, grad=True).values.items():
        assert_close(name, ours[name], value, ANALYTIC)


@pytest.mark.clause("CONV-68", "CASE-7")
def test_check_judges_right_and_wrong_results_of_rows() -> None:
    case = drawn("omega", {"window": 3})
    right = evaluate(case, grad=True).tensors
    kept = make(case.header.plain(), {**case.inputs, **right})
    assert {each.verdict for each in check(kept)} == {"PASS"}
    narrow = {name: x.astype(np.float32) for name, x in right.items()}
    kept = make(case.header.plain(), {**case.inputs, **narrow})
    assert {each.verdict for each in check(kept)} == {"PASS"}
    late = make(case.header.plain(), {**case.inputs, "in/reset": np.roll(RESET, 1, axis=1)})
    wrong = make(case.header.plain(), {**case.inputs, **evaluate(late).tensors})
    assert "WRONG" in {each.verdict for each in check(wrong)}


@pytest.mark.clause("CASE-7", "CONV-38")
def test_tools_that_take_one_mask_say_so_and_no_call_is_cut() -> None:
    case = drawn("omega", {"window": 2})
    results = evaluate(case).tensors
    with pytest.raises(CaseError, match=r"in/active: shape \(4, 6\), and .* of all rows"):
        trace(case)
    with pytest.raises(CaseError, match=r"in/active: shape \(4, 6\), and identify takes a mask"):
        identify(case, results)
    with pytest.raises(CaseError, match=r"takes a mask of all rows"):
        replay(case, {"trace/M": results["out/M"]})
    assert split.places(case) == []
    assert split.places(row(case, 2)) != []


@pytest.mark.clause("CASE-7", "CONV-68", "CASE-13")
def test_windows_of_rows_are_results_where_they_are_of_one_length() -> None:
    names = {"out/window_k", "out/window_v"}
    ragged = drawn("omega", {"window": 3, "history": 1})
    assert not names & evaluate(make(ragged.header.plain(), {
        **ragged.inputs, "in/reset": np.eye(4, 6, 2, dtype=np.uint8),
    })).tensors.keys()  # fmt: skip
    early = np.eye(4, 6, dtype=np.uint8)
    early[3] = 0
    case = drawn("omega", {"window": 3, "history": 1}, **{"in/reset": early})
    assert names <= assert_rows(case).keys()
    span = {"window": 2, "span": 4, "convention": {"reference": "chunk_start"}}
    assert "phase" not in evaluate(drawn("omega", span)).header
    whole = drawn("omega", span, **{"in/reset": None})
    assert evaluate(whole).header["phase"] == evaluate(row(whole, 0)).header["phase"] == 2


@pytest.mark.clause("CONV-68", "CASE-16")
def test_other_shapes_are_refused() -> None:
    case = drawn("titans_lmm", {})
    for mask in (ACTIVE[:3], ACTIVE[:, :5], np.repeat(ACTIVE[:, None], 2, axis=1)):
        with pytest.raises(CaseError, match=r"in/active: shape .*, expected \(6,\) or \(4, 6\)"):
            make(case.header.plain(), {**case.inputs, "in/active": mask})
    alone = row(case, 0)
    with pytest.raises(CaseError, match=r"in/reset: shape \(2, 6\), expected axes \(T\)"):
        make(alone.header.plain(), {**alone.inputs, "in/reset": RESET[:2]})
    scheduled = {
        **case.header.plain(),
        "schedule": {"periods": [1, 2], "level": 1, "first_step": 0},
    }
    with pytest.raises(CaseError, match=r"in/active: by row"):
        make(scheduled, case.inputs)


@pytest.mark.clause("CONV-68", "CONV-27")
def test_a_state_of_rows_with_other_counts_continues_no_call() -> None:
    draw = np.random.default_rng(0)
    config = omega.Config(d_in=3, d_out=2, window=3, convention=NO)
    k, q = (draw.standard_normal((2, 1, 5, 3)) for _ in range(2))
    gates = {"retain": np.full((2, 1, 5), 0.9), "step_size": np.full((2, 1, 5), 0.1)}
    reset = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], bool)
    tokens = sequence.Tokens(k=k, v=k[..., :2], q=q, reset=reset, **gates)
    state = omega.start(config, (2, 1))
    for form in ("sequential", "exact"):
        after, y = forms.run(omega.RULE, config, tokens, state, form=form)
        assert after.filled is None
        for i in range(2):
            part = sequence.Tokens(
                k=k[i],
                v=k[i, ..., :2],
                q=q[i],
                reset=reset[i],
                **{n: g[i] for n, g in gates.items()},
            )
            one, want = sequence.run(omega.RULE, config, part, omega.start(config, (1,)))
            assert_close("y", y[i], want, ROUNDED)
            assert_close("M", after.M[i], one.M, ROUNDED)
        with pytest.raises(ValueError, match=r"state.filled: none, since rows"):
            forms.run(omega.RULE, config, tokens, after, form=form)
    assert not after.M.flags.writeable
    with pytest.raises(ValueError, match=r"reset: bool of shape \(2, 4\), expected bool of shape"):
        sequence.Tokens(k=k, v=k[..., :2], q=q, reset=reset[:, :4], **gates)


@pytest.mark.clause("CONV-68")
def test_a_rule_that_takes_one_mask_for_all_rows_says_so() -> None:
    rule = RULES["deep_memory"]
    k = np.ones((2, 1, 3, 2))
    tokens = sequence.Tokens(k=k, v=k, q=k, active=np.ones((2, 3), bool))
    with pytest.raises(ValueError, match=r"active: shape \(2, 3\), expected \(3,\): one mask"):
        sequence.run(rule, None, tokens, None)
