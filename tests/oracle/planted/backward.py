"""The backward pass of the restatement, by hand from OMEGA-23 to OMEGA-26, with places for
mistakes.
"""

from __future__ import annotations

import numpy as np

from tests.oracle.planted.restatement import One
from tests.oracle.planted.rounding import Array


def pulled_back(one: One) -> dict[str, Array]:
    """The cotangents grad/... and trace_grad/... of one sequence after its run, in float32."""
    grads = _Gradients(one)
    dM = one.bars.get("M_bar", np.zeros_like(one.M0))
    dS = one.bars.get("S_bar", np.zeros_like(one.M0))
    for t in reversed(range(one.T)):
        dM, dS = grads.token(t, dM, dS)
    return grads.named(dM, dS)


class _Gradients:
    def __init__(self, one: One) -> None:
        self.one = one
        self.of = {
            name: np.zeros_like(getattr(one, name)) for name in ("k", "v", "q", "weights", "r")
        }
        self.of |= {
            name: np.zeros_like(getattr(one, name))
            for name in ("m", "h")
            if getattr(one, name) is not None
        }
        self.adjoints: dict[str, list[Array]] = {}

    def token(self, t: int, dM: Array, dS: Array) -> tuple[Array, Array]:
        """Cotangents of M_(t-1) and S_(t-1) from those of M_t and S_t (OMEGA-23 to OMEGA-26)."""
        one = self.one
        y_bar, M, before = one.bars["y_bar"][t], one.memories[t + 1], one.memories[t]
        dM = self._keep("M", dM + np.outer(y_bar, one.q[t]))
        self._keep("y", y_bar)
        self.of["q"][t] = M.T @ y_bar
        self.of["r"][t] = _like(dM * before, one.r[t])
        carried = np.zeros_like(dM) if one.plant.drops_dM else one.r[t] * dM
        if one.rule.name == "hebbian":
            self.of["v"][t] = dM @ one.k[t]
            self.of["k"][t] += dM.T @ one.v[t]
            return carried, dS
        if one.rule.name == "delta":
            g = one.kept["gradient"][t]
            self.of["h"][t] = _like(-dM * g, one.h[t])
            return carried + self._window(t, self._keep("gradient", -one.h[t] * dM)), dS
        dg, dS = self._momentum(t, dM, dS)
        return carried + self._window(t, dg), dS

    def _momentum(self, t: int, dM: Array, dS: Array) -> tuple[Array, Array]:
        """The cotangent of g_t, and the carry of S."""
        one = self.one
        a, b = one.rates
        g, S_before = one.kept["gradient"][t], one.momenta[t]
        U = one.kept["U" if one.rule.name == "omega" else "S"][t]
        dU = -dM if b is None else -b[t] * dM
        if b is not None:
            self.of["h"][t] += _like(-dM * U, one.h[t])
        if one.rule.name == "omega":
            self._keep("U", dU)
        dS = self._keep("S", dS + (self._newton_schulz(t, dU) if one.rule.newton_schulz else dU))
        if a is not None:
            self.of["h"][t] += _like(dS * g, one.h[t])
        dg = self._keep("gradient", dS if a is None else a[t] * dS)
        if one.m is None:
            return dg, np.zeros_like(dS)
        self.of["m"][t] = _like(dS * S_before, one.m[t])
        return dg, np.zeros_like(dS) if one.plant.drops_dS else one.m[t] * dS

    def _newton_schulz(self, t: int, D: Array) -> Array:
        """The backward of the Newton-Schulz iteration (NS-20).

        B = b A + c A^2: dB = dY X^T, dA = b dB + c (dB A + A dB), dX = a dY + B dY + (dA + dA^T) X.
        """
        one = self.one
        a, b, c = (np.float32(each) for each in one.plant.coefficients)
        self._keep("X5", D)
        for i in reversed(range(5)):
            X = one.kept[f"X{i}"][t]
            A = X @ X.T
            dB = D @ X.T
            dA = b * dB + c * (dB @ A + A @ dB)
            D = a * D + (b * A + c * (A @ A)) @ D + (dA + dA.T) @ X
            self._keep(f"X{i}", D)
        S = one.kept["S"][t]
        norm = np.float32(np.sqrt(np.sum(S * S)))
        size = norm + np.float32(one.plant.eps)
        return D / size - (np.sum(D * S) / (size * size)) * (
            S / (norm if norm > 0 else np.float32(1))
        )

    def _window(self, t: int, dg: Array) -> Array:
        """Cotangents of keys, values and weights by the residuals, and of the memory used there
        (OMEGA-25).
        """
        one = self.one
        M = one.memories[t]
        dM, rows = np.zeros_like(M), np.zeros((one.c, one.d_out), np.float32)
        for lag, i in one.window(t):
            e, w, k = one.kept["residual"][t][lag], one.weight(t, lag), one.k[i]
            rows[lag] = de = w * (dg @ k)
            self.of["weights"][t, lag] = e @ (dg @ k)
            self.of["v"][i] -= de
            self.of["k"][i] += w * (dg.T @ e) + (M if one.plant.transposed else M.T) @ de
            dM = dM + np.outer(de, k)
        self._keep("residual", rows)
        return dM

    def named(self, dM: Array, dS: Array) -> dict[str, Array]:
        """Cotangents by the names of the files."""
        one = self.one
        found = {f"grad/{name}": self.of[name] for name in ("k", "v", "q")}
        gates = {"r": "retain", "m": "momentum", "h": "step_size"}
        found |= {
            f"grad/{gates[name]}": self._gate(self.of[name]) for name in gates if name in self.of
        }
        if one.rule.name == "omega" and one.c > 1:
            found["grad/window_weights"] = self.of["weights"]
        found["grad/M0"] = dM
        if one.m is not None:
            found["grad/S0"] = dS
        found |= {
            f"trace_grad/{name}": np.stack(rows[::-1]) for name, rows in self.adjoints.items()
        }
        return found | {"trace_grad/phi_k": self.of["k"], "trace_grad/phi_q": self.of["q"]}

    @staticmethod
    def _gate(value: Array) -> Array:
        return value[:, 0, 0] if value.shape[1] == 1 else value[:, :, 0]

    def _keep(self, name: str, value: Array) -> Array:
        self.adjoints.setdefault(name, []).append(value)
        return value


def _like(product: Array, gate: Array) -> Array:
    """The derivative by a gate: a sum over the scaled entries."""
    return product.sum(axis=1, keepdims=True) if gate.shape[0] > 1 else product.sum(keepdims=True)
