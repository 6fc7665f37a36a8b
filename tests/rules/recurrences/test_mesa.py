"""The mesa memory: a read is that of a ridge regression, which NumPy solves another way."""

from __future__ import annotations

import numpy as np
import pytest

import tape
from atlas_ref.rules.recurrences import mesa
from tape import ops
from tests.support.close import ANALYTIC, Tolerance, assert_close
from tests.support.recurrences import computed, drawn, driven, started

LEAST_SQUARES = Tolerance("LEAST_SQUARES", 1e-11)
BARE = ("k", "v", "q", "weight", "log_retain", "ridge")


def bare(seed):
    """Inputs without a first state, of positive weights."""
    x = {name: value for name, value in drawn("mesa", seed).items() if name in BARE}
    return x | {"weight": np.abs(x["weight"])}


@pytest.mark.clause("RECUR-10")
def test_a_read_is_that_of_the_least_squares_of_decayed_tokens_and_a_ridge():
    """Rows of tokens and of the ridge, scaled by the roots of their weights, by lstsq."""
    x = bare(1)
    y = computed("mesa", x)["y"]
    for b in range(2):
        for t in range(5):
            shares = [
                x["weight"][b, s] * np.exp(sum(x["log_retain"][b, s + 1 : t + 1]))
                for s in range(t + 1)
            ]
            roots = np.sqrt(shares)[:, None]
            keys = np.concatenate([roots * x["k"][b, : t + 1], np.diag(np.sqrt(x["ridge"][b]))])
            values = np.concatenate([roots * x["v"][b, : t + 1], np.zeros((4, 3))])
            W = np.linalg.lstsq(keys, values, rcond=None)[0].T
            assert_close(f"{b} {t}", y[b, t], W @ x["q"][b, t], LEAST_SQUARES)


@pytest.mark.clause("RECUR-10")
def test_without_a_ridge_a_memory_of_few_keys_finds_the_value_of_each():
    """Four keys of four dimensions: the regression meets each value, however it is weighed."""
    x = bare(2)
    x = {name: value if name == "ridge" else value[:, :4] for name, value in x.items()}
    x |= {"ridge": np.zeros((2, 4))}
    x["q"] = np.repeat(x["k"][:, 1:2], 4, axis=1)
    assert_close("v", computed("mesa", x)["y"][:, 3], x["v"][:, 1], LEAST_SQUARES)


@pytest.mark.clause("RECUR-10")
def test_conjugate_gradients_with_guarded_quotients_leave_an_error_and_without_do_not():
    x = bare(6)
    y = computed("mesa", x)["y"][:, -1]
    tokens, first = started("mesa", x)
    last, _ = driven("mesa", tokens, first)
    for guard, least, most in ((1e-5, 1e-8, 1e-1), (1e-300, 0.0, 1e-11)):
        errors = [
            np.linalg.norm(last.M[b] @ _by_conjugate_gradients(
                last.G[b] + np.diag(x["ridge"][b]), x["q"][b, -1], guard) - y[b])
            / np.linalg.norm(y[b])
            for b in range(2)
        ]  # fmt: skip
        assert least <= max(errors) < most


def _by_conjugate_gradients(A, b, guard):
    """A^-1 b after 30 iterations, with a number added to both denominators, as kernels do."""
    x = b / np.diag(A)
    rest = b - A @ x
    way, size = rest.copy(), rest @ rest
    for _ in range(30):
        ahead = A @ way
        step = size / (way @ ahead + guard)
        x, rest = x + step * way, rest - step * ahead
        size, before = rest @ rest, size
        way = rest + size / (before + guard) * way
    return x


@pytest.mark.clause("RECUR-10")
def test_a_singular_system_reads_nan_and_others_do_not():
    x = bare(3)
    x["ridge"][0] = 0.0
    x["weight"][0, :4] = 0.0
    y = computed("mesa", x)["y"]
    assert np.isnan(y[0, :4]).all()
    assert np.isfinite(y[1]).all()


@pytest.mark.clause("RECUR-4", "RECUR-10")
def test_a_ridge_that_heads_share_has_the_sum_of_their_gradients():
    x, weights = bare(4), np.random.default_rng(1).standard_normal((2, 5, 3))
    x["ridge"] = np.repeat(x["ridge"][:1], 2, axis=0)
    shared = x | {"ridge": x["ridge"][0]}
    assert_close("y", computed("mesa", shared)["y"], computed("mesa", x)["y"], ANALYTIC)
    own, of_all = (
        tape.grad(lambda z: ops.sum(weights * computed("mesa", z)["y"]))(each)["ridge"]
        for each in (x, shared)
    )
    assert_close("ridge", of_all, own.sum(axis=0), ANALYTIC)


@pytest.mark.clause("RECUR-1", "RECUR-10")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ridge": -np.ones((2, 4))}, "ridge: entries must be at least 0"),
        ({"ridge": np.ones((3, 4))}, r"ridge: shape \(3, 4\), expected \(2, 4\)"),
        ({"ridge": np.ones(5)}, r"ridge: shape \(5,\), expected \(4,\)"),
        ({"weight": np.ones((2, 4))}, r"weight: shape \(2, 4\), expected \(2, 5\)"),
        ({"G": np.ones((2, 4, 3))}, r"G: shape \(2, 4, 3\), expected \(2, 4, 4\)"),
    ],
)
def test_what_contradicts_is_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        computed("mesa", drawn("mesa") | changes)


@pytest.mark.clause("RECUR-1", "RECUR-10")
def test_a_state_of_other_sequences_is_refused_by_name():
    tokens = mesa.Tokens(**bare(5))
    with pytest.raises(ValueError, match=r"state.G: shape \(4, 4\), expected \(2, 4, 4\)"):
        mesa.run(tokens, mesa.State(G=np.ones((4, 4)), M=np.ones((3, 4))))
