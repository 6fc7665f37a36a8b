"""The definitions of the rules as literal loops over tokens and window places: truth for the test
suite.

    e[t,i] = M_ref phi(k_i) - v_i
    g_t    = s sum_j gamma[t,j] e[t,t-j] phi(k_{t-j})^T
    S_t    = m_t S_{t-1} + a_t g_t
    U_t    = NewtonSchulz(S_t)  or  S_t
    M_t    = r_t M_{t-1} - b_t U_t
    y_t    = M_t phi(q_t)

The input is a case (its JSON header and its tensors) and is assumed valid. Slow on purpose; NumPy
only.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.truth.literal_parts import (
    bounded,
    feature_map,
    newton_schulz,
    normalise,
    resolve,
    shortened,
)
from tests.truth.literal_token import project

Array = np.ndarray
Tensors = dict[str, Array]
# tensors without the leading axes
SHARED = (
    "in/phi/",
    "in/proj",
    "in/param/",
    "in/x",
    "in/active",
    "in/reset",
)


def evaluate(header: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Results of a case: out/y, out/M, out/S and all that lets a run continue.

    The two bare functions give out/X and out/phi.
    """
    exact = complex if any(np.iscomplexobj(value) for value in tensors.values()) else float
    arrays = {name: np.asarray(value, dtype=exact) for name, value in tensors.items()}
    convention = resolve(header)
    if header["rule"] == "newton_schulz":
        return {
            "out/X": over_leading(
                lambda g: newton_schulz(g, convention["newton_schulz"]), arrays["in/G"], 2
            )
        }
    if header["rule"] == "feature_map":
        return {
            "out/phi": over_leading(
                lambda x: feature_map(header.get("feature_map"), arrays, x), arrays["in/x"], 1
            )
        }
    for gate in ("retain", "momentum"):
        if f"in/log_{gate}" in arrays:
            arrays[f"in/{gate}"] = np.exp(arrays[f"in/log_{gate}"])
    if header.get("level") == "token":
        arrays = project(header, convention, arrays)
    leading = arrays["in/k"].shape[:-2]
    runs = []
    for index in np.ndindex(*leading):
        own = {
            name: value if name.startswith(SHARED) else value[index]
            for name, value in arrays.items()
        }
        if header.get("level") == "token" and "in/param/W_surrogate" in arrays:
            own["in/param/W_surrogate"] = arrays["in/param/W_surrogate"][index[-1]]
        runs.append(Sequence(header, convention, own).run())
    results = {name: np.array([run[name] for run in runs]) for name in runs[0] if name != "phase"}
    results = {name: value.reshape(leading + value.shape[1:]) for name, value in results.items()}
    return {**results, **{name: runs[0][name] for name in runs[0] if name == "phase"}}


def over_leading(function: Any, x: Array, rank: int) -> Array:
    """The function of each matrix (rank 2) or vector (rank 1) of x."""
    leading = x.shape[: x.ndim - rank]
    values = np.array([function(x[index]) for index in np.ndindex(*leading)])
    return values.reshape(leading + values.shape[1:])


@dataclass
class Token:
    """A window token: its raw key and value, phi(key), and the residual it had on arrival."""

    k: Array
    v: Array
    phi: Array
    residual: Array | None
    learned: Array | None = None  # what stands for its residual under reference surrogate


@dataclass
class State:
    """The state carried from token to token."""

    M: Array
    S: Array
    M_ref: Array  # memory at the start of the span or call
    position: int  # p(t)
    fresh: bool  # the next token is the first and no reference was handed over
    tokens: list[Token]  # oldest first
    gates: list[Array]
    momenta: list[Array]  # Z, for momentum_then_window


def last(items: list[Any], n: int) -> list[Any]:
    """The last n items, or all when there are fewer."""
    return items[max(0, len(items) - n) :]


def rows(gate: Array | float, matrix: Array) -> Array:
    """The product diag(gate) matrix for a gate per output dimension, gate times matrix for a
    scalar.
    """
    return np.reshape(gate, (-1, 1)) * matrix


