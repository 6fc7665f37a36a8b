"""The neural memories of titans-pytorch, titans-memory and titans-unofficial, each with a linear
memory.

    atlas-ref check cases/ --impl of_titans:titans_pytorch

They compute keys, values, queries and gates from tokens; here their projections hand on columns of
what they get, so that they work on a case's own. titans-memory and titans-unofficial both call
their package `titans`, so each is loaded by file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import titans_columns
from reading import Implementation
from torch_calls import Tensors, answer, by_file, imported, pytorch

SOURCE = "Titans (2501.00663) Eqs 12-15"
TITANS = {"gate": "forget", "momentum_sign": "minus"}


# -- titans-pytorch --------------------------------------------------------------------------------


def _titans_pytorch(x: Tensors, case: Mapping[str, Any], batch: int | None) -> Tensors:
    """titans-pytorch token by token, with heads as batch, so that each has its own memory."""
    torch = pytorch()
    package = imported("titans_pytorch")
    rows, width = x["k"].shape[0] * x["k"].shape[2], x["k"].shape[-1]
    memory = package.NeuralMemory(
        width,
        chunk_size=1,
        batch_size=batch,
        model=package.MemoryMLP(width, depth=1),
        momentum="momentum" in x,
        pre_rmsnorm=False,
        mem_model_norm_add_residual=False,
        adaptive_step_transform=lambda step: step,
    )

    titans_columns.of_titans_pytorch(memory, width, momentum="momentum" in x)

    def rowwise(name: str) -> Any:
        value = x[name].transpose(1, 2)
        return value.reshape(rows, value.shape[2], -1)

    names = ["k", "v", "q", "step_size", "retain", *(["momentum"] if "momentum" in x else [])]
    tokens = torch.cat([rowwise(name) for name in names], dim=-1)
    (name,) = memory.memory_model_parameter_names
    first = (
        x["M0"].reshape(rows, width, width) if "M0" in x else tokens.new_zeros(rows, width, width)
    )
    S = (
        x["S0"].reshape(1, rows, width, width)
        if "S0" in x
        else tokens.new_zeros(1, rows, width, width)
    )
    state = imported("titans_pytorch.neural_memory").NeuralMemState(
        0, {name: first}, None, ({name: first}, {name: S}), None
    )
    y, state = memory(tokens, state=state)
    last, momentum = state.states
    shape = (x["k"].shape[0], x["k"].shape[2])
    outputs = {
        "y": y.reshape(*shape, -1, width).transpose(1, 2),
        "M": last[name].reshape(*shape, width, width),
    }
    if "momentum" in x:
        outputs["S"] = momentum[name][0].reshape(*shape, width, width)
    return outputs


def _more_than_one(inputs: dict[str, Any]) -> str:
    return "one token: it reads that of the last state" if inputs["k"].shape[-2] == 1 else ""


_PYTORCH: dict[str, Any] = {**TITANS, "gradient_scale": "2/d_out", "layout": "transposed"}

titans_pytorch = Implementation(
    "NeuralMemory, linear, weights renewed every token",
    "titans-pytorch",
    "titans_lmm",
    _PYTORCH,
    SOURCE + ", mean over outputs",
    answer(lambda x, case: _titans_pytorch(x, case, 1)),
    dtypes=("float32", "float64"),
    square=True,
    wants=_more_than_one,
)
titans_pytorch_call = titans_pytorch._replace(
    label="NeuralMemory, linear, weights renewed never",
    convention={**_PYTORCH, "reference": "call_start"},
    source=SOURCE + ", mean over outputs, gradient at the start of the call",
    answer=answer(lambda x, case: _titans_pytorch(x, case, None)),
)


# -- titans-memory ---------------------------------------------------------------------------------


def _titans_memory(x: Tensors, case: Mapping[str, Any], chunk: int | None) -> Tensors:
    """The loop of titans-memory over chunks, head after head.

    A memory starts from the weights of its last layer, cut off from the graph.
    """
    torch = pytorch()
    module = by_file("titans.memory.neural_memory")
    batch, tokens, heads, width = x["k"].shape
    reads = []
    for b in range(batch):
        for h in range(heads):
            memory = module.NeuralMemory(
                width, n_layers=1, chunk_size=chunk or tokens, use_momentum="momentum" in x
            )
            memory.to(x["k"].dtype)
            start = (
                x["M0"][b, h].detach()
                if "M0" in x
                else torch.zeros(width, width, dtype=x["k"].dtype)
            )
            memory.memory.net[-1].weight.data.copy_(start)
            one = {name: x[name][b : b + 1, :, h] for name in ("q", "k", "v")}
            gates = [
                x[name][b : b + 1, :, h, None]
                for name in ("step_size", "momentum" if "momentum" in x else "retain", "retain")
            ]
            reads.append(memory._retrieve_chunked(one["q"], one["k"], one["v"], *gates)[0])
    return {"y": torch.stack(reads).reshape(batch, heads, tokens, width).transpose(1, 2)}


titans_memory = Implementation(
    "NeuralMemory, linear, chunks of 1",
    "titans-memory",
    "titans_lmm",
    TITANS,
    SOURCE + ", half the squared error",
    answer(lambda x, case: _titans_memory(x, case, 1)),
    dtypes=("float32", "float64"),
    square=True,
    states=("M0",),
    returns=("y",),
    note="returns reads alone; its first memory has no gradient",
)
titans_memory_call = titans_memory._replace(
    label="NeuralMemory, linear, one chunk",
    convention={**TITANS, "reference": "call_start", "read": "call_end"},
    source=SOURCE + ", half the squared error; every token of a chunk reads its last memory",
    answer=answer(lambda x, case: _titans_memory(x, case, None)),
)


# -- titans-unofficial -----------------------------------------------------------------------------


def _titans_unofficial(x: Tensors, case: Mapping[str, Any]) -> Tensors:
    """titans-unofficial: a layer with a bias, as a linear memory whose keys have a last entry of 1.

    Keys and queries are normalised inside.
    """
    torch = pytorch()
    module = by_file("titans.utils.memory")
    batch, tokens, heads, keys = x["k"].shape
    width = keys - 1
    memory = module.NeuralMemoryModule(
        width, memory_depth=1, use_momentum="momentum" in x, max_grad_norm=None
    )

    titans_columns.of_titans_unofficial(memory, width, momentum="momentum" in x)
    rows = batch * heads

    def rowwise(value: Any) -> Any:
        value = value.transpose(1, 2)
        return value.reshape(rows, tokens, -1)

    gates = [x[name] for name in ("step_size", "retain", "momentum") if name in x]
    seq = torch.cat(
        [rowwise(each) for each in (x["k"][..., :-1], x["v"], x["q"][..., :-1], *gates)], dim=-1
    )
    M = x["M0"] if "M0" in x else seq.new_zeros(batch, heads, width, keys)
    S = x["S0"] if "S0" in x else torch.zeros_like(M)
    states = [
        [each.reshape(rows, width, keys)[..., :-1], each.reshape(rows, width, keys)[..., -1]]
        for each in (M, S)
    ]
    y, ((weight, bias), (momentum, of_bias)) = memory(seq, tuple(states))

    def whole(matrix: Any, last: Any) -> Any:
        return torch.cat([matrix, last[..., None]], dim=-1).reshape(batch, heads, width, keys)

    outputs = {
        "y": y.reshape(batch, heads, tokens, width).transpose(1, 2),
        "M": whole(weight, bias),
    }
    return outputs | ({"S": whole(momentum, of_bias)} if "momentum" in x else {})


def _unit_with_one(inputs: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Unit keys and queries with a last entry of 1 behind them, and states with its column."""
    arrays = dict(inputs)
    for name in ("k", "q"):
        length = np.linalg.norm(np.asarray(inputs[name], np.float64), axis=-1, keepdims=True)
        unit = np.where(
            length > 0,
            inputs[name] / np.where(length > 0, length, 1),
            np.shape(inputs[name])[-1] ** -0.5,
        )
        arrays[name] = np.concatenate([unit, np.ones_like(length)], axis=-1)
    for name in ("M0", "S0", "M_bar", "S_bar"):
        if name in inputs:
            arrays[name] = np.concatenate([inputs[name], inputs[name][..., :1]], axis=-1)
    return arrays, "keys and queries made unit vectors, with an entry 1 for the bias"


