"""Which values of the younger axes of a deep memory are mutants (VEC-26).

They are mutants of the targets that have such an axis, and of no older target, whose kills do not
change (VEC-22).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.identify.readings import nodes
from atlas_ref.parts.biases import Bias

#: Settings that are younger than the first targets of deep memories.
YOUNGER = ("parameters.bias", "parameters.retention", "parameters.deep_momentum")

#: Settings that another value of these settles too: a sign that is not smooth has no sharpness.
SETTLING = {"smoothing": ("sharpness", "eps"), "form": ("smoothing", "sharpness", "eps")}

#: Tensors that hold weights of a simplex.
WEIGHTS = ("in/memory/", "in/state/weights/", "in/state/reference/")

#: Settings that bfloat16 lets pass, and those that it lets pass where a power hides the sign.
FINE, OF_SIGN = frozenset({"eps"}), frozenset({"smoothing", "sharpness"})


def tried(setting: Any) -> bool:
    """Whether a value of a younger axis is a mutant: one step from that of a case that has the axis.

    A step is another kind with its defaults, or another value of one setting of the kind.
    """
    ((name, value),) = setting.change.items()
    own = setting.before[name]
    if name == "parameters.deep_momentum":
        return True  # tried in cases alone that have a network
    if own == {"kind": "l2"}:
        return False
    if own["kind"] != value["kind"]:
        return bool(value.keys() == {"kind"})
    flat = name == "parameters.bias" and _flat(Bias.model_validate(own))
    return _one(own, value, FINE | OF_SIGN if flat else FINE)


def shown(mistake: Any, case: Any) -> bool:
    """Whether a mistake can be told from the rule in a case, also at bfloat16."""
    bias = Bias.model_validate((case.header.parameters or {}).get("bias", {}))
    if mistake.name == "sign of the error held fixed":
        return not _flat(bias)
    return mistake.name != "residual clipped" or not _saturated(bias)


def redrawn(case: Any) -> Any:
    """A case with other numbers in the place of its own, but weights of 0 on a simplex."""
    others = nodes.redrawn(case.inputs)
    if (case.header.parameters or {}).get("retention", {}).get("kind") == "kl":
        weights = (name for name in others if name.startswith(WEIGHTS))
        others |= {name: np.where(case.inputs[name] == 0.0, 0.0, others[name]) for name in weights}
    return case.replaced(inputs=others)


def _flat(bias: Bias) -> bool:
    """Whether the slope of a bias is small where its sign is not that of the error."""
    return bias.kind == "lp" and bias.power >= 2.0


def _saturated(bias: Bias) -> bool:
    """Whether an error above 1 has the slope of an error of 1: by a sign that is 1 there."""
    sign = bias.smooths and bias.smoothing != "root" and bias.threshold <= 1.0
    return bias.kind == "huber" and sign


def _one(own: Mapping[str, Any], value: Mapping[str, Any], fine: frozenset[str]) -> bool:
    """Whether one setting differs, beside those that it settles, and none that is fine."""
    apart = {name for name in {*own, *value} if own.get(name) != value.get(name)}
    for name, settled in SETTLING.items():
        if name in apart:
            apart -= {*settled}
    return len(apart) == 1 and not apart & fine
