"""Tensors of chunk kernels, computed from the trace and literal loops, with each number moved
once.
"""

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from tests.support.close import ANALYTIC, assert_close
from tests.support.strategies import header_of
from tests.truth.literal_trace import trace as literal_trace

LINEAR = {"newton_schulz": "none"}
FROZEN = {"reference": "chunk_start"}

#: What changes a chunk tensor: rule, convention, gates, packed sequences, spans.
KINDS = {
    "exact delta": {"rule": "delta"},
    "exact gated delta": {
        "rule": "delta",
        "convention": "fla-gated-delta",
        "per_dimension_gates": True,
    },
    "exact titans": {"rule": "titans_lmm", "convention": "titans-paper", "pulse": 3},
    "exact omega": {"convention": LINEAR},
    "exact window": {"window": 3, "history": 2, "convention": LINEAR, "reset": 4},
    "exact window decay": {
        "window": 2,
        "window_gate": True,
        "convention": {**LINEAR, "decay": "before_error", "direction": "ascent"},
    },
    "exact momentum first": {
        "window": 3,
        "convention": {**LINEAR, "order": "momentum_then_window", "gradient_scale": 2},
    },
    "exact average": {"rule": "titans_lmm", "convention": {"momentum_kind": "average"}},
    "exact average first": {
        "window": 3,
        "convention": {**LINEAR, "order": "momentum_then_window", "momentum_kind": "average"},
    },
    "frozen delta": {"rule": "delta", "span": 4, "convention": FROZEN},
    "frozen window": {
        "window": 3,
        "span": 4,
        "history": 1,
        "convention": {**LINEAR, **FROZEN, "layout": "transposed"},
    },
    "frozen carry": {
        "window": 3,
        "span": 2,
        "pulse": 3,
        "convention": {**LINEAR, **FROZEN, "window_at_boundary": "carry"},
    },
    "frozen cut": {
        "window": 3,
        "span": 3,
        "convention": {**FROZEN, "window_at_boundary": "cut", "span_origin": "multiple"},
    },
    "zero": {"rule": "titans_lmm", "convention": {"reference": "zero"}},
    "hebbian": {"rule": "hebbian", "convention": {"layout": "transposed"}},
    "newton_schulz": {"window": 2, "span": 20, "convention": {"reference": "call_start"}},
}


def small(kind: str, **more) -> Case:
    return new(
        Request(
            **{
                "rule": "omega",
                "tokens": 7,
                "d_in": 3,
                "d_out": 2,
                "heads": 2,
                "seed": 2,
                **KINDS[kind],
                **more,
            }
        )
    )


def starts(case: Case, size: int) -> list[tuple[int, int, bool]]:
    """First token, end and freshness of every chunk, counted by hand."""
    header, T = case.header, case.inputs["in/k"].shape[-2]
    reset = case.inputs.get("in/reset", np.zeros(T))
    spans = (
        header.span if "chunk_start" in (case.convention.reference, case.convention.read) else None
    )
    found: list[tuple[int, bool]] = []
    position = first = 1 % header.span if spans and case.convention.span_origin == "multiple" else 0
    for t in range(T):
        position = first if reset[t] else position
        if t == 0 or reset[t] or (spans and position == 0) or t - found[-1][0] == size:
            found.append((t, bool(t == 0 or reset[t])))
        position = (position + 1) % spans if spans else 0
    return [
        (t, end, fresh)
        for (t, fresh), (end, _) in zip(found, [*found[1:], (T, False)], strict=True)
    ]


def handed_over(case: Case, size: int) -> dict[str, np.ndarray]:
    """chunk/M, chunk/S and chunk/E, cut out of the trace."""
    whole, cut = trace(case), starts(case, size)
    made = {}
    for name in ("M", "S"):
        if f"trace/{name}" in whole:
            rows = whole[f"trace/{name}"]
            given = case.inputs.get(f"in/{name}0", np.zeros_like(rows[:, 0]))
            made[f"chunk/{name}"] = np.stack(
                [given if fresh else rows[:, t - 1] for t, _, fresh in cut], axis=1
            )
    if "trace/residual" in whole:
        made["chunk/E"] = residual_rows(case, whole["trace/residual"], cut, size)
    return made


