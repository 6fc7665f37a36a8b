"""Gradients against derivatives by hand in plain loops, which know nothing of the tape."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from tape import ops
from tests.support.close import ANALYTIC, assert_close

draw = np.random.default_rng(77)
T, N, M = 5, 4, 3
K, V, Q = (draw.standard_normal((T, N)) for _ in range(3))
W, U = draw.standard_normal((N, N)) / 2, draw.standard_normal((N, M))
G = draw.standard_normal((N, M))


@pytest.mark.clause("TAPE-4")
def test_matrix_product_is_the_double_sum() -> None:
    gradient = np.zeros((N, N))
    for i in range(N):
        for k in range(N):
            for j in range(M):
                gradient[i, k] += G[i, j] * U[k, j]
    assert_close("W", tape.grad(lambda W: ops.sum((W @ U) * G))(W), gradient, ANALYTIC)


@pytest.mark.clause("TAPE-4")
def test_batched_product_with_a_shared_matrix_sums_over_the_batch() -> None:
    X, H = draw.standard_normal((2, 3, N)), draw.standard_normal((2, 3, M))
    gradient = np.zeros((N, M))
    for b in range(2):
        for i in range(3):
            for k in range(N):
                for j in range(M):
                    gradient[k, j] += X[b, i, k] * H[b, i, j]
    assert_close("shared", tape.grad(lambda U: ops.sum((X @ U) * H))(U), gradient, ANALYTIC)


@pytest.mark.clause("TAPE-4")
def test_cross_entropy_of_softmax_is_probabilities_minus_one_hot() -> None:
    x, target = V[0], 2
    z = sum(math.exp(v) for v in x)
    want = np.array([math.exp(v) / z - (i == target) for i, v in enumerate(x)])
    assert_close("logsumexp", tape.grad(lambda x: ops.logsumexp(x) - x[target])(x), want, ANALYTIC)
    assert_close(
        "softmax", tape.grad(lambda x: -ops.log(ops.softmax(x)[target]))(x), want, ANALYTIC
    )


@pytest.mark.clause("TAPE-4")
@pytest.mark.parametrize(
    ("f", "derivative"),
    [
        (ops.silu, lambda x: (1 + math.exp(-x) * (1 + x)) / (1 + math.exp(-x)) ** 2),
        (ops.softplus, lambda x: 1 / (1 + math.exp(-x))),
        (ops.sigmoid, lambda x: math.exp(-x) / (1 + math.exp(-x)) ** 2),
        (ops.tanh, lambda x: 1 / math.cosh(x) ** 2),
        (ops.elu, lambda x: 1.0 if x > 0 else math.exp(x)),
        (ops.gelu, lambda x: gelu_derivative(x)),
        (ops.absolute, lambda x: math.copysign(1.0, x)),
        (ops.log1p, lambda x: 1 / (1 + x)),
        (ops.square, lambda x: 2 * x),
        (
            lambda x: ops.maximum(x, 0.25) * ops.minimum(x, 2.0),
            lambda x: 2 * x if x > 0.25 else 0.25,
        ),
        (lambda x: x / (1.0 + x * x), lambda x: (1 - x * x) / (1 + x * x) ** 2),
        (lambda x: 2.0**x, lambda x: math.log(2) * 2**x),
    ],
)
def test_derivatives_of_functions_of_one_number(
    f: Callable[[Any], Any], derivative: Callable[[float], float]
) -> None:
    for x in (-0.9, 0.1, 0.7, 1.9):
        assert_close(f"at {x}", tape.grad(f)(x), derivative(x), ANALYTIC)


def gelu_derivative(x: float) -> float:
    c = math.sqrt(2 / math.pi)
    t = math.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


@pytest.mark.clause("TAPE-4")
def test_norm_points_along_its_argument() -> None:
    want = np.stack([row / math.sqrt(sum(v * v for v in row)) for row in K])
    assert_close("rows", tape.grad(lambda K: ops.sum(ops.norm(K, axis=-1)))(K), want, ANALYTIC)


@pytest.mark.clause("TAPE-4")
def test_layer_norm_by_its_textbook_backward() -> None:
    x, g, n = K[0], V[0], N
    mu = sum(x) / n
    sigma = math.sqrt(sum((v - mu) ** 2 for v in x) / n)
    h = [(v - mu) / sigma for v in x]
    want = np.array(
        [
            (g[i] - sum(g) / n - h[i] * sum(g[j] * h[j] for j in range(n)) / n) / sigma
            for i in range(n)
        ]
    )

    def loss(x: Any) -> Any:
        centred = x - ops.mean(x)
        return ops.sum(centred / ops.sqrt(ops.mean(centred**2)) * g)

    assert_close("x", tape.grad(loss)(x), want, ANALYTIC)


@pytest.mark.clause("TAPE-4")
def test_running_sum_pulls_back_to_the_sum_of_what_follows() -> None:
    want = np.array([[sum(V[s, i] for s in range(t, T)) for i in range(N)] for t in range(T)])
    assert_close("x", tape.grad(lambda x: ops.sum(ops.cumsum(x, axis=0) * V))(K), want, ANALYTIC)


@pytest.mark.clause("TAPE-4")
def test_rows_gathered_several_times_collect_their_cotangents() -> None:
    rows = [3, 0, 3, 3, 1]
    want = np.zeros((N, M))
    g = draw.standard_normal((5, M))
    for place, row in enumerate(rows):
        for j in range(M):
            want[row, j] += g[place, j]
    assert_close("table", tape.grad(lambda U: ops.sum(U[rows] * g))(U), want, ANALYTIC)


@pytest.mark.clause("TAPE-4")
@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_triangular_solve_by_substitution_forward_and_back(lower: bool) -> None:
    """a x = b: b_bar = a^{-T} x_bar, a_bar = -b_bar x^T on the triangle."""
    a = W + 2.0 * np.eye(N)
    a = np.tril(a) if lower else np.triu(a)
    x, b_bar = np.zeros((N, M)), np.zeros((N, M))
    order = range(N) if lower else range(N - 1, -1, -1)
    for i in order:
        for j in range(M):
            x[i, j] = (U[i, j] - sum(a[i, k] * x[k, j] for k in range(N) if k != i)) / a[i, i]
    for i in reversed(order):
        for j in range(M):
            b_bar[i, j] = (G[i, j] - sum(a[k, i] * b_bar[k, j] for k in range(N) if k != i)) / a[
                i, i
            ]
    a_bar = np.zeros((N, N))
    for i in range(N):
        for k in range(i + 1) if lower else range(i, N):
            a_bar[i, k] = -sum(b_bar[i, j] * x[k, j] for j in range(M))
    got = tape.grad(lambda p: ops.sum(ops.solve_triangular(*p, lower=lower) * G))((a, U))
    assert_close("a", got[0], a_bar, ANALYTIC)
    assert_close("b", got[1], b_bar, ANALYTIC)


@pytest.mark.clause("TAPE-7")
def test_recurrent_network_by_backpropagation_through_time() -> None:
    def loss(p: Any) -> Any:
        h = np.zeros(N)
        for t in range(T):
            h = ops.tanh(p["W"] @ h + p["x"][t])
        return h @ V[0]

    h = [np.zeros(N)]
    for t in range(T):
        h.append(
            np.array(
                [math.tanh(sum(W[i, j] * h[-1][j] for j in range(N)) + K[t, i]) for i in range(N)]
            )
        )
    W_bar, x_bar, h_bar = np.zeros((N, N)), np.zeros((T, N)), V[0].copy()
    for t in reversed(range(T)):
        for i in range(N):
            x_bar[t, i] = h_bar[i] * (1 - h[t + 1][i] ** 2)
        for i in range(N):
            for j in range(N):
                W_bar[i, j] += x_bar[t, i] * h[t][j]
        h_bar = np.array([sum(W[i, j] * x_bar[t, i] for i in range(N)) for j in range(N)])
    got = tape.grad(loss)({"W": W, "x": K})
    assert_close("W", got["W"], W_bar, ANALYTIC)
    assert_close("x", got["x"], x_bar, ANALYTIC)


@pytest.mark.clause("TAPE-7")
def test_delta_rule_by_its_adjoint_recursion() -> None:
    """The adjoint recursion of S' = S - eta (S k - v) k^T.

    With loss sum_t q_t^T S_t u it is S_bar' -> S_bar' (1 - eta k k^T), and the rest follows from
    it.
    """
    eta, u = 0.3, V[1]

    def loss(p: Any) -> Any:
        S, total = np.zeros((N, N)), 0.0
        for t in range(T):
            k = p["k"][t]
            S = S - p["eta"] * ops.outer(S @ k - p["v"][t], k)
            total = total + Q[t] @ (S @ u)
        return total

    states = [np.zeros((N, N))]
    for t in range(T):
        states.append(states[-1] - eta * np.outer(states[-1] @ K[t] - V[t], K[t]))
    k_bar, v_bar, eta_bar, S_bar = np.zeros((T, N)), np.zeros((T, N)), 0.0, np.zeros((N, N))
    for t in reversed(range(T)):
        S_bar = S_bar + np.outer(Q[t], u)
        S, k, error = states[t], K[t], states[t] @ K[t] - V[t]
        eta_bar -= error @ S_bar @ k
        v_bar[t] = eta * S_bar @ k
        k_bar[t] = -eta * (S.T @ S_bar @ k + S_bar.T @ error)
        S_bar = S_bar - eta * np.outer(S_bar @ k, k)
    got = tape.grad(loss)({"k": K, "v": V, "eta": eta})
    assert_close("k", got["k"], k_bar, ANALYTIC)
    assert_close("v", got["v"], v_bar, ANALYTIC)
    assert_close("eta", got["eta"], eta_bar, ANALYTIC)


@pytest.mark.clause("TAPE-7")
def test_window_that_slides_hands_each_row_the_cotangents_of_its_stay() -> None:
    """The stay of row t in a window of c rows.

    It is there after steps t, ..., t + c - 1, at places c - 1, ..., 0.
    """
    c = 3
    weights = draw.standard_normal((T, c, N))
    want = np.zeros((T, N))
    for t in range(T):
        for s in range(t, min(T, t + c)):
            want[t] += weights[s, c - 1 - (s - t)]

    def loss(x: Any) -> Any:
        window, total = np.zeros((c, N)), 0.0
        for t in range(T):
            window = ops.slide(window, x[t])
            total = total + ops.sum(window * weights[t])
        return total

    assert_close("x", tape.grad(loss)(K), want, ANALYTIC)


@pytest.mark.clause("TAPE-7")
def test_odd_polynomial_of_a_matrix_by_matrix_calculus() -> None:
    """Matrix calculus of Y = (b A + c A A) X with A = X X^T.

    A_bar = B' X^T with B' = Y_bar, and X gets three parts.
    """
    b, c, Y_bar = -1.3, 0.4, G
    X = U
    A = X @ X.T
    B = b * A + c * A @ A
    B_bar = Y_bar @ X.T
    A_bar = b * B_bar + c * (B_bar @ A.T + A.T @ B_bar)
    want = B.T @ Y_bar + (A_bar + A_bar.T) @ X

    def loss(X: Any) -> Any:
        A = X @ X.T
        return ops.sum((b * A + c * (A @ A)) @ X * Y_bar)

    assert_close("X", tape.grad(loss)(X), want, ANALYTIC)
    assert_close(
        "Hessian",
        tape.hvp(lambda X: ops.sum((X.T @ X) ** 2))(X, G),
        hessian_of_gram(X, G),
        ANALYTIC,
    )


def hessian_of_gram(X: Any, D: Any) -> Any:
    """grad ||X^T X||^2 = 4 X X^T X, whose derivative along D has three terms."""
    return 4.0 * (D @ X.T @ X + X @ D.T @ X + X @ X.T @ D)
