"""The four rules by hand in NumPy, token by token, with outputs, traces and a place for each
mistake.

Written from the clauses of the specs and from nothing of atlas_ref. Arithmetic and state are
float32; what is recorded is rounded to the format of the storage. Conventions are those of preset
`spec` but for what `Plant` changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracle.planted.rounding import PLAIN, Array, Rounding

MUON = (3.4445, -4.7750, 2.0315)
CUBIC = (1.5, -0.5, 0.0)


@dataclass(frozen=True)
class Plant:
    """A deviation of the restatement from the rule; the defaults are the rule.

    Attributes:
        rate: where the step size enters; None for where the case says.
        window_short: the oldest token of the window is left out.
        window_reversed: weights by lag are read from the oldest.
        momentum_first: the window sums momenta.
        rows: of Newton-Schulz, one a step, in place of five of the coefficients; norm_factor
            multiplies its norm.
        leak: the window of token t ends with token t + 1.
        frozen: errors under the memory at the start of the call.
        transposed, drops_dM, drops_dS: of the backward pass.
        padding: chunk form only: gates of the last token are copied onto the padding.
    """

    forget: bool = False
    rate: str | None = None
    factor: float = 1.0
    window_short: bool = False
    window_reversed: bool = False
    momentum_first: bool = False
    leak: bool = False
    read_before: bool = False
    frozen: bool = False
    coefficients: tuple[float, float, float] = MUON
    rows: tuple[tuple[float, float, float], ...] = ()
    norm_factor: float = 1.0
    written_back: bool = False
    eps: float = 1e-7
    transposed: bool = False
    drops_dM: bool = False
    drops_dS: bool = False
    padding: bool = False


RIGHT = Plant()


@dataclass(frozen=True)
class Rule:
    """The rule to compute, and the settings of the case that matter here."""

    name: str
    rate: str = "momentum"
    newton_schulz: bool = False


class One:
    """One sequence of a case.

    k (T, d_in), v (T, d_out), q (T, d_in), gates (T,) or (T, d_out), weights (T, c), M0, S0.
    """

    def __init__(
        self, rule: Rule, inputs: Mapping[str, Array], plant: Plant, way: Rounding
    ) -> None:
        self.rule, self.plant, self.way = rule, plant, way
        given = {name: value.astype(np.float32) for name, value in inputs.items()}
        self.k, self.v, self.q = given["k"], given["v"], given["q"]
        self.T, self.d_in, self.d_out = len(self.k), self.k.shape[1], self.v.shape[1]
        self.M0 = given.get("M0", np.zeros((self.d_out, self.d_in), np.float32))
        self.S0 = given.get("S0", np.zeros((self.d_out, self.d_in), np.float32))
        self.weights = given.get("window_weights", np.ones((self.T, 1), np.float32))
        self.c = self.weights.shape[1]
        retain = given["retain"]
        self.r = self._column(1 - retain if plant.forget else retain)
        self.m = self._column(given["momentum"]) if "momentum" in given else None
        self.h = self._column(given["step_size"]) if "step_size" in given else None
        self.bars = {name: given[name] for name in ("y_bar", "M_bar", "S_bar") if name in given}

    @staticmethod
    def _column(gate: Array) -> Array:
        """A factor of rows, (T, 1, 1) or (T, d_out, 1)."""
        return gate.reshape(len(gate), -1, 1)

    @property
    def rates(self) -> tuple[Array | None, Array | None]:
        """The rates: a in S, b in M."""
        rate = self.plant.rate or self.rule.rate
        return (self.h if rate in ("momentum", "both") else None), (
            self.h if rate in ("memory", "both") else None
        )

    # -- forward -----------------------------------------------------------------------------------

    def run(self) -> dict[str, Array]:
        """out/..., and trace/... token by token, in float32."""
        self.kept: dict[str, list[Array]] = {}
        M, S, momenta = self.M0, self.S0, [np.zeros_like(self.S0)] * self.c
        self.memories, self.momenta = [M], [S]
        for t in range(self.T):
            before = M
            M, S = self._write(t, M, S, momenta)
            self.memories.append(M)
            self.momenta.append(S)
            self._keep("y", self._times(before if self.plant.read_before else M, self.q[t]))
        trace = {name: np.stack(rows) for name, rows in self.kept.items()} | {
            "phi_k": self.k,
            "phi_q": self.q,
        }
        out = {"out/y": trace["y"], "out/M": M}
        if self.m is not None:
            out["out/S"] = S
        return out | {f"trace/{name}": value for name, value in trace.items()}

    def _write(self, t: int, M: Array, S: Array, momenta: list[Array]) -> tuple[Array, Array]:
        a, b = self.rates
        if self.rule.name == "hebbian":
            return self._keep("M", self.r[t] * M + np.outer(self.v[t], self.k[t])), S
        g = self._gradient(t, self.M0 if self.plant.frozen else M)
        if self.rule.name == "delta":
            return self._keep("M", self.r[t] * M - self.h[t] * g), S
        step = g if a is None else a[t] * g
        S = step if self.m is None else self.m[t] * S + step
        held = S
        if self.plant.momentum_first:
            momenta[:] = [S, *momenta[:-1]]
            held = sum((self.weights[t, j] * Z for j, Z in enumerate(momenta)), np.zeros_like(S))
        held = self._keep("S", held)
        S = S if self.plant.momentum_first else held
        U = self._update(held) if self.rule.name == "omega" else held
        M = self._keep("M", self.r[t] * M - (U if b is None else b[t] * U))
        return M, (U if self.plant.written_back else S)

    def window(self, t: int) -> list[tuple[int, int]]:
        """(lag, token) of the window; a token before the first is not there."""
        first = -1 if self.plant.leak else 0
        last = self.c - 1 if (self.plant.window_short or self.plant.leak) and self.c > 1 else self.c
        rows = [(j - first, t - j) for j in range(first, last) if 0 <= t - j < self.T]
        return rows[::-1] if self.way.oldest_first else rows

    def weight(self, t: int, lag: int) -> Any:
        if self.plant.momentum_first:
            return np.float32(1.0 if lag == 0 else 0.0)
        return self.weights[t, self.c - 1 - lag if self.plant.window_reversed else lag]

    def _gradient(self, t: int, M: Array) -> Array:
        residual = np.zeros((self.c, self.d_out), np.float32)
        g = np.zeros_like(self.M0)
        for lag, i in self.window(t):
            residual[lag] = self._stored(self._times(M, self.k[i]) - self.v[i])
            g = g + (np.float32(self.plant.factor) * self.weight(t, lag)) * np.outer(
                residual[lag], self.k[i]
            )
        self._keep("residual", residual)
        return self._keep("gradient", g)

    def _update(self, S: Array) -> Array:
        if not self.rule.newton_schulz:
            return self._keep("U", S)
        flip = self.way.other_side
        X = S / (
            np.float32(self.plant.norm_factor * np.sqrt(np.sum(S * S))) + np.float32(self.plant.eps)
        )
        X = self._keep("X0", X)
        X = X.T if flip else X
        product = self.way.product
        for i, row in enumerate(self.plant.rows or (self.plant.coefficients,) * 5):
            a, b, c = (np.float32(each) for each in row)
            A = product(X, X.T)
            X = (
                a * X + product(A, b * X + c * product(A, X))
                if self.way.associated
                else a * X + product(b * A + c * product(A, A), X)
            )
            X = self._keep(f"X{i + 1}", X.T if flip else X)
            X = X.T if flip else X
        return self._keep("U", X.T if flip else X)

    def _times(self, M: Array, x: Array) -> Array:
        return self.way.product(M, x[:, None])[:, 0]

    def _stored(self, value: Array) -> Array:
        """The array as storage returns it, where the loop goes on with that."""
        return (
            value if self.way.stored is None else value.astype(self.way.stored).astype(np.float32)
        )

    def _keep(self, name: str, value: Array) -> Array:
        value = self._stored(value)
        self.kept.setdefault(name, []).append(value)
        return value


def run(
    rule: Rule,
    inputs: Mapping[str, Array],
    storage: Any,
    plant: Plant = RIGHT,
    way: Rounding = PLAIN,
    *,
    grad: bool = False,
) -> dict[str, Array]:
    """Results and traces of a case with any leading axes, rounded to the storage's format.

    Args:
        inputs: tensors of the case without `in/`.
        grad: also grad/... and trace_grad/..., of the rule as it stands: not of planted forward
            mistakes.
    """
    from tests.oracle.planted.backward import pulled_back

    lead = inputs["k"].shape[:-2]
    found: dict[str, list[Array]] = {}
    for place in np.ndindex(*lead):
        one = One(rule, {name: value[place] for name, value in inputs.items()}, plant, way)
        each = one.run()
        for name, value in (each | pulled_back(one) if grad else each).items():
            found.setdefault(name, []).append(value)
    return {
        name: np.stack(rows).reshape(*lead, *rows[0].shape).astype(storage)
        for name, rows in found.items()
    }
