"""Kernels behind the adapter that users copy, as a sweep takes them by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import fla_kernel

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "adapters"))
import kernels


def of_heads(*, g: Any, **others: Any) -> Any:
    """A kernel of one gate a head."""
    return fla_kernel.kda(g=np.repeat(g[..., None], others["k"].shape[3], axis=-1), **others)


kda = kernels.Kernel(fla_kernel.kda, kernels.KDA, member="kda", grouped=True)
gated_delta = kernels.Kernel(of_heads, kernels.KDA, member="gated_delta", channels=False)
