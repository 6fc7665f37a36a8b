"""Float32 in the forms of dplr, DPLR-15, and in kernels that cumulate logs of gates, DPLR-16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.forms import dplr as forms
from atlas_ref.forms.dplr import tolerance
from atlas_ref.rules import dplr
from tape import ops
from tests.support import cumulated_chunks
from tests.support.close import Tolerance, assert_close, relative_error

T, K = 201, 32
LOW = np.log(2.0**-13)
BELOW = Tolerance("DPLR-15", 5e-7)
#: Gradients of the same tokens.
OF_GRADIENTS = Tolerance("DPLR-15 of gradients", 2e-6)
TINY = float(np.finfo(np.float32).smallest_normal)
Arrays = dict[str, Any]


def one(log: float, every: int = T) -> Any:
    """Gentle gates, and of all channels some with a log of `log`."""

    def logs(draw: Any, shape: Any) -> Any:
        g = -0.01 * np.abs(draw.standard_normal(shape))
        g[:, 40::every] = log
        return g

    return logs


#: Log gates of DPLR-15 by name.
GATES: dict[str, Any] = {
    "1": lambda draw, shape: np.zeros(shape),
    ".99": lambda draw, shape: np.full(shape, np.log(0.99)),
    "1/2": lambda draw, shape: np.full(shape, np.log(0.5)),
    "2^-13": lambda draw, shape: np.full(shape, LOW),
    "log-uniform": lambda draw, shape: draw.uniform(LOW, 0.0, shape),
    "1 and 2^-13": lambda draw, shape: np.where(draw.random(shape) < 0.1, LOW, 0.0),
    "-4 a token": lambda draw, shape: np.full(shape, -4.0),
    "-100 a token": lambda draw, shape: np.full(shape, -100.0),
    "one of -1000": one(-1000.0),
    "one of 0": one(-np.inf),
    "-100 again and again": one(-100.0, 20),
    "-1000 again and again": one(-1000.0, 20),
    "-10000": one(-10000.0),
}
KINDS = ("gla", "kda", "rwkv7")


def unit(x: Any) -> Any:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def drawn(kind: str, gates: str, seed: int = 0) -> tuple[Arrays, Any, str]:
    """Tokens of two heads in float32, their log gates, and the decay; keys have norm 1."""
    draw = np.random.default_rng(seed)
    k, q, other = (unit(draw.standard_normal((2, T, K))) for _ in range(3))
    v, step = draw.standard_normal((2, T, K)), draw.uniform(0.0, 1.0, (2, T, 1))
    logs = GATES[gates](draw, (2, T, K)).astype(np.float32)
    erase: Arrays = {}
    if kind == "kda":
        v, erase = step * v, {"erase_read": k, "erase_write": step * k}
    elif kind == "rwkv7":
        write = other * draw.uniform(0.0, 1.0, (2, T, K))
        erase = {"erase_read": other, "erase_write": write}
    x = {"k": k, "v": v, "q": q, "retain": np.exp(logs), **erase}
    narrow = {name: value.astype(np.float32) for name, value in x.items()}
    return narrow, logs, "before_error" if kind == "kda" else "after_error"


def results(x: Arrays, form: str, chunk: int | None, decay: str) -> Arrays:
    dtype = x["k"].dtype
    config = dplr.Config(d_in=K, d_out=K, decay=decay)
    state = dplr.start(config, x["v"].shape[:-2], dtype=dtype)
    state, y = forms.run(form, config, dplr.Tokens(**x), state, chunk)
    return {"y": y, "M": state.M}


def wide(x: Arrays) -> Arrays:
    return {name: value.astype(np.float64) for name, value in x.items()}


@pytest.mark.clause("DPLR-15", "DPLR-13", "DPLR-14")
@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_chunk_form_in_float32_is_off_by_less_than_5e_7(kind, gates, chunk):
    x, _, decay = drawn(kind, gates)
    want = results(wide(x), "sequential", None, decay)
    got = results(x, "chunk", chunk, decay)
    for name, value in want.items():
        assert got[name].dtype == np.float32
        assert_close(name, got[name], value, BELOW)


@pytest.mark.clause("DPLR-15", "DPLR-13", "DPLR-14")
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_chunk_form_in_float32_are_finite_and_right(kind, gates):
    x, _, decay = drawn(kind, gates)
    shapes = {"y": (2, T, K), "M": (2, K, K)}
    draw = np.random.default_rng(1)
    bars = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    def loss(inputs, form):
        got = results(inputs, form, 64, decay)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    own = tape.grad(lambda inputs: loss(inputs, "chunk"))(x)
    true = tape.grad(lambda inputs: loss(inputs, "sequential"))(wide(x))
    for name, value in true.items():
        assert np.isfinite(own[name]).all()
        if np.abs(value).max() > TINY:
            assert_close(name, own[name], value, OF_GRADIENTS)
        else:  # below the numbers that float32 holds in full
            assert np.abs(own[name]).max() <= TINY


# -- kernels that cumulate logs --------------------------------------------------------------------


def cumulated(x: Arrays, logs: Any, chunk: int) -> Arrays:
    """What such a kernel computes, head by head."""
    per_head = [
        cumulated_chunks.run({name: value[h] for name, value in x.items()}, logs[h], chunk)
        for h in range(len(logs))
    ]
    y, M = zip(*per_head, strict=True)
    return {"y": np.stack(y), "M": np.stack(M)}


def part_of_tolerance(gates: str, chunk: int, seed: int) -> float:
    """The error of such a kernel in float32 as part of its tolerance."""
    x, logs, decay = drawn("kda", gates, seed)
    want = results(wide(x) | {"retain": np.exp(np.float64(logs))}, "sequential", None, decay)
    got = cumulated(x, logs, chunk)
    bound = tolerance.of_cumulated_logs(logs, chunk)
    return max(relative_error(got[name], value) / bound for name, value in want.items())


FINITE = [gates for gates in GATES if gates != "one of 0"]


@pytest.mark.slow
@pytest.mark.clause("DPLR-16")
def test_a_kernel_that_cumulates_logs_keeps_its_tolerance_and_needs_half_of_it():
    worst = {
        (gates, chunk): max(part_of_tolerance(gates, chunk, seed) for seed in range(2))
        for gates in FINITE
        for chunk in (16, 64, 128)
    }
    assert max(worst.values()) < 1.0
    assert max(worst.values()) > 0.4  # a tolerance that nothing comes near proves nothing
    at_all = [each for (gates, _), each in worst.items() if "1000" in gates]
    assert min(at_all) > 0.02


def test_in_float64_that_kernel_is_the_rule():
    x, logs, decay = drawn("kda", "log-uniform")
    x = wide(x) | {"retain": np.exp(np.float64(logs))}
    want = results(x, "sequential", None, decay)
    for name, value in cumulated(x, np.float64(logs), 64).items():
        assert_close(name, value, want[name], Tolerance("CUMULATED", 1e-10))


@pytest.mark.clause("DPLR-16")
def test_without_room_for_cumulated_logs_that_kernel_would_fail():
    """The chunk form keeps 5e-7 on the same tokens (DPLR-15), so the room is the kernel's own."""
    x, logs, decay = drawn("kda", "one of -1000")
    want = results(wide(x), "sequential", None, decay)
    off = relative_error(cumulated(x, logs, 64)["y"], want["y"])
    assert 20 * BELOW.bound < off < tolerance.of_cumulated_logs(logs, 64)


