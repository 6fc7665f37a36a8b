"""The deep memory, its test-time step, blocks and language model of Atlas-MAG, as plain loops.

Values and gradients by hand; a step changes the memory before it is read, and its gradients come
from the changed memory, as if that were the one before. Parameters by the names of the public code,
float64. Nothing here is shared with the package under test.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tests.truth import atlas_mag_parts as parts
from tests.truth import deep_memory_functions as functions

Array = np.ndarray
Tensors = dict[str, Any]

#: Names of the memory's tensors: of the public code, and of `deep_memory_functions`.
NAMES = {
    "proj_down.weight": "W_down",
    "poly_norm.weight": "feature_norm/gain",
    "poly_norm.bias": "feature_norm/bias",
    "poly_compress.weight": "W_compress",
    "w2.weight": "W_in",
    "w3.weight": "W_value",
    "w1.weight": "W_out",
    "proj_up.weight": "W_up",
    "output_norm.weight": "read_norm/gain",
    "output_norm.bias": "read_norm/bias",
    "output_scale": "read_scale",
}


class Settings(NamedTuple):
    """Of a block.

    Attributes:
        window: tokens that attention sees.
        context: tokens before one that project its query, and of a step's loss.
        decay: of the projection, for each token further back.
        step: whether the memory is changed before it is read.
        adaptive: whether eta is divided by 1 + |g|.
        ns: steps of Newton-Schulz.
    """

    heads: int
    window: int
    degree: int = 2
    memory: bool = True
    context: int = 256
    decay: float = 0.95
    step: bool = True
    theta: float = 0.9
    alpha: float = 0.999
    eta: float = 0.01
    adaptive: bool = False
    ns: int = 5


def function(p: Tensors, degree: int, contribution: bool = True) -> functions.Function:
    """The memory function that these parameters are of."""
    return functions.Function(
        kind="polynomial",
        degree=degree,
        gated="w3.weight" in p,
        compress="poly_compress.weight" in p,
        with_input=not contribution,
    )


def memory(x: Array, p: Tensors, f: functions.Function) -> parts.Result:
    """M of each token x (B, T, d); gradients x, and of the parameters by name."""
    own = {NAMES[name]: a for name, a in p.items()}
    y = np.zeros(x.shape)
    for at in parts.places(x):
        y[at] = functions.value(own, x[at], f)

    def back(bar: Array) -> Tensors:
        total: Tensors = {"x": np.zeros(x.shape)}
        for at in parts.places(x):
            g, total["x"][at] = functions.gradient(own, x[at], bar[at], f)
            total = parts.add(total, {name: g[NAMES[name]] for name in p})
        return total

    return y, back


def omega_loss(
    keys: Array, values: Array, weights: Array, context: int, p: Tensors, f: functions.Function
) -> parts.Result:
    """Mean over rows and the last `context` tokens of weight |M(key) - value|^2.

    Gradients of the parameters by name, and keys, values, weights; the cotangent is a number.
    """
    B, T, _ = keys.shape
    first = max(0, T - context)
    y, y_back = memory(keys[:, first:], p, f)
    error, share = y - values[:, first:], 1.0 / (B * (T - first))
    loss = 0.0
    for b, t in np.ndindex(B, T - first):
        loss += share * weights[b, first + t] * sum(error[b, t] ** 2)

    def back(bar: float) -> Tensors:
        own = 2.0 * bar * share * weights[:, first:, None] * error
        g = y_back(own)
        late = {"keys": g.pop("x"), "values": -own, "weights": bar * share * np.sum(error**2, 2)}
        for name, of in (("keys", keys), ("values", values), ("weights", weights)):
            g[name] = np.zeros(of.shape)
            g[name][:, first:] = late[name]
        return g

    return loss, back


def decay_weights(B: int, T: int, decay: float) -> Array:
    """Of a loss where no gate is given."""
    return np.array([[decay ** (T - 1 - i) for i in range(T)]] * B)


def norm(*arrays: Any) -> float:
    return math.sqrt(sum(float(each) ** 2 for a in arrays for each in np.ravel(a)))


def newton_schulz(S: Array, steps: int) -> Array:
    """Five numbers of Muon, never transposed; below 1e-7 the matrix itself."""
    if norm(S) < 1e-7:
        return S
    X = S / (norm(S) + 1e-7)
    for _ in range(steps):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X


class Stepped(NamedTuple):
    """After a step: parameters, momentum, loss, updates, eta, |g| and the share that a clip left."""

    p: Tensors
    S: Tensors
    loss: float
    g: Tensors
    U: Tensors
    eta: float
    size: float
    share: float


def step(
    keys: Array,
    values: Array,
    weights: Array,
    p: Tensors,
    S: Tensors,
    f: functions.Function,
    s: Settings,
    bound: float | None = None,
) -> Stepped:
    """One test-time step of all parameters from the loss of a whole batch.

    Args:
        bound: the norm to which all gradients together are clipped, or None.
    """
    loss, back = omega_loss(keys, values, weights, s.context, p, f)
    g = back(1.0)
    g = {name: g[name] for name in p}
    size = norm(*g.values())
    eta = s.eta / (1.0 + size) if s.adaptive else s.eta
    share = 1.0 if bound is None else min(1.0, bound / (size + 1e-8))
    after, momentum, updates = {}, {}, {}
    for name, a in p.items():
        m = s.theta * S[name] + share * g[name]
        u = newton_schulz(m, s.ns) if np.ndim(m) == 2 else m / (norm(m) + 1e-8)
        momentum[name], updates[name], after[name] = m, u, s.alpha * a - eta * u
    return Stepped(after, momentum, loss, g, updates, eta, size, share)


def below(p: Tensors, start: str) -> Tensors:
    return {name.removeprefix(start): a for name, a in p.items() if name.startswith(start)}


class Block(NamedTuple):
    """What a block computed, and the memory's parameters and momentum after it."""

    y: Array
    seen: Tensors
    p: Tensors
    S: Tensors


