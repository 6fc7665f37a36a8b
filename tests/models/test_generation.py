"""Top-p, stop tokens and streams of generation, against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atlas_ref.models import generation, language_model, sampling
from tests.models.test_language_model import MODELS, V, ids, params_of
from tests.support.close import EXACT, assert_close

pytestmark = pytest.mark.host("draws of the host")


def kept_by_loop(z: list[float], top_p: float) -> list[bool]:
    """A token after another from the most likely, until they have top_p; then those equal to the last."""
    weights = [math.exp(each - max(z)) for each in z]
    order = sorted(range(len(z)), key=lambda i: -z[i])
    total, last = 0.0, z[order[0]]
    for i in order:
        if total >= top_p and z[i] < last:
            break
        total += weights[i] / sum(weights)
        last = z[i]
    return [each >= last for each in z]


@pytest.mark.clause("MODEL-17")
@pytest.mark.parametrize("top_p", [1e-9, 0.2, 0.5, 0.77, 0.95, 1.0])
def test_top_p_keeps_the_fewest_most_likely_tokens(top_p: float) -> None:
    draw = np.random.default_rng(2)
    z = 2.0 * draw.standard_normal((60, 9))
    z[::3] = np.round(z[::3])  # equal logits
    kept = sampling.kept_tokens(z, top_p=top_p)
    for row, found in zip(z.tolist(), kept.tolist(), strict=True):
        assert found == kept_by_loop(row, top_p)
    assert kept[np.arange(60), np.argmax(z, axis=1)].all()
    assert kept.all() == (top_p == 1.0)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    assert ((p * kept).sum(axis=1) >= top_p - 1e-12).all()


@pytest.mark.clause("MODEL-17")
def test_a_token_below_exactly_top_p_is_left_out() -> None:
    z = np.log([0.5, 0.25, 0.25])
    assert sampling.kept_tokens(z, top_p=0.5).tolist() == [True, False, False]
    assert sampling.kept_tokens(z, top_p=np.nextafter(0.5, 1.0)).all()


@pytest.mark.clause("MODEL-17")
def test_top_p_meets_the_other_filters_and_the_order_of_temperature() -> None:
    draw = np.random.default_rng(3)
    z, u = 2.0 * draw.standard_normal((400, 9)), draw.random((400, 9))
    all_of_them = sampling.kept_tokens(z, top_p=0.8, top_k=3, min_p=0.1)
    each = [
        sampling.kept_tokens(z, **own) for own in ({"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.1})
    ]
    assert np.array_equal(all_of_them, each[0] & each[1] & each[2])
    assert not any(np.array_equal(all_of_them, one) for one in each)
    first = sampling.next_tokens(z, u, temperature=3.0, top_p=0.5)
    flat = sampling.next_tokens(z, u, temperature=3.0, top_p=0.5, order="temperature_first")
    assert (first != flat).any()
    assert sampling.kept_tokens(z, top_p=0.5)[np.arange(400), first].all()
    assert sampling.kept_tokens(z / 3.0, top_p=0.5)[np.arange(400), flat].all()
    assert np.array_equal(sampling.next_tokens(z, u, top_p=1e-9), np.argmax(z, axis=1))
    masked = np.array([[0.0, -np.inf, 1.0]])
    assert sampling.kept_tokens(masked, top_p=0.9).tolist() == [[True, False, True]]


@pytest.mark.clause("MODEL-17", "MODEL-18")
@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"top_p": 0.0}, "top_p: 0.0, expected more than 0, up to 1"),
        ({"top_p": 1.5}, "top_p: 1.5"),
        ({"top_p": math.nan}, "top_p: nan"),
        ({"stop": (V,)}, rf"stop: {V}, expected ids of 0 to {V - 1}"),
        ({"stop": (-1,)}, "stop: -1"),
        ({"stop": (0.5,)}, "stop: 0.5"),
        ({"stop": (True,)}, "stop: True"),
        ({"temperature": "warm"}, "temperature: 'warm', expected a finite number"),
        ({"temperature": None}, "temperature: None"),
        ({"min_p": "a tenth"}, "min_p: 'a tenth', expected 0 to 1"),
        ({"top_p": "most"}, "top_p: 'most', expected more than 0, up to 1"),
        ({"state": 3}, "state: builtins.int, expected atlas_ref.models.language_model.State"),
    ],
    ids=str,
)
def test_settings_outside_their_ranges_are_refused_at_the_call(own: Any, words: str) -> None:
    config = MODELS["mag"]
    params = params_of(config)
    for call in (generation.generate, generation.stream):
        with pytest.raises(ValueError, match=words):
            call(config, params, ids(2), steps=1, **own)


@pytest.mark.clause("MODEL-8", "MODEL-18")
def test_numbers_and_parameters_are_refused_at_the_call_and_not_at_a_later_step() -> None:
    config = MODELS["mag"]
    params, drawn = params_of(config), np.full((3, 2, V), 0.5)
    short = language_model.start(config, 2)
    short = short.replaced(blocks=short.blocks[:-1])
    for wrong in (1.5, np.nan, -1e-9):
        spoilt = drawn.copy()
        spoilt[2, 1, 0] = wrong
        with pytest.raises(ValueError, match="uniforms: every number must lie in 0 to 1"):
            generation.stream(config, params, ids(2), steps=3, uniforms=spoilt)
    with pytest.raises(ValueError, match="params: builtins"):
        generation.stream(config, None, ids(2), steps=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="config: builtins"):
        generation.stream(None, params, ids(2), steps=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"state.blocks: \d, expected \d"):
        generation.stream(config, params, ids(2), steps=3, state=short)


def by_loop(
    config: Any, params: Any, prompt: Any, stop: set[int], uniforms: Any, **own: Any
) -> Any:
    """Each step runs all tokens anew; a row that has ended repeats its last token."""
    rows, ended = [list(row) for row in prompt], [False] * len(prompt)
    lengths = [len(row) for row in rows]
    for uniform in uniforms:
        if all(ended):
            break
        start = language_model.start(config, len(rows))
        _, logits = language_model.apply(config, params, start, np.array(rows))
        new = sampling.next_tokens(logits[:, -1], uniform, **own)
        for i, row in enumerate(rows):
            row.append(row[-1] if ended[i] else int(new[i]))
            lengths[i] += not ended[i]
            ended[i] = ended[i] or row[-1] in stop
    return rows, lengths


@pytest.mark.clause("MODEL-18")
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("stop", [(), (3,), (0, 5, 7), tuple(range(V))])
def test_stop_tokens_end_rows_as_the_loop_does(stop: tuple[int, ...], cached: bool) -> None:
    config = MODELS["mag"]
    params, prompt = params_of(config), ids(4)
    uniforms = np.random.default_rng(5).random((12, 2, V))
    own: dict[str, Any] = {"temperature": 1.3, "top_p": 0.9}
    run = generation.generate(
        config, params, prompt, steps=12, stop=stop, uniforms=uniforms, cached=cached, **own
    )
    rows, lengths = by_loop(config, params, prompt, set(stop), uniforms, **own)
    assert run.ids.tolist() == rows
    assert run.lengths.tolist() == lengths
    assert run.logits.shape == (2, run.ids.shape[1] - 4, V)
    free = generation.generate(config, params, prompt, steps=12, uniforms=uniforms, **own)
    for row, length in enumerate(lengths):
        assert np.array_equal(run.ids[row, :length], free.ids[row, :length])
    if len(stop) == V:
        assert run.ids.shape[1] == 5
    if stop == (0, 5, 7):
        assert min(lengths) < max(lengths)  # one row waits for the other


@pytest.mark.clause("MODEL-18")
def test_a_stream_gives_each_step_before_the_next_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = MODELS["mag"]
    params, prompt = params_of(config), ids(4)
    calls: list[int] = []
    apply = language_model.apply

    def counted(*arguments: Any, **settings: Any) -> Any:
        calls.append(arguments[3].shape[1])
        return apply(*arguments, **settings)

    monkeypatch.setattr(language_model, "apply", counted)
    steps = []
    for step in generation.stream(config, params, prompt, steps=3, seed=4):
        steps.append(step)
        assert len(calls) == len(steps)
    assert calls == [4, 1, 1]
    whole = generation.generate(config, params, prompt, steps=3, seed=4)
    assert_close("ids", np.stack([step.ids for step in steps], axis=1), whole.ids[:, 4:], EXACT)
    assert_close("logits", np.stack([step.logits for step in steps], axis=1), whole.logits, EXACT)
    assert whole.state == steps[-1].state


@pytest.mark.clause("MODEL-6", "MODEL-18")
def test_no_step_runs_the_prompt_and_numbers_of_a_seed_are_those_of_one_draw() -> None:
    config = MODELS["mag"]
    params, prompt = params_of(config), ids(4)
    run = generation.generate(config, params, prompt, steps=0)
    start = language_model.start(config, 2)
    after, _ = language_model.apply(config, params, start, prompt)
    assert run.ids.tolist() == prompt.tolist()
    assert (run.logits.shape, run.lengths.tolist()) == ((2, 0, V), [4, 4])
    assert run.state == after
    drawn = np.random.Generator(np.random.Philox(9)).random((5, 2, V))
    one = generation.generate(config, params, prompt, steps=5, seed=9)
    other = generation.generate(config, params, prompt, steps=5, uniforms=drawn)
    assert np.array_equal(one.ids, other.ids)