@pytest.mark.clause("DPLR-16")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_at_a_gate_of_zero_that_kernel_gives_nan_and_has_no_tolerance():
    x, logs, _ = drawn("kda", "one of 0")
    assert np.isnan(cumulated(x, logs, 64)["y"]).any()
    assert tolerance.of_cumulated_logs(logs, 64) == np.inf


@pytest.mark.clause("DPLR-16")
def test_the_tolerance_is_that_of_the_largest_cumulated_log():
    logs = np.zeros((1, 8, 2))
    logs[0, 3, 1], logs[0, 4, 1], logs[0, 5, 0] = -8.0, -16.0, -20.0
    assert tolerance.of_cumulated_logs(logs, 4) == 1e-6 + 2 * 20.0 * 2.0**-24
    assert tolerance.of_cumulated_logs(logs, 8) == 1e-6 + 2 * 24.0 * 2.0**-24
    assert tolerance.of_cumulated_logs(np.zeros((3, 1)), 2) == 1e-6


@pytest.mark.clause("DPLR-16")
@pytest.mark.parametrize(
    ("logs", "chunk", "message"),
    [
        (np.zeros((3, 1)), 0, "chunk: 0, expected at least 1"),
        (np.zeros(3), 2, r"log_retain: shape \(3,\), expected"),
        (np.full((3, 1), 0.5), 2, "log_retain: every log gate must be at most 0"),
        (np.full((3, 1), np.nan), 2, "log_retain: every log gate must be at most 0"),
    ],
)
def test_what_are_no_log_gates_has_no_tolerance(logs, chunk, message):
    with pytest.raises(ValueError, match=message):
        tolerance.of_cumulated_logs(logs, chunk)
