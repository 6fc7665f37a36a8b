"""LinearAttention of ONNX, by ONNX Runtime on the CPU and by the reference evaluator of onnx.

    pip install onnx onnxruntime
    atlas-ref new dplr -o one.safetensors --parameter member=kda
    PYTHONPATH=examples/adapters atlas-ref check one.safetensors --impl onnx_kernels:runtime_kda

`runtime_*` are com.microsoft::LinearAttention of ONNX Runtime, `evaluator_*` LinearAttention of
opset 27, which both packages define alike: tensors packed as (B, T, H D), logs of gates, a state
(d_in, d_out), and the scale 1/sqrt(d_in), which 0.0 stands for. There is no backward. Nothing is
imported before a kernel is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from kernels import Kernel

Array = np.ndarray[Any, Any]

#: Inputs of the node in their order, by the names that an adapter calls them.
INPUTS = ("q", "k", "v", "initial_state", "g", "beta")

#: Types of tensors that a model takes; every other is computed in float32.
RUNTIME_TYPES = ("float32", "float16")
EVALUATOR_TYPES = ("float32", "float16", "bfloat16")


class Node(NamedTuple):
    """What a model with this one node is built of.

    Attributes:
        inputs: those of INPUTS that it has.
        dtype: type of all tensors.
        scale: of queries; 0.0 is 1/sqrt(d_in).
    """

    update_rule: str
    q_num_heads: int
    kv_num_heads: int
    inputs: tuple[str, ...]
    dtype: str
    scale: float


#: The outputs of a node, (o, present_state), from its inputs.
Run = Callable[[Mapping[str, Array]], Sequence[Any]]


def model(node: Node, domain: str, opset: int) -> Any:
    """The ONNX model of one node LinearAttention."""
    from onnx import TensorProto, helper

    kinds = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
    kind = getattr(TensorProto, kinds[node.dtype])
    names = [name if name in node.inputs else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    results = ["o", "present_state"]
    attributes = {name: getattr(node, name) for name in ("update_rule", "scale")}
    heads = {name: getattr(node, name) for name in ("q_num_heads", "kv_num_heads")}
    one = helper.make_node("LinearAttention", names, results, domain=domain, **attributes, **heads)
    inputs, outputs = (
        [helper.make_tensor_value_info(name, kind, None) for name in each]
        for each in (node.inputs, results)
    )
    domains = [helper.make_opsetid("", opset)]
    domains += [helper.make_opsetid(domain, 1)] if domain else []
    graph = helper.make_graph([one], "linear_attention", inputs, outputs)
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


@functools.lru_cache(maxsize=64)
def runtime(node: Node) -> Run:
    """The node in ONNX Runtime, on one thread of the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # a failure is raised, and need not be printed too
    content = model(node, "com.microsoft", 21).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


@functools.lru_cache(maxsize=64)
def evaluator(node: Node) -> Run:
    """The node in the reference evaluator of onnx."""
    from onnx.reference import ReferenceEvaluator

    return functools.partial(ReferenceEvaluator(model(node, "", 27)).run, None)


def kernel(
    build: Callable[[Node], Run],
    update_rule: str,
    member: str,
    *,
    types: Sequence[str],
    channels: bool = False,
) -> Kernel:
    """A kernel of rule dplr behind a node LinearAttention.

    Args:
        build: `runtime`, `evaluator`, or another that runs a node.
        update_rule: of the node.
        member: of specs/dplr_cases.md, what it computes.
        types: of tensors, what it takes.
        channels: whether a gate has one number for each key channel; the node tells by the width.
    """
    arguments = {"q": "q", "k": "k", "v": "v", "initial_state": "M0", "scale": "query_scale"}
    arguments |= {"g": "log_retain"} if "gated" in update_rule else {}
    arguments |= {"beta": "beta"} if "delta" in update_rule else {}

    def call(scale: float = 0.0, **given: Array) -> tuple[Array, Array]:
        (B, T, H, _), width = given["v"].shape, given["v"].shape[-1]
        dtype = given["v"].dtype.name if given["v"].dtype.name in types else "float32"
        heads = {"q_num_heads": given["q"].shape[2], "kv_num_heads": given["k"].shape[2]}
        inputs = tuple(name for name in INPUTS if name in given)
        node = Node(update_rule, **heads, inputs=inputs, dtype=dtype, scale=scale)
        o, state = build(node)({name: packed(name, given[name], dtype) for name in inputs})
        return np.asarray(o).reshape(B, T, H, width), np.asarray(state)

    return Kernel(call, arguments, member, channels=channels)


def packed(name: str, x: Array, dtype: str) -> Array:
    """A tensor (B, T, H, ...) as (B, T, H D); a state stays."""
    if name != "initial_state":
        x = x.reshape(*x.shape[:2], -1)
    if dtype == "bfloat16":
        return np.ascontiguousarray(x)  # of ml_dtypes, as the case has it
    return np.ascontiguousarray(x, np.dtype(dtype))


_of_runtime = functools.partial(kernel, runtime, types=RUNTIME_TYPES)
_of_evaluator = functools.partial(kernel, evaluator, types=EVALUATOR_TYPES)

runtime_linear_attn = _of_runtime("linear", "linear_attn")
runtime_simple_gla = _of_runtime("gated", "simple_gla")
runtime_gla = _of_runtime("gated", "gla", channels=True)
runtime_delta = _of_runtime("delta", "delta")
runtime_gated_delta = _of_runtime("gated_delta", "gated_delta")
runtime_kda = _of_runtime("gated_delta", "kda", channels=True)

evaluator_linear_attn = _of_evaluator("linear", "linear_attn")
evaluator_simple_gla = _of_evaluator("gated", "simple_gla")
evaluator_gla = _of_evaluator("gated", "gla", channels=True)
evaluator_delta = _of_evaluator("delta", "delta")
evaluator_gated_delta = _of_evaluator("gated_delta", "gated_delta")
evaluator_kda = _of_evaluator("gated_delta", "kda", channels=True)
