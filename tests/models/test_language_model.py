"""Language models: one call or many, causality, loss, documents, generation and the next token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.blocks import lmm, mac, mag, mal
from atlas_ref.layers import convention
from atlas_ref.models import generation, language_model, sampling
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.directions import check_directions
from tests.support.layer_blocks import block
from tests.support.layers import recorded
from tests.support.memories import SCHEDULE, layer, rule

pytestmark = pytest.mark.host("token ids")

V = 11


def model(*blocks: Any, tied: bool = False, readings: Any = "causal") -> language_model.Config:
    c = convention.resolve(readings)
    return language_model.configured(c, blocks, vocabulary=V, tied=tied)


MODELS = {
    "mag": model(block(mag), block(mag, mag="gate_mix", own=layer(rule("titans_lmm")))),
    "mal": model(block(mal, own=layer(rule("omega"), window_gate=True))),
    "mac": model(block(mac), block(mac, segment=3)),
    "lmm tied": model(block(lmm), block(lmm, own=layer(SCHEDULE)), tied=True),
    "memory in one layer": model(block(mag).replaced(memory=None), block(mag), block(lmm)),
    "titans": model(block(mag, "titans"), block(mac, "titans"), readings="titans"),
    "norms rms": model(block(lmm), readings={"model_norm": "rms"}),
    "no norms": model(block(lmm), readings={"model_norm": "none"}),
}


def params_of(config: language_model.Config) -> Any:
    """Parameters away from their start, so that each shows."""
    leaves, _, build = tape.nested.flatten(language_model.init(config, 1), "params")
    draw = np.random.default_rng(2)
    return build([leaf + 0.3 * draw.standard_normal(leaf.shape) for leaf in leaves])


def ids(count: int, batch: int = 2) -> Any:
    return np.random.default_rng(3).integers(0, V, (batch, count))


@pytest.mark.sample(3)
@pytest.mark.clause("MODEL-1", "MODEL-3", "BLOCKS-2")
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_and_then_one_token_at_a_time_give_what_one_call_gives(name: str) -> None:
    config = MODELS[name]
    params, tokens = params_of(config), ids(15)
    reset = np.isin(np.arange(15), [4, 9, 10])
    for packed in (None, reset):
        start = language_model.start(config, 2)
        _, logits = language_model.apply(config, params, start, tokens, reset=packed)
        state, rows = start, []
        for part in (np.arange(6), *np.arange(6, 15)[:, None]):
            documents = None if packed is None else packed[part]
            state, row = language_model.apply(
                config, params, state, tokens[:, part], reset=documents
            )
            rows.append(row)
        assert_close("logits", np.concatenate(rows, axis=1), logits, ANALYTIC)


@pytest.mark.sample(3)
@pytest.mark.clause("MODEL-4", "BLOCKS-2")
@pytest.mark.parametrize("name", MODELS)
def test_no_id_changes_a_bit_of_logits_before_it(name: str) -> None:
    config = MODELS[name]
    params, tokens, start = params_of(config), ids(70), language_model.start(config, 2)
    assert config.causal
    _, logits = language_model.apply(config, params, start, tokens)
    for t in (0, 5, 33, 69):
        other = tokens.copy()
        other[:, t] = (other[:, t] + 1) % V
        _, changed = language_model.apply(config, params, start, other)
        assert_close(f"before {t}", changed[:, :t], logits[:, :t], EXACT)
        assert_differs(f"at {t}", changed[:, t], logits[:, t], 1e-3)


@pytest.mark.clause("MODEL-1", "MODEL-3")
@pytest.mark.parametrize("name", ["mag", "mac"])
def test_documents_of_a_call_are_documents_alone_and_rows_are_independent(name: str) -> None:
    config = MODELS[name]
    params, tokens = params_of(config), ids(13)
    start = language_model.start(config, 2)
    reset = np.isin(np.arange(13), [5, 6])
    _, packed = language_model.apply(config, params, start, tokens, reset=reset)
    for part in np.split(np.arange(13), [5, 6]):
        _, alone = language_model.apply(config, params, start, tokens[:, part])
        assert_close(f"{part}", packed[:, part], alone, ANALYTIC)
    _, one = language_model.apply(
        config, params, language_model.start(config, 1), tokens[1:], reset=reset
    )
    assert_close("row", one, packed[1:], ANALYTIC)


@pytest.mark.clause("MODEL-5")
@pytest.mark.parametrize("name", ["mag", "mal", "lmm tied", "no norms"])
def test_the_loss_is_its_formula_and_every_gradient_its_complex_step(name: str) -> None:
    config = MODELS[name]
    params, tokens = params_of(config), ids(8)
    start = language_model.start(config, 2)
    _, logits = language_model.apply(config, params, start, tokens[:, :-1])
    total = 0.0
    for b in range(2):
        for t in range(7):
            z = logits[b, t]
            total += np.log(np.sum(np.exp(z - z.max()))) + z.max() - z[tokens[b, t + 1]]
    _, loss = language_model.loss(config, params, start, tokens)
    assert_close("loss", loss, np.array(total / 14), ANALYTIC)
    _, given = language_model.loss(config, params, start, tokens[:, :-1], targets=tokens[:, 1:])
    assert float(given) == float(loss)
    check_directions(
        lambda p: language_model.loss(config, p, start, tokens)[1], params, tolerance=1e-11
    )


@pytest.mark.clause("MODEL-2")
def test_embedding_and_head_start_small_and_a_tied_head_is_the_embedding() -> None:
    config = MODELS["mag"].replaced(vocabulary=4000)
    params = language_model.init(config, 0)
    for array in (params.embedding, params.head):
        assert abs(float(np.std(array)) / 0.02 - 1.0) < 0.02
    tied = MODELS["lmm tied"]
    own = language_model.init(tied, 0)
    assert own.head is None
    small = language_model.init(tied, 0, dtype=np.float32)
    assert small.embedding.dtype == np.float32
    state = language_model.start(tied, 2, dtype=np.float32)
    assert language_model.apply(tied, small, state, ids(4))[1].dtype == np.float32
    with pytest.raises(ValueError, match=r"params.head: present, but tied is True"):
        language_model.apply(
            tied, own.replaced(head=own.embedding), language_model.start(tied), ids(3, 1)
        )


@pytest.mark.sample(6)
@pytest.mark.clause("MODEL-6", "MODEL-7")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_causal_models_generate_the_same_with_and_without_a_state(
    name: str, temperature: float
) -> None:
    config = MODELS[name]
    params, prompt = params_of(config), ids(5)
    settings: dict[str, Any] = {"steps": 6, "temperature": temperature, "min_p": 0.05, "seed": 7}
    with_state = generation.generate(config, params, prompt, **settings)
    without = generation.generate(config, params, prompt, cached=False, **settings)
    assert np.array_equal(with_state.ids, without.ids)
    assert_close("logits", with_state.logits, without.logits, ANALYTIC)
    assert np.array_equal(with_state.ids[:, :5], prompt)
    before, _ = language_model.apply(config, params, language_model.start(config, 2), prompt[:, :3])
    later = generation.generate(config, params, prompt[:, 3:], state=before, **settings)
    assert np.array_equal(later.ids[:, 2:], with_state.ids[:, 5:])
    _, row = language_model.apply(config, params, with_state.state, with_state.ids[:, -1:])
    _, whole = language_model.apply(config, params, language_model.start(config, 2), with_state.ids)
    assert_close("state", row[:, 0], whole[:, -1], ANALYTIC)


@pytest.mark.clause("MODEL-8")
def test_the_next_tokens_are_those_of_public_code_and_of_the_loops() -> None:
    file = recorded("atlas_rnn_sampling")
    logits, uniform = file.tensors["in/logits"], file.tensors["in/uniform"]
    for min_p in file.settings["min_p"]:
        kept = sampling.kept_tokens(logits, min_p=min_p)
        assert np.array_equal(kept, file.tensors[f"out/kept_min_p_{min_p}"].astype(bool))
        for temperature in file.settings["temperature"]:
            got = sampling.next_tokens(logits, uniform, temperature=temperature, min_p=min_p)
            name = f"out/token_min_p_{min_p}_temperature_{temperature}"
            assert np.array_equal(got, file.tensors[name])


@pytest.mark.clause("MODEL-8")
def test_filters_and_temperature_come_in_the_stated_order() -> None:
    draw = np.random.default_rng(0)
    z, u = 2.0 * draw.standard_normal((400, 9)), draw.random((400, 9))
    for top_k in (1, 3, 9, 20):
        kept = sampling.kept_tokens(z, top_k=top_k)
        assert (kept.sum(axis=1) == min(top_k, 9)).all()
        assert np.array_equal(np.argmax(np.where(kept, z, -np.inf), axis=1), np.argmax(z, axis=1))
    one = sampling.next_tokens(z, u, top_k=1)
    assert np.array_equal(one, np.argmax(z, axis=1))
    first = sampling.next_tokens(z, u, temperature=3.0, min_p=0.3)
    flat = sampling.next_tokens(z, u, temperature=3.0, min_p=0.3, order="temperature_first")
    assert (first != flat).any()
    assert sampling.kept_tokens(z / 3.0, min_p=0.3)[np.arange(400), flat].all()
    assert sampling.kept_tokens(z, min_p=0.3)[np.arange(400), first].all()
    assert np.isfinite(sampling.next_tokens(z, np.zeros_like(z))).all()


@pytest.mark.clause("MODEL-8")
def test_tokens_are_drawn_with_the_probabilities_of_the_softmax() -> None:
    z = np.log(np.array([0.5, 0.3, 0.2]))
    u = np.random.default_rng(1).random((40_000, 3))
    counts = np.bincount(sampling.next_tokens(np.tile(z, (40_000, 1)), u), minlength=3)
    assert np.abs(counts / 40_000 - np.exp(z)).max() < 0.01


@pytest.mark.clause("MODEL-8")
@pytest.mark.parametrize("order", ["min_p_first", "temperature_first"])
def test_a_tiny_temperature_takes_the_largest_logit(order: Any) -> None:
    z = np.array([[1.0, 3.0, 2.0], [-1.0, -3.0, -2.0]])
    for precision in (np.float64, np.float32):
        new = sampling.next_tokens(
            z.astype(precision), np.full((2, 3), 0.5), temperature=1e-320, order=order
        )
        assert new.tolist() == [1, 0]


@pytest.mark.clause("MODEL-6")
def test_a_prompt_in_a_narrow_dtype_is_continued_by_any_id() -> None:
    config = language_model.configured(convention.resolve("causal"), [block(lmm)], vocabulary=1000)
    params, prompt = language_model.init(config), np.zeros((1, 2), np.uint8)
    run = generation.generate(config, params, prompt, steps=4, uniforms=np.full((4, 1, 1000), 0.5))
    assert run.ids[0, 2:].tolist() == np.argmax(run.logits[0], axis=-1).tolist()
    assert run.ids.max() > 255


@pytest.mark.clause("MODEL-1")
def test_norms_of_a_model_have_the_precision_of_its_embedding() -> None:
    config = MODELS["mag"]
    params = language_model.init(config)
    for name in ("embed_norm", "norm"):
        own = getattr(params, name)
        narrow = params.replaced(**{name: own.replaced(weight=own.weight.astype(np.float32))})
        with pytest.raises(ValueError, match=rf"params.{name}.weight: float32, but x is float64"):
            language_model.apply(config, narrow, language_model.start(config, 2), ids(3))


@pytest.mark.clause("MODEL-7")
def test_public_readings_generate_another_text_with_a_state() -> None:
    own = layer(rule("omega", convention="atlas-rnn"), "atlas-rnn", kernel=4, norm_eps=1e-6)
    config = model(block(lmm, own=own), readings="atlas-rnn")
    params, prompt = params_of(config), ids(5)
    cached = generation.generate(config, params, prompt, steps=3, temperature=0.0)
    anew = generation.generate(config, params, prompt, steps=3, temperature=0.0, cached=False)
    assert_close("first", cached.logits[:, 0], anew.logits[:, 0], ANALYTIC)
    assert_differs("second", cached.logits[:, 1], anew.logits[:, 1], 1e-3)


@pytest.mark.clause("MODEL-1", "MODEL-5", "MODEL-6", "MODEL-8")
def test_arguments_outside_their_ranges_are_refused_in_one_line() -> None:
    config = MODELS["mag"]
    params, start = params_of(config), language_model.start(config, 2)
    run, go = language_model.apply, generation.generate
    refused: list[tuple[Any, str]] = [
        (lambda: run(config, params, start, ids(3) + V), rf"ids: \d+, expected 0 to {V - 1}"),
        (lambda: run(config, params, start, ids(3) - V), r"ids: -\d+, expected"),
        (lambda: run(config, params, start, ids(3) * 1.0), "ids: float64 of shape"),
        (lambda: run(config, params, start, ids(0)), "ids: .* at least one token is needed"),
        (lambda: run(config, params, start, ids(3)[0]), "ids: int64 of shape"),
        (lambda: run(config, params, language_model.State(blocks=()), ids(3)), "state.blocks: 0"),
        (lambda: run(MODELS["mal"], params, start, ids(3)), "blocks: 2, expected 1"),
        (lambda: language_model.loss(config, params, start, ids(1)), "at least 2 tokens"),
        (
            lambda: language_model.loss(config, params, start, ids(3), targets=ids(2)),
            "targets: shape",
        ),
        (lambda: go(config, params, ids(0), steps=1), "prompt: .* at least one token"),
        (lambda: go(config, params, ids(2), steps=-1), "steps: -1"),
        (lambda: go(config, params, ids(2), steps=1, top_k=0), "top_k: 0"),
        (lambda: go(config, params, ids(2), steps=1, min_p=1.5), "min_p: 1.5, expected 0 to 1"),
        (lambda: go(config, params, ids(2), steps=1, temperature=np.nan), "temperature: nan"),
        (
            lambda: go(config, params, ids(2), steps=2, uniforms=np.ones((1, 2, V))),
            r"uniforms: shape \(1, 2, 11\), expected \(2, 2, 11\)",
        ),
        (lambda: sampling.next_tokens(np.zeros((2, 3))), "uniform: none, expected numbers"),
        (
            lambda: sampling.next_tokens(np.zeros((1, 2)), np.array([[0.5, np.nan]])),
            "uniform: every number must lie in 0 to 1",
        ),
        (
            lambda: sampling.next_tokens(np.array([[0.0, np.nan]]), temperature=0.0),
            "logits: the largest of each row must be finite",
        ),
        (
            lambda: sampling.next_tokens(np.zeros((1, 2)), order="last"),  # type: ignore[arg-type]
            "order: 'last', expected min_p_first",
        ),
        (
            lambda: language_model.loss(config, params, start, ids(4), reset=np.zeros(3, bool)),
            r"reset: bool of shape \(3,\), expected bool of shape \(4,\)",
        ),
        (
            lambda: language_model.loss(config, params, start, ids(4, 0)),
            "a mean needs at least one sequence",
        ),
        (lambda: model(layer(rule("delta"))), "blocks: 0: Config is no block's settings"),
        (lambda: model(block(lmm), block(lmm, d_model=8)), "d_model"),
        (lambda: model(), "blocks: none, expected at least one"),
    ]
    for call, says in refused:
        with pytest.raises(ValueError, match=says) as refusal:
            call()
        assert "\n" not in str(refusal.value).split("\n  ")[0]


@pytest.mark.clause("NORM-2")
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("params.blocks.1.attention.W_out", r"params.blocks.1.attention.W_out: shape \(3,\)"),
        ("params.blocks.0.feed_forward.W_in", r"params.blocks.0.feed_forward.W_in: shape \(3,\)"),
        ("params.blocks.2.ff_pre.norm.weight", "params.blocks.2.ff_pre.norm.weight: shape"),
        ("params.blocks.2.ff_post.W_in", "params.blocks.2.ff_post.W_in: shape"),
        ("params.blocks.1.memory.W_out", "params.blocks.1.memory.W_out: shape"),
        ("params.blocks.3.attention.W_qkv", "params.blocks.3.attention.W_qkv: shape"),
        ("params.blocks.4.memory.W_out", "params.blocks.4.memory.W_out: shape"),
        ("params.blocks.5.attention.W_qkv", "params.blocks.5.attention.W_qkv: shape"),
        ("params.blocks.6.memory.W_out", "params.blocks.6.memory.W_out: shape"),
        ("state.blocks.1.attention.values", "state.blocks.1.attention.values: shape"),
    ],
)
def test_what_a_block_refuses_has_its_path_in_the_model(path: str, says: str) -> None:
    """A model of many blocks has many tensors W_out, of which one is named."""
    config = model(
        *(block(mag), block(mag), block(mal), block(mac), block(lmm)),
        *(block(mac, "atlas-rnn"), block(mal, "titans")),
    )
    call = {"params": params_of(config), "state": language_model.start(config, 2)}
    whole, *words = path.split(".")

    def changed(of: Any, words: list[str]) -> Any:
        if not words:
            return np.ones(3)
        name, rest = words[0], words[1:]
        if isinstance(of, tuple):
            at = int(name)
            return (*of[:at], changed(of[at], rest), *of[at + 1 :])
        return of.replaced(**{name: changed(getattr(of, name), rest)})

    call[whole] = changed(call[whole], words)
    with pytest.raises(ValueError, match=f"^{says}"):
        language_model.apply(config, call["params"], call["state"], ids(3))


@pytest.mark.clause("NORM-2")
def test_tokens_that_are_not_finite_are_said_to_be_of_their_part() -> None:
    """What is not finite within a model is found by the next part, which is named."""
    config = model(block(lmm), block(lmm))
    params = params_of(config)
    first = params.blocks[0]
    own = first.feed_forward.replaced(W_out=np.full((6, 5), np.inf))
    large = params.replaced(blocks=(first.replaced(feed_forward=own), params.blocks[1]))
    with (
        np.errstate(all="ignore"),
        pytest.raises(ValueError, match=r"^x of blocks\.1: every entry must be finite"),
    ):
        language_model.apply(config, large, language_model.start(config, 2), ids(3))
