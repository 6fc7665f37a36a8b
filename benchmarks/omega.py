"""Sequential Omega against the loop that one writes by hand, and what its gradients cost.

The bare loop is what a careful person writes in plain NumPy for one convention: keys and values
padded once, the window a view of them, M and S changed in place. It computes the same products and
sums in the same order, and what it returns is compared before anything is timed. Beside it stands
the same loop with NumPy's buffer shortened, the one trick of the driver that a loop by hand would
lack (`atlas_ref.rules.sequence`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import tape
from atlas_ref.conventions import resolve
from atlas_ref.rules import omega
from atlas_ref.rules import sequence as run
from benchmarks.measure import Row, Spread, Target, bracketed, peak_memory, relative_error
from tape import ops

Arrays = dict[str, np.ndarray[Any, Any]]

HEADS, D, WINDOW = 8, 64, 16
TOKENS, TOKENS_OF_GRADIENTS = 1024, 256
SIZES = f"{HEADS} heads, d = {D}, c = {WINDOW}"


def rows() -> list[Row]:
    """The forward pass, and forward with backward."""
    return [*_forward(), _gradients("none", samples=5), _gradients({}, samples=3)]


def sequence(tokens: int, dtype: Any = np.float32) -> Arrays:
    """Keys and queries of length one, gates about sigmoid(3), sigmoid(2) and softplus(-3), window
    weights about 1 / c.
    """
    draw = np.random.default_rng(0)
    shape = (HEADS, tokens, D)
    k, v, q = (draw.standard_normal(shape) for _ in range(3))
    arrays = {
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": v,
        "q": q / np.linalg.norm(q, axis=-1, keepdims=True),
        "retain": _sigmoid(draw.normal(3.0, 1.0, shape[:2])),
        "momentum": _sigmoid(draw.normal(2.0, 1.0, shape[:2])),
        "step_size": np.log1p(np.exp(draw.normal(-3.0, 1.0, shape[:2]))),
        "window_weights": draw.uniform(0.5, 1.5, (*shape[:2], WINDOW)) / WINDOW,
    }
    return {name: array.astype(np.float32).astype(dtype) for name, array in arrays.items()}


def _sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    sigmoid: np.ndarray[Any, Any] = 1.0 / (1.0 + np.exp(-x))
    return sigmoid


def ours(arrays: Any, newton_schulz: Any = "none") -> tuple[Any, Any, Any]:
    """M, S and y by the rule token by token, with its checks of arguments and states of every
    token.
    """
    convention = resolve({"newton_schulz": newton_schulz}, rule="omega")
    config = omega.Config(d_in=D, d_out=D, window=WINDOW, convention=convention)
    start = omega.start(config, (HEADS,), M=ops.zeros_like(arrays["k"], shape=(HEADS, D, D)))
    state, y = run.run(omega.RULE, config, run.Tokens(**arrays), start)
    return state.M, state.S, y


def bare_loop(arrays: Arrays) -> tuple[Any, Any, Any]:
    """M, S and y of the same rule in plain NumPy."""
    k, v, q = arrays["k"], arrays["v"], arrays["q"]
    heads, tokens, d = k.shape
    keys, values = _padded(k), _padded(v)
    retain, momentum, step_size = (
        arrays[name].T[..., None, None] for name in ("retain", "momentum", "step_size")
    )
    # (T, H, c, 1), oldest first
    weights = np.moveaxis(arrays["window_weights"][..., ::-1, None], 1, 0)
    M = np.zeros((heads, d, d), k.dtype)
    S = np.zeros_like(M)
    y = np.empty_like(v)
    for t in range(tokens):
        K, V = keys[:, t : t + WINDOW], values[:, t : t + WINDOW]
        E = K @ M.swapaxes(-1, -2)
        E -= V
        E *= weights[t]
        G = E.swapaxes(-1, -2) @ K
        G *= step_size[t]
        S *= momentum[t]
        S += G
        M *= retain[t]
        M -= S
        y[:, t] = (M @ q[:, t, :, None])[..., 0]
    return M, S, y


def _padded(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.zeros_like(rows[:, : WINDOW - 1]), rows], axis=1)


def _with_short_buffers(arrays: Arrays) -> tuple[Any, Any, Any]:
    with np.errstate():
        np.setbufsize(1024)
        return bare_loop(arrays)


def _forward() -> list[Row]:
    arrays, truth = sequence(TOKENS), bare_loop(sequence(TOKENS, np.float64))
    error, reference_error = (
        relative_error(ours(arrays), truth),
        relative_error(bare_loop(arrays), truth),
    )
    same = relative_error(ours(sequence(TOKENS, np.float64)), truth)
    if same > 1e-12:
        raise AssertionError(
            f"omega: the bare loop computes something else, relative difference {same:.1e} in "
            "float64"
        )

    def row(name: str, reference: Any, target: Target | None, note: str) -> Row:
        timing = bracketed(
            lambda: ours(arrays), lambda: reference(arrays), samples=9 if target else 5
        )
        return Row(
            f"Omega forward, {SIZES}, T = {TOKENS}, float32",
            "ms",
            Spread.of(timing.ours, 1e3),
            name,
            Spread.of(timing.theirs, 1e3),
            Spread.of(timing.ratio),
            target,
            error,
            reference_error,
            note,
        )

    return [
        row("bare loop", bare_loop, Target("at most", 1.3), "CPU time, one thread"),
        row(
            "bare loop, short buffers",
            _with_short_buffers,
            None,
            "the reference with the driver's buffer size",
        ),
    ]


def _gradients(newton_schulz: Any, *, samples: int) -> Row:
    """Forward and backward, of a weighted sum of the reads by every input, against forward
    alone.
    """
    arrays, exact = sequence(TOKENS_OF_GRADIENTS), sequence(TOKENS_OF_GRADIENTS, np.float64)
    weights = np.asarray(np.random.default_rng(1).standard_normal(arrays["v"].shape), np.float32)

    def forward(arrays: Any) -> tuple[Any, ...]:
        return ours(arrays, newton_schulz)

    def gradient(arrays: Arrays) -> list[Any]:
        return list(
            tape.grad(lambda inputs: ops.sum(weights * forward(inputs)[2]))(arrays).values()
        )

    timing = bracketed(lambda: gradient(arrays), lambda: forward(arrays), samples=samples)
    peaks = [peak_memory(partial(work, arrays)) for work in (gradient, forward)]
    return Row(
        f"Omega forward and backward, {SIZES}, T = {TOKENS_OF_GRADIENTS}, float32"
        + (", without Newton-Schulz" if newton_schulz == "none" else ", with Newton-Schulz"),
        "ms",
        Spread.of(timing.ours, 1e3),
        "forward alone",
        Spread.of(timing.theirs, 1e3),
        Spread.of(timing.ratio),
        error=relative_error(gradient(arrays), gradient(exact)),
        reference_error=relative_error(forward(arrays), forward(exact)),
        note=f"CPU time; memory grows by {peaks[0]:.0f} MB, forward alone by {peaks[1]:.0f} MB",
    )
