"""Readings of layers as data: the table of the spec, presets, refusals, and what leaks under each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.blocks import mac, mag
from atlas_ref.layers import attention, convention, memory, norm
from tape import ops
from tests.support.close import EXACT, assert_close
from tests.support.layer_blocks import block
from tests.support.layers import Layer
from tests.support.memories import layer, rule

SPEC = (Path(__file__).parents[2] / "specs" / "layers.md").read_text()


def plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:g}".replace("1e-0", "1e-")


@pytest.mark.clause("LAYERS-1")
def test_the_table_of_the_spec_lists_every_axis_with_its_default_first() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| ([^|]+) \|", SPEC, flags=re.M))
    causal = convention.resolve("causal")
    table = {axis: rows[axis].split(";")[0].strip() for axis in convention.AXES}
    assert table == {
        axis: plain(getattr(causal, axis)).replace("1e-5", "1e-5") for axis in convention.AXES
    } | {"norm_eps": "1e-6", "model_norm_eps": "1e-5", "head_norm_eps": "1e-8"}
    for axis in convention.AXES:
        words = getattr(convention.LayerConvention.model_fields[axis].annotation, "__args__", ())
        values = {each for each in words if isinstance(each, str)}
        named = {each.strip() for each in rows[axis].split(";")}
        assert values <= named, axis


@pytest.mark.clause("LAYERS-2")
def test_the_spec_names_every_change_of_every_preset() -> None:
    for name, changes in convention.PRESETS.items():
        row = next(line for line in SPEC.splitlines() if line.startswith(f"| {name} |"))
        for axis, value in changes.items():
            assert axis.removesuffix("_eps").removesuffix("_guard") in row
            short = f"{value:g}".replace("1e-06", "1e-6") if isinstance(value, float) else value
            assert short in row or value == "add", (name, axis)


@pytest.mark.clause("LAYERS-2")
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("atlas_rnn", "preset 'atlas_rnn' does not exist.*did you mean atlas-rnn"),
        ({"conv_paddin": "causal"}, "axis 'conv_paddin' does not exist"),
        ({"conv_padding": "left"}, "conv_padding: .*causal.*left"),
        ({"norm_eps": -1.0}, "norm_eps"),
        ({"state_clamp": 0.0}, "state_clamp"),
        (3, "a preset's name, a mapping of axes or a LayerConvention is needed, found 3"),
        ({"preset": 4}, "preset 4 does not exist"),
    ],
)
def test_readings_that_do_not_exist_are_refused_in_one_line(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refusal:
        convention.resolve(value)
    assert "\n" not in str(refusal.value)


@pytest.mark.clause("LAYERS-3")
@pytest.mark.parametrize("preset", convention.PRESETS)
def test_each_axis_reaches_the_settings_that_carry_it_out(preset: str) -> None:
    c = convention.resolve(preset)
    own = memory.configured(c, rule("delta"), kernel=4)
    attended = attention.configured(c, d_model=6, heads=2, d_head=4, window=3)
    assert own.conv is not None
    assert (own.conv.padding, own.conv.state, own.conv.activation, own.conv_place) == (
        c.conv_padding,
        c.conv_state,
        c.conv_activation,
        c.conv_place,
    )
    assert own.norm == norm.Config(kind="rms", d=6, eps=c.norm_eps)
    assert (own.head_norm.kind, own.output_gate) == (c.head_norm, c.output_gate)
    assert own.state_clamp == (None if c.state_clamp == "none" else c.state_clamp)
    assert attended.attention_window == c.attention_window
    assert attended.rotary is not None
    assert (attended.rotary.base, attended.rotary.position) == (c.rotary_base, c.rotary_position)
    assert own.replaced(conv=None) == memory.configured(c, rule("delta"), kernel=1)
    assert own.replaced(conv=None) == memory.configured(c, rule("delta"), kernel=None)


def reached(config: Any, module: Any, changed: int, tokens: int = 24) -> int:
    """The first token of which a result changes with token `changed`."""
    system = Layer(module, config)
    params, x = system.drawn(), np.array(system.tokens(tokens))
    _, y = system.run(params, x)
    x[:, changed] += 1.0
    _, other = system.run(params, x)
    return int(np.flatnonzero((np.asarray(other) != np.asarray(y)).any(axis=(0, 2)))[0])


@pytest.mark.clause("LAYERS-2", "MEMORY-10", "BLOCKS-2")
@pytest.mark.host("bits, token by token")
def test_what_the_public_readings_leak_is_what_the_spec_says() -> None:
    for kernel in (2, 3, 4, 5, 8):
        own = layer(
            rule("delta"), kernel=kernel, conv_padding="centred", conv_state="zero_per_call"
        )
        ahead = kernel - 1 - kernel // 2
        assert own.causal is (ahead == 0)
        assert reached(own, memory, 20) == 20 - ahead
    last = {"attention_window": "last_keys_of_call", "persistent_visible": "right_aligned"}
    leaks = block(mag, persistent=0, window=8, **last)
    assert (leaks.causal, reached(leaks, mag, 23)) == (False, 0)  # the mean of the last values
    whole = block(mag, persistent=0, window=24, **last)
    assert reached(whole, mag, 23) == 23
    pooled = block(mac, mac_context="mean_of_call", segment=32, **last)
    assert (pooled.causal, reached(pooled, mac, 23)) == (False, 0)
    assert reached(block(mac), mac, 23) == 23


@pytest.mark.clause("MEMORY-7")
@pytest.mark.host("exact bits of entries")
def test_a_clamp_bounds_the_memory_and_stops_its_gradient() -> None:
    M = np.array([[0.5, -3.0], [2.0, 2.0000001]])
    assert_close("M", memory.clamped(M, 2.0), np.array([[0.5, -2.0], [2.0, 2.0]]), EXACT)
    gradient = tape.grad(lambda m: ops.sum(memory.clamped(m, 2.0)))(M)
    assert_close("gradient", gradient, np.array([[1.0, 0.0], [1.0, 0.0]]), EXACT)
