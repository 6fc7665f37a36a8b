"""Settings of a case of a deep memory without effect, and features that it has (DEEPCASE-8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep import parameters
from atlas_ref.oracle.deep.settings import rank
from atlas_ref.rules.deep_memory import Config


def reasons(own: Config, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Axes and parameters that were chosen and cannot matter, each with its reason (DEEPCASE-8)."""
    default = resolve("spec", rule="deep_memory")
    chosen = {
        axis: why
        for axis, why in _axes(own, inputs).items()
        if attrgetter(axis)(own.convention) != attrgetter(axis)(default)
    }
    fields = parameters.Parameters.model_fields
    return chosen | {
        f"parameters.{name}": why
        for name, why in _parameters(own, inputs).items()
        if getattr(own, name) != fields[name].default
    }


def _axes(own: Config, inputs: Mapping[str, Any]) -> dict[str, str]:
    c = own.convention
    void = {
        "layout": "tensors of a memory function have one layout",
        "norm_place": "there is no feature map",
    }
    if (c.q_norm, c.k_norm) == ("none", "none"):
        void |= dict.fromkeys(("norm_eps", "norm_guard"), "there is no norm")
    if c.gate == "none":
        void["decay"] = "nothing decays"
    if own.window == 1:
        void["window_edge"] = "the window is one token"
    elif "in/window_gate" in inputs:
        void["window_edge"] = "a missing token's weight is 0"
    if all(len(shape) < 2 for shape in own.fast_shapes.values()):
        void["newton_schulz"] = "no matrix is written"
    elif c.has_newton_schulz and c.newton_schulz_settings.coefficients != "polar_express":
        void["newton_schulz.lower_bound"] = "only polar_express reads it"
    return void


def _parameters(own: Config, inputs: Mapping[str, Any]) -> dict[str, str]:
    c, void = own.convention, {}
    if "chunk_start" not in (c.reference, c.read) or c.reference == "call_start":
        void["span"] = "nothing is refreshed by spans"
    if "in/window_weights" in inputs:
        void["window_weights"] = "in/window_weights holds the weights"
    elif own.window == 1:
        void["window_weights"] = "the window is one token"
    if own.fast in ("matrices", "mlp") or all(rank(each) == 2 for each in parameters.names(own)):
        void["vectors"] = "no tensor but matrices is written"
    if all(len(shape) < 2 for shape in own.fast_shapes.values()):
        void["retention"] = "no matrix is written"
    if own.clip == "none":
        void["clip_norm"] = "there is no clip"
    if c.rate == "none":
        void["adaptive"] = "there is no step size"
    if own.phase in ("both", "off"):
        void["training"] = f"phase {own.phase} does not ask for it"
    if not own.writes:
        words = "these calls do not write"
        of_writes = ("bias", "reduction", "clip", "adaptive", "deep_momentum", "unfinished", "fast")
        void |= dict.fromkeys(of_writes, words)
        if not own.retention.maps:
            void["retention"] = words
    elif _whole(own, inputs):
        void["unfinished"] = "no chunk is incomplete where a document or the call ends"
    if "in/reset" not in inputs and not any(name.startswith("in/state/") for name in inputs):
        words = "the case is one document from its beginning"
        void |= dict.fromkeys(("memory_reset", "momentum_reset"), words)
    if inputs["in/k"].ndim == 2 or inputs["in/k"].shape[0] == 1:
        void["coupling"] = "there are no rows to share a memory"
    return void


def _whole(own: Config, inputs: Mapping[str, Any]) -> bool:
    """Whether every document of the call ends with a chunk."""
    T, position = inputs["in/k"].shape[-2], int(inputs.get("in/state/position", 0))
    starts = np.nonzero(inputs["in/reset"])[0].tolist() if "in/reset" in inputs else []
    if starts and starts[0] == 0:
        position = 0
    ends = [*(each for each in starts if each), T]
    lengths = np.diff([0, *ends])
    return all(
        (int(length) + (position if i == 0 else 0)) % int(own.chunk) == 0
        for i, length in enumerate(lengths)
    )


def features(case: Case) -> set[str]:
    """Names of the features of SRC-21 that a case has (DEEPCASE-8)."""
    inputs, k, v = case.inputs, case.inputs["in/k"], case.inputs["in/v"]
    own = parameters.config(case.header, k.shape[-1], v.shape[-1])
    c = case.convention

    def holds(*beginnings: str) -> bool:
        return any(name.startswith(beginnings) for name in inputs)

    has = {
        "pulse": holds("in/active"),
        "reset": holds("in/reset"),
        "heads": math.prod(k.shape[:-2]) > 1,
        "rectangular": own.d_in != own.d_out,
        "state": holds("in/state/weights/", "in/state/momentum/"),
        "history": holds("in/state/keys"),
        "resumed": holds("in/state/position", "in/state/reference/"),
        "span": own.span is not None,
        "window": own.window > 1,
        "weights": holds("in/window_weights", "in/window_gate")
        or own.window_weights.kind not in ("ones", "uniform"),
        "momentum": holds("in/momentum"),
        "iterations": c.has_newton_schulz,
    }
    return {name for name, value in has.items() if value}
