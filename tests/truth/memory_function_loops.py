"""Memory functions and their hand gradient as plain loops over entries, one token at a time.

Written from the definition alone: the polynomial memory of Atlas-MAG, the MLP of titans-pytorch and
a matrix. One row with parameters of its own; float64, or complex128 where no error function is
asked for. Nothing is shared with the package under test.
"""

from __future__ import annotations

import cmath
import math
from typing import Any, NamedTuple

import numpy as np

Array = Any
Parameters = dict[str, Array]


class Memory(NamedTuple):
    """Settings of a memory function.

    Attributes:
        kind: polynomial | mlp | linear.
        activation: gelu | gelu_tanh | silu.
        gated: whether W_value is there. degree: 1 | 2, of the polynomial.
        depth: number of matrices of the mlp. residual_norm: whether it ends in LayerNorm + x.
        with_input: whether x is added. eps: of both layer norms.
    """

    kind: str
    activation: str = "gelu"
    gated: bool = False
    degree: int = 2
    depth: int = 2
    residual_norm: bool = False
    with_input: bool = False
    eps: float = 1e-5


def activation(kind: str, a: Any) -> Any:
    if kind == "silu":
        return a / (1.0 + cmath.exp(-a))
    if kind == "gelu_tanh":
        return 0.5 * a * (1.0 + cmath.tanh(math.sqrt(2.0 / math.pi) * (a + 0.044715 * a**3)))
    assert a.imag == 0.0
    return 0.5 * a * (1.0 + math.erf(a.real / math.sqrt(2.0)))


def activation_slope(kind: str, a: Any) -> Any:
    if kind == "silu":
        e = cmath.exp(-a)
        return (1.0 + e + a * e) / (1.0 + e) ** 2
    if kind == "gelu_tanh":
        c = math.sqrt(2.0 / math.pi)
        t = cmath.tanh(c * (a + 0.044715 * a**3))
        return 0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * c * (1.0 + 3 * 0.044715 * a * a)
    a = a.real
    density = math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi)
    return 0.5 * (1.0 + math.erf(a / math.sqrt(2.0))) + a * density


def times(W: Array, x: Array) -> Array:
    """y_o = sum_i W[o, i] x_i."""
    y = np.zeros(len(W), np.result_type(W, x))
    for o in range(len(W)):
        for i in range(len(x)):
            y[o] += W[o, i] * x[i]
    return y


def times_transposed(W: Array, g: Array) -> Array:
    """x_i = sum_o W[o, i] g_o."""
    x = np.zeros(len(W[0]), np.result_type(W, g))
    for i in range(len(x)):
        for o in range(len(W)):
            x[i] += W[o, i] * g[o]
    return x


def add_outer(total: Array, g: Array, x: Array) -> None:
    for o in range(len(g)):
        for i in range(len(x)):
            total[o, i] += g[o] * x[i]


def layer_norm(x: Array, eps: float) -> tuple[Array, Any]:
    """The normalised row and 1 / sqrt(variance + eps)."""
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    r = 1.0 / np.sqrt(variance + eps)
    return np.array([(v - mean) * r for v in x]), r


def layer_norm_cotangent(n: Array, r: Any, gn: Array) -> Array:
    mean, along = sum(gn) / len(gn), sum(g * v for g, v in zip(gn, n, strict=True)) / len(gn)
    return np.array([r * (g - mean - v * along) for g, v in zip(gn, n, strict=True)])


def features(degree: int, z: Array) -> Array:
    found = list(z)
    if degree == 2:
        for i in range(len(z)):
            for j in range(i, len(z)):
                found.append(z[i] * z[j])
    return np.array(found)


def features_cotangent(degree: int, z: Array, gf: Array) -> Array:
    gz = np.array(gf[: len(z)])
    if degree == 2:
        at = len(z)
        for i in range(len(z)):
            for j in range(i, len(z)):
                gz[i] += gf[at] * z[j]
                gz[j] += gf[at] * z[i]
                at += 1
    return gz


def _entries(f: Any, *rows: Array) -> Array:
    found = np.array([f(*each) for each in zip(*rows, strict=True)], complex)
    return found if any(np.iscomplexobj(row) for row in rows) else found.real


def polynomial_token(m: Memory, p: Parameters, x: Array) -> dict[str, Array]:
    """Every value of one token, by the names of the definition."""
    t: dict[str, Array] = {"z": times(p["W_down"], x)}
    t["f"] = features(m.degree, t["z"])
    t["n1"], t["r1"] = layer_norm(t["f"], m.eps)
    t["u"] = p["feature_norm/gain"] * t["n1"] + p["feature_norm/bias"]
    t["m"] = times(p["W_compress"], t["u"]) if "W_compress" in p else t["u"]
    t["a"] = times(p["W_in"], t["m"])
    t["s"] = _entries(lambda a: activation(m.activation, a), t["a"])
    if m.gated:
        t["b"] = times(p["W_value"], t["m"])
        t["s"] = t["s"] * t["b"]
    t["o"] = times(p["W_out"], t["s"])
    t["e"] = times(p["W_up"], t["o"])
    t["n2"], t["r2"] = layer_norm(t["e"], m.eps)
    t["y"] = p["read_scale"] * (p["read_norm/gain"] * t["n2"] + p["read_norm/bias"])
    return t