class Sequence:
    """One sequence of tokens under one convention, the leading axes removed."""

    def __init__(
        self, header: dict[str, Any], convention: dict[str, Any], tensors: Tensors
    ) -> None:
        self.header, self.convention, self.tensors = header, convention, tensors
        self.rule, self.c, self.span = header["rule"], header.get("window", 1), header.get("span")
        self.length, self.d_in = tensors["in/k"].shape
        self.d_out = tensors["in/v"].shape[1]
        self.zero = np.zeros(
            (self.d_out, len(self.phi(tensors["in/k"][0], "k_norm"))), tensors["in/k"].dtype
        )
        self.frozen = self.rule != "hebbian" and convention["reference"] in (
            "chunk_start",
            "call_start",
        )
        self.learns = self.rule != "hebbian" and convention["reference"] == "surrogate"
        self.positioned = self.frozen or convention["read"] == "chunk_start"
        windowed = self.rule == "omega" and self.c > 1
        self.window_first = convention["order"] == "window_then_momentum"
        self.carries = (
            windowed
            and self.frozen
            and self.window_first
            and convention["window_at_boundary"] == "carry"
        )

    # inputs

    def matrix(self, name: str) -> Array:
        """A state matrix as d_out x d_phi; zero when the case has none."""
        if name not in self.tensors:
            return self.zero
        return self.oriented(self.tensors[name])

    def oriented(self, matrix: Array) -> Array:
        """A matrix in the layout of the case, where its transpose is one."""
        return matrix.T if self.convention["layout"] == "transposed" else matrix

    def phi(self, x: Array, norm: str) -> Array:
        """phi of a raw key or query, with its norm before or after."""
        before = self.convention["norm_place"] == "before_phi"
        kind = self.convention[norm]
        x = normalise(kind if before else "none", x, self.convention)
        x = feature_map(self.header.get("feature_map"), self.tensors, x)
        return normalise("none" if before else kind, x, self.convention)

    def flag(self, name: str, t: int, default: bool) -> bool:
        """The flag in/active or in/reset at token t."""
        return bool(np.real(self.tensors[name][t])) if name in self.tensors else default

    def retain(self, t: int) -> Array | float:
        """The factor of M: the gate, one minus the gate, or 1."""
        if self.convention["gate"] == "none":
            return 1.0
        gate = bounded(self.tensors["in/retain"][t], self.convention["retain_bounds"])
        return 1 - gate if self.convention["gate"] == "forget" else gate

    def momentum(self, t: int) -> Array | float:
        """The factor m_t, 0 when the case has no momentum."""
        return self.tensors["in/momentum"][t] if "in/momentum" in self.tensors else 0.0

    def share(self, t: int) -> Any:
        """The share of a gradient that enters S: 1, or 1 - m_t of an average."""
        average = self.convention["momentum_kind"] == "average"
        return 1.0 - self.momentum(t) if average else 1.0

    def factor(self, t: int, gradient: Any) -> Any:
        """The factor of S: m_t, or clamp(m_t - |g_t|^2, 1e-6, 1 - 1e-6) of delta momentum."""
        m = self.momentum(t)
        if (
            self.convention["momentum_kind"] != "delta_momentum"
            or "in/momentum" not in self.tensors
        ):
            return m
        square = 0.0
        for row in gradient:
            for entry in row:
                square = square + entry * entry
        factors = []
        for gate in np.ravel(m):
            above = max(gate - square, 1e-6, key=np.real)
            factors.append(min(above, 1.0 - 1e-6, key=np.real))
        return np.reshape(factors, np.shape(m))

    def momentum_after(self, t: int, S: Any, gradient: Any) -> Any:
        """S_t from S_{t-1} and the gradient of the write."""
        a, sign = self.rates(t)[0], self.signs()[0]
        entering = rows(a, rows(self.share(t), gradient))
        return rows(self.factor(t, gradient), S) + sign * entering

    def rates(self, t: int) -> tuple[Any, Any]:
        """The rates (a, b) = (h, 1), (1, h), (h, h), (h, h') or (1, 1)."""
        rate = self.convention["rate"]
        if rate == "none":
            return 1.0, 1.0
        h = bounded(self.tensors["in/step_size"][t], self.convention["step_bounds"])
        if rate == "split":
            return h, self.tensors["in/step_size_memory"][t]
        return {"momentum": (h, 1.0), "memory": (1.0, h), "both": (h, h)}[rate]

    def scale(self) -> float:
        """The factor s of the gradient."""
        factor = self.convention["gradient_scale"]
        return 2 / self.d_out if factor == "2/d_out" else float(factor)

    def signs(self) -> tuple[float, float]:
        """Signs with which g enters S and U enters M.

        (+, -) or, for momentum_sign minus, (-, +); ascent flips the second.
        """
        into_s, into_m = (1.0, -1.0) if self.convention["momentum_sign"] == "plus" else (-1.0, 1.0)
        return into_s, into_m if self.convention["direction"] == "descent" else -into_m

    # the window

    def weight(self, state: State, t: int, j: int) -> Any:
        """The weight gamma[t, j] before the edge: the table's entry times the gate of token t-j.

        It is 0 where that token is missing.
        """
        tensors, gated = self.tensors, "in/window_gate" in self.tensors
        if "in/window_weights" not in tensors and not gated:
            return 1 / self.c
        value = tensors["in/window_weights"][t, j] if "in/window_weights" in tensors else 1.0
        if gated:
            gate = state.gates[-1 - j] if j < len(state.gates) else 0.0
            value = value * gate
        return value

    def edge(self, state: State, t: int) -> Any:
        """The factor of window_edge renormalise.

        The sum over all c weights over the sum of those whose token exists; 1 if the latter is 0.
        """
        if self.convention["window_edge"] == "truncate":
            return 1.0
        everything = sum(self.weight(state, t, j) for j in range(self.c))
        present = sum(self.weight(state, t, j) for j in range(self.c) if j < len(state.tokens))
        return 1.0 if np.real(present) == 0 else everything / present

    def reference(self, state: State) -> Array:
        """The reference M_ref: M_{t-1}, the memory at the start of the span or call, or zero."""
        return {"running": state.M, "zero": self.zero, "surrogate": self.zero}.get(
            self.convention["reference"], state.M_ref
        )

    def surrogate(self, k: Array, v: Array) -> Array:
        """The learned residual of a raw pair, whose key is read as gates read it."""
        before = self.convention["norm_place"] == "before_phi"
        kind = self.convention["k_norm"] if before else "none"
        return self.weighed(normalise(kind, k, self.convention), v)

    def weighed(self, k: Array, v: Array) -> Array:
        """W silu([k; v])."""
        pair = [*k, *v]
        W = self.tensors["in/param/W_surrogate"]
        return np.array(
            [sum(row[i] * pair[i] / (1 + np.exp(-pair[i])) for i in range(len(pair))) for row in W]
        )

    def error(self, state: State, t: int, token: Token) -> Array:
        """The residual of a window token at t, or what was learned in its place."""
        if self.learns:
            return token.learned
        return self.residual(self.reference(state), token.phi, token.v, self.retain(t))

    def residual(self, reference: Array, phi: Array, v: Array, retain: Array | float) -> Array:
        """The residual e = M_ref phi - v.

        r M_ref takes the place of M_ref under before_error, and + v that of - v under value_sign
        plus.
        """
        if self.convention["decay"] == "before_error":
            reference = rows(retain, reference)
        return (
            reference @ phi + v if self.convention["value_sign"] == "plus" else reference @ phi - v
        )

    def window_gradient(self, state: State, t: int) -> Array:
        """The gradient of the window at token t.

        g_t = s sum_j gamma[t,j] e[t,t-j] phi(k_{t-j})^T; a token of lag j is of the current span
        iff j <= p(t).
        """
        total, factor = self.zero, self.edge(state, t)
        for j in range(min(self.c, len(state.tokens))):
            token = state.tokens[-1 - j]
            error = self.error(state, t, token)
            if self.frozen and j > state.position:
                if self.convention["window_at_boundary"] == "cut":
                    continue
                if self.convention["window_at_boundary"] == "carry":
                    error = token.residual
            total = total + factor * self.weight(state, t, j) * np.outer(error, token.phi)
        return self.scale() * total

    # one write for each rule

    def write_hebbian(self, state: State, t: int) -> None:
        """The write M <- r M + v k^T."""
        token = state.tokens[-1]
        state.M = rows(self.retain(t), state.M) + np.outer(token.v, token.phi)

    def write_delta(self, state: State, t: int) -> None:
        """The write M <- r M - a b s (M_ref k - v) k^T."""
        token, (a, b) = state.tokens[-1], self.rates(t)
        error = self.error(state, t, token)
        sign = -1.0 if self.convention["direction"] == "descent" else 1.0
        state.M = rows(self.retain(t), state.M) + sign * rows(
            a, rows(b, self.scale() * np.outer(error, token.phi))
        )

    def write_titans_lmm(self, state: State, t: int) -> None:
        """One write of Titans LMM.

        S <- m S + a s (M_ref k - v) k^T; M <- r M - b S.
        """
        token, b, into_m = state.tokens[-1], self.rates(t)[1], self.signs()[1]
        error = self.error(state, t, token)
        state.S = self.momentum_after(t, state.S, self.scale() * np.outer(error, token.phi))
        state.M = rows(self.retain(t), state.M) + into_m * rows(b, state.S)

    def write_omega(self, state: State, t: int) -> None:
        """One write of the Omega rule.

        S <- m S + a g; M <- r M - b NS(S), the window's sum inside g or, under
        momentum_then_window, over the momenta.
        """
        b, (into_s, into_m), m = self.rates(t)[1], self.signs(), self.momentum(t)
        if self.window_first:
            gradient = self.window_gradient(state, t)
            state.S = self.momentum_after(t, state.S, gradient)
            summed = state.S
        else:
            token = state.tokens[-1]
            error = self.error(state, t, token)
            gradient = self.scale() * np.outer(error, token.phi)
            state.S = self.momentum_after(t, state.S, gradient)
            summed = self.zero
            for j, momentum in enumerate(reversed([*state.momenta, state.S])):
                summed = summed + self.weight(state, t, j) * momentum
        settings = self.convention["newton_schulz"]
        update = summed
        if settings != "none" and settings["argument"] != "accumulated":
            nesterov = settings["argument"] == "nesterov"
            update = newton_schulz(
                into_s * gradient + rows(m, summed) if nesterov else summed, settings
            )
            if settings["argument"] == "written_back":
                state.S = update
        state.M = rows(self.retain(t), state.M) + into_m * rows(b, update)

    # the run

    def start(self, resumed: bool) -> State:
        """The state before the first token; after a reset as of a call without phase, reference and
        window.
        """
        tensors, phase = self.tensors, self.header.get("phase") if resumed else None
        counts = (
            self.convention["reference"] != "call_start"
            and self.convention["span_origin"] == "multiple"
            and self.span
        )
        state = State(
            M=self.matrix("in/M0"),
            S=self.matrix("in/S0"),
            M_ref=self.matrix("in/M0"),
            position=phase if phase is not None else (1 % self.span if counts else 0),
            fresh=True,
            tokens=[],
            gates=[],
            momenta=[],
        )
        if not resumed:
            return state
        if "in/M_ref" in tensors:
            state.M_ref, state.fresh = self.matrix("in/M_ref"), False
        for i, k in enumerate(tensors.get("in/window_k", ())):
            stored = tensors["in/window_residual"][i] if "in/window_residual" in tensors else None
            v = tensors["in/window_v"][i]
            learned = self.surrogate(k, v) if self.learns else None
            state.tokens.append(Token(k, v, self.phi(k, "k_norm"), stored, learned))
        state.gates = list(tensors.get("in/window_gate_before", ()))
        state.momenta = [self.oriented(z) for z in tensors.get("in/window_momentum", ())]
        if state.momenta and "in/momentum" not in tensors:
            # no S is handed over without momentum, yet an inactive first token repeats Z_0
            state.S = state.momenta[-1]
        return state

    def read(self, memory: Array, t: int) -> Array:
        """The read y = M phi(q) times the query's scale, through NS(M) when the memory is
        accumulated.
        """
        settings = self.convention["newton_schulz"]
        if settings != "none" and settings["argument"] == "accumulated":
            memory = newton_schulz(memory, settings)
        scale = self.convention["query_scale"]
        scale = 1 / math.sqrt(self.d_in) if scale == "1/sqrt(d_in)" else float(scale)
        return memory @ self.phi(self.tensors["in/q"][t], "q_norm") * scale

    def push(self, state: State, t: int, active: bool) -> None:
        """Let the token enter the window, active or not."""
        k, v = self.tensors["in/k"][t], self.tensors["in/v"][t]
        phi = self.phi(k, "k_norm")
        arrived = self.residual(self.reference(state), phi, v, self.retain(t) if active else 1.0)
        learned = None
        if self.learns:
            own = self.tensors.get("in/surrogate_k"), self.tensors.get("in/surrogate_v")
            learned = self.surrogate(k, v) if own[0] is None else self.weighed(own[0][t], own[1][t])
        state.tokens = [*last(state.tokens, self.c - 1), Token(k, v, phi, arrived, learned)]
        if "in/window_gate" in self.tensors:
            state.gates = [*last(state.gates, self.c - 1), self.tensors["in/window_gate"][t]]

    def run(self) -> dict[str, Any]:
        """Every token in turn: reset, span start, window, write, read."""
        state, selected = self.start(resumed=True), []
        packed = 0  # first token of the packed sequence
        ends: list[Array] = []  # for each token the last memory of its packed sequence
        for t in range(self.length):
            if self.flag("in/reset", t, False):
                ends += [state.M] * (t - packed)
                state, packed = self.start(resumed=False), t
            call = self.convention["reference"] == "call_start"
            if state.fresh or (not call and state.position == 0):
                state.M_ref, state.fresh = state.M, False
            before, active = state.M, self.flag("in/active", t, True)
            self.push(state, t, active)
            if active:
                getattr(self, f"write_{self.rule}")(state, t)
                state.M = shortened(state.M, self.convention["memory_ceiling"])
            state.momenta = last([*state.momenta, state.S], self.c - 1)
            selected.append(
                {"before": before, "after": state.M, "chunk_start": state.M_ref}.get(
                    self.convention["read"]
                )
            )
            state.position = (
                state.position + 1 if call or not self.span else (state.position + 1) % self.span
            )
        ends += [state.M] * (self.length - packed)
        memories = ends if self.convention["read"] == "call_end" else selected
        return {
            "out/y": np.array([self.read(memory, t) for t, memory in enumerate(memories)]),
            **self.continuing(state),
        }

    def continuing(self, state: State) -> dict[str, Any]:
        """The final state in the case's layout, and the inputs for a later call."""
        results: dict[str, Any] = {"out/M": self.oriented(state.M)}
        if self.rule in ("omega", "titans_lmm") and "in/momentum" in self.tensors:
            results["out/S"] = self.oriented(state.S)
        if self.rule == "omega" and self.c > 1:
            tokens = last(state.tokens, self.c - 1)
            results["out/window_k"] = np.array([token.k for token in tokens])
            results["out/window_v"] = np.array([token.v for token in tokens])
            if self.carries:
                results["out/window_residual"] = np.array([token.residual for token in tokens])
            if "in/window_gate" in self.tensors:
                results["out/window_gate_before"] = np.array(last(state.gates, self.c - 1))
            if not self.window_first:
                results["out/window_momentum"] = np.array([self.oriented(z) for z in state.momenta])
        if self.positioned:
            results["out/M_ref"], results["phase"] = self.oriented(state.M_ref), state.position
        return results
