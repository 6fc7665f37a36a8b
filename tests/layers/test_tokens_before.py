"""Persistent tokens before each document: against plain loops over [p; x], cut and packed; what they
reach; what is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.blocks import mac, mag, mal
from atlas_ref.layers import attention, convention
from tests.layers.test_against_loops import as_params, of_blocks, readings, settings
from tests.support import layer_files
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.layer_blocks import block
from tests.support.layers import Layer
from tests.truth import block_loops, prefix_loops
from tests.truth import memory_layer_loops as loops

pytestmark = pytest.mark.host("plain loops of the tests")

D, WIDTH, T, P = 5, 4, 11, 3
RESET = np.isin(np.arange(T), [3, 4, 8])
MODULES = {"mag": mag, "mal": mal, "mac_segments": mac}
CASES: dict[str, dict[str, Any]] = {
    "mag": {"kind": "mag"},
    "mag in the window": {"kind": "mag", "visible": "window"},
    "mag without itself": {"kind": "mag", "counts_self": False, "mix": "product"},
    "mag halves": {"kind": "mag", "pairs": "halves", "window": 2},
    "mal": {"kind": "mal"},
    "mal in the window": {"kind": "mal", "visible": "window"},
    "mal memory, attention": {"kind": "mal", "order": "memory_attention_ff"},
    "segments of 3": {"kind": "mac_segments", "segment": 3},
    "segments of 4": {"kind": "mac_segments", "segment": 4, "mix": "product"},
}


def case(name: str) -> tuple[Any, Any, Any, Any, Any]:
    """Module, settings and parameters of ours; parameters and settings of the loops."""
    own = {"window": 4, "mode": "causal", "visible": "always", "position": "absolute"} | CASES[name]
    r = loops.Reading(2, norm_eps=1e-6, window=2)
    if own["kind"] == "mac_segments":
        r = r._replace(read="after")
    b = block_loops.Block(memory=r, eps=1e-6, **own)
    p = layer_files.drawn_block(b, D, WIDTH, 3)
    p["attention.persist_tokens"] = np.random.default_rng(2).standard_normal((P, D))
    if b.order == "memory_attention_ff":
        p |= {f"ff_post.{each}": p[f"ff.{each}"] for each in ("0.weight", "1.weight", "1.bias")}
        p |= {f"ff_post.{each}": p[f"ff.{each}"] for each in ("3.weight", "3.bias")}
    c = readings(
        r,
        mag=b.mix,
        mal_order=b.order,
        window_counts_self=b.counts_self,
        rotary_pairs=b.pairs,
        rotary_base=100.0,
        persistent_kind="prepended",
        persistent_visible=b.visible,
    )
    module = MODULES[b.kind]
    of_window = {"segment": b.segment} if module is mac else {"window": b.window}
    config = module.configured(
        c, settings(r), d_model=D, heads=2, d_head=WIDTH, d_inner=3, persistent=P, **of_window
    )
    names = of_blocks(b.kind) | {".attention.persistent": "attention.persist_tokens"}
    return module, config, as_params(module, config, p, names), p, b


def run(module: Any, config: Any, params: Any, x: Any, cuts: Any, reset: Any = None) -> Any:
    """Results of a call that is cut, and the state after it."""
    state, results = module.start(config, len(x)), []
    for part in np.split(np.arange(x.shape[1]), cuts):
        documents = None if reset is None else reset[part]
        state, y = module.apply(config, params, state, x[:, part], reset=documents)
        results.append(y)
    return np.concatenate(results, axis=1), state


@pytest.mark.clause("BLOCKS-9", "ATTENTION-16")
@pytest.mark.parametrize("cuts", [[], [1, 2, 6]], ids=["one call", "cut"])
@pytest.mark.parametrize("packed", [False, True], ids=["alone", "packed"])
@pytest.mark.parametrize("name", CASES)
def test_every_document_is_the_loop_over_the_tokens_before_it_and_its_own(
    name: str, packed: bool, cuts: list[int]
) -> None:
    module, config, params, p, b = case(name)
    x = np.random.default_rng(5).standard_normal((2, T, D))
    reset = RESET if packed else None
    bounds = np.flatnonzero(RESET) if packed else []
    want = [
        np.concatenate([prefix_loops.document(part, p, b) for part in np.split(row, bounds)])
        for row in x
    ]
    assert_close("y", run(module, config, params, x, cuts, reset)[0], np.stack(want), ANALYTIC)


@pytest.mark.clause("BLOCKS-9", "ATTENTION-16")
@pytest.mark.parametrize("module", [mag, mal])
def test_in_the_window_they_are_tokens_of_a_sequence_whose_first_results_are_left_out(
    module: Any,
) -> None:
    before = {"persistent_kind": "prepended", "persistent_visible": "window"}
    config = block(module, window=4, **before)
    params, x = Layer(module, config).drawn(), Layer(module, config).tokens(9)
    y, state = run(module, config, params, x, [4])
    plain = block(module, window=4, persistent=0)
    rows = params.attention.persistent
    without = params.replaced(attention=params.attention.replaced(persistent=None))
    whole = np.concatenate([np.broadcast_to(rows, (2, *rows.shape)), x], axis=1)
    want, after = run(module, plain, without, whole, [])
    assert_close("y", y, want[:, len(rows) :], ANALYTIC)
    assert_close("keys", state.attention.keys, after.attention.keys, ANALYTIC)
    assert state.attention.rotary == after.attention.rotary
    M, other = (each.memory.levels.states[0].M for each in (state, after))
    assert_close("M", M, other, ANALYTIC)


@pytest.mark.clause("ATTENTION-16")
def test_a_window_of_all_tokens_sees_them_too_and_a_short_one_does_not() -> None:
    def results(visible: str, window: int) -> Any:
        own = {"persistent_kind": "prepended", "persistent_visible": visible}
        config = block(mag, window=window, **own).attention
        layer = Layer(attention, config)
        return layer.run(layer.drawn(), layer.tokens(9))[1]

    assert_close("y", results("always", 11), results("window", 11), ANALYTIC)
    short = [results(visible, 3) for visible in ("always", "window")]
    assert_close("first", short[0][:, 0], short[1][:, 0], ANALYTIC)
    assert_differs("last", short[0][:, -1], short[1][:, -1], 1e-3)


@pytest.mark.clause("BLOCKS-9")
@pytest.mark.parametrize("module", [mag, mal])
def test_they_reach_the_memory_of_mag_and_mal_and_rows_of_keys_reach_none(module: Any) -> None:
    def memory_of(kind: str, more: float) -> Any:
        config = block(module, persistent_kind=kind)
        params, x = Layer(module, config).drawn(), Layer(module, config).tokens(1)
        own = params.attention.replaced(persistent=params.attention.persistent + more)
        state, _ = module.apply(config, params.replaced(attention=own), module.start(config, 2), x)
        return state.memory.levels.states[0].M

    assert_close("rows", memory_of("key_value", 0.5), memory_of("key_value", 0.0), EXACT)
    assert_differs("tokens", memory_of("prepended", 0.5), memory_of("prepended", 0.0), 1e-3)


@pytest.mark.clause("ATTENTION-16")
def test_their_keys_are_turned_and_are_not_their_values() -> None:
    config = block(mag, persistent_kind="prepended").attention
    params = Layer(attention, config).drawn()
    rows = np.random.default_rng(0).standard_normal((2, 2, 6))
    state = attention.opened(config, params, rows)
    assert state.begun
    assert state.rotary.position == 2
    assert state.keys.shape == (2, 2, 0, 4)
    assert_differs("second", state.prefix_keys[..., 1, :], state.prefix_values[..., 1, :], 0.1)
    bare = config.replaced(rotary=None)
    unturned = attention.opened(bare, params, rows)
    assert_close("first", state.prefix_keys[..., 0, :], unturned.prefix_keys[..., 0, :], ANALYTIC)
    assert_differs("second", state.prefix_keys[..., 1, :], unturned.prefix_keys[..., 1, :], 1e-2)


@pytest.mark.sample(1)
@pytest.mark.clause("ATTENTION-11", "ATTENTION-16")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_long_call_is_the_softmax_over_all_pairs(dtype: Any) -> None:
    """Of a size that compiled code takes, where it is installed."""
    c = convention.resolve({"persistent_kind": "prepended"})
    config = attention.configured(
        c, d_model=16, heads=4, d_head=32, window=64, persistent=3
    ).replaced(rotary=None)
    params = attention.init(config, 3, dtype=dtype)
    x = np.random.default_rng(4).standard_normal((2, 300, 16)).astype(dtype)
    y = attention.apply(config, params, attention.start(config, 2, dtype=dtype), x)[1]
    z = np.concatenate([np.broadcast_to(params.persistent, (2, 3, 16)), x], axis=1)
    n = z / np.sqrt((z * z).mean(axis=-1, keepdims=True) + 1e-6)
    q, k, v = np.einsum("ahid,btd->abhti", params.W_qkv, n.astype(np.float64))
    t, s = np.arange(303)[:, None], np.arange(303)
    seen = (s <= t) & ((s > t - 64) | (s < 3))
    weights = np.where(seen, np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(32)), 0.0)
    read = weights @ v / weights.sum(axis=-1, keepdims=True)
    want = np.einsum("dhi,bhti->btd", params.W_out, read)[:, 3:]
    assert y.dtype == dtype
    size = float(np.abs(y - want).max() / np.abs(want).max())
    assert size < (1e-13 if dtype is np.float64 else 1e-5)


@pytest.mark.clause("ATTENTION-16", "NORM-2")
def test_what_contradicts_itself_is_refused_in_one_line() -> None:
    c = {"persistent_kind": "prepended"}
    for changes, says in (
        ({"persistent_visible": "window"}, "window needs persistent_kind prepended"),
        (c | {"attention_window": "last_keys_of_call"}, "prepended needs attention_window causal"),
        (c | {"rotary_position": "restart"}, "needs rotary position carried, found restart"),
        (c | {"persistent_visible": "right_aligned"}, "right_aligned needs attention_window last"),
    ):
        with pytest.raises(ValueError, match=says):
            attention.configured(
                convention.resolve(changes), d_model=6, heads=2, d_head=4, window=3, persistent=2
            )
    with pytest.raises(ValueError, match="persistent_visible window, but each segment sees"):
        block(mac, persistent_visible="window", **c)
    config = block(mag, **c).attention
    layer = Layer(attention, config)
    params, x, start = layer.drawn(), layer.tokens(3), attention.start(config, 2)
    begun = attention.opened(config, params, np.ones((2, 2, 6)))
    plain = block(mag).attention
    other = Layer(attention, plain).drawn()
    for given, says in (
        ((config, params, start.replaced(begun=True), x), r"state\.prefix_keys: missing, but"),
        ((config, params, begun.replaced(begun=False), x), r"state\.prefix_keys: present, but"),
        (
            (config, params, begun.replaced(prefix_keys=begun.prefix_keys[..., :1, :]), x),
            r"state\.prefix_keys: shape \(2, 2, 1, 4\), expected \(2, 2, 2, 4\): batch, heads, P",
        ),
        ((plain, other, start.replaced(begun=True), x), r"state\.begun: true, but no persistent"),
        (
            (config, params.replaced(persistent=other.persistent), start, x),
            r"params\.persistent: shape \(2, 2, 4\), expected \(2, 6\): P, d_model",
        ),
    ):
        with pytest.raises(ValueError, match=says) as refusal:
            attention.apply(*given)
        assert "\n" not in str(refusal.value)


@pytest.mark.clause("ATTENTION-13")
def test_they_start_from_a_standard_normal() -> None:
    config = block(mag, persistent_kind="prepended", persistent=500).attention
    rows = attention.init(config, 0).persistent
    assert rows.shape == (500, 6)
    assert (np.mean(rows), np.std(rows)) == pytest.approx((0.0, 1.0), abs=0.05)
