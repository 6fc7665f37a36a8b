"""Blocks by name: fast Titans with slow Omega, and Delta at every level.

Specified in specs/cms.md (CMS-14).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from atlas_ref.levels.block import Config
from atlas_ref.levels.level import Level
from atlas_ref.levels.pulse import PERIODS
from atlas_ref.rules import delta, omega, titans_lmm


def fast_titans_slow_omega(
    *,
    d_model: int,
    d_in: int,
    d_out: int,
    heads: int = 1,
    periods: Sequence[int] = PERIODS,
    window: int = 8,
    **settings: Any,
) -> Config:
    """Titans at the faster half of the levels, Omega with its window at the slower half.

    A window costs c times as much per write, which levels that write rarely can afford. Source:
    Omega spec, note 5.

    Args:
        settings: of the block: combine, first_step, per, call_tokens.
    """
    sizes: dict[str, Any] = {"d_model": d_model, "d_in": d_in, "d_out": d_out, "heads": heads}
    fast, slow = titans_lmm.Config(**sizes), omega.Config(**sizes, window=window)
    middle = (len(periods) + 1) // 2
    ordered = sorted(periods)
    levels = [
        Level(config=fast if i < middle else slow, period=period)
        for i, period in enumerate(ordered)
    ]
    return Config(levels=tuple(levels), **settings)


def all_delta(
    *,
    d_model: int,
    d_in: int,
    d_out: int,
    heads: int = 1,
    periods: Sequence[int] = PERIODS,
    **settings: Any,
) -> Config:
    """The delta rule at every level: the least state, no window.

    Args:
        settings: of the block: combine, first_step, per, call_tokens.
    """
    rule = delta.Config(d_model=d_model, d_in=d_in, d_out=d_out, heads=heads)
    return Config(
        levels=tuple(Level(config=rule, period=period) for period in sorted(periods)), **settings
    )


PRESETS: dict[str, Callable[..., Config]] = {
    "fast-titans-slow-omega": fast_titans_slow_omega,
    "all-delta": all_delta,
}
