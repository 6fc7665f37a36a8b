"""Attention in a window against plain loops and recorded results of public code.

Also its block by chunks against the plain twin, and what the readings see of the future.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.engine.attention import block as engine
from atlas_ref.engine.attention import chunks
from atlas_ref.layers import attention, feed_forward, norm, rotary
from tape import ops
from tape.check import check_linear, compare
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.layers import LAYERS, files, recorded
from tests.truth import layer_loops

RECORDED = files("sliding_window_attention")
EPS = float(np.finfo(np.float64).eps)
#: Tokens before the sequence have loops of their own, in test_tokens_before.
CAUSAL = [
    name
    for name, each in LAYERS.items()
    if each.module is attention and "last" not in name and not each.config.prefixed
]


def of_recording(file: Any, reading: str) -> attention.Config:
    """The settings of public code, or of its causal reading with absolute positions."""
    positions = rotary.PRESETS["atlas-rnn"]
    if reading == "atlas-rnn causal":
        positions = positions | {"position": "carried"}
    D, d = file.settings["dim"], file.settings["dim_head"]
    return attention.Config(
        d_model=D,
        heads=file.settings["heads"],
        d_head=d,
        window=file.settings["window_size"],
        persistent=file.settings["num_persist_mem_tokens"],
        norm=norm.Config(d=D, **norm.PRESETS["atlas-rnn"]),
        rotary=rotary.Config(d=d, **positions),
        **attention.PRESETS[reading],
    )


def run(config: attention.Config, at: Any, calls: Any) -> tuple[Any, Any]:
    """The state and results of calls of these lengths, with parameters by the names of public code."""
    H, d, D = config.heads, config.d_head, config.d_model
    params = attention.Params(
        norm=norm.Params(weight=at["norm.weight"]),
        W_qkv=ops.reshape(at["to_qkv.weight"], (3, H, d, D)),
        W_out=ops.reshape(at["to_out.weight"], (D, H, d)),
        persistent=at.get("persist_mem"),
    )
    state, results, first = attention.start(config, at["x"].shape[0]), [], 0
    for length in calls:
        x = at["x"][:, first : first + length]
        state, y = attention.apply(config, params, state, x)
        results.append(y)
        first += length
    return state, ops.concatenate(results, axis=1)


@pytest.mark.clause(
    "ATTENTION-1", "ATTENTION-2", "ATTENTION-4", "ATTENTION-6", "ATTENTION-7", "ATTENTION-14"
)
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_attention_of_public_code_with_caches_and_gradients(name: str) -> None:
    assert len(RECORDED) == 9
    file = recorded(name)
    config = of_recording(file, "atlas-rnn")
    at = file.named("in/param/") | {"x": file.tensors["in/x"]}
    del at["rotary_emb.freqs"]
    state, y = run(config, at, file.settings["calls"])
    assert_close("y", y, file.tensors["out/y"], ANALYTIC)
    if "out/cache/k" in file.tensors:
        assert_close("keys", state.keys, file.tensors["out/cache/k"], ANALYTIC)
        assert_close("values", state.values, file.tensors["out/cache/v"], ANALYTIC)
    bar = file.tensors["in/y_bar"]
    gradient = tape.grad(lambda at: ops.sum(run(config, at, file.settings["calls"])[1] * bar))(at)
    for key, want in (file.named("grad/param/") | {"x": file.tensors["grad/x"]}).items():
        assert_close(key, gradient[key], want, ANALYTIC)


@pytest.mark.clause("ATTENTION-3", "ATTENTION-8", "ATTENTION-11", "ATTENTION-14")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", RECORDED)
def test_the_causal_reading_is_the_last_row_of_public_code_on_every_prefix(name: str) -> None:
    file = recorded(name)
    config = of_recording(file, "atlas-rnn causal")
    at = file.named("in/param/") | {"x": file.tensors["in/x"]}
    T = at["x"].shape[1]
    for calls in ((T,), (1,) * T, file.settings["calls"]):
        assert_close(str(calls), run(config, at, calls)[1], file.tensors["out/y_prefix"], ANALYTIC)


@pytest.mark.clause("ATTENTION-1", "ATTENTION-2", "ATTENTION-3", "ATTENTION-14", "FEED-6", "NORM-8")
@pytest.mark.host("recorded arrays")
def test_a_recorded_block_of_attention_and_feed_forward_with_its_gradients() -> None:
    """Window 5 of 12 tokens, queries and keys normed, then turned by halves; both layers residual."""
    file = recorded("mag_attention_block")
    D, H, W = (file.settings[key] for key in ("dim", "n_heads", "attn_window_size"))
    of_tokens = norm.Config(d=D, **norm.PRESETS["atlas-mag"])
    config = attention.Config(
        d_model=D,
        heads=H,
        d_head=D // H,
        window=W,
        norm=of_tokens,
        head_norm=norm.Config(d=D // H, **norm.PRESETS["atlas-mag"]),
        rotary=rotary.Config(d=D // H, **rotary.PRESETS["atlas-mag"] | {"frequencies": "exact"}),
        **attention.PRESETS["atlas-mag"],
    )
    forward = feed_forward.Config(
        d_model=D,
        d_inner=feed_forward.inner(D, file.settings["ffn_expansion"]),
        norm=of_tokens,
        **feed_forward.PRESETS["atlas-mag"],
    )

    def block(at: Any) -> tuple[Any, Any]:
        weights = ops.stack([at[f"qkv.w_{each}.weight"] for each in "qkv"])
        params = attention.Params(
            norm=norm.Params(weight=at["norm1.weight"]),
            W_qkv=ops.reshape(weights, (3, H, D // H, D)),
            W_out=ops.reshape(at["w_o.weight"], (D, H, D // H)),
            q_norm=norm.Params(weight=at["qkv.q_norm.weight"]),
            k_norm=norm.Params(weight=at["qkv.k_norm.weight"]),
        )
        expanded = feed_forward.Params(
            norm=norm.Params(weight=at["norm2.weight"]),
            W_in=ops.concatenate([at["ffn.w1.weight"], at["ffn.w2.weight"]]),
            W_out=at["ffn.w3.weight"],
        )
        state = attention.start(config, at["x"].shape[0])
        state, a = attention.apply(config, params, state, at["x"])
        x = at["x"] + a
        return a, x + feed_forward.apply(forward, expanded, feed_forward.State(), x)[1]

    at = file.named("in/param/") | {"x": file.tensors["in/x"]}
    a, y = block(at)
    assert_close("attention", a, file.tensors["out/attn_projected"], ANALYTIC)
    assert_close("y", y, file.tensors["out/y"], ANALYTIC)
    gradient = tape.grad(lambda at: ops.sum(block(at)[1] * file.tensors["in/y_bar"]))(at)
    for key, want in (file.named("grad/param/") | {"x": file.tensors["grad/x"]}).items():
        assert_close(key, gradient[key], want, ANALYTIC)


def literal(layer: Any, params: Any, x: Any, **settings: Any) -> Any:
    c = layer.config
    p = {"weight": params.norm.weight, "W_qkv": params.W_qkv, "W_out": params.W_out}
    none = np.zeros((c.heads, 0, c.d_head))
    p |= {name: getattr(params, name) for name in ("q_norm", "k_norm")}
    p["persistent"] = none if params.persistent is None else params.persistent
    turning = c.rotary is not None
    return layer_loops.attention(
        x,
        p,
        window=c.window,
        counts_self=c.window_counts_self,
        mode=c.attention_window,
        persistent_visible=c.persistent_visible,
        eps=1e-6,
        frequencies=rotary.frequencies(c.rotary) if turning else [],
        pairs=c.rotary.pairs if turning else "interleaved",
        **settings,
    )


@pytest.mark.clause(
    "ATTENTION-2",
    "ATTENTION-3",
    "ATTENTION-4",
    "ATTENTION-5",
    "ATTENTION-6",
    "ATTENTION-8",
    "ATTENTION-9",
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
def test_attention_is_its_definition_in_loops(name: str, packed: bool) -> None:
    layer = LAYERS[name]
    params, x, before = layer.drawn(), layer.tokens(11), layer.tokens(4, seed=1)
    reset = np.isin(np.arange(11), [3, 9]) if packed else None
    state, _ = layer.run(params, before)
    after, y = layer.run(params, x, reset=reset, state=state)
    restart = layer.config.rotary is not None and layer.config.rotary.position == "restart"
    want, keys, values = literal(
        layer,
        params,
        x,
        first=0 if restart else 4,
        earlier=(state.keys, state.values),
        reset=reset,
    )
    assert_close("y", y, want, ANALYTIC)
    held = min(layer.config.window, 2 if packed else state.keys.shape[-2] + 11)
    assert_close("keys", after.keys, keys[..., -held:, :], ANALYTIC)
    assert_close("values", after.values, values[..., -held:, :], ANALYTIC)


@pytest.mark.clause("ATTENTION-4", "ATTENTION-6")
@pytest.mark.parametrize("visible", ["right_aligned", "always"])
@pytest.mark.parametrize("persistent", [0, 2])
@pytest.mark.parametrize(("earlier", "tokens"), [(0, 9), (2, 9), (3, 2), (0, 3)])
def test_the_last_keys_of_a_call_are_their_definition_in_loops(
    earlier: int, tokens: int, persistent: int, visible: Any
) -> None:
    layer = LAYERS["attention last keys"]
    config = layer.config.replaced(persistent=persistent, persistent_visible=visible)
    layer = layer._replace(config=config)
    params, x = layer.drawn(), layer.tokens(tokens)
    state = attention.start(config, 2)
    if earlier:
        state, _ = layer.run(params, layer.tokens(earlier, seed=1))
    _, y = layer.run(params, x, state=state)
    before = (state.keys, state.values) if earlier else None
    want, _, _ = literal(layer, params, x, first=earlier, earlier=before)
    assert_close("y", y, want, ANALYTIC)


@pytest.mark.clause("ATTENTION-4", "ATTENTION-10")
def test_the_last_keys_of_a_call_show_every_row_the_future() -> None:
    """Of 12 tokens, window 3 and 2 persistent rows, the first 7 queries see nothing of their own."""
    layer = LAYERS["attention last keys"]
    params, x = layer.drawn(), layer.tokens(12)
    _, y = layer.run(params, x)
    other = np.array(x)
    other[:, 11] += 1.0
    _, changed = layer.run(params, other)
    moved = np.any(np.asarray(changed != y), axis=(0, 2))
    assert moved.tolist() == [True] * 7 + [False] * 4 + [True]
    for t in range(1, 7):  # the same mean of the last values
        assert_close(str(t), y[:, t], y[:, 0], EXACT)
    causal = layer._replace(
        config=layer.config.replaced(attention_window="causal", persistent_visible="always")
    )
    _, band = causal.run(params, x)
    assert_close("the last row", y[:, 11], band[:, 11], ANALYTIC)
    assert_differs("the first row", y[:, 0], band[:, 0], 1e-2)


@pytest.mark.sample(24)
@pytest.mark.clause("ATTENTION-11", "ATTENTION-12")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("T", [1, 31, 32, 70, 129])
@pytest.mark.parametrize("name", CAUSAL)
def test_the_block_by_chunks_is_its_plain_twin_with_all_gradients(
    name: str, T: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = LAYERS[name]
    at = {"params": layer.drawn(), "x": layer.tokens(T + 5)}
    reset = np.isin(np.arange(T + 5), [2, 8, 40, 64, 65]) if packed else None
    draw = np.random.default_rng(5)
    state, y = layer.run(at["params"], at["x"], reset=reset)
    bar, bar_k, bar_v = (draw.standard_normal(a.shape) for a in (y, state.keys, state.values))

    def loss(at: Any) -> Any:
        state, total = attention.start(layer.config, 2), 0.0
        for part in (slice(0, 5), slice(5, None)):
            documents = None if reset is None else reset[part]
            state, y = attention.apply(
                layer.config, at["params"], state, at["x"][:, part], reset=documents
            )
            total = total + ops.sum(y * bar[:, part])
        return total + ops.sum(state.keys * bar_k) + ops.sum(state.values * bar_v)

    value, gradient = tape.value_and_grad(loss)(at)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "block", lambda plain, *_: plain)
        want, plain = tape.value_and_grad(loss)(at)
    assert_close("value", value, want, ANALYTIC)
    assert compare(gradient, plain).error < 1e-12
    monkeypatch.setattr(chunks, "NUMBERS", 1)  # each head and chunk alone
    assert compare(tape.grad(loss)(at), plain).error < 1e-12


@pytest.mark.clause("ATTENTION-12")
@pytest.mark.host("a check of the host")
def test_the_pullback_of_the_block_is_linear() -> None:
    layer = LAYERS["attention"]
    params = layer.drawn()
    check_linear(
        lambda x: layer.module.apply(layer.config, params, layer.module.start(layer.config, 2), x)[
            1
        ],
        layer.tokens(40),
    )


@pytest.mark.clause("ATTENTION-2")
@pytest.mark.host("numbers near the largest")
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_huge_scores_give_weights_of_one_and_no_nan(kind: Any) -> None:
    layer = LAYERS["attention"]
    params = tape.nested.flatten(layer.drawn(), "params")
    build, leaves = params[2], params[0]
    large = build(
        [(leaf * 1e6).astype(kind) if leaf.ndim == 4 else leaf.astype(kind) for leaf in leaves]
    )
    state = attention.start(layer.config, 2, dtype=kind)
    for config in (layer.config, LAYERS["attention last keys"].config):
        _, y = attention.apply(config, large, state, layer.tokens(9).astype(kind))
        assert np.isfinite(y).all()


@pytest.mark.clause("ATTENTION-11")
@pytest.mark.host("bytes that NumPy allocates")
def test_memory_is_linear_in_the_number_of_tokens() -> None:
    layer = LAYERS["attention window 9"]
    params = layer.drawn()

    def peak(T: int) -> int:
        x = layer.tokens(T)
        work = tape.grad(
            lambda x: ops.sum(
                layer.module.apply(layer.config, params, layer.module.start(layer.config, 2), x)[1]
                ** 2
            )
        )
        work(x)
        tracemalloc.start()
        work(x)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(4000) < 4.4 * peak(1000)


@pytest.mark.clause("ATTENTION-8")
def test_a_state_keeps_no_other_array_alive() -> None:
    layer = LAYERS["attention"]
    after, _ = layer.run(layer.drawn(), layer.tokens(100))
    assert after.keys.shape == after.values.shape == (2, 2, 3, 4)
    assert after.keys.base is None or after.keys.base.size <= 2 * 2 * 3 * 4
    assert after.values.base is None or after.values.base.size <= 2 * 2 * 3 * 4


@pytest.mark.clause("ATTENTION-13")
@pytest.mark.host("a distribution")
def test_parameters_start_within_their_bounds() -> None:
    config = LAYERS["attention"].config.replaced(heads=16, d_head=8, persistent=40)
    params = attention.init(config, 2)
    assert 0.95 < np.max(np.abs(params.W_qkv)) * np.sqrt(6) <= 1.0
    assert 0.95 < np.max(np.abs(params.W_out)) * np.sqrt(16 * 8) <= 1.0
    assert np.std(params.persistent) == pytest.approx(1.0, abs=0.1)


@pytest.mark.clause("ATTENTION-1", "ATTENTION-4", "ATTENTION-5", "ATTENTION-6", "NORM-2")
def test_settings_and_arrays_that_contradict_each_other_are_refused() -> None:
    fields = dict(LAYERS["attention"].config.__dict__)
    for changes, says in (
        ({"rotary": rotary.Config(d=6)}, "rotary: d 6, expected d_head = 4"),
        ({"persistent_visible": "right_aligned"}, "right_aligned needs attention_window last_keys"),
        (
            {"attention_window": "last_keys_of_call", "window_counts_self": False},
            "window_counts_self: false needs attention_window causal",
        ),
        (
            {"head_norm": norm.Config(kind="none", d=3)},
            "head_norm: d 3, heads None, expected d_head",
        ),
        ({"window": 0}, "greater than or equal to 1"),
    ):
        with pytest.raises(ValidationError, match=says):
            attention.Config(**fields | changes)
    layer = LAYERS["attention"]
    config, params, state = layer.config, layer.drawn(), attention.start(layer.config, 2)
    x = layer.tokens(3)
    long = state.replaced(keys=np.ones((2, 2, 4, 4)), values=np.ones((2, 2, 4, 4)))
    for arguments, says in (
        (
            (params.replaced(persistent=None), state),
            "params.persistent: missing, but persistent is 2",
        ),
        ((params, long), "state.keys: 4 rows, expected at most window = 3"),
        ((params, attention.start(config, 1)), r"state.keys: shape \(1, 2, 0, 4\), expected"),
        ((params.replaced(W_out=np.ones((6, 4, 2))), state), r"params.W_out: shape \(6, 4, 2\)"),
    ):
        with pytest.raises(ValueError, match=says):
            attention.apply(config, *arguments, x)


@pytest.mark.clause("ATTENTION-3", "ATTENTION-10")
def test_a_window_that_no_memory_holds_is_all_tokens_so_far() -> None:
    layer = LAYERS["attention"]
    params, x = layer.drawn(), layer.tokens(9)
    wide, enough = (layer._replace(config=layer.config.replaced(window=n)) for n in (10**9, 9))
    assert_close("y", wide.run(params, x, (4, 5))[1], enough.run(params, x)[1], ANALYTIC)


@pytest.mark.clause("NORM-2", "ATTENTION-15")
def test_context_of_another_precision_or_not_finite_is_refused() -> None:
    layer = LAYERS["attention last keys"]
    params, x, state = layer.drawn(), layer.tokens(4), layer.module.start(layer.config, 2)
    for context, says in (
        (np.ones((2, 1, 6), np.float32), "context: float32, but x is float64"),
        (np.full((2, 1, 6), np.nan), "context: every entry must be finite"),
    ):
        with pytest.raises(ValueError, match=says):
            attention.apply(layer.config, params, state, x, context=context)
