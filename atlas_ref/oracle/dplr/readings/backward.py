"""Mistakes in the gradients of a program of rule dplr, as data (DPLRCASE-10)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.dplr.members import RATES
from atlas_ref.oracle.dplr.readings import of_formulas, wraps
from atlas_ref.oracle.program import changes
from atlas_ref.oracle.program.reading import Reading
from tape import ops


def constants(context: DplrContext) -> Iterator[Reading]:
    """Readings in which a part of the backward pass is a constant."""
    if name := context.gate:
        yield wraps.constant_reading("gate", "no gradient went through the gate")
        if (
            context.settings.gate_formula is None
            and name == "in/log_retain"
            and np.isfinite(context.inputs[name]).all()
        ):
            words = "the gradient of in/log_retain was that of the gate"
            yield wraps.constant_reading("log", words)
    if context.erases:
        yield wraps.constant_reading("erase", "no gradient went through what the erase found")
        yield wraps.constant_reading("erase_read", "no gradient went to what the erase read with")
    if "l2" in (context.settings.norm("in/q"), context.settings.norm("in/k")):
        yield wraps.constant_reading(
            "norm", "the length in the norm of keys and queries was a constant"
        )
    if context.tokens > 1:
        yield wraps.constant_reading(
            "memory", "no gradient went from a token to the memory before it"
        )
    if context.settings.of.second == "z":
        yield wraps.constant_reading(
            "normaliser", "no gradient went through what reads are divided by"
        )
    if context.settings.of.second == "S" and context.tokens > 1:
        yield wraps.constant_reading(
            "momentum", "no gradient went from a token to the momentum before it"
        )
    if context.settings.of.second == "A":
        yield wraps.constant_reading(
            "preconditioner", "no gradient went through what keys are preconditioned by"
        )
    if context.settings.groups > 1:
        yield wraps.constant_reading(
            "heads", "keys and queries had the gradient of the first value head of a group"
        )
    yield from _drops(context)


def _drops(context: DplrContext) -> Iterator[Reading]:
    """Gradients that a tensor does not get, or that do not end where they should."""
    kind = context.settings.of.erase
    names = ("alpha", "beta") if kind == "alpha" else RATES.get(kind, ())
    yield from of_formulas.constants(context)
    for name in (*names, "erase_scale", "bonus", "M0"):
        if f"in/{name}" in context.inputs and not (
            name == "beta" and context.settings.beta_formula
        ):
            change = changes.change_tensor(f"in/{name}", ops.stop_gradient)
            words = f"no gradient went to in/{name}"
            yield Reading(f"{name} held", words, grad=True, inputs=change)
    if "in/M_bar" in context.inputs:
        yield wraps.constant_reading("last", "no gradient came from out/M")
    if "in/reset" in context.inputs:
        yield wraps.constant_reading(
            "reset", "gradients went through a reset to the tokens before it"
        )
    if context.settings.scale != 1 and context.settings.of.second != "z":
        yield wraps.constant_reading("scale", "the gradient of in/q lacked the scale")
