"""Mean cross-entropy of logits as one opaque block; plain twin:
`models.language_model.plain_cross_entropy`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`). With the plain twin alone it takes 1.03 times as long. Specified in
specs/language_model.md (MODEL-5).

With z the logits, Z = sum exp(z): loss = mean (log Z - z_target), dz = (exp(z) / Z - [target]) /
rows
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.engine.layers.support import block_or_plain, flat
from atlas_ref.types import Array


def block(plainly: Callable[..., Any], targets: np.ndarray[Any, Any]) -> Callable[..., Any]:
    """A function of logits (..., V) to the mean over all rows.

    Args:
        plainly: the same in tape ops.
        targets: an id for each row.
    """

    def forward(logits: Array) -> tuple[Array, Any]:
        rows = flat(logits)
        each, ids = np.arange(len(rows)), targets.reshape(-1)
        best = np.argmax(rows, axis=-1)
        top, chosen = rows[each, best], rows[each, ids]
        e = rows - top[:, None]
        np.exp(e, out=e)
        e[each, best] = 0.0  # apart, so that a small rest keeps its precision
        rest = np.sum(e, axis=-1)
        loss = np.mean(top - chosen + np.log1p(rest))
        return loss, (e, each, best, ids, rest, logits.shape)

    def backward(residuals: Any, g: Array) -> tuple[Array]:
        e, each, best, ids, rest, shape = residuals
        p = e * (1.0 / (1.0 + rest))[:, None]
        p[each, best] = 1.0 / (1.0 + rest)
        at_top = best == ids
        p[each, ids] -= 1.0
        p[each[at_top], ids[at_top]] = -(rest / (1.0 + rest))[at_top]
        p *= g * (1.0 / len(p))
        return (p.reshape(shape),)

    return block_or_plain(plainly, forward, backward)
