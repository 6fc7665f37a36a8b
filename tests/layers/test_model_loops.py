"""Plain loops of language models and sampling against every recorded one of public code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import layer_files
from tests.support.close import ANALYTIC, Tolerance, assert_close
from tests.support.layers import files, recorded
from tests.truth import model_loops

MODELS = files("language_model")
#: A recording in float32, of which the loops in float64 know nothing but the parameters and the eps
#: of its norms: it rounds each of about twenty layers to 6e-8.
SINGLE = Tolerance("SINGLE", 3e-6)


@pytest.mark.sample(2)
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", [*MODELS, *files("memory_language_model")])
def test_the_loops_are_the_recorded_language_models_with_their_gradients(name: str) -> None:
    assert len(MODELS) == 7
    file = recorded(name)
    single = "float32" in name
    within = SINGLE if single else ANALYTIC
    m = model_loops_of(name)
    at = {n: np.asarray(a, float) for n, a in layer_files.inputs(file).items()}
    p = layer_files.below(at, "param/")
    ids, targets = file.tensors["in/ids"], file.tensors.get("in/targets")
    z = [model_loops.logits(row, p, m, model_loops.start(m, p))[0] for row in ids]
    assert_close("logits", np.array(z), file.tensors["out/logits"], within)

    def loss(at: Any) -> Any:
        return model_loops.loss(ids, layer_files.below(at, "param/"), m, targets)

    assert_close("loss", loss(at), file.tensors["out/loss"], within)
    worst = layer_files.compared(loss, at, file.named("grad/"), entries=False, draws=1)
    assert worst < within.bound


def model_loops_of(name: str) -> model_loops.Model:
    file = recorded(name)
    kind = np.float32 if "float32" in name else np.float64
    return layer_files.model_settings(file.settings, float(np.finfo(kind).eps))


GENERATING = [name for name in MODELS if "float32" not in name]


@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", GENERATING)
def test_the_loops_generate_the_recorded_tokens_from_the_recorded_logits(name: str) -> None:
    file, m = recorded(name), model_loops_of(name)
    p, s = file.named("in/param/"), file.settings
    steps = s["max_length"] - file.tensors["in/prompt"].shape[1]
    for b, prompt in enumerate(file.tensors["in/prompt"]):
        for cached in (True, False):
            key = f"out/greedy_{'cached' if cached else 'uncached'}"
            ids, z = model_loops.generated(
                prompt, steps, p, m, lambda z, _: model_loops.sampled(z, None, 0.0, 0.1), cached
            )
            assert_close(key, z, file.tensors[f"{key}_logits"][b], ANALYTIC)
            assert ids == file.tensors[key][b].tolist()
        u = file.tensors["in/uniform"][:, b, 0]
        ids, _ = model_loops.generated(
            prompt,
            steps,
            p,
            m,
            lambda z, i, u=u: model_loops.sampled(z, u[i], s["temperature"], s["min_p"]),
            False,
        )
        assert ids == file.tensors["out/sampled_uncached"][b].tolist()


@pytest.mark.host("recorded arrays")
def test_the_loops_of_mac_keep_the_recorded_hidden_state_from_call_to_call() -> None:
    name = "atlas_rnn_lm_mac"
    file, m = recorded(name), model_loops_of(name)
    p = file.named("in/param/")
    states = model_loops.start(m, p)
    for i, length in enumerate(file.settings["repeat_calls"]):
        ids = file.tensors["in/ids"][0, :length]
        z, states = model_loops.logits(ids, p, m, states)
        assert_close(f"call {i}", z, file.tensors[f"out/logits_call{i}"][0], ANALYTIC)
        states = model_loops.hidden(states, model_loops.start(m, p), m)


@pytest.mark.host("recorded arrays")
def test_the_loops_sample_the_recorded_tokens() -> None:
    (name,) = files("sampling")
    file = recorded(name)
    u = file.tensors["in/uniform"]
    for min_p in file.settings["min_p"]:
        kept = [model_loops.kept(row, min_p) for row in file.tensors["in/logits"]]
        assert np.array_equal(kept, file.tensors[f"out/kept_min_p_{min_p}"])
        for temperature in file.settings["temperature"]:
            got = [
                model_loops.sampled(row, u[i], temperature, min_p)
                for i, row in enumerate(file.tensors["in/logits"])
            ]
            want = file.tensors[f"out/token_min_p_{min_p}_temperature_{temperature}"]
            assert got == want.tolist()
