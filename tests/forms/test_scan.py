"""Scans against loops at any length and gate, their logarithmic depth, and the scan form.

The scan form equals the literal loops and the sequential form.
"""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tape
from atlas_ref import forms as parallel
from atlas_ref.engine import associative_scan as module
from atlas_ref.engine.associative_scan import affine_scan, scan
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.rules import omega
from tape import check, ops
from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.support.form_results import (
    assert_equal_the_loops,
    assert_gradients_equal_the_sequential,
    call_of,
    results,
    with_edges,
)
from tests.support.strategies import form_cases, repeatable

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 16, 21]
CHUNKS = [None, 1, 2, 3, 5, 100]


def gates(draw: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Gates of which half are exactly 0, exactly 1 or so small that a product of two of them
    vanishes.
    """
    return np.where(
        draw.random(shape) < 0.5,
        draw.uniform(0.5, 1.0, shape),
        draw.choice([0.0, 1.0, 1e-300], shape),
    )


def loop(a: Any, b: Any, initial: Any) -> Any:
    """y_t = a_t y_{t-1} + b_t, time first."""
    y, values = initial, []
    for t in range(len(b)):
        y = a[t] * y + b[t]
        values.append(y)
    return np.array(values)


def affine_loop(A: Any, B: Any, initial: Any) -> Any:
    """X_t = X_{t-1} A_t + B_t of one sequence, entry by entry."""
    X, values = initial, []
    for t in range(len(B)):
        after = B[t].copy()
        for row, column, each in np.ndindex(*B[t].shape, A.shape[-1]):
            after[row, column] += X[row, each] * A[t, each, column]
        X = after
        values.append(X)
    return np.array(values)


def affine_case(
    T: int, lead: tuple[int, ...] = (), rows: int = 2, n: int = 3, seed: int = 0
) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(seed)
    A = gates(draw, (*lead, T, 1, 1)) * draw.standard_normal((*lead, T, n, n)) / math.sqrt(n)
    return A, draw.standard_normal((*lead, T, rows, n)), draw.standard_normal((*lead, rows, n))


# -- the scans -------------------------------------------------------------------------------------


@pytest.mark.clause("SCAN-1", "SCAN-4")
@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("shape", [(), (2, 3), (4, 1), (4, 3)], ids=str)
def test_a_scalar_scan_equals_the_loop(T: int, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(T)
    a, b, initial = (
        gates(draw, (T, *shape[:1], *(1,) * (len(shape) - 1))),
        draw.standard_normal((T, *shape)),
        draw.standard_normal(shape),
    )
    assert_close("y", scan(a, b, initial=initial), loop(a, b, initial), ANALYTIC)
    assert_close("from zero", scan(a, b), loop(a, b, np.zeros(shape)), ANALYTIC)


@pytest.mark.clause("SCAN-1")
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_time_may_be_any_axis(axis: int) -> None:
    draw = np.random.default_rng(0)
    a, b, initial = (
        draw.uniform(0, 1, (5, 4, 3)),
        draw.standard_normal((5, 4, 3)),
        draw.standard_normal((5, 4, 3)).take(0, axis),
    )
    want = loop(np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0), initial)
    assert_close("y", scan(a, b, axis=axis, initial=initial), np.moveaxis(want, 0, axis), ANALYTIC)


@pytest.mark.clause("SCAN-1")
def test_coefficients_broadcast_from_the_end() -> None:
    draw = np.random.default_rng(0)
    a, b = draw.uniform(0, 1, (7, 1)), draw.standard_normal((2, 7, 3))
    assert_close(
        "y", scan(a, b, axis=-2), np.array([loop(a, each, np.zeros(3)) for each in b]), ANALYTIC
    )
    assert_close(
        "initial",
        scan(a, b, axis=1, initial=np.ones(1)),
        np.array([loop(a, each, np.ones(3)) for each in b]),
        ANALYTIC,
    )


@pytest.mark.clause("SCAN-2", "SCAN-4")
@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
def test_an_affine_scan_equals_the_loop(T: int, lead: tuple[int, ...]) -> None:
    A, B, initial = affine_case(T, lead)
    X, zero = affine_scan(A, B, initial=initial), affine_scan(A, B)
    for each in np.ndindex(*lead):
        assert_close("X", X[each], affine_loop(A[each], B[each], initial[each]), ANALYTIC)
        assert_close(
            "from zero", zero[each], affine_loop(A[each], B[each], np.zeros((2, 3))), ANALYTIC
        )


@pytest.mark.clause("SCAN-2")
def test_maps_broadcast_over_leading_axes() -> None:
    A, B, initial = affine_case(6, (2,))
    wide = np.broadcast_to(A[:1], A.shape)
    for given_map in (A[0], A[:1]):
        assert_close(
            "X",
            affine_scan(given_map, B, initial=initial[0]),
            affine_scan(wide, B, initial=initial[[0, 0]]),
            EXACT,
        )


@pytest.mark.clause("SCAN-14")
def test_sums_products_and_scalars_are_special_cases() -> None:
    draw = np.random.default_rng(0)
    a, b, initial = (
        draw.uniform(0, 1, 11),
        draw.standard_normal((11, 2, 3)),
        draw.standard_normal((2, 3)),
    )
    assert_close("running sum", scan(np.ones(11), b[:, 0, 0]), np.cumsum(b[:, 0, 0]), ANALYTIC)
    assert_close(
        "running product", scan(a, np.zeros(11), initial=np.ones(())), np.cumprod(a), ANALYTIC
    )
    assert_close(
        "a I",
        affine_scan(a[:, None, None] * np.eye(3), b, initial=initial),
        scan(a[:, None, None], b, initial=initial),
        ANALYTIC,
    )


@pytest.mark.clause("SCAN-4")
def test_long_products_with_gates_zero_one_and_tiny_stay_finite_and_right() -> None:
    draw, T = np.random.default_rng(0), 5000
    for some in ([0.0, 1.0, 1e-300], [1.0], [1e-300], [0.0], [1.0, 1.0 - 2**-53], [0.999, 1e-300]):
        a, b, initial = (
            draw.choice(some, (T, 1)),
            draw.standard_normal((T, 2)),
            draw.standard_normal(2),
        )
        y, pullback = tape.vjp(
            lambda *arrays: scan(arrays[0], arrays[1], initial=arrays[2]), a, b, initial
        )
        bar = draw.standard_normal((T, 2))
        want = loop(a, b, initial)
        carried = loop(np.concatenate([[[0.0]], a[:0:-1]]), bar[::-1], np.zeros(2))[::-1]
        da, db, d_initial = pullback(bar)
        assert np.isfinite(y).all()
        assert_close("y", y, want, ANALYTIC)
        assert_close("db", db, carried, ANALYTIC)
        assert_close(
            "da",
            da[:, 0],
            np.sum(carried * np.concatenate([[initial], want[:-1]]), axis=-1),
            ANALYTIC,
        )
        assert_close("d initial", d_initial, a[0] * carried[0], ANALYTIC)


@pytest.mark.clause("SCAN-4")
def test_long_products_of_maps_stay_finite_and_right() -> None:
    draw, T = np.random.default_rng(0), 5000
    turn = np.linalg.qr(draw.standard_normal((T, 3, 3)))[0]
    for some in ([0.0, 1.0, 1e-300], [1.0], [1e-300], [0.999, 0.0]):
        A, B, X = (
            draw.choice(some, (T, 1, 1)) * turn,
            draw.standard_normal((T, 2, 3)),
            draw.standard_normal((2, 3)),
        )
        value, pullback = tape.vjp(affine_scan, A, B)
        assert np.isfinite(value).all()
        X, want = np.zeros((2, 3)), []
        for t in range(T):
            X = X @ A[t] + B[t]
            want.append(X)
        assert_close("X", value, np.array(want), ANALYTIC)
        bar = draw.standard_normal(B.shape)
        carried, back = np.zeros((2, 3)), []
        for t in reversed(range(T)):
            carried = bar[t] + (carried @ A[t + 1].T if t + 1 < T else 0.0)
            back.append(carried)
        dA, dB = pullback(bar)
        assert_close("dB", dB, np.array(back[::-1]), ANALYTIC)
        assert_close(
            "dA",
            dA[1:],
            np.swapaxes(np.array(want[:-1]), -1, -2) @ np.array(back[-2::-1]),
            ANALYTIC,
        )


@pytest.mark.clause("SCAN-3", "SCAN-13")
@pytest.mark.parametrize("T", [*range(1, 70), 127, 128, 129, 1000, 5000])
def test_rounds_grow_with_the_logarithm_and_work_with_the_length(
    T: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed: list[int] = []
    stepped: list[tuple[int, ...]] = []
    pairs, step = module._pairs, module._step
    monkeypatch.setattr(
        module, "_pairs", lambda kind, a, b: composed.append(len(b) // 2) or pairs(kind, a, b)
    )
    monkeypatch.setattr(
        module,
        "_step",
        lambda kind, before, a, b, out: stepped.append(b.shape) or step(kind, before, a, b, out),
    )
    A, B = np.full((T, 1, 1), 0.5), np.ones((T, 1, 1))
    for run in (lambda: scan(A, B), lambda: affine_scan(A, B)):
        composed.clear()
        stepped.clear()
        run()
        # the others: first values, made beside the pairs
        filled = [shape[0] for shape in stepped if len(shape) == 3 and shape[0]]
        assert len(composed) <= math.ceil(math.log2(T))
        assert len(composed) + len(filled) + 1 <= 2 * math.ceil(math.log2(T)) + 1
        assert sum(composed) < T
        # every value is made by one step
        assert sum(filled) + len([shape for shape in stepped if len(shape) == 2]) == T


# -- their gradients -------------------------------------------------------------------------------


@pytest.mark.clause("SCAN-15")
@pytest.mark.parametrize("T", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("own", [(3, 2), (3, 1), (1, 1)], ids=str)
def test_the_gradient_of_a_scalar_scan_equals_the_complex_step(
    T: int, own: tuple[int, ...]
) -> None:
    draw = np.random.default_rng(T)
    a = gates(draw, (own[0], T, own[1])) if own[0] > 1 else gates(draw, (T, own[1]))
    given_arrays = a, draw.standard_normal((3, T, 2)), draw.standard_normal((3, 2))
    bar = draw.standard_normal((3, T, 2))
    check.check_gradient(
        lambda p: ops.vdot(scan(p[0], p[1], axis=-2, initial=p[2]), bar), given_arrays
    )
    check.check_gradient(lambda p: ops.vdot(scan(p[0], p[1], axis=-2), bar), given_arrays[:2])


@pytest.mark.clause("SCAN-15")
@pytest.mark.parametrize("T", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_of_an_affine_scan_equals_the_complex_step(T: int, shared: bool) -> None:
    A, B, initial = affine_case(T, (2,))
    bar = np.random.default_rng(1).standard_normal(B.shape)
    A = A[0] if shared else A
    check.check_gradient(
        lambda p: ops.vdot(affine_scan(p[0], p[1], initial=p[2]), bar), (A, B, initial)
    )


@pytest.mark.clause("SCAN-15", "TAPE-9")
@pytest.mark.parametrize("kind", ["scalar", "affine"])
def test_a_block_is_one_entry_and_its_derivatives_are_those_of_the_plain_loop(kind: str) -> None:
    block, plain = (getattr(module, prefix + kind) for prefix in ("_", "_plain_"))
    A, B, initial = affine_case(5)
    draw = np.random.default_rng(2)
    point = (A if kind == "affine" else gates(draw, (5, 1, 1)), B, initial)
    direction = tuple(draw.standard_normal(x.shape) for x in point)
    entries: list[int] = []

    def squares(p: Any, scanned: Any = block) -> Any:
        y = scanned(*p)
        entries.append(len(y.tape.entries) if isinstance(y, tape.Variable) else 0)
        return ops.sum(y * y)

    gradient, truth = tape.grad(squares)(point), tape.grad(lambda p: squares(p, plain))(point)
    assert entries[0] == 4  # three arguments and the block
    second, true_second = (
        tape.hvp(squares)(point, direction),
        tape.hvp(lambda p: squares(p, plain))(point, direction),
    )
    for name, got, want in zip(
        ("a", "b", "initial") * 2, (*gradient, *second), (*truth, *true_second), strict=True
    ):
        assert_close(name, got, want, ANALYTIC)
    check.check_second(squares, point, direction)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: scan(np.ones((4, 1)), np.ones((5, 2))),
            r"scan: a \(4, 1\) and b \(5, 2\) do not fit along axis 0",
        ),
        (lambda: scan(np.ones((1, 2)), np.ones((5, 2))), "need the same steps"),
        (lambda: scan(np.ones(2), np.ones((5, 2))), "need the same steps"),
        (lambda: scan(np.ones((2, 5, 2)), np.ones((5, 2))), "do not fit"),
        (lambda: scan(np.ones((0, 2)), np.ones((0, 2))), "at least one"),
        (lambda: scan(np.ones((5, 2)), np.ones((5, 2)), axis=2), "along axis 2"),
        (
            lambda: scan(np.ones((5, 2)), np.ones((5, 2)), initial=np.ones(3)),
            r"initial \(3,\), expected \(2,\)",
        ),
        (
            lambda: affine_scan(np.ones((4, 2, 2)), np.ones((5, 3, 2))),
            r"affine_scan: A \(4, 2, 2\) and B \(5, 3, 2\)",
        ),
        (lambda: affine_scan(np.ones((5, 3, 3)), np.ones((5, 3, 2))), "expected"),
        (lambda: affine_scan(np.ones((0, 2, 2)), np.ones((0, 3, 2))), "T at least 1"),
        (lambda: affine_scan(np.ones((2, 2)), np.ones((3, 2))), "expected"),
        (
            lambda: affine_scan(np.ones((5, 2, 2)), np.ones((5, 3, 2)), initial=np.ones((2, 2))),
            r"expected \(3, 2\)",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# -- the form --------------------------------------------------------------------------------------


@pytest.mark.clause(
    "SCAN-5", "SCAN-6", "SCAN-7", "SCAN-8", "SCAN-9", "SCAN-10", "SCAN-11", "CHUNK-1", "CHUNK-3"
)
@settings(repeatable, max_examples=150)
@given(form_cases("scan"), st.sampled_from(CHUNKS))
def test_every_result_equals_the_literal_loops(case: Case, chunk: int | None) -> None:
    assert_equal_the_loops(case, "scan", chunk)


@pytest.mark.clause("SCAN-4", "SCAN-11", "CHUNK-5", "CHUNK-24")
@settings(repeatable, max_examples=100)
@given(form_cases("scan", level="projected", tokens=13))
def test_every_result_equals_the_literal_loops_where_gates_are_zero_one_or_tiny(case: Case) -> None:
    for seed, chunk in enumerate((None, 4)):
        assert_equal_the_loops(with_edges(case, seed), "scan", chunk)


@pytest.mark.clause("SCAN-15")
@settings(repeatable, max_examples=60)
@given(form_cases("scan"), st.sampled_from(CHUNKS), st.sampled_from([None, 0]))
def test_every_gradient_equals_that_of_the_sequential_form(
    case: Case, chunk: int | None, edges: int | None
) -> None:
    assert_gradients_equal_the_sequential(
        case if edges is None else with_edges(case, edges), "scan", chunk
    )


@pytest.mark.slow
@settings(repeatable, max_examples=2000)
@given(form_cases("scan"), st.sampled_from(CHUNKS), st.sampled_from([None, 0, 1, 2]))
def test_every_result_and_gradient_at_length(
    case: Case, chunk: int | None, edges: int | None
) -> None:
    case = case if edges is None else with_edges(case, edges)
    assert_equal_the_loops(case, "scan", chunk)
    assert_gradients_equal_the_sequential(case, "scan", chunk)


def example(rule: str = "omega", **more: Any) -> Case:
    convention = more.pop("convention", {}) | {"newton_schulz": "none"}
    sizes: dict[str, Any] = {
        "tokens": 13,
        "window": 3 if rule == "omega" else 1,
        "span": 4,
        "cotangent": True,
    }
    return new(Request(rule=rule, convention=convention, **(sizes | more)))


@pytest.mark.clause("SCAN-5", "SCAN-6", "SCAN-7")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta", "hebbian"])
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
@pytest.mark.parametrize("per_dimension", [False, True])
def test_every_rule_decay_and_kind_of_gate(rule: str, decay: str, per_dimension: bool) -> None:
    case = example(
        rule, convention={"decay": decay}, per_dimension_gates=per_dimension, pulse=3, reset=6
    )
    assert_equal_the_loops(case, "scan", 4)
    assert_gradients_equal_the_sequential(case, "scan", 4)


@pytest.mark.clause("SCAN-9", "CHUNK-13")
@pytest.mark.parametrize("rule", ["omega", "hebbian"])
@pytest.mark.parametrize("read", ["after", "before", "chunk_start", "call_end"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_read_at_every_chunk(rule: str, read: str, chunk: int | None) -> None:
    case = example(rule, convention={"read": read, "span_origin": "multiple"}, reset=9)
    assert_equal_the_loops(case, "scan", chunk)
    assert_gradients_equal_the_sequential(case, "scan", chunk)


@pytest.mark.clause("SCAN-16", "CHUNK-1", "CHUNK-19")
@pytest.mark.parametrize(
    "convention", [{}, {"read": "chunk_start"}, {"momentum_sign": "minus"}], ids=str
)
@pytest.mark.parametrize(
    ("first", "then"), [("scan", "scan"), ("scan", "sequential"), ("sequential", "scan")]
)
def test_a_call_can_be_continued_in_another_form(
    convention: dict[str, Any], first: str, then: str
) -> None:
    case = example(convention=convention, window_gate=True)
    config, tokens, state = call_of(case, case.inputs)
    whole, y = parallel.run(omega.RULE, config, tokens, state)
    timed = ("k", "v", "q", "retain", "momentum", "step_size", "window_gate")
    for at in (1, 2, 6):
        parts = [
            tokens.replaced(**{name: getattr(tokens, name)[:, part] for name in timed})
            for part in (slice(0, at), slice(at, None))
        ]
        middle, early = parallel.run(omega.RULE, config, parts[0], state, form=first, chunk=4)
        end, late = parallel.run(omega.RULE, config, parts[1], middle, form=then, chunk=4)
        assert_close("y", np.concatenate([early, late], axis=-2), y, ANALYTIC)
        for name in ("M", "S", "keys", "values", "token_gates"):
            assert_close(name, getattr(end, name), getattr(whole, name), ANALYTIC)
        assert (end.position, end.filled) == (whole.position, whole.filled)


@pytest.mark.clause("SCAN-9", "SCAN-13")
@pytest.mark.host("measures the memory of this process")
def test_without_a_chunk_memory_does_not_grow_with_the_sequence() -> None:
    """Memory of a scan without a chunk: the maps of all 1024 tokens would occupy 33 MB, twice with
    products.
    """
    draw = np.random.default_rng(0)
    config = omega.Config(d_in=16, d_out=16, window=4, convention={"newton_schulz": "none"})
    sizes = {
        "k": (4, 1024, 16),
        "v": (4, 1024, 16),
        "q": (4, 1024, 16),
        "retain": (4, 1024),
        "momentum": (4, 1024),
        "step_size": (4, 1024),
    }
    tokens = parallel.sequential.Tokens(
        **{name: 0.2 * draw.random(shape) for name, shape in sizes.items()}
    )
    state = omega.start(config, (4,))
    tracemalloc.start()
    try:
        end, _ = parallel.run(omega.RULE, config, tokens, state, form="scan")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6
    assert end.M.base is None  # and the state keeps no chunk


@pytest.mark.clause("SCAN-11")
@pytest.mark.parametrize("rule", ["omega", "hebbian"])
def test_precision_is_that_of_the_tokens(rule: str) -> None:
    case = example(rule, dtype="float32")
    inputs = {
        name: value if value.dtype == np.uint8 else value.astype(np.float32)
        for name, value in case.inputs.items()
    }
    outputs, _ = results(case, "scan", 4, inputs)
    assert {value.dtype for value in outputs.values()} == {np.dtype(np.float32)}


@pytest.mark.clause("SCAN-12")
def test_a_scalar_scan_with_given_gradients_is_the_frozen_rule_and_not_the_running_one() -> None:
    draw = np.random.default_rng(0)
    case = new(
        Request(
            rule="delta", tokens=9, d_in=4, d_out=3, heads=1, convention={"reference": "call_start"}
        )
    )
    k, v, retain, h = (case.inputs[f"in/{name}"][0] for name in ("k", "v", "retain", "step_size"))
    M0 = draw.standard_normal((3, 4))
    case = make(case.header.plain(), {**case.inputs, "in/M0": M0[None]})
    terms = np.stack([-h[t] * np.outer(M0 @ k[t] - v[t], k[t]) for t in range(9)])
    scanned = scan(retain[:, None, None], terms, initial=M0)[-1]
    assert_close("frozen", results(case, "chunkwise", None)[0]["out/M"][0], scanned, ANALYTIC)
    running = make({**case.header.plain(), "convention": {"reference": "running"}}, case.inputs)
    end = results(running, "scan", None)[0]["out/M"][0]
    assert np.abs(end - scanned).max() > 1e-2 * np.abs(end).max()
    step = retain[0] * np.eye(4) - h[0] * np.outer(k[0], k[0])  # T_t of the running rule
    assert np.abs(step - step[0, 0] * np.eye(4)).max() > 1e-2
