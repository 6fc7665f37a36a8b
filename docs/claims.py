"""What the sources say about noise, drift and storage, measured on streams that are drawn here.

A stream has unit keys in random directions and values v_t = W_t k_t + noise; W_t turns a little at
every token. Error is |M_{t-1} k_t - W_t k_t|^2, by the surprise of a token (CONV-63) without its
noise, over the second half of the stream.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.rules import delta, omega, sequence, titans_lmm
from atlas_ref.rules.rule import Rule
from atlas_ref.rules.sequence import Tokens
from atlas_ref.rules.surprise import surprise
from docs.cells import table
from docs.clauses.trace import Trace

WIDTH, STREAMS, TOKENS = 8, 64, 240
WINDOWS = (1, 2, 4, 8, 16)
MOMENTA = (0.5, 0.9)
STEPS = (0.1, 0.4)
#: Length of the noise of a value, and how far W turns at a token.
CONDITIONS = {"noise": (1.0, 0.0), "drift": (0.0, 0.1), "both": (1.0, 0.1)}


class Stream(NamedTuple):
    """k, v, W k (STREAMS, TOKENS, WIDTH)."""

    k: Any
    v: Any
    clean: Any


class Measured(NamedTuple):
    """Of one memory on all streams: error of each stream, and mean square of a change of M."""

    errors: Any
    change: float

    @property
    def error(self) -> float:
        return float(np.mean(self.errors))


@functools.cache
def stream(noise: float, drift: float) -> Stream:
    """The same streams for every memory."""
    random = np.random.default_rng(1)
    k = random.standard_normal((STREAMS, TOKENS, WIDTH))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    shape, scale = (STREAMS, WIDTH, WIDTH), 1.0 / np.sqrt(WIDTH)
    W, clean = scale * random.standard_normal(shape), np.empty_like(k)
    for t in range(TOKENS):
        W = np.sqrt(1.0 - drift**2) * W + drift * scale * random.standard_normal(shape)
        clean[:, t] = (W @ k[:, t, :, None])[..., 0]
    return Stream(k, clean + noise * scale * random.standard_normal(k.shape), clean)


def measured(rule: Rule, config: Any, gates: dict[str, float], given: Stream) -> Measured:
    """A memory from zero on all streams, its gates constant."""
    rows = {name: np.full(given.k.shape[:2], value) for name, value in gates.items()}
    tokens = Tokens(k=given.k, v=given.v, q=given.k, **rows)
    start = rule.start(config, (STREAMS,))
    answers = surprise(rule, config, tokens, start).residual + given.v
    errors = np.mean(np.sum((answers - given.clean) ** 2, -1)[:, TOKENS // 2 :], axis=-1)
    last, before = tokens_of(tokens, slice(TOKENS - 1, None)), tokens_of(tokens, slice(TOKENS - 1))
    state, _ = sequence.run(rule, config, before, start)
    after, _ = sequence.run(rule, config, last, state)
    return Measured(errors, float(np.mean((after.M - state.M) ** 2)))


def square(convention: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Settings of a memory of WIDTH by WIDTH."""
    return {"d_in": WIDTH, "d_out": WIDTH, "convention": {"gate": "retain", **convention}, **more}


def tokens_of(tokens: Tokens, of: slice) -> Tokens:
    """Some tokens of a sequence whose arrays all have (N, T, ...)."""
    arrays = {name: each for name, each in tokens.__dict__.items() if each is not None}
    return Tokens(**{name: each[:, of] for name, each in arrays.items()})


@functools.cache
def of_window(c: int, condition: str, step: float) -> Measured:
    """Omega without momentum and Newton-Schulz, weights 1/c."""
    config = omega.Config(**square({"newton_schulz": "none"}, window=c))
    gates = {"retain": 1.0, "step_size": step}
    return measured(omega.RULE, config, gates, stream(*CONDITIONS[condition]))


@functools.cache
def of_momentum(momentum: float, condition: str, step: float) -> Measured:
    """Titans with step_size step (1 - momentum), so that all of a gradient's steps sum to `step`; Delta
    for momentum 0.
    """
    given = stream(*CONDITIONS[condition])
    if momentum == 0.0:
        gates = {"retain": 1.0, "step_size": step}
        return measured(delta.RULE, delta.Config(**square({})), gates, given)
    gates = {"retain": 1.0, "momentum": momentum, "step_size": step * (1.0 - momentum)}
    return measured(titans_lmm.RULE, titans_lmm.Config(**square({})), gates, given)


def noise_of_windows(trace: Trace, page: str) -> str:
    """Change of the memory and its error by window, under noise and under drift."""
    rows = []
    for c in WINDOWS:
        cells = [str(c)]
        for condition in ("noise", "drift"):
            own, one = (of_window(each, condition, STEPS[0]) for each in (c, 1))
            cells += [f"{own.change / one.change:.3f}", f"{own.error:.4f}"]
        rows.append(cells)
    head = (
        "c",
        "noise: square of a change",
        "noise: error",
        "drift: square of a change",
        "drift: error",
    )
    return table(head, rows)


def noise_and_drift(trace: Trace, page: str) -> str:
    """Error of Delta and of Titans of the same total step, under noise, drift and both."""
    rows = []
    for condition in CONDITIONS:
        for step in STEPS:
            own = [of_momentum(m, condition, step) for m in (0.0, *MOMENTA)]
            changes = [f"{each.change / own[0].change:.3f}" for each in own[1:]]
            rows.append([condition, f"{step:g}", *(f"{each.error:.4f}" for each in own), *changes])
    titans = [f"Titans, momentum {m:g}" for m in MOMENTA]
    changes = [f"square of a change, momentum {m:g}" for m in MOMENTA]
    return table(("stream", "total step", "Delta", *titans, *changes), rows)


def stored(keys: Any) -> float:
    """The largest error of a recall after the Delta rule wrote pairs with these keys once, step 1."""
    n = len(keys)
    values = np.random.default_rng(3).standard_normal((n, WIDTH))
    config = delta.Config(**square({}))
    tokens = Tokens(k=keys, v=values, q=keys, retain=np.ones(n), step_size=np.ones(n))
    state, _ = sequence.run(delta.RULE, config, tokens, delta.start(config))
    return float(np.max(np.linalg.norm(keys @ state.M.T - values, axis=-1)))


def keys_of(n: int, kind: str) -> Any:
    """Unit keys: those of an orthonormal basis in turn, or in random directions."""
    random = np.random.default_rng(4).standard_normal((4 * WIDTH, WIDTH))
    if kind == "orthonormal":
        return np.resize(np.linalg.qr(random[:WIDTH])[0], (n, WIDTH))
    return random[:n] / np.linalg.norm(random[:n], axis=-1, keepdims=True)


PAIRS = (1, WIDTH // 2, WIDTH, WIDTH + 1, 2 * WIDTH)


def stored_pairs(trace: Trace, page: str) -> str:
    """Worst recall by number of pairs, keys orthonormal and not."""
    kinds = ("orthonormal", "random")
    rows = [[str(n), *(f"{stored(keys_of(n, kind)):.1e}" for kind in kinds)] for n in PAIRS]
    return table(("pairs", "orthonormal keys", "keys in random directions"), rows)


TABLES = (noise_of_windows, noise_and_drift, stored_pairs)