def momentum_name(name: str) -> str:
    return f"momentum_{name.replace('.', '_')}"


def block(
    x: Array, p: Tensors, buffers: Tensors, s: Settings, mask: Any = None
) -> tuple[Block, Any]:
    """A block on x (B, T, d), and its gradients: x, parameters by name, and some between."""
    h, h_back = parts.rms_norm(x, p["norm1.weight"])
    (q, k, v), qkv_back = parts.qkv(h, below(p, "qkv."), s.heads)
    q, k = parts.rotary(q), parts.rotary(k)
    heads, heads_back = parts.attention(q, k, v, s.window, mask)
    merged = parts.merge(heads)
    a, a_back = parts.linear(merged, p["w_o.weight"])
    seen: Tensors = {"q": q, "k": k, "v": v, "attn": merged, "attn_projected": a}
    own, S = below(p, "memory."), {}
    if s.memory:
        own, S, m_back = _remember(h, q, k, v, p, buffers, s, seen)
        m = parts.sigmoid(seen["mem_out"])
        middle = x + a * m
    else:
        middle = x + a
    n, n_back = parts.rms_norm(middle, p["norm2.weight"])
    z, z_back = parts.swiglu(n, *(p[f"ffn.w{i}.weight"] for i in (1, 2, 3)))

    def back(bar: Array) -> Tensors:
        g: Tensors = {}
        of_ffn = z_back(bar)
        g |= {f"ffn.w{i}.weight": of_ffn[f"w{i}"] for i in (1, 2, 3)}
        of_n = n_back(of_ffn["x"])
        g["norm2.weight"] = of_n["weight"]
        middle_bar = bar + of_n["x"]
        a_bar = middle_bar * m if s.memory else middle_bar
        of_a = a_back(a_bar)
        g |= {"w_o.weight": of_a["W"], "attn_projected": a_bar, "attn": of_a["x"]}
        of_heads = heads_back(parts.split(of_a["x"], s.heads))
        q_bar, k_bar, v_bar = (of_heads[name] for name in "qkv")
        h_bar = 0.0
        if s.memory:
            of_m = m_back(middle_bar * a * m * (1.0 - m))
            q_bar, k_bar = q_bar + of_m.pop("q"), k_bar + of_m.pop("k")
            h_bar = of_m.pop("x")
            g |= of_m
        g |= {"q": q_bar, "k": k_bar, "v": v_bar}
        of_qkv = qkv_back([parts.rotary(q_bar, turn=-1), parts.rotary(k_bar, turn=-1), v_bar])
        h_bar = h_bar + of_qkv.pop("x")
        g |= {f"qkv.{name}": bar for name, bar in of_qkv.items()}
        of_h = h_back(h_bar)
        return g | {"norm1.weight": of_h["weight"], "x": middle_bar + of_h["x"]}

    return Block(middle + z, seen, own, S), back


