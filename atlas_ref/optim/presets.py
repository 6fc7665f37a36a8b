"""Groups as sources have them: what public code trains with, and matrices apart from the rest.

Specified in specs/optim.md (OPTIM-32, OPTIM-33).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas_ref.optim import adamw, clip
from atlas_ref.optim.groups import Config, Group
from atlas_ref.optim.matrices import MatrixSettings
from atlas_ref.optim.schedule import Schedule

#: Parameters that are no hidden matrices, whatever their shape (OPTIM-32).
TABLES = (
    "embedding*",
    "head",
    "*persistent*",
    "*norm*",
    "*conv*",
    "*gate*",
    "*.logits",
    "*.phi.*",
    "*.window.*",
    "*.initial.*",
    "*.projection.keys",
)
#: Matrices whose rows are the model's axis and whose columns are heads times theirs.
OUTPUTS = ("*.W_out",)

#: The preset of a shared memory under which public code trains no weights of it.
ATLAS_MAG = "atlas-mag"

#: Weights of memories that learn inside a forward and are given to no optimiser; gates of tokens and
#: keys that are learnt beside them are given to one (OPTIM-33).
MEMORIES = Group(name="memory", optimiser=None, names=("*.memory.phi.*",))


def atlas_mag(*, rate: float = 3e-4, schedule: Schedule | None = None) -> Config:
    """Atlas-MAG's training: AdamW for all but weights of memories, which learn at test time
    (OPTIM-33).

    Args:
        schedule: constant where none is given; that code warms up and then falls by a cosine.
    """
    schedule = Schedule() if schedule is None else schedule
    rule = adamw.Config(rate=rate, schedule=schedule, b2=0.95, decay=0.1)
    return Config(
        groups=(MEMORIES, Group(name="adamw", optimiser=rule)),
        clip=clip.Config(limit=1.0, eps=1e-6),
    )


def atlas_rnn(*, rate: float = 1e-3, schedule: Schedule | None = None) -> Config:
    """Atlas-RNN's training: AdamW for all parameters (OPTIM-33)."""
    schedule = Schedule() if schedule is None else schedule
    rule = adamw.Config(rate=rate, schedule=schedule, b2=0.99, decay=0.01)
    return Config(
        groups=(Group(name="adamw", optimiser=rule),), clip=clip.Config(limit=1.0, eps=1e-6)
    )


def matrices(
    hidden: MatrixSettings,
    others: adamw.Config,
    *,
    limit: float | None = None,
) -> Config:
    """Hidden matrices to an optimiser of matrices; embeddings, heads, norms, gates, convolutions
    and vectors to AdamW (OPTIM-32).

    Args:
        hidden: of hidden matrices; those that lead back to the model take it with `axes: columns`.
        limit: of the norm of all gradients; None for no clipping.
    """
    columns: Any = type(hidden)(**{**hidden.__dict__, "axes": "columns"})
    groups = (
        Group(name="outputs", optimiser=columns, names=OUTPUTS, but=TABLES, matrices=True),
        Group(name="hidden", optimiser=hidden, but=TABLES, matrices=True),
        Group(name="others", optimiser=others),
    )
    return Config(groups=groups, clip=None if limit is None else clip.Config(limit=limit))


def by_level(periods: Sequence[int], rule: Any, others: Any) -> Config:
    """Each level's parameters by its period, all others at every step (OPTIM-33).

    Args:
        periods: of the levels.
        rule: settings of the levels' optimiser; each level counts its own updates.
        others: of the rest.
    """
    levels = tuple(
        Group(name=f"level {i}", optimiser=rule, names=(f"*.levels.{i}.*",), period=period)
        for i, period in enumerate(periods)
    )
    return Config(groups=(*levels, Group(name="others", optimiser=others)))
