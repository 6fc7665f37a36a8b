"""What the cases of the linear family, of Newton-Schulz and of feature maps are drawn from.

Specified in specs/sweep.md, SWEEP-2 to SWEEP-4 and SWEEP-12.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle import drawn_axes, regimes
from atlas_ref.oracle.drawing import LONG, Arrays, Change, Drawing, Space
from atlas_ref.rules import Rule

#: Values that a case is drawn from, in the order of drawing; the first value is the plainest, and
#: shrinking leads towards it.
SPACE: dict[str, tuple[Any, ...]] = {
    "level": ("projected", "projected", "projected", "token"),
    "tokens": (1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 33),
    "d_in": (1, 2, 3, 4, 5, 7, 8),
    "d_out": (1, 2, 3, 4, 5, 7, 8),
    "heads": (1, 2, 3),
    "batch": (1, 2),
    "d_model": (3, 6),
    "window": (1, 2, 3, 4, 5, 8, 40),
    "span": (None, 1, 2, 3, 4, 8, 40),
    "history": (0, 0, 1, 3),
    "pulse": (1, 1, 1, 2, 3),
    "reset": (0, 0, 0, 4, 5),
    "per_dimension_gates": (False, False, True),
    "window_gate": (False, False, True),
    "features": (None, 1, 3, 5),
    "feature_map": ({"kind": "identity"},) * 3
    + tuple(
        {"kind": kind}
        for kind in (
            "linear",
            "random_fourier",
            "elu",
            "residual_mlp",
            "polynomial",
            "monomials",
            "elementwise",
            "sketch",
        )
    ),
    "window_weights": tuple(
        {"kind": kind} for kind in ("uniform", "ones", "decay", "softmax", "gate")
    ),
    "dtype": ("float64", "float32", "bfloat16", "float16"),
}


#: Names that a rule has no use for: one without a window, a feature map, a sequence.
_OF_WINDOWS = ("window", "window_gate", "history", "window_weights")
_OF_MAPS = ("feature_map", "features")
_OF_SEQUENCES = ("level", "tokens", "span", "pulse", "reset", "per_dimension_gates")


def of_memory(rule: Rule) -> Drawing:
    """What is drawn of a rule that has a convention and a table of tensors."""
    settings = "drawn" if rule.has_newton_schulz else "none"
    return Drawing(
        space=SPACE,
        request=partial(_request, () if rule.has_window else (*_OF_WINDOWS, *_OF_MAPS)),
        convention=partial(_convention, settings),
        regimes=regimes.SEQUENCES,
        long={"tokens": LONG},
        named=regimes.NAMED,
    )


def _request(
    idle: tuple[str, ...], fields: dict[str, Any], choices: Space, long: bool
) -> dict[str, Any]:
    """Fields of a request from drawn ones; those of a long case as it needs them."""
    chosen = fields | (_lasting(fields, choices) if long else {})
    fitting = _fitting(idle, chosen, choices)
    return {name: value for name, value in fitting.items() if value not in (None, {})}


def _lasting(fields: dict[str, Any], choices: Space) -> dict[str, Any]:
    """Fields of a long case that replace drawn ones: no rule grows under them (SWEEP-12).

    They are a preset without changes, and no feature map.
    """
    kept: dict[str, Any] = {}
    if not {"feature_map", "features"} & set(choices):
        kept |= {"feature_map": SPACE["feature_map"][0], "features": None}
    if "convention" not in choices:
        axes = fields["convention"]
        plain = {"newton_schulz": "none"} if axes.get("newton_schulz") == "none" else {}
        kept["convention"] = {key: axes[key] for key in axes if key == "preset"} | plain
    return kept


def _fitting(idle: tuple[str, ...], fields: dict[str, Any], choices: Space) -> dict[str, Any]:
    """Fields without those that this rule or level does not have.

    A field among the choices stays, so that the refusal names it.
    """
    token = fields["level"] == "token"
    idle = (*idle, *(("window_gate",) if token else ("batch", "d_model", "window_weights")))
    result = {name: value for name, value in fields.items() if name not in idle or name in choices}
    if "history" in result and "history" not in choices and isinstance(result["window"], int):
        result["history"] = min(result["history"], result["window"] - 1)
    return result


def _convention(settings: str, draw: np.random.Generator) -> dict[str, Any]:
    """A preset, or `spec`, with up to three axes changed.

    Args:
        settings: of Newton-Schulz: "none", "drawn", or "always" where it is all that there is.
    """
    preset = drawn_axes.preset(draw, 0.5)
    changes = drawn_axes.axes(draw)
    newton_schulz = drawn_axes.newton_schulz(draw)
    if settings != "none":
        idle = settings == "always" and newton_schulz == "none"
        changes["newton_schulz"] = {} if idle else newton_schulz
    return ({} if preset == "spec" else {"preset": preset}) | changes


# -- regimes of a matrix ----------------------------------------------------------------------------


def _tiny_matrix(inputs: Arrays, draw: np.random.Generator) -> None:
    inputs["in/G"] = inputs["in/G"].astype(np.float64) * 2.0**-20


def _rank_one(inputs: Arrays, draw: np.random.Generator) -> None:
    G = inputs["in/G"].astype(np.float64)
    inputs["in/G"] = G[..., :, :1] * G[..., :1, :]


def _zero_matrix(inputs: Arrays, draw: np.random.Generator) -> None:
    inputs["in/G"] = np.zeros(inputs["in/G"].shape)


_MATRICES: dict[str, Change] = {
    "ordinary": regimes.ordinary,
    "tiny": _tiny_matrix,
    "rank_one": _rank_one,
    "zero": _zero_matrix,
}

#: What is drawn of Newton-Schulz alone.
NEWTON_SCHULZ = Drawing(
    space=SPACE,
    request=partial(_request, (*_OF_WINDOWS, *_OF_MAPS, *_OF_SEQUENCES)),
    convention=partial(_convention, "always"),
    regimes=_MATRICES,
    named={"slow": regimes.slow},
)

#: What is drawn of a feature map alone.
FEATURE_MAP = Drawing(
    space=SPACE,
    request=partial(_request, (*_OF_WINDOWS, *_OF_SEQUENCES)),
    convention=partial(_convention, "none"),
    regimes={"ordinary": regimes.ordinary},
    named={"slow": regimes.slow},
)
