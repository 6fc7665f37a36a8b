"""The PyTorch references of fla-core: delta, gated delta, delta with momentum, and simple gated
linear attention.

    atlas-ref check cases/ --impl of_fla_core:gated_delta

They are loaded by file, since fla-core itself imports Triton. All but the chunk form of delta
compute in float32 on inputs of any dtype; the memory is stored transposed and queries are scaled by
1/sqrt(d_in).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reading import Implementation
from torch_calls import Tensors, answer, at_zero, by_file, logarithm

#: Tokens of a chunk; cases are short, so that several chunks and a last one that is not full occur.
CHUNK = 4

TRANSPOSED = {"layout": "transposed", "query_scale": "1/sqrt(d_in)"}


def _heads_first(x: Tensors, *names: str) -> list[Any]:
    return [x[name].transpose(1, 2) for name in names]


def _delta(x: Tensors, case: Mapping[str, Any]) -> Tensors:
    naive = by_file("fla.ops.delta_rule.naive")
    y, M = naive.delta_rule_recurrence(
        *_heads_first(x, "q", "k", "v", "step_size"), initial_state=x.get("M0")
    )
    return {"y": y.transpose(1, 2), "M": M}


def _delta_chunk(x: Tensors, case: Mapping[str, Any]) -> Tensors:
    naive = by_file("fla.ops.delta_rule.naive")
    y, M = naive.delta_rule_chunkwise(
        *_heads_first(x, "q", "k", "v", "step_size"), chunk_size=CHUNK
    )
    return {"y": y.transpose(1, 2), "M": M}


def _gated(x: Tensors, case: Mapping[str, Any], function: str, **options: Any) -> Tensors:
    call = getattr(by_file("fla.ops.gated_delta_rule.naive"), function)
    gates = {"beta": x["step_size"], "g": logarithm(x, "retain")}
    y, M = call(
        x["q"],
        x["k"],
        x["v"],
        **gates,
        **options,
        initial_state=x.get("M0"),
        output_final_state=True,
    )
    return {"y": y, "M": M}


def _momentum(x: Tensors, case: Mapping[str, Any], function: str, **options: Any) -> Tensors:
    call = getattr(by_file("fla.ops.momentum_delta_rule.naive"), function)
    gates = {
        "log_alpha": logarithm(x, "retain"),
        "log_mu": logarithm(x, "momentum"),
        "eta": x["step_size"],
        "beta": x["step_size_memory"],
    }
    states = {"initial_S": x.get("M0"), "initial_M": x.get("S0"), "output_final_state": True}
    y, (M, S) = call(q=x["q"], k=x["k"], v=x["v"], p=x["k"], **gates, **options, **states)
    return {"y": y, "M": M, "S": S}


def _simple_gla(x: Tensors, case: Mapping[str, Any], function: str, **options: Any) -> Tensors:
    call = getattr(by_file("fla.ops.simple_gla.naive"), function)
    y, M = call(
        x["q"],
        x["k"],
        x["v"],
        logarithm(x, "retain"),
        **options,
        initial_state=x.get("M0"),
        output_final_state=True,
    )
    return {"y": y, "M": M}


def _whole_chunks(inputs: dict[str, Any]) -> str:
    return (
        f"tokens that are no multiple of its chunk, {CHUNK} here"
        if inputs["k"].shape[-2] % CHUNK
        else ""
    )


DELTA_SOURCE = "DeltaNet as DELTA-12 states it"
GATED_SOURCE = "Gated DeltaNet (2412.06464) as DELTA-12 states it"
LOGS = ("retain", "momentum")
NO_LOG = at_zero(*LOGS)

delta = Implementation(
    "delta_rule, token by token",
    "fla-core",
    "delta",
    {"gate": "none", **TRANSPOSED},
    DELTA_SOURCE,
    answer(_delta),
    per_row=("step_size",),
)
delta_chunk = delta._replace(
    label=f"delta_rule, chunks of {CHUNK}",
    answer=answer(_delta_chunk),
    dtypes=("float32", "float64"),
    per_row=(),
    states=(),
    wants=_whole_chunks,
)
gated_delta = Implementation(
    "gated_delta_rule, token by token",
    "fla-core",
    "delta",
    {"decay": "before_error", **TRANSPOSED},
    GATED_SOURCE,
    answer(lambda x, case: _gated(x, case, "naive_recurrent_gated_delta_rule"), no_slope=NO_LOG),
    logs=LOGS,
)
gated_delta_chunk = gated_delta._replace(
    label=f"gated_delta_rule, chunks of {CHUNK}",
    answer=answer(
        lambda x, case: _gated(x, case, "naive_chunk_gated_delta_rule", chunk_size=CHUNK),
        no_slope=NO_LOG,
    ),
)
momentum_delta = Implementation(
    "momentum_delta_rule, token by token",
    "fla-core",
    "titans_lmm",
    {"rate": "split", **TRANSPOSED},
    "Titans (2501.00663) Eqs 12-14 with a second rate",
    answer(
        lambda x, case: _momentum(x, case, "recurrent_momentum_delta_rule_ref"), no_slope=NO_LOG
    ),
    logs=LOGS,
)
momentum_delta_chunk = momentum_delta._replace(
    label=f"momentum_delta_rule, chunks of {CHUNK}",
    answer=answer(
        lambda x, case: _momentum(x, case, "chunk_momentum_delta_rule_ref", chunk_size=CHUNK),
        no_slope=NO_LOG,
    ),
    note="adds 1e-6 to the second rate, and has the last states from its other form where tokens "
    "are no multiple of the chunk",
)
simple_gla = Implementation(
    "simple_gla, token by token",
    "fla-core",
    "hebbian",
    {**TRANSPOSED},
    "linear attention with a gate, HEBBIAN-2",
    answer(lambda x, case: _simple_gla(x, case, "naive_recurrent_simple_gla"), no_slope=NO_LOG),
    logs=LOGS,
)
simple_gla_chunk = simple_gla._replace(
    label=f"simple_gla, chunks of {CHUNK}",
    answer=answer(
        lambda x, case: _simple_gla(x, case, "naive_chunk_simple_gla", chunk_size=CHUNK),
        no_slope=NO_LOG,
    ),
)
