"""Properties that the definition of the deep memory rule claims, of its plain loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.close import EXACT, assert_close, assert_differs
from tests.truth import deep_memory_functions as functions
from tests.truth import deep_memory_loops as loops
from tests.truth.test_deep_memory_functions import FUNCTIONS, drawn

pytestmark = pytest.mark.host("plain loops of the tests")

B, T, D = 2, 12, 4
Tensors = dict[str, Any]

#: A memory and a way to write of each kind.
WAYS: dict[str, Tensors] = {
    "linear_omega": {"memory": FUNCTIONS["linear"], "window": 3, "newton_schulz": 5},
    "mlp_titans": {
        "memory": FUNCTIONS["mlp2_norm"],
        "chunk": 4,
        "span": 8,
        "reduction": "features",
        "fast": "all",
        "vectors": "raw",
        "rate": "momentum",
    },
    "mlp_frozen": {
        "memory": FUNCTIONS["mlp3"],
        "chunk": 3,
        "window": 5,
        "span": None,
        "rate": "both",
        "clip": "softclamp",
        "clip_norm": 0.5,
    },
    "polynomial_mag": {
        "memory": FUNCTIONS["polynomial_compress"],
        "chunk": 4,
        "window": 6,
        "window_decay": 0.9,
        "reduction": "mean",
        "fast": "all",
        "newton_schulz": 5,
        "adaptive": True,
        "clip": "hard",
        "clip_norm": 0.5,
    },
    "polynomial_mlp": {"memory": FUNCTIONS["polynomial_gated"], "chunk": 2, "fast": "mlp"},
}


def inputs(seed: int = 0, rows: int = B) -> tuple[Any, ...]:
    """k, v, q and gates."""
    draw = np.random.default_rng(seed)
    k, v, q = draw.standard_normal((3, rows, T, D))
    gates = {
        "retain": draw.uniform(0.8, 1.0, (rows, T)),
        "momentum": draw.uniform(0.2, 0.9, (rows, T)),
        "step_size": draw.uniform(0.02, 0.1, (rows, T)),
        "window_gate": draw.uniform(0.1, 1.0, (rows, T)),
    }
    return k, v, q, gates


def tensors(way: Tensors) -> Tensors:
    return drawn(functions.Function(**way["memory"]))


def same(got: tuple[Any, Tensors], want: tuple[Any, Tensors]) -> None:
    """The same bits of reads and states."""
    assert_close("y", got[0], want[0], EXACT)
    assert set(got[1]) == set(want[1])
    for name, a in want[1].items():
        if isinstance(a, list):
            for row, (one, other) in enumerate(zip(got[1][name], a, strict=True)):
                assert_close(f"{name} of row {row}", one, other, EXACT)
        else:
            assert_close(name, got[1][name], a, EXACT)


def per_token(way: Tensors, gates: Tensors) -> Tensors:
    """Gates that the coupling allows."""
    if way.get("coupling") != "batch_shared":
        return gates
    return {n: a if n == "window_gate" else a[0] for n, a in gates.items()}


def changed(way: Tensors, t: int) -> Any:
    """Changes of y (B, T) where k, v and every gate of token t of row 0 are others."""
    k, v, q, gates = inputs()
    p = tensors(way)
    before, _ = loops.run(way, p, k, v, q, per_token(way, gates))
    k, v = k.copy(), v.copy()
    k[0, t] += 1.0
    v[0, t] -= 1.0
    gates = {n: a.copy() for n, a in gates.items()}
    for a in gates.values():
        a[0, t] *= 0.5
    after, _ = loops.run(way, p, k, v, q, per_token(way, gates))
    return np.max(np.abs(after - before), axis=2)


@pytest.mark.parametrize("read", ["completed", "chunk_start"])
@pytest.mark.parametrize("name", WAYS)
def test_no_token_changes_a_bit_of_what_was_read_before_it(name: str, read: str) -> None:
    way = WAYS[name] | {"read": read}
    chunk = way.get("chunk", 1)
    for t in range(T):
        gap = changed(way, t)
        first = (t // chunk + 1) * chunk - (1 if read == "completed" else 0)
        assert not np.any(gap[0, :first])
        assert np.all(gap[0, first:] > 0)
        assert not np.any(gap[1])


@pytest.mark.parametrize("name", WAYS)
def test_reads_of_the_call_s_end_see_the_future(name: str) -> None:
    gap = changed(WAYS[name] | {"read": "call_end"}, T - 2)
    assert np.all(gap[0] > 1e-9)
    assert not np.any(gap[1])


@pytest.mark.parametrize("name", WAYS)
def test_a_shared_memory_couples_rows_but_not_the_past(name: str) -> None:
    way = WAYS[name] | {"coupling": "batch_shared"}
    gap = changed(way, 5)
    first = (5 // way.get("chunk", 1) + 1) * way.get("chunk", 1) - 1
    assert np.all(gap[:, first:] > 0)
    assert not np.any(gap[:, :first])


@pytest.mark.parametrize("name", WAYS)
def test_calls_of_any_lengths_are_one_call(name: str) -> None:
    way, p = WAYS[name], tensors(WAYS[name])
    k, v, q, gates = inputs()
    one = loops.run(way, p, k, v, q, gates)
    for calls in ([1] * T, [5, 7], [4, 1, 3, 4], [11, 1]):
        same(loops.run(way, p, k, v, q, gates, calls=calls), one)


@pytest.mark.parametrize(
    "setting", [{"unfinished": "flush"}, {"span": "call"}, {"read": "call_end"}]
)
def test_calls_show_where_their_ends_matter(setting: Tensors) -> None:
    way = WAYS["polynomial_mag"] | setting
    k, v, q, gates = inputs()
    y, _ = loops.run(way, tensors(way), k, v, q, gates)
    split, _ = loops.run(way, tensors(way), k, v, q, gates, calls=[2, 5, 5])
    assert_differs("y", split, y, 1e-4)


@pytest.mark.parametrize(
    "setting", [{}, {"unfinished": "flush", "read": "call_end"}, {"span": "call"}, {"span": None}]
)
@pytest.mark.parametrize("name", WAYS)
def test_packed_documents_are_calls_of_their_own_sequences(name: str, setting: Tensors) -> None:
    way, p = WAYS[name] | setting, tensors(WAYS[name])
    k, v, q, gates = inputs(rows=1)
    cuts = [0, 5, 6, T]
    reset = np.isin(np.arange(T), cuts)[None]
    y, state = loops.run(way, p, k, v, q, gates, reset=reset)
    for first, last in itertools.pairwise(cuts):
        own = {n: a[:, first:last] for n, a in gates.items()}
        alone = loops.run(way, p, *(a[:, first:last] for a in (k, v, q)), own)
        assert_close("y", y[:, first:last], alone[0], EXACT)
    same((alone[0], state), alone)


def test_rows_begin_documents_on_their_own() -> None:
    way, p = WAYS["polynomial_mag"], tensors(WAYS["polynomial_mag"])
    k, v, q, gates = inputs()
    reset = np.zeros((B, T), bool)
    reset[0, 3] = reset[1, 7] = True
    y, _ = loops.run(way, p, k, v, q, gates, reset=reset)
    for b in range(B):
        own = {n: a[b : b + 1] for n, a in gates.items()}
        rows = [a[b : b + 1] for a in (k, v, q)]
        alone, _ = loops.run(way, p, *rows, own, reset=reset[b : b + 1])
        assert_close("y", y[b : b + 1], alone, EXACT)


def test_a_batch_reset_makes_each_call_a_sequence() -> None:
    way = WAYS["polynomial_mag"] | {"memory_reset": "batch", "momentum_reset": "batch"}
    p = tensors(way)
    k, v, q, gates = inputs()
    y, state = loops.run(way, p, k, v, q, gates, calls=[5, 7])
    own = {n: a[:, 5:] for n, a in gates.items()}
    alone = loops.run(way, p, *(a[:, 5:] for a in (k, v, q)), own)
    same((y[:, 5:], state), alone)


@pytest.mark.parametrize("memory", ["sequence", "never"])
@pytest.mark.parametrize("momentum", ["sequence", "never"])
def test_a_document_takes_over_what_is_not_reset(memory: str, momentum: str) -> None:
    """Its first read before a write, and its first write, tell which of the two was."""
    way = WAYS["linear_omega"] | {"newton_schulz": 0, "read": "chunk_start"}
    way |= {"memory_reset": memory, "momentum_reset": momentum}
    p = tensors(way)
    k, v, q, gates = inputs(rows=1)
    reset = np.arange(T)[None] == 6
    y, _ = loops.run(way, p, k, v, q, gates, reset=reset)
    before = {n: a[:, :6] for n, a in gates.items()}
    _, ended = loops.run(way, p, *(a[:, :6] for a in (k, v, q)), before)
    W = ended["memory/W"][0] if memory == "never" else p["W"]
    S = ended["momentum/W"][0] if momentum == "never" else np.zeros((D, D))
    after = {n: a[:, 6:] for n, a in gates.items()}
    start = {"W": W, "momentum/W": S}
    alone, _ = loops.run(way, start, *(a[:, 6:] for a in (k, v, q)), after)
    assert_close("y", y[:, 6:], alone, EXACT)


@pytest.mark.parametrize(
    ("phase", "training", "writes"),
    [
        ("both", True, True),
        ("both", False, True),
        ("train", True, True),
        ("train", False, False),
        ("infer", True, False),
        ("infer", False, True),
        ("off", True, False),
        ("off", False, False),
    ],
)
def test_a_phase_says_when_tokens_are_written(phase: str, training: bool, writes: bool) -> None:
    way, p = WAYS["polynomial_mag"], tensors(WAYS["polynomial_mag"])
    k, v, q, gates = inputs()
    y, state = loops.run(way | {"phase": phase}, p, k, v, q, gates, training=training)
    if writes:
        same((y, state), loops.run(way, p, k, v, q, gates))
        return
    f = functions.Function(**way["memory"])
    want = [[functions.value(p, q[b, t], f) for t in range(T)] for b in range(B)]
    assert_close("y", y, np.array(want), EXACT)
    assert not np.any(state["writes"])
    assert not np.any(state["waiting"])
    assert [len(each) for each in state["keys"]] == [0] * B


def test_the_window_keeps_one_token_less_than_a_loss_sums_over() -> None:
    way, p = WAYS["polynomial_mag"], tensors(WAYS["polynomial_mag"])
    k, v, q, gates = inputs()
    _, state = loops.run(
        way, p, *(a[:, :10] for a in (k, v, q)), {n: a[:, :10] for n, a in gates.items()}
    )
    assert (state["writes"].tolist(), state["waiting"].tolist()) == ([2] * B, [2] * B)
    for b in range(B):
        assert_close("keys", state["keys"][b], k[b, 5:10], EXACT)
        assert_close("values", state["values"][b], v[b, 5:10], EXACT)
        assert_close("weights", state["weights"][b], gates["window_gate"][b, 5:10], EXACT)


def test_a_soft_clamp_lifts_a_tiny_gradient_and_has_no_value_at_none() -> None:
    way = {"clip": "softclamp", "clip_norm": 0.5, "read": "chunk_start"}
    k, v, q, _ = inputs()
    p = {"W": np.eye(D)}
    for gate, norm in ((1e-9, 0.25), (0.0, np.nan)):
        gates = {"window_gate": gate}
        _, state = loops.run(way, p, *(a[:, :1] for a in (k, v, q)), gates)
        got = np.linalg.norm(state["momentum/W"][0])
        assert np.isclose(got, norm, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"chunk": 4, "span": 6}, "multiple"),
        ({"granularity": "token"}, "unknown"),
        ({"fast": ("W_1",)}, "fast"),
        ({"memory": {"kind": "tree"}}, "kind"),
        ({"clip": "soft"}, "clip"),
    ],
)
def test_a_setting_without_a_meaning_is_refused(setting: Tensors, message: str) -> None:
    k, v, q, gates = inputs()
    with pytest.raises(ValueError, match=message):
        loops.run(setting, {"W": np.eye(D)}, k, v, q, gates)


def test_it_learns_pairs_that_it_was_shown_once() -> None:
    """A window over all pairs recalls most of them, by the angle; the untrained memory guesses."""
    n, d, kd, h = 16, 32, 8, 32
    hits: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(4):
        draw = np.random.default_rng(seed)
        F = kd + kd * (kd + 1) // 2
        shapes = {"W_down": (kd, d), "W_in": (h, F), "W_out": (kd, h), "W_up": (d, kd)}
        p: Tensors = {name: 0.02 * draw.standard_normal(shape) for name, shape in shapes.items()}
        p |= {"feature_norm/gain": np.ones(F), "feature_norm/bias": np.zeros(F)}
        p |= {"read_norm/gain": np.ones(d), "read_norm/bias": np.zeros(d)}
        p |= {"read_scale": np.array(0.15)}
        k, v = draw.standard_normal((2, 1, n, d))
        way = {
            "memory": FUNCTIONS["polynomial"],
            "window": n,
            "newton_schulz": 5,
            "read": "call_end",
        }
        gates = {"retain": 0.999, "step_size": 0.05}
        for phase in ("both", "off"):
            y, _ = loops.run(way | {"phase": phase}, p, k, v, k, gates)
            along = y[0] @ v[0].T / np.linalg.norm(v[0], axis=1)
            hits[phase == "both"].append(np.mean(np.argmax(along, axis=1) == np.arange(n)))
    assert min(hits[True]) > 0.6
    assert np.mean(hits[False]) < 0.35
