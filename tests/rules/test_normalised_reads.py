"""Normalised reads, DPLR-19: a loop, reductions with their twins, split calls, gradients, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.forms import dplr as forms
from atlas_ref.rules import dplr, normalised_reads
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs

T, K, V = 5, 4, 3
CONFIG = dplr.Config(d_in=K, d_out=V, query_scale="1/sqrt(d_in)")


def arrays(**changes: Any) -> dict[str, Any]:
    """Tokens of two memories, with keys and queries of positive features."""
    draw = np.random.default_rng(4)
    x = {name: draw.uniform(0.1, 1.0, (2, T, K)) for name in ("k", "q")}
    x |= {"v": draw.standard_normal((2, T, V))}
    x |= {"M": draw.standard_normal((2, V, K)), "z": draw.uniform(0.0, 1.0, (2, K))}
    return x | changes


def run(x: dict[str, Any], config: dplr.Config = CONFIG, **settings: Any) -> dict[str, Any]:
    tokens = dplr.Tokens(**{name: value for name, value in x.items() if name not in ("M", "z")})
    lead = tokens.v.shape[:-2]
    states = {name: x[name] for name in ("M", "z") if name in x}
    state = normalised_reads.start(config, lead)
    state = normalised_reads.State(**states) if states else state
    state, y = normalised_reads.run(config, tokens, state, **settings)
    return {"y": y, "M": state.M, "z": state.z}


def same(got: dict[str, Any], want: dict[str, Any], tolerance: Any = ANALYTIC) -> None:
    for name, value in want.items():
        assert_close(name, got[name], value, tolerance)


def cut(x: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    return {n: z if n in ("M", "z") else z[..., first:last, :] for n, z in x.items()}


@pytest.mark.clause("DPLR-19")
def test_two_tokens_by_hand():
    """One number each: M 2, 2 + 3; z 1, 1 + 2; y 5 q / (3 q) for every q, and eps beside it."""
    x = {"k": [[2.0]], "v": [[1.5]], "q": [[4.0]], "M": [[2.0]], "z": [1.0]}
    config = dplr.Config(d_in=1, d_out=1)
    arrays_of = {name: np.array(value) for name, value in x.items()}
    same(run(arrays_of, config, eps=8.0), {"y": [[20.0 / 20.0]], "M": [[5.0]], "z": [3.0]}, EXACT)
    same(run(arrays_of, config), {"y": [[20.0 / (12.0 + 1e-10)]]}, EXACT)


@pytest.mark.clause("DPLR-19")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_gates_and_erases_act_on_the_sum_as_on_every_row(decay):
    draw = np.random.default_rng(5)
    extra = {name: draw.uniform(0.0, 0.5, (2, T, K)) for name in ("erase_read", "erase_write")}
    x = arrays(retain=draw.uniform(0.3, 1.0, (2, T, K)), **extra)
    got = run(x, CONFIG.replaced(decay=decay))
    for h in range(2):
        M, z = x["M"][h].copy(), x["z"][h].copy()
        for t in range(T):
            w, a, b = (x[name][h, t] for name in ("retain", "erase_read", "erase_write"))
            read = w * a if decay == "before_error" else a
            for row, value in [*zip(M, x["v"][h, t], strict=True), (z, 1.0)]:
                row[:] = row * w - (row @ read) * b + value * x["k"][h, t]
            q = x["q"][h, t] * K**-0.5
            assert_close("y", got["y"][h, t], M @ q / (z @ q + 1e-10), ANALYTIC)
        assert_close("z", got["z"][h], z, ANALYTIC)


@pytest.mark.clause("DPLR-19")
def test_a_read_times_its_divisor_is_that_of_linear_attention():
    x = arrays()
    tokens = dplr.Tokens(**{name: x[name] for name in ("k", "v", "q")})
    _, plain = dplr.run(CONFIG, tokens, dplr.State(M=x["M"]))
    sums = x["z"][:, None] + np.cumsum(x["k"], axis=1)
    divisor = np.sum(sums * x["q"], axis=-1, keepdims=True) * K**-0.5 + 1e-10
    got = run(x)
    assert_close("y", got["y"] * divisor, plain, ANALYTIC)
    assert_close("z", got["z"], sums[:, -1], ANALYTIC)
    assert_differs("y", got["y"], plain, 1e-2)


@pytest.mark.clause("DPLR-19")
def test_reads_of_one_value_are_that_value_and_with_a_first_memory_they_are_not():
    """From nothing a read is a mean of values, as of softmax attention."""
    x = arrays(v=np.broadcast_to(np.array([1.0, -2.0, 3.0]), (2, T, V)))
    fresh = {name: value for name, value in x.items() if name not in ("M", "z")}
    assert np.abs(run(fresh)["y"] - x["v"]).max() < 1e-8  # eps is 1e-10 of a divisor above .01
    assert_differs("y", run(x)["y"], x["v"], 1e-2)


@pytest.mark.clause("DPLR-19")
@pytest.mark.parametrize("at", range(1, T))
def test_a_split_call_is_the_whole_one_bit_for_bit(at):
    x = arrays()
    first = run(cut(x, 0, at))
    second = run(cut(x, at, T) | {name: first[name] for name in ("M", "z")})
    y = np.concatenate([first["y"], second["y"]], axis=1)
    same(second | {"y": y}, run(x), EXACT)


@pytest.mark.clause("DPLR-19")
def test_an_inactive_token_adds_no_key_and_a_reset_restores_the_sum_of_the_start():
    x = arrays()
    silent = run(x | {"active": np.zeros(T, bool)})
    same(silent, {"M": x["M"], "z": x["z"]}, EXACT)
    packed = run(x | {"reset": np.arange(T) == 3})
    alone = run(cut(x, 3, T))
    same({"y": packed["y"][:, 3:], "z": packed["z"]}, {"y": alone["y"], "z": alone["z"]}, EXACT)
    assert_differs("z", run(x)["z"], packed["z"], 1e-3)


@pytest.mark.clause("DPLR-19", "DPLR-10")
@pytest.mark.parametrize("form", forms.FORMS)
def test_every_gradient_is_its_complex_step_in_every_form(form):
    x, draw = arrays(), np.random.default_rng(6)
    bars = {n: draw.standard_normal(z.shape) for n, z in run(x).items()}

    def loss(inputs, rule=dplr.run):
        got = run(inputs, run=rule)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    def by_form(config, tokens, state):
        return forms.run(form, config, tokens, state, 2)

    own, want = tape.grad(lambda inputs: loss(inputs, by_form))(x), tape.check.complex_step(loss, x)
    for name, value in want.items():
        assert_close(name, own[name], value, ANALYTIC)


@pytest.mark.clause("DPLR-19")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"z": np.ones((2, V))}, r"z: shape \(2, 3\) makes d_in 3, but M makes it 4"),
        ({"z": np.ones((1, K))}, r"z: shape \(1, 4\) makes leading axes \(1,\)"),
        ({"z": np.ones((2, K), np.float32)}, "state.z: float32, but k is float64"),
        ({"z": np.full((2, K), np.nan)}, "z: every entry must be finite"),
        ({"M": np.ones((2, 5, K))}, r"state.M: shape \(2, 5, 4\), expected \(2, 3, 4\)"),
        (
            {name: np.ones((2, T, K)) for name in ("erase_read", "erase_write")}
            | {"erase_scale": np.ones((2, T, V))},
            "erase_scale: the row of the sum of keys has no factor; leave it out",
        ),
    ],
)
def test_what_contradicts_the_configuration_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        run(arrays(**changes))


@pytest.mark.clause("DPLR-19")
def test_a_first_sum_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="z: "):
        normalised_reads.start(CONFIG, (2,), z=np.ones((3, K)))
    started = normalised_reads.start(CONFIG, (2,), M=np.ones((2, V, K), np.float32))
    assert (started.z.dtype, started.z.shape) == (np.float32, (2, K))
