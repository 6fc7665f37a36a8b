"""Queries projected onto keys against loops that form the matrix, and against recorded results of
public code.
"""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import tape
from atlas_ref import backend
from atlas_ref.layers import norm, query_key, rotary
from tape import ops
from tape.check import check_gradient, check_second
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.counting import counted, multiply_adds
from tests.support.layers import recorded
from tests.truth import query_key_loops as loops

D, C = 6, 3
CONFIGS = {
    "code": query_key.Config(d=D, window=C, persistent="identity"),
    "text": query_key.Config(d=D, window=C, keys_seen="inclusive", rows=4),
    "gate": query_key.Config(d=D, window=C, weights="gate", rows=2),
    "decay": query_key.Config(d=D, window=C, weights="decay", decay=0.7, rows=1),
    "rounded": query_key.Config(d=D, window=5, powers="float32", decay=0.9, rows=3),
    "one key": query_key.Config(d=D, window=1, rows=2),
    "own key": query_key.Config(d=D, window=1, keys_seen="inclusive", rows=2),
    "wide": query_key.Config(d=D, window=90, decay=0.99, rows=2, eps=1e-3),
    "constants": query_key.Config(
        d=D, window=4, persistent="identity", identity_factor=1.5, identity_size=0.3
    ),
}
WEIGHTS = {
    "decay_times_gate": lambda power, gate: power * gate,
    "gate": lambda power, gate: gate,
    "decay": lambda power, gate: power,
}


