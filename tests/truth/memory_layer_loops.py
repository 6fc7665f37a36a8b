"""A layer around a matrix memory that learns at test time, token by token and head by head.

Projections, convolutions, head norms, gates, feature map, window and write of one sequence, in
every reading. Float64 or complex128, never a conjugate, comparisons of real parts only, so that a
complex step passes through. Parameters go by the names of public code. Nothing here is shared with
the package under test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.truth import layer_loops

Array = np.ndarray


class Reading(NamedTuple):
    """Settings of a layer where definitions differ.

    Attributes:
        norm_eps: of the norm of tokens, inside the root.
        conv_padding: causal | centred.
        conv_place: before_projection | after_projection.
        conv_activation: none | silu.
        conv_state: carried | zero_per_call.
        gate_input: normed_x | keys_values, the latter k after its norm and v of the head.
        head_norm: rms_clamp | rms_add | l2 | none.
        step_size: sigmoid | softplus.
        window: tokens whose gradients add up.
        gated: whether a gate weighs each token's gradient.
        phi: off | elementwise | tensor, of that degree.
        reference: call_start | running | a number of tokens, the span. Of segments, call_start is
            the segment's start.
        boundary: older gradients of the window where the reference changes: carry | recompute |
            cut.
        read: before | after.
        clamp: a bound on the numbers of S at the ends of calls and of scan chunks, or None.
        scan_chunk: tokens of a scan chunk, or None for the whole call.
        memory_input: normed | x.
    """

    heads: int
    norm_eps: float = float(np.finfo(np.float64).eps)
    conv_padding: str = "causal"
    conv_place: str = "before_projection"
    conv_activation: str = "none"
    conv_state: str = "carried"
    gate_input: str = "normed_x"
    head_norm: str = "rms_clamp"
    step_size: str = "sigmoid"
    window: int = 1
    gated: bool = False
    momentum: bool = True
    phi: str = "off"
    degree: int = 1
    reference: Any = "running"
    boundary: str = "recompute"
    read: str = "before"
    clamp: float | None = None
    scan_chunk: int | None = None
    memory_input: str = "normed"


class Token(NamedTuple):
    """A token of one sequence: q, k, v (H, d), and a number of each gate per head."""

    q: Array
    k: Array
    v: Array
    gates: dict[str, Array]


class State(NamedTuple):
    """Of one sequence between two tokens.

    Attributes:
        S, Z: memory and momentum (H, d, d).
        past: tokens before, oldest first: each a gradient (H, d, d) and the token, or None for it.
        tails: earlier inputs of the convolutions, by the names q, k, v.
        anchor: the memory that a span refers to.
        at: tokens since the document began.
    """

    S: Array
    Z: Array
    past: tuple[tuple[Array, Any], ...] = ()
    tails: dict[str, list[Array]] | None = None
    anchor: Any = None
    at: int = 0


def start(H: int, d: int) -> State:
    zero = np.zeros((H, d, d))
    return State(zero, zero, anchor=zero)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def head_norm(row: Array, kind: str, weight: Any) -> Array:
    """Of q or k of one head."""
    if kind == "none":
        return row
    if kind == "rms_clamp":
        return layer_loops.norm(row, "rms", 1e-8, "clamp", weight)
    return layer_loops.norm(row, "l2" if kind == "l2" else "rms", 1e-6, "add", weight)


def phi(row: Array, p: dict[str, Array], r: Reading) -> Array:
    """The feature map of q or k of one head; a degree of 1 or less turns it off."""
    if r.phi == "off" or r.degree <= 1:
        return row
    if r.phi == "elementwise":
        return sum(row**power for power in range(1, r.degree + 1))
    products = [a * b for a in row for b in row]
    return np.array([*row, *products]) @ p["phi.proj"]


def convolved(
    rows: list[Array], weight: Any, r: Reading, tail: list[Array], of: dict[int, int]
) -> tuple[list[Array], list[Array]]:
    """Rows through one filter per channel, and the rows that the next call needs.

    Args:
        weight: (channels, 1, K), or None for no convolution.
        tail: rows before the call.
        of: the document of each row, those of the tail at negative places.
    """
    if weight is None:
        return rows, []
    K, T = weight.shape[2], len(rows)
    back = K - 1 if r.conv_padding == "causal" else K // 2
    place = {t - len(tail): row for t, row in enumerate([*tail, *rows])}
    result = []
    for t in range(T):
        total = 0.0 * (weight[:, 0, 0] * rows[t])
        for j in range(K):
            s = t + j - back
            if s in place and of[s] == of[t]:
                total = total + weight[:, 0, j] * place[s]
        result.append(layer_loops.silu(total) if r.conv_activation == "silu" else total)
    if r.conv_state == "zero_per_call":
        return result, []
    last = [row for s, row in place.items() if of[s] == of[T - 1]]
    return result, last[len(last) - min(back, len(last)) :]


def of_tokens(
    x: Array, p: dict[str, Array], r: Reading, tails: Any = None, reset: Any = None
) -> tuple[list[Token], dict[str, list[Array]]]:
    """The tokens of x (T, D) as the memory takes them, and the tails of the convolutions."""
    tails = {"q": [], "k": [], "v": []} if tails is None else dict(tails)
    n = [layer_loops.norm(row, "rms", r.norm_eps, "add", p["pre_norm.weight"]) for row in x]
    n = n if r.memory_input == "normed" else list(x)
    rows = {}
    for name in "qkv":
        of = layer_loops.documents(len(x), len(tails[name]), reset)
        W, weight = p[f"to_{name}.weight"], p.get(f"{name}_conv.weight")
        if r.conv_place == "before_projection":
            each, tails[name] = convolved(n, weight, r, tails[name], of)
            rows[name] = [W @ row for row in each]
        else:
            rows[name], tails[name] = convolved([W @ row for row in n], weight, r, tails[name], of)
    return [
        token(n[t], [rows[name][t].reshape(r.heads, -1) for name in "qkv"], p, r)
        for t in range(len(x))
    ], tails


def token(n: Array, projected: list[Array], p: dict[str, Array], r: Reading) -> Token:
    """A token from its normed input n (D,) and its projections (H, d)."""
    q, k, v = projected
    gamma = [p.get(f"{name}_norm.gamma") for name in "qk"]
    q, k = (
        [
            head_norm(x[h], r.head_norm, None if weight is None else weight[h, 0])
            for h in range(r.heads)
        ]
        for x, weight in zip((q, k), gamma, strict=True)
    )
    gates: dict[str, Array] = {}
    for name in ("lr", "decay", "momentum", "omega_gate"):
        if f"to_{name}.0.weight" not in p:
            continue
        weight, bias = p[f"to_{name}.0.weight"], p[f"to_{name}.0.bias"]
        z = []
        for h in range(r.heads):
            here = n if r.gate_input == "normed_x" else np.concatenate([k[h], v[h]])
            z.append(weight[h] @ here + bias[h])
        softplus = name == "lr" and r.step_size == "softplus"
        each = np.array(z)
        gates[name] = np.log(1.0 + np.exp(each)) if softplus else sigmoid(each)
    q, k = (np.array([phi(row, p, r) for row in x]) for x in (q, k))
    return Token(q, k, v, gates)


def gradient(reference: Array, token: Token, r: Reading) -> Array:
    """Of the token's error under a reference memory, times its gate (H, d, d)."""
    each = []
    for h in range(r.heads):
        error = reference[h] @ token.k[h] - token.v[h]
        weight = token.gates["omega_gate"][h] if r.gated else 1.0
        each.append(weight * error[:, None] * token.k[h][None, :])
    return np.array(each)


