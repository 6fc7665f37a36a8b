"""Layers: projections around a rule, and what stands beside it in a model.

A layer is a module with `Config`, `Params`, `State`, `init`, `start` and `apply` (NORM-2).
"""

from __future__ import annotations

#: Modules of this folder that are layers of tokens or of heads.
LAYERS = ("norm", "rotary", "convolution", "feed_forward", "attention", "memory", "neural_memory")