def drawn(config: query_key.Config, T: int, seed: int = 0, batch: int = 2) -> dict[str, Any]:
    """Parameters, queries, keys and gates, one gate of them 0."""
    draw = np.random.default_rng(seed)
    q, k = draw.standard_normal((2, batch, T, config.d))
    gate = draw.uniform(0.0, 1.0, (batch, T)) if config.gated else None
    if gate is not None:
        gate[:, T // 2] = 0.0
    rows = (config.rows, config.d)
    keys = draw.standard_normal(rows) if config.persistent == "learned" else None
    return {"keys": keys, "q": q, "k": k, "gate": gate}


def run(
    config: query_key.Config,
    at: dict[str, Any],
    cuts: Any = (),
    reset: Any = None,
    state: Any = None,
) -> tuple[Any, Any]:
    """The last state and the results of a call, or of several cut from it."""
    params = query_key.Params(keys=at["keys"])
    state = query_key.start(config, at["q"].shape[0]) if state is None else state
    results = []
    for part in np.split(np.arange(at["q"].shape[1]), sorted(cuts)):
        if len(part):
            tokens = slice(int(part[0]), int(part[-1]) + 1)
            gate = None if at["gate"] is None else at["gate"][:, tokens]
            q, k = at["q"][:, tokens], at["k"][:, tokens]
            each = None if reset is None else reset[part]
            state, y = query_key.apply(config, params, state, q, k, gate, reset=each)
            results.append(y)
    return state, ops.concatenate(results, axis=1)


def looped(config: query_key.Config, at: dict[str, Any], reset: Any = None) -> Any:
    """The same by the definition."""
    r = loops.Reading(
        config.window,
        config.decay,
        own=config.keys_seen == "inclusive",
        weight=WEIGHTS[config.weights],
        rounded=config.powers == "float32",
        eps=config.eps,
    )
    P, n_0 = config.identity_factor * np.eye(config.d), config.identity_size * config.d
    if at["keys"] is not None:
        P, n_0 = loops.of_rows(at["keys"])
    starts = () if reset is None else np.flatnonzero(reset)
    gates = np.ones(at["q"].shape[:2]) if at["gate"] is None else at["gate"]
    rows = zip(at["q"], at["k"], gates, strict=True)
    return np.stack([loops.projection(r, P, n_0, *each, starts) for each in rows])


@pytest.mark.clause("QK-1", "QK-2", "QK-3", "QK-4", "QK-5", "QK-8")
@pytest.mark.host("plain loops of the tests")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_reading_is_its_definition_with_a_matrix_for_every_token(
    name: str, packed: bool
) -> None:
    config = CONFIGS[name]
    at = drawn(config, 12)
    reset = np.isin(np.arange(12), [4, 5, 9]) if packed else None
    assert_close("y", run(config, at, (1, 7), reset)[1], looped(config, at, reset), ANALYTIC)


@pytest.mark.clause("QK-10")
@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
@pytest.mark.parametrize("name", CONFIGS)
def test_chunks_of_any_size_are_the_loop_over_tokens(name: str, chunk: int) -> None:
    config = CONFIGS[name]
    at = drawn(config, 23)
    first = np.where(np.arange(20) < 12, 0, 15)  # a document that began in a call before
    bar = np.random.default_rng(5).standard_normal((2, 20, D))

    def value(form: Any, at: Any, **chunks: Any) -> Any:
        params = query_key.Params(keys=at["keys"])
        return form(config, params, at["q"][:, 3:], at["k"], at["gate"], first, **chunks)

    chunked, plain = query_key.projected, query_key.plain_projected
    assert_close("y", value(chunked, at, chunk=chunk), value(plain, at), ANALYTIC)
    at = {key: x for key, x in at.items() if x is not None}

    def gradient(form: Any, **chunks: Any) -> Any:
        def loss(at: Any) -> Any:
            return ops.sum(value(form, {"keys": None, "gate": None} | at, **chunks) * bar)

        return tape.grad(loss)(at)

    got, want = gradient(chunked, chunk=chunk), gradient(plain)
    for key in at:
        assert_close(key, got[key], want[key], ANALYTIC)


@pytest.mark.clause("QK-1", "QK-2", "QK-3", "QK-4", "QK-10", "QK-12")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("form", ["chunked", "sequential"])
@pytest.mark.parametrize("name", ["plain", "gates", "default_persistent"])
def test_recorded_projections_of_public_code_with_their_gradients(name: str, form: str) -> None:
    file = recorded(f"mag_qk_{name}", "peers_atlas_mag")
    own, tensors = file.settings, file.tensors
    rows = own["persistent_keys"]
    config = query_key.Config(
        **query_key.PRESETS["atlas-mag" if form == "chunked" else "atlas-mag sequential"]
        | {
            "d": own["dim"],
            "window": own["context_window"],
            "decay": own["decay_base"],
            "weights": "decay_times_gate" if own["gates"] else "decay",
            "persistent": "learned" if rows else "identity",
            "rows": max(rows, 1),
        }
    )
    weights = query_key.powers(config)
    rounded = weights.astype(np.float32)
    assert_close("powers", rounded, tensors["in/buffer/decay_weights"], EXACT)
    assert np.array_equal(rounded, weights) == (form == "sequential")
    params = query_key.Params(keys=tensors.get("in/persistent_keys"))
    P = query_key.persistent_matrix(config, params)
    assert_close("P", P, tensors["in/buffer/m_persistent"], ANALYTIC)

    def merged(x: Any) -> Any:
        B, H, T, d = x.shape
        return ops.reshape(ops.swapaxes(x, 1, 2), (B, T, H * d))

    def value(at: Any) -> Any:
        gate = ops.squeeze(at["gamma"], -1) if own["gates"] else None
        state = query_key.start(config, at["q"].shape[0])
        q, k = merged(at["q"]), merged(at["k"])
        return query_key.apply(config, params, state, q, k, gate)[1]

    at = {key: tensors[f"in/{key}"] for key in ("q", "k", "gamma") if f"in/{key}" in tensors}
    assert_close("y", value(at), merged(tensors[f"out/y_{form}"]), ANALYTIC)
    bar = merged(tensors["in/y_bar"])
    gradient = tape.grad(lambda at: ops.sum(value(at) * bar))(at)
    assert set(gradient) == {key.split("/")[2] for key in tensors if key.startswith(f"grad/{form}")}
    for key, got in gradient.items():
        assert_close(key, got, tensors[f"grad/{form}/{key}"], ANALYTIC)


@pytest.mark.clause("QK-7", "QK-8")
@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=12, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 14), max_size=5),
    boundaries=st.sets(st.integers(0, 14), max_size=3),
)
def test_calls_of_any_length_give_what_one_call_gives(
    name: str, cuts: set[int], boundaries: set[int]
) -> None:
    config = CONFIGS[name]
    at, reset = drawn(config, 15), np.isin(np.arange(15), list(boundaries))
    whole, y = run(config, at, (), reset)
    after, same = run(config, at, cuts, reset)
    assert_close("y", same, y, ANALYTIC)
    assert after == whole
    own = 15 - max(boundaries, default=0)
    assert after.keys.shape[1] == min(own, config.window - (config.keys_seen == "inclusive"))


