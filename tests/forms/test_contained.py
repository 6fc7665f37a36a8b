"""Chunk forms against the recurrences of their clauses, their special cases and their cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import forms as run
from atlas_ref.rules import delta, hebbian, omega, titans_lmm
from atlas_ref.rules.sequence import Tokens
from tests.support.close import ANALYTIC, assert_close
from tests.support.counting import Counted, counted, multiply_adds

T, D_IN, D_OUT = 7, 5, 3


def drawn(seed: int = 0) -> dict[str, np.ndarray]:
    """Tokens and gates that differ from token to token, and first states that are not zero."""
    r = np.random.default_rng(seed)
    return {
        "k": 0.5 * r.standard_normal((T, D_IN)),
        "v": r.standard_normal((T, D_OUT)),
        "q": r.standard_normal((T, D_IN)),
        "retain": r.uniform(0.6, 1.0, T),
        "momentum": r.uniform(0.2, 0.9, T),
        "step_size": r.uniform(0.1, 0.6, T),
        "M": r.standard_normal((D_OUT, D_IN)),
        "S": r.standard_normal((D_OUT, D_IN)),
    }


def computed(
    module: Any,
    x: dict[str, np.ndarray],
    form: str,
    chunk: int | None,
    names: tuple[str, ...],
    **convention: Any,
) -> Any:
    """(end state, y) by a form of the package; `names` are the gates that the rule takes."""
    settings = {
        "gate": "retain",
        **({"newton_schulz": "none"} if module is omega else {}),
        **convention,
    }
    sizes = {"d_in": D_IN, "d_out": D_OUT} | ({"window": 1} if module is omega else {})
    config = module.Config(**sizes, convention=settings)
    tokens = Tokens(k=x["k"], v=x["v"], q=x["q"], **{name: x[name] for name in names})
    start = {name: x[name] for name in ("M", "S") if name == "M" or module is omega}
    return run.run(
        module.RULE, config, tokens, module.start(config, **start), form=form, chunk=chunk
    )


ALL = ("retain", "momentum", "step_size")


@pytest.mark.clause("CHUNK-10")
@pytest.mark.parametrize("form", ["chunkwise", "atlas_parallel"])
def test_decay_before_the_error_takes_two_masks(form: str) -> None:
    x = drawn()
    retain, momentum, rate = x["retain"], x["momentum"], x["step_size"]
    n, c, f = 1.0, 1.0, 0.0
    own, own_r, mask, mask_r = (np.zeros(T) for _ in range(4))
    reads = []
    for t in range(T):
        w = np.eye(T)[t]
        own, own_r, n = (
            momentum[t] * own + rate[t] * w,
            momentum[t] * own_r + rate[t] * retain[t] * w,
            momentum[t] * n,
        )
        mask, mask_r, c, f = (
            retain[t] * mask + own,
            retain[t] * mask_r + own_r,
            retain[t] * c,
            retain[t] * f - n,
        )
        P = x["k"] @ x["q"][t]
        predicted = x["M"] @ x["k"].T
        reads.append(
            c * x["M"] @ x["q"][t]
            + f * x["S"] @ x["q"][t]
            - predicted @ (mask_r * P)
            + x["v"].T @ (mask * P)
        )
    _, y = computed(omega, x, form, 3, ALL, reference="call_start", decay="before_error")
    assert_close("y", y, np.array(reads), ANALYTIC)


@pytest.mark.clause("EXACT-1")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_the_memory_before_a_token_is_the_row_before(decay: str) -> None:
    """R_t from the coefficients of the row before, its residual from R_t, and the reads of the
    exact form.
    """
    x = drawn(1)
    retain, momentum, rate = x["retain"], x["momentum"], x["step_size"]
    n, c, f, own, mask, errors, reads = (
        1.0,
        1.0,
        0.0,
        np.zeros(T),
        np.zeros(T),
        np.zeros((T, D_OUT)),
        [],
    )
    for t in range(T):
        factor = retain[t] if decay == "before_error" else 1.0
        R = factor * (c * x["M"] + f * x["S"] - (errors * mask[:, None]).T @ x["k"])
        errors[t] = R @ x["k"][t] - x["v"][t]
        own, n = momentum[t] * own + rate[t] * np.eye(T)[t], momentum[t] * n
        mask, c, f = retain[t] * mask + own, retain[t] * c, retain[t] * f - n
        reads.append((c * x["M"] + f * x["S"] - (errors * mask[:, None]).T @ x["k"]) @ x["q"][t])
    _, y = computed(omega, x, "exact", 3, ALL, decay=decay)
    assert_close("y", y, np.array(reads), ANALYTIC)


@pytest.mark.clause("EXACT-17")
def test_the_exact_form_of_the_gated_delta_rule_is_the_wy_form() -> None:
    x = drawn(2)
    h, retain, keys = x["step_size"], x["retain"], x["k"]
    decay = np.array([[np.prod(retain[j + 1 : t + 1]) for j in range(T)] for t in range(T)])
    c = np.cumprod(retain)
    system = np.eye(T) + np.tril(np.diag(h) @ (decay * (keys @ keys.T)), -1)
    u = np.linalg.solve(system, np.diag(h) @ (x["v"] - np.diag(c) @ keys @ x["M"].T))
    want = c[-1] * x["M"] + (decay[-1][:, None] * u).T @ keys
    end, _ = computed(delta, x, "exact", None, ("retain", "step_size"), decay="before_error")
    assert_close("M", end.M, want, ANALYTIC)
    other, _ = computed(delta, x, "exact", None, ("retain", "step_size"))
    assert np.abs(other.M - want).max() > 1e-3 * np.abs(want).max()  # after_error is another rule


@pytest.mark.clause("EXACT-18", "CHUNK-28")
def test_hebbian_is_decayed_linear_attention_in_every_form() -> None:
    """Reads without a solve: y_t = sum over i of the decay since i, <q_t, k_i> and v_i."""
    x = drawn(3)
    x["M"] = np.zeros_like(x["M"])
    decay = np.array(
        [
            [np.prod(x["retain"][i + 1 : t + 1]) if i <= t else 0.0 for i in range(T)]
            for t in range(T)
        ]
    )
    want = (decay * (x["q"] @ x["k"].T)) @ x["v"]
    for form in ("exact", "chunkwise"):
        assert_close(form, computed(hebbian, x, form, 3, ("retain",))[1], want, ANALYTIC)
    x["S"] = np.zeros_like(x["S"])
    weighed = (decay * (x["q"] @ x["k"].T)) @ (x["step_size"][:, None] * x["v"])
    _, y = computed(omega, {**x, "momentum": np.zeros(T)}, "chunkwise", 3, ALL, reference="zero")
    assert_close("zero reference", y, weighed, ANALYTIC)


@pytest.mark.clause("EXACT-13")
def test_scores_that_overflow_leave_alone_what_does_not_depend_on_reads() -> None:
    x = {
        name: value
        for name, value in drawn(4).items()
        if name in ("k", "v", "q", "retain", "step_size")
    }
    x["k"], x["q"] = np.full_like(x["k"], 0.4), np.full_like(x["q"], 1.7e308)
    config = delta.Config(d_in=D_IN, d_out=D_OUT, convention={"gate": "retain"})

    def end(arrays: Any, form: str) -> Any:
        chunk = None if form == "sequential" else 4
        return run.run(
            delta.RULE, config, Tokens(**arrays), delta.start(config), form=form, chunk=chunk
        )[0].M

    gradients = {}
    for form in ("exact", "sequential"):
        with np.errstate(over="ignore", invalid="ignore"):
            M, pullback = tape.vjp(lambda arrays, form=form: end(arrays, form), x)
            gradients[form] = pullback(np.ones_like(M))[0]
    for name, want in gradients["sequential"].items():
        assert np.isfinite(want).all()
        assert_close(name, gradients["exact"][name], want, ANALYTIC)


@pytest.mark.clause("EXACT-13")
@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_a_memory_that_overflows_leaves_alone_a_momentum_that_does_not_depend_on_it(
    chunk: int,
) -> None:
    config = titans_lmm.Config(d_in=2, d_out=1, convention={"reference": "zero", "gate": "retain"})
    state = titans_lmm.start(config, (), M=np.array([[1e308, 1.0]]), S=np.array([[-1.7e308, 1.0]]))
    ones, gates = (
        np.ones((8, 2)),
        {"retain": np.ones(8), "momentum": np.full(8, 0.5), "step_size": np.full(8, 0.1)},
    )
    tokens = Tokens(k=ones, v=np.ones((8, 1)), q=ones, **gates)
    with np.errstate(over="ignore", invalid="ignore"):
        want = run.run(titans_lmm.RULE, config, tokens, state)[0]
        got = run.run(titans_lmm.RULE, config, tokens, state, form="chunkwise", chunk=chunk)[0]
    assert np.isinf(want.M[0, 0])
    assert np.isinf(got.M[0, 0])
    assert_close("S", got.S, want.S, ANALYTIC)


def work(form: str, window: int, chunk: int, d_phi: int, d_out: int, **convention: Any) -> int:
    """Multiply-adds of one chunk of Omega without Newton-Schulz."""
    r = np.random.default_rng(0)
    config = omega.Config(
        d_in=d_phi, d_out=d_out, window=window, convention={"newton_schulz": "none", **convention}
    )
    inputs = {
        "k": 0.1 * r.standard_normal((chunk, d_phi)),
        "v": r.standard_normal((chunk, d_out)),
        "q": r.standard_normal((chunk, d_phi)),
    }
    inputs |= {
        "retain": np.full(chunk, 0.9),
        "momentum": np.full(chunk, 0.5),
        "step_size": np.full(chunk, 0.1),
    }
    tokens = Tokens(**{name: value.view(Counted) for name, value in inputs.items()})
    return multiply_adds(
        lambda: run.run(
            omega.RULE, config, tokens, counted(omega.start(config)), form=form, chunk=chunk
        )
    )


SIZES = [(1, 16, 8, 6), (1, 16, 32, 24), (1, 32, 32, 24), (4, 16, 32, 24), (4, 8, 32, 24)]


@pytest.mark.clause("CHUNK-26")
@pytest.mark.parametrize(("c", "C", "d_phi", "d_out"), SIZES)
@pytest.mark.host("counts products of NumPy arrays")
def test_a_chunk_of_the_frozen_rule_costs_no_more_than_its_table(
    c: int, C: int, d_phi: int, d_out: int
) -> None:
    K = C + c - 1
    table = (
        2 * C * K
        + K * d_out * d_phi
        + C * K * (d_phi + d_out)
        + 2 * C * d_out * d_phi
        + 2 * K * d_out * d_phi
        + 4 * d_out * d_phi
    )
    assert 0.9 * table < work("chunkwise", c, C, d_phi, d_out, reference="call_start") <= table


@pytest.mark.clause("CHUNK-26")
@pytest.mark.host("counts products of NumPy arrays")
def test_a_window_costs_the_frozen_form_columns_and_the_sequential_form_products() -> None:
    def growth(form: str) -> float:
        return work(form, 4, 16, 32, 24, reference="call_start") / work(
            form, 1, 16, 32, 24, reference="call_start"
        )

    assert growth("chunkwise") < 1.2
    assert growth("sequential") == 3.0  # (2c + 1) d_out d_phi


@pytest.mark.clause("EXACT-15")
@pytest.mark.parametrize(("c", "C", "d_phi", "d_out"), SIZES)
@pytest.mark.host("counts products of NumPy arrays")
def test_a_chunk_of_the_running_rule_costs_no_more_than_its_table(
    c: int, C: int, d_phi: int, d_out: int
) -> None:
    n = c * C
    coefficients = 2 * C * n
    keys_and_system = (n + C) * n * d_phi + n**3 / 3 + n * n * d_out
    table = (
        coefficients
        + keys_and_system
        + 4 * n * d_out * d_phi
        + C * n * d_out
        + 2 * C * d_out * d_phi
        + 4 * d_out * d_phi
    )
    assert 0.9 * table < work("exact", c, C, d_phi, d_out) <= table


@pytest.mark.clause("EXACT-16")
@pytest.mark.host("counts products of NumPy arrays")
def test_from_a_window_of_sixteen_on_the_sequential_form_does_less() -> None:
    """Work of the window beside that of the sequential form.

    EXACT-16: "at $c = C = 16$ and $d_{out} = d_{phi} = 64$ 4.7 times the work of the sequential
    form".
    """

    def added(c: int, C: int, d: int) -> float:
        """Work that the window adds to a token: c^2 C d_out + c^3 C^2 / 3."""
        return c**2 * C * d + c**3 * C**2 / 3

    sequential = 2 * 16 * 64 * 64
    assert added(16, 16, 64) / sequential == pytest.approx(4.7, abs=0.05)
    assert added(16, 4, 64) < sequential  # c C = 64
