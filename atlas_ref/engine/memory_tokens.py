"""An MLP memory that is written and read token by token, in place and without a tape; plain twin:
the loop over chunks of `atlas_ref.rules.deep_memory.run`.

Target: at most 0.2 of the time of a loop in PyTorch (`benchmarks.deep`), of which the plain twin
takes 0.3, since each of its 250 calls a token makes arrays of its own. Specified in
specs/deep_memory.md (DEEP-7, DEEP-11, DEEP-13, DEEP-15).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.parts.memory_functions.activations import share, slope
from atlas_ref.types import Array

Floats = np.ndarray[Any, Any]


class Settings(NamedTuple):
    """What the loop computes.

    Attributes:
        activation, eps: of the MLP; eps of its norm, None without one.
        scale: of the gradient, without the weight of a token.
        minus: whether S holds the negative gradient and W adds.
        descends: whether W moves against the gradient.
        moves_gain: whether the gain of the norm is fast.
        after: whether a token reads what it has written.
    """

    activation: str
    eps: float | None
    scale: float
    minus: bool
    descends: bool
    moves_gain: bool
    after: bool


class Tokens(NamedTuple):
    """Tokens of N memories: keys, values, queries (N, T, d), weights (N, T); rates (N, T), None for 1.

    Attributes:
        momentum: None for no momentum, where S is the step alone.
        step, step_memory: factors of the gradient in S and of S in W.
    """

    keys: Floats
    values: Floats
    queries: Floats
    weights: Floats
    retain: Floats | None
    momentum: Floats | None
    step: Floats | None
    step_memory: Floats | None


def run(
    settings: Settings, tokens: Tokens, W: list[Floats], gain: Floats, S: list[Floats] | None
) -> tuple[Floats, list[Floats], list[Floats]]:
    """Reads (N, T, d_out), and W and S after the last token, the gain's last where it is fast.

    Args:
        W: matrices (N, m, k) in order.
        gain (N, d): of the norm; zeros without one.
        S: as the result, None for none yet.
    """
    own = _Memory(settings, [np.array(each) for each in W], np.array(gain)[:, None], S)
    rows = [np.ascontiguousarray(x.swapaxes(0, 1)[:, :, None]) for x in tokens[:3]]
    weights = np.ascontiguousarray(tokens.weights.T)[:, :, None, None]
    rates = [None if x is None else np.ascontiguousarray(x.T)[:, :, None, None] for x in tokens[4:]]
    reads = np.empty((*rows[2].shape[:3], W[-1].shape[1]), rows[2].dtype)
    for t, (key, value, query) in enumerate(zip(*rows, strict=True)):
        if not settings.after:
            reads[t] = own.value(query)
        own.write(key, value, weights[t], *(None if x is None else x[t] for x in rates))
        if settings.after:
            reads[t] = own.value(query)
    return reads[:, :, 0].swapaxes(0, 1), own.fast(own.W), own.fast(own.S)


class _Memory:
    """N memories and their work space; a gain is a row (N, 1, d)."""

    def __init__(
        self, settings: Settings, W: list[Floats], gain: Floats, S: list[Floats] | None
    ) -> None:
        self.settings, self.depth = settings, len(W)
        self.W = [*W, gain]
        self.room = [np.empty_like(each) for each in W]
        self.empty = S is None
        given = self.W if S is None else [*S[: len(W)], *(each[:, None] for each in S[len(W) :])]
        self.S = [np.array(each) for each in given]

    def fast(self, tensors: list[Floats]) -> list[Floats]:
        """Those that a write moves, a gain as (N, d)."""
        matrices = tensors[: self.depth]
        return [*matrices, tensors[self.depth][:, 0]] if self.settings.moves_gain else matrices

    def value(self, x: Floats) -> Floats:
        """M(x) of rows (N, 1, d)."""
        s = x
        for W in self.W[: self.depth - 1]:
            a = s @ W.swapaxes(-1, -2)
            s = a * share(self.settings.activation, a)
        y: Floats = s @ self.W[self.depth - 1].swapaxes(-1, -2)
        return y if self.settings.eps is None else self._normed(y)[0] * (self.W[-1] + 1.0) + x

    def write(
        self,
        key: Floats,
        value: Floats,
        weight: Floats,
        retain: Floats | None,
        momentum: Floats | None,
        step: Floats | None,
        step_memory: Floats | None,
    ) -> None:
        """One step on |M(key) - value|^2, of rows (N, 1, d)."""
        kind, s, kept = self.settings.activation, [key], []
        for W in self.W[: self.depth - 1]:
            a = s[-1] @ W.swapaxes(-1, -2)
            G = share(kind, a)
            kept.append((a, G))
            s.append(a * G)
        y = s[-1] @ self.W[self.depth - 1].swapaxes(-1, -2)
        steps = list(self.room)
        if self.settings.eps is None:
            g = (self.settings.scale * weight) * (y - value)
        else:
            n, r = self._normed(y)
            above = self.W[-1] + 1.0
            gy = (self.settings.scale * weight) * (n * above + key - value)
            steps += [gy * n] if self.settings.moves_gain else []
            g = gy * above
            g = r * (g - _mean(g) - n * _mean(g * n))
        for i in range(self.depth - 1, -1, -1):
            np.einsum("nm,nk->nmk", g[:, 0], s[i][:, 0], out=self.room[i])
            if i:
                g = (g @ self.W[i]) * slope(kind, *kept[i - 1])
        self._move(steps, retain, momentum, step, step_memory)

    def _move(self, steps: list[Floats], retain: Any, momentum: Any, a: Any, b: Any) -> None:
        """S = momentum S + a step, W = retain W - b S, in place; steps are overwritten."""
        minus = self.settings.minus
        change, carry = (np.negative, np.subtract) if minus else (np.positive, np.add)
        move = np.add if minus == self.settings.descends else np.subtract
        for W, S, step in zip(self.W, self.S, steps, strict=False):
            if a is not None:
                step *= a
            if momentum is None or self.empty:
                change(step, out=S)
            else:
                S *= momentum
                carry(S, step, out=S)
            if retain is not None:
                W *= retain
            move(W, S if b is None else np.multiply(S, b, out=step), out=W)
        self.empty = False

    def _normed(self, y: Floats) -> tuple[Floats, Floats]:
        """Rows without mean at length sqrt(d), and the factor r."""
        centred = y - _mean(y)
        r = 1.0 / np.sqrt(_mean(centred * centred) + self.settings.eps)
        return centred * r, r


def _mean(x: Array) -> Array:
    return np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1]
