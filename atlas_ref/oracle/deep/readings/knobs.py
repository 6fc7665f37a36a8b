"""Attentional biases and retentions that a deep memory is identified with (DEEPCASE-14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.settings import rank
from atlas_ref.parts.biases import Bias
from atlas_ref.parts.deep_momentum import DeepMomentum
from atlas_ref.parts.retentions import READ_BY, Retention

SIDES: tuple[Any, ...] = ("matrix", "row", "column")
LINKS: tuple[Any, ...] = ("printed", "dual", "mirror")

#: Attentional biases that are tried: every kind with every open reading (DEEP-26).
BIASES: tuple[Bias, ...] = (
    Bias(),
    *(Bias(kind="l1", smoothing=each) for each in ("tanh", "root", "none")),
    *(
        Bias(kind="lp", power=power, smoothing=each)
        for power in (1.5, 3.0, 4.0)
        for each in ("tanh", "root", "none")
    ),
    *(
        Bias(kind="huber", form=form, quadratic=quadratic, smoothing=each)
        for form in ("coordinate", "mixture")
        for quadratic in ("half", "whole")
        for each in ("tanh", "root", "none")
    ),
    *(Bias(kind="huber", form="norm", quadratic=each) for each in ("half", "whole")),
    *(Bias(kind="kl", targets=each) for each in ("softmax", "given")),
)

#: Values of the settings of the bias of a case.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "power": (1.0, 1.5, 2.0, 2.5, 3.0, 4.0),
    "sharpness": (1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0),
    "eps": (1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3),
    "threshold": (0.1, 0.5, 1.0, 2.0, 5.0),
    "form": ("coordinate", "norm", "mixture"),
    "quadratic": ("half", "whole"),
}

#: Retentions that are tried: every kind with every open reading (DEEP-30).
RETENTIONS: tuple[Retention, ...] = (
    Retention(),
    *(Retention(kind=each, over=over) for each in ("kl", "sphere") for over in SIDES),
    *(Retention(kind=each, threshold=t) for each in ("elastic_net", "ftrl") for t in (1e-3, 1e-2)),
    *(Retention(kind="lq", power=q, link=each) for q in (1.5, 4.0) for each in LINKS),
)

#: Values of the settings of the retention of a case.
RETAINED: dict[str, tuple[Any, ...]] = {
    "threshold": (1e-4, 1e-3, 1e-2, 0.1),
    "over": SIDES,
    "size": (1.0, 2.0),
    "power": (1.5, 2.0, 3.0, 4.0),
    "link": LINKS,
}

#: Objectives of a network in the place of the momentum, and its activations.
OBJECTIVES: tuple[Any, ...] = ("l2", "dot", "ones")
ACTIVATIONS: tuple[Any, ...] = ("gelu", "gelu_tanh", "silu")


def biases(context: DeepContext) -> Sequence[Bias]:
    """Every kind and every open reading of it, with the numbers of the case where it has them."""
    own = context.settings.bias
    return [
        *(each for each in BIASES if each.kind != "kl" or context.settings.c.value_sign == "minus"),
        *_numbers(own, given="in/threshold" in context.inputs),
    ]


def _numbers(own: Bias, *, given: bool) -> list[Bias]:
    """The bias of a case with other numbers, and other readings with its numbers.

    Args:
        given: whether tokens bring their thresholds, so that the number has no effect (DEEP-36).
    """
    read = {name: NUMBERS[name] for name in own.reads}
    if own.kind == "huber":
        read |= {name: NUMBERS[name] for name in ("threshold", "form", "quadratic")}
        read = {name: values for name, values in read.items() if name != "threshold" or not given}
    if own.kind == "lp":
        read["power"] = NUMBERS["power"]
    changed = []
    for name, values in read.items():
        for value in values:
            fields = own.model_dump() | {name: value}
            if name == "form" and value == "norm":
                fields = {each: fields[each] for each in ("kind", "form", "threshold", "quadratic")}
            changed.append(Bias(**fields))
    return changed


def retentions(context: DeepContext) -> Sequence[Retention]:
    """Every kind and every open reading of it, and those of the case's own with other numbers."""
    own = context.settings.retention
    every = [each for each in RETENTIONS if not each.positive or _has_logarithms(context)]
    fields = own.model_dump()
    for name, values in RETAINED.items():
        if own.kind in READ_BY[name]:
            every += [Retention(**fields | {name: value}) for value in values]
    c = context.settings.c
    if own.kind == "kl" and c.reference == "chunk_start" and c.read != "chunk_start":
        every += [own.replaced(lag=each) for each in (False, True)]
    return every if any(rank(name) == 2 for name in context.settings.fast) else ()


def momenta(context: DeepContext) -> Sequence[DeepMomentum]:
    """The network of a case under every objective, and with other activations (DEEP-38)."""
    own = context.settings.deep_momentum
    if own is None:
        return ()
    every = [own.replaced(objective=each) for each in OBJECTIVES]
    if own.function.kind != "linear" and own.function.depth > 1:
        functions = [own.function.replaced(activation=each) for each in ACTIVATIONS]
        every += [own.replaced(function=each) for each in functions]
    return every


def _has_logarithms(context: DeepContext) -> bool:
    """Whether no weight of a matrix that is written is below 0."""
    prefixes = ("in/memory/", "in/state/weights/", "in/state/reference/")
    names = [
        f"{prefix}{name}"
        for prefix in prefixes
        for name in context.settings.fast
        if rank(name) == 2
    ]
    return all(
        bool((context.inputs[name] >= 0.0).all()) for name in names if name in context.inputs
    )