@pytest.mark.clause("QK-8")
@pytest.mark.parametrize("name", CONFIGS)
def test_documents_packed_into_a_call_are_documents_alone(name: str) -> None:
    config = CONFIGS[name]
    at, reset = drawn(config, 11), np.isin(np.arange(11), [4, 8])
    state, _ = run(config, drawn(config, 5, seed=1))
    after, y = run(config, at, (), reset, state)
    for part in (slice(0, 4), slice(4, 8), slice(8, 11)):
        own = {key: x if key == "keys" or x is None else x[:, part] for key, x in at.items()}
        alone, want = run(config, own, state=state if part.start == 0 else None)
        assert_close(str(part), y[:, part], want, ANALYTIC)
    assert after == alone


@pytest.mark.clause("QK-9")
@pytest.mark.parametrize("name", CONFIGS)
def test_no_token_changes_a_bit_of_what_comes_before_it(name: str) -> None:
    config = CONFIGS[name]
    at = drawn(config, 140)
    _, y = run(config, at)
    for t in (0, 1, 63, 64, 139):
        for size in (1.0, 1e150):
            other = {key: None if x is None else np.array(x) for key, x in at.items()}
            for key in ("q", "k", "gate"):
                if other[key] is not None:
                    other[key][:, t] += size if key == "k" else 1.0
            _, changed = run(config, other)
            assert_close(f"before {t}", changed[:, :t], y[:, :t], EXACT)
            assert_differs(f"at {t}", changed[:, t], y[:, t], 1e-3)


@pytest.mark.clause("QK-9")
def test_sequences_of_a_batch_are_independent() -> None:
    config = CONFIGS["text"]
    at = drawn(config, 9, batch=3)
    _, together = run(config, at)
    for b in range(3):
        own = {key: x if key == "keys" else x[b : b + 1] for key, x in at.items()}
        assert_close(str(b), run(config, own)[1], together[b : b + 1], ANALYTIC)


def weighed(name: str) -> tuple[Any, Any]:
    """A linear function of results and of the last state of two calls, and where it is taken."""
    config = CONFIGS[name]
    at = {key: x for key, x in drawn(config, 7, batch=1).items() if x is not None}
    draw = np.random.default_rng(7)
    bars = draw.standard_normal((2, 1, 7, D))

    def loss(at: Any) -> Any:
        full = {"keys": None, "gate": None} | at
        reset = np.arange(7) == 2
        state, y = run(config, full, (4,), reset)
        total = ops.sum(y * bars[0]) + ops.sum(state.keys * bars[1, :, : state.keys.shape[1]])
        return total if state.gates is None else total + ops.sum(state.gates * 0.3)

    return loss, at


@pytest.mark.clause("QK-3", "QK-10")
@pytest.mark.host("a complex step, entry by entry")
@pytest.mark.parametrize("name", CONFIGS)
def test_every_gradient_is_its_complex_step_and_finite_at_a_gate_of_zero(name: str) -> None:
    loss, at = weighed(name)
    check_gradient(loss, at)
    gradient = tape.grad(loss)(at)
    assert all(np.isfinite(each).all() for each in gradient.values())
    if "gate" in at:
        assert np.min(at["gate"]) == 0.0
        assert gradient["gate"][0, 3] != 0.0


@pytest.mark.clause("QK-10")
@pytest.mark.host("a complex step, entry by entry")
def test_a_second_derivative_is_the_complex_step_of_the_first() -> None:
    loss, at = weighed("text")
    draw = np.random.default_rng(3)
    check_second(loss, at, {key: draw.standard_normal(x.shape) for key, x in at.items()})


