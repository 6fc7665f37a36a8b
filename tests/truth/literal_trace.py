"""The trace as literal loops: every quantity of a token where it arises, one of them moved on
request.

Truth for `trace/OP` and, by the complex step, for `trace_grad/OP`. It shares nothing with the
package under test.
"""

from typing import Any

import numpy as np

from tests.truth.literal import SHARED, Sequence, State, rows
from tests.truth.literal_parts import coefficient_table, resolve, sigmoid, softplus
from tests.truth.literal_token import flatten, gate_values, per_token, window_weights

Array = np.ndarray

#: (op, leading index, token, index inside) and the step by which that number is moved; None for
#: none.
Move = tuple[str, tuple[int, ...], int, tuple[int, ...], complex] | None

#: Ops whose last two axes lie in the layout of the case.
MATRICES = ("gradient", "S", "P", "U", "M")


class Traced(Sequence):
    """One sequence of tokens that records its quantities."""

    def __init__(
        self,
        header: dict[str, Any],
        convention: dict[str, Any],
        tensors: dict[str, Array],
        move: Any = None,
    ) -> None:
        super().__init__(header, convention, tensors)
        self.move = move
        self.notes: dict[str, dict[int, Array]] = {}

    def note(self, op: str, t: int, value: Any) -> Array:
        """Record a quantity; the one that is to be moved goes on moved."""
        value = np.array(value, self.zero.dtype)
        if self.move is not None and self.move[:2] == (op, t):
            matrix = value.T if self.transposed(op) else value
            matrix[self.move[2]] += self.move[3]
        self.notes.setdefault(op, {})[t] = value
        return value

    def transposed(self, op: str) -> bool:
        """Whether a file holds the quantity transposed."""
        return self.convention["layout"] == "transposed" and (
            op in MATRICES or (op[0] == "X" and op[1:].isdigit())
        )

    def push(self, state: State, t: int, active: bool) -> None:
        """Let the pair enter; an inactive token repeats S and M."""
        super().push(state, t, active)
        token = state.tokens[-1]
        token.phi = self.note("phi_k", t, token.phi)
        if active:
            return
        token.residual = self.residual(self.reference(state), token.phi, token.v, 1.0)
        if self.rule in ("omega", "titans_lmm"):
            state.S = self.note("S", t, state.S)
        state.M = self.note("M", t, state.M)

    def residuals(self, state: State, t: int) -> Array:
        """Residuals of the window's tokens: row j for token t-j.

        A row is zero where there is no token, where it is cut off, and where its momentum alone
        counts.
        """
        residuals = np.zeros((self.c, self.d_out), self.zero.dtype)
        for j in range(
            min(self.c if self.window_first or self.rule != "omega" else 1, len(state.tokens))
        ):
            token = state.tokens[-1 - j]
            residuals[j] = self.residual(self.reference(state), token.phi, token.v, self.retain(t))
            if self.frozen and j > state.position:
                if self.convention["window_at_boundary"] == "cut":
                    residuals[j] = 0
                elif self.carries:
                    residuals[j] = token.residual
        residuals = self.note("residual", t, residuals)
        state.tokens[-1].residual = residuals[0]
        return residuals

    def gradient(self, state: State, t: int, residuals: Array) -> Array:
        """s times the sum of weight, residual and feature over the window."""
        total, weighs = self.zero, self.rule == "omega" and self.window_first
        for j in range(min(self.c if weighs else 1, len(state.tokens))):
            weight = self.edge(state, t) * self.weight(state, t, j) if weighs else 1.0
            dropped = (
                self.frozen
                and j > state.position
                and self.convention["window_at_boundary"] == "cut"
            )
            total = total + (0 if dropped else weight) * np.outer(
                residuals[j], state.tokens[-1 - j].phi
            )
        return self.note("gradient", t, self.scale() * total)

    def write_hebbian(self, state: State, t: int) -> None:
        super().write_hebbian(state, t)
        state.M = self.note("M", t, state.M)

    def write_delta(self, state: State, t: int) -> None:
        (a, b), sign = self.rates(t), -1.0 if self.convention["direction"] == "descent" else 1.0
        g = self.gradient(state, t, self.residuals(state, t))
        state.M = self.note("M", t, rows(self.retain(t), state.M) + sign * rows(a, rows(b, g)))

    def write_titans_lmm(self, state: State, t: int) -> None:
        b, into_m = self.rates(t)[1], self.signs()[1]
        g = self.gradient(state, t, self.residuals(state, t))
        state.S = self.note("S", t, self.momentum_after(t, state.S, g))
        state.M = self.note("M", t, rows(self.retain(t), state.M) + into_m * rows(b, state.S))

    def write_omega(self, state: State, t: int) -> None:
        b, (into_s, into_m), m = self.rates(t)[1], self.signs(), self.momentum(t)
        g = self.gradient(state, t, self.residuals(state, t))
        state.S = summed = self.note("S", t, self.momentum_after(t, state.S, g))
        if not self.window_first:
            summed = self.zero
            for j, momentum in enumerate(reversed([*state.momenta, state.S])):
                summed = summed + self.weight(state, t, j) * momentum
            summed = self.note("P", t, summed)
        settings = self.convention["newton_schulz"]
        update = summed
        if settings != "none" and settings["argument"] != "accumulated":
            nesterov = settings["argument"] == "nesterov"
            update = self.newton_schulz(
                into_s * g + rows(m, summed) if nesterov else summed, settings, t
            )
        update = self.note("U", t, update)
        if settings != "none" and settings["argument"] == "written_back":
            state.S = update
        state.M = self.note("M", t, rows(self.retain(t), state.M) + into_m * rows(b, update))

    def newton_schulz(self, s: Array, settings: dict[str, Any], t: int) -> Array:
        """All iterates in the orientation of S, recorded, and the result."""
        norm = np.sqrt(np.sum(s * s))
        long = settings["norm_factor"] * norm
        divisor = long + settings["eps"]
        if settings["guard"] == "clamp":
            divisor = long if long.real > settings["eps"] else settings["eps"]
        x = self.note(
            "X0", t, s / divisor if np.any(np.real(s)) or settings["eps"] else np.zeros_like(s)
        )
        for i, row in enumerate(coefficient_table(settings)):
            x = self.note(f"X{i + 1}", t, self.polynomial(x, row))
        if settings["guard"] == "return" and norm.real < settings["eps"]:
            return s
        factor = {"1": 1.0, "sqrt": max(1.0, s.shape[0] / s.shape[1]) ** 0.5, "norm": norm}[
            settings["scale"]
        ]
        return factor * x

    def polynomial(self, x: Array, row: tuple[float, float, float]) -> Array:
        """One step of Newton-Schulz."""
        a, b, c = row
        return a * x + b * (x @ x.T @ x) + c * (x @ x.T @ x @ x.T @ x)

    def read(self, memory: Array, t: int) -> Array:
        """y from the memory that the read axis selects."""
        settings = self.convention["newton_schulz"]
        if settings != "none" and settings["argument"] == "accumulated":
            memory = self.newton_schulz(memory, settings, t)
        scale = self.convention["query_scale"]
        scale = self.d_in**-0.5 if scale == "1/sqrt(d_in)" else float(scale)
        return self.note(
            "y",
            t,
            memory @ self.note("phi_q", t, self.phi(self.tensors["in/q"][t], "q_norm") * scale),
        )

    def tensors_of(self) -> dict[str, Array]:
        """The tensors of T rows per op, 0 where a token has none."""
        tensors = {}
        for op, values in self.notes.items():
            some = next(iter(values.values()))
            entries = np.array([values.get(t, np.zeros_like(some)) for t in range(self.length)])
            tensors[op] = entries.swapaxes(-1, -2) if self.transposed(op) else entries
        return tensors


