"""Identification of layers, blocks and models from inputs and results alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.modules import recipe as recipes
from atlas_ref.oracle.modules.identify import identify_layer
from tests.support.layers import recorded
from tests.support.recorded_modules import header_of, of_ours

#: What was computed, by kind, and the words that name it.
READINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "as asked for": ("attention", {}, "computes what was asked for"),
    "eps": ("attention", {"norm_eps": 1e-5}, "computes norm_eps 1e-05; asked for 1e-06"),
    "rotary": ("attention", {"rotary_pairs": "halves"}, "computes rotary_pairs halves"),
    "two": (
        "feed_forward",
        {"ff_activation": "gelu", "norm_eps": 1e-5},
        "computes norm_eps 1e-05, ff_activation gelu; asked for 1e-06, silu",
    ),
    "preset": (
        "attention",
        {"preset": "atlas-rnn"},
        "computes norm_eps 2.22045e-16, attention_window last_keys_of_call",
    ),
    "memory": ("memory", {"conv_activation": "silu"}, "computes conv_activation silu"),
    "block": ("block", {"mag": "product"}, "computes mag product"),
    "together": (
        "memory",
        {"conv_padding": "centred", "conv_state": "zero_per_call"},
        "computes conv_padding centred, conv_state zero_per_call",
    ),
}


def ends(header: dict[str, Any], truth: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Parameters, inputs and results of the whole."""
    tensors = of_ours(header, truth=truth)
    params = {
        key.removeprefix("in/param/"): each
        for key, each in tensors.items()
        if key.startswith("in/param/")
    }
    return params, {"x": tensors["modules/layer/in/x"]}, {"y": tensors["modules/layer/out/y"]}


@pytest.mark.sample(3)
@pytest.mark.clause("MODULES-15")
@pytest.mark.parametrize("name", READINGS)
def test_the_reading_of_a_layer_is_named_from_its_results(name: str) -> None:
    kind, changes, words = READINGS[name]
    header = header_of(kind)
    other = {**header, "convention": changes}
    found = identify_layer(header, *ends(other, truth=other if "mag" in changes else header))
    assert found.has_fit
    assert found.ratio <= 2.0
    assert found.words.startswith(words), found.words
    assert found.runner_up is None or found.runner_up[1] > 2.0


@pytest.mark.clause("MODULES-15")
def test_what_results_cannot_tell_apart_is_said() -> None:
    header = header_of("attention")
    one_call = identify_layer(header, *ends(header, truth=header))
    assert one_call.alike == ("rotary_position restart",)
    assert "cannot tell rotary_position restart" in one_call.words
    header = header_of("attention", calls=[5, 4])
    two_calls = identify_layer(header, *ends(header, truth=header))
    assert two_calls.alike == ()


@pytest.mark.clause("MODULES-15")
def test_what_no_reading_gives_is_not_found_but_its_nearest_is_named() -> None:
    header = header_of("feed_forward")
    params, inputs, outputs = ends(header, truth=header)
    found = identify_layer(header, params, inputs, {"y": 1.01 * outputs["y"]})
    assert not found.has_fit
    assert found.words == "no reading that was tried gives these"
    assert found.runner_up is not None
    assert found.ratio == found.runner_up[1] > 4.0
    with pytest.raises(CaseError, match="outputs: empty"):
        identify_layer(header, params, inputs, {})
    with pytest.raises(CaseError, match="nothing before it was recorded"):
        identify_layer(header, params, {}, outputs)


@pytest.mark.clause("MODULES-15")
def test_attention_of_public_code_is_identified_as_its_preset() -> None:
    file = recorded("atlas_rnn_attention_w5_p3")
    names = recipes.Settings.model_fields
    header = {
        "layer": "attention",
        "settings": {key: each for key, each in file.settings.items() if key in names},
        "convention": {"rotary_frequencies": "float32"},
    }
    params = file.named("in/param/")
    x, y = file.tensors["in/x"], file.tensors["out/y"]
    found = identify_layer(header, params, {"x": x}, {"y": y})
    assert "attention_window last_keys_of_call, persistent_visible right_aligned" in found.words
    prefix = file.tensors["out/y_prefix"]
    causal = identify_layer(header, params, {"x": x}, {"y": prefix})
    assert causal.words.startswith("computes norm_eps 2.22045e-16; asked for 1e-06")
    assert np.isfinite(causal.ratio)
