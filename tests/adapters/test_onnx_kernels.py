"""LinearAttention of ONNX as kernels: the conversions with a node in NumPy, and both packages where
they are installed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from tests.support.linear_attention import KINDS, Array, asked, linear_attention, verdicts

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "adapters"))
import onnx_kernels

#: Member -> the update rule of the node, and whether its gate is one of each channel.
MEMBERS = {
    "linear_attn": ("linear", False),
    "simple_gla": ("gated", False),
    "gla": ("gated", True),
    "delta": ("delta", False),
    "gated_delta": ("gated_delta", False),
    "kda": ("gated_delta", True),
}

PASSED = {"out/y": ("PASS", ""), "out/M": ("PASS", "")}


def stand_in(node: onnx_kernels.Node) -> onnx_kernels.Run:
    """A node in NumPy, from the text of the operation: packed tensors in and out."""

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        assert tuple(feeds) == node.inputs
        assert {x.dtype.name for x in feeds.values()} == {node.dtype}
        assert all(x.ndim == (4 if name == "initial_state" else 3) for name, x in feeds.items())
        B, T, _ = feeds["q"].shape
        count = node.kv_num_heads
        assert node.q_num_heads == count
        q, k, v = (feeds[name].reshape(B, T, count, -1) for name in ("q", "k", "v"))
        given = {}
        if "g" in feeds:
            given["retain"] = np.exp(np.float32(feeds["g"])).reshape(B, T, count, -1)
        if "beta" in feeds:
            given["beta"] = feeds["beta"].reshape(B, T, count)
        shape = (B, count, k.shape[-1], v.shape[-1])
        state = feeds.get("initial_state", np.zeros(shape, node.dtype))
        assert state.shape == shape
        scale = node.scale or k.shape[-1] ** -0.5
        y, last = linear_attention(q, k, v, state, scale=scale, **given)
        return [y.reshape(B, T, -1).astype(node.dtype), last.astype(node.dtype)]

    return run


def kernel(member: str, build: Any = stand_in) -> Any:
    rule, channels = MEMBERS[member]
    types = onnx_kernels.RUNTIME_TYPES
    return onnx_kernels.kernel(build, rule, member, types=types, channels=channels)


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("member", MEMBERS)
def test_a_node_gets_packed_tensors_and_its_results_come_back(member: str, kind: str) -> None:
    case = asked(member, kind, channels=MEMBERS[member][1], d_out=3)
    assert verdicts(case, kernel(member)) == PASSED


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_16_bits_stay_where_the_node_takes_them(dtype: str) -> None:
    seen = []

    def looked(node: onnx_kernels.Node) -> onnx_kernels.Run:
        seen.append(node.dtype)
        return stand_in(node)

    assert verdicts(asked("gated_delta"), kernel("gated_delta", looked), dtype) == PASSED
    assert seen == ["float16" if dtype == "float16" else "float32"]


def test_without_a_first_memory_the_node_has_no_input_for_it() -> None:
    seen = []

    def looked(node: onnx_kernels.Node) -> onnx_kernels.Run:
        seen.append(node)
        return stand_in(node)

    assert verdicts(asked("kda", channels=True, first=False), kernel("kda", looked)) == PASSED
    assert seen[0].inputs == ("q", "k", "v", "g", "beta")
    assert (seen[0].scale, seen[0].update_rule) == (0.0, "gated_delta")


def test_a_scale_of_the_case_is_the_nodes() -> None:
    seen = []

    def looked(node: onnx_kernels.Node) -> onnx_kernels.Run:
        seen.append(node.scale)
        return stand_in(node)

    for scale in (1, "1/sqrt(d_in)"):
        case = asked("gated_delta", parameters={"query_scale": scale})
        assert verdicts(case, kernel("gated_delta", looked)) == PASSED
    assert seen == [1.0, 0.5]


def test_a_state_of_the_other_layout_and_heads_in_another_order_are_wrong() -> None:
    """The negative twins of the conversion."""

    def turned(node: onnx_kernels.Node) -> onnx_kernels.Run:
        run = stand_in(node)
        return lambda feeds: [
            y if i == 0 else np.swapaxes(y, -1, -2) for i, y in enumerate(run(feeds))
        ]

    def mixed(node: onnx_kernels.Node) -> onnx_kernels.Run:
        run = stand_in(node)

        def other(feeds: Mapping[str, Array]) -> list[Array]:
            k = feeds["k"]
            swapped = k.reshape(*k.shape[:2], 2, -1)[:, :, ::-1].reshape(k.shape)
            return run({**feeds, "k": swapped})

        return lambda feeds: other(feeds)

    assert verdicts(asked("kda", channels=True), kernel("kda", turned))["out/M"][0] == "WRONG"
    assert verdicts(asked("kda", channels=True), kernel("kda", mixed))["out/y"][0] == "WRONG"


@pytest.mark.clause("SRC-1")
def test_what_the_node_does_not_take_is_not_supported() -> None:
    case = asked("gated_delta", d_out=3)
    beta = np.repeat(case.inputs["in/beta"][..., None], 3, axis=-1)
    each = atlas_ref.make(case.header.plain(), {**case.inputs, "in/beta": beta}, name="values")
    verdict, why = verdicts(each, kernel("gated_delta"))["-"]
    assert (verdict, "in/beta for each value" in why) == ("NOT SUPPORTED", True)
    verdict, why = verdicts(asked("gated_delta", reset=2), kernel("gated_delta"))["-"]
    assert (verdict, why) == ("NOT SUPPORTED", "in/reset: it takes none")


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("package", ["onnxruntime", "onnx"])
def test_the_packages_are_right_where_they_are_installed(package: str, member: str) -> None:
    for each in {"onnx", package}:
        if importlib.util.find_spec(each) is None:
            pytest.skip(f"{each} is not installed")
    name = {"onnxruntime": "runtime", "onnx": "evaluator"}[package]
    one = getattr(onnx_kernels, f"{name}_{member}")
    for kind in KINDS:
        case = asked(member, kind, channels=MEMBERS[member][1], d_out=3)
        assert verdicts(case, one) == PASSED, kind
