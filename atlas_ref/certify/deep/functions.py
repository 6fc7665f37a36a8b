"""Memory functions on balls, with their gradient by hand, one token at a time (CERT-17).

Written from MEMFUN-1 to MEMFUN-7. Everything is made of `Matrix`, so that the gradient by hand has
derivatives itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flint import arb, arb_mat

from atlas_ref.certify.functions import GELU_CUBIC, inverse, sigmoid, summed
from atlas_ref.certify.matrix import Matrix, each, filled, hadamard, pick, scaled, stacked

Tensors = Mapping[str, Matrix]

#: Settings of MEMFUN-1 that a case may leave out.
DEFAULTS: dict[str, Any] = {
    "depth": 2,
    "expansion": 4.0,
    "residual_norm": False,
    "activation": "gelu",
    "gated": False,
    "degree": 2,
    "compress": None,
    "norm_eps": 1e-5,
    "with_input": False,
}


class Function:
    """M(x; W) of some settings.

    Args:
        settings: those of MEMFUN-1 as a case states them.
    """

    def __init__(self, settings: Mapping[str, Any], d_in: int, d_out: int) -> None:
        self.s = {**DEFAULTS, **settings}
        self.kind = str(self.s["kind"])
        self.d_in, self.d_out = d_in, d_out

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensors in the order of MEMFUN-2, each with its own shape."""
        if self.kind == "linear":
            return {"W": (self.d_out, self.d_in)}
        if self.kind == "mlp":
            hidden = max(int(self.s["expansion"] * self.d_in), 1)
            widths = [self.d_in, *[hidden] * (self.s["depth"] - 1), self.d_out]
            found: dict[str, tuple[int, ...]] = {
                f"W_{i + 1}": (widths[i + 1], widths[i]) for i in range(self.s["depth"])
            }
            return found | ({"norm/gain": (self.d_out,)} if self.s["residual_norm"] else {})
        d, inner = self.s["key_width"], self.features
        hidden = max(int(self.s["expansion"] * d), 1)
        found = {"W_down": (d, self.d_in)}
        found |= {"feature_norm/gain": (inner,), "feature_norm/bias": (inner,)}
        if self.compressed:
            found["W_compress"] = (self.s["compress"], inner)
            inner = self.s["compress"]
        found["W_in"] = (hidden, inner)
        found |= {"W_value": (hidden, inner)} if self.s["gated"] else {}
        found |= {"W_out": (d, hidden), "W_up": (self.d_out, d)}
        return found | {
            "read_norm/gain": (self.d_out,),
            "read_norm/bias": (self.d_out,),
            "read_scale": (),
        }

    @property
    def features(self) -> int:
        """F, the number of features of a polynomial."""
        d = int(self.s["key_width"])
        return d + d * (d + 1) // 2 if self.s["degree"] == 2 else d

    @property
    def compressed(self) -> bool:
        return self.s["compress"] is not None and self.s["compress"] < self.features

    @property
    def pairs(self) -> tuple[list[int], list[int]]:
        """i and j of each product z_i z_j, row by row."""
        d = self.s["key_width"] if self.s["degree"] == 2 else 0
        both = [(i, j) for i in range(d) for j in range(i, d)]
        return [i for i, _ in both], [j for _, j in both]

    # -- forward -----------------------------------------------------------------------------------

    def apply(self, p: Tensors, x: Matrix) -> dict[str, Matrix]:
        """The values between a column and M(x), "y" the last of them."""
        v: dict[str, Matrix] = {"x": x}
        if self.kind == "linear":
            v["y"] = p["W"] @ x
        elif self.kind == "mlp":
            self._mlp(p, v)
        else:
            self._polynomial(p, v)
        if self.s["with_input"]:
            v["y"] = v["y"] + x
        return v

    def _mlp(self, p: Tensors, v: dict[str, Matrix]) -> None:
        s = v["x"]
        for i in range(1, self.s["depth"]):
            v[f"s_{i - 1}"] = s
            v[f"a_{i}"] = p[f"W_{i}"] @ s
            s = self._activated(v[f"a_{i}"])
        v[f"s_{self.s['depth'] - 1}"] = s
        v["y"] = p[f"W_{self.s['depth']}"] @ s
        if self.s["residual_norm"]:
            v["n"], v["r"] = self._normed(v["y"])
            v["y"] = hadamard(p["norm/gain"].plus(arb(1)), v["n"]) + v["x"]

    def _polynomial(self, p: Tensors, v: dict[str, Matrix]) -> None:
        v["z"] = p["W_down"] @ v["x"]
        i, j = self.pairs
        f = v["z"] if not i else stacked([v["z"], hadamard(pick(v["z"], i), pick(v["z"], j))])
        v["n_f"], v["r_f"] = self._normed(f)
        v["u"] = hadamard(p["feature_norm/gain"], v["n_f"]) + p["feature_norm/bias"]
        v["m"] = p["W_compress"] @ v["u"] if self.compressed else v["u"]
        v["a"] = p["W_in"] @ v["m"]
        v["s"] = self._activated(v["a"])
        if self.s["gated"]:
            v["b"] = p["W_value"] @ v["m"]
            v["s"] = hadamard(v["s"], v["b"])
        v["o"] = p["W_out"] @ v["s"]
        v["n_e"], v["r_e"] = self._normed(p["W_up"] @ v["o"])
        read = hadamard(p["read_norm/gain"], v["n_e"]) + p["read_norm/bias"]
        v["y"] = scaled(p["read_scale"], read)

    # -- the gradient by hand ----------------------------------------------------------------------

    def gradient(
        self, p: Tensors, v: Mapping[str, Matrix], gy: Matrix, names: Iterable[str]
    ) -> dict[str, Matrix]:
        """Cotangents of the named tensors for one token (MEMFUN-6)."""
        every: dict[str, Matrix] = {}
        if self.kind == "linear":
            every["W"] = gy @ v["x"].T
        elif self.kind == "mlp":
            self._mlp_back(p, v, gy, every)
        else:
            self._polynomial_back(p, v, gy, every)
        return {name: every[name] for name in names}

    def _mlp_back(
        self, p: Tensors, v: Mapping[str, Matrix], g: Matrix, every: dict[str, Matrix]
    ) -> None:
        if self.s["residual_norm"]:
            every["norm/gain"] = hadamard(g, v["n"])
            g = self._normed_back(v["n"], v["r"], hadamard(p["norm/gain"].plus(arb(1)), g))
        for i in range(self.s["depth"], 0, -1):
            every[f"W_{i}"] = g @ v[f"s_{i - 1}"].T
            if i > 1:
                g = hadamard(p[f"W_{i}"].T @ g, self._slope(v[f"a_{i - 1}"]))

    def _polynomial_back(
        self, p: Tensors, v: Mapping[str, Matrix], gy: Matrix, every: dict[str, Matrix]
    ) -> None:
        read = hadamard(p["read_norm/gain"], v["n_e"]) + p["read_norm/bias"]
        every["read_scale"] = summed(hadamard(gy, read))
        t = scaled(p["read_scale"], gy)
        every["read_norm/bias"], every["read_norm/gain"] = t, hadamard(t, v["n_e"])
        ge = self._normed_back(v["n_e"], v["r_e"], hadamard(p["read_norm/gain"], t))
        every["W_up"] = ge @ v["o"].T
        go = p["W_up"].T @ ge
        every["W_out"] = go @ v["s"].T
        gs = p["W_out"].T @ go
        ga = hadamard(gs, self._slope(v["a"]))
        if self.s["gated"]:
            ga = hadamard(ga, v["b"])
            gb = hadamard(gs, self._activated(v["a"]))
            every["W_value"] = gb @ v["m"].T
        every["W_in"] = ga @ v["m"].T
        gm = p["W_in"].T @ ga
        gm = gm + p["W_value"].T @ gb if self.s["gated"] else gm
        if self.compressed:
            every["W_compress"] = gm @ v["u"].T
            gm = p["W_compress"].T @ gm
        every["feature_norm/bias"], every["feature_norm/gain"] = gm, hadamard(gm, v["n_f"])
        gf = self._normed_back(v["n_f"], v["r_f"], hadamard(p["feature_norm/gain"], gm))
        every["W_down"] = self._pairs_back(v["z"], gf) @ v["x"].T

    def _pairs_back(self, z: Matrix, gf: Matrix) -> Matrix:
        """The cotangent of z of features and their products."""
        d, (i, j) = self.s["key_width"], self.pairs
        g = pick(gf, range(d))
        if not i:
            return g
        pairs = pick(gf, range(d, self.features))
        for own, other in ((i, j), (j, i)):
            into = arb_mat(d, len(own), [arb(row == k) for row in range(d) for k in own])
            g = g + Matrix(into) @ hadamard(pairs, pick(z, other))
        return g

    # -- parts -------------------------------------------------------------------------------------

    def _normed(self, x: Matrix) -> tuple[Matrix, Matrix]:
        """LN(x), and 1 / sqrt(var + eps)."""
        away = x - _mean(x)
        variance = summed(hadamard(away, away)).times(arb(1) / x.rows)
        root = each(
            variance.plus(arb(self.s["norm_eps"])),
            lambda z: z.sqrt(),
            lambda z: 1 / (2 * z.sqrt()),
        )
        r = inverse(root)
        return scaled(r, away), r

    def _normed_back(self, n: Matrix, r: Matrix, g: Matrix) -> Matrix:
        along = summed(hadamard(g, n)).times(arb(1) / n.rows)
        return scaled(r, g - _mean(g) - scaled(along, n))

    def _activated(self, a: Matrix) -> Matrix:
        share, first, _ = SHARES[self.s["activation"]]
        return hadamard(a, each(a, share, first))

    def _slope(self, a: Matrix) -> Matrix:
        """act'(a) = G + a G'."""
        share, first, second = SHARES[self.s["activation"]]
        return each(a, share, first) + hadamard(a, each(a, first, second))


