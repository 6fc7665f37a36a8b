"""Level "token" of the literal evaluation: keys, values, queries, gates and window weights from the
tokens x.
"""

from typing import Any

import numpy as np

from tests.truth.literal_parts import normalise, sigmoid, silu, softmax, softplus

Array = np.ndarray
Tensors = dict[str, Array]


def project(header: dict[str, Any], convention: dict[str, Any], arrays: Tensors) -> Tensors:
    """The tensors of level "projected", leading axes (B, H), from x (B, T, d_model) and the
    parameters (H, ...).
    """
    x, heads = arrays["in/x"], len(arrays["in/param/W_K"])
    names = {"W_K": "in/k", "W_V": "in/v", "W_Q": "in/q"}
    tensors: Tensors = {}
    for parameter, name in names.items():
        tensors[name] = per_token(
            x, heads, lambda token, h, w=arrays[f"in/param/{parameter}"]: w[h] @ token
        )
    for parameter, name in (("W_K", "in/surrogate_k"), ("W_V", "in/surrogate_v")):
        if f"in/param/{parameter}_surrogate" in arrays:
            tensors[name] = per_token(
                x,
                heads,
                lambda token, h, w=arrays[f"in/param/{parameter}_surrogate"]: w[h] @ token,
            )
    for gate, squash in (("retain", sigmoid), ("momentum", sigmoid), ("step_size", softplus)):
        if f"in/param/W_{gate}" in arrays:
            tensors[f"in/{gate}"] = gate_values(
                convention, arrays, tensors["in/k"], tensors["in/v"], gate, squash
            )
    if header["rule"] == "omega":
        tensors.update(window_weights(header, arrays, x, heads))
    return {**arrays, **tensors}


def per_token(x: Array, heads: int, function: Any) -> Array:
    """The array function(x[b, t], h) for every b, h, t: (B, H, T, ...)."""
    return np.array(
        [[[function(token, h) for token in sequence] for h in range(heads)] for sequence in x]
    )


def gate_values(
    convention: dict[str, Any], arrays: Tensors, k: Array, v: Array, gate: str, squash: Any
) -> Array:
    """squash(W_g [k; v] + b_g) for every token.

    (B, H, T) for one row and (B, H, T, d_out) for one row per output dimension.
    """
    w, b = arrays[f"in/param/W_{gate}"], arrays[f"in/param/b_{gate}"]
    kind = convention["k_norm"] if convention["norm_place"] == "before_phi" else "none"
    values = np.zeros((*k.shape[:-1], w.shape[1]), k.dtype)
    for i, h, t in np.ndindex(*k.shape[:-1]):
        values[i, h, t] = squash(
            w[h] @ np.concatenate([normalise(kind, k[i, h, t], convention), v[i, h, t]]) + b[h]
        )
    return values[..., 0] if w.shape[1] == 1 else values


def window_weights(header: dict[str, Any], arrays: Tensors, x: Array, heads: int) -> Tensors:
    """The table gamma[t, j] (B, H, T, c) of all kinds but gates.

    Where a kind is "gate", also the product of each token's gates (B, H, T).
    """
    c = header.get("window", 1)
    kinds = flatten(header.get("window_weights") or {"kind": "uniform"})
    table = np.ones((len(x), heads, x.shape[1], c), x.dtype)
    for kind in kinds:
        if kind["kind"] == "uniform":
            table = table * (1 / c)
        if kind["kind"] == "decay":
            table = table * np.array([float(kind.get("base", 0.95)) ** j for j in range(c)])
        if kind["kind"] == "softmax":
            table = table * softmax(arrays["in/param/window_logits"])[None, :, None, :]
    tensors = {"in/window_weights": table}
    gates = [kind["kind"] for kind in kinds].count("gate")
    if gates:
        w1, b1, w2, b2 = (arrays[f"in/param/window_{name}"] for name in ("W1", "b1", "W2", "b2"))
        u = per_token(
            x, heads, lambda token, h: sigmoid(w2[h] @ silu(w1[h] @ token + b1[h]) + b2[h])
        )
        # what the token weighs, as an initial token's window_gate_before does
        tensors["in/window_gate"] = u**gates
    return tensors


def flatten(kind: dict[str, Any]) -> list[dict[str, Any]]:
    """The factors of a kind of window weights; a product may hold products."""
    if kind["kind"] != "product":
        return [kind]
    return [factor for part in kind["of"] for factor in flatten(part)]
