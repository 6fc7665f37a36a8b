"""Gates of Kimi Delta Attention in flash-linear-attention: their arguments and parameters.

Specified in specs/layer_cases.md (LAYER-23).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atlas_ref.layers import log_gate
from atlas_ref.models.atlas_rnn import Constants, Module
from atlas_ref.models.public.names import Name, Table
from atlas_ref.types import Count, Frozen


class KdaGate(Frozen):
    """Arguments of the gates of a KDA layer (LAYER-23).

    Attributes:
        heads, head_dim: value heads, and channels of each.
        lower_bound: of a bounded gate; None for that of softplus.
    """

    heads: Count
    head_dim: Count
    lower_bound: Annotated[float, Field(lt=0, allow_inf_nan=False)] | None = None


def sizes(settings: KdaGate) -> dict[str, int]:
    """Length of each axis, by the word for it."""
    heads, d = settings.heads, settings.head_dim
    return {"heads": heads, "head_dim": d, "heads*head_dim": heads * d}


def names(settings: KdaGate | None) -> Table:
    """Parameters by the names of the code."""
    return {"A_log": Name("heads", ".log_rate"), "dt_bias": Name("heads*head_dim", ".bias")}


def config(settings: KdaGate, eps: float, constants: Constants) -> log_gate.Config:
    """The gates of the code's arguments."""
    return log_gate.Config(
        heads=settings.heads, d_head=settings.head_dim, lower_bound=settings.lower_bound
    )


MODULE = Module(log_gate, KdaGate, sizes, names, config)
