"""Parameters of ours from a state_dict and back, by one table of names."""

import json

import numpy as np
import pytest

import atlas_ref
from atlas_ref.layers import attention, norm
from atlas_ref.models import MODULES, atlas_rnn
from tests.support.layer_cases import FILES, MAG, ONE, file_of

EPS = 2.0**-52


def opened(file):
    """Module, settings, config and state_dict of a recorded file."""
    case = atlas_ref.load(file)
    module = MODULES[case.header.layer]
    own = {k: v for k, v in case.header.parameters.items() if k != "calls"}
    settings = module.settings.model_validate_json(json.dumps(own))
    tensors = {
        name.removeprefix("in/param/"): value
        for name, value in case.inputs.items()
        if name.startswith("in/param/")
    }
    constants = {
        name: tensors[name] for name, each in module.names(settings).items() if not each.field
    }
    return module, settings, module.config(settings, EPS, constants), tensors, constants


@pytest.mark.clause("LAYER-3")
@pytest.mark.parametrize("file", FILES + MAG, ids=lambda file: file.stem)
def test_a_state_dict_becomes_parameters_and_comes_back_bit_by_bit(file):
    module, settings, config, tensors, constants = opened(file)
    params = atlas_rnn.parameters(module, settings, config, tensors)
    back = atlas_rnn.state_dict(module, settings, params)
    assert back.keys() == tensors.keys() - constants.keys()
    for name, value in back.items():
        assert value.dtype == tensors[name].dtype
        assert np.array_equal(value, tensors[name]), name


@pytest.mark.clause("LAYER-3")
@pytest.mark.parametrize("name", ONE.values())
def test_parameters_that_the_layer_drew_become_a_state_dict_of_the_recorded_shapes(name):
    module, settings, config, tensors, constants = opened(file_of(name))
    made = atlas_rnn.state_dict(module, settings, module.layer.init(config, 3))
    assert {key: value.shape for key, value in made.items()} == {
        key: value.shape for key, value in tensors.items() if key not in constants
    }


@pytest.mark.clause("LAYER-3")
def test_rows_of_a_projection_are_queries_keys_and_values_by_head():
    module, settings, config, tensors, _ = opened(file_of("attention_w5_p3"))
    params = atlas_rnn.parameters(module, settings, config, tensors)
    H, d = settings.heads, settings.dim_head
    for part in range(3):
        for head in range(H):
            rows = tensors["to_qkv.weight"][(part * H + head) * d : (part * H + head + 1) * d]
            assert np.array_equal(params.W_qkv[part, head], rows)
    assert np.array_equal(params.W_out[:, 1], tensors["to_out.weight"][:, d : 2 * d])


@pytest.mark.clause("LAYER-3")
def test_a_state_dict_without_a_tensor_is_no_set_of_parameters():
    module, settings, config, tensors, _ = opened(file_of("feed_forward_mult1"))
    tensors.pop("3.bias")
    with pytest.raises(KeyError, match=r"3\.bias"):
        atlas_rnn.parameters(module, settings, config, tensors)


@pytest.mark.clause("LAYER-3", "LAYER-9")
def test_settings_of_ours_have_the_frequencies_of_the_file_and_the_epsilon_of_the_dtype():
    _, _, config, tensors, _ = opened(file_of("attention_w5_p3"))
    assert config.rotary.frequencies == tuple(tensors["rotary_emb.freqs"])
    assert config.norm.eps == EPS
    assert (config.attention_window, config.rotary.position) == ("last_keys_of_call", "restart")
    causal = atlas_rnn.causal(config)
    assert (causal.attention_window, causal.rotary.position) == ("causal", "carried")
    assert causal.rotary.frequencies == config.rotary.frequencies


@pytest.mark.clause("LAYER-9")
def test_a_stated_epsilon_is_that_of_the_norm():
    module = MODULES["rms_norm"]
    for eps, want in (("finfo(dtype).eps", EPS), (1e-3, 1e-3)):
        config = module.config(module.settings(dim=4, eps=eps), EPS, {})
        assert config == norm.Config(kind="rms", d=4, eps=want)


def test_frequencies_without_a_recorded_constant_are_those_of_the_code():
    module = MODULES["sliding_window_attention"]
    settings = module.settings(dim=6, heads=2, dim_head=4, window_size=3)
    config = module.config(settings, EPS, {})
    recorded = atlas_ref.load(file_of("attention_w5_p3")).inputs["in/param/rotary_emb.freqs"]
    assert np.array_equal(attention.rotary.frequencies(config.rotary), recorded)


#: Fields whose rows are tensors of their own in public code.
SHARED = {
    "atlas_mag_swiglu": {".W_in"},
    "atlas_mag_attention_block": {".attention.W_qkv", ".feed_forward.W_in"},
    "atlas_mag_block": {".attention.W_qkv", ".feed_forward.W_in"},
    "atlas_mag_model": {".blocks[N].attention.W_qkv", ".blocks[N].feed_forward.W_in"},
    "atlas_mag_qkv": {".W_qkv"},
}


def test_every_name_leads_to_a_field_of_its_own_or_to_rows_of_one():
    for name, module in MODULES.items():
        fields = [each.field for each in module.names(None).values() if each.field]
        shared = {each for each in fields if fields.count(each) > 1}
        assert shared == SHARED.get(name, set()), name
