"""Settings of a case of a TNT without effect, and features that it has (TNTCASE-6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from atlas_ref.conventions import resolve, void_axes
from atlas_ref.forms import tnt
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.tnt import parameters


def reasons(header: Any, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Axes and parameters that were chosen and cannot matter, each with its reason."""
    d_in, d_out = inputs["in/k"].shape[-1], inputs["in/v"].shape[-1]
    made = parameters.config(header, d_in, d_out)
    rule = made.memories[0].rule.name
    own, default = parameters.convention(header), resolve("spec", rule=rule)
    gated = any(name.endswith("window_gate") for name in inputs)
    each = [
        void_axes(
            memory.run_config.convention,
            rule=rule,
            window=parameters.parse(header).window,
            span=memory.run_config.span,
            tokens=inputs["in/k"].shape[-2],
            gated=gated,
            shape=(d_out, d_in),
        )
        for memory in made.memories
    ]
    axes = {axis: why for axis, why in each[0].items() if all(axis in one for one in each)}
    axes["layout"] = "matrices of a TNT have one layout"
    chosen = {
        axis: why
        for axis, why in axes.items()
        if axis not in parameters.SET and attrgetter(axis)(own) != attrgetter(axis)(default)
    }
    for i, local in enumerate(made.local_memories):
        chosen |= _of_local(f"parameters.locals.{i}", local)
    return chosen


def _of_local(where: str, local: tnt.Local) -> dict[str, str]:
    """Settings of a local memory that cannot matter (TNT-5, TNT-9)."""
    p, default = local.projection, tnt.Projection()
    void = {}
    if p.kind in ("none", "learned"):
        words = f"kind {p.kind} sums no keys"
        void = dict.fromkeys(("range", "window", "own", "norm"), words)
    elif p.kind == "orthogonal":
        void["norm"] = "kind orthogonal takes unit vectors"
    if p.kind != "orthogonal":
        void["dependent"] = "it belongs to kind orthogonal"
    found = {
        f"{where}.projection.{name}": why
        for name, why in void.items()
        if getattr(p, name) != getattr(default, name)
    }
    if local.chunk_origin == "document" and local.shard % local.span == 0:
        found[f"{where}.chunk_origin"] = "a chunk starts at every reset"
    if not local.writes:
        idle = {"base": "chunk_start", "reset": "before_write", "reset_momentum": "zero"}
        found |= {
            f"{where}.{name}": "the memory is never written"
            for name, value in idle.items()
            if getattr(local, name) != value
        }
    return found


def features(case: Case) -> set[str]:
    """Names of the features of SRC-21 that a case has."""
    inputs, k, v = case.inputs, case.inputs["in/k"], case.inputs["in/v"]

    def ends(*names: str) -> bool:
        return any(each.rpartition("/")[2] in names for each in inputs)

    has = {
        "reset": "in/reset" in inputs,
        "heads": math.prod(k.shape[:-2]) > 1,
        "rectangular": k.shape[-1] != v.shape[-1],
        "state": ends("M0", "S0", "M"),
        "history": ends("window_k"),
        "resumed": "in/state/position" in inputs,
        "span": True,
        "window": parameters.parse(case.header).window > 1,
        "weights": ends("window_weights", "window_gate"),
        "momentum": ends("momentum"),
        "iterations": case.convention.has_newton_schulz,
    }
    return {name for name, value in has.items() if value}
