"""The bracket that fla-core's Titans reference lost, by numbers that anyone can compute again.

Its memory is linear, with a LayerNorm in the loss of a token: with x = k M, x^ = (x - mean x) /
sqrt(var x + eps) and the target u = v - k,

    loss = |w x^ + b - u|^2,    z = w (w x^ + b - u),
    d loss / d M = 2 k^T (d z - sum z - x^ sum(z x^)) / (d sqrt(var x + eps)).

What it applies to its memory can be had from outside: from no momentum, one token gives M_1 = (1 -
alpha) M_0 - theta (applied gradient). This module compares that with autograd's gradient of the
loss, and with the formula by hand, with and without the bracket around the first two terms. Nothing
of fla-core is copied; its functions are called.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from benchmarks.survey.catalogue import helper

Array = np.ndarray[Any, Any]

WIDTH, HEADS, TOKENS, CHUNK, SEEDS, EPS = 16, 2, 64, 16, 8, 1e-6


class Inputs(NamedTuple):
    """Arrays in its layout, (B, T, H, D) for q, k, v and (B, T, H, 1) for gates."""

    q: Array
    k: Array
    v: Array
    w: Array
    b: Array
    theta: Array
    alpha: Array
    eta: Array
    M0: Array


class Drift(NamedTuple):
    """One seed's numbers, each a relative difference unless said otherwise."""

    applied_from_autograd: float
    hand_from_autograd: float
    applied_from_lost: float
    norm_ratio: float
    cosine: float
    forms_apart: float


def drawn(seed: int, tokens: int) -> Inputs:
    """Inputs of a size that its own loss is steep in: unit keys, a first memory that is not
    zero.
    """
    draw = np.random.Generator(np.random.Philox(seed))
    shape = (1, tokens, HEADS, WIDTH)
    k = draw.standard_normal(shape)
    gates = [
        draw.uniform(low, high, (1, tokens, HEADS, 1))
        for low, high in ((0.01, 0.05), (0.01, 0.1), (0.5, 0.9))
    ]
    arrays = [
        draw.standard_normal(shape),
        k / np.linalg.norm(k, axis=-1, keepdims=True),
        draw.standard_normal(shape),
    ]
    arrays += [
        1 + 0.1 * draw.standard_normal((HEADS, WIDTH)),
        0.1 * draw.standard_normal((HEADS, WIDTH)),
        *gates,
    ]
    arrays.append(draw.standard_normal((1, HEADS, WIDTH, WIDTH)) / 4)
    return Inputs(*(each.astype(np.float32) for each in arrays))


def called(x: Inputs, *, use_chunk: bool) -> tuple[Array, Array]:
    """Reads and last memory of its reference, in either of its two forms."""
    torch, naive = _theirs()
    inputs = {
        name: torch.from_numpy(value.copy()) for name, value in x._asdict().items() if name != "M0"
    }
    options = {
        "eps": EPS,
        "chunk_size": CHUNK,
        "initial_state": torch.from_numpy(x.M0.copy()),
        "output_final_state": True,
    }
    y, M = naive.chunk_titans_linear_ref(**inputs, **options, use_chunk=use_chunk)
    return y.numpy(), M.numpy()


def _theirs() -> tuple[Any, Any]:
    """PyTorch, and the module of its reference."""
    calls = helper("torch_calls")
    return calls.pytorch(), calls.by_file("fla.ops.titans.naive")


def applied(x: Inputs) -> Array:
    """The gradient that it applies at the first token, (H, D, D), from what it does to its
    memory.
    """
    _, M = called_once(x)
    decayed = (1 - x.alpha[0, 0].astype(np.float64))[:, :, None] * x.M0[0]
    gradient: Array = (decayed - M[0]) / x.theta[0, 0].astype(np.float64)[:, :, None]
    return gradient


def called_once(x: Inputs) -> tuple[Array, Array]:
    """One token through its sequential form."""
    torch, naive = _theirs()
    first = {
        name: torch.from_numpy(getattr(x, name)[:, :1].swapaxes(1, 2).copy())
        for name in ("q", "k", "v", "theta", "alpha", "eta")
    }
    whole = {name: torch.from_numpy(getattr(x, name)) for name in ("w", "b")}
    start = torch.from_numpy(x.M0.copy())
    y, M = naive.titans_linear(
        **first, **whole, eps=EPS, chunk_size=1, initial_state=start, output_final_state=True
    )
    return y.numpy(), M.numpy()


def loss(M: Any, k: Any, u: Any, w: Any, b: Any) -> Any:
    """Its loss of one token of one head, in operations that PyTorch tensors and NumPy arrays
    share.
    """
    x = k @ M
    centred = x - x.mean()
    error = w * centred / ((centred * centred).mean() + EPS) ** 0.5 + b - u
    return (error * error).sum()


def by_autograd(x: Inputs) -> Array:
    """d loss / d M at the first token, (H, D, D), by PyTorch in float64."""
    torch = helper("torch_calls").pytorch()
    gradients = []
    for h in range(HEADS):
        M = torch.tensor(x.M0[0, h], dtype=torch.float64, requires_grad=True)
        k, u, w, b = (torch.tensor(each, dtype=torch.float64) for each in _first(x, h))
        gradients.append(torch.autograd.grad(loss(M, k, u, w, b), M)[0].numpy())
    return np.stack(gradients)


def by_hand(x: Inputs, *, bracket: bool) -> Array:
    """The same by the formula, or by the formula without its bracket."""
    gradients = []
    for h in range(HEADS):
        k, u, w, b = _first(x, h)
        p = k @ x.M0[0, h].astype(np.float64)
        spread = np.sqrt(p.var() + EPS)
        hat = (p - p.mean()) / spread
        z = w * (w * hat + b - u)
        under = WIDTH * spread
        last = hat * (z * hat).sum() / under
        row = (
            (WIDTH * z - z.sum()) / under - last if bracket else WIDTH * z - z.sum() / under - last
        )
        gradients.append(2 * np.outer(k, row))
    return np.stack(gradients)


def _first(x: Inputs, h: int) -> tuple[Array, Array, Array, Array]:
    k, v = (each[0, 0, h].astype(np.float64) for each in (x.k, x.v))
    return k, v - k, x.w[h].astype(np.float64), x.b[h].astype(np.float64)


def drift(seed: int) -> Drift:
    """The numbers of one seed."""
    x = drawn(seed, TOKENS)
    ours, right = applied(x), by_autograd(x)
    one, other = (called(x, use_chunk=each) for each in (False, True))
    return Drift(
        applied_from_autograd=_apart(ours, right),
        hand_from_autograd=_apart(by_hand(x, bracket=True), right),
        applied_from_lost=_apart(ours, by_hand(x, bracket=False)),
        norm_ratio=float(np.linalg.norm(ours) / np.linalg.norm(right)),
        cosine=float((ours * right).sum() / np.linalg.norm(ours) / np.linalg.norm(right)),
        forms_apart=max(_apart(one[n], other[n]) for n in range(2)),
    )


def _apart(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