@pytest.mark.clause("QK-10")
@pytest.mark.host("counts products")
def test_work_is_linear_in_tokens_and_no_matrix_of_keys_is_formed() -> None:
    d, c, N = 48, 70, 5
    config = query_key.Config(d=d, window=c, rows=N)
    params = query_key.init(config)

    def work(T: int) -> int:
        at = drawn(config, T, batch=1)
        first = np.zeros(T, int)
        arrays = [counted(at[key]) for key in ("q", "k", "gate")]
        return multiply_adds(lambda: query_key.projected(config, params, *arrays, first))

    one, two = work(1024), work(2048)
    assert two - one <= 1024 * (2 * d * (c + 64) + 2 * d * N)

    def peak(T: int) -> int:
        at = drawn(config, T, batch=1) | {"keys": params.keys}
        loss = tape.grad(lambda q: ops.sum(run(config, at | {"q": q})[1] ** 2))
        loss(at["q"])
        tracemalloc.start()
        loss(at["q"])
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(2048) < 4.4 * peak(512)
    assert peak(512) < 512 * 8 * d * d / 2


@pytest.mark.clause("QK-3", "QK-5")
@pytest.mark.host("a statement about sizes")
def test_the_constants_of_public_code_lengthen_the_first_queries() -> None:
    d, T = 64, 64
    config = query_key.Config(d=d, **query_key.PRESETS["atlas-mag"])
    draw = np.random.default_rng(0)
    q, k = draw.standard_normal((2, 8, T, d)) / np.sqrt(d)
    at = {"keys": None, "q": q, "k": k, "gate": np.ones((8, T))}
    size = np.linalg.norm(run(config, at)[1], axis=-1) / np.linalg.norm(q, axis=-1)
    assert_close("first", size[:, 0], np.full(8, 0.1 / (0.01 * d + 1e-6)), ANALYTIC)
    sums = config.replaced(persistent="learned", rows=d)
    at = at | {"keys": np.sqrt(0.01) * np.linalg.qr(draw.standard_normal((d, d)))[0]}
    own = np.linalg.norm(run(sums, at)[1], axis=-1) / np.linalg.norm(q, axis=-1)
    assert_close("trace P = n_0", own[:, 0] * 10, size[:, 0], ANALYTIC)
    assert np.max(own) <= 1.0


@pytest.mark.clause("QK-6")
def test_keys_that_were_turned_bind_the_projection_to_absolute_positions() -> None:
    config, T = query_key.Config(d=8, window=16, persistent="identity"), 12
    turn = rotary.Config(d=8, pairs="halves")
    at = drawn(config, T, seed=2)

    def projection(first: int | None) -> Any:
        own = dict(at)
        if first is not None:
            state = rotary.start(turn, position=first)
            for key in ("q", "k"):
                own[key] = rotary.apply(turn, rotary.Params(), state, at[key])[1]
        return run(config, own)[1], own

    (here, own), (there, moved) = projection(0), projection(50)
    scores = [each["q"] @ np.swapaxes(each["k"], -1, -2) for each in (own, moved)]
    assert_close("scores", scores[1], scores[0], ANALYTIC)
    assert_differs("turned", there, here, 0.1)


@pytest.mark.clause("QK-11")
@pytest.mark.host("bytes")
def test_the_fingerprint_is_the_hash_of_the_matrix_and_shows_the_last_bit() -> None:
    config = query_key.Config(d=3, window=2, rows=5)
    rows = np.random.default_rng(1).standard_normal((5, 3))
    P = [[0.0] * 3 for _ in range(3)]
    for row in rows.tolist():
        for a in range(3):
            for b in range(3):
                P[a][b] += row[a] * row[b]
    digest = hashlib.sha256(b"".join(struct.pack("<d", x) for line in P for x in line)).hexdigest()
    params = query_key.Params(keys=rows)
    assert query_key.fingerprint(config, params) == digest
    M = query_key.persistent_matrix(config, params)
    assert_close("symmetric", M, M.T.copy(), EXACT)
    rows[4, 2] = np.nextafter(rows[4, 2], 9.0)
    assert query_key.fingerprint(config, query_key.Params(keys=rows)) != digest
    unit = query_key.Config(d=2, window=2, persistent="identity")
    digest = hashlib.sha256(struct.pack("<4d", 0.1, 0.0, 0.0, 0.1)).hexdigest()
    assert query_key.fingerprint(unit, query_key.Params()) == digest
    single = query_key.init(config, dtype=np.float32)
    assert query_key.persistent_matrix(config, single).dtype == np.float32


@pytest.mark.clause("QK-3")
@pytest.mark.host("a distribution")
def test_rows_start_small() -> None:
    rows = query_key.init(query_key.Config(d=200, window=2), 3).keys
    assert rows.shape == (64, 200)
    assert np.std(rows) == pytest.approx(0.02, rel=0.03)
    assert query_key.init(CONFIGS["code"], 3).keys is None