def trace(
    header: dict[str, Any],
    tensors: dict[str, Array],
    move: Move = None,
    *,
    kind: Any = float,
    loops: Any = Traced,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The trace `OP` -> (L, T, ...) and the results, in arithmetic of a kind, with one number
    moved.
    """
    kind = complex if move is not None and isinstance(move[4], complex) else kind
    arrays = {name: np.asarray(value, kind) for name, value in tensors.items()}
    convention = resolve(header)
    for gate in ("retain", "momentum"):
        if f"in/log_{gate}" in arrays:
            arrays[f"in/{gate}"] = np.exp(arrays[f"in/log_{gate}"])
    projected: dict[str, Array] = {}
    if header.get("level") == "token":
        projected = projection(header, convention, arrays, move)
        arrays = {**arrays, **{f"in/{name}": value for name, value in projected.items()}}
    leading = arrays["in/k"].shape[:-2]
    traces, results = [], []
    for index in np.ndindex(*leading):
        own = {
            name: value if name.startswith(SHARED) else value[index]
            for name, value in arrays.items()
        }
        mine = None if move is None or move[1] != index else (move[0], move[2], move[3], move[4])
        run = loops(header, convention, own, mine)
        results.append(run.run())
        traces.append(run.tensors_of())
    joined = [
        {
            name: np.array([each[name] for each in many]).reshape(leading + np.shape(many[0][name]))
            for name in many[0]
            if name != "phase"
        }
        for many in (traces, results)
    ]
    return {**projected, **joined[0]}, joined[1]


def projection(
    header: dict[str, Any], convention: dict[str, Any], arrays: dict[str, Array], move: Move
) -> dict[str, Array]:
    """Keys, values, queries, gates and weights of level token, each from those before, one number
    moved.
    """
    x, heads = arrays["in/x"], len(arrays["in/param/W_K"])
    quantities: dict[str, Array] = {}

    def note(name: str, value: Array) -> None:
        quantities[name] = np.array(value)
        if move is not None and move[0] == name:
            quantities[name][(*move[1], move[2], *move[3])] += move[4]

    for name, parameter in (("k", "W_K"), ("v", "W_V"), ("q", "W_Q")):
        w = arrays[f"in/param/{parameter}"]
        note(name, per_token(x, heads, lambda token, h, w=w: w[h] @ token))
    for gate, squash in (("retain", sigmoid), ("momentum", sigmoid), ("step_size", softplus)):
        if f"in/param/W_{gate}" in arrays:
            note(
                gate,
                gate_values(convention, arrays, quantities["k"], quantities["v"], gate, squash),
            )
    if header["rule"] == "omega":
        kinds = [
            kind["kind"] for kind in flatten(header.get("window_weights") or {"kind": "uniform"})
        ]
        for name, value in window_weights(header, arrays, x, heads).items():
            if name == "in/window_gate" or set(kinds) != {"gate"}:
                note(name.removeprefix("in/"), value)
    return quantities


def weighed(results: dict[str, Array], bars: dict[str, Array]) -> Any:
    """The loss of the cotangents: <y, y_bar> + <M, M_bar> + <S, S_bar>."""
    return sum(
        np.sum(results[f"out/{name}"] * bars[f"in/{name}_bar"])
        for name in ("y", "M", "S")
        if f"in/{name}_bar" in bars
    )


def adjoint(
    header: dict[str, Any],
    tensors: dict[str, Array],
    op: str,
    lead: tuple[int, ...],
    t: int,
    index: tuple[int, ...],
) -> float:
    """The derivative of the loss by one traced number, by the complex step."""
    step = 1e-30
    _, results = trace(header, tensors, (op, lead, t, index, 1j * step))
    return float(np.imag(weighed(results, tensors)) / step)
