"""Mistakes in what comes before the rule: computed gates, projections and feature maps (VEC-16)."""

from __future__ import annotations

from collections.abc import Callable

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.mistake import Mistake, Results, Seen
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.types import Array
from tape import ops

BIASES = ("in/param/b_retain", "in/param/b_momentum", "in/param/b_step_size")
WEIGHTS = ("in/param/W_retain", "in/param/W_momentum", "in/param/W_step_size")


def _each(names: tuple[str, ...], change: Callable[[Array], Array]) -> Callable[[Results], Results]:
    return lambda tensors: (
        tensors | {name: change(tensors[name]) for name in names if name in tensors}
    )


def _always(at: Seen) -> bool:
    return True


def _values_first(tensors: Results) -> Results:
    """Weights of gates for [v; k] in place of [k; v]."""
    d_in = tensors["in/param/W_K"].shape[-2]
    return _each(WEIGHTS, lambda W: ops.concatenate([W[..., d_in:], W[..., :d_in]], axis=-1))(
        tensors
    )


def _swap(tensors: Results) -> Results:
    return tensors | {
        "in/param/W_K": tensors["in/param/W_Q"],
        "in/param/W_Q": tensors["in/param/W_K"],
    }


TOKENS: tuple[Mistake, ...] = (
    Mistake(
        "gate bias ignored",
        "computed gates have no bias",
        _always,
        tensors=_each(BIASES, ops.zeros_like),
    ),
    Mistake(
        "gate weights ignored",
        "computed gates are their biases",
        _always,
        tensors=_each(WEIGHTS, ops.zeros_like),
    ),
    Mistake("gates read [v; k]", "gates read values first", _always, tensors=_values_first),
    Mistake("keys and queries swapped", "W_K makes queries and W_Q keys", _always, tensors=_swap),
    Mistake(
        "window logits ignored",
        "every lag has the same weight",
        _always,
        tensors=_each(("in/param/window_logits",), ops.zeros_like),
    ),
    Mistake(
        "window logits reversed",
        "logits by lag are read from the oldest",
        _always,
        tensors=_each(("in/param/window_logits",), lambda x: ops.flip(x, -1)),
    ),
)


MAPS: tuple[Mistake, ...] = (
    Mistake("map of the negative", "phi(-x)", _always, tensors=_each(("in/x",), lambda x: -x)),
    Mistake("map of half", "phi(x / 2)", _always, tensors=_each(("in/x",), lambda x: 0.5 * x)),
    Mistake(
        "map of components reversed",
        "phi of x from its last component",
        _always,
        tensors=_each(("in/x",), lambda x: ops.flip(x, -1)),
    ),
    *(
        Mistake(
            f"{name} ignored",
            f"the map takes {name} for zero",
            _always,
            tensors=_each((f"in/phi/{name}",), ops.zeros_like),
        )
        for name in ("W", "b", "W1", "W2")
    ),
    Mistake(
        "W transposed",
        "the map multiplies by W from the other side",
        _always,
        tensors=_each(("in/phi/W",), lambda W: W.swapaxes(-1, -2)),
    ),
)


def mistakes(case: Case) -> list[Mistake]:
    """Mistakes that can be made in a case: of tensors that it has, and of matrices that are
    square.
    """
    subject = SUBJECTS[case.header.rule]
    listed = (
        TOKENS
        if case.header.level == "token"
        else MAPS
        if subject.has_feature_map and not subject.has_tokens
        else ()
    )
    return [each for each in listed if _made_in(each.name, case)]


def _made_in(name: str, case: Case) -> bool:
    words = name.split()
    tensor = case.inputs.get(f"in/phi/{words[0]}")
    if words[0] in ("W", "b", "W1", "W2"):
        return tensor is not None and (
            words[1] == "ignored" or (tensor.ndim > 1 and tensor.shape[-1] == tensor.shape[-2])
        )
    if words[0] == "window":
        return "in/param/window_logits" in case.inputs and case.header.window > 1
    return True
