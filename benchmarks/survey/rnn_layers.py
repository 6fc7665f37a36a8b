"""Layers of atlas-rnn that do otherwise than their description, each measured by one number.

A measurement takes a system: atlas-rnn's package, ours under its preset, ours under the preset
causal. Where two of them share a number, our preset reproduces the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.layers import feed_forward, norm
from atlas_ref.models.import_atlas_rnn import Settings
from benchmarks.survey.rnn_modules import Array, Ours, Package, ours, tokens

DIM, VOCABULARY = 8, 11
HEADS = {"dim_head": 4, "heads": 2}
SIZES: dict[str, Any] = {"dim": DIM, **HEADS}
#: Tokens of most measurements.
T = 24
#: A difference below this is that of rounding.
ROUNDING = 1e-5


def apart(got: Array, want: Array) -> float:
    """The relative difference in the Frobenius norm."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def percent(size: float) -> str:
    """A relative difference in percent, to two digits; 0 for one of rounding."""
    if size < ROUNDING:
        return "0"
    return f"{100 * size:.0f} %" if size >= 0.095 else f"{100 * size:.2g} %"


def rows(one: Array, other: Array) -> list[int]:
    """Rows that differ by more than rounding."""
    size = np.abs(one - other).max(axis=(0, 2)) / np.abs(one).max()
    return [int(each) for each in np.flatnonzero(~(size < ROUNDING))]


def changed(run: Any, kind: str, s: Settings, at: int, count: int = T) -> list[int]:
    """Rows that a change of one token changes."""
    x = tokens(count, DIM)
    other = x.copy()
    other[:, at] += 1.0
    return rows(*(run.run(kind, s, [each]).last for each in (x, other)))


# -- convolution, attention ------------------------------------------------------------------------


def looks_ahead(run: Any) -> str:
    """The first of 24 rows that the last token changes, in a block of memory alone."""
    return str(changed(run, "block", Settings(**SIZES, block_type="lmm"), T - 1)[0])


def last_keys(run: Any) -> str:
    """Rows that the last of 24 tokens changes, at a window of 8."""
    return str(len(changed(run, "attention", Settings(**SIZES, window_size=8), T - 1)))


def not_finite(run: Any) -> str:
    """Rows of a float64 module that are not finite, at a window of 8."""
    double = Package("float64") if isinstance(run, Package) else run
    y = double.run("attention", Settings(**SIZES, window_size=8), [tokens(T, DIM)]).last
    return str(int((~np.isfinite(y)).any(axis=(0, 2)).sum()))


def persistent_unseen(run: Any) -> str:
    """Of 12 queries at a window of 5, those that no change of one of 3 persistent rows moves."""
    s = Settings(**SIZES, window_size=5, num_persist_mem_tokens=3)
    one, other = (
        run.run("attention", s, [tokens(12, DIM)], change).last for change in (None, _other_rows)
    )
    return str(12 - len(rows(one, other)))


def _other_rows(tensors: dict[str, Array]) -> dict[str, Array]:
    """Other persistent rows, wherever they are."""
    return {
        name: each + np.array([0.0, 0.0, 1.0])[:, None]
        for name, each in tensors.items()
        if name.endswith("persist_mem")
    }


def restarted_positions(run: Any) -> str:
    """A decoded token's row of attention, against the same row of one call."""
    return decoded(run, "attention", Settings(**SIZES), tokens(13, DIM), [12])


def decoded(run: Any, kind: str, s: Settings, x: Array, cuts: list[int]) -> str:
    calls = run.run(kind, s, np.split(x, cuts, axis=1)).last[:, -1]
    return percent(apart(calls, run.run(kind, s, [x]).last[:, -1]))


# -- memory ----------------------------------------------------------------------------------------

BARE = Settings(**SIZES, qkv_conv_kernel=None)


def depends_on_calls(run: Any) -> str:
    """A memory's results for 24 tokens, one call against token by token."""
    x = tokens(T, DIM)
    whole = run.run("memory", BARE, [x]).last
    alone = np.concatenate(run.run("memory", BARE, np.split(x, T, axis=1)).outputs, axis=1)
    return percent(apart(alone, whole))


def clamped(run: Any) -> str:
    """The largest entry of S after a call whose values are a thousand times as long."""
    S = run.run("memory", BARE, [tokens(T, DIM)], _long_values).memory
    return f"{np.abs(S).max():.3g}"