def _wants_unit_with_one(inputs: dict[str, Any]) -> str:
    d_in, d_out = inputs["k"].shape[-1], inputs["v"].shape[-1]
    if d_in != d_out + 1:
        return f"d_in {d_in} and d_out {d_out}: with its bias it has one column more than rows"
    for name in ("k", "q"):
        unit = np.asarray(inputs[name], np.float64)
        if (unit[..., -1] != 1).any() or np.abs(
            np.linalg.norm(unit[..., :-1], axis=-1) - 1
        ).max() > 1e-12:
            return f"in/{name}: it takes unit vectors, and an entry 1 for its bias"
    return (
        "in/step_size above 1: it is a sigmoid"
        if (np.asarray(inputs["step_size"]) > 1).any()
        else ""
    )


def _at_bounds(inputs: Mapping[str, Any]) -> bool:
    """Whether a gate is 0 or 1, where a sigmoid has no finite logit."""
    return any(
        bool(np.isin(np.asarray(inputs[name]), (0, 1)).any())
        for name in ("retain", "momentum", "step_size")
        if name in inputs
    )


titans_unofficial = Implementation(
    "NeuralMemoryModule, one layer, no clipping",
    "titans-unofficial",
    "titans_lmm",
    {**TITANS, "gradient_scale": 2, "read": "before"},
    SOURCE,
    answer(_titans_unofficial, no_slope=_at_bounds, without=("k", "q")),
    dtypes=("float64",),
    prepare=_unit_with_one,
    wants=_wants_unit_with_one,
    note="its gates are sigmoids, which float32 would round anew; gradients by keys and queries "
    "pass through its norm and are left out",
)
