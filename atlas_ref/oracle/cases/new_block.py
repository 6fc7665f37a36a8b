"""Make cases of frequency levels: the schedule of one memory, or a block of levels.

The levels of a block are made like cases of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, parse_header
from atlas_ref.oracle.cases.tensor_spec import BLOCK
from atlas_ref.oracle.drawing import starts
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.new import Request

#: Periods of a block that names none, and its levels: fast Titans with slow Omega.
PERIODS = (1, 8, 64, 512)
LEVELS = (
    {"rule": "titans_lmm"},
    {"rule": "titans_lmm"},
    {"rule": "omega", "window": 4},
    {"rule": "omega", "window": 4},
)

#: How far apart the seeds of two levels are.
SEEDS = 2**32


def schedule(request: Request, *, name: str) -> dict[str, Any]:
    """The header key `schedule` of one memory; empty where the request names no periods.

    Raises:
        CaseError: a request that says twice when the memory writes.
    """
    of_block = {
        "levels": bool(request.levels),
        "combine": request.combine != "softmax",
        "nested": request.nested,
        "learned": request.learned,
    }
    for key, asked in of_block.items():
        if asked:
            raise CaseError(f"{name}: {key}: belongs to rule {BLOCK}")
    if not request.periods:
        if request.first_step or request.schedule_level:
            raise CaseError(
                f"{name}: {'first_step' if request.first_step else 'schedule_level'}: needs periods"
            )
        return {}
    if request.pulse > 1:
        raise CaseError(
            f"{name}: pulse and periods both say when the memory writes; one of them is needed"
        )
    fields = {
        "periods": list(request.periods),
        "level": request.schedule_level,
        "first_step": request.first_step,
    }
    return {"schedule": fields}


def block(
    request: Request, new: Callable[..., Case], *, name: str
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and random inputs of a block of levels.

    Args:
        new: makes the case of one level.

    Raises:
        CaseError: what a block does not have, or in the words of one of its levels.
    """
    for key, plain in (
        ("window", 1),
        ("span", None),
        ("convention", "spec"),
        ("feature_map", {}),
        ("window_weights", {}),
    ):
        if getattr(request, key) != plain:
            raise CaseError(f"{name}: {key}: rule {BLOCK} has it for each level, in levels")
    if request.pulse > 1 or request.schedule_level:
        raise CaseError(
            f"{name}: {'pulse' if request.pulse > 1 else 'schedule_level'}: rule {BLOCK} has "
            "all levels, each with its period"
        )
    settings = [
        {"rule": each} if isinstance(each, str) else dict(each) for each in request.levels or LEVELS
    ]
    periods = request.periods or PERIODS[: len(settings)]
    fields: dict[str, Any] = {"schema": 1, "rule": BLOCK, "level": "token", "levels": settings}
    fields["schedule"] = {"periods": list(periods), "first_step": request.first_step}
    if request.combine != "softmax":
        fields["combine"] = request.combine
    if request.nested:
        fields["nested"] = True
    if request.learned:
        fields["schedule"]["learned"] = {}
    parse_header(fields, name=name)
    draw = np.random.Generator(np.random.Philox(request.seed))
    shape = (request.batch, request.heads, request.tokens, request.d_out)
    tensors: dict[str, Array] = {
        "in/x": draw.standard_normal((request.batch, request.tokens, request.d_model)),
        "in/logits": draw.standard_normal(len(settings)),
    }
    if (first := starts(request)) is not None:
        tensors["in/reset"] = first
    if request.cotangent:
        tensors["in/y_bar"] = draw.standard_normal(shape)
    if request.learned:
        tensors |= _gates(draw, tensors["in/x"], len(settings))
    for number, own in enumerate(settings):
        tensors |= _level(request, own, number, new, f"{name}: levels[{number}]")
    return fields, tensors


def _gates(draw: np.random.Generator, x: Array, levels: int) -> dict[str, Array]:
    """Gates of a learned schedule that open at some tokens, none of them near the threshold.

    The bias puts the threshold into the widest gap of the middle half of W_l x_t.
    """
    W = draw.standard_normal((levels, x.shape[-1]))
    values = np.sort((x.reshape(-1, x.shape[-1]) @ W.T).T, axis=-1)  # (levels, rows)
    rows = values.shape[-1]
    if rows == 1:
        return {"in/param/W_active": W, "in/param/b_active": 1.0 - values[:, 0]}
    low = rows // 4
    middle = values[:, low : max(rows - low, low + 2)]
    at = np.argmax(np.diff(middle, axis=-1), axis=-1)[:, None]
    edges = [np.take_along_axis(middle, at + i, axis=-1)[:, 0] for i in (0, 1)]
    return {"in/param/W_active": W, "in/param/b_active": -(edges[0] + edges[1]) / 2.0}


def _level(
    request: Request, own: dict[str, Any], number: int, new: Callable[..., Case], name: str
) -> dict[str, Array]:
    """Parameters and memories of one level, under its place in the block."""
    shared = (
        "tokens",
        "d_in",
        "d_out",
        "heads",
        "d_model",
        "batch",
        "state",
        "per_dimension_gates",
        "features",
    )
    sizes = {key: getattr(request, key) for key in shared}
    settings = {key: value for key, value in own.items() if key != "phase"}  # which draws nothing
    history = min(request.history, own.get("window", 1) - 1)
    level_request = type(request)(
        **{
            **sizes,
            "level": "token",
            "seed": request.seed + SEEDS * (number + 1),
            "history": history,
            **settings,
        }
    )
    inputs = new(level_request, name=name).inputs
    return {
        f"in/level{number}/{key.removeprefix('in/')}": value
        for key, value in inputs.items()
        if key != "in/x"
    }
