"""Memories that are functions of a token, and their gradients by hand, one token at a time.

Float64 or complex128, never a conjugate, comparisons of real parts only, so that a complex step
passes through. Nothing here is shared with the package under test.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
Tensors = dict[str, Any]


class Function(NamedTuple):
    """Settings of a memory function M(x).

    Attributes:
        kind: linear | mlp | polynomial.
        depth: matrices of an mlp, W_1 .. W_depth; None for those that the tensors have.
        expansion: hidden width over key width; a fact of the tensors that is checked where given.
        residual_norm: of an mlp: its result is LayerNorm(h) (norm/gain + 1) + x.
        activation: gelu_erf | gelu_tanh | silu.
        gated: of a polynomial: the activation times W_value m.
        degree: of a polynomial, 1 or 2.
        key_width: rows of W_down; a fact of the tensors that is checked where given.
        compress: of a polynomial: whether W_compress comes before W_in.
        norm_eps: of each layer norm, inside the root.
        with_input: whether x is added to the result.
    """

    kind: str = "linear"
    depth: int | None = None
    expansion: float | None = None
    residual_norm: bool = False
    activation: str = "gelu_erf"
    gated: bool = False
    degree: int = 2
    key_width: int | None = None
    compress: bool = False
    norm_eps: float = 1e-5
    with_input: bool = False


def erf(x: Any) -> Array:
    """The error function; of x + i h for an h so small that h^2 is 0 beside 1."""
    x = np.asarray(x)
    real = np.array([math.erf(each) for each in np.real(x).ravel()]).reshape(x.shape)
    if not np.iscomplexobj(x):
        return real
    return real + 1j * np.imag(x) * 2.0 / math.sqrt(math.pi) * np.exp(-(np.real(x) ** 2))


def activated(a: Any, kind: str) -> tuple[Any, Any]:
    """The activation of a and its derivative there."""
    if kind == "gelu_erf":
        half = 0.5 * (1.0 + erf(a / math.sqrt(2.0)))
        return a * half, half + a * np.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi)
    if kind == "gelu_tanh":
        c = math.sqrt(2.0 / math.pi)
        u = np.tanh(c * (a + 0.044715 * a * a * a))
        slope = c * (1.0 + 3.0 * 0.044715 * a * a)
        return 0.5 * a * (1.0 + u), 0.5 * (1.0 + u) + 0.5 * a * (1.0 - u * u) * slope
    if kind == "silu":
        s = 1.0 / (1.0 + np.exp(-a))
        return a * s, s + a * s * (1.0 - s)
    raise ValueError(f"activation: gelu_erf, gelu_tanh or silu, not {kind!r}")


def normalised(x: Array, eps: float) -> tuple[Array, Any]:
    """(x - mean) r and r = 1 / sqrt(variance + eps) of one row."""
    mean = sum(x) / len(x)
    away = np.array([each - mean for each in x])
    r = 1.0 / np.sqrt(sum(each * each for each in away) / len(x) + eps)
    return away * r, r


def norm_gradient(n: Array, r: Any, bar: Array) -> Array:
    """The cotangent of x from that of (x - mean) r."""
    mean, along = sum(bar) / len(bar), sum(bar * n) / len(bar)
    return r * np.array([b - mean - each * along for b, each in zip(bar, n, strict=True)])


def outer(a: Array, b: Array) -> Array:
    return a[:, None] * b[None, :]


def features(z: Array, degree: int) -> Array:
    """z, and of degree 2 the products z_i z_j of i <= j, row by row."""
    if degree == 1:
        return z
    d = len(z)
    return np.array([*z, *(z[i] * z[j] for i in range(d) for j in range(i, d))])


def features_gradient(z: Array, bar: Array, degree: int) -> Array:
    d = len(z)
    z_bar, at = list(bar[:d]), d
    if degree == 2:
        for i in range(d):
            for j in range(i, d):
                z_bar[i] = z_bar[i] + bar[at] * z[j]
                z_bar[j] = z_bar[j] + bar[at] * z[i]
                at += 1
    return np.array(z_bar)


def names(f: Function, p: Tensors) -> tuple[str, ...]:
    """The tensors that M reads, after a check that the settings are those of the tensors."""
    if f.kind == "linear":
        return ("W",)
    if f.kind == "mlp":
        depth = f.depth or sum(name.startswith("W_") for name in p)
        return (*(f"W_{i + 1}" for i in range(depth)), *(["norm/gain"] * f.residual_norm))
    if f.kind != "polynomial":
        raise ValueError(f"kind: linear, mlp or polynomial, not {f.kind!r}")
    if f.key_width is not None and len(p["W_down"]) != f.key_width:
        raise ValueError(f"W_down has {len(p['W_down'])} rows, key_width is {f.key_width}")
    return (
        *("W_down", "feature_norm/gain", "feature_norm/bias"),
        *(["W_compress"] * f.compress),
        "W_in",
        *(["W_value"] * f.gated),
        *("W_out", "W_up", "read_norm/gain", "read_norm/bias", "read_scale"),
    )


def value(p: Tensors, x: Array, f: Function) -> Array:
    """M(x) of one token x (d,)."""
    return _forward(p, x, f)[0]


def gradient(p: Tensors, x: Array, bar: Array, f: Function) -> tuple[Tensors, Array]:
    """Of bar . M(x): by every tensor of M, and by x."""
    _, kept = _forward(p, x, f)
    backward = {"linear": _linear, "mlp": _mlp, "polynomial": _polynomial}[f.kind]
    return backward(p, x, bar, f, kept)


def _forward(p: Tensors, x: Array, f: Function) -> tuple[Array, Tensors]:
    kept: Tensors = {}
    if f.kind == "linear":
        y = p["W"] @ x
    elif f.kind == "mlp":
        y = _mlp_value(p, x, f, kept)
    else:
        y = _polynomial_value(p, x, f, kept)
    return (y + x if f.with_input else y), kept


def _linear(p: Tensors, x: Array, bar: Array, f: Function, kept: Tensors) -> tuple[Tensors, Array]:
    return {"W": outer(bar, x)}, p["W"].T @ bar + (bar if f.with_input else 0.0)


def _mlp_value(p: Tensors, x: Array, f: Function, kept: Tensors) -> Array:
    depth = sum(name.startswith("W_") for name in names(f, p))
    inputs, slopes = [x], []
    h = p["W_1"] @ x
    for i in range(1, depth):
        s, slope = activated(h, f.activation)
        inputs.append(s)
        slopes.append(slope)
        h = p[f"W_{i + 1}"] @ s
    kept |= {"inputs": inputs, "slopes": slopes}
    if not f.residual_norm:
        return h
    n, r = normalised(h, f.norm_eps)
    kept |= {"n": n, "r": r}
    return n * (p["norm/gain"] + 1.0) + x


def _mlp(p: Tensors, x: Array, bar: Array, f: Function, kept: Tensors) -> tuple[Tensors, Array]:
    g: Tensors = {}
    x_bar = bar if f.with_input else 0.0
    h_bar = bar
    if f.residual_norm:
        g["norm/gain"] = bar * kept["n"]
        x_bar = x_bar + bar
        h_bar = norm_gradient(kept["n"], kept["r"], bar * (p["norm/gain"] + 1.0))
    for i in reversed(range(len(kept["inputs"]))):
        g[f"W_{i + 1}"] = outer(h_bar, kept["inputs"][i])
        s_bar = p[f"W_{i + 1}"].T @ h_bar
        h_bar = s_bar * kept["slopes"][i - 1] if i else s_bar
    return g, x_bar + h_bar


def _polynomial_value(p: Tensors, x: Array, f: Function, kept: Tensors) -> Array:
    z = p["W_down"] @ x
    n1, r1 = normalised(features(z, f.degree), f.norm_eps)
    u = p["feature_norm/gain"] * n1 + p["feature_norm/bias"]
    m = p["W_compress"] @ u if f.compress else u
    act, slope = activated(p["W_in"] @ m, f.activation)
    b = p["W_value"] @ m if f.gated else 1.0
    s = act * b
    o = p["W_out"] @ s
    n2, r2 = normalised(p["W_up"] @ o, f.norm_eps)
    kept |= {"z": z, "n1": n1, "r1": r1, "u": u, "m": m, "act": act, "slope": slope, "b": b}
    kept |= {"s": s, "o": o, "n2": n2, "r2": r2}
    return p["read_scale"] * (p["read_norm/gain"] * n2 + p["read_norm/bias"])


def _polynomial(
    p: Tensors, x: Array, bar: Array, f: Function, kept: Tensors
) -> tuple[Tensors, Array]:
    n2, m = kept["n2"], kept["m"]
    g: Tensors = {"read_scale": sum(bar * (p["read_norm/gain"] * n2 + p["read_norm/bias"]))}
    t = p["read_scale"] * bar
    g |= {"read_norm/bias": t, "read_norm/gain": t * n2}
    e_bar = norm_gradient(n2, kept["r2"], t * p["read_norm/gain"])
    g["W_up"] = outer(e_bar, kept["o"])
    o_bar = p["W_up"].T @ e_bar
    g["W_out"] = outer(o_bar, kept["s"])
    s_bar = p["W_out"].T @ o_bar
    a_bar = s_bar * kept["slope"] * kept["b"]
    g["W_in"] = outer(a_bar, m)
    m_bar = p["W_in"].T @ a_bar
    if f.gated:
        b_bar = s_bar * kept["act"]
        g["W_value"] = outer(b_bar, m)
        m_bar = m_bar + p["W_value"].T @ b_bar
    u_bar = m_bar
    if f.compress:
        g["W_compress"] = outer(m_bar, kept["u"])
        u_bar = p["W_compress"].T @ m_bar
    g |= {"feature_norm/bias": u_bar, "feature_norm/gain": u_bar * kept["n1"]}
    f_bar = norm_gradient(kept["n1"], kept["r1"], u_bar * p["feature_norm/gain"])
    z_bar = features_gradient(kept["z"], f_bar, f.degree)
    g["W_down"] = outer(z_bar, x)
    return g, p["W_down"].T @ z_bar + (bar if f.with_input else 0.0)
