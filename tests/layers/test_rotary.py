"""Rotary positions against plain loops, and what turns leave as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tape
from atlas_ref.layers import rotary
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.layers import files, recorded
from tests.truth import layer_loops

RECORDED = files("rotary")


@pytest.mark.clause("ROTARY-1", "ROTARY-4", "ROTARY-7")
@pytest.mark.host("recorded arrays")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_turns_of_public_code_with_their_gradients(name: str) -> None:
    assert len(RECORDED) == 2
    file = recorded(name)
    settings = rotary.PRESETS["atlas-mag"] | {"frequencies": "exact", "position": "carried"}
    config = rotary.Config(d=file.settings["dim"], base=file.settings["base"], **settings)
    state = rotary.start(config, position=file.settings["seq_offset"])
    for which in ("q", "k"):
        x, bar = (file.tensors[f"in/{each}"] for each in (which, f"{which}_bar"))

        def run(x: Any) -> Any:
            return rotary.apply(config, rotary.Params(), state, x)[1]

        assert_close(which, run(x), file.tensors[f"out/{which}"], ANALYTIC)
        gradient = tape.grad(lambda x, bar=bar, run=run: ops.sum(run(x) * bar))(x)
        assert_close(f"gradient of {which}", gradient, file.tensors[f"grad/{which}"], ANALYTIC)


@pytest.mark.clause("ROTARY-1", "ROTARY-2", "ROTARY-3", "ROTARY-4", "ROTARY-5")
@pytest.mark.parametrize("pairs", ["interleaved", "halves"])
@pytest.mark.parametrize("first", [0, 7, 100_000])
def test_rotary_is_its_definition_in_loops(pairs: Any, first: int) -> None:
    config = rotary.Config(d=8, pairs=pairs, base=500.0)
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 8))
    reset = np.array([False, False, True, False, False, True])
    frequencies = [500.0 ** (-2 * i / 8) for i in range(4)]
    for documents in (None, reset):
        state, y = rotary.apply(
            config, rotary.Params(), rotary.start(config, position=first), x, reset=documents
        )
        at = layer_loops.positions(6, first, documents)
        assert state.position == at[-1] + 1
        for t, position in enumerate(at):
            rows = x[:, :, t].reshape(-1, 8)
            want = [layer_loops.rotary(row, position, frequencies, pairs) for row in rows]
            assert_close(str(t), y[:, :, t].reshape(-1, 8), np.array(want), ANALYTIC)


@pytest.mark.clause("ROTARY-2")
@pytest.mark.host("frequencies are numbers of the host")
def test_frequencies_of_public_code_are_rounded_to_float32() -> None:
    recordings = recorded("atlas_rnn_attention_w5_p0").tensors["in/param/rotary_emb.freqs"]
    config = rotary.Config(d=4, **rotary.PRESETS["atlas-rnn"])
    assert_close("d = 4", rotary.frequencies(config), recordings, EXACT)
    exact, rounded = (
        rotary.frequencies(rotary.Config(d=64, frequencies=kind)) for kind in ("exact", "float32")
    )
    assert np.max(np.abs(rounded / exact - 1.0)) < 4e-7
    assert_differs("float32", rounded, exact, 1e-9)
    stated = rotary.Config(d=4, frequencies=[1.0, 0.25])
    assert_close("stated", rotary.frequencies(stated), np.array([1.0, 0.25]), EXACT)


@pytest.mark.clause("ROTARY-6")
@pytest.mark.parametrize("pairs", ["interleaved", "halves"])
def test_scores_depend_on_the_distance_alone_and_lengths_stay(pairs: Any) -> None:
    config = rotary.Config(d=8, pairs=pairs)
    q, k = np.random.default_rng(2).standard_normal((2, 1, 9, 8))

    def turned(x: Any, position: int) -> Any:
        state = rotary.start(config, position=position)
        return rotary.apply(config, rotary.Params(), state, x)[1]

    near, far = (turned(q, p) @ np.swapaxes(turned(k, p), -1, -2) for p in (0, 5000))
    assert_close("scores", far, near, ANALYTIC)
    assert_close("lengths", np.sum(turned(q, 3) ** 2, -1), np.sum(q * q, -1), ANALYTIC)
    shifted = turned(q, 1) @ np.swapaxes(turned(k, 0), -1, -2)
    assert_differs("another distance", shifted, near, 1e-2)


@pytest.mark.clause("ROTARY-3")
@pytest.mark.host("the precision of an angle")
def test_a_distant_position_is_exact_in_float32() -> None:
    config = rotary.Config(d=4)
    x = np.random.default_rng(3).standard_normal((1, 2, 4))
    state = rotary.State(position=2**30)
    small, large = (
        rotary.apply(config, rotary.Params(), state, x.astype(kind))[1]
        for kind in (np.float32, np.float64)
    )
    assert float(np.max(np.abs(small - large))) < 1e-6


@pytest.mark.clause("ROTARY-7")
def test_under_restart_every_call_starts_at_0() -> None:
    config = rotary.Config(d=4, **rotary.PRESETS["atlas-rnn"])
    x = np.random.default_rng(4).standard_normal((1, 3, 4))
    first, y = rotary.apply(config, rotary.Params(), rotary.start(config), x)
    again, same = rotary.apply(config, rotary.Params(), first, x)
    assert_close("restart", same, y, EXACT)
    assert (first.position, again.position) == (3, 3)


@pytest.mark.clause("ROTARY-1", "ROTARY-2", "ROTARY-4")
def test_settings_of_no_rotation_are_refused() -> None:
    for fields, says in (
        ({"d": 3}, "d: must be even, found 3"),
        ({"d": 4, "frequencies": [1.0]}, "frequencies: 1 numbers, expected d/2 = 2"),
        ({"d": 4, "base": 0.0}, "greater than 0"),
        ({"d": 4, "pairs": "other"}, "'interleaved' or 'halves'"),
    ):
        with pytest.raises(ValidationError, match=says):
            rotary.Config(**fields)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        rotary.start(rotary.Config(d=4), position=-1)