def _remember(
    h: Array, q: Array, k: Array, v: Array, p: Tensors, buffers: Tensors, s: Settings, seen: Tensors
) -> tuple[Tensors, Tensors, Any]:
    """The gate, the projected query, the step and the read, which go to `seen`.

    Returns:
        The memory's parameters and momentum afterwards, and from the cotangent of the read its
        gradients: q, k, x (of h), and parameters by name.
    """
    gate, gate_back = parts.gamma_gate(
        h, p["gamma_gate.gate.0.weight"], p["gamma_gate.gate.2.weight"]
    )
    T = h.shape[1]
    projected, projected_back = parts.projection(
        parts.merge(q),
        parts.merge(k),
        gate[:, :, 0],
        buffers["qk_memory.m_persistent"],
        float(buffers["qk_memory.norm_persistent"]),
        s.context,
        [s.decay**lag for lag in range(T)],
    )
    own = below(p, "memory.")
    S = {name: buffers[f"memory.{momentum_name(name)}"] for name in own}
    f = function(own, s.degree)
    if s.step:
        done = step(projected, parts.merge(v), gate[:, :, 0], own, S, f, s)
        own, S = done.p, done.S
        seen |= {"omega_loss": done.loss, "effective_eta": done.eta}
    m, m_back = memory(projected, own, f)
    seen |= {"gamma": gate, "q_projected": parts.split(projected, s.heads), "mem_out": m}

    def back(bar: Array) -> Tensors:
        g = m_back(bar)
        of_projected = projected_back(g.pop("x"))
        g = {f"memory.{name}": a for name, a in g.items()}
        of_gate = gate_back(of_projected["gate"][:, :, None])
        g |= {f"gamma_gate.{name}": a for name, a in of_gate.items() if name != "x"}
        g |= {name: parts.split(of_projected[name], s.heads) for name in "qk"}
        return g | {"x": of_gate["x"]}

    return own, S, back


class Call(NamedTuple):
    """Logits, loss, what the blocks computed, and gradients of every parameter."""

    logits: Array
    loss: float
    blocks: list[Block]
    gradients: Tensors


def model(ids: Array, p: Tensors, buffers: Tensors, s: Settings) -> Call:
    """A call on ids (B, T + 1), each token's logits with the next one as its target."""
    E, x = p["tok_emb.weight"], []
    read, want = ids[:, :-1], ids[:, 1:]
    x = np.array([[E[each] + p["w_init"] for each in row] for row in read])
    blocks, backs = [], []
    for i in range(sum(name.endswith("norm1.weight") for name in p)):
        start = f"blocks.{i}."
        done, back = block(x, below(p, start), below(buffers, start), s)
        x = done.y
        blocks.append(done)
        backs.append(back)
    n, n_back = parts.rms_norm(x, p["norm_f.weight"])
    z, z_back = parts.linear(n, E)
    loss, z_bar = 0.0, np.zeros(z.shape)
    for b, t in np.ndindex(*want.shape):
        e = np.exp(z[b, t] - max(z[b, t]))
        prob = e / sum(e)
        loss -= math.log(prob[want[b, t]]) / want.size
        z_bar[b, t] = prob / want.size
        z_bar[b, t, want[b, t]] -= 1.0 / want.size
    of_z = z_back(z_bar)
    of_n = n_back(of_z["x"])
    g = {"norm_f.weight": of_n["weight"], "tok_emb.weight": of_z["W"]}
    x_bar = of_n["x"]
    for i, back in reversed(list(enumerate(backs))):
        own = back(x_bar)
        x_bar = own.pop("x")
        known = below(p, f"blocks.{i}.")
        g |= {f"blocks.{i}.{name}": a for name, a in own.items() if name in known}
    for b, t in np.ndindex(*read.shape):
        g["tok_emb.weight"][read[b, t]] += x_bar[b, t]
    return Call(z, loss, blocks, g | {"w_init": sum(sum(x_bar))})
