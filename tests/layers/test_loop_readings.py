"""Readings of memory layers, blocks and models that no public code recorded, by plain loops.

Causal readings are cut anywhere without a change and see no future, and every setting shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support import layer_files
from tests.support.close import ANALYTIC, FINITE_DIFFERENCE, assert_close, assert_differs
from tests.support.layers import recorded
from tests.truth import block_loops, model_loops
from tests.truth import memory_layer_loops as layer

pytestmark = pytest.mark.host("plain loops of the tests")

D, WIDTH, T = 5, 4, 11
RESET = np.isin(np.arange(T), [3, 4, 8])
#: Memory layers whose result no cut of the sequence changes.
MEMORIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "after projection": {"conv_place": "after_projection", "conv_activation": "silu"},
    "silu before projection": {"conv_activation": "silu"},
    "gates of keys and values": {"gate_input": "keys_values", "window": 2},
    "rms": {"head_norm": "rms_add"},
    "l2": {"head_norm": "l2"},
    "no head norm": {"head_norm": "none"},
    "softplus": {"step_size": "softplus", "head_norm": "l2"},
    "read after": {"read": "after"},
    "no momentum": {"momentum": False, "window": 3},
    "window recomputed": {"window": 3, "gated": True},
    "window carried": {"window": 3, "gated": True, "boundary": "carry"},
    "span recomputed": {"window": 4, "reference": 3},
    "span carried": {"window": 4, "reference": 3, "boundary": "carry"},
    "span cut": {"window": 4, "reference": 3, "boundary": "cut"},
    "elementwise": {"phi": "elementwise", "degree": 2, "head_norm": "l2"},
    "tensor": {"phi": "tensor", "degree": 2, "head_norm": "l2"},
    "input without norm": {"memory_input": "x"},
}
CAUSAL = {"mode": "causal", "visible": "always", "position": "absolute", "window": 4}
BLOCKS: dict[str, dict[str, Any]] = {
    "mag": {"kind": "mag"},
    "mag gate of the norm": {"kind": "mag", "gate_input": "norm"},
    "mag attention times gate": {"kind": "mag", "mix": "attention_times_gate"},
    "mag product": {"kind": "mag", "mix": "product"},
    "mag sum": {"kind": "mag", "mix": "sum"},
    "mag without itself": {"kind": "mag", "counts_self": False},
    "mag halves": {"kind": "mag", "pairs": "halves"},
    "mag first gelu": {"kind": "mag", "gate_half": "first", "activation": "gelu"},
    "mal": {"kind": "mal"},
    "mal memory, attention": {"kind": "mal", "order": "memory_attention_ff"},
    "lmm": {"kind": "lmm"},
    "segments of 3": {"kind": "mac_segments", "segment": 3},
    "segments of 4": {"kind": "mac_segments", "segment": 4, "mix": "product"},
    "segments of 4, their start": {"kind": "mac_segments", "segment": 4, "reference": "call_start"},
    "segments of 1": {"kind": "mac_segments", "segment": 1, "mix": "attention_times_gate"},
    "segments longer than all": {"kind": "mac_segments", "segment": 20, "mix": "sum"},
}
Run = Callable[..., Any]


def tokens(seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((T, D))


def of_memory(name: str, p: Any = None) -> tuple[Run, Any]:
    """A call of the memory layer, and its state before the first token."""
    r = layer.Reading(2, norm_eps=1e-6, **MEMORIES[name])
    p = layer_files.drawn_memory(r, D, WIDTH, 3) if p is None else p
    return lambda x, state, reset=None: layer.memory(x, p, r, state, reset), layer.start(2, WIDTH)


def of_block(name: str, p: Any = None) -> tuple[Run, Any]:
    """A call of the block, and its state before the first token."""
    settings = dict(BLOCKS[name])
    reference = settings.pop("reference", "running")
    r = layer.Reading(2, norm_eps=1e-6, window=2, reference=reference)
    b = block_loops.Block(**CAUSAL | {"eps": 1e-6, "memory": r} | settings)
    p = layer_files.drawn_block(b, D, WIDTH, 3) if p is None else p
    start = block_loops.start(b, p)
    return lambda x, state, reset=None: block_loops.block(x, p, b, state, reset), start


EVERY = [(of_memory, name) for name in MEMORIES] + [(of_block, name) for name in BLOCKS]
NAMES = [name for _, name in EVERY]


def whole(run: Run, state: Any, x: Any, cuts: Any, reset: Any = None) -> tuple[Any, Any]:
    results = []
    for part in np.split(np.arange(len(x)), cuts):
        y, state = run(x[part], state, None if reset is None else reset[part])
        results.append(y)
    return np.concatenate(results), state


def memory_of(state: Any) -> Any:
    return state.memory if hasattr(state, "memory") else state


@pytest.mark.sample(24)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("of", "name"), EVERY, ids=NAMES)
def test_no_cut_of_a_sequence_changes_the_causal_readings(of: Any, name: str, packed: bool) -> None:
    run, state = of(name)
    reset = RESET if packed else None
    y, after = whole(run, state, tokens(), [], reset)
    for cuts in ([5], [1, 4, 7], list(range(1, T))):
        parts, cut = whole(run, state, tokens(), cuts, reset)
        assert_close(f"y, {cuts}", parts, y, ANALYTIC)
        assert_close(f"S, {cuts}", memory_of(cut).S, memory_of(after).S, ANALYTIC)
        assert_close(f"Z, {cuts}", memory_of(cut).Z, memory_of(after).Z, ANALYTIC)


@pytest.mark.parametrize(("of", "name"), EVERY, ids=NAMES)
def test_documents_in_one_sequence_are_documents_alone(of: Any, name: str) -> None:
    run, state = of(name)
    y, after = run(tokens(), state, RESET)
    parts = [run(x, state) for x in np.split(tokens(), np.flatnonzero(RESET))]
    assert_close("y", y, np.concatenate([part for part, _ in parts]), ANALYTIC)
    assert_close("S", memory_of(after).S, memory_of(parts[-1][1]).S, ANALYTIC)


@pytest.mark.parametrize(("of", "name"), EVERY, ids=NAMES)
def test_no_token_changes_what_comes_before_it(of: Any, name: str) -> None:
    run, state = of(name)
    x = tokens()
    y, _ = run(x, state)
    for t in (4, T - 1):
        moved = np.where(np.arange(T)[:, None] == t, x + 1.0, x)
        other, _ = run(moved, state)
        assert np.array_equal(other[:t], y[:t])
        read_before = of is of_memory and MEMORIES[name].get("read") != "after"
        assert_differs(f"row {t}", other[t], y[t], 1e-3 if not read_before else 1e-6)


@pytest.mark.parametrize("of", [of_memory, of_block])
def test_every_setting_shows(of: Any) -> None:
    names = list(MEMORIES if of is of_memory else BLOCKS)
    results = []
    for name in names:
        run, state = of(name)
        results.append(run(tokens(), state)[0])
    for i, one in enumerate(results):
        for j in range(i):
            assert_differs(f"{names[i]} and {names[j]}", one, results[j], 1e-6)


@pytest.mark.parametrize(("of", "name"), EVERY, ids=NAMES)
def test_the_complex_step_is_the_quotient_of_differences(of: Any, name: str) -> None:
    """Along a direction in all parameters and tokens, of results and of the state after them."""
    draw = np.random.default_rng(1)
    r = layer.Reading(2, **MEMORIES[name]) if of is of_memory else layer.Reading(2)
    p = layer_files.drawn_memory(r, D, WIDTH, 3)
    if of is of_block:
        p = layer_files.drawn_block(block_loops.Block("mag", r), D, WIDTH, 3)
    way = {key: draw.standard_normal(a.shape) for key, a in p.items() if "freqs" not in key}
    bar, bar_S = draw.standard_normal((T, D)), draw.standard_normal((2, WIDTH, WIDTH))
    step = draw.standard_normal((T, D))

    def loss(h: Any) -> Any:
        moved = {key: a + h * way[key] if key in way else a for key, a in p.items()}
        run, state = of(name, moved)
        y, after = run(tokens() + h * step, state, RESET)
        return np.sum(y * bar) + np.sum(memory_of(after).S * bar_S)

    want = (8 * (loss(1e-4) - loss(-1e-4)) - (loss(2e-4) - loss(-2e-4))) / 12e-4
    assert_close("derivative", np.imag(loss(1e-30j)) / 1e-30, want, FINITE_DIFFERENCE)


@pytest.mark.parametrize(
    ("name", "reference"), [("titans_running", "running"), ("omega4_anchor4", 4)]
)
def test_references_are_the_recorded_calls_of_as_many_tokens(name: str, reference: Any) -> None:
    file = recorded(f"atlas_rnn_memory_{name}_noconv")
    r = layer_files.reading(file.settings)._replace(reference=reference, clamp=None)
    p, x = file.named("in/param/cell."), file.tensors["in/x"][0]
    before = layer_files.of_sequence(file.named("in/state/"), 0, r, file.settings["dim_head"])
    y, after = layer.memory(x, p, r, before)
    assert_close("y", y, file.tensors["out/y"][0], ANALYTIC)
    for key, array in layer_files.as_arrays([after], r).items():
        assert_close(key, array, file.tensors[f"out/state/{key}"], ANALYTIC)


@pytest.mark.parametrize("reference", ["running", "call_start"])
def test_a_segment_is_attention_beside_reads_and_a_memory_of_its_results(reference: str) -> None:
    """Of one segment without persistent rows, from calls of the parts on whole prefixes."""
    r = layer.Reading(2, window=2, reference=reference)
    b = block_loops.Block("mac_segments", r, segment=20)
    p = layer_files.drawn_block(b, D, WIDTH, 3, persistent=0)
    own, p_memory = block_loops.below(p, "attention."), block_loops.below(p, "memory.")
    x, S = tokens(), np.random.default_rng(2).standard_normal((2, WIDTH, WIDTH))
    first = layer.start(2, WIDTH)._replace(S=S)
    y, after = block_loops.block(x, p, b, block_loops.start(b, p)._replace(memory=first))

    still = p_memory | {"to_lr.0.bias": -np.full(2, 1e4), "to_decay.0.bias": np.full(2, 1e4)}
    with np.errstate(over="ignore"):  # a rate of 0 and a retention of 1
        h, _ = layer.memory(x, still, r._replace(window=1, reference="running"), first)
    a = []
    for i in range(T):
        extra: list[Any] = [[[], []], [[], []]]
        for j in range(i + 1):
            row = block_loops.norm(h[j], "rms", b.eps, "add", own["norm.weight"])
            _, k, v = block_loops.projected(row, own, 2)
            for head in range(2):
                turned = block_loops.rotary(k[head], j - 20, own["rotary_emb.freqs"], b.pairs)
                extra[0][head].append(turned)
                extra[1][head].append(v[head])
        a.append(block_loops.attention(x[: i + 1], own, b, extra=extra)[0][i])
    m, memory = layer.memory(np.array(a), p_memory, r._replace(read="after"), first)
    want = block_loops.mixed(x, np.array(a), m, p, b)
    want = want + block_loops.feed_forward(want, block_loops.below(p, "ff."), b)
    assert_close("y", y, want, ANALYTIC)
    assert_close("S", after.memory.S, memory.S, ANALYTIC)


@pytest.mark.parametrize("name", ["mag", "mal", "lmm", "segments of 3"])
def test_causal_models_generate_with_a_cache_what_they_generate_without(name: str) -> None:
    r = layer.Reading(2, window=2)
    b = block_loops.Block(**CAUSAL | {"memory": r} | BLOCKS[name])
    m, draw = model_loops.Model((b, b)), np.random.default_rng(4)
    p = {"embed.weight": draw.standard_normal((7, D)), "to_logits.weight": draw.normal(size=(7, D))}
    for key in ("embed_norm", "norm"):
        p |= {f"{key}.weight": draw.standard_normal(D), f"{key}.bias": draw.standard_normal(D)}
    for i in range(2):
        own = layer_files.drawn_block(b, D, WIDTH, i)
        p |= {f"layers.{i}.{key}": a for key, a in own.items()}

    def choose(z: Any, step: int) -> int:
        return model_loops.sampled(z, np.full(7, 0.1 * step), 1.0, 0.1)

    ids, z = model_loops.generated([1, 5, 2], 7, p, m, choose, True)
    plain, want = model_loops.generated([1, 5, 2], 7, p, m, choose, False)
    assert ids == plain
    assert_close("logits", z, want, ANALYTIC)
    one, _ = model_loops.logits(ids[:-1], p, m, model_loops.start(m, p))
    assert_close("one call", z, one[2:], ANALYTIC)
    reset = np.isin(np.arange(9), [4])
    packed, _ = model_loops.logits(ids[:-1], p, m, model_loops.start(m, p), reset)
    assert_close("the first document", packed[:4], one[:4], ANALYTIC)
    second, _ = model_loops.logits(ids[4:-1], p, m, model_loops.start(m, p))
    assert_close("the second document", packed[4:], second, ANALYTIC)


def test_gates_are_their_formulas_in_both_readings() -> None:
    """A gate of [k; v] reads k after its norm and before the feature map, first the key."""
    r = layer.Reading(2, gate_input="keys_values", step_size="softplus", phi="elementwise")
    r = r._replace(degree=2, norm_eps=1e-6)
    p = layer_files.drawn_memory(r, D, WIDTH, 3)
    x = tokens()
    token = layer.of_tokens(x, p, r)[0][6]
    k = layer.of_tokens(x, p, r._replace(phi="off"))[0][6].k
    assert_close("mapped", token.k, k + k**2, ANALYTIC)
    for h in range(2):
        z = {
            name: sum(p[f"to_{name}.0.weight"][h, :WIDTH] * k[h])
            + sum(p[f"to_{name}.0.weight"][h, WIDTH:] * token.v[h])
            + p[f"to_{name}.0.bias"][h]
            for name in token.gates
        }
        assert_close("rate", token.gates["lr"][h], np.log1p(np.exp(z["lr"])), ANALYTIC)
        for name in ("decay", "momentum", "omega_gate"):
            assert_close(name, token.gates[name][h], 1.0 / (1.0 + np.exp(-z[name])), ANALYTIC)


def test_the_ends_of_scan_chunks_bound_the_memory_as_the_ends_of_calls_do() -> None:
    r = layer.Reading(2, clamp=0.3, scan_chunk=3, head_norm="l2")
    p, first = layer_files.drawn_memory(r, D, WIDTH, 3), layer.start(2, WIDTH)
    y, after = layer.memory(tokens(), p, r, first)
    calls = r._replace(scan_chunk=None)
    want, cut = whole(lambda x, s, _: layer.memory(x, p, calls, s), first, tokens(), [3, 6, 9])
    assert_close("y", y, want, ANALYTIC)
    assert_close("S", after.S, cut.S, ANALYTIC)
    assert_differs("one chunk", y, layer.memory(tokens(), p, calls, first)[0], 1e-2)


@pytest.mark.parametrize("name", ["segments of 3", "segments of 4, their start"])
def test_a_segment_begins_from_the_memory_alone(name: str) -> None:
    """At a segment's end nothing of its rows is left but the memory and the convolutions' tails."""
    run, state = of_block(name)
    length = BLOCKS[name]["segment"]
    first, between = run(tokens()[:length], state)
    rest, _ = run(tokens()[length:], between._replace(segment=None))
    y, _ = run(tokens(), state)
    assert_close("y", np.concatenate([first, rest]), y, ANALYTIC)
    anew, _ = run(tokens()[length:], between._replace(memory=state.memory, segment=None))
    assert_differs("without the memory", anew, rest, 1e-3)


def test_mixes_and_orders_are_their_formulas() -> None:
    """Of whole arrays, from the calls of the parts."""

    def rms(z: Any, name: str) -> Any:
        return z / np.sqrt(np.mean(z * z, -1, keepdims=True) + 1e-6) * p[f"{name}_norm.weight"]

    run, state = of_block("mag")
    r = layer.Reading(2, norm_eps=1e-6, window=2)
    b = block_loops.Block(**CAUSAL | {"eps": 1e-6, "memory": r, "kind": "mag"})
    p, x = layer_files.drawn_block(b, D, WIDTH, 3), tokens()
    own = block_loops.below(p, "memory.")
    a, _ = block_loops.attention(x, block_loops.below(p, "attention."), b)
    m, _ = layer.memory(x, own, r, state.memory)

    def gate(z: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-(z @ p["gate.0.weight"].T + p["gate.0.bias"])))

    of_norm = gate(rms(x, "gate"))
    mixes = {
        "mag": gate(x) * a + (1 - gate(x)) * m,
        "mag gate of the norm": of_norm * a + (1 - of_norm) * m,
        "mag attention times gate": a / (1 + np.exp(-m)),
        "mag product": rms(a, "attention") * rms(m, "memory"),
        "mag sum": a + gate(x) * m,
        "lmm": m,
    }
    mal = x + m + block_loops.attention(x + m, block_loops.below(p, "attention."), b)[0]
    mixes["mal memory, attention"] = mal - x
    for name, mixed in mixes.items():
        run, state = of_block(name)
        want = x + mixed
        want = want + block_loops.feed_forward(want, block_loops.below(p, "ff."), b)
        assert_close(name, run(x, state)[0], want, ANALYTIC)