@pytest.mark.clause("QK-10")
@pytest.mark.parametrize("name", CONFIGS)
def test_float32_stays_float32(name: str) -> None:
    config = CONFIGS[name]
    at = drawn(config, 9)
    small = {key: None if x is None else x.astype(np.float32) for key, x in at.items()}
    state = query_key.start(config, 2, dtype=np.float32)
    after, y = run(config, small, (4,), state=state)
    assert y.dtype == after.keys.dtype == np.float32
    assert_close("y", y, run(config, at)[1], reordered(100, dtype=np.float32))


@pytest.mark.clause("QK-7")
def test_a_state_keeps_no_other_array_alive() -> None:
    after, _ = run(CONFIGS["code"], drawn(CONFIGS["code"], 100))
    for each in (after.keys, after.gates):
        assert each.base is None or each.base.size <= each.size


@pytest.mark.clause("QK-1", "QK-3", "QK-4")
def test_arguments_that_contradict_the_settings_are_refused_in_one_line() -> None:
    config = CONFIGS["text"]
    at, state = drawn(config, 5), query_key.start(config, 2)
    params = query_key.Params(keys=at["keys"])
    q, k, gate = (at[key] for key in ("q", "k", "gate"))
    long = query_key.State(keys=np.ones((2, 3, D)), gates=np.ones((2, 3)))
    plain = CONFIGS["decay"]
    one, wrong = query_key.Params(keys=np.ones((1, D))), query_key.Params(keys=np.ones((3, D)))
    cases: list[tuple[Any, Any]] = [
        ((config, norm.Params(), state, q, k, gate), r"params: atlas_ref\.layers\.norm\.Params"),
        ((config, params, state, q[..., :4], k, gate), r"q: shape \(2, 5, 4\), expected \(batch"),
        ((config, params, state, q, k[:, :4], gate), r"k: shape \(2, 4, 6\), expected \(2, 5, 6\)"),
        ((config, params, state, q[:, :0], k, gate), "with at least one token"),
        ((config, params, state, q, k, None), "gate: missing, but weights decay_times_gate need"),
        ((plain, one, query_key.start(plain, 2), q, k, gate), "gate: present, but weights decay"),
        ((plain, one, state, q, k, None), "state.gates: present, but weights decay take no gates"),
        ((config, params, state, q, k, gate[:, :4]), r"gate: shape \(2, 4\), expected \(2, 5\)"),
        ((config, params, state, q, k, gate - 0.5), "gate: entries must be at least 0"),
        ((config, params, state, q * np.nan, k, gate), "q: every entry must be finite"),
        (
            (config, params, query_key.start(config, 3), q, k, gate),
            r"state.keys: shape \(3, 0, 6\)",
        ),
        ((config, params, long, q, k, gate), "state.keys: 3 rows, expected at most 2"),
        ((config, query_key.Params(), state, q, k, gate), "params.keys: missing, but persistent"),
        ((CONFIGS["code"], params, state, q, k, gate), "params.keys: present, but persistent is"),
        ((config, wrong, state, q, k, gate), r"params.keys: shape \(3, 6\), expected \(4, 6\)"),
        ((config, params, state, q, k.astype(np.float32), gate), "k: float32, but q is float64"),
    ]
    for arguments, says in cases:
        with pytest.raises(ValueError, match=says) as refusal:
            query_key.apply(*arguments)
        assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match=r"reset: bool of shape \(4,\)"):
        query_key.apply(config, params, state, q, k, gate, reset=np.ones(4, bool))
    with pytest.raises(ValueError, match="seed: -1, expected a whole number"):
        query_key.init(config, -1)
    with pytest.raises(ValueError, match="batch: -1, expected a whole number"):
        query_key.start(config, -1)
    for change in ({"decay": 0.0}, {"decay": 1.5}, {"eps": 0.0}, {"window": 0}, {"rows": 0}):
        with pytest.raises(ValidationError):
            query_key.Config(**{"d": 2, "window": 2} | change)
    for preset in query_key.PRESETS.values():
        assert preset.keys() <= query_key.Config.model_fields.keys()
    assert backend.host(run(config, at)[1]).shape == q.shape