def _mean(x: Matrix) -> Matrix:
    """The mean of a column, in each of its entries."""
    n = x.rows
    return Matrix(filled(n, n, [arb(1) / n] * (n * n))) @ x


# -- G of MEMFUN-5, with its first and second derivative -------------------------------------------


def _erf_share(a: arb) -> arb:
    return (1 + (a / arb(2).sqrt()).erf()) / 2


def _erf_first(a: arb) -> arb:
    return (-a * a / 2).exp() / (2 * arb.pi()).sqrt()


def _erf_second(a: arb) -> arb:
    return -a * _erf_first(a)


def _inner(a: arb) -> tuple[arb, arb, arb]:
    """tanh(v), v' and v'' of v = sqrt(2/pi) (a + 0.044715 a^3)."""
    c, k = (2 / arb.pi()).sqrt(), arb(GELU_CUBIC)
    return (c * (a + k * a * a * a)).tanh(), c * (1 + 3 * k * a * a), 6 * c * k * a


def _tanh_share(a: arb) -> arb:
    return (1 + _inner(a)[0]) / 2


def _tanh_first(a: arb) -> arb:
    t, v, _ = _inner(a)
    return (1 - t * t) / 2 * v


def _tanh_second(a: arb) -> arb:
    t, v, w = _inner(a)
    return (1 - t * t) * (w / 2 - t * v * v)


def _silu_first(a: arb) -> arb:
    return sigmoid(a) * sigmoid(-a)


def _silu_second(a: arb) -> arb:
    return _silu_first(a) * (sigmoid(-a) - sigmoid(a))


SHARES = {
    "gelu": (_erf_share, _erf_first, _erf_second),
    "gelu_tanh": (_tanh_share, _tanh_first, _tanh_second),
    "silu": (sigmoid, _silu_first, _silu_second),
}
