"""Memory functions in any legal arithmetic: the values between x and M(x), and the hand gradient.

Written from the clauses of specs/memory_functions.md for the tolerance rule (TOL-3); it shares no
code with `parts.memory_functions`. Everything takes arrays and tape variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.deep.biases import Part, plainly
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.program.hook import same
from atlas_ref.types import Array
from tape import ops

#: A hook that computes an op: (name, function, arguments) -> its value.
Take = Callable[..., Array]
Values = dict[str, Array]


class Function(NamedTuple):
    """A memory function in one arithmetic.

    Attributes:
        settings: of the function, as a case states them (MEMFUN-1).
        way: the arithmetic of products and means.
        touch: a rounding of functions that are no sums of products.
        part: calls the functions inside of it, each of which a mistake may wrap (DEEPCASE-15).
    """

    settings: Any
    way: Arithmetic = PLAIN
    touch: Callable[[Array], Array] = same
    part: Part = plainly

    def share(self, a: Array) -> Array:
        """G(a) (MEMFUN-5)."""
        return self.part("function/share", share_of, self, a)

    def slope(self, a: Array, G: Array) -> Array:
        """The derivative of a G(a), from a and G(a) (MEMFUN-5)."""
        return self.part("function/slope", slope_of, self, a, G)

    def standardise(self, x: Array) -> tuple[Array, Array]:
        """The standardised values of a layer norm, and their factor (MEMFUN-4)."""
        found: tuple[Array, Array] = self.part("function/standardised", norm_of, self, x)
        return found

    def standardise_back(self, n: Array, r: Array, g: Array) -> Array:
        """The pullback of a layer norm (MEMFUN-6)."""
        return self.part("function/standardised_back", _normed_back, self, n, r, g)

    def pairs(self, z: Array) -> Array:
        """z_i z_j for i <= j."""
        return self.part("function/pairs", _pairs, z)

    def pairs_back(self, z: Array, g: Array) -> Array:
        """The pullback of such products."""
        return self.part("function/pairs_back", _pairs_back, z, g)

    def outer(self, g: Array, x: Array) -> Array:
        """The sum of g x^T over the tokens."""
        return self.part("function/outer", _outer, self, g, x)


# -- forward ---------------------------------------------------------------------------------------


def apply(m: Function, p: Mapping[str, Array], x: Array, take: Take) -> Values:
    """Every value between x and y = M(x), in order (MEMFUN-3).

    Args:
        p: tensors by name, each with leading axes that broadcast against those of x, or none.
        take: called with the name of each value, its function and arguments.
    """
    v: Values = {}

    def op(name: str, compute: Callable[..., Array], *args: Array) -> Array:
        v[name] = take(name, compute, *args)
        return v[name]

    def rows(W: Array, x: Array) -> Array:
        return m.way.matmul(x, W.swapaxes(-1, -2))

    _KINDS[m.settings.kind][0](m, p, x, op, rows)
    return v


def _linear(m: Function, p: Any, x: Array, op: Any, rows: Any) -> None:
    op("y", lambda W, x: _with_input(m, rows(W, x), x), p["W"], x)


def _with_input(m: Function, y: Array, x: Array) -> Array:
    return y + x if m.settings.with_input else y


def _argument(m: Function, x: Array) -> tuple[Array, ...]:
    """The argument where the function adds it to its result."""
    return (x,) if m.settings.with_input else ()


def _activate(m: Function, a: Array) -> Array:
    return a * m.share(a)


def _mlp(m: Function, p: Any, x: Array, op: Any, rows: Any) -> None:
    f, s = m.settings, x
    for i in range(1, f.depth):
        a = op(f"a_{i}", rows, p[f"W_{i}"], s)
        s = op(f"s_{i}", lambda a: _activate(m, a), a)
    o = op("o", rows, p[f"W_{f.depth}"], s)
    if not f.residual_norm:
        op("y", lambda o, *x: o + x[0] if x else o, o, *_argument(m, x))
        return
    n = op("normed", lambda o: m.standardise(o)[0], o)
    op(
        "y",
        lambda gain, n, x: _with_input(
            m, m.way.scaled_sum(ops.expand_dims(gain, -2) + 1.0, n, x), x
        ),
        p["norm/gain"],
        n,
        x,
    )


def _polynomial(m: Function, p: Any, x: Array, op: Any, rows: Any) -> None:
    f = m.settings
    z = op("z", rows, p["W_down"], x)
    features = op("features", lambda z: z if f.degree == 1 else _with_pairs(z, m.pairs(z)), z)
    u = op("normed", _affine(m), p["feature_norm/gain"], p["feature_norm/bias"], features)
    if f.compressed:
        u = op("compressed", rows, p["W_compress"], u)
    a = op("a", rows, p["W_in"], u)
    if f.gated:
        b = op("b", rows, p["W_value"], u)
        s = op("s", lambda a, b: _activate(m, a) * b, a, b)
    else:
        s = op("s", lambda a: _activate(m, a), a)
    o = op("o", rows, p["W_out"], s)
    e = op("e", rows, p["W_up"], o)

    def read(gain: Array, bias: Array, scale: Array, e: Array, *x: Array) -> Array:
        y = _number(scale) * _affine(m)(gain, bias, e)
        return y + x[0] if x else y

    tensors = (p["read_norm/gain"], p["read_norm/bias"], p["read_scale"])
    op("y", read, *tensors, e, *_argument(m, x))


def _with_pairs(z: Array, pairs: Array) -> Array:
    return ops.concatenate([z, pairs], axis=-1)


def _affine(m: Function) -> Callable[[Array, Array, Array], Array]:
    def norm(gain: Array, bias: Array, x: Array) -> Array:
        n, _ = m.standardise(x)
        return m.way.scaled_sum(ops.expand_dims(gain, -2), n, ops.expand_dims(bias, -2))

    return norm


def _number(scale: Array) -> Array:
    return ops.expand_dims(scale, (-2, -1))


# -- gradient --------------------------------------------------------------------------------------


def read_back(f: Any, names: Collection[str]) -> list[str]:
    """Which of the values between x and M(x) the hand gradient reads (MEMFUN-6)."""
    if f.kind == "mlp":
        return [n for n in names if n.startswith(("a_", "s_")) or (n == "o" and f.residual_norm)]
    return [name for name in names if name != "y"]


def gradient(
    m: Function, p: Mapping[str, Array], v: Values, x: Array, gy: Array, names: Collection[str]
) -> Values:
    """Cotangents of the tensors for a cotangent gy of M(x), from the values between (MEMFUN-6)."""
    found: Values = _KINDS[m.settings.kind][1](m, p, v, x, gy)
    return {name: found[name] for name in names}


def _linear_back(m: Function, p: Any, v: Values, x: Array, gy: Array) -> Values:
    return {"W": m.outer(gy, x)}


def _mlp_back(m: Function, p: Any, v: Values, x: Array, gy: Array) -> Values:
    f, found, g = m.settings, {}, gy
    if f.residual_norm:
        n, r = m.standardise(v["o"])
        found["norm/gain"] = _over_tokens(m, g * n)
        g = m.standardise_back(n, r, g * (ops.expand_dims(p["norm/gain"], -2) + 1.0))
    for i in range(f.depth, 0, -1):
        found[f"W_{i}"] = m.outer(g, v[f"s_{i - 1}"] if i > 1 else x)
        if i > 1:
            a = v[f"a_{i - 1}"]
            g = m.way.matmul(g, p[f"W_{i}"]) * m.slope(a, m.share(a))
    return found


def _polynomial_back(m: Function, p: Any, v: Values, x: Array, gy: Array) -> Values:
    f, found = m.settings, {}
    n, r = m.standardise(v["e"])
    gain, bias = (ops.expand_dims(p[f"read_norm/{each}"], -2) for each in ("gain", "bias"))
    along = _over_tokens(m, gy * m.way.scaled_sum(gain, n, bias))
    found["read_scale"] = m.way.matmul(along[..., None, :], _ones(along))[..., 0, 0]
    t = _number(p["read_scale"]) * gy
    found["read_norm/gain"], found["read_norm/bias"] = _over_tokens(m, t * n), _over_tokens(m, t)
    g = m.standardise_back(n, r, t * gain)
    found["W_up"] = m.outer(g, v["o"])
    g = m.way.matmul(g, p["W_up"])
    found["W_out"] = m.outer(g, v["s"])
    g = m.way.matmul(g, p["W_out"])
    inputs = v["compressed"] if f.compressed else v["normed"]
    G = m.share(v["a"])
    ga = g * m.slope(v["a"], G)
    if f.gated:
        ga, gb = ga * v["b"], g * (v["a"] * G)
        found["W_value"] = m.outer(gb, inputs)
    found["W_in"] = m.outer(ga, inputs)
    g = m.way.matmul(ga, p["W_in"])
    if f.gated:
        g = g + m.way.matmul(gb, p["W_value"])
    if f.compressed:
        found["W_compress"] = m.outer(g, v["normed"])
        g = m.way.matmul(g, p["W_compress"])
    n, r = m.standardise(v["features"])
    found["feature_norm/gain"], found["feature_norm/bias"] = (
        _over_tokens(m, g * n),
        _over_tokens(m, g),
    )
    g = m.standardise_back(n, r, g * ops.expand_dims(p["feature_norm/gain"], -2))
    if f.degree == 2:
        kd = v["z"].shape[-1]
        g = g[..., :kd] + m.pairs_back(v["z"], g[..., kd:])
    found["W_down"] = m.outer(g, x)
    return found


_KINDS: dict[str, tuple[Any, Any]] = {
    "linear": (_linear, _linear_back),
    "mlp": (_mlp, _mlp_back),
    "polynomial": (_polynomial, _polynomial_back),
}


# -- parts -----------------------------------------------------------------------------------------


def _ones(x: Array) -> Array:
    return ops.ones_like(x, shape=(x.shape[-1], 1))


def _mean(m: Function, x: Array) -> Array:
    return m.way.matmul(x, _ones(x)) * (1.0 / x.shape[-1])


def _over_tokens(m: Function, x: Array) -> Array:
    return m.way.matmul(ops.ones_like(x, shape=(1, x.shape[-2])), x)[..., 0, :]


def _outer(m: Function, g: Array, x: Array) -> Array:
    return m.way.matmul(g.swapaxes(-1, -2), x)


def norm_of(m: Function, x: Array) -> tuple[Array, Array]:
    """(x - mean x) r, and r = 1 / sqrt(mean (x - mean x)^2 + eps)."""
    away = x - _mean(m, x)
    r = m.touch(1.0 / ops.sqrt(_mean(m, away * away) + m.settings.norm_eps))
    return away * r, r


def _normed_back(m: Function, n: Array, r: Array, g: Array) -> Array:
    return r * (g - _mean(m, g) - n * _mean(m, g * n))


def share_of(m: Function, a: Array) -> Array:
    """G(a) (MEMFUN-5)."""
    kind = m.settings.activation
    if kind == "silu":
        return m.touch(ops.sigmoid(a))
    if kind == "gelu":
        return m.touch(0.5 + 0.5 * ops.erf(a * math.sqrt(0.5)))
    return m.touch(0.5 + 0.5 * ops.tanh(_inner(a)))


def _inner(a: Array) -> Array:
    return math.sqrt(2.0 / math.pi) * a * (1.0 + 0.044715 * a * a)


def slope_of(m: Function, a: Array, G: Array) -> Array:
    """The derivative of a G(a) (MEMFUN-5)."""
    kind = m.settings.activation
    if kind == "silu":
        return G + a * (G * (1.0 - G))
    if kind == "gelu":
        density = m.touch(ops.exp(-(a * a) / 2.0)) * (1.0 / math.sqrt(2.0 * math.pi))
        return G + a * density
    rise = math.sqrt(2.0 / math.pi) * (1.0 + 3.0 * 0.044715 * a * a)
    return G + a * (2.0 * G * (1.0 - G) * rise)


def _pairs(z: Array) -> Array:
    d = z.shape[-1]
    return ops.concatenate([z[..., i : i + 1] * z[..., i:] for i in range(d)], axis=-1)


def _pairs_back(z: Array, g: Array) -> Array:
    """(U + U^T) z with U upper triangular, of the entries of g row by row."""
    d = z.shape[-1]
    i, j = np.triu_indices(d)
    place = np.zeros((d, d), int)
    place[i, j] = place[j, i] = np.arange(len(i))
    U = ops.index(g, (..., place)) * (1.0 + np.eye(d, dtype=np.dtype(g.dtype)))
    return (U @ ops.expand_dims(z, -1))[..., 0]