def polynomial_cotangents(
    m: Memory, p: Parameters, x: Array, gy: Array, total: Parameters
) -> Array:
    """Add one token's cotangents of the parameters to `total`; the cotangent of its x."""
    t = polynomial_token(m, p, x)
    for i in range(len(gy)):
        inside = p["read_norm/gain"][i] * t["n2"][i] + p["read_norm/bias"][i]
        total["read_scale"] += gy[i] * inside
    g = p["read_scale"] * gy
    total["read_norm/bias"] += g
    total["read_norm/gain"] += g * t["n2"]
    ge = layer_norm_cotangent(t["n2"], t["r2"], g * p["read_norm/gain"])
    add_outer(total["W_up"], ge, t["o"])
    go = times_transposed(p["W_up"], ge)
    add_outer(total["W_out"], go, t["s"])
    gs = times_transposed(p["W_out"], go)
    ga = gs * _entries(lambda a: activation_slope(m.activation, a), t["a"])
    gm = np.zeros(len(t["m"]), t["m"].dtype)
    if m.gated:
        ga = ga * t["b"]
        gb = gs * _entries(lambda a: activation(m.activation, a), t["a"])
        add_outer(total["W_value"], gb, t["m"])
        gm = gm + times_transposed(p["W_value"], gb)
    add_outer(total["W_in"], ga, t["m"])
    gm = gm + times_transposed(p["W_in"], ga)
    if "W_compress" in p:
        add_outer(total["W_compress"], gm, t["u"])
        gm = times_transposed(p["W_compress"], gm)
    total["feature_norm/bias"] += gm
    total["feature_norm/gain"] += gm * t["n1"]
    gf = layer_norm_cotangent(t["n1"], t["r1"], gm * p["feature_norm/gain"])
    gz = features_cotangent(m.degree, t["z"], gf)
    add_outer(total["W_down"], gz, x)
    return times_transposed(p["W_down"], gz)


def mlp_token(m: Memory, p: Parameters, x: Array) -> dict[str, Array]:
    t: dict[str, Array] = {"s_0": x}
    for layer in range(1, m.depth + 1):
        t[f"a_{layer}"] = times(p[f"W_{layer}"], t[f"s_{layer - 1}"])
        t[f"s_{layer}"] = _entries(lambda a: activation(m.activation, a), t[f"a_{layer}"])
    t["y"] = t["o"] = t[f"a_{m.depth}"]
    if m.residual_norm:
        t["n"], t["r"] = layer_norm(t["o"], m.eps)
        t["y"] = t["n"] * (p["norm/gain"] + 1.0) + x
    return t


def mlp_cotangents(m: Memory, p: Parameters, x: Array, gy: Array, total: Parameters) -> Array:
    t, g = mlp_token(m, p, x), gy
    if m.residual_norm:
        total["norm/gain"] += gy * t["n"]
        g = layer_norm_cotangent(t["n"], t["r"], gy * (p["norm/gain"] + 1.0))
    for layer in range(m.depth, 0, -1):
        add_outer(total[f"W_{layer}"], g, t[f"s_{layer - 1}"])
        g = times_transposed(p[f"W_{layer}"], g)
        if layer > 1:
            g = g * _entries(lambda a: activation_slope(m.activation, a), t[f"a_{layer - 1}"])
    return g + gy if m.residual_norm else g


def linear_token(m: Memory, p: Parameters, x: Array) -> dict[str, Array]:
    return {"y": times(p["W"], x)}


def linear_cotangents(m: Memory, p: Parameters, x: Array, gy: Array, total: Parameters) -> Array:
    add_outer(total["W"], gy, x)
    return times_transposed(p["W"], gy)


TOKENS = {"polynomial": polynomial_token, "mlp": mlp_token, "linear": linear_token}
COTANGENTS = {
    "polynomial": polynomial_cotangents,
    "mlp": mlp_cotangents,
    "linear": linear_cotangents,
}


def values(m: Memory, p: Parameters, x: Array) -> Array:
    """M(x_t) of each token of one row, (n, d_in) -> (n, d_out)."""
    rows = [TOKENS[m.kind](m, p, token)["y"] for token in x]
    return np.array([y + token if m.with_input else y for y, token in zip(rows, x, strict=True)])


def cotangents(m: Memory, p: Parameters, x: Array, gy: Array) -> tuple[Parameters, Array]:
    """Cotangents of the parameters, summed over the tokens of one row, and of each x_t."""
    kind = np.result_type(x, gy, *p.values())
    total = {name: np.zeros(np.shape(array), kind) for name, array in p.items()}
    gx = []
    for token, g in zip(x, gy, strict=True):
        back = COTANGENTS[m.kind](m, p, token, g, total)
        gx.append(back + g if m.with_input else back)
    return total, np.array(gx)