def written(state: State, reference: Array, token: Token, r: Reading) -> State:
    """The state after a token's write."""
    g = gradient(reference, token, r)
    before = [
        gradient(reference, earlier, r) if r.boundary == "recompute" and earlier else kept
        for kept, earlier in state.past
    ]
    S, Z = [], []
    for h in range(r.heads):
        G = g[h] + sum(each[h] for each in before)
        z = token.gates["momentum"][h] * state.Z[h] + G if r.momentum else G
        Z.append(z)
        S.append(token.gates["decay"][h] * state.S[h] - token.gates["lr"][h] * z)
    past = (*state.past, (g, token))
    kept = past[len(past) - min(r.window - 1, len(past)) :]
    return state._replace(S=np.array(S), Z=np.array(Z), past=kept, at=state.at + 1)


def read(S: Array, q: Array, p: dict[str, Array]) -> Array:
    """Of all heads with q (H, d), merged and projected (D,)."""
    return p["to_out.weight"] @ np.concatenate([S[h] @ q[h] for h in range(len(q))])


def clamped(S: Array, bound: float) -> Array:
    """S with numbers beyond the bound replaced by it, which no gradient passes."""
    inside = np.where(np.real(S) > bound, bound, S)
    return np.where(np.real(S) < -bound, -bound, inside)


def memory(
    x: Array, p: dict[str, Array], r: Reading, state: State, reset: Any = None
) -> tuple[Array, State]:
    """One call on x (T, D): the results (T, D) and the state after it.

    Args:
        reset: (T,) whether a document begins at the token: the state starts from zeros.
    """
    tokens, tails = of_tokens(x, p, r, state.tails, reset)
    T, y = len(x), []
    zero = np.zeros_like(state.S)
    if r.reference == "call_start":
        state = new_span(state, r)
    for t, each in enumerate(tokens):
        if reset is not None and reset[t]:
            state = State(zero, zero, anchor=zero)
        if r.reference == "running" or (
            r.reference != "call_start" and state.at % r.reference == 0
        ):
            state = new_span(state, r)
        after = written(state, state.anchor, each, r)
        y.append(read(after.S if r.read == "after" else state.S, each.q, p))
        state = after
        ends = t == T - 1 or (r.scan_chunk is not None and (t + 1) % r.scan_chunk == 0)
        if r.clamp is not None and ends:
            state = state._replace(S=clamped(state.S, r.clamp))
    return np.array(y), state._replace(tails=tails)


def new_span(state: State, r: Reading) -> State:
    """The state at a token from which errors refer to the present memory."""
    past = () if r.boundary == "cut" else state.past
    return state._replace(anchor=state.S, past=past)


def buffer(state: State, r: Reading) -> Array:
    """The gradients of the window's earlier tokens, oldest first, zeros where none were."""
    none = [np.zeros_like(state.S)] * (r.window - 1 - len(state.past))
    return np.array([*none, *(g for g, _ in state.past)])