def _long_values(tensors: dict[str, Array]) -> dict[str, Array]:
    return {"to_v.weight": 1000.0 * tensors["to_v.weight"]}


def eps_of_the_dtype(run: Any) -> str:
    """The norm of a row of rms 1e-3 in float32, against that in float64."""
    x = 1e-3 * np.ones((1, 1, DIM))
    if isinstance(run, Package):
        module = run.torch.nn.RMSNorm(DIM)
        both = [
            module.to(each)(run.torch.tensor(x).to(each)).detach().double().numpy()
            for each in (run.torch.float32, run.torch.float64)
        ]
    else:
        config = norm.configured("rms", DIM, run.readings.norm_eps)
        both = [
            norm.normed(config, norm.init(config, dtype=each), x.astype(each))
            for each in (np.float32, np.float64)
        ]
    return percent(apart(*both))


def long_keys(run: Any) -> str:
    """The squared length of a normed key of 64 entries at the start."""
    x = tokens(1, 64)[:, None]
    if isinstance(run, Package):
        k = run.cells.MultiheadRMSNorm(64, 1)(run.tensor(x)).detach().double().numpy()
    else:
        c = run.readings
        config = norm.Config(
            kind=c.head_norm, d=64, heads=1, eps=c.head_norm_eps, guard=c.head_norm_guard
        )
        k = norm.normed_heads(config, norm.init(config), x)
    return f"{(k * k).sum():.3g}"


def convolution_first(run: Any) -> str | None:
    """A memory layer's result, against that of a convolution of queries, keys and values with SiLU."""
    if isinstance(run, Package):
        return None
    after = {"conv_place": "after_projection", "conv_activation": "silu"}
    other = Ours({**run.readings.model_dump(), **after}, run.rule)
    x = [tokens(T, DIM)]
    return percent(
        apart(
            other.run("memory", Settings(**SIZES), x).last,
            run.run("memory", Settings(**SIZES), x).last,
        )
    )


def persistent_apart(run: Any) -> str:
    """How far the memory of a MAG block goes when its persistent rows change."""
    s = Settings(**SIZES, num_persist_mem_tokens=3)
    one, other = (
        run.run("block", s, [tokens(T, DIM)], change).memory for change in (None, _other_rows)
    )
    return percent(apart(other, one))


# -- norms and feed-forward of models --------------------------------------------------------------


def norm_of_models(run: Any) -> str:
    """What stands before the head of a model, against RMSNorm, at the start."""
    x = tokens(T, DIM)
    if isinstance(run, Package):
        model = run.models.RNNMemoryTransformer(VOCABULARY, DIM, 1, "lmm", **HEADS)
        got = model.norm(run.tensor(x)).detach().double().numpy()
    else:
        c = run.readings
        config = norm.configured(c.model_norm, DIM, c.model_norm_eps)
        got = norm.normed(config, norm.init(config), x)
    rms = norm.configured("rms", DIM, 1e-5)
    return percent(apart(got, norm.normed(rms, norm.init(rms), x)))


def no_geglu(run: Any) -> str:
    """The result of the feed-forward called GEGLU, against one with gelu."""
    s, x = Settings(**SIZES), tokens(T, DIM)
    silu, gelu = (
        feed_forward.configured(
            ours().readings.replaced(ff_activation=each), d_model=DIM, d_inner=s.d_inner
        )
        for each in ("silu", "gelu")
    )
    config = silu
    if isinstance(run, Ours):
        config = feed_forward.configured(run.readings, d_model=DIM, d_inner=s.d_inner)
    params = feed_forward.init(silu, 0)
    got = feed_forward.apply(config, params, feed_forward.State(), x)[1]
    if isinstance(run, Package):
        module = run.models.FeedForward(DIM).to(run.dtype)
        tensors = {
            "0.weight": params.norm.weight,
            "1.weight": params.W_in,
            "1.bias": params.b_in,
            "3.weight": params.W_out,
            "3.bias": params.b_out,
        }
        module.load_state_dict(
            {
                name: run.tensor(each.reshape(module.state_dict()[name].shape))
                for name, each in tensors.items()
            }
        )
        got = module(run.tensor(x)).detach().double().numpy()
    return percent(apart(got, feed_forward.apply(gelu, params, feed_forward.State(), x)[1]))