def residual_rows(
    case: Case, e: np.ndarray, cut: list[tuple[int, int, bool]], size: int
) -> np.ndarray:
    momentum_first = case.header.rule == "omega" and case.convention.order == "momentum_then_window"
    solved, c = case.convention.reference == "running", case.header.window
    history = 0 if solved or momentum_first else c - 1
    each = c if solved and not momentum_first else 1
    E = np.zeros((e.shape[0], len(cut), history + each * size, e.shape[-1]))
    for i, (first, end, _) in enumerate(cut):
        for t in range(first, end):
            for j in range(1 if momentum_first else c):
                row = (t - first) * each + j if solved else history + t - first - j
                if np.any(e[:, t, j]):
                    E[:, i, row] = e[:, t, j]
    return E


def matrix(case: Case, size: int) -> np.ndarray:
    """The tensor chunk/A from the literal loops.

    Moving one residual at a time gives a column of its inverse.
    """
    momentum_first = case.convention.order == "momentum_then_window"
    T, d_out, c = *case.inputs["in/v"].shape[-2:], 1 if momentum_first else case.header.window
    header, cut = header_of(case), starts(case, size)
    A = np.zeros((2, len(cut), d_out, size * c, size * c))
    for h in range(2):
        columns = np.zeros((d_out, T * c, T * c))
        for t in range(T):
            for j in range(c):
                for o in range(d_out):
                    found, _ = literal_trace(
                        header, case.inputs, ("residual", (h,), t, (j, o), 1e-30j)
                    )
                    columns[o, :, t * c + j] = (
                        np.imag(found["residual"][h, :, :c, o]).reshape(-1) / 1e-30
                    )
        for i, (first, end, _) in enumerate(cut):
            own = slice(first * c, end * c)
            n = (end - first) * c
            A[h, i, :, :n, :n] = np.linalg.inv(columns[:, own, own])
    return (
        A
        if any(
            case.inputs[f"in/{g}"].ndim == 3
            for g in ("retain", "momentum", "step_size")
            if f"in/{g}" in case.inputs
        )
        else A[:, :, 0]
    )


@pytest.mark.clause("REPLAY-19", "REPLAY-20")
@pytest.mark.parametrize("size", [1, 2, 3, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_states_and_residuals_of_chunks_are_those_of_the_loop(kind, size):
    case = small(kind)
    made = handed_over(case, size)
    assert [each.op for each in replay(case, made, chunk=size)] == sorted(
        made, key=["chunk/A", "chunk/S", "chunk/M", "chunk/E"].index
    )
    for name in [[name] for name in made] + [list(made)]:
        for each in replay(case, {key: made[key] for key in name}, chunk=size):
            assert each.verdict == "PASS", (each.op, each.ratio)


@pytest.mark.clause("REPLAY-20", "REPLAY-21")
@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_state_of_a_chunk_is_found_at_its_first_token(kind):
    case, draw = small(kind), np.random.default_rng(3)
    made = handed_over(case, 2)
    for name in ("chunk/M", "chunk/S"):
        if name not in made:
            continue
        place = tuple(int(draw.integers(n)) for n in made[name].shape)
        value = made[name].copy()
        value[place] += 1e-6
        first = first_wrong(replay(case, {**made, name: value}, chunk=2, nearest=False))
        wanted = (
            place[0],
            *(place[:1:-1] if case.convention.layout == "transposed" else place[2:]),
        )
        assert (first.op, first.token, first.place) == (name, starts(case, 2)[place[1]][0], wanted)


@pytest.mark.sample(3)
@pytest.mark.clause("REPLAY-22")
@pytest.mark.parametrize("size", [2, 3, 16])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("exact")])
def test_the_triangular_matrix_is_the_inverse_of_what_residuals_do_to_each_other(kind, size):
    case = small(kind, pulse=1, per_dimension_gates=KINDS[kind].get("per_dimension_gates", False))
    A = matrix(case, size)
    (found,) = replay(case, {"chunk/A": A}, chunk=size)
    assert found.verdict == "PASS", found
    assert_close("scale", np.array(found.expected), np.array(found.got), ANALYTIC)
    made = {"chunk/A": A, **handed_over(case, size)}
    assert {each.verdict for each in replay(case, made, chunk=size)} == {"PASS"}
    below = np.argwhere(np.abs(A) * (A != 1) > 1e-3)
    place = tuple(below[len(below) // 2])
    for change in (1e-6, np.nan):
        wrong = A.copy()
        wrong[place] += change
        first = first_wrong(replay(case, {**made, "chunk/A": wrong}, chunk=size, nearest=False))
        begin, _, _ = starts(case, size)[place[1]]
        c = A.shape[-1] // size
        assert (first.op, first.token, first.verdict) == (
            "chunk/A",
            begin + place[-2] // c,
            "WRONG",
        )
