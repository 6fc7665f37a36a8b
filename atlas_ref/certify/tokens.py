"""The tokens of a sequence at either level: keys, values, queries, gates and window weights.

CONV-4, CONV-28, CONV-36, GATES-6, GATES-7, WINDOW-2 to WINDOW-7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flint import arb

from atlas_ref.certify.functions import (
    activated,
    exponentials,
    normalised,
    sigmoids,
    softmax,
    softpluses,
)
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, hadamard, number, pick, stacked


class Token(NamedTuple):
    """One token of one sequence.

    Attributes:
        k, v, q: raw key, value and query, as columns.
        gates: retain, momentum, step_size, step_size_memory, from the case or computed: 1 x 1, or
            d_out x 1; a missing one is not there.
        weights: the factor of the window weights by lag, c numbers.
        gate: the factor of the token at every lag, where tokens bring a weight.
        learned: the residual under reference surrogate (SURROGATE-1).
    """

    k: Matrix
    v: Matrix
    q: Matrix
    gates: dict[str, Matrix]
    weights: list[Matrix]
    gate: Matrix | None
    active: bool
    reset: bool
    learned: Matrix | None


def tokens_of(header: Any, convention: Any, inputs: Inputs, index: tuple[int, ...]) -> list[Token]:
    """The tokens of the sequence at an index of the leading axes."""
    if header.level == "token":
        return _computed(header, convention, inputs, index)
    tokens = [_projected(header, inputs, (*index, t)) for t in range(inputs.shape("in/k")[-2])]
    return [
        each._replace(learned=learned(header, convention, inputs, index, each.k, each.v))
        for each in tokens
    ]


def learned(
    header: Any, convention: Any, inputs: Inputs, index: tuple[int, ...], k: Matrix, v: Matrix
) -> Matrix | None:
    """W silu([k; v]) of a raw pair; None under another reference (SURROGATE-1, SURROGATE-2)."""
    if convention.reference != "surrogate" or header.rule == "hebbian":
        return None
    before = convention.norm_place == "before_phi"
    read = normalised(k, convention.k_norm, convention) if before else k
    W = inputs.get("in/param/W_surrogate", *(index[-1:] if header.level == "token" else ()))
    return W @ activated(stacked([read, v]), "silu")


def _projected(header: Any, inputs: Inputs, at: tuple[int, ...]) -> Token:
    """The token at (..., t) of a case of level projected."""
    gates = {}
    for name in ("retain", "momentum", "step_size", "step_size_memory"):
        value = inputs.optional(f"in/{name}", *at)
        if f"in/log_{name}" in inputs:
            value = exponentials(inputs.get(f"in/log_{name}", *at))
        if value is not None:
            gates[name] = value
    c = header.window
    if "in/window_weights" in inputs:
        row = inputs.get("in/window_weights", *at)
        weights = [pick(row, [j]) for j in range(c)]
    else:
        weights = [number(arb(1) if "in/window_gate" in inputs else arb(1) / c)] * c
    return Token(
        k=inputs.get("in/k", *at),
        v=inputs.get("in/v", *at),
        q=inputs.get("in/q", *at),
        gates=gates,
        weights=weights,
        gate=inputs.optional("in/window_gate", *at),
        learned=None,
        **_masks(inputs, at[-1], at[:-1]),
    )


def _masks(inputs: Inputs, t: int, index: tuple[int, ...]) -> dict[str, bool]:
    return {
        "active": inputs.flag("in/active", t, True, index),
        "reset": inputs.flag("in/reset", t, False, index),
    }


def _computed(header: Any, convention: Any, inputs: Inputs, index: tuple[int, ...]) -> list[Token]:
    """The tokens at (batch, head) of a case of level token."""
    batch, head = index
    kinds = _factors(header.window_weights)
    weights = _by_lag(kinds, inputs, head, header.window)
    tokens = []
    for t in range(inputs.shape("in/x")[-2]):
        x = inputs.get("in/x", batch, t)
        k, v, q = (inputs.get(f"in/param/{name}", head) @ x for name in ("W_K", "W_V", "W_Q"))
        before = convention.norm_place == "before_phi"
        read = normalised(k, convention.k_norm, convention) if before else k
        gates = _gates(inputs, head, stacked([read, v]))
        residual = learned(header, convention, inputs, index, k, v)
        if "in/param/W_K_surrogate" in inputs:
            own = (inputs.get(f"in/param/W_{each}_surrogate", head) @ x for each in "KV")
            residual = learned(header, convention.replaced(k_norm="none"), inputs, index, *own)
        tokens.append(
            Token(
                k,
                v,
                q,
                gates,
                weights,
                _by_token(kinds, inputs, head, x),
                learned=residual,
                **_masks(inputs, t, index),
            )
        )
    return tokens


def _gates(inputs: Inputs, head: int, read: Matrix) -> dict[str, Matrix]:
    """sigmoid or softplus of W_g [k; v] + b_g (GATES-7)."""
    gates = {}
    for name, activation in (
        ("retain", sigmoids),
        ("momentum", sigmoids),
        ("step_size", softpluses),
    ):
        if f"in/param/W_{name}" in inputs:
            gates[name] = activation(
                inputs.get(f"in/param/W_{name}", head) @ read
                + inputs.get(f"in/param/b_{name}", head)
            )
    return gates


def _factors(kind: Any) -> list[Any]:
    """The kinds whose product the window weights are; None stands for uniform (WINDOW-7)."""
    if kind is None:
        return [None]
    return (
        [factor for part in kind.of for factor in _factors(part)]
        if kind.kind == "product"
        else [kind]
    )


def _by_lag(kinds: Sequence[Any], inputs: Inputs, head: int, c: int) -> list[Matrix]:
    """The weights by lag: the product of all kinds but gate."""
    weights = [number(arb(1))] * c
    for kind in kinds:
        name = "uniform" if kind is None else kind.kind
        if name == "uniform":
            weights = [w.times(arb(1) / c) for w in weights]
        elif name == "decay":
            weights = [w.times(arb(kind.base) ** j) for j, w in enumerate(weights)]
        elif name == "softmax":
            shares = softmax(inputs.get("in/param/window_logits", head))
            weights = [hadamard(w, pick(shares, [j])) for j, w in enumerate(weights)]
    return weights


def _by_token(kinds: Sequence[Any], inputs: Inputs, head: int, x: Matrix) -> Matrix | None:
    """The weight of the token: the product of its gates, sigmoid(W2 silu(W1 x + b1) + b2) each.

    Source: WINDOW-6.
    """
    product: Matrix | None = None
    for kind in kinds:
        if kind is not None and kind.kind == "gate":
            W1, b1, W2, b2 = (
                inputs.get(f"in/param/window_{name}", head) for name in ("W1", "b1", "W2", "b2")
            )
            u = sigmoids(W2.T @ activated(W1 @ x + b1, "silu") + b2)
            product = u if product is None else hadamard(product, u)
    return product
