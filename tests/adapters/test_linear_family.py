"""Kernels of public packages through the adapter of kernels: states, groups, steps, packed sequences."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.sources import sources

PUBLIC = Path(__file__).parents[2] / "examples" / "adapters" / "public"

#: Function -> parameters of the case, its form, and what of it there is no gradient by.
CALLS = {
    "kda": ({"groups": 2}, {"tokens": 9}),
    "kda_chunk": ({"groups": 2, "state_layout": "(d_in, d_out)"}, {"tokens": 8}),
    "gated_delta_product": ({"steps": 2}, {"tokens": 9, "reset": 4}),
    "rwkv6": ({}, {"tokens": 9}),
    "qwen3_next": ({"groups": 2}, {"tokens": 9}),
    "kimi_linear_chunk": ({}, {"tokens": 9}),
}


def function(name, monkeypatch):
    """A function of the adapter, where its package is installed."""
    monkeypatch.syspath_prepend(str(PUBLIC.parent))
    monkeypatch.syspath_prepend(str(PUBLIC))
    one = getattr(importlib.import_module("of_linear_family"), name)
    for package in ("torch", "fla" if one.package == "fla-core" else one.package):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return one


def case(member, parameters, request, *, head_gates):
    """A case from a first memory, with cotangents of reads and the last memory."""
    sizes = {"d_in": 4, "d_out": 3, "heads": 2, "seed": 5, "cotangent": True}
    own = {"member": member, **parameters}
    drawn = new(Request(rule="dplr", draw=1, parameters=own, **sizes, **request))
    inputs, v = dict(drawn.inputs), drawn.inputs["in/v"]
    if head_gates:
        inputs["in/retain"] = inputs["in/retain"][..., 0]
    widths = (4, 3) if parameters.get("state_layout") == "(d_in, d_out)" else (3, 4)
    draw = np.random.default_rng(7)
    for name in ("M0", "M_bar"):
        inputs[f"in/{name}"] = draw.standard_normal((*v.shape[:-2], *widths))
    # two rows of a batch, so that packed sequences of one do not run into the other
    rows = {
        name: x if name in ("in/reset", "in/bonus") else np.stack([x, 0.5 * x])
        for name, x in inputs.items()
    }
    return atlas_ref.make(drawn.header.plain(), rows, name=member)


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("name", CALLS)
def test_a_public_kernel_is_right_from_a_memory_on_with_all_gradients(name, monkeypatch):
    one, (parameters, request) = function(name, monkeypatch), CALLS[name]
    asked = case(one.member, parameters, request, head_gates=not one.how.get("channels", True))
    assert ("in/reset" in asked.inputs) == ("reset" in request)
    rows = atlas_ref.check(asked, source=lambda each: sources.respond(one, each), dtype="float32")
    assert [
        (row.tensor, row.verdict, row.error, row.why) for row in rows if row.verdict != "PASS"
    ] == []
    masks = ("in/reset", "in/y_bar", "in/M_bar")
    gradients = {f"grad/{each[3:]}" for each in asked.inputs if each not in masks}
    assert {row.tensor for row in rows} == {"out/y", "out/M"} | gradients


def test_a_public_kernel_without_packed_sequences_is_not_asked_for_them(monkeypatch):
    one = function("gated_delta", monkeypatch)
    asked = case(one.member, {}, {"tokens": 9, "reset": 4}, head_gates=True)
    (row,) = atlas_ref.check(asked, source=lambda each: sources.respond(one, each))
    assert (row.verdict, row.why) == ("NOT SUPPORTED", "in/reset: it takes none")


def test_numbers_of_16_bits_go_through_pytorch_as_they_are(monkeypatch):
    one = function("kda", monkeypatch)
    asked = case(one.member, {"groups": 2}, {"tokens": 9}, head_gates=False)
    rows = atlas_ref.check(asked, source=lambda each: sources.respond(one, each), dtype="bfloat16")
    assert {row.verdict for row in rows if row.tensor.startswith("out/")} == {"PASS"}
