"""CausalConvWithState of ONNX, for the member short_conv of rule recurrence.

    atlas-ref new recurrence -o one.safetensors --parameter member=short_conv --parameter activation=silu
    PYTHONPATH=examples/adapters/public atlas-ref check one.safetensors --impl of_onnx:reference --dtype float32

`reference` is the evaluator of the package onnx, `runtime` the kernel of onnxruntime on the CPU,
which has the operator of the domain com.microsoft.
The state is (channels, W-1), taps and bias are for all rows, so that heads are called one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Results = dict[str, Array]

#: x (rows, d, T), taps (d, W), bias (d,) or None, window (rows, d, columns) or None, activation ->
#: y (rows, d, T) and the window after it.
Function = Callable[[Array, Array, Array | None, Array | None, str], tuple[Array, Array]]


def _adapted(function: Function) -> Callable[..., Results]:
    """The answer to a case, one head at a time, since each has taps of its own."""

    def answer(case: dict[str, Any], inputs: dict[str, Array]) -> Results:
        own = case.get("parameters") or {}
        if own.get("member") != "short_conv":
            raise NotImplementedError("another rule than recurrence with the member short_conv")
        if own.get("columns", "W-1") != "W-1":
            raise NotImplementedError("parameters.columns: W-1 alone")
        if "active" in inputs or "reset" in inputs:
            raise NotImplementedError("in/active, in/reset: calls of whole rows alone")
        turned = own.get("state_layout") == "(d_in, d_out)"
        x, w, window = inputs["x"], inputs["w"], inputs.get("window0")
        window = window.swapaxes(-1, -2) if turned and window is not None else window
        x = x if x.ndim > 2 else x[None]
        window = window[None] if window is not None and window.ndim < 3 else window
        taps = np.broadcast_to(w, (x.shape[-3], *w.shape[-2:]))
        bias = inputs.get("bias")
        bias = None if bias is None else np.broadcast_to(bias, (x.shape[-3], w.shape[-2]))
        ys, windows = [], []
        for h in range(x.shape[-3]):
            rows = x[..., h, :, :].reshape(-1, *x.shape[-2:]).swapaxes(-1, -2)
            first = None if window is None else window[..., h, :, :].reshape(-1, *window.shape[-2:])
            one = None if bias is None else bias[h]
            y, after = function(rows, taps[h], one, first, own.get("activation", "none"))
            ys.append(y.swapaxes(-1, -2).reshape(*x.shape[:-3], *x.shape[-2:]))
            windows.append(after.reshape(*x.shape[:-3], *after.shape[1:]))
        y, after = np.stack(ys, axis=-3), np.stack(windows, axis=-3)
        after = after.swapaxes(-1, -2) if turned else after
        alone = inputs["x"].ndim == 2
        return {"y": y[0] if alone else y, "window": after[0] if alone else after}

    return answer


@functools.cache
def _model(kind: Any, activation: str, has_bias: bool, has_window: bool, domain: str = "") -> Any:
    """A model of the one operator of a domain, of inputs of a type."""
    from onnx import helper

    element = helper.np_dtype_to_tensor_dtype(kind)
    names = ["x", "w", "bias" if has_bias else "", "window" if has_window else ""]
    node = helper.make_node(
        "CausalConvWithState", names, ["y", "after"], activation=activation, domain=domain
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, element, None) for name in names if name],
        [helper.make_tensor_value_info(name, element, None) for name in ("y", "after")],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(domain, 1 if domain else 27)]
    )


def _feeds(x: Array, w: Array, bias: Array | None, window: Array | None) -> dict[str, Array]:
    given = {"x": x, "w": w[:, None], "bias": bias, "window": window}
    return {name: np.ascontiguousarray(each) for name, each in given.items() if each is not None}


def _reference(
    x: Array, w: Array, bias: Array | None, window: Array | None, activation: str
) -> tuple[Array, Array]:
    from onnx.reference import ReferenceEvaluator

    model = _model(x.dtype, activation, bias is not None, window is not None)
    y, after = ReferenceEvaluator(model).run(None, _feeds(x, w, bias, window))
    return y, after


@functools.cache
def _session(kind: Any, activation: str, has_bias: bool, has_window: bool) -> Any:
    import onnxruntime

    model = _model(kind, activation, has_bias, has_window, "com.microsoft")
    model.ir_version = min(model.ir_version, 11)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def _runtime(
    x: Array, w: Array, bias: Array | None, window: Array | None, activation: str
) -> tuple[Array, Array]:
    if x.dtype == np.float64:
        raise NotImplementedError("float64: float32 and float16 alone")
    session = _session(x.dtype, activation, bias is not None, window is not None)
    y, after = session.run(None, _feeds(x, w, bias, window))
    return y, after


reference = _adapted(_reference)
runtime = _adapted(_runtime)
